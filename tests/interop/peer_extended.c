/*
 * Memory windows, and operations that not every kernel's device has. FLUSH and ATOMIC WRITE can be posted only through
 * the extended interface of libibverbs; the queue pair takes ordinary requests as well.
 */
#include "peer.h"

#include <errno.h>
#include <string.h>

#define MAX_COUNT 64
/* From the kernel's ib_uverbs_device_cap_flags; libibverbs has no names for them. */
#define DEVICE_FLUSH_GLOBAL (1ull << 38)
#define DEVICE_ATOMIC_WRITE (1ull << 40)

static bool has_flush, has_atomic_write;
static struct ibv_mw *window;

void find_extensions(void)
{
	struct ibv_device_attr_ex attributes;

	memset(&attributes, 0, sizeof(attributes));
	if (ibv_query_device_ex(context, NULL, &attributes))
		die("ibv_query_device_ex");
	has_flush = attributes.device_cap_flags_ex & DEVICE_FLUSH_GLOBAL;
	has_atomic_write = attributes.device_cap_flags_ex & DEVICE_ATOMIC_WRITE;
}

void answer_extensions(void)
{
	answer(" flush=%d atomic_write=%d", has_flush, has_atomic_write);
}

unsigned extended_rights(void)
{
	return has_flush ? IBV_ACCESS_FLUSH_GLOBAL : 0;
}

struct ibv_qp *create_queue_pair(const struct ibv_qp_init_attr *init)
{
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = init->send_cq,
		.recv_cq = init->recv_cq,
		.cap = init->cap,
		.qp_type = init->qp_type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = domain,
	};

	if (has_flush)
		extended.send_ops_flags |= IBV_QP_EX_WITH_FLUSH;
	if (has_atomic_write)
		extended.send_ops_flags |= IBV_QP_EX_WITH_ATOMIC_WRITE;
	if (!extended.send_ops_flags)
		extended.comp_mask = IBV_QP_INIT_ATTR_PD;
	return ibv_create_qp_ex(context, &extended);
}

/* ---- Windows ---- */

void destroy_window(void)
{
	if (window && ibv_dealloc_mw(window))
		die("ibv_dealloc_mw");
	window = NULL;
}

/* Posts the bind of a type 2 window, with the key after its own. */
static int post_bind(const struct ibv_mw_bind_info *info, uint32_t *rkey)
{
	struct ibv_send_wr request = {.wr_id = next_wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr *bad;

	request.bind_mw.mw = window;
	request.bind_mw.rkey = *rkey = ibv_inc_rkey(window->rkey);
	request.bind_mw.bind_info = *info;
	return ibv_post_send(queue_pair, &request, &bad);
}

/* The same for type 1: the library chooses the key. */
static int bind_by_verb(const struct ibv_mw_bind_info *info, uint32_t *rkey)
{
	struct ibv_mw_bind bind = {.wr_id = next_wr_id, .send_flags = IBV_SEND_SIGNALED, .bind_info = *info};
	int error = ibv_bind_mw(queue_pair, window, &bind);

	*rkey = window->rkey;
	return error;
}

bool do_bind(const struct command *command)
{
	uint64_t offset = argument(command, 1), length = argument(command, 2);
	struct ibv_mr *region = open_region(offset, length);
	bool first_type = option(command, "type", 2) == 1;
	struct ibv_mw_bind_info info = {.mr = region, .length = length, .mw_access_flags = access_option(command)};
	uint32_t rkey;
	int error;

	if (!region)
		return refuse("out of bounds", 0);
	info.addr = (uint64_t)(uintptr_t)region->addr + offset;
	destroy_window();
	window = ibv_alloc_mw(domain, first_type ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	if (!window)
		return refuse("ibv_alloc_mw", errno);
	error = first_type ? bind_by_verb(&info, &rkey) : post_bind(&info, &rkey);
	if (error)
		return refuse("the window cannot be bound", error);
	answer_posted(command, next_wr_id++, 1);
	answer(" addr=%lu rkey=%u", info.mw_access_flags & IBV_ACCESS_ZERO_BASED ? 0 : info.addr, rkey);
	return true;
}

/* ---- FLUSH and ATOMIC WRITE ---- */

static uint8_t flush_type(const struct command *command)
{
	const char *text = option_text(command, "type", "global");

	if (!strcmp(text, "persistent"))
		return IBV_FLUSH_PERSISTENT;
	return strcmp(text, "both") ? IBV_FLUSH_GLOBAL : IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT;
}

static bool do_extended(const struct command *command, bool flush)
{
	struct ibv_qp_ex *queue = ibv_qp_to_qp_ex(queue_pair);
	uint64_t addr = argument(command, 1), last = argument(command, 3);
	uint32_t rkey = (uint32_t)argument(command, 2);
	uint64_t count = option(command, "count", 1), first = next_wr_id;
	bool whole = !strcmp(option_text(command, "level", "range"), "region");
	int error;

	if (!(flush ? has_flush : has_atomic_write))
		return refuse("the device does not have it", 0);
	if (command->count != 4 || !count || count > MAX_COUNT)
		return refuse("wrong arguments", 0);
	ibv_wr_start(queue);
	for (uint64_t i = 0; i < count; i++) {
		queue->wr_id = next_wr_id++;
		queue->wr_flags = IBV_SEND_SIGNALED;
		if (flush)
			ibv_wr_flush(queue, rkey, addr, last, flush_type(command), whole ? IBV_FLUSH_MR : IBV_FLUSH_RANGE);
		else
			ibv_wr_atomic_write(queue, rkey, addr, &last);
	}
	error = ibv_wr_complete(queue);
	if (error)
		return refuse("ibv_wr_complete", error);
	answer_posted(command, first, count);
	return true;
}

bool do_flush(const struct command *command)
{
	return do_extended(command, true);
}

bool do_atomic_write(const struct command *command)
{
	return do_extended(command, false);
}
