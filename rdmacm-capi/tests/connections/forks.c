// Programs that fork while they have connections, and servers that consist of forked processes.
#include "common.h"

// Connects two identifiers of the channel. `listener` stays.
static void connect_pair(struct rdma_cm_id *listener, int port, struct rdma_cm_id *ends[2]) {
    struct rdma_conn_param wanted = parameters(NULL);
    struct rdma_cm_event *event;
    ends[0] = routed(RDMA_PS_TCP, port);
    create_qp(ends[0], IBV_QPT_RC);
    CHECK(rdma_connect(ends[0], &wanted) == 0);
    event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id == listener);
    ends[1] = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    create_qp(ends[1], IBV_QPT_RC);
    CHECK(rdma_accept(ends[1], &wanted) == 0);
    for (int established = 0; established < 2; established++)
        take(NULL);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// A child cleans up what it inherits, as a program's handlers at its exit do.
static void clean_up(struct rdma_cm_id *ends[2], struct ibv_mr *region) {
    CHECK(rdma_disconnect(ends[0]) == -1 && errno == EINVAL);
    CHECK(ibv_dereg_mr(region) == EINVAL);
    for (int i = 0; i < 2; i++) {
        rdma_destroy_qp(ends[i]);
        CHECK(rdma_destroy_id(ends[i]) == -1 && errno == EINVAL);
    }
    rdma_destroy_event_channel(channel);
}

// Sends from one end to the other, with memory that has been registered before.
static void send_registered(struct rdma_cm_id *ends[2], char memory[2][4096], struct ibv_mr *regions[2], int value) {
    struct ibv_wc completion;
    memset(memory[0], value, sizeof memory[0]);
    memset(memory[1], 0, sizeof memory[1]);
    CHECK(rdma_post_recv(ends[1], NULL, memory[1], sizeof memory[1], regions[1]) == 0);
    CHECK(rdma_post_send(ends[0], NULL, memory[0], sizeof memory[0], regions[0], 0) == 0);
    CHECK(rdma_get_send_comp(ends[0], &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(ends[1], &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(completion.byte_len == sizeof memory[1]);
    for (size_t i = 0; i < sizeof memory[1]; i++)
        CHECK(memory[1][i] == value);
}

// A connection is not affected by children: those that execute programs, that clean up, and that live on.
void forks_in_use(void) {
    static char memory[2][4096];
    struct ibv_mr *regions[2];
    int lives[2];
    struct rdma_cm_id *listener, *ends[2];
    TRY(ibv_fork_init());
    listener = listening(RDMA_PS_TCP, 7496);
    connect_pair(listener, 7496, ends);
    for (int i = 0; i < 2; i++)
        CHECK((regions[i] = rdma_reg_msgs(ends[i], memory[i], sizeof memory[i])));
    CHECK(pipe(lives) == 0);
    exchange(ends[0], ends[1]);

    TRY(system("exit 0"));
    exchange(ends[0], ends[1]);

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        clean_up(ends, regions[0]);
        exit(0);
    }
    wait_for(child);
    exchange(ends[1], ends[0]);

    // While the child lives, each page that this process writes is copied, also pages of registered memory.
    CHECK((child = fork()) >= 0);
    if (child == 0) {
        close(lives[1]);
        _exit(read(lives[0], memory[0], 1) == 0 ? 0 : 1);
    }
    for (int round = 0; round < 8; round++)
        send_registered(ends, memory, regions, 'a' + round);
    close(lives[1]);
    wait_for(child);

    CHECK(!readable(channel->fd, 0));
    CHECK(rdma_disconnect(ends[0]) == 0);
    take(ends[1]);
    rdma_dereg_mr(regions[0]);
    rdma_dereg_mr(regions[1]);
    destroy(ends[0]);
    destroy(ends[1]);
    destroy(listener);
}

// A process of a server: says that it listens, returns one message to each of its clients, and ends with the last one.
static void serve(int port, int ready, int clients) {
    static char memory[64];
    struct rdma_conn_param wanted = parameters(NULL);
    struct rdma_cm_event *event;
    struct ibv_wc completion;
    CHECK((channel = rdma_create_event_channel()));
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, port);
    CHECK(write(ready, "", 1) == 1);
    while (clients-- > 0) {
        event = next();
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *id = event->id;
        CHECK(rdma_ack_cm_event(event) == 0);
        create_qp(id, IBV_QPT_RC);
        struct ibv_mr *region = rdma_reg_msgs(id, memory, sizeof memory);
        CHECK(region && rdma_post_recv(id, NULL, memory, sizeof memory, region) == 0);
        CHECK(rdma_accept(id, &wanted) == 0);
        CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
        CHECK(rdma_post_send(id, NULL, memory, completion.byte_len, region, 0) == 0);
        CHECK(rdma_get_send_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
        enum rdma_cm_event_type type;
        do {
            event = next();
            type = event->event;
            CHECK(rdma_ack_cm_event(event) == 0);
        } while (type != RDMA_CM_EVENT_DISCONNECTED);
        rdma_dereg_mr(region);
        destroy(id);
    }
    destroy(listener);
    _exit(0);
}

// Sends a message to a process of the server, which must return it.
static void use_server(int port, const char *message) {
    static char sent[64], received[64];
    struct rdma_conn_param wanted = parameters(NULL);
    struct ibv_wc completion;
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(id, at(&client_address, 0), at(&server_address, port), 1000) == 0);
    CHECK(rdma_ack_cm_event(next()) == 0 && rdma_resolve_route(id, 1000) == 0 && rdma_ack_cm_event(next()) == 0);
    create_qp(id, IBV_QPT_RC);
    strcpy(sent, message);
    memset(received, 0, sizeof received);
    struct ibv_mr *out = rdma_reg_msgs(id, sent, sizeof sent), *in = rdma_reg_msgs(id, received, sizeof received);
    CHECK(out && in && rdma_post_recv(id, NULL, received, sizeof received, in) == 0);
    CHECK(rdma_connect(id, &wanted) == 0);
    take(id);
    CHECK(rdma_post_send(id, NULL, sent, strlen(message) + 1, out, 0) == 0);
    CHECK(rdma_get_send_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(strcmp(received, message) == 0);
    CHECK(rdma_disconnect(id) == 0);
    rdma_dereg_mr(out);
    rdma_dereg_mr(in);
    destroy(id);
}

enum { PROCESSES = 3 };

// Processes that are forked by one that uses the library each have a listener, at the address of the parent. One is
// killed; another one takes its port.
void forked_servers(void) {
    pid_t servers[PROCESSES];
    int ready[2];
    char byte;
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7500);
    CHECK(pipe(ready) == 0);
    for (int i = 0; i < PROCESSES; i++) {
        CHECK((servers[i] = fork()) >= 0);
        if (servers[i] == 0)
            serve(7501 + i, ready[1], 2);
    }
    for (int i = 0; i < PROCESSES; i++)
        CHECK(read(ready[0], &byte, 1) == 1);
    for (int i = 0; i < 2 * PROCESSES - 1; i++)
        use_server(7501 + i % PROCESSES, "to a process of the server");
    CHECK(kill(servers[PROCESSES - 1], SIGKILL) == 0 && waitpid(servers[PROCESSES - 1], NULL, 0) > 0);
    for (int i = 0; i < PROCESSES - 1; i++)
        wait_for(servers[i]);
    CHECK((servers[0] = fork()) >= 0);
    if (servers[0] == 0)
        serve(7500 + PROCESSES, ready[1], 1);
    CHECK(read(ready[0], &byte, 1) == 1);
    use_server(7500 + PROCESSES, "to the next one");
    wait_for(servers[0]);
    destroy(listener);
}
