/* The commands of the exchange on the verbs device; peer.c documents them. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define AREA_LENGTH (4u << 20)
#define AREAS 4
#define SEND_DEPTH 256
#define RECEIVE_DEPTH 256
#define MAX_COUNT 64
/* rxe passes the kernel's own "with invalidate" flag to user programs; libibverbs uses this bit for another flag. */
#define INVALIDATED_BY_RXE (1 << 2)
#define REMOTE_RIGHTS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

enum { OPEN, CLOSED, RECEIVE, READABLE };

struct area {
	const char *name;
	int access;
	unsigned char *bytes;
	struct ibv_mr *region;
};

static struct area areas[AREAS] = {
	{.name = "open", .access = IBV_ACCESS_LOCAL_WRITE | REMOTE_RIGHTS | IBV_ACCESS_MW_BIND},
	{.name = "closed", .access = IBV_ACCESS_LOCAL_WRITE},
	{.name = "receive", .access = IBV_ACCESS_LOCAL_WRITE},
	{.name = "readable", .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ},
};

static int gid_index;
static unsigned path_mtu;
static struct ibv_cq *send_queue, *receive_queue;
static union ibv_gid gid;
static uint32_t psn;

struct ibv_context *context;
struct ibv_pd *domain;
struct ibv_qp *queue_pair;
uint64_t next_wr_id = 1;

unsigned access_option(const struct command *command)
{
	const char *letters = option_text(command, "access", "rwa");
	unsigned access = 0;

	if (!strcmp(letters, "none"))
		return 0;
	for (; *letters; letters++) {
		access |= *letters == 'r' ? IBV_ACCESS_REMOTE_READ : 0;
		access |= *letters == 'w' ? IBV_ACCESS_REMOTE_WRITE : 0;
		access |= *letters == 'a' ? IBV_ACCESS_REMOTE_ATOMIC : 0;
		access |= *letters == 'f' ? IBV_ACCESS_FLUSH_GLOBAL : 0;
		access |= *letters == 'p' ? IBV_ACCESS_FLUSH_PERSISTENT : 0;
		access |= *letters == 'z' ? IBV_ACCESS_ZERO_BASED : 0;
	}
	return access;
}

static bool in_area(uint64_t offset, uint64_t length)
{
	return offset <= AREA_LENGTH && length <= AREA_LENGTH - offset;
}

/* Returns the region of the area `open`, or NULL if the range exceeds it. */
struct ibv_mr *open_region(uint64_t offset, uint64_t length)
{
	return in_area(offset, length) ? areas[OPEN].region : NULL;
}

/* Returns the address of "AREA OFFSET", or NULL if the area has fewer than `length` bytes there. */
static unsigned char *place(const struct command *command, uint64_t length)
{
	uint64_t offset = argument(command, 2);

	for (int i = 0; command->count > 2 && i < AREAS; i++)
		if (!strcmp(command->words[1], areas[i].name) && in_area(offset, length))
			return areas[i].bytes + offset;
	refuse("no such area, or out of its bounds", 0);
	return NULL;
}

/* ---- Pattern ---- */

static unsigned char pattern(uint32_t seed, uint32_t index)
{
	uint32_t x = seed * 0x9e3779b1u + index;

	x ^= x >> 16;
	x *= 0x7feb352du;
	x ^= x >> 15;
	return x & 0xff;
}

static void fill(unsigned char *bytes, uint64_t length, uint32_t seed, uint32_t first)
{
	for (uint64_t i = 0; i < length; i++)
		bytes[i] = pattern(seed, first + (uint32_t)i);
}

static void answer_check(const unsigned char *bytes, uint64_t length, uint32_t seed, uint32_t first)
{
	for (uint64_t i = 0; i < length; i++) {
		unsigned char expected = pattern(seed, first + (uint32_t)i);

		if (bytes[i] != expected) {
			answer(" check=bad at=%lu expected=%u found=%u", i, expected, bytes[i]);
			return;
		}
	}
	answer(" check=good");
}

/* ---- Completions ---- */

static const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"success",	    "loc_len_err",    "loc_qp_op_err",	   "loc_eec_op_err",	"loc_prot_err",
		"wr_flush_err",	    "mw_bind_err",    "bad_resp_err",	   "loc_access_err",	"rem_inv_req_err",
		"rem_access_err",   "rem_op_err",     "retry_exc_err",	   "rnr_retry_exc_err", "loc_rdd_viol_err",
		"rem_inv_rd_req_err", "rem_abort_err", "inv_eecn_err",	   "inv_eec_state_err", "fatal_err",
		"resp_timeout_err", "general_err",
	};

	return status < sizeof(names) / sizeof(*names) ? names[status] : "unknown";
}

static const char *opcode_name(enum ibv_wc_opcode opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "send";
	case IBV_WC_RDMA_WRITE: return "write";
	case IBV_WC_RDMA_READ: return "read";
	case IBV_WC_COMP_SWAP: return "cas";
	case IBV_WC_FETCH_ADD: return "faa";
	case IBV_WC_BIND_MW: return "bind";
	case IBV_WC_FLUSH: return "flush";
	case IBV_WC_ATOMIC_WRITE: return "atomic_write";
	case IBV_WC_RECV: return "recv";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "recv_write_imm";
	default: return "other";
	}
}

static uint64_t now_milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Returns whether a completion came before the deadline. */
static bool next_completion(struct ibv_cq *queue, uint64_t deadline, struct ibv_wc *completion)
{
	for (;;) {
		int found = ibv_poll_cq(queue, 1, completion);

		if (found < 0)
			die("ibv_poll_cq");
		if (found > 0)
			return true;
		if (now_milliseconds() >= deadline)
			return false;
		usleep(200);
	}
}

/* Waits for the send completions of `count` requests from `first` on, and replies with their common status. */
static bool answer_requests(uint64_t first, unsigned count, uint64_t wait)
{
	uint64_t deadline = now_milliseconds() + wait;
	const char *status = "success";
	unsigned seen = 0, done = 0;
	struct ibv_wc completion;

	while (seen < count) {
		if (!next_completion(send_queue, deadline, &completion)) {
			if (seen == done)
				status = "none";
			break;
		}
		if (completion.wr_id < first)
			continue; /* of an earlier, abandoned request */
		seen++;
		if (completion.status == IBV_WC_SUCCESS)
			done++;
		else if (seen == done + 1)
			status = status_name(completion.status);
	}
	answer(" status=%s done=%u", status, done);
	return done == count;
}

/* Replies to posted requests. Returns whether all completed successfully. */
bool answer_posted(const struct command *command, uint64_t first, uint64_t count)
{
	if (option(command, "post", 0)) {
		answer(" first=%lu count=%lu", first, count);
		return false;
	}
	return answer_requests(first, (unsigned)count, option(command, "wait", 10000));
}

static bool do_poll(const struct command *command)
{
	bool sends = command->count > 1 && !strcmp(command->words[1], "send");
	uint64_t deadline = now_milliseconds() + option(command, "wait", 10000);
	struct ibv_wc completion;

	if (!sends && (command->count < 2 || strcmp(command->words[1], "recv")))
		return refuse("poll which queue?", 0);
	if (!next_completion(sends ? send_queue : receive_queue, deadline, &completion)) {
		answer(" status=none");
		return true;
	}
	answer(" status=%s wr_id=%lu opcode=%s byte_len=%u qpn=%u", status_name(completion.status), completion.wr_id,
	       opcode_name(completion.opcode), completion.byte_len, completion.qp_num);
	if (completion.wc_flags & IBV_WC_WITH_IMM)
		answer(" imm=%u", ntohl(completion.imm_data));
	if (completion.wc_flags & (IBV_WC_WITH_INV | INVALIDATED_BY_RXE))
		answer(" invalidated=%u", completion.invalidated_rkey);
	return true;
}

/* ---- The queue pair ---- */

static void destroy_queue_pair(void)
{
	struct ibv_wc completion;

	destroy_window();
	if (queue_pair && ibv_destroy_qp(queue_pair))
		die("ibv_destroy_qp");
	queue_pair = NULL;
	while (ibv_poll_cq(send_queue, 1, &completion) > 0 || ibv_poll_cq(receive_queue, 1, &completion) > 0)
		;
}

static void make_queue_pair(unsigned access, uint32_t first_psn)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send_queue,
		.recv_cq = receive_queue,
		.cap = {.max_send_wr = SEND_DEPTH, .max_recv_wr = RECEIVE_DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};

	destroy_queue_pair();
	queue_pair = create_queue_pair(&init);
	if (!queue_pair)
		die("creating a queue pair");
	errno = ibv_modify_qp(queue_pair, &attributes,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (errno)
		die("ibv_modify_qp to INIT");
	psn = first_psn & 0xffffff;
}

static uint32_t random_psn(void)
{
	uint32_t number;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		die("getrandom");
	return number & 0xffffff;
}

void answer_greeting(void)
{
	answer(" version=1 qpn=%u psn=%u gid=", queue_pair->qp_num, psn);
	for (int i = 0; i < 16; i++)
		answer("%02x", gid.raw[i]);
	answer(" path_mtu=%u length=%u", path_mtu, AREA_LENGTH);
	answer_extensions();
	for (int i = 0; i < AREAS; i++)
		answer(" %s_addr=%lu %s_rkey=%u", areas[i].name, (uint64_t)(uintptr_t)areas[i].bytes, areas[i].name,
		       areas[i].region->rkey);
}

static bool do_reset(const struct command *command)
{
	make_queue_pair(access_option(command), (uint32_t)option(command, "psn", random_psn()));
	answer_greeting();
	return true;
}

static bool do_destroy(const struct command *command)
{
	(void)command;
	destroy_queue_pair();
	return true;
}

static bool read_gid(const char *text, union ibv_gid *result)
{
	if (strlen(text) != 32)
		return false;
	for (int i = 0; i < 16; i++)
		if (sscanf(text + 2 * i, "%2hhx", &result->raw[i]) != 1)
			return false;
	return true;
}

static bool do_connect(const struct command *command)
{
	unsigned mtu = (unsigned)option(command, "mtu", path_mtu);
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = (uint32_t)argument(command, 1),
		.rq_psn = (uint32_t)argument(command, 2),
		.max_dest_rd_atomic = (uint8_t)option(command, "dest_rd_atomic", 16),
		.min_rnr_timer = (uint8_t)option(command, "min_rnr_timer", 12),
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64, .sgid_index = (uint8_t)gid_index}},
	};
	int error;

	if (command->count != 4 || !read_gid(command->words[3], &attributes.ah_attr.grh.dgid))
		return refuse("connect QPN PSN GID", 0);
	while (attributes.path_mtu < IBV_MTU_4096 && (128u << attributes.path_mtu) < mtu)
		attributes.path_mtu++;
	error = ibv_modify_qp(queue_pair, &attributes,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		return refuse("to RTR", error);
	attributes.qp_state = IBV_QPS_RTS;
	attributes.sq_psn = psn;
	attributes.timeout = (uint8_t)option(command, "timeout", 14);
	attributes.retry_cnt = (uint8_t)option(command, "retry_cnt", 5);
	attributes.rnr_retry = (uint8_t)option(command, "rnr_retry", 5);
	attributes.max_rd_atomic = (uint8_t)option(command, "rd_atomic", 16);
	error = ibv_modify_qp(queue_pair, &attributes,
			      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				      IBV_QP_MAX_QP_RD_ATOMIC);
	return error ? refuse("to RTS", error) : true;
}

static bool do_state(const struct command *command)
{
	static const char *const names[] = {"reset", "init", "rtr", "rts", "sqd", "sqe", "err", "unknown"};
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attributes;
	int error = ibv_query_qp(queue_pair, &attributes, IBV_QP_STATE, &init);

	(void)command;
	if (error)
		return refuse("ibv_query_qp", error);
	answer(" state=%s", names[attributes.qp_state < 7 ? attributes.qp_state : 7]);
	return true;
}

/* ---- Memory commands ---- */

static bool do_fill(const struct command *command)
{
	unsigned char *bytes = place(command, argument(command, 3));

	if (bytes)
		fill(bytes, argument(command, 3), (uint32_t)argument(command, 4), (uint32_t)argument(command, 5));
	return bytes;
}

static bool do_check(const struct command *command)
{
	unsigned char *bytes = place(command, argument(command, 3));

	if (bytes)
		answer_check(bytes, argument(command, 3), (uint32_t)argument(command, 4), (uint32_t)argument(command, 5));
	return bytes;
}

static bool do_zero(const struct command *command)
{
	unsigned char *bytes = place(command, argument(command, 3));

	if (bytes)
		memset(bytes, 0, argument(command, 3));
	return bytes;
}

static bool do_peek(const struct command *command)
{
	unsigned char *bytes = place(command, 8);

	if (bytes)
		answer(" value=%lu", *(volatile uint64_t *)bytes);
	return bytes;
}

static bool do_poke(const struct command *command)
{
	unsigned char *bytes = place(command, 8);

	if (bytes)
		*(volatile uint64_t *)bytes = argument(command, 3);
	return bytes;
}

/* ---- Requests and receives ---- */

static const struct request_kind {
	const char *name;
	enum ibv_wr_opcode opcode;
	int arguments;
	int length_at; /* index of the argument LENGTH; SEED is the next; 0 for atomics */
} request_kinds[] = {
	{"write", IBV_WR_RDMA_WRITE, 4, 3},
	{"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, 5, 3},
	{"read", IBV_WR_RDMA_READ, 4, 3},
	{"cas", IBV_WR_ATOMIC_CMP_AND_SWP, 4, 0},
	{"faa", IBV_WR_ATOMIC_FETCH_AND_ADD, 3, 0},
	{"send", IBV_WR_SEND, 2, 1},
	{"send_imm", IBV_WR_SEND_WITH_IMM, 3, 1},
	{"send_inv", IBV_WR_SEND_WITH_INV, 3, 1},
};

/* Returns the request that a command describes, without its memory: the first of `count`. */
static struct ibv_send_wr request_of(const struct command *command, const struct request_kind *kind)
{
	struct ibv_send_wr request = {.opcode = kind->opcode, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1};

	if (option(command, "solicited", 0))
		request.send_flags |= IBV_SEND_SOLICITED;
	if (kind->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || kind->opcode == IBV_WR_SEND_WITH_IMM)
		request.imm_data = htonl((uint32_t)argument(command, kind->length_at + 2));
	if (kind->opcode == IBV_WR_SEND_WITH_INV)
		request.invalidate_rkey = (uint32_t)argument(command, 3);
	if (!kind->length_at) {
		request.wr.atomic.remote_addr = argument(command, 1);
		request.wr.atomic.rkey = (uint32_t)argument(command, 2);
		request.wr.atomic.compare_add = argument(command, 3);
		request.wr.atomic.swap = argument(command, 4);
	} else if (kind->length_at == 3) {
		request.wr.rdma.remote_addr = argument(command, 1);
		request.wr.rdma.rkey = (uint32_t)argument(command, 2);
	}
	return request;
}

static bool do_request(const struct command *command, const struct request_kind *kind)
{
	uint64_t length = kind->length_at ? argument(command, kind->length_at) : 8;
	uint32_t seed = (uint32_t)argument(command, kind->length_at + 1);
	uint64_t count = option(command, "count", 1), offset = option(command, "offset", 0);
	unsigned char *bytes = areas[CLOSED].bytes + offset;
	struct ibv_send_wr request = request_of(command, kind), *bad;
	uint64_t first = next_wr_id;
	bool incoming = !kind->length_at || kind->opcode == IBV_WR_RDMA_READ;

	if (command->count != kind->arguments + 1)
		return refuse("wrong number of arguments", 0);
	if (!count || count > MAX_COUNT || length > AREA_LENGTH || !in_area(offset, count * length))
		return refuse("out of bounds", 0);
	if (incoming)
		memset(bytes, 0, count * length);
	else
		fill(bytes, count * length, seed, 0);
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge element = {(uint64_t)(uintptr_t)bytes + i * length, (uint32_t)length,
					  areas[CLOSED].region->lkey};

		request.sg_list = &element;
		request.wr_id = next_wr_id;
		int error = ibv_post_send(queue_pair, &request, &bad);
		if (error)
			return refuse("ibv_post_send", error);
		next_wr_id++;
		if (kind->length_at == 3)
			request.wr.rdma.remote_addr += length;
	}
	if (!answer_posted(command, first, count))
		return true;
	if (!kind->length_at)
		answer(" old=%lu", ((volatile uint64_t *)bytes)[count - 1]);
	else if (incoming)
		answer_check(bytes, count * length, seed, 0);
	return true;
}

static bool do_receive(const struct command *command)
{
	uint64_t count = argument(command, 1), length = argument(command, 2), offset = argument(command, 3);
	uint64_t first = next_wr_id;

	if (!count || count > RECEIVE_DEPTH || length > AREA_LENGTH || !in_area(offset, count * length))
		return refuse("out of bounds", 0);
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge element = {(uint64_t)(uintptr_t)areas[RECEIVE].bytes + offset + i * length, (uint32_t)length,
					  areas[RECEIVE].region->lkey};
		struct ibv_recv_wr request = {.wr_id = next_wr_id, .sg_list = &element, .num_sge = 1}, *bad;
		int error = ibv_post_recv(queue_pair, &request, &bad);

		if (error)
			return refuse("ibv_post_recv", error);
		next_wr_id++;
	}
	answer(" first=%lu count=%lu", first, count);
	return true;
}

/* ---- Commands ---- */

static const struct {
	const char *name;
	bool (*run)(const struct command *command);
	bool needs_queue_pair;
} commands[] = {
	{"connect", do_connect, true}, {"reset", do_reset, false}, {"destroy", do_destroy, false},
	{"state", do_state, true},     {"fill", do_fill, false},   {"check", do_check, false},
	{"zero", do_zero, false},      {"peek", do_peek, false},   {"poke", do_poke, false},
	{"bind", do_bind, true},       {"recv", do_receive, true}, {"poll", do_poll, false},
	{"flush", do_flush, true},     {"atomic_write", do_atomic_write, true},
};

void run_command(const struct command *command)
{
	const char *name = command->count ? command->words[0] : "";

	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (!strcmp(name, commands[i].name)) {
			if (commands[i].needs_queue_pair && !queue_pair)
				refuse("no queue pair: reset first", 0);
			else
				commands[i].run(command);
			return;
		}
	}
	for (size_t i = 0; i < sizeof(request_kinds) / sizeof(*request_kinds); i++) {
		if (!strcmp(name, request_kinds[i].name)) {
			if (queue_pair)
				do_request(command, &request_kinds[i]);
			else
				refuse("no queue pair: reset first", 0);
			return;
		}
	}
	refuse("unknown command", 0);
}

void start_verbs(const char *device_name, int index, unsigned mtu)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	for (int i = 0; devices && devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), device_name))
			context = ibv_open_device(devices[i]);
	gid_index = index;
	path_mtu = mtu;
	if (!context)
		die(device_name);
	find_extensions();
	areas[OPEN].access |= (int)extended_rights();
	domain = ibv_alloc_pd(context);
	send_queue = ibv_create_cq(context, SEND_DEPTH, NULL, NULL, 0);
	receive_queue = ibv_create_cq(context, RECEIVE_DEPTH, NULL, NULL, 0);
	if (!domain || !send_queue || !receive_queue || ibv_query_gid(context, 1, gid_index, &gid))
		die("resources");
	for (int i = 0; i < AREAS; i++) {
		areas[i].bytes = mmap(NULL, AREA_LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (areas[i].bytes == MAP_FAILED)
			die("mmap");
		areas[i].region = ibv_reg_mr(domain, areas[i].bytes, AREA_LENGTH, areas[i].access);
		if (!areas[i].region)
			die("ibv_reg_mr");
	}
	make_queue_pair(REMOTE_RIGHTS, random_psn());
}

void stop_verbs(void)
{
	destroy_queue_pair();
}
