// Makes registered memory inaccessible. Prints the statuses of a WRITE between accessible pages, of one from
// inaccessible pages, and of one to inaccessible pages, and whether SIGSEGV has a handler. With the argument "filter",
// a seccomp filter forbids copies by the kernel once memory is registered; with "fault", the program causes a fault of
// its own at the end.
#include "connection.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LENGTH 65536

static struct ibv_qp *initialized(void) {
    struct ibv_qp *qp = create(IBV_QPT_RC);
    initialize(qp);
    return qp;
}

static struct ibv_mr *pages(int value) {
    void *bytes = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(bytes != MAP_FAILED);
    memset(bytes, value, LENGTH);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    NEED(mr);
    return mr;
}

// Revokes access to the second half of the pages. An inaccessible mapping keeps their addresses in use.
static void revoke_access(struct ibv_mr *mr) {
    char *half = (char *)mr->addr + LENGTH / 2;
    NEED(mmap(half, LENGTH / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == half);
}

// Forbids copies by the kernel (process_vm_readv and process_vm_writev) in all threads.
static void forbid_copies(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    NEED(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    NEED(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

static enum ibv_wc_status write_from(struct ibv_mr *from, struct ibv_mr *to) {
    struct ibv_qp *sender = initialized(), *receiver = initialized();
    connect_to(sender, receiver);
    connect_to(receiver, sender);
    struct ibv_sge sge = {.addr = (uintptr_t)from->addr, .length = LENGTH, .lkey = from->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = {.remote_addr = (uintptr_t)to->addr, .rkey = to->rkey}};
    NEED(!ibv_post_send(sender, &wr, &bad));
    struct ibv_wc wc;
    int count;
    do count = ibv_poll_cq(cq, 1, &wc);
    while (count == 0);
    NEED(count == 1 && wc.wr_id == 1);
    NEED(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver));
    return wc.status;
}

int main(int count, char **arguments) {
    alarm(20);
    const char *mode = count > 1 ? arguments[1] : "";
    struct rlimit none = {0, 0};
    NEED(!setrlimit(RLIMIT_CORE, &none));
    open_device();
    struct ibv_mr *from = pages(1), *to = pages(2), *gone = pages(3);
    revoke_access(gone);
    if (!strcmp(mode, "filter")) forbid_copies();
    enum ibv_wc_status whole = write_from(from, to);
    NEED(whole != IBV_WC_SUCCESS || !memcmp(from->addr, to->addr, LENGTH));
    enum ibv_wc_status source = write_from(gone, to), target = write_from(from, gone);
    struct sigaction action;
    NEED(!sigaction(SIGSEGV, NULL, &action));
    printf("%d %d %d %s\n", whole, source, target, action.sa_handler == SIG_DFL ? "none" : "handler");
    fflush(stdout);
    if (!strcmp(mode, "fault")) *(volatile int *)8 = 0;
    return 0;
}
