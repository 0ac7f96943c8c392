// Two threads on one core that guard the queues with their own spin lock, as UCX does: one polls without a pause, the
// other one posts, and polls now and then. Prints "done" when all rounds are complete, or "starves" if the polling
// thread has slept too often during one round. A round takes some thousand sleeps, because the kernel must preempt the
// polling thread at a moment when the lock is free.
#include "connection.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 20
#define MOST_SLEEPS 100000

static pthread_spinlock_t lock;
static int completions;
static atomic_int rounds;

// Polls once and returns whether `wanted` completions were found so far.
static int poll_until(int wanted) {
    struct ibv_wc wc;
    pthread_spin_lock(&lock);
    int found = ibv_poll_cq(cq, 1, &wc);
    NEED(found >= 0 && (found == 0 || wc.status == IBV_WC_SUCCESS));
    completions += found;
    int reached = completions >= wanted;
    pthread_spin_unlock(&lock);
    return reached;
}

static void *poll_without_a_pause(void *unused) {
    long sleeps = 0, sleeps_before = 0;
    for (int last = 0; sleeps - sleeps_before < MOST_SLEEPS;) {
        for (int i = 0; i < 1000; i++) poll_until(0);
        struct rusage usage;
        NEED(!getrusage(RUSAGE_THREAD, &usage));
        sleeps = usage.ru_nvcsw;
        int round = atomic_load(&rounds);
        if (round != last) sleeps_before = sleeps;
        last = round;
    }
    printf("starves\n");
    fflush(stdout);
    _exit(0);
    return unused;
}

static void compute(void) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < 50000);
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    NEED(!sched_setaffinity(0, sizeof one, &one));
    NEED(!pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE));
    static char memory[8];
    open_device();
    struct ibv_mr *mr = registered(memory, sizeof memory);
    struct ibv_qp *qp = create(IBV_QPT_RC);
    initialize(qp);
    connect_to_itself(qp);
    pthread_t thread;
    NEED(!pthread_create(&thread, NULL, poll_without_a_pause, NULL));
    for (int round = 1; round <= ROUNDS; round++) {
        struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof memory, .lkey = mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
            .wr = {.rdma = {.remote_addr = (uintptr_t)memory, .rkey = mr->rkey}}}, *bad;
        pthread_spin_lock(&lock);
        NEED(!ibv_post_send(qp, &wr, &bad));
        pthread_spin_unlock(&lock);
        do compute();
        while (!poll_until(round));
        atomic_store(&rounds, round);
    }
    printf("done\n");
    fflush(stdout);
    _exit(0);
}
