/*
 * Eight-byte SENDs back and forth over a reliable connection, polling: the cost of libibverbs to a C program. The
 * reference of send_latency.rs, which does the same through the provider.
 *
 *   send_latency DEVICE GID_INDEX
 *
 * Both ends are here, on one device and in one thread, so that only posting, polling and the device itself are
 * measured. For each input line it makes EXCHANGES exchanges and prints a line: the mean of half a round trip in
 * nanoseconds.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* As in send_latency.rs. */
#define MESSAGE_BYTES 8
#define WARM_UP 10
#define EXCHANGES 100
#define RECEIVES 64
#define SENDS 64
#define SIGNAL_EVERY 32

struct end {
	struct ibv_cq *queue;
	struct ibv_qp *queue_pair;
	struct ibv_mr *inbox;
	unsigned char bytes[MESSAGE_BYTES];
	int receives;
	unsigned int sent;
};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (!context)
		die(name);
	ibv_free_device_list(list);
	return context;
}

/* Refills the receives when half of them are used, as ibv_rc_pingpong does. */
static void fill(struct end *end)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)end->bytes, .length = MESSAGE_BYTES, .lkey = end->inbox->lkey};
	struct ibv_recv_wr requests[RECEIVES], *bad;
	int count = RECEIVES - end->receives;

	for (int i = 0; i < count; i++)
		requests[i] = (struct ibv_recv_wr){
			.sg_list = &sge, .num_sge = 1, .next = i + 1 < count ? &requests[i + 1] : NULL};
	if (ibv_post_recv(end->queue_pair, requests, &bad))
		die("ibv_post_recv");
	end->receives = RECEIVES;
}

static void create(struct end *end, struct ibv_context *context, struct ibv_pd *domain)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = SENDS,
			.max_recv_wr = RECEIVES,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = MESSAGE_BYTES},
	};
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	end->queue = ibv_create_cq(context, SENDS + RECEIVES, NULL, NULL, 0);
	end->inbox = ibv_reg_mr(domain, end->bytes, MESSAGE_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!end->queue || !end->inbox)
		die("ibv_create_cq or ibv_reg_mr");
	init.send_cq = init.recv_cq = end->queue;
	end->queue_pair = ibv_create_qp(domain, &init);
	if (!end->queue_pair)
		die("ibv_create_qp");
	if (ibv_modify_qp(end->queue_pair, &attributes,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("ibv_modify_qp to INIT");
	fill(end);
}

static void connect_to(struct end *end, const struct end *peer, struct ibv_context *context, int gid_index)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.dest_qp_num = peer->queue_pair->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = gid_index, .hop_limit = 64}},
	};

	if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &attributes.ah_attr.grh.dgid))
		die("ibv_query_port or ibv_query_gid");
	attributes.path_mtu = port.active_mtu;
	if (ibv_modify_qp(end->queue_pair, &attributes,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("ibv_modify_qp to RTR");
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	if (ibv_modify_qp(end->queue_pair, &attributes,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				  IBV_QP_MAX_QP_RD_ATOMIC))
		die("ibv_modify_qp to RTS");
}

static void send_message(struct end *end)
{
	unsigned char message[MESSAGE_BYTES] = {7, 7, 7, 7, 7, 7, 7, 7};
	struct ibv_sge sge = {.addr = (uintptr_t)message, .length = MESSAGE_BYTES};
	struct ibv_send_wr request = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
	};
	struct ibv_send_wr *bad;

	if (++end->sent % SIGNAL_EVERY == 0)
		request.send_flags |= IBV_SEND_SIGNALED;
	if (ibv_post_send(end->queue_pair, &request, &bad))
		die("ibv_post_send");
}

/* Waits for a message, taking other completions as well. */
static void receive_message(struct end *end)
{
	struct ibv_wc completion;

	do {
		int count;

		do {
			count = ibv_poll_cq(end->queue, 1, &completion);
		} while (count == 0);
		if (count < 0)
			die("ibv_poll_cq");
		if (completion.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "a request failed: %s\n", ibv_wc_status_str(completion.status));
			exit(1);
		}
	} while (!(completion.opcode & IBV_WC_RECV));
	end->receives--;
	if (end->receives == RECEIVES / 2)
		fill(end);
}

static void exchange(struct end *left, struct end *right, int count)
{
	for (int i = 0; i < count; i++) {
		send_message(left);
		receive_message(right);
		send_message(right);
		receive_message(left);
	}
}

static double now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int count, char **arguments)
{
	static struct end left, right;
	struct ibv_context *context;
	struct ibv_pd *domain;
	char line[16];
	double start;

	if (count != 3) {
		fprintf(stderr, "usage: send_latency DEVICE GID_INDEX\n");
		return 2;
	}
	context = open_device(arguments[1]);
	domain = ibv_alloc_pd(context);
	if (!domain)
		die("ibv_alloc_pd");
	create(&left, context, domain);
	create(&right, context, domain);
	connect_to(&left, &right, context, atoi(arguments[2]));
	connect_to(&right, &left, context, atoi(arguments[2]));
	while (fgets(line, sizeof(line), stdin)) {
		exchange(&left, &right, WARM_UP);
		start = now();
		exchange(&left, &right, EXCHANGES);
		printf("%.0f\n", (now() - start) / EXCHANGES / 2);
		fflush(stdout);
	}
	return 0;
}
