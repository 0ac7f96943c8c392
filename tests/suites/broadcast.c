// An MPI program that checks what it receives: eight broadcasts of 4 MiB, and a sum.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1 << 20, ROUNDS = 8 };

int main(int count, char **arguments) {
    MPI_Init(&count, &arguments);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *numbers = malloc(COUNT * sizeof *numbers);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            numbers[i] = rank == 0 ? i * 31 + round : 0;
        MPI_Bcast(numbers, COUNT, MPI_INT, 0, MPI_COMM_WORLD);
        for (int i = 0; i < COUNT; i++)
            if (numbers[i] != i * 31 + round) {
                printf("round %d: number %d is %d\n", round, i, numbers[i]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    }
    long mine = rank + 1, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return sum == (long)size * (size + 1) / 2 ? 0 : 1;
}
