// An MPI program that checks what it receives: broadcasts, exchanges with the neighbors, and exchanges between all, of
// blocks of 1 MiB to 16 MiB.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLEST = 1 << 18, LARGEST = 1 << 22, ROUNDS = 4 };

static int rank, size;

// The number at an index of the block from `source` to `target`.
static int number(int round, int source, int target, int index) {
    return index * 31 + round * 7 + source * 1000003 + target * 10007;
}

static void fill(int *block, int count, int round, int source, int target) {
    for (int index = 0; index < count; index++)
        block[index] = number(round, source, target, index);
}

static void check(const char *what, const int *block, int count, int round, int source, int target) {
    for (int index = 0; index < count; index++)
        if (block[index] != number(round, source, target, index)) {
            printf("%s of %d numbers, round %d, from %d to %d: number %d is %d\n", what, count, round, source, target, index,
                   block[index]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void broadcast(int *block, int count, int round) {
    int root = round % size;
    fill(block, count, rank == root ? round : -1, root, 0);
    MPI_Bcast(block, count, MPI_INT, root, MPI_COMM_WORLD);
    check("broadcast", block, count, round, root, 0);
}

static void exchange_with_neighbors(int *sent, int *received, int count, int round) {
    int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    fill(sent, count, round, rank, next);
    fill(received, count, -1, previous, rank);
    MPI_Sendrecv(sent, count, MPI_INT, next, round, received, count, MPI_INT, previous, round, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    check("exchange with the neighbors", received, count, round, previous, rank);
}

static void exchange_between_all(int *sent, int *received, int count, int round) {
    for (int peer = 0; peer < size; peer++) {
        fill(sent + (size_t)peer * count, count, round, rank, peer);
        fill(received + (size_t)peer * count, count, -1, peer, rank);
    }
    MPI_Alltoall(sent, count, MPI_INT, received, count, MPI_INT, MPI_COMM_WORLD);
    for (int peer = 0; peer < size; peer++)
        check("exchange between all", received + (size_t)peer * count, count, round, peer, rank);
}

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *sent = malloc((size_t)LARGEST * size * sizeof *sent), *received = malloc((size_t)LARGEST * size * sizeof *received);
    if (!sent || !received)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int numbers = SMALLEST; numbers <= LARGEST; numbers *= 4)
        for (int round = 0; round < ROUNDS; round++) {
            broadcast(received, numbers, round);
            exchange_with_neighbors(sent, received, numbers, round);
            exchange_between_all(sent, received, numbers, round);
        }
    long mine = rank + 1, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return sum == (long)size * (size + 1) / 2 ? 0 : 1;
}
