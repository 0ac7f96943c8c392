// Tests which requests are refused when posted, and which object a request applies to. Prints numbers, a line for each
// case.
#include "connection.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static char memory[16384];

// Refused requests, without a pointer (bad_wr) for the one that was refused.
static void refused(void) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8};
    struct ibv_send_wr second = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, first = second;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, long_one = {.sg_list = &sge, .num_sge = 99};
    struct ibv_srq_init_attr wanted = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &wanted);
    NEED(srq);
    first.next = &second;
    struct ibv_qp *qp = create(IBV_QPT_RC);
    printf("%d %d", ibv_post_recv(qp, &receive, NULL), ibv_post_recv(qp, NULL, NULL));
    initialize(qp);
    printf(" %d %d %d", ibv_post_send(qp, NULL, NULL), ibv_post_send(qp, &second, NULL), ibv_post_send(qp, &first, NULL));
    printf(" %d", ibv_post_srq_recv(srq, &long_one, NULL));
    connect_to_itself(qp);
    second.opcode = 99;
    printf(" %d\n", ibv_post_send(qp, &second, NULL));
}

static int write_by(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t rkey) {
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .wr = {.rdma = {.remote_addr = (uintptr_t)memory + 4096, .rkey = rkey}}}, *bad;
    NEED(!ibv_post_send(qp, &wr, &bad));
    return complete();
}

// Binds a window with a key that, except for its tag, belongs to another window or to none.
static void window(int extended) {
    struct ibv_mr *mr = registered(memory, sizeof memory);
    struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_RDMA_WRITE,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    NEED(qp);
    initialize(qp);
    connect_to_itself(qp);
    for (int is_of_other = 1; is_of_other >= 0; is_of_other--) {
        struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *other = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
        NEED(mw && other);
        uint32_t tag = ibv_inc_rkey(other->rkey) & 0xff;
        uint32_t rkey = is_of_other ? ibv_inc_rkey(other->rkey) : 0xabcdef00 | tag;
        struct ibv_mw_bind_info info = {.mr = mr, .addr = (uintptr_t)memory + 4096, .length = 4096,
            .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
        if (extended) {
            struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
            ibv_wr_start(ex);
            ex->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_bind_mw(ex, mw, rkey, &info);
            NEED(!ibv_wr_complete(ex));
        } else {
            struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {.mw = mw, .rkey = rkey, .bind_info = info}}, *bad;
            NEED(!ibv_post_send(qp, &wr, &bad));
        }
        printf("%d", complete());
        printf(" %d\n", write_by(qp, mr, (mw->rkey & ~0xffu) | tag));
        if (is_of_other) continue;
        printf("%d\n", write_by(qp, mr, (other->rkey & ~0xffu) | tag));
    }
}

// A bind without a window.
static void no_window(void) {
    struct ibv_qp *qp = create(IBV_QPT_RC);
    initialize(qp);
    connect_to_itself(qp);
    struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .bind_mw = {.rkey = 1}}, *bad = NULL;
    printf("%d", ibv_post_send(qp, &wr, &bad));
    printf(" %d\n", bad == &wr);
}

#define BIND_ROUNDS 2000

static struct ibv_mw *window_of_two_threads;
static struct ibv_mr *region_of_two_threads;
// Number of binds that may begin, and that were posted.
static atomic_int begun, posted;

static void bind_type_1(struct ibv_qp *qp) {
    struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED, .bind_info = {.mr = region_of_two_threads,
        .addr = (uintptr_t)memory, .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
    NEED(!ibv_bind_mw(qp, window_of_two_threads, &bind));
    atomic_fetch_add(&posted, 1);
}

static void *bind_in_each_round(void *qp) {
    for (int round = 1; round <= BIND_ROUNDS; round++) {
        while (atomic_load(&begun) < round)
            sched_yield();
        bind_type_1(qp);
    }
    return NULL;
}

// Two threads bind one window of type 1 at the same time. Prints 1 if each bind had a key of its own, so that the lower
// eight bits of the window's key count the binds.
static void two_binds(void) {
    region_of_two_threads = registered(memory, sizeof memory);
    window_of_two_threads = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    NEED(window_of_two_threads);
    struct ibv_qp *qps[2];
    for (int i = 0; i < 2; i++) {
        qps[i] = create(IBV_QPT_RC);
        initialize(qps[i]);
        connect_to_itself(qps[i]);
    }
    uint32_t first = window_of_two_threads->rkey;
    pthread_t thread;
    NEED(!pthread_create(&thread, NULL, bind_in_each_round, qps[1]));
    int differ = 1;
    for (int round = 1; round <= BIND_ROUNDS; round++) {
        atomic_store(&begun, round);
        bind_type_1(qps[0]);
        while (atomic_load(&posted) < 2 * round)
            sched_yield();
        uint32_t expected = (first & ~0xffu) | ((first + 2 * round) & 0xff);
        differ &= window_of_two_threads->rkey == expected;
        NEED(complete() == IBV_WC_SUCCESS && complete() == IBV_WC_SUCCESS);
    }
    NEED(!pthread_join(thread, NULL));
    printf("%d\n", differ);
}

// A datagram longer than its path allows. Prints the result of the post, the completion status, whether the state is
// SQE, and both statuses of a datagram that fits, after the return to RTS.
static void datagram(void) {
    struct ibv_mr *mr = registered(memory, sizeof memory);
    struct ibv_qp *qp = create(IBV_QPT_UD);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7};
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    struct ibv_port_attr port;
    NEED(!ibv_query_port(context, 1, &port));
    struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
    NEED(!ibv_query_gid(context, 1, 0, &path.grh.dgid));
    struct ibv_ah *ah = ibv_create_ah(pd, &path);
    NEED(ah);
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = (128u << port.active_mtu) + 1, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .wr = {.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 7}}}, *bad;
    int posted = ibv_post_send(qp, &wr, &bad);
    printf("%d", posted);
    if (posted) {
        printf("\n");
        return;
    }
    printf(" %d", complete());
    struct ibv_qp_init_attr init;
    NEED(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    printf(" %d", attr.qp_state == IBV_QPS_SQE);
    attr.qp_state = IBV_QPS_RTS;
    NEED(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    struct ibv_sge room = {.addr = (uintptr_t)memory + 8192, .length = 8192, .lkey = mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &room, .num_sge = 1}, *bad_receive;
    NEED(!ibv_post_recv(qp, &receive, &bad_receive));
    sge.length = 128u << port.active_mtu;
    NEED(!ibv_post_send(qp, &wr, &bad));
    printf(" %d", complete());
    printf(" %d\n", complete());
}

// A rate limit is accepted, one with an unknown mask bit is not, and 0 removes it.
static void rate_limit(void) {
    struct ibv_device_attr_ex device;
    NEED(!ibv_query_device_ex(context, NULL, &device));
    printf("%d", (device.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC) != 0);
    struct ibv_qp *qp = create(IBV_QPT_RC);
    initialize(qp);
    connect_to_itself(qp);
    struct ibv_qp_rate_limit_attr limit = {.rate_limit = 80, .max_burst_sz = 1};
    printf(" %d", ibv_modify_qp_rate_limit(qp, &limit));
    struct ibv_qp_rate_limit_attr unknown = {.comp_mask = 1}, none = {0};
    printf(" %d", ibv_modify_qp_rate_limit(qp, &unknown));
    printf(" %d\n", ibv_modify_qp_rate_limit(qp, &none));
}

int main(int count, char **arguments) {
    NEED(count == 2);
    // Ends the program if a completion never comes.
    alarm(60);
    open_device();
    const char *wanted = arguments[1];
    if (!strcmp(wanted, "refused")) refused();
    else if (!strcmp(wanted, "window")) window(0);
    else if (!strcmp(wanted, "extended window")) window(1);
    else if (!strcmp(wanted, "no window")) no_window();
    else if (!strcmp(wanted, "two binds")) two_binds();
    else if (!strcmp(wanted, "datagram")) datagram();
    else if (!strcmp(wanted, "rate limit")) rate_limit();
    else NEED(!"a case");
    fflush(stdout);
    return 0;
}
