/* Names that C blocks of the guide use without declaring them. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
extern struct ibv_comp_channel *channel;
extern struct ibv_qp *qp;
extern struct ibv_srq *srq;
extern struct ibv_mr *mr;
extern struct rdma_cm_id *id;
extern struct rdma_event_channel *events;
extern char *buffer;
extern size_t length;
extern uint64_t remote_addr;
extern uint32_t rkey;
