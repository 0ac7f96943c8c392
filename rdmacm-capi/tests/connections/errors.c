// Calls that fail.
#include "common.h"

// Errors of calls in states that do not allow them.
void errors(void) {
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP), *other;
    struct rdma_conn_param wanted = parameters(NULL);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT};
    struct sockaddr_in foreign = {.sin_family = AF_INET}, unknown = {.sin_family = AF_UNIX};
    int mask, one = 1;
    CHECK(!id->verbs && !id->pd && !id->qp && id->port_num == 0 && id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
    TRY(rdma_create_id(channel, &other, NULL, 0));
    TRY(rdma_connect(id, &wanted));
    TRY(rdma_accept(id, &wanted));
    TRY(rdma_reject(id, NULL, 0));
    TRY(rdma_establish(id));
    TRY(rdma_disconnect(id));
    TRY(rdma_notify(id, IBV_EVENT_COMM_EST));
    TRY(rdma_resolve_route(id, 1000));
    TRY(rdma_init_qp_attr(id, &attributes, &mask));
    printf("; ");
    inet_pton(AF_INET, "203.0.113.7", &foreign.sin_addr);
    TRY(rdma_bind_addr(id, (struct sockaddr *)&foreign));
    inet_pton(AF_INET, "224.0.0.1", &foreign.sin_addr);
    TRY(rdma_bind_addr(id, (struct sockaddr *)&foreign));
    TRY(rdma_bind_addr(id, (struct sockaddr *)&unknown));
    TRY(rdma_bind_addr(id, at(&server_address, 7478)));
    CHECK(id->verbs && id->pd && id->port_num == 1);
    TRY(rdma_bind_addr(id, at(&server_address, 7478)));
    other = create_id(RDMA_PS_TCP);
    TRY(rdma_bind_addr(other, at(&server_address, 7478)));
    TRY(rdma_listen(id, 0));
    TRY(rdma_listen(id, 0));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
    TRY(rdma_resolve_addr(id, NULL, at(&client_address, 1), 1000));
    destroy(other);
    destroy(id);
    printf("; ");
    id = create_id(RDMA_PS_TCP);
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 4));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 1));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, 4));
    TRY(rdma_set_option(id, RDMA_OPTION_ID, 4, &one, 4));
    TRY(rdma_set_option(id, 7, 0, &one, 4));
    // Unbound: all addresses, and a free port.
    TRY(rdma_listen(id, 1));
    CHECK(!id->verbs && rdma_get_src_port(id) != 0 && rdma_get_local_addr(id)->sa_family == AF_INET);
    destroy(id);
    printf("; %s", rdma_event_str(99));
}
