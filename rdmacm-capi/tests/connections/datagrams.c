// Queue pairs for datagrams.
#include "common.h"

// Datagram queue pairs by address.
void datagrams(void) {
    struct rdma_cm_id *present = listening(RDMA_PS_TCP, 7999);
    struct rdma_cm_id *client = routed(RDMA_PS_UDP, 7174);
    struct rdma_conn_param wanted = parameters("who");
    CHECK(rdma_connect(client, &wanted) == 0);
    take(client);
    destroy(client);
    struct rdma_cm_id *listener = listening(RDMA_PS_UDP, 7174);
    for (int accepts = 0; accepts < 2; accepts++) {
        client = routed(RDMA_PS_UDP, 7174);
        create_qp(client, IBV_QPT_UD);
        wanted = parameters("who");
        CHECK(rdma_connect(client, &wanted) == 0);
        struct rdma_cm_event *event = next();
        struct rdma_cm_id *child = event->id;
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.ud.private_data_len == 180);
        CHECK(strcmp(event->param.ud.private_data, "who") == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
        create_qp(child, IBV_QPT_UD);
        wanted = parameters("here");
        CHECK((accepts ? rdma_accept(child, &wanted) : rdma_reject(child, NULL, 0)) == 0);
        event = next();
        printf("%s %d; ", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status);
        if (accepts) {
            struct rdma_ud_param *told = &event->param.ud;
            CHECK(told->qp_num == child->qp->qp_num && told->qkey == RDMA_UDP_QKEY);
            CHECK(told->private_data_len == 136 && strcmp(told->private_data, "here") == 0);
            CHECK(told->ah_attr.is_global && told->ah_attr.grh.hop_limit == 64);
            static char memory[128];
            struct ibv_mr *region = rdma_reg_msgs(client, memory, 64), *other = rdma_reg_msgs(child, memory + 64, 64);
            struct ibv_ah *ah = ibv_create_ah(client->pd, &told->ah_attr);
            struct ibv_wc completion;
            CHECK(region && other && ah);
            strcpy(memory, "datagram");
            CHECK(rdma_post_recv(child, NULL, memory + 64, 64, other) == 0);
            CHECK(rdma_post_ud_send(client, NULL, memory, 9, region, 0, ah, told->qp_num) == 0);
            CHECK(rdma_get_recv_comp(child, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
            printf("%s; ", memory + 104);
            ibv_destroy_ah(ah);
            rdma_dereg_mr(region);
            rdma_dereg_mr(other);
        }
        CHECK(rdma_ack_cm_event(event) == 0);
        destroy(client);
        destroy(child);
    }
    destroy(listener);
    destroy(present);
}

void multicast(void) {
    struct sockaddr_in group = {.sin_family = AF_INET};
    inet_pton(AF_INET, "239.47.1.1", &group.sin_addr);
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    TRY(rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
    CHECK(rdma_bind_addr(id, at(&server_address, 0)) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 1000) == 0);
    take(id);
    create_qp(id, IBV_QPT_UD);
    struct rdma_cm_join_mc_attr_ex attributes = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS};
    TRY(rdma_join_multicast_ex(id, &attributes, NULL));
    attributes.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS | RDMA_CM_JOIN_MC_ATTR_RESERVED;
    TRY(rdma_join_multicast_ex(id, &attributes, NULL));
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &group) == 0);
    struct rdma_cm_event *event = next();
    struct rdma_ud_param *told = &event->param.ud;
    printf("%s %d %x %x; ", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status, told->qp_num, told->qkey);
    CHECK(told->private_data == &group);
    static char memory[128];
    struct ibv_mr *region = rdma_reg_msgs(id, memory, sizeof memory);
    struct ibv_ah *ah = ibv_create_ah(id->pd, &told->ah_attr);
    struct ibv_wc completion;
    CHECK(region && ah);
    strcpy(memory, "to all");
    CHECK(rdma_post_recv(id, NULL, memory + 64, 64, region) == 0);
    CHECK(rdma_post_ud_send(id, NULL, memory, 7, region, 0, ah, told->qp_num) == 0);
    CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
    printf("%s; ", memory + 104);
    CHECK(rdma_ack_cm_event(event) == 0);
    ibv_destroy_ah(ah);
    rdma_dereg_mr(region);
    TRY(rdma_leave_multicast(id, (struct sockaddr *)&group));
    TRY(rdma_leave_multicast(id, (struct sockaddr *)&group));
    destroy(id);
}

// The program destroys the queue pair itself; `id->qp` is stale then.
void stale_queue_pair(void) {
    struct sockaddr_in group = {.sin_family = AF_INET};
    inet_pton(AF_INET, "239.47.1.2", &group.sin_addr);
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    CHECK(rdma_bind_addr(id, at(&server_address, 0)) == 0);
    create_qp(id, IBV_QPT_UD);
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
    take(id);
    TRY(ibv_destroy_qp(id->qp));
    // Blocks of all sizes take the freed memory, with other contents.
    for (size_t size = 16; size < 8192; size += 16)
        for (int i = 0; i < 8; i++) {
            char *block = malloc(size);
            CHECK(block);
            memset(block, 0x5a, size);
            CHECK(*(volatile char *)block == 0x5a);
        }
    TRY(rdma_destroy_id(id));
}

// The acceptance of a datagram request acknowledges its event: the listener can be destroyed before the child.
void synchronous_datagrams(void) {
    struct rdma_cm_id *listener, *child, *client;
    struct rdma_conn_param wanted = parameters("who");
    CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_UDP) == 0);
    CHECK(rdma_bind_addr(listener, at(&server_address, 7485)) == 0 && rdma_listen(listener, 0) == 0);
    client = routed(RDMA_PS_UDP, 7485);
    create_qp(client, IBV_QPT_UD);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(rdma_get_request(listener, &child) == 0 && child->event);
    create_qp(child, IBV_QPT_UD);
    CHECK(rdma_accept(child, &wanted) == 0);
    printf("%s; ", child->event ? "an event" : "none");
    take(client);
    destroy(listener);
    destroy(child);
    destroy(client);
}
