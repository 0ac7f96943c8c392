// Extended reliable connections (XRC): endpoints with an initiator and with a target.
#include "common.h"
#include <infiniband/verbs.h>

static struct rdma_addrinfo *found(const char *port, int flags, int type) {
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_IB, .ai_qp_type = type}, *info;
    CHECK(rdma_getaddrinfo(addresses[0], port, &hints, &info) == 0);
    CHECK(info->ai_port_space == RDMA_PS_IB && info->ai_qp_type == type);
    return info;
}

static struct rdma_cm_id *endpoint(const char *port, int flags, int type) {
    struct rdma_addrinfo *info = found(port, flags, type);
    struct ibv_qp_init_attr attributes = qp_attributes(type);
    struct rdma_cm_id *id;
    CHECK(rdma_create_ep(&id, info, NULL, &attributes) == 0);
    CHECK(id->qp_type == type);
    rdma_freeaddrinfo(info);
    return id;
}

// Prints the attributes that move the queue pair.
static void print_masks(struct rdma_cm_id *id) {
    for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        struct ibv_qp_attr attributes = {.qp_state = state};
        int mask;
        CHECK(rdma_init_qp_attr(id, &attributes, &mask) == 0);
        printf("%x ", mask);
    }
}

static char received[16];

static void *serve(void *argument) {
    struct rdma_cm_id *listener = argument, *id;
    uint32_t number;
    struct ibv_wc completion;
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(id->qp->qp_type == IBV_QPT_XRC_RECV && !id->srq && !id->recv_cq && id->qp->state == IBV_QPS_INIT);
    CHECK(id->event->param.conn.srq == 0 && id->event->param.conn.initiator_depth == 0);
    // Its domain and its completion queue are the identifier's.
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 4, .max_sge = 1}, .srq_context = id};
    CHECK(rdma_create_srq(id, NULL, &attributes) == 0);
    CHECK(id->srq->srq_context == id && id->recv_cq->cq_context == id && !id->send_cq);
    CHECK(ibv_get_srq_num(id->srq, &number) == 0);
    struct ibv_mr *region = rdma_reg_msgs(id, received, sizeof received);
    CHECK(region && rdma_post_recv(id, NULL, received, sizeof received, region) == 0);
    struct rdma_conn_param wanted = {.private_data = &number, .private_data_len = sizeof number};
    CHECK(rdma_accept(id, &wanted) == 0);
    CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(strcmp(received, "to the target") == 0);
    rdma_dereg_mr(region);
    CHECK(rdma_disconnect(id) == 0);
    return id;
}

// A message to a shared receive queue, whose number the reply has.
void extended(void) {
    struct rdma_cm_id *listener = endpoint("7493", RAI_PASSIVE, IBV_QPT_XRC_RECV), *client;
    pthread_t thread;
    void *child;
    CHECK(rdma_listen(listener, 0) == 0);
    CHECK(pthread_create(&thread, NULL, serve, listener) == 0);
    client = endpoint("7493", 0, IBV_QPT_XRC_SEND);
    CHECK(client->qp->qp_type == IBV_QPT_XRC_SEND && client->send_cq && client->qp->state == IBV_QPS_INIT);
    CHECK(rdma_connect(client, NULL) == 0 && client->event->param.conn.srq == 1);
    uint32_t number = *(const uint32_t *)client->event->param.conn.private_data;
    uint32_t target_number = client->event->param.conn.qp_num;
    char message[] = "to the target";
    struct ibv_sge part = {.addr = (uintptr_t)message, .length = sizeof message};
    struct ibv_send_wr request = {
        .sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
        .qp_type.xrc.remote_srqn = number,
    }, *refused;
    struct ibv_wc completion;
    CHECK(ibv_post_send(client->qp, &request, &refused) == 0);
    CHECK(rdma_get_send_comp(client, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    CHECK(rdma_disconnect(client) == 0 && pthread_join(thread, &child) == 0);
    struct rdma_cm_id *target = child;
    CHECK(target_number == target->qp->qp_num);
    print_masks(client);
    print_masks(target);
    // The completion queue is the shared receive queue's: it goes with it.
    rdma_destroy_qp(target);
    CHECK(!target->qp && target->srq && target->recv_cq);
    rdma_destroy_srq(target);
    CHECK(!target->srq && !target->recv_cq && !target->recv_cq_channel);
    rdma_destroy_ep(target);
    rdma_destroy_ep(client);
    rdma_destroy_ep(listener);
}

static void *reject(void *argument) {
    struct rdma_cm_id *listener = argument, *id;
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(rdma_reject(id, NULL, 0) == 0);
    rdma_destroy_ep(id);
    return NULL;
}

// Requests are for listeners of their own transport, and the ends have their own roles.
void other_transports(void) {
    struct rdma_cm_id *target = endpoint("7494", RAI_PASSIVE, IBV_QPT_XRC_RECV);
    struct rdma_cm_id *peer = endpoint("7495", RAI_PASSIVE, IBV_QPT_RC), *id;
    pthread_t thread;
    CHECK(rdma_listen(target, 0) == 0 && rdma_listen(peer, 0) == 0);
    for (int i = 0; i < 2; i++) {
        id = endpoint(i ? "7495" : "7494", 0, i ? IBV_QPT_XRC_SEND : IBV_QPT_RC);
        TRY(rdma_connect(id, NULL));
        printf("%d; ", id->event->status);
        rdma_destroy_ep(id);
    }
    id = endpoint("7494", 0, IBV_QPT_XRC_SEND);
    CHECK(pthread_create(&thread, NULL, reject, target) == 0);
    TRY(rdma_connect(id, NULL));
    CHECK(pthread_join(thread, NULL) == 0);
    rdma_destroy_ep(id);
    id = endpoint("7496", RAI_PASSIVE, IBV_QPT_XRC_SEND);
    TRY(rdma_listen(id, 0));
    rdma_destroy_ep(id);
    id = endpoint("7494", 0, IBV_QPT_XRC_RECV);
    TRY(rdma_connect(id, NULL));
    // A shared receive queue of the program's own domain and completion queue.
    struct ibv_xrcd_init_attr domain_attributes = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
    };
    struct ibv_xrcd *domain = ibv_open_xrcd(id->verbs, &domain_attributes);
    struct ibv_cq *queue = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
    struct ibv_srq_init_attr_ex attributes = {
        .attr = {.max_wr = 4, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .xrcd = domain, .cq = queue,
        .comp_mask = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
    };
    CHECK(domain && queue);
    TRY(rdma_create_srq_ex(id, &attributes));
    attributes.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
    TRY(rdma_create_srq_ex(id, &attributes));
    CHECK(attributes.xrcd == domain && attributes.cq == queue && !id->recv_cq && id->srq->pd == id->pd);
    // One that fails leaves no completion queue.
    rdma_destroy_srq(id);
    attributes.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    attributes.attr.max_sge = 1 << 20;
    TRY(rdma_create_srq_ex(id, &attributes));
    CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel);
    rdma_destroy_ep(id);
    CHECK(ibv_destroy_cq(queue) == 0 && ibv_close_xrcd(domain) == 0);
    rdma_destroy_ep(target);
    rdma_destroy_ep(peer);
}
