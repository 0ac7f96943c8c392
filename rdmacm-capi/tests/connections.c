// A program that connects to itself through rdma_cm, with the system's headers. The argument selects a case; the
// addresses are the second and the third one. Prints events and results; each line is checked.
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

enum { PATIENCE = 20000 };

static struct sockaddr_in server_address, client_address;
static struct rdma_event_channel *channel;

static struct sockaddr *at(struct sockaddr_in *address, int port) {
    address->sin_port = htons(port);
    return (struct sockaddr *)address;
}

static const char *error_name(int error) {
    static const struct { int number; const char *name; } names[] = {
        {0, "0"}, {EINVAL, "EINVAL"}, {EADDRINUSE, "EADDRINUSE"}, {EADDRNOTAVAIL, "EADDRNOTAVAIL"},
        {ENOSYS, "ENOSYS"}, {EISCONN, "EISCONN"}, {ECONNREFUSED, "ECONNREFUSED"}, {EAGAIN, "EAGAIN"},
        {ENETUNREACH, "ENETUNREACH"}, {ENOTSUP, "ENOTSUP"}, {ETIMEDOUT, "ETIMEDOUT"}, {EACCES, "EACCES"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == error)
            return names[i].name;
    return strerror(error);
}

// Prints the error of a call.
#define TRY(call) \
    do { \
        errno = 0; \
        int result_ = (call); \
        printf("%s ", result_ == 0 ? "0" : error_name(errno)); \
    } while (0)

static int readable(int fd, int milliseconds) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, milliseconds) == 1 && entry.revents == POLLIN;
}

// Returns the next event, which must come.
static struct rdma_cm_event *next(void) {
    struct rdma_cm_event *event;
    if (!readable(channel->fd, PATIENCE)) {
        printf("no event\n");
        exit(1);
    }
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    return event;
}

// Reads the next event, prints its name and its status, and acknowledges it.
static enum rdma_cm_event_type take(struct rdma_cm_id *id) {
    struct rdma_cm_event *event = next();
    enum rdma_cm_event_type type = event->event;
    CHECK(id == NULL || event->id == id);
    printf("%s %d; ", rdma_event_str(type) + strlen("RDMA_CM_EVENT_"), event->status);
    CHECK(rdma_ack_cm_event(event) == 0);
    return type;
}

static struct rdma_cm_id *create_id(enum rdma_port_space space) {
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, &channel, space) == 0);
    return id;
}

static struct rdma_cm_id *listening(enum rdma_port_space space, int port) {
    struct rdma_cm_id *id = create_id(space);
    CHECK(rdma_bind_addr(id, at(&server_address, port)) == 0);
    CHECK(rdma_listen(id, 8) == 0);
    return id;
}

static struct ibv_qp_init_attr qp_attributes(enum ibv_qp_type type) {
    struct ibv_qp_init_attr attributes = {.qp_type = type, .sq_sig_all = 1};
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 8;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    return attributes;
}

static void create_qp(struct rdma_cm_id *id, enum ibv_qp_type type) {
    struct ibv_qp_init_attr attributes = qp_attributes(type);
    CHECK(rdma_create_qp(id, NULL, &attributes) == 0);
    CHECK(attributes.send_cq == id->send_cq && id->send_cq->cq_context == id && id->recv_cq != id->send_cq);
    CHECK(id->qp->state == (type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT));
}

// Resolves the address and the route of the server.
static struct rdma_cm_id *routed(enum rdma_port_space space, int port) {
    struct rdma_cm_id *id = create_id(space);
    CHECK(rdma_resolve_addr(id, at(&client_address, 0), at(&server_address, port), 1000) == 0);
    take(id);
    CHECK(id->verbs && id->pd && id->port_num == 1 && rdma_get_src_port(id) != 0);
    CHECK(rdma_get_dst_port(id) == htons(port));
    CHECK(rdma_resolve_route(id, 1000) == 0);
    take(id);
    CHECK(id->route.num_paths == 1 && id->route.path_rec->pkey == 0xffff && id->route.path_rec->hop_limit == 64);
    return id;
}

static struct rdma_conn_param parameters(const char *data) {
    struct rdma_conn_param parameters = {
        .private_data = data, .private_data_len = data ? strlen(data) + 1 : 0, .responder_resources = 2,
        .initiator_depth = 3, .retry_count = 7, .rnr_retry_count = 5,
    };
    return parameters;
}

static void destroy(struct rdma_cm_id *id) {
    if (id->qp)
        rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

static int timeout_of(struct ibv_qp *qp) {
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attributes, IBV_QP_TIMEOUT, &init) == 0);
    return attributes.timeout;
}

// Sends a message from each end to the other.
static void exchange(struct rdma_cm_id *one, struct rdma_cm_id *other) {
    static char memory[2][64];
    struct ibv_wc completion;
    struct rdma_cm_id *ends[] = {one, other};
    struct ibv_mr *regions[2];
    for (int i = 0; i < 2; i++) {
        regions[i] = rdma_reg_msgs(ends[i], memory[i], sizeof memory[i]);
        CHECK(regions[i]);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(memory[i], sizeof memory[i], "message %d", i);
        memset(memory[1 - i], 0, sizeof memory[1 - i]);
        CHECK(rdma_post_recv(ends[1 - i], NULL, memory[1 - i], sizeof memory[1 - i], regions[1 - i]) == 0);
        CHECK(rdma_post_send(ends[i], NULL, memory[i], 10, regions[i], 0) == 0);
        CHECK(rdma_get_send_comp(ends[i], &completion) == 1 && completion.status == IBV_WC_SUCCESS);
        CHECK(rdma_get_recv_comp(ends[1 - i], &completion) == 1 && completion.status == IBV_WC_SUCCESS);
        CHECK(completion.byte_len == 10 && strcmp(memory[0], memory[1]) == 0);
    }
    rdma_dereg_mr(regions[0]);
    rdma_dereg_mr(regions[1]);
}

// The whole life of a connection, on one channel.
static void connection(void) {
    uint8_t ack_timeout = 21;
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7471), *client = routed(RDMA_PS_TCP, 7471), *child;
    CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) == 0);
    create_qp(client, IBV_QPT_RC);
    struct rdma_conn_param wanted = parameters("request");
    CHECK(rdma_connect(client, &wanted) == 0);

    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id == listener && event->id != listener);
    struct rdma_conn_param *told = &event->param.conn;
    printf("request %s %u %u %u %u %u; ", (char *)told->private_data, told->private_data_len,
           told->responder_resources, told->initiator_depth, told->retry_count, told->rnr_retry_count);
    child = event->id;
    CHECK(told->qp_num == client->qp->qp_num && child->context == &channel && child->verbs == listener->verbs);
    CHECK(rdma_get_src_port(child) == htons(7471) && rdma_get_dst_port(child) == rdma_get_src_port(client));
    CHECK(memcmp(rdma_get_peer_addr(child), rdma_get_local_addr(client), sizeof(struct sockaddr_in)) == 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    ack_timeout = 19;
    CHECK(rdma_set_option(child, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) == 0);
    create_qp(child, IBV_QPT_RC);
    wanted = parameters("reply");
    CHECK(rdma_accept(child, &wanted) == 0);

    // Both ends are set up, in any order.
    for (int ends = 0; ends < 2; ends++) {
        event = next();
        CHECK(event->event == RDMA_CM_EVENT_ESTABLISHED && event->status == 0);
        if (event->id == client) {
            told = &event->param.conn;
            CHECK(told->private_data_len == 196 && strcmp(told->private_data, "reply") == 0);
            CHECK(told->qp_num == child->qp->qp_num && client->qp->state == IBV_QPS_RTS);
            printf("reply %u %u; ", told->responder_resources, told->initiator_depth);
        } else {
            CHECK(event->id == child && event->param.conn.private_data_len == 0);
        }
        CHECK(rdma_ack_cm_event(event) == 0);
    }
    printf("timeouts %d %d; ", timeout_of(client->qp), timeout_of(child->qp));
    exchange(client, child);
    exchange(child, client);
    TRY(rdma_notify(child, IBV_EVENT_COMM_EST));
    CHECK(!readable(channel->fd, 0));

    CHECK(rdma_disconnect(client) == 0);
    take(child);
    CHECK(child->qp->state == IBV_QPS_RTS && client->qp->state == IBV_QPS_ERR);
    CHECK(rdma_disconnect(child) == 0);
    for (int left = 3; left > 0; left--)
        take(NULL);
    TRY(rdma_disconnect(client));
    destroy(client);
    destroy(child);
    destroy(listener);
}

// Requests that are not accepted. A request to an address gets a response only while a process uses the address.
static void rejection(void) {
    struct rdma_cm_id *present = listening(RDMA_PS_UDP, 7999);
    struct rdma_cm_id *client = routed(RDMA_PS_TCP, 7472);
    struct rdma_conn_param wanted = parameters(NULL);
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_connect(client, &wanted) == 0);
    take(client);
    CHECK(client->qp->state == IBV_QPS_ERR);
    TRY(rdma_connect(client, &wanted));
    TRY(rdma_disconnect(client));
    destroy(client);

    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7472);
    for (int with_child = 0; with_child < 2; with_child++) {
        client = routed(RDMA_PS_TCP, 7472);
        create_qp(client, IBV_QPT_RC);
        CHECK(rdma_connect(client, &wanted) == 0);
        struct rdma_cm_event *event = next();
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
        if (with_child)
            CHECK(rdma_reject(event->id, "no", 3) == 0);
        CHECK(rdma_destroy_id(event->id) == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
        event = next();
        CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->id == client);
        printf("%d \"%s\" %u; ", event->status, (char *)event->param.conn.private_data,
               event->param.conn.private_data_len);
        CHECK(rdma_ack_cm_event(event) == 0);
        destroy(client);
    }

    // A request that the program has not read is rejected with its listener.
    client = routed(RDMA_PS_TCP, 7472);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(readable(channel->fd, PATIENCE));
    destroy(listener);
    take(client);
    destroy(client);
    destroy(present);
}

// The program moves its own queue pairs.
static void external(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7473), *client = routed(RDMA_PS_TCP, 7473), *ids[2];
    struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct ibv_qp *qps[2];
    attributes.send_cq = attributes.recv_cq = cq;
    struct ibv_ece ece = {.vendor_id = 0x15b3, .options = 7};
    TRY(rdma_set_local_ece(client, &ece));
    for (int i = 0; i < 2; i++)
        CHECK((qps[i] = ibv_create_qp(pd, &attributes)));
    struct rdma_conn_param wanted = parameters(NULL);
    wanted.qp_num = qps[0]->qp_num;
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.qp_num == qps[0]->qp_num);
    ids[0] = client, ids[1] = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    ece.options = 0;
    TRY(rdma_get_remote_ece(ids[1], &ece));
    printf("%x %u; ", ece.vendor_id, ece.options);
    for (int i = 1; i >= 0; i--) {
        for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
            struct ibv_qp_attr to = {.qp_state = state};
            int mask;
            CHECK(rdma_init_qp_attr(ids[i], &to, &mask) == 0);
            CHECK(ibv_modify_qp(qps[i], &to, mask) == 0);
            if (i == 1)
                printf("%x ", mask);
        }
        if (i == 1) {
            wanted.qp_num = qps[1]->qp_num;
            CHECK(rdma_accept(ids[1], &wanted) == 0);
            take(client);
        }
    }
    CHECK(rdma_establish(client) == 0);
    take(ids[1]);
    // The active end gets no event.
    CHECK(!readable(channel->fd, 100));
    CHECK(rdma_disconnect(ids[1]) == 0);
    take(client);
    destroy(client);
    destroy(ids[1]);
    destroy(listener);
}

// Datagram queue pairs by address.
static void datagrams(void) {
    struct rdma_cm_id *present = listening(RDMA_PS_TCP, 7999);
    struct rdma_cm_id *client = routed(RDMA_PS_UDP, 7174);
    struct rdma_conn_param wanted = parameters("who");
    CHECK(rdma_connect(client, &wanted) == 0);
    take(client);
    destroy(client);
    struct rdma_cm_id *listener = listening(RDMA_PS_UDP, 7174);
    for (int accepts = 0; accepts < 2; accepts++) {
        client = routed(RDMA_PS_UDP, 7174);
        create_qp(client, IBV_QPT_UD);
        wanted = parameters("who");
        CHECK(rdma_connect(client, &wanted) == 0);
        struct rdma_cm_event *event = next();
        struct rdma_cm_id *child = event->id;
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.ud.private_data_len == 180);
        CHECK(strcmp(event->param.ud.private_data, "who") == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
        create_qp(child, IBV_QPT_UD);
        wanted = parameters("here");
        CHECK((accepts ? rdma_accept(child, &wanted) : rdma_reject(child, NULL, 0)) == 0);
        event = next();
        printf("%s %d; ", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status);
        if (accepts) {
            struct rdma_ud_param *told = &event->param.ud;
            CHECK(told->qp_num == child->qp->qp_num && told->qkey == RDMA_UDP_QKEY);
            CHECK(told->private_data_len == 136 && strcmp(told->private_data, "here") == 0);
            CHECK(told->ah_attr.is_global && told->ah_attr.grh.hop_limit == 64);
            static char memory[128];
            struct ibv_mr *region = rdma_reg_msgs(client, memory, 64), *other = rdma_reg_msgs(child, memory + 64, 64);
            struct ibv_ah *ah = ibv_create_ah(client->pd, &told->ah_attr);
            struct ibv_wc completion;
            CHECK(region && other && ah);
            strcpy(memory, "datagram");
            CHECK(rdma_post_recv(child, NULL, memory + 64, 64, other) == 0);
            CHECK(rdma_post_ud_send(client, NULL, memory, 9, region, 0, ah, told->qp_num) == 0);
            CHECK(rdma_get_recv_comp(child, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
            printf("%s; ", memory + 104);
            ibv_destroy_ah(ah);
            rdma_dereg_mr(region);
            rdma_dereg_mr(other);
        }
        CHECK(rdma_ack_cm_event(event) == 0);
        destroy(client);
        destroy(child);
    }
    destroy(listener);
    destroy(present);
}

static void multicast(void) {
    struct sockaddr_in group = {.sin_family = AF_INET};
    inet_pton(AF_INET, "239.47.1.1", &group.sin_addr);
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    TRY(rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
    CHECK(rdma_bind_addr(id, at(&server_address, 0)) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 1000) == 0);
    take(id);
    create_qp(id, IBV_QPT_UD);
    struct rdma_cm_join_mc_attr_ex attributes = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS};
    TRY(rdma_join_multicast_ex(id, &attributes, NULL));
    attributes.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS | RDMA_CM_JOIN_MC_ATTR_RESERVED;
    TRY(rdma_join_multicast_ex(id, &attributes, NULL));
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &group) == 0);
    struct rdma_cm_event *event = next();
    struct rdma_ud_param *told = &event->param.ud;
    printf("%s %d %x %x; ", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status, told->qp_num, told->qkey);
    CHECK(told->private_data == &group);
    static char memory[128];
    struct ibv_mr *region = rdma_reg_msgs(id, memory, sizeof memory);
    struct ibv_ah *ah = ibv_create_ah(id->pd, &told->ah_attr);
    struct ibv_wc completion;
    CHECK(region && ah);
    strcpy(memory, "to all");
    CHECK(rdma_post_recv(id, NULL, memory + 64, 64, region) == 0);
    CHECK(rdma_post_ud_send(id, NULL, memory, 7, region, 0, ah, told->qp_num) == 0);
    CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    printf("%s; ", memory + 104);
    CHECK(rdma_ack_cm_event(event) == 0);
    ibv_destroy_ah(ah);
    rdma_dereg_mr(region);
    TRY(rdma_leave_multicast(id, (struct sockaddr *)&group));
    TRY(rdma_leave_multicast(id, (struct sockaddr *)&group));
    destroy(id);
}

// The program destroys the queue pair itself; `id->qp` is stale then.
static void stale_queue_pair(void) {
    struct sockaddr_in group = {.sin_family = AF_INET};
    inet_pton(AF_INET, "239.47.1.2", &group.sin_addr);
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    CHECK(rdma_bind_addr(id, at(&server_address, 0)) == 0);
    create_qp(id, IBV_QPT_UD);
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
    take(id);
    TRY(ibv_destroy_qp(id->qp));
    // Blocks of all sizes take the freed memory, with other contents.
    for (size_t size = 16; size < 8192; size += 16)
        for (int i = 0; i < 8; i++) {
            char *block = malloc(size);
            CHECK(block);
            memset(block, 0x5a, size);
            CHECK(*(volatile char *)block == 0x5a);
        }
    TRY(rdma_destroy_id(id));
}

// A reply moves the queue pair when the program reads its event, and not before.
static void reply_waits(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7483), *client = routed(RDMA_PS_TCP, 7483), *child;
    struct rdma_event_channel *other = rdma_create_event_channel(), *first = channel;
    struct rdma_conn_param wanted = parameters(NULL);
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_migrate_id(client, other) == 0);
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    child = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    create_qp(child, IBV_QPT_RC);
    CHECK(rdma_accept(child, &wanted) == 0);
    CHECK(readable(other->fd, PATIENCE));
    CHECK(ibv_query_qp(client->qp, &attributes, IBV_QP_STATE, &init) == 0);
    printf("%s ", attributes.qp_state == IBV_QPS_INIT ? "INIT" : "moved");
    // The peer is not told before.
    CHECK(!readable(channel->fd, 0));
    channel = other;
    take(client);
    CHECK(ibv_query_qp(client->qp, &attributes, IBV_QP_STATE, &init) == 0);
    CHECK(attributes.qp_state == IBV_QPS_RTS && client->qp->state == IBV_QPS_RTS);
    channel = first;
    take(child);
    exchange(client, child);
    destroy(client);
    destroy(child);
    destroy(listener);
    rdma_destroy_event_channel(other);
}

// The acceptance of a datagram request acknowledges its event: the listener can be destroyed before the child.
static void synchronous_datagrams(void) {
    struct rdma_cm_id *listener, *child, *client;
    struct rdma_conn_param wanted = parameters("who");
    CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_UDP) == 0);
    CHECK(rdma_bind_addr(listener, at(&server_address, 7485)) == 0 && rdma_listen(listener, 0) == 0);
    client = routed(RDMA_PS_UDP, 7485);
    create_qp(client, IBV_QPT_UD);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(rdma_get_request(listener, &child) == 0 && child->event);
    create_qp(child, IBV_QPT_UD);
    CHECK(rdma_accept(child, &wanted) == 0);
    printf("%s; ", child->event ? "an event" : "none");
    take(client);
    destroy(listener);
    destroy(child);
    destroy(client);
}

static void *serve(void *argument) {
    struct rdma_cm_id *listener = argument, *id;
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(strcmp(id->event->param.conn.private_data, "sync") == 0);
    struct rdma_conn_param wanted = parameters("reply");
    CHECK(rdma_accept(id, &wanted) == 0);
    CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    return id;
}

// Synchronous identifiers.
static void synchronous(char **addresses) {
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct rdma_cm_id *listener, *client, *present = listening(RDMA_PS_UDP, 7999);
    pthread_t thread;
    void *child;
    CHECK(rdma_getaddrinfo(addresses[0], "7475", &hints, &info) == 0);
    CHECK(rdma_create_ep(&listener, info, NULL, &attributes) == 0);
    rdma_freeaddrinfo(info);
    hints.ai_flags = 0;
    CHECK(rdma_getaddrinfo(addresses[0], "7475", &hints, &info) == 0);
    attributes = qp_attributes(IBV_QPT_RC);
    CHECK(rdma_create_ep(&client, info, NULL, &attributes) == 0);
    CHECK(client->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct rdma_conn_param wanted = parameters("sync");
    TRY(rdma_connect(client, &wanted));
    printf("%d; ", client->event->status);
    rdma_destroy_ep(client);

    CHECK(rdma_listen(listener, 0) == 0);
    CHECK(pthread_create(&thread, NULL, serve, listener) == 0);
    attributes = qp_attributes(IBV_QPT_RC);
    CHECK(rdma_create_ep(&client, info, NULL, &attributes) == 0);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(pthread_join(thread, &child) == 0);
    printf("%s %s; ", rdma_event_str(client->event->event), (char *)client->event->param.conn.private_data);
    exchange(client, child);
    // Migration moves an identifier to a channel of the program, and back.
    TRY(rdma_migrate_id(client, NULL));
    TRY(rdma_migrate_id(client, channel));
    CHECK(rdma_disconnect(client) == 0);
    CHECK(rdma_disconnect(child) == 0);
    take(client);
    rdma_destroy_ep(client);
    rdma_destroy_ep(child);
    rdma_destroy_ep(listener);
    rdma_freeaddrinfo(info);
    destroy(present);
}

// The descriptor of a channel.
static void descriptors(void) {
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
static void destruction(void) {
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
static void threads(void) {
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

// Queue pairs with shared receive queues, on one device.
static void shared_receives(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7482), *client = routed(RDMA_PS_TCP, 7482), *child;
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct rdma_conn_param wanted = parameters(NULL);
    CHECK(client->srq == NULL);
    TRY(rdma_create_srq(client, NULL, &srq));
    TRY(rdma_create_srq(client, NULL, &srq));
    create_qp(client, IBV_QPT_RC);
    CHECK(client->srq && client->qp->srq == client->srq);
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.srq == 1);
    child = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    struct ibv_srq_init_attr_ex extended = {.attr = {.max_wr = 4, .max_sge = 1}};
    TRY(rdma_create_srq_ex(child, &extended));
    struct ibv_qp_init_attr_ex attributes = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {8, 8, 1, 1, 0}};
    TRY(rdma_create_qp_ex(child, &attributes));
    TRY(rdma_create_qp_ex(child, &attributes));
    // Without parameters the maxima are taken.
    CHECK(rdma_accept(child, NULL) == 0);
    take(NULL);
    take(NULL);
    exchange(client, child);
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_id *id = i ? child : client;
        struct ibv_srq *before = id->srq;
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        CHECK(before && !id->srq && !id->qp && !id->send_cq && !id->recv_cq_channel);
        destroy(id);
    }
    destroy(listener);
}

static void print_address(const struct sockaddr *address, socklen_t length) {
    char text[64] = "-";
    const struct sockaddr_in *four = (const void *)address;
    if (address && address->sa_family == AF_INET)
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    printf(" %s/%u:%u", text, length, address ? ntohs(four->sin_port) : 0);
}

static void look_up(const char *node, const char *service, int flags, int family, int type, int space) {
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_family = family, .ai_qp_type = type, .ai_port_space = space};
    struct rdma_addrinfo *info = NULL;
    int result = rdma_getaddrinfo(node, service, &hints, &info);
    printf("%d", result);
    if (result == 0) {
        printf(" %d %d %x", info->ai_family, info->ai_qp_type, info->ai_port_space);
        print_address(info->ai_src_addr, info->ai_src_len);
        print_address(info->ai_dst_addr, info->ai_dst_len);
        CHECK(info->ai_flags == (flags & RAI_PASSIVE) && !info->ai_route && !info->ai_connect && !info->ai_next);
        rdma_freeaddrinfo(info);
    }
    printf("; ");
}

// Names to addresses, and the list of devices.
static void lookups(void) {
    look_up(NULL, "7471", RAI_PASSIVE, 0, 0, 0);
    look_up("127.0.0.1", "7471", RAI_PASSIVE, 0, 0, RDMA_PS_TCP);
    look_up("127.0.0.1", "7471", RAI_NUMERICHOST | RAI_NOROUTE, 0, 0, 0);
    look_up("127.0.0.1", "7471", 0, 0, 0, RDMA_PS_UDP);
    look_up("127.0.0.1", "7471", 0, 0, IBV_QPT_RC, RDMA_PS_IB);
    look_up("not an address", "7471", RAI_NUMERICHOST, 0, 0, 0);
    look_up("127.0.0.1", "7471", 0, AF_INET6, 0, 0);
    look_up("127.0.0.1", "7471", 0, 0, IBV_QPT_UD, RDMA_PS_TCP);
    look_up("127.0.0.1", "no such service", 0, 0, 0, 0);
    look_up(NULL, NULL, 0, 0, 0, RDMA_PS_TCP);
    struct rdma_addrinfo *info;
    TRY(rdma_getaddrinfo(NULL, NULL, NULL, &info));
    int count = 0, found = 0;
    struct ibv_context **list = rdma_get_devices(&count);
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(list && count > 0 && !list[count]);
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&loopback) == 0);
    for (int i = 0; i < count; i++)
        found += list[i] == id->verbs;
    printf("%d", found);
    rdma_free_devices(list);
    destroy(id);
}

static void nothing(int signal) { (void)signal; }

static void *wait_for_event(void *error) {
    struct rdma_cm_event *event;
    *(int *)error = rdma_get_cm_event(channel, &event) == 0 ? 0 : errno;
    return NULL;
}

// A signal ends a wait, and so does cancellation; the channel can be used afterwards.
static void interruption(void) {
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
static void forked(void) {
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

// Errors of calls in states that do not allow them.
static void errors(void) {
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP), *other;
    struct rdma_conn_param wanted = parameters(NULL);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT};
    struct sockaddr_in foreign = {.sin_family = AF_INET}, unknown = {.sin_family = AF_UNIX};
    int mask, one = 1;
    CHECK(!id->verbs && !id->pd && !id->qp && id->port_num == 0 && id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
    TRY(rdma_create_id(channel, &other, NULL, 0));
    TRY(rdma_connect(id, &wanted));
    TRY(rdma_accept(id, &wanted));
    TRY(rdma_reject(id, NULL, 0));
    TRY(rdma_establish(id));
    TRY(rdma_disconnect(id));
    TRY(rdma_notify(id, IBV_EVENT_COMM_EST));
    TRY(rdma_resolve_route(id, 1000));
    TRY(rdma_init_qp_attr(id, &attributes, &mask));
    printf("; ");
    inet_pton(AF_INET, "203.0.113.7", &foreign.sin_addr);
    TRY(rdma_bind_addr(id, (struct sockaddr *)&foreign));
    inet_pton(AF_INET, "224.0.0.1", &foreign.sin_addr);
    TRY(rdma_bind_addr(id, (struct sockaddr *)&foreign));
    TRY(rdma_bind_addr(id, (struct sockaddr *)&unknown));
    TRY(rdma_bind_addr(id, at(&server_address, 7478)));
    CHECK(id->verbs && id->pd && id->port_num == 1);
    TRY(rdma_bind_addr(id, at(&server_address, 7478)));
    other = create_id(RDMA_PS_TCP);
    TRY(rdma_bind_addr(other, at(&server_address, 7478)));
    TRY(rdma_listen(id, 0));
    TRY(rdma_listen(id, 0));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
    TRY(rdma_resolve_addr(id, NULL, at(&client_address, 1), 1000));
    destroy(other);
    destroy(id);
    printf("; ");
    id = create_id(RDMA_PS_TCP);
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 4));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 1));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, 4));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, 4, &one, 4));
    TRY(rdma_set_option(id, 7, 0, &one, 4));
    // Unbound: all addresses, and a free port.
    TRY(rdma_listen(id, 1));
    CHECK(!id->verbs && rdma_get_src_port(id) != 0 && rdma_get_local_addr(id)->sa_family == AF_INET);
    destroy(id);
    printf("; %s", rdma_event_str(99));
}

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    const char *chosen = arguments[1];
    // A call that never returns fails the test.
    alarm(3 * PATIENCE / 1000);
    setvbuf(stdout, NULL, _IONBF, 0);
    errno = 0;
    channel = rdma_create_event_channel();
    if (strcmp(chosen, "foreign") == 0) {
        printf("%s %s", channel ? "a channel" : "none", error_name(errno));
        return 0;
    }
    CHECK(channel);
    CHECK(count == 4);
    server_address.sin_family = client_address.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, arguments[2], &server_address.sin_addr) == 1);
    CHECK(inet_pton(AF_INET, arguments[3], &client_address.sin_addr) == 1);
    if (strcmp(chosen, "connection") == 0)
        connection();
    else if (strcmp(chosen, "rejection") == 0)
        rejection();
    else if (strcmp(chosen, "external") == 0)
        external();
    else if (strcmp(chosen, "datagrams") == 0)
        datagrams();
    else if (strcmp(chosen, "multicast") == 0)
        multicast();
    else if (strcmp(chosen, "stale_queue_pair") == 0)
        stale_queue_pair();
    else if (strcmp(chosen, "reply_waits") == 0)
        reply_waits();
    else if (strcmp(chosen, "synchronous_datagrams") == 0)
        synchronous_datagrams();
    else if (strcmp(chosen, "synchronous") == 0)
        synchronous(arguments + 2);
    else if (strcmp(chosen, "descriptors") == 0)
        descriptors();
    else if (strcmp(chosen, "destruction") == 0)
        destruction();
    else if (strcmp(chosen, "threads") == 0)
        threads();
    else if (strcmp(chosen, "interruption") == 0)
        interruption();
    else if (strcmp(chosen, "shared_receives") == 0)
        shared_receives();
    else if (strcmp(chosen, "lookups") == 0)
        lookups();
    else if (strcmp(chosen, "forked") == 0)
        forked();
    else if (strcmp(chosen, "errors") == 0)
        errors();
    else
        return 2;
    rdma_destroy_event_channel(channel);
    return 0;
}
