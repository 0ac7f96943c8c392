// Channels, threads and processes.
#include "common.h"

// The descriptor of a channel.
void descriptors(void) {
    struct rdma_cm_event *event;
    int flags = fcntl(channel->fd, F_GETFD), epoll = epoll_create1(0);
    CHECK(flags & FD_CLOEXEC);
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET}, found;
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &edge) == 0);
    CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
    TRY(rdma_get_cm_event(channel, &event));
    TRY(rdma_get_cm_event(channel, NULL));
    TRY(rdma_ack_cm_event(NULL));
    CHECK(!readable(channel->fd, 0) && epoll_wait(epoll, &found, 1, 0) == 0);
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(id, NULL, at(&server_address, 7476), 1000) == 0);
    CHECK(epoll_wait(epoll, &found, 1, 0) == 1 && epoll_wait(epoll, &found, 1, 0) == 0);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    // Another event is another edge.
    CHECK(epoll_wait(epoll, &found, 1, 0) == 1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(channel->fd, &set);
    struct timeval none = {0};
    CHECK(select(channel->fd + 1, &set, NULL, NULL, &none) == 1);
    take(id);
    CHECK(readable(channel->fd, 0));
    take(id);
    CHECK(!readable(channel->fd, 0));
    // An event that is not read vanishes with its identifier, or moves with it.
    destroy(id);
    struct rdma_event_channel *other = rdma_create_event_channel();
    id = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(id, NULL, at(&server_address, 7476), 1000) == 0);
    CHECK(rdma_migrate_id(id, other) == 0 && id->channel == other);
    CHECK(!readable(channel->fd, 0) && readable(other->fd, 0));
    destroy(id);
    CHECK(!readable(other->fd, 0));
    rdma_destroy_event_channel(other);
    close(epoll);
}

static void *acknowledge_later(void *event) {
    usleep(200000);
    CHECK(rdma_ack_cm_event(event) == 0);
    return NULL;
}

// Destroying waits for acknowledgements, but the peer does not.
void destruction(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7477), *client = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(client, NULL, at(&server_address, 7477), 1000) == 0);
    struct rdma_cm_event *event = next();
    struct timespec before, after;
    pthread_t thread;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
    CHECK(rdma_destroy_id(client) == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(pthread_join(thread, NULL) == 0);
    long waited = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    printf("%s", waited >= 150 ? "waited" : "did not wait");
    destroy(listener);
}

enum { CLIENTS = 4, SERVERS = 3, ROUNDS = 25 };

static int accepted, ended;

// Handles the events of the shared channel until all connections have ended.
static void *handle(void *unused) {
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(channel, &event) == 0) {
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct rdma_conn_param wanted = parameters("reply");
            create_qp(id, IBV_QPT_RC);
            CHECK(rdma_accept(id, &wanted) == 0);
        }
        CHECK(rdma_ack_cm_event(event) == 0);
        if (type == RDMA_CM_EVENT_ESTABLISHED) {
            __atomic_add_fetch(&accepted, 1, __ATOMIC_SEQ_CST);
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            CHECK(rdma_disconnect(id) == 0);
            // Other threads may read the last event of the identifier meanwhile.
            destroy(id);
            __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
        }
    }
    CHECK(errno == EAGAIN);
    return unused;
}

static void *handle_all(void *unused) {
    while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) < CLIENTS * ROUNDS) {
        handle(unused);
        readable(channel->fd, 10);
    }
    return unused;
}

static void *connect_often(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        struct rdma_cm_id *id;
        CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
        struct sockaddr_in here = client_address, there = server_address;
        CHECK(rdma_resolve_addr(id, at(&here, 0), at(&there, 7479), 1000) == 0);
        CHECK(rdma_resolve_route(id, 1000) == 0);
        create_qp(id, IBV_QPT_RC);
        struct rdma_conn_param wanted = parameters("request");
        CHECK(rdma_connect(id, &wanted) == 0 && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
        CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
        destroy(id);
    }
    return unused;
}

// Several threads read the events of one channel, and destroy identifiers whose events the others read.
void threads(void) {
    pthread_t all[SERVERS + CLIENTS];
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7479);
    CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
    for (int i = 0; i < SERVERS + CLIENTS; i++)
        CHECK(pthread_create(&all[i], NULL, i < SERVERS ? handle_all : connect_often, NULL) == 0);
    for (int i = 0; i < SERVERS + CLIENTS; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
    printf("%d ended", ended);
    CHECK(accepted <= ended);
    destroy(listener);
}

static void nothing(int signal) { (void)signal; }

static void *wait_for_event(void *error) {
    struct rdma_cm_event *event;
    *(int *)error = rdma_get_cm_event(channel, &event) == 0 ? 0 : errno;
    return NULL;
}

// A signal ends a wait, and so does cancellation; the channel can be used afterwards.
void interruption(void) {
    struct sigaction action = {.sa_handler = nothing};
    pthread_t thread;
    void *result;
    int error = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, wait_for_event, &error) == 0);
    usleep(200000);
    CHECK(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, &result) == 0 && result == NULL);
    printf("%s; ", error == EINTR ? "EINTR" : error_name(error));
    CHECK(pthread_create(&thread, NULL, wait_for_event, &error) == 0);
    usleep(200000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    printf("%s; ", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    CHECK(pthread_create(&thread, NULL, wait_for_event, &error) == 0);
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(id, NULL, at(&server_address, 7481), 1000) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    printf("%s", error_name(error));
}

// A child cannot use what it has inherited, but it can use the library.
void forked(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7480), *inherited = listener;
    struct rdma_cm_event *event;
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        TRY(rdma_get_cm_event(channel, &event));
        TRY(rdma_listen(inherited, 1));
        TRY(rdma_destroy_id(inherited));
        CHECK((channel = rdma_create_event_channel()));
        struct rdma_cm_id *id = routed(RDMA_PS_TCP, 7480);
        create_qp(id, IBV_QPT_RC);
        struct rdma_conn_param wanted = parameters("child");
        CHECK(rdma_connect(id, &wanted) == 0);
        take(id);
        take(id);
        CHECK(rdma_disconnect(id) == 0);
        destroy(id);
        rdma_destroy_event_channel(channel);
        exit(0);
    }
    event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && strcmp(event->param.conn.private_data, "child") == 0);
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    create_qp(id, IBV_QPT_RC);
    struct rdma_conn_param wanted = parameters("parent");
    CHECK(rdma_accept(id, &wanted) == 0);
    CHECK((event = next())->event == RDMA_CM_EVENT_ESTABLISHED && rdma_ack_cm_event(event) == 0);
    CHECK(rdma_disconnect(id) == 0);
    CHECK((event = next())->event == RDMA_CM_EVENT_DISCONNECTED && event->status == 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    destroy(id);
    destroy(listener);
}

static int is_done;

// Sends requests until the test is done, whether a listener is there or not.
static void *request_always(void *unused) {
    struct rdma_conn_param wanted = parameters(NULL);
    struct sockaddr_in here = client_address, there = server_address;
    while (!__atomic_load_n(&is_done, __ATOMIC_SEQ_CST)) {
        struct rdma_cm_id *ids[8];
        struct rdma_event_channel *own = rdma_create_event_channel();
        CHECK(own);
        for (int i = 0; i < 8; i++) {
            CHECK(rdma_create_id(own, &ids[i], NULL, RDMA_PS_TCP) == 0);
            CHECK(rdma_resolve_addr(ids[i], at(&here, 0), at(&there, 7493), 1000) == 0);
            CHECK(rdma_resolve_route(ids[i], 1000) == 0);
            create_qp(ids[i], IBV_QPT_RC);
            CHECK(rdma_connect(ids[i], &wanted) == 0);
        }
        for (int i = 0; i < 8; i++)
            destroy(ids[i]);
        rdma_destroy_event_channel(own);
    }
    return unused;
}

// A listener's port is free when the listener is destroyed, though other threads take its requests.
void freed_port(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, request_always, NULL) == 0);
    for (int round = 0; round < 2000; round++) {
        struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7493);
        usleep(round % 20 * 20);
        destroy(listener);
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("freed");
}

// Calls all that may write to a descriptor, with a cancellation pending.
static void *call_cancelled(void *calls) {
    struct rdma_event_channel *other = rdma_create_event_channel();
    struct sockaddr_in group = {.sin_family = AF_INET};
    struct rdma_conn_param wanted = parameters(NULL);
    struct rdma_cm_id *id, *listener;
    CHECK(other && inet_pton(AF_INET, "239.47.1.3", &group.sin_addr) == 1);
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, at(&server_address, 7494)) == 0 && rdma_listen(listener, 1) == 0);
    CHECK(rdma_create_id(other, &id, NULL, RDMA_PS_UDP) == 0);
    CHECK(rdma_resolve_addr(id, at(&client_address, 0), at(&server_address, 7494), 1000) == 0);
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
    CHECK(rdma_resolve_route(id, 1000) == 0);
    CHECK(rdma_migrate_id(id, channel) == 0);
    CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
    CHECK(rdma_connect(id, &wanted) == 0);
    CHECK(rdma_disconnect(id) == -1 && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(other);
    *(int *)calls = 1;
    pthread_testcancel();
    return NULL;
}

// A thread is cancelled in none of these calls, so that they leave nothing half done.
void cancelled_calls(void) {
    int calls = 0;
    void *result;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_cancelled, &calls) == 0 && pthread_join(thread, &result) == 0);
    printf("%s, %s", calls ? "called" : "not called", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

static struct sockaddr_in some_group = {.sin_family = AF_INET};

static void *acknowledge_always(void *id) {
    while (!__atomic_load_n(&is_done, __ATOMIC_SEQ_CST)) {
        CHECK(rdma_join_multicast(id, (struct sockaddr *)&some_group, NULL) == 0);
        CHECK(rdma_ack_cm_event(next()) == 0);
        CHECK(rdma_leave_multicast(id, (struct sockaddr *)&some_group) == 0);
    }
    return NULL;
}

// A child may acknowledge what it has inherited, also if a thread of its parent was doing that.
void forked_acknowledgement(void) {
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    pthread_t thread;
    int status = 0;
    inet_pton(AF_INET, "239.47.1.4", &some_group.sin_addr);
    CHECK(rdma_bind_addr(id, at(&server_address, 0)) == 0);
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&some_group, NULL) == 0);
    struct rdma_cm_event *inherited = next();
    CHECK(pthread_create(&thread, NULL, acknowledge_always, id) == 0);
    for (int i = 0; i < 400 && status == 0; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(5);
            _exit(rdma_ack_cm_event(inherited) == 0 ? 0 : 1);
        }
        CHECK(waitpid(child, &status, 0) == child);
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%x", status);
    CHECK(rdma_ack_cm_event(inherited) == 0);
    destroy(id);
}

// A connection outlasts that the peer's process does not run for a while.
void stopped_peer(void) {
    static char memory[64];
    struct rdma_cm_event *event;
    struct ibv_wc completion;
    int ready[2], status;
    CHECK(pipe(ready) == 0);
    pid_t peer = fork();
    CHECK(peer >= 0);
    if (peer == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK((channel = rdma_create_event_channel()));
        listening(RDMA_PS_TCP, 7495);
        CHECK(write(ready[1], "", 1) == 1);
        struct rdma_cm_id *id = (event = next())->id;
        CHECK(rdma_ack_cm_event(event) == 0);
        create_qp(id, IBV_QPT_RC);
        struct ibv_mr *region = rdma_reg_msgs(id, memory, sizeof memory);
        CHECK(region && rdma_post_recv(id, NULL, memory, sizeof memory, region) == 0);
        struct rdma_conn_param wanted = parameters(NULL);
        CHECK(rdma_accept(id, &wanted) == 0);
        CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
        // Until the parent has its completion, and ends the connection.
        while ((event = next())->event != RDMA_CM_EVENT_DISCONNECTED)
            CHECK(rdma_ack_cm_event(event) == 0);
        _exit(0);
    }
    CHECK(read(ready[0], memory, 1) == 1);
    struct rdma_cm_id *client = routed(RDMA_PS_TCP, 7495);
    struct rdma_conn_param wanted = parameters(NULL);
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_connect(client, &wanted) == 0);
    take(client);
    struct ibv_mr *region = rdma_reg_msgs(client, memory, sizeof memory);
    CHECK(region);
    CHECK(kill(peer, SIGSTOP) == 0 && waitpid(peer, &status, WUNTRACED) == peer && WIFSTOPPED(status));
    CHECK(rdma_post_send(client, NULL, memory, 10, region, 0) == 0);
    usleep(1500000);
    CHECK(kill(peer, SIGCONT) == 0);
    CHECK(rdma_get_send_comp(client, &completion) == 1);
    printf("%d %s", timeout_of(client->qp), ibv_wc_status_str(completion.status));
    CHECK(rdma_disconnect(client) == 0);
    CHECK(waitpid(peer, &status, 0) == peer);
    rdma_dereg_mr(region);
    destroy(client);
}
