// Synchronous identifiers, and objects that belong to identifiers.
#include "common.h"

static void *serve(void *argument) {
    struct rdma_cm_id *listener = argument, *id;
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(strcmp(id->event->param.conn.private_data, "sync") == 0);
    struct rdma_conn_param wanted = parameters("reply");
    CHECK(rdma_accept(id, &wanted) == 0);
    CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    return id;
}

// Synchronous identifiers.
void synchronous(void) {
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct rdma_cm_id *listener, *client, *present = listening(RDMA_PS_UDP, 7999);
    pthread_t thread;
    void *child;
    CHECK(rdma_getaddrinfo(addresses[0], "7475", &hints, &info) == 0);
    CHECK(rdma_create_ep(&listener, info, NULL, &attributes) == 0);
    rdma_freeaddrinfo(info);
    hints.ai_flags = 0;
    CHECK(rdma_getaddrinfo(addresses[0], "7475", &hints, &info) == 0);
    attributes = qp_attributes(IBV_QPT_RC);
    CHECK(rdma_create_ep(&client, info, NULL, &attributes) == 0);
    CHECK(client->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct rdma_conn_param wanted = parameters("sync");
    TRY(rdma_connect(client, &wanted));
    printf("%d; ", client->event->status);
    rdma_destroy_ep(client);

    CHECK(rdma_listen(listener, 0) == 0);
    CHECK(pthread_create(&thread, NULL, serve, listener) == 0);
    attributes = qp_attributes(IBV_QPT_RC);
    CHECK(rdma_create_ep(&client, info, NULL, &attributes) == 0);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(pthread_join(thread, &child) == 0);
    printf("%s %s; ", rdma_event_str(client->event->event), (char *)client->event->param.conn.private_data);
    exchange(client, child);
    // Migration moves an identifier to a channel of the program, and back.
    TRY(rdma_migrate_id(client, NULL));
    TRY(rdma_migrate_id(client, channel));
    CHECK(rdma_disconnect(client) == 0);
    CHECK(rdma_disconnect(child) == 0);
    take(client);
    rdma_destroy_ep(client);
    rdma_destroy_ep(child);
    rdma_destroy_ep(listener);
    rdma_freeaddrinfo(info);
    destroy(present);
}

// Queue pairs with shared receive queues, on one device.
void shared_receives(void) {
    struct rdma_cm_id *listener = listening(RDMA_PS_TCP, 7482), *client = routed(RDMA_PS_TCP, 7482), *child;
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct rdma_conn_param wanted = parameters(NULL);
    CHECK(client->srq == NULL);
    TRY(rdma_create_srq(client, NULL, &srq));
    TRY(rdma_create_srq(client, NULL, &srq));
    create_qp(client, IBV_QPT_RC);
    CHECK(client->srq && client->qp->srq == client->srq);
    CHECK(rdma_connect(client, &wanted) == 0);
    struct rdma_cm_event *event = next();
    CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.srq == 1);
    child = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    struct ibv_srq_init_attr_ex extended = {.attr = {.max_wr = 4, .max_sge = 1}};
    TRY(rdma_create_srq_ex(child, &extended));
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
    TRY(rdma_create_srq_ex(child, &extended));
    struct ibv_qp_init_attr_ex attributes = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {8, 8, 1, 1, 0}};
    TRY(rdma_create_qp_ex(child, &attributes));
    TRY(rdma_create_qp_ex(child, &attributes));
    // Without parameters the maxima are taken.
    CHECK(rdma_accept(child, NULL) == 0);
    take(NULL);
    take(NULL);
    exchange(client, child);
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_id *id = i ? child : client;
        struct ibv_srq *before = id->srq;
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        CHECK(before && !id->srq && !id->qp && !id->send_cq && !id->recv_cq_channel);
        destroy(id);
    }
    destroy(listener);
}

static void print_address(const struct sockaddr *address, socklen_t length) {
    char text[64] = "-";
    const struct sockaddr_in *four = (const void *)address;
    if (address && address->sa_family == AF_INET)
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof text);
    printf(" %s/%u:%u", text, length, address ? ntohs(four->sin_port) : 0);
}

static void look_up(const char *node, const char *service, int flags, int family, int type, int space) {
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_family = family, .ai_qp_type = type, .ai_port_space = space};
    struct rdma_addrinfo *info = NULL;
    int result = rdma_getaddrinfo(node, service, &hints, &info);
    printf("%d", result);
    if (result == 0) {
        printf(" %d %d %x", info->ai_family, info->ai_qp_type, info->ai_port_space);
        print_address(info->ai_src_addr, info->ai_src_len);
        print_address(info->ai_dst_addr, info->ai_dst_len);
        CHECK(info->ai_flags == (flags & RAI_PASSIVE) && !info->ai_route && !info->ai_connect && !info->ai_next);
        rdma_freeaddrinfo(info);
    }
    printf("; ");
}

// Names to addresses, and the list of devices.
void lookups(void) {
    look_up(NULL, "7471", RAI_PASSIVE, 0, 0, 0);
    look_up("127.0.0.1", "7471", RAI_PASSIVE, 0, 0, RDMA_PS_TCP);
    look_up("127.0.0.1", "7471", RAI_NUMERICHOST | RAI_NOROUTE, 0, 0, 0);
    look_up("127.0.0.1", "7471", 0, 0, 0, RDMA_PS_UDP);
    look_up("127.0.0.1", "7471", 0, 0, IBV_QPT_RC, RDMA_PS_IB);
    look_up("not an address", "7471", RAI_NUMERICHOST, 0, 0, 0);
    look_up("127.0.0.1", "7471", 0, AF_INET6, 0, 0);
    look_up("127.0.0.1", "7471", 0, 0, IBV_QPT_UD, RDMA_PS_TCP);
    look_up("127.0.0.1", "no such service", 0, 0, 0, 0);
    look_up(NULL, NULL, 0, 0, 0, RDMA_PS_TCP);
    struct rdma_addrinfo *info;
    TRY(rdma_getaddrinfo(NULL, NULL, NULL, &info));
    int count = 0, found = 0;
    struct ibv_context **list = rdma_get_devices(&count);
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(list && count > 0 && !list[count]);
    struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    // The address of `localhost` names no device until a peer is known.
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&loopback) == 0 && !id->verbs && !id->pd);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, PATIENCE) == 0);
    for (int i = 0; i < count; i++)
        found += list[i] == id->verbs;
    printf("%d", found);
    rdma_free_devices(list);
    destroy(id);
}

// An endpoint that cannot be made leaves nothing: its queue pair would keep the protection domain.
void failed_endpoint(void) {
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct rdma_cm_id *id;
    char data[57] = "too long";
    CHECK(rdma_getaddrinfo(addresses[0], "7486", &hints, &info) == 0);
    CHECK(rdma_create_ep(&id, info, NULL, NULL) == 0);
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    CHECK(pd);
    rdma_destroy_ep(id);
    info->ai_connect = data;
    info->ai_connect_len = sizeof data;
    TRY(rdma_create_ep(&id, info, pd, &attributes));
    info->ai_connect_len = 0;
    CHECK(ibv_dealloc_pd(pd) == 0);
    rdma_freeaddrinfo(info);
}

// The objects that an identifier has, and those that the program gives.
void objects(void) {
    struct rdma_cm_id *id = routed(RDMA_PS_TCP, 7487);
    struct ibv_pd *own = id->pd, *given = ibv_alloc_pd(id->verbs);
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    CHECK(given && own != given);
    // An identifier with a domain keeps it for its queue; a queue pair's domain is the identifier's.
    TRY(rdma_create_srq(id, given, &srq));
    CHECK(id->pd == own && id->srq->pd == given);
    rdma_destroy_srq(id);
    TRY(rdma_create_qp(id, given, &attributes));
    CHECK(id->pd == given && id->qp->pd == given);
    rdma_destroy_qp(id);
    // The bit without a domain is no domain.
    struct ibv_qp_init_attr_ex extended = {.qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}, .comp_mask = IBV_QP_INIT_ATTR_PD};
    TRY(rdma_create_qp_ex(id, &extended));
    CHECK(extended.pd == given && id->qp->pd == given);
    rdma_destroy_qp(id);
    struct ibv_srq_init_attr_ex shared = {
        .attr = {.max_wr = 4, .max_sge = 1}, .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
    };
    TRY(rdma_create_srq_ex(id, &shared));
    CHECK(shared.pd == given && id->srq->pd == given);
    rdma_destroy_srq(id);

    // Completion queues in the identifier are used, and destroyed with its queue pair.
    struct ibv_cq *one = ibv_create_cq(id->verbs, 16, id, NULL, 0), *other = ibv_create_cq(id->verbs, 16, id, NULL, 0);
    CHECK(one && other);
    id->send_cq = id->recv_cq = one;
    attributes = qp_attributes(IBV_QPT_RC);
    attributes.recv_cq = other;
    TRY(rdma_create_qp(id, NULL, &attributes));
    CHECK(id->send_cq == one && id->recv_cq == one);
    attributes.recv_cq = NULL;
    TRY(rdma_create_qp(id, NULL, &attributes));
    CHECK(id->qp->send_cq == one && id->qp->recv_cq == one && attributes.send_cq == one && !id->send_cq_channel);
    rdma_destroy_qp(id);
    CHECK(!id->send_cq && !id->recv_cq && ibv_destroy_cq(other) == 0);
    CHECK(ibv_dealloc_pd(given) == 0);
    destroy(id);
}

// The children of an endpoint get its protection domain, which the program may set later.
void endpoint_domains(void) {
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct rdma_cm_id *bound = create_id(RDMA_PS_TCP), *listener, *child;
    CHECK(rdma_bind_addr(bound, at(&server_address, 0)) == 0);
    struct ibv_pd *domains[] = {ibv_alloc_pd(bound->verbs), ibv_alloc_pd(bound->verbs)};
    CHECK(domains[0] && domains[1]);
    CHECK(rdma_getaddrinfo(addresses[0], "7488", &hints, &info) == 0);
    CHECK(rdma_create_ep(&listener, info, domains[0], &attributes) == 0);
    rdma_freeaddrinfo(info);
    CHECK(rdma_listen(listener, 2) == 0);
    printf("%s; ", listener->pd == domains[0] ? "its domain" : "another domain");
    struct rdma_conn_param wanted = parameters(NULL);
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_id *client = routed(RDMA_PS_TCP, 7488);
        create_qp(client, IBV_QPT_RC);
        CHECK(rdma_connect(client, &wanted) == 0);
        listener->pd = domains[i];
        CHECK(rdma_get_request(listener, &child) == 0);
        printf("%s; ", child->qp->pd == domains[i] && child->pd == domains[i] ? "its domain" : "another domain");
        rdma_destroy_ep(child);
        take(client);
        destroy(client);
    }
    rdma_destroy_ep(listener);
    CHECK(ibv_dealloc_pd(domains[0]) == 0 && ibv_dealloc_pd(domains[1]) == 0);
    destroy(bound);
}

static void *serve_and_end(void *argument) {
    struct rdma_cm_id *id = serve(argument);
    CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_ep(id);
    return NULL;
}

// Calls that end a connection again return, though no event follows.
void repeated_ends(void) {
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attributes = qp_attributes(IBV_QPT_RC);
    struct rdma_cm_id *listener, *client;
    struct rdma_conn_param wanted = parameters("sync");
    pthread_t thread;
    CHECK(rdma_getaddrinfo(addresses[0], "7491", &hints, &info) == 0);
    CHECK(rdma_create_ep(&listener, info, NULL, &attributes) == 0 && rdma_listen(listener, 0) == 0);
    rdma_freeaddrinfo(info);
    CHECK(pthread_create(&thread, NULL, serve_and_end, listener) == 0);
    hints.ai_flags = 0;
    CHECK(rdma_getaddrinfo(addresses[0], "7491", &hints, &info) == 0);
    attributes = qp_attributes(IBV_QPT_RC);
    CHECK(rdma_create_ep(&client, info, NULL, &attributes) == 0);
    rdma_freeaddrinfo(info);
    CHECK(rdma_connect(client, &wanted) == 0);
    CHECK(rdma_disconnect(client) == 0 && client->event->event == RDMA_CM_EVENT_DISCONNECTED);
    // The end of the time wait may be read by one of them.
    for (int i = 0; i < 3; i++)
        TRY(rdma_disconnect(client));
    CHECK(pthread_join(thread, NULL) == 0);
    rdma_destroy_ep(client);
    rdma_destroy_ep(listener);
}
