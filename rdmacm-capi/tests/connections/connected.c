// Connected queue pairs.
#include "common.h"

// The whole life of a connection, on one channel.
void connection(void) {
    uint8_t ack_timeout = 21;
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7471), *client = routed(RDMA_PS_TCP, 7471), *child;
    CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) == 0);
    create_qp(client, IBV_QPT_RC);
    struct rdma_conn_param wanted = parameters("request");
    CHECK(rdma_connect(client, &wanted) == 0);

    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id == listener && event->id != listener);
    struct rdma_conn_param *told = &event->param.conn;
    printf("request %s %u %u %u %u %u; ", (char *)told->private_data, told->private_data_len,
           told->responder_resources, told->initiator_depth, told->retry_count, told->rnr_retry_count);
    child = event->id;
    CHECK(told->qp_num == client->qp->qp_num && child->context == &channel && child->verbs == listener->verbs);
    CHECK(rdma_get_src_port(child) == htons(7471) && rdma_get_dst_port(child) == rdma_get_src_port(client));
    CHECK(memcmp(rdma_get_peer_addr(child), rdma_get_local_addr(client), sizeof(struct sockaddr_in)) == 0);
    CHECK(rdma_ack_cm_event(event) == 0);
    ack_timeout = 19;
    CHECK(rdma_set_option(child, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) == 0);
    create_qp(child, IBV_QPT_RC);
    wanted = parameters("reply");
    CHECK(rdma_accept(child, &wanted) == 0);

    // Both ends are set up, in any order.
    for (int ends = 0; ends < 2; ends++) {
        event = next();
        CHECK(event->event == RDMA_CM_EVENT_ESTABLISHED && event->status == 0);
        if (event->id == client) {
            told = &event->param.conn;
            CHECK(told->private_data_len == 196 && strcmp(told->private_data, "reply") == 0);
            CHECK(told->qp_num == child->qp->qp_num && client->qp->state == IBV_QPS_RTS);
            printf("reply %u %u; ", told->responder_resources, told->initiator_depth);
        } else {
            CHECK(event->id == child && event->param.conn.private_data_len == 0);
        }
        CHECK(rdma_ack_cm_event(event) == 0);
    }
    printf("timeouts %d %d; ", timeout_of(client->qp), timeout_of(child->qp));
    exchange(client, child);
    exchange(child, client);
    TRY(rdma_notify(child, IBV_EVENT_COMM_EST));
    CHECK(!readable(channel->fd, 0));

    CHECK(rdma_disconnect(client) == 0);
    take(child);
    CHECK(child->qp->state == IBV_QPS_RTS && client->qp->state == IBV_QPS_ERR);
    CHECK(rdma_disconnect(child) == 0);
    for (int left = 3; left > 0; left--)
        take(NULL);
    TRY(rdma_disconnect(client));
    destroy(client);
    destroy(child);
    destroy(listener);
}

// Requests that are not accepted. A request to an address gets a response only while a process uses the address.
void rejection(void) {
    struct rdma_cm_id *present = listening(RDMA_PS_UDP, 7999);
    struct rdma_cm_id *client = routed(RDMA_PS_TCP, 7472);
    struct rdma_conn_param wanted = parameters(NULL);
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_connect(client, &wanted) == 0);
    take(client);
    CHECK(client->qp->state == IBV_QPS_ERR);
    TRY(rdma_connect(client, &wanted));
    TRY(rdma_disconnect(client));
    destroy(client);

    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7472);
    for (int with_child = 0; with_child < 2; with_child++) {
        client = routed(RDMA_PS_TCP, 7472);
        create_qp(client, IBV_QPT_RC);
        CHECK(rdma_connect(client, &wanted) == 0);
        struct rdma_cm_event *event = next();
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
        if (with_child)
            CHECK(rdma_reject(event->id, "no", 3) == 0);
        CHECK(rdma_destroy_id(event->id) == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
        event = next();
        CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->id == client);
        printf("%d \"%s\" %u; ", event->status, (char *)event->param.conn.private_data,
               event->param.conn.private_data_len);
        CHECK(rdma_ack_cm_event(event) == 0);
        destroy(client);
    }

    // A request that the program has not read is rejected with its listener.
    client = routed(RDMA_PS_TCP, 7472);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(readable(channel->fd, PATIENCE));
    destroy(listener);
    take(client);
    destroy(client);
    destroy(present);
}

// The program moves its own queue pairs.
void external(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7473), *client = routed(RDMA_PS_TCP, 7473), *ids[2];
    struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
    struct ibv_cq *cq = ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct ibv_qp *qps[2];
    attributes.send_cq = attributes.recv_cq = cq;
    struct ibv_ece ece = {.vendor_id = 0x15b3, .options = 7};
    TRY(rdma_set_local_ece(client, &ece));
    for (int i = 0; i < 2; i++)
        CHECK((qps[i] = ibv_create_qp(pd, &attributes)));
    struct rdma_conn_param wanted = parameters(NULL);
    wanted.qp_num = qps[0]->qp_num;
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.qp_num == qps[0]->qp_num);
    ids[0] = client, ids[1] = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    ece.options = 0;
    TRY(rdma_get_remote_ece(ids[1], &ece));
    printf("%x %u; ", ece.vendor_id, ece.options);
    for (int i = 1; i >= 0; i--) {
        for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
            struct ibv_qp_attr to = {.qp_state = state};
            int mask;
            CHECK(rdma_init_qp_attr(ids[i], &to, &mask) == 0);
            CHECK(ibv_modify_qp(qps[i], &to, mask) == 0);
            if (i == 1)
                printf("%x ", mask);
        }
        if (i == 1) {
            wanted.qp_num = qps[1]->qp_num;
            CHECK(rdma_accept(ids[1], &wanted) == 0);
            take(client);
        }
    }
    CHECK(rdma_establish(client) == 0);
    take(ids[1]);
    // The active end gets no event.
    CHECK(!readable(channel->fd, 100));
    CHECK(rdma_disconnect(ids[1]) == 0);
    take(client);
    destroy(client);
    destroy(ids[1]);
    destroy(listener);
}

// A reply moves the queue pair when the program reads its event, and not before.
void reply_waits(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7483), *client = routed(RDMA_PS_TCP, 7483), *child;
    struct rdma_event_channel *other = rdma_create_event_channel(), *first = channel;
    struct rdma_conn_param wanted = parameters(NULL);
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_migrate_id(client, other) == 0);
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    child = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    create_qp(child, IBV_QPT_RC);
    CHECK(rdma_accept(child, &wanted) == 0);
    CHECK(readable(other->fd, PATIENCE));
    CHECK(ibv_query_qp(client->qp, &attributes, IBV_QP_STATE, &init) == 0);
    printf("%s ", attributes.qp_state == IBV_QPS_INIT ? "INIT" : "moved");
    // The peer is not told before.
    CHECK(!readable(channel->fd, 0));
    channel = other;
    take(client);
    CHECK(ibv_query_qp(client->qp, &attributes, IBV_QP_STATE, &init) == 0);
    CHECK(attributes.qp_state == IBV_QPS_RTS && client->qp->state == IBV_QPS_RTS);
    channel = first;
    take(child);
    exchange(client, child);
    destroy(client);
    destroy(child);
    destroy(listener);
    rdma_destroy_event_channel(other);
}

// Parameters that only the space of TCP requires or limits.
void other_spaces(void) {
    struct rdma_cm_id *present = listening(RDMA_PS_TCP, 7999);
    static const enum rdma_port_space spaces[] = {RDMA_PS_TCP, RDMA_PS_IB, RDMA_PS_UDP};
    struct rdma_conn_param wanted = parameters(NULL);
    wanted.responder_resources = wanted.initiator_depth = 254;
    for (int i = 0; i < 3; i++) {
        for (int given = 0; given < 2; given++) {
            struct rdma_cm_id *client = routed(spaces[i], 7489);
            if (rdma_connect(client, given ? &wanted : NULL) == 0)
                take(client);
            else
                printf("%s; ", error_name(errno));
            destroy(client);
        }
    }
    destroy(present);
}

// The queue pair of a request whose reply cannot be sent is not left ready to send.
void refused_reply(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7490), *client = routed(RDMA_PS_TCP, 7490);
    struct rdma_conn_param wanted = parameters(NULL);
    static const char data[197];
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    create_qp(client, IBV_QPT_RC);
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    struct rdma_cm_id *child = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    create_qp(child, IBV_QPT_RC);
    wanted.private_data = data;
    wanted.private_data_len = sizeof data;
    TRY(rdma_accept(child, &wanted));
    CHECK(ibv_query_qp(child->qp, &attributes, IBV_QP_STATE, &init) == 0);
    printf("%d %d; ", attributes.qp_state == IBV_QPS_ERR, child->qp->state == IBV_QPS_ERR);
    destroy(child);
    take(client);
    destroy(client);
    destroy(listener);
}

// The devices of a listener on all addresses take turns, however many requests one of them has.
void devices_in_turn(void) {
    struct rdma_event_channel *other = rdma_create_event_channel(), *own = channel;
    struct rdma_cm_id *listener, *clients[4];
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct sockaddr_in to[] = {server_address, server_address, client_address, client_address};
    struct rdma_conn_param wanted = parameters(NULL);
    CHECK(rdma_create_id(other, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, at(&any, 7492)) == 0 && rdma_listen(listener, 8) == 0);
    for (int i = 0; i < 4; i++) {
        server_address = to[i];
        clients[i] = routed(RDMA_PS_TCP, 7492);
        create_qp(clients[i], IBV_QPT_RC);
        CHECK(rdma_connect(clients[i], &wanted) == 0);
        // Requests arrive in this order, and wait.
        usleep(200000);
    }
    channel = other;
    for (int i = 0; i < 4; i++) {
        struct rdma_cm_event *event = next();
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id == listener);
        struct sockaddr_in *local = (void *)rdma_get_local_addr(event->id);
        printf("%s; ", local->sin_addr.s_addr == to[0].sin_addr.s_addr ? "first" : "second");
        CHECK(rdma_destroy_id(event->id) == 0);
        CHECK(rdma_ack_cm_event(event) == 0);
    }
    channel = own;
    for (int i = 0; i < 4; i++)
        destroy(clients[i]);
    destroy(listener);
    rdma_destroy_event_channel(other);
}

static struct rdma_cm_id *listening_on_all(struct sockaddr *any, int only_own_family) {
    struct rdma_cm_id *listener = create_id(RDMA_PS_TCP);
    if (only_own_family)
        TRY(rdma_set_option(listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only_own_family, sizeof(int)));
    TRY(rdma_bind_addr(listener, any));
    TRY(rdma_listen(listener, 8));
    return listener;
}

// Listeners on all addresses, where all of them are IPv4 addresses. As tgtd: one for each IP version, on one port.
void wildcards(void) {
    struct rdma_event_channel *other = rdma_create_event_channel(), *own = channel;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(7499), .sin6_addr = in6addr_any};
    struct sockaddr_in any_four = {.sin_family = AF_INET};
    struct rdma_conn_param wanted = parameters(NULL);
    channel = other;
    struct rdma_cm_id *six = listening_on_all((struct sockaddr *)&any, 1);
    struct rdma_cm_id *four = listening_on_all(at(&any_four, 7499), 0);
    destroy(four);
    channel = own;
    printf("; ");
    for (int takes_four = 0; takes_four < 2; takes_four++) {
        struct rdma_cm_id *client = routed(RDMA_PS_TCP, 7499);
        create_qp(client, IBV_QPT_RC);
        CHECK(rdma_connect(client, &wanted) == 0);
        if (takes_four) {
            channel = other;
            struct rdma_cm_event *event = next();
            CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->listen_id == six);
            CHECK(rdma_get_local_addr(event->id)->sa_family == AF_INET);
            CHECK(rdma_destroy_id(event->id) == 0 && rdma_ack_cm_event(event) == 0);
            channel = own;
        }
        take(client);
        destroy(client);
        channel = other;
        destroy(six);
        six = takes_four ? NULL : listening_on_all((struct sockaddr *)&any, 0);
        channel = own;
    }
    rdma_destroy_event_channel(other);
}
