// Functions that the cases share.
#include "common.h"

struct sockaddr_in server_address, client_address;
char **addresses;
struct rdma_event_channel *channel;

struct sockaddr *at(struct sockaddr_in *address, int port) {
    address->sin_port = htons(port);
    return (struct sockaddr *)address;
}

const char *error_name(int error) {
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

int readable(int fd, int milliseconds) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, milliseconds) == 1 && entry.revents == POLLIN;
}

struct rdma_cm_event *next(void) {
    struct rdma_cm_event *event;
    if (!readable(channel->fd, PATIENCE)) {
        printf("no event\n");
        exit(1);
    }
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    return event;
}

enum rdma_cm_event_type take(struct rdma_cm_id *id) {
    struct rdma_cm_event *event = next();
    enum rdma_cm_event_type type = event->event;
    CHECK(id == NULL || event->id == id);
    printf("%s %d; ", rdma_event_str(type) + strlen("RDMA_CM_EVENT_"), event->status);
    CHECK(rdma_ack_cm_event(event) == 0);
    return type;
}

struct rdma_cm_id *create_id(enum rdma_port_space space) {
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, &channel, space) == 0);
    return id;
}

struct rdma_cm_id *listening(enum rdma_port_space space, int port) {
    struct rdma_cm_id *id = create_id(space);
    CHECK(rdma_bind_addr(id, at(&server_address, port)) == 0);
    CHECK(rdma_listen(id, 8) == 0);
    return id;
}

struct ibv_qp_init_attr qp_attributes(enum ibv_qp_type type) {
    struct ibv_qp_init_attr attributes = {.qp_type = type, .sq_sig_all = 1};
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 8;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    return attributes;
}

void create_qp(struct rdma_cm_id *id, enum ibv_qp_type type) {
    struct ibv_qp_init_attr attributes = qp_attributes(type);
    CHECK(rdma_create_qp(id, NULL, &attributes) == 0);
    CHECK(attributes.send_cq == id->send_cq && id->send_cq->cq_context == id && id->recv_cq != id->send_cq);
    CHECK(id->qp->state == (type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT));
}

struct rdma_cm_id *routed(enum rdma_port_space space, int port) {
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

struct rdma_conn_param parameters(const char *data) {
    struct rdma_conn_param parameters = {
        .private_data = data, .private_data_len = data ? strlen(data) + 1 : 0, .responder_resources = 2,
        .initiator_depth = 3, .retry_count = 7, .rnr_retry_count = 5,
    };
    return parameters;
}

void destroy(struct rdma_cm_id *id) {
    if (id->qp)
        rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

int timeout_of(struct ibv_qp *qp) {
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attributes, IBV_QP_TIMEOUT, &init) == 0);
    return attributes.timeout;
}

void exchange(struct rdma_cm_id *one, struct rdma_cm_id *other) {
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
