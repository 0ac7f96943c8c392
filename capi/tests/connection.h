// Shared by the programs in C: the device, and queue pairs that are connected to themselves or to each other.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(condition)                                           \
    do {                                                          \
        if (!(condition)) {                                       \
            fprintf(stderr, "line %d: " #condition "\n", __LINE__); \
            exit(2);                                              \
        }                                                         \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static inline void open_device(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    NEED(devices && *devices);
    context = ibv_open_device(*devices);
    NEED(context);
    ibv_free_device_list(devices);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    NEED(pd && cq);
}

static inline struct ibv_mr *registered(void *memory, size_t length) {
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, length,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND);
    NEED(mr);
    return mr;
}

static inline struct ibv_qp *create(enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED(qp);
    return qp;
}

static inline void initialize(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static inline void connect_to(struct ibv_qp *qp, struct ibv_qp *peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
    NEED(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    NEED(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void connect_to_itself(struct ibv_qp *qp) {
    connect_to(qp, qp);
}

// Returns the status of the next completion.
static inline int complete(void) {
    struct ibv_wc wc;
    int found;
    while ((found = ibv_poll_cq(cq, 1, &wc)) == 0);
    NEED(found == 1);
    return wc.status;
}
