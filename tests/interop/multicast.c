/*
 * multicast: a member of a multicast group on the kernel's verbs device.
 *
 *   multicast GID_INDEX GROUP TCP_PORT
 *
 * It runs in the guest on libibverbs, attaches an unreliable datagram queue pair of rxe0 to the group (an IPv4 or IPv6
 * address) and listens. When the other end has connected, it waits for a message of 100 bytes to the group with
 * immediate data 0x31, checks it, and sends one of 200 bytes to the group. Byte i of either is 7 * i + length. Exit
 * status 0 on success; a watchdog ends it after 30 seconds.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QKEY = 0x31, HEADER = 40, HEARD = 100, SAID = 200, ROOM = 1024, IMMEDIATE = 0x31 };

static unsigned char buffer[2 * ROOM];

static void must(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static unsigned char pattern(int place, int length)
{
	return (unsigned char)(7 * place + length);
}

/* The group as a GID. The link passes only multicasts of groups that the IP layer has joined. */
static union ibv_gid join(const char *group)
{
	union ibv_gid gid = {0};
	int index = (int)if_nametoindex("eth0");

	if (strchr(group, ':')) {
		struct ipv6_mreq request = {.ipv6mr_interface = (unsigned)index};
		int joined = socket(AF_INET6, SOCK_DGRAM, 0);

		must(inet_pton(AF_INET6, group, &request.ipv6mr_multiaddr) == 1, group);
		must(!setsockopt(joined, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof(request)), "join");
		memcpy(gid.raw, &request.ipv6mr_multiaddr, sizeof(gid.raw));
	} else {
		struct ip_mreqn request = {.imr_ifindex = index};
		int joined = socket(AF_INET, SOCK_DGRAM, 0);

		must(inet_pton(AF_INET, group, &request.imr_multiaddr) == 1, group);
		must(!setsockopt(joined, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof(request)), "join");
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, &request.imr_multiaddr, 4);
	}
	return gid;
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = 1};

	must(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	must(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE), "RTR");
	must(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

static struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc completion;

	while (ibv_poll_cq(cq, 1, &completion) == 0)
		;
	if (completion.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion: %s\n", ibv_wc_status_str(completion.status));
		exit(1);
	}
	return completion;
}

static void check(const struct ibv_wc *completion)
{
	must(completion->opcode == IBV_WC_RECV && completion->wc_flags & IBV_WC_GRH, "a datagram");
	must(completion->wc_flags & IBV_WC_WITH_IMM && ntohl(completion->imm_data) == IMMEDIATE, "immediate");
	must(completion->byte_len == HEADER + HEARD, "length");
	for (int place = 0; place < HEARD; place++)
		must(buffer[HEADER + place] == pattern(place, HEARD), "bytes");
}

int main(int count, char **arguments)
{
	must(count == 4, "usage: multicast GID_INDEX GROUP TCP_PORT");
	alarm(30);
	int number = 0, chosen = 0;
	struct ibv_device **devices = ibv_get_device_list(&number);
	while (chosen < number && strcmp(ibv_get_device_name(devices[chosen]), "rxe0"))
		chosen++;
	must(chosen < number, "rxe0");
	struct ibv_context *context = ibv_open_device(devices[chosen]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr wanted = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &wanted);
	must(mr && qp, "objects");
	to_rts(qp);
	union ibv_gid gid = join(arguments[2]);
	must(!ibv_attach_mcast(qp, &gid, 0), "attach");
	struct ibv_sge into = {.addr = (uintptr_t)buffer, .length = ROOM, .lkey = mr->lkey};
	struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1}, *bad_receive;
	must(!ibv_post_recv(qp, &receive, &bad_receive), "post_recv");

	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[3]))};
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	must(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1), "listen");
	int other_end = accept(listener, NULL, NULL);
	must(other_end >= 0, "accept");
	struct ibv_wc completion = next(cq);
	check(&completion);

	struct ibv_ah_attr way = {
		.is_global = 1, .port_num = 1,
		.grh = {.dgid = gid, .sgid_index = (uint8_t)atoi(arguments[1]), .hop_limit = 1},
	};
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	must(ah != NULL, "create_ah");
	for (int place = 0; place < SAID; place++)
		buffer[ROOM + place] = pattern(place, SAID);
	struct ibv_sge from = {.addr = (uintptr_t)buffer + ROOM, .length = SAID, .lkey = mr->lkey};
	struct ibv_send_wr send = {
		.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = {.ah = ah, .remote_qpn = 0xffffff, .remote_qkey = QKEY},
	}, *bad_send;
	must(!ibv_post_send(qp, &send, &bad_send), "post_send");
	next(cq);
	/* The other end reports when it has received the message. */
	must(read(other_end, buffer, 1) == 1, "heard");
	must(!ibv_detach_mcast(qp, &gid, 0), "detach");
	puts("heard and said");
	return 0;
}
