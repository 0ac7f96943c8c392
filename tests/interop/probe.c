/*
 * probe: prints, a line each, whether the guest's verbs device supports a feature: `NAME yes` or `NAME no (ERROR)`. The
 * columns of docs/verbs.md rest on it where no case of the exchange shows a feature.
 *
 *   probe GID_INDEX
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define BYTES 65536

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static unsigned char *bytes;
static int gid_index;

/* Prints the result of a call that returns an error number, or -1 with errno. */
static void say(const char *name, int error)
{
	if (!error)
		printf("%s yes\n", name);
	else
		printf("%s no (%s)\n", name, strerror(error < 0 ? errno : error));
}

/* Prints the result of a call that creates an object, and returns the object. */
static void *made(const char *name, void *object)
{
	say(name, object ? 0 : -1);
	return object;
}

static void need(const void *object, const char *what)
{
	if (!object) {
		perror(what);
		exit(1);
	}
}

static void probe_device(void)
{
	struct ibv_device_attr_ex attributes;
	struct ibv_values_ex clock = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	struct ibv_port_attr port;

	memset(&attributes, 0, sizeof(attributes));
	say("query_device", ibv_query_device_ex(context, NULL, &attributes));
	say("query_port", ibv_query_port(context, 1, &port));
	printf("flush_global %s\n", attributes.device_cap_flags_ex >> 38 & 1 ? "yes" : "no");
	printf("flush_persistent %s\n", attributes.device_cap_flags_ex >> 39 & 1 ? "yes" : "no");
	printf("atomic_write %s\n", attributes.device_cap_flags_ex >> 40 & 1 ? "yes" : "no");
	printf("several_vectors %s\n", context->num_comp_vectors > 1 ? "yes" : "no");
	say("query_clock", ibv_query_rt_values_ex(context, &clock));
}

static void probe_regions(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *region = made("reg_mr", ibv_reg_mr(domain, bytes, BYTES, ALL));
	struct ibv_alloc_dm_attr device_memory = {.length = 4096};
	struct ibv_parent_domain_init_attr parent = {.pd = domain};
	struct ibv_td_init_attr thread = {0};
	struct ibv_sge element = {(uint64_t)(uintptr_t)bytes, BYTES, 0};

	need(region, "ibv_reg_mr");
	made("reg_mr_iova", ibv_reg_mr_iova(domain, bytes, BYTES, 0x10000, ALL));
	made("reg_mr_zero_based", ibv_reg_mr(domain, bytes, BYTES, ALL | IBV_ACCESS_ZERO_BASED));
	made("reg_mr_on_demand", ibv_reg_mr(domain, bytes, BYTES, ALL | IBV_ACCESS_ON_DEMAND));
	made("reg_mr_implicit", ibv_reg_mr(domain, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND));
	made("reg_mr_persistent", ibv_reg_mr(domain, bytes, BYTES, ALL | IBV_ACCESS_FLUSH_PERSISTENT));
	made("reg_dmabuf_mr", ibv_reg_dmabuf_mr(domain, 0, 4096, 0, open("/dev/null", O_RDWR), ALL));
	element.lkey = region->lkey;
	say("advise_mr", ibv_advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &element, 1));
	made("alloc_dm", ibv_alloc_dm(context, &device_memory));
	made("alloc_td", ibv_alloc_td(context, &thread));
	made("alloc_parent_domain", ibv_alloc_parent_domain(context, &parent));
	say("rereg_mr_access", ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	say("rereg_mr_domain", ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	say("rereg_mr_memory", ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes, 4096, 0));
	made("alloc_mw_1", ibv_alloc_mw(domain, IBV_MW_TYPE_1));
	made("alloc_mw_2", ibv_alloc_mw(domain, IBV_MW_TYPE_2));
}

static void probe_completion_queues(void)
{
	struct ibv_cq_init_attr_ex plain = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_init_attr_ex timed = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
	struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {4, 100}};

	made("create_cq_vector_1", ibv_create_cq(context, 16, NULL, NULL, 1));
	say("resize_cq", ibv_resize_cq(queue, 128));
	made("lending_poll", ibv_create_cq_ex(context, &plain));
	made("completion_timestamps", ibv_create_cq_ex(context, &timed));
	say("moderation", ibv_modify_cq(queue, &moderation));
}

static struct ibv_srq *probe_shared_queues(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq_attr limit = {.srq_limit = 4}, size = {.max_wr = 64}, found;
	struct ibv_xrcd_init_attr xrc = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_srq *shared = made("create_srq", ibv_create_srq(domain, &init));

	need(shared, "ibv_create_srq");
	say("modify_srq_limit", ibv_modify_srq(shared, &limit, IBV_SRQ_LIMIT));
	say("modify_srq_size", ibv_modify_srq(shared, &size, IBV_SRQ_MAX_WR));
	say("query_srq", ibv_query_srq(shared, &found));
	made("open_xrcd", ibv_open_xrcd(context, &xrc));
	return shared;
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type, struct ibv_srq *shared)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue,
		.recv_cq = queue,
		.srq = shared,
		.qp_type = type,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};

	return ibv_create_qp(domain, &init);
}

/* Goes from RESET to RTS, connected to itself, then to the rarely used states. */
static void probe_states(struct ibv_qp *pair)
{
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
	struct ibv_qp_init_attr init;

	say("rc_init", ibv_modify_qp(pair, &attributes,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attributes.qp_state = IBV_QPS_RTR;
	attributes.path_mtu = IBV_MTU_1024;
	attributes.dest_qp_num = pair->qp_num;
	attributes.max_dest_rd_atomic = 1;
	attributes.ah_attr.is_global = 1;
	attributes.ah_attr.port_num = 1;
	attributes.ah_attr.grh.sgid_index = (uint8_t)gid_index;
	ibv_query_gid(context, 1, gid_index, &attributes.ah_attr.grh.dgid);
	say("rc_rtr", ibv_modify_qp(pair, &attributes,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attributes.qp_state = IBV_QPS_RTS;
	say("rc_rts", ibv_modify_qp(pair, &attributes,
				    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	attributes.qp_state = IBV_QPS_SQD;
	say("rc_sqd", ibv_modify_qp(pair, &attributes, IBV_QP_STATE));
	usleep(100000);
	attributes.qp_state = IBV_QPS_RTS;
	say("rc_sqd_rts", ibv_modify_qp(pair, &attributes, IBV_QP_STATE));
	say("query_qp", ibv_query_qp(pair, &attributes, IBV_QP_STATE, &init));
	attributes.qp_state = IBV_QPS_ERR;
	say("rc_error", ibv_modify_qp(pair, &attributes, IBV_QP_STATE));
	attributes.qp_state = IBV_QPS_RESET;
	say("rc_reset", ibv_modify_qp(pair, &attributes, IBV_QP_STATE));
	say("destroy_qp", ibv_destroy_qp(pair));
}

int main(int count, char **words)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_srq *shared;
	struct ibv_qp *pair;

	gid_index = count > 1 ? atoi(words[1]) : 1;
	need(devices && devices[0] ? devices : NULL, "devices");
	context = ibv_open_device(devices[0]);
	need(context, "ibv_open_device");
	domain = ibv_alloc_pd(context);
	queue = ibv_create_cq(context, 64, NULL, NULL, 0);
	bytes = aligned_alloc(4096, BYTES);
	need(domain && queue && bytes ? bytes : NULL, "resources");
	memset(bytes, 0, BYTES);
	probe_device();
	probe_regions();
	probe_completion_queues();
	shared = probe_shared_queues();
	pair = made("create_qp_rc", queue_pair(IBV_QPT_RC, NULL));
	need(pair, "ibv_create_qp");
	made("create_qp_uc", queue_pair(IBV_QPT_UC, NULL));
	made("create_qp_ud", queue_pair(IBV_QPT_UD, NULL));
	made("create_qp_rc_srq", queue_pair(IBV_QPT_RC, shared));
	made("create_qp_uc_srq", queue_pair(IBV_QPT_UC, shared));
	made("create_qp_ud_srq", queue_pair(IBV_QPT_UD, shared));
	made("create_qp_xrc", queue_pair(IBV_QPT_XRC_SEND, NULL));
	probe_states(pair);
	return 0;
}
