/*
 * connections: the kernel's connection manager (rdma_cm), remote-controlled over TCP. It runs in the guest on
 * librdmacm and represents the standard. Linked with peer.c, which documents the exchange of lines and the flags.
 *
 * Objects have numbers, SLOTs, below 1024. Each has an event channel of its own, so events of one never wait behind
 * those of another. Options of a command are `name=value`; DATA is hexadecimal.
 *
 *   create SLOT             space (tcp; udp), tos, ack_timeout
 *   listen SLOT ADDRESS PORT      backlog (64)
 *   resolve SLOT ADDRESS PORT     address and route; ok port=
 *   qp SLOT                 a queue pair of the slot's kind; ok qpn=
 *   connect SLOT            data, resources (4), depth (4), retry (7), rnr (7), flow (1), qpn (of a queue pair that is
 *                           not this slot's). ok result=0, or that of errno
 *   take LISTENER SLOT      the next request becomes the object SLOT; ok event=, as for `event`. wait (10000)
 *   accept SLOT             options as for `connect`; ok result=
 *   reject SLOT             data; ok result=
 *   establish SLOT          ok result=; after connect_response, which a slot without a queue pair gets
 *   event SLOT              ok event=none, or ok event=NAME status= resources= depth= retry= rnr= flow= qpn= data=
 *                           wait (10000). Names as those of rdma_event_str, in lower case without the prefix. For
 *                           datagrams: qpn= qkey= data=
 *   disconnect SLOT         ok result=
 *   destroy SLOT            the queue pair, too
 *   query SLOT              the attributes of the queue pair
 *   recv SLOT LENGTH        posts a receive
 *   send SLOT LENGTH SEED   posts the pattern of peer.c; to the peer of the latest `established` for datagrams
 *   sent SLOT               waits for the completion of a send: ok status=. wait (10000)
 *   received SLOT LENGTH SEED     waits for that of a receive: ok status= check=good|bad. wait (10000)
 *   storm SLOT ADDRESS PORT COUNT     connects so many at once, as this slot and those behind it, and disconnects
 *                           them; ok established= disconnected= rejected= unreachable=. wait (30000)
 *   serve SLOT COUNT        accepts so many at a listener until they disconnect; ok requests=
 *                           and so on, as for `storm`. wait (30000)
 *   sleep MILLISECONDS
 *   spawn PORT              another process like this one; ok pid=
 *   kill PID                ends it with SIGKILL
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 1024
#define BUFFER_LENGTH 8192
#define GRH_LENGTH 40
#define MOST_DATA 256
#define MOST_CHILDREN 64
#define MOST_DESCRIPTORS 16384 /* three for each object with a queue pair */
#define RESOLVE_MILLISECONDS 5000
#define WAIT 10000

struct slot {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_mr *region;
	struct ibv_ah *ah;
	uint32_t peer_qpn, peer_qkey;
	unsigned char *bytes; /* the first half is sent, the second one receives */
};

static struct slot slots[SLOTS];
static pid_t children[MOST_CHILDREN];
static int child_count;

static bool posted(int result)
{
	answer(" result=%d", result ? errno : 0);
	return true;
}

static struct slot *slot_of(const struct command *command, int index)
{
	uint64_t number = argument(command, index);

	if (index >= command->count || number >= SLOTS) {
		refuse("no such slot", 0);
		return NULL;
	}
	return &slots[number];
}

/* ---- Data ---- */

static unsigned char pattern(uint32_t seed, uint32_t index)
{
	uint32_t x = seed * 0x9e3779b1 + index;

	x ^= x >> 16;
	x *= 0x7feb352d;
	x ^= x >> 15;
	return (unsigned char)x;
}

static uint8_t read_data(const struct command *command, unsigned char *data)
{
	const char *text = option_text(command, "data", "");
	uint8_t length = 0;

	while (length < MOST_DATA - 1 && sscanf(text + 2 * length, "%2hhx", &data[length]) == 1)
		length++;
	return length;
}

static void answer_data(const void *data, uint8_t length)
{
	answer(" length=%u data=", length);
	for (int i = 0; data && i < length; i++)
		answer("%02x", ((const unsigned char *)data)[i]);
}

/* ---- Objects ---- */

static bool end_slot(struct slot *slot)
{
	if (slot->ah)
		ibv_destroy_ah(slot->ah);
	if (slot->id && slot->id->qp)
		rdma_destroy_qp(slot->id);
	if (slot->region)
		ibv_dereg_mr(slot->region);
	if (slot->id)
		rdma_destroy_id(slot->id);
	if (slot->channel)
		rdma_destroy_event_channel(slot->channel);
	free(slot->bytes);
	memset(slot, 0, sizeof(*slot));
	return true;
}

static bool do_destroy(const struct command *command, struct slot *slot)
{
	(void)command;
	return end_slot(slot);
}

static bool set_option(const struct command *command, struct slot *slot, const char *name, int number)
{
	uint8_t value = (uint8_t)option(command, name, 0);

	if (!option_text(command, name, NULL))
		return true;
	return !rdma_set_option(slot->id, RDMA_OPTION_ID, number, &value, sizeof(value)) || refuse(name, errno);
}

static bool do_create(const struct command *command, struct slot *slot)
{
	bool is_udp = !strcmp(option_text(command, "space", "tcp"), "udp");

	end_slot(slot);
	slot->channel = rdma_create_event_channel();
	if (!slot->channel || rdma_create_id(slot->channel, &slot->id, NULL, is_udp ? RDMA_PS_UDP : RDMA_PS_TCP))
		return refuse("rdma_create_id", errno);
	return set_option(command, slot, "tos", RDMA_OPTION_ID_TOS) &&
	       set_option(command, slot, "ack_timeout", RDMA_OPTION_ID_ACK_TIMEOUT);
}

static struct addrinfo *address_of(const struct command *command)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found = NULL;

	if (command->count < 4 || getaddrinfo(command->words[2], command->words[3], &hints, &found))
		refuse("SLOT ADDRESS PORT", 0);
	return found;
}

static bool do_listen(const struct command *command, struct slot *slot)
{
	struct addrinfo *address = address_of(command);

	if (!address)
		return false;
	int result = rdma_bind_addr(slot->id, address->ai_addr) ||
		     rdma_listen(slot->id, (int)option(command, "backlog", 64));
	freeaddrinfo(address);
	return !result || refuse("rdma_listen", errno);
}

/* Waits for an event; the caller acknowledges it. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int milliseconds)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event = NULL;

	if (poll(&readable, 1, milliseconds) == 1 && !rdma_get_cm_event(channel, &event))
		return event;
	return NULL;
}

static bool await_event(struct slot *slot, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next_event(slot->channel, RESOLVE_MILLISECONDS + 1000);
	bool is_expected = event && event->event == expected;

	if (event)
		rdma_ack_cm_event(event);
	return is_expected || refuse("address or route not resolved", 0);
}

static bool resolve(struct slot *slot, struct sockaddr *address)
{
	if (rdma_resolve_addr(slot->id, NULL, address, RESOLVE_MILLISECONDS))
		return refuse("rdma_resolve_addr", errno);
	if (!await_event(slot, RDMA_CM_EVENT_ADDR_RESOLVED))
		return false;
	if (rdma_resolve_route(slot->id, RESOLVE_MILLISECONDS))
		return refuse("rdma_resolve_route", errno);
	return await_event(slot, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static bool do_resolve(const struct command *command, struct slot *slot)
{
	struct addrinfo *address = address_of(command);

	if (!address)
		return false;
	bool is_resolved = resolve(slot, address->ai_addr);
	freeaddrinfo(address);
	if (is_resolved)
		answer(" port=%u", ntohs(rdma_get_src_port(slot->id)));
	return is_resolved;
}

static int make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = {
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};

	return rdma_create_qp(id, NULL, &attributes);
}

static bool do_qp(const struct command *command, struct slot *slot)
{
	(void)command;
	if (make_queue_pair(slot->id))
		return refuse("rdma_create_qp", errno);
	slot->bytes = calloc(2, BUFFER_LENGTH);
	if (slot->bytes)
		slot->region = ibv_reg_mr(slot->id->pd, slot->bytes, 2 * BUFFER_LENGTH, IBV_ACCESS_LOCAL_WRITE);
	if (!slot->region)
		return refuse("ibv_reg_mr", errno);
	answer(" qpn=%u", slot->id->qp->qp_num);
	return true;
}

/* ---- Connections ---- */

static struct rdma_conn_param parameters(const struct command *command, const struct slot *slot, unsigned char *data)
{
	return (struct rdma_conn_param){
		.private_data = data,
		.private_data_len = read_data(command, data),
		.responder_resources = (uint8_t)option(command, "resources", 4),
		.initiator_depth = (uint8_t)option(command, "depth", 4),
		.flow_control = (uint8_t)option(command, "flow", 1),
		.retry_count = (uint8_t)option(command, "retry", 7),
		.rnr_retry_count = (uint8_t)option(command, "rnr", 7),
		.qp_num = (uint32_t)option(command, "qpn", slot->id->qp ? slot->id->qp->qp_num : 0),
	};
}

static bool do_connect(const struct command *command, struct slot *slot)
{
	unsigned char data[MOST_DATA];
	struct rdma_conn_param wanted = parameters(command, slot, data);

	return posted(rdma_connect(slot->id, &wanted));
}

static bool do_accept(const struct command *command, struct slot *slot)
{
	unsigned char data[MOST_DATA];
	struct rdma_conn_param wanted = parameters(command, slot, data);

	return posted(rdma_accept(slot->id, &wanted));
}

static bool do_reject(const struct command *command, struct slot *slot)
{
	unsigned char data[MOST_DATA];
	uint8_t length = read_data(command, data);

	return posted(rdma_reject(slot->id, data, length));
}

static bool do_establish(const struct command *command, struct slot *slot)
{
	(void)command;
	return posted(rdma_establish(slot->id));
}

static bool do_disconnect(const struct command *command, struct slot *slot)
{
	(void)command;
	return posted(rdma_disconnect(slot->id));
}

static void answer_event(const struct rdma_cm_event *event)
{
	const char *name = rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_");
	const struct rdma_conn_param *conn = &event->param.conn;
	const struct rdma_ud_param *ud = &event->param.ud;

	answer(" event=");
	for (; *name; name++)
		answer("%c", *name >= 'A' && *name <= 'Z' ? *name + 'a' - 'A' : *name);
	answer(" status=%d", event->status);
	if (event->id->qp_type == IBV_QPT_UD) {
		answer(" qpn=%u qkey=%u", ud->qp_num, ud->qkey);
		answer_data(ud->private_data, ud->private_data_len);
		return;
	}
	answer(" resources=%u depth=%u retry=%u rnr=%u flow=%u qpn=%u", conn->responder_resources, conn->initiator_depth,
	       conn->retry_count, conn->rnr_retry_count, conn->flow_control, conn->qp_num);
	answer_data(conn->private_data, conn->private_data_len);
}

static void keep_peer(struct slot *slot, const struct rdma_cm_event *event)
{
	struct ibv_ah_attr attributes = event->param.ud.ah_attr;

	slot->ah = ibv_create_ah(slot->id->pd, &attributes);
	slot->peer_qpn = event->param.ud.qp_num;
	slot->peer_qkey = event->param.ud.qkey;
}

static bool do_event(const struct command *command, struct slot *slot)
{
	struct rdma_cm_event *event = next_event(slot->channel, (int)option(command, "wait", WAIT));

	if (!event) {
		answer(" event=none");
		return true;
	}
	answer_event(event);
	if (event->event == RDMA_CM_EVENT_ESTABLISHED && slot->id->qp_type == IBV_QPT_UD && slot->id->qp)
		keep_peer(slot, event);
	rdma_ack_cm_event(event);
	return true;
}

static bool do_take(const struct command *command, struct slot *listener)
{
	struct slot *slot = slot_of(command, 2);
	struct rdma_cm_event *event;

	if (!slot)
		return false;
	event = next_event(listener->channel, (int)option(command, "wait", WAIT));
	if (!event) {
		answer(" event=none");
		return true;
	}
	answer_event(event);
	struct rdma_cm_id *child = event->id;
	bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
	rdma_ack_cm_event(event);
	if (!is_request)
		return true;
	end_slot(slot);
	slot->id = child;
	slot->channel = rdma_create_event_channel();
	return (slot->channel && !rdma_migrate_id(child, slot->channel)) || refuse("rdma_migrate_id", errno);
}

static bool do_query(const struct command *command, struct slot *slot)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr found = {0};
	int everything = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_SQ_PSN |
			 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_TIMEOUT |
			 IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_ACCESS_FLAGS;

	(void)command;
	errno = ibv_query_qp(slot->id->qp, &found, everything, &init);
	if (errno)
		return refuse("ibv_query_qp", errno);
	answer(" state=%d path_mtu=%u dest_qpn=%u rq_psn=%u sq_psn=%u", found.qp_state, 128u << found.path_mtu,
	       found.dest_qp_num, found.rq_psn, found.sq_psn);
	answer(" rd_atomic=%u dest_rd_atomic=%u min_rnr_timer=%u timeout=%u", found.max_rd_atomic,
	       found.max_dest_rd_atomic, found.min_rnr_timer, found.timeout);
	answer(" retry=%u rnr=%u access=%u traffic_class=%u hop_limit=%u", found.retry_cnt, found.rnr_retry,
	       found.qp_access_flags, found.ah_attr.grh.traffic_class, found.ah_attr.grh.hop_limit);
	return true;
}

/* ---- Messages ---- */

static bool do_recv(const struct command *command, struct slot *slot)
{
	uint64_t length = argument(command, 2) + (slot->ah || slot->id->qp_type == IBV_QPT_UD ? GRH_LENGTH : 0);
	struct ibv_sge element = {(uintptr_t)slot->bytes + BUFFER_LENGTH, (uint32_t)length, slot->region->lkey};
	struct ibv_recv_wr request = {.sg_list = &element, .num_sge = 1}, *bad;

	if (length > BUFFER_LENGTH)
		return refuse("too long", 0);
	errno = ibv_post_recv(slot->id->qp, &request, &bad);
	return !errno || refuse("ibv_post_recv", errno);
}

static bool do_send(const struct command *command, struct slot *slot)
{
	uint32_t length = (uint32_t)argument(command, 2), seed = (uint32_t)argument(command, 3);
	struct ibv_sge element = {(uintptr_t)slot->bytes, length, slot->region->lkey};
	struct ibv_send_wr request = {.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

	if (length > BUFFER_LENGTH)
		return refuse("too long", 0);
	for (uint32_t i = 0; i < length; i++)
		slot->bytes[i] = pattern(seed, i);
	if (slot->ah) {
		request.wr.ud.ah = slot->ah;
		request.wr.ud.remote_qpn = slot->peer_qpn;
		request.wr.ud.remote_qkey = slot->peer_qkey;
	}
	errno = ibv_post_send(slot->id->qp, &request, &bad);
	return !errno || refuse("ibv_post_send", errno);
}

static uint64_t now_milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool await_completion(const struct command *command, struct ibv_cq *queue)
{
	uint64_t end = now_milliseconds() + option(command, "wait", WAIT);
	struct ibv_wc completion = {0};
	int found;

	while (!(found = ibv_poll_cq(queue, 1, &completion)) && now_milliseconds() < end)
		usleep(500);
	answer(" status=%d byte_len=%u", found == 1 ? (int)completion.status : -1, completion.byte_len);
	return found == 1 && completion.status == IBV_WC_SUCCESS;
}

static bool do_sent(const struct command *command, struct slot *slot)
{
	await_completion(command, slot->id->send_cq);
	return true;
}

static bool do_received(const struct command *command, struct slot *slot)
{
	uint32_t length = (uint32_t)argument(command, 2), seed = (uint32_t)argument(command, 3);
	const unsigned char *bytes = slot->bytes + BUFFER_LENGTH + (slot->id->qp_type == IBV_QPT_UD ? GRH_LENGTH : 0);
	bool is_good = await_completion(command, slot->id->recv_cq) && length <= BUFFER_LENGTH - GRH_LENGTH;

	for (uint32_t i = 0; is_good && i < length; i++)
		is_good = bytes[i] == pattern(seed, i);
	answer(" check=%s", is_good ? "good" : "bad");
	return true;
}

/* ---- Many connections at once ---- */

static int count_events(struct rdma_cm_event *event, unsigned *counts)
{
	int kind = (int)event->event;

	counts[kind]++;
	return kind;
}

static void end_child(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

/* Connects or accepts on one channel until `count` connections have ended, or the time is over. */
static void converse(struct rdma_event_channel *channel, uint64_t count, uint64_t end, unsigned *counts)
{
	struct rdma_conn_param wanted = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
					 .rnr_retry_count = 7};
	struct rdma_cm_event *event;
	uint64_t over = 0, now;

	while (over < count && (now = now_milliseconds()) < end && (event = next_event(channel, (int)(end - now)))) {
		struct rdma_cm_id *id = event->id;
		int kind = count_events(event, counts);
		rdma_ack_cm_event(event);
		switch (kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (make_queue_pair(id) || rdma_accept(id, &wanted))
				end_child(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (id->context)
				rdma_disconnect(id);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(id);
			over++;
			if (!id->context)
				end_child(id);
			break;
		case RDMA_CM_EVENT_REJECTED:
		case RDMA_CM_EVENT_UNREACHABLE:
		case RDMA_CM_EVENT_CONNECT_ERROR:
			over++;
		}
	}
}

static bool do_serve(const struct command *command, struct slot *slot)
{
	unsigned counts[RDMA_CM_EVENT_TIMEWAIT_EXIT + 1] = {0};

	converse(slot->channel, argument(command, 2), now_milliseconds() + option(command, "wait", 30000), counts);
	answer(" requests=%u established=%u disconnected=%u rejected=%u unreachable=%u",
	       counts[RDMA_CM_EVENT_CONNECT_REQUEST], counts[RDMA_CM_EVENT_ESTABLISHED],
	       counts[RDMA_CM_EVENT_DISCONNECTED], counts[RDMA_CM_EVENT_REJECTED], counts[RDMA_CM_EVENT_UNREACHABLE]);
	return true;
}

static bool start_storm(struct slot *first, struct addrinfo *address, uint64_t count)
{
	struct rdma_conn_param wanted = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
					 .rnr_retry_count = 7};

	for (uint64_t i = 0; i < count; i++) {
		struct slot *slot = &first[i];

		slot->channel = rdma_create_event_channel();
		if (!slot->channel || rdma_create_id(slot->channel, &slot->id, slot, RDMA_PS_TCP))
			return refuse("rdma_create_id", errno);
		if (!resolve(slot, address->ai_addr))
			return false;
		if (make_queue_pair(slot->id))
			return refuse("rdma_create_qp", errno);
	}
	for (uint64_t i = 0; i < count; i++)
		if (rdma_migrate_id(first[i].id, first->channel) || rdma_connect(first[i].id, &wanted))
			return refuse("rdma_connect", errno);
	return true;
}

static bool do_storm(const struct command *command, struct slot *slot)
{
	uint64_t count = argument(command, 4), room = (uint64_t)(slots + SLOTS - slot);
	unsigned counts[RDMA_CM_EVENT_TIMEWAIT_EXIT + 1] = {0};
	struct addrinfo *address = count <= room ? address_of(command) : NULL;

	if (!address)
		return refuse("SLOT ADDRESS PORT COUNT", 0);
	bool has_started = start_storm(slot, address, count);
	freeaddrinfo(address);
	if (has_started) {
		converse(slot->channel, count, now_milliseconds() + option(command, "wait", 30000), counts);
		answer(" established=%u disconnected=%u rejected=%u unreachable=%u", counts[RDMA_CM_EVENT_ESTABLISHED],
		       counts[RDMA_CM_EVENT_DISCONNECTED], counts[RDMA_CM_EVENT_REJECTED],
		       counts[RDMA_CM_EVENT_UNREACHABLE]);
	}
	for (uint64_t i = count; i-- > 0;)
		end_slot(&slot[i]);
	return has_started;
}

/* ---- Processes ---- */

static bool do_spawn(const struct command *command)
{
	pid_t child;

	if (command->count != 2 || child_count == MOST_CHILDREN)
		return refuse("spawn PORT", 0);
	child = fork();
	if (child < 0)
		return refuse("fork", errno);
	if (!child) {
		for (int descriptor = 3; descriptor < MOST_DESCRIPTORS; descriptor++)
			close(descriptor);
		execl("/proc/self/exe", "connections", "-p", command->words[1], (char *)NULL);
		_exit(127);
	}
	children[child_count++] = child;
	answer(" pid=%d", child);
	return true;
}

static bool do_kill(const struct command *command)
{
	for (int i = 0; i < child_count; i++) {
		if (children[i] != (pid_t)argument(command, 1))
			continue;
		kill(children[i], SIGKILL);
		waitpid(children[i], NULL, 0);
		children[i] = children[--child_count];
		return true;
	}
	return refuse("no such child", 0);
}

static bool do_sleep(const struct command *command)
{
	usleep((useconds_t)argument(command, 1) * 1000);
	return true;
}

/* ---- Commands ---- */

enum need { NOTHING, SLOT, ID, QUEUE_PAIR };

static const struct {
	const char *name;
	bool (*run)(const struct command *command, struct slot *slot);
	enum need needs;
} slot_commands[] = {
	{"create", do_create, SLOT},         {"listen", do_listen, ID},   {"resolve", do_resolve, ID},
	{"qp", do_qp, ID},                   {"connect", do_connect, ID}, {"take", do_take, ID},
	{"accept", do_accept, ID},           {"reject", do_reject, ID},   {"event", do_event, ID},
	{"establish", do_establish, ID},
	{"disconnect", do_disconnect, ID},   {"destroy", do_destroy, ID}, {"query", do_query, QUEUE_PAIR},
	{"recv", do_recv, QUEUE_PAIR},       {"send", do_send, QUEUE_PAIR}, {"sent", do_sent, QUEUE_PAIR},
	{"received", do_received, QUEUE_PAIR}, {"storm", do_storm, SLOT}, {"serve", do_serve, ID},
};

static const struct {
	const char *name;
	bool (*run)(const struct command *command);
} other_commands[] = {{"spawn", do_spawn}, {"kill", do_kill}, {"sleep", do_sleep}};

void run_command(const struct command *command)
{
	const char *name = command->count ? command->words[0] : "";

	for (size_t i = 0; i < sizeof(other_commands) / sizeof(*other_commands); i++) {
		if (!strcmp(name, other_commands[i].name)) {
			other_commands[i].run(command);
			return;
		}
	}
	for (size_t i = 0; i < sizeof(slot_commands) / sizeof(*slot_commands); i++) {
		if (strcmp(name, slot_commands[i].name))
			continue;
		struct slot *slot = slot_of(command, 1);
		if (!slot)
			return;
		if (slot_commands[i].needs >= ID && !slot->id)
			refuse("the slot is empty", 0);
		else if (slot_commands[i].needs == QUEUE_PAIR && !(slot->id->qp && slot->region))
			refuse("no queue pair", 0);
		else
			slot_commands[i].run(command, slot);
		return;
	}
	refuse("unknown command", 0);
}

/* The device is the one that an address has, so the flags of peer.c for it do not matter. */
void start_verbs(const char *device_name, int index, unsigned mtu)
{
	struct rlimit most = {MOST_DESCRIPTORS, MOST_DESCRIPTORS};

	(void)device_name;
	(void)index;
	(void)mtu;
	if (setrlimit(RLIMIT_NOFILE, &most))
		die("setrlimit");
}

void answer_greeting(void)
{
	answer(" version=1");
}

void stop_verbs(void)
{
	for (int i = 0; i < child_count; i++)
		kill(children[i], SIGKILL);
	for (int i = 0; i < SLOTS; i++)
		end_slot(&slots[i]);
}
