// Cancels a thread in each call that waits for events. The libraries are those that are installed, whose profile
// decides whether a thread can be unwound through them. Prints the calls in which the thread did not end.
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct rdma_event_channel *connections;

static void *wait_for_completion(void *unused) {
    struct ibv_cq *cq;
    void *cq_context;
    ibv_get_cq_event(completions, &cq, &cq_context);
    return unused;
}

static void *wait_for_async_event(void *unused) {
    struct ibv_async_event event;
    ibv_get_async_event(context, &event);
    return unused;
}

static void *wait_for_connection(void *unused) {
    struct rdma_cm_event *event;
    rdma_get_cm_event(connections, &event);
    return unused;
}

static const struct { const char *name; void *(*wait)(void *); } calls[] = {
    {"ibv_get_cq_event", wait_for_completion},
    {"ibv_get_async_event", wait_for_async_event},
    {"rdma_get_cm_event", wait_for_connection},
};

int main(void) {
    int failures = 0;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    if (!devices || !devices[0] || !(context = ibv_open_device(devices[0])))
        return 2;
    completions = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, completions, 0);
    connections = rdma_create_event_channel();
    if (!completions || !cq || ibv_req_notify_cq(cq, 0) != 0 || !connections)
        return 2;
    // A call that never returns ends the program.
    alarm(10);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        pthread_t thread;
        void *result;
        if (pthread_create(&thread, NULL, calls[i].wait, NULL) != 0)
            return 2;
        // Most likely it waits then; a cancellation before that has the same result.
        usleep(200000);
        if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0 || result != PTHREAD_CANCELED) {
            printf("%s\n", calls[i].name);
            failures++;
        }
    }
    // The objects can be used and destroyed afterwards.
    rdma_destroy_event_channel(connections);
    if (ibv_destroy_cq(cq) != 0 || ibv_destroy_comp_channel(completions) != 0 || ibv_close_device(context) != 0)
        return 2;
    ibv_free_device_list(devices);
    return failures != 0;
}
