// A peer of a socket that speaks verbs itself and violates the protocol. The socket ends that connection with an error,
// or ignores the message; other connections go on.
#include "common.h"

#include <endian.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <time.h>

enum { OP_DATA = 0, OP_CREDIT = 4, OP_MAPPING = 6, OP_CONTROL = 7 };
enum { DISCONNECT = 0, KEEPALIVE = 1, SHUTDOWN = 2 };
// Sizes of the socket under test.
// The socket lends both halves of its ring at once.
enum { CREDITS = 50, RING = 16384, HALF = RING / 2, MAPPINGS = 2 };
// The memory of the hostile end: two entries of a table, and what it lends.
enum { TABLE = 32 + 8 * 24, LENT = 65536 };

// An entry of a table, in the byte order of this machine.
struct entry {
    uint64_t address;
    uint32_t key, length;
};

// The private data, in network byte order.
struct __attribute__((packed)) connection {
    uint8_t version, flags;
    uint16_t credits;
    uint8_t reserved[3], mappings;
    struct { uint64_t address; uint32_t key, length; } table, buffer;
};

struct hostile {
    struct rdma_cm_id *id;
    struct ibv_mr *mr;
    char *memory;
    // What the socket has told.
    struct entry table, ring;
};

static struct connection honest(struct hostile *peer) {
    uint64_t at = (uintptr_t)peer->memory;
    struct connection data = {.version = 1, .flags = 2, .credits = htobe16(64), .mappings = 2};
    data.table.address = htobe64(at);
    data.table.key = htobe32(peer->mr->rkey);
    data.table.length = htobe32(2);
    data.buffer.address = htobe64(at + TABLE);
    data.buffer.key = htobe32(peer->mr->rkey);
    data.buffer.length = htobe32(LENT);
    return data;
}

static void create_end(struct hostile *peer) {
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 64, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK(rdma_create_qp(peer->id, NULL, &attributes) == 0);
    peer->memory = calloc(1, TABLE + LENT);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    peer->mr = ibv_reg_mr(peer->id->pd, peer->memory, TABLE + LENT, access);
    CHECK(peer->memory && peer->mr);
    struct ibv_recv_wr request = {0}, *bad;
    for (int i = 0; i < 256; i++)
        CHECK(ibv_post_recv(peer->id->qp, &request, &bad) == 0);
}

static void destroy_end(struct hostile *peer) {
    rdma_disconnect(peer->id);
    rdma_destroy_qp(peer->id);
    CHECK(ibv_dereg_mr(peer->mr) == 0);
    CHECK(rdma_destroy_id(peer->id) == 0);
    free(peer->memory);
}

// Sends a request with this private data. Returns whether it was accepted.
static int request_with(struct hostile *peer, const void *data, uint8_t length) {
    struct rdma_conn_param parameters = {
        .private_data = data, .private_data_len = length, .retry_count = 7, .rnr_retry_count = 7, .flow_control = 1,
        // For a READ and an atomic.
        .initiator_depth = 1,
    };
    if (rdma_connect(peer->id, &parameters) != 0)
        return 0;
    const struct connection *told = peer->id->event->param.conn.private_data;
    CHECK(peer->id->event->param.conn.private_data_len >= sizeof *told && told->version == 1);
    peer->table = (struct entry){be64toh(told->table.address), be32toh(told->table.key), be32toh(told->table.length)};
    peer->ring = (struct entry){be64toh(told->buffer.address), be32toh(told->buffer.key), be32toh(told->buffer.length)};
    CHECK(be16toh(told->credits) == CREDITS && peer->table.length == 2 && peer->ring.length == HALF);
    return 1;
}

static void prepare(struct hostile *peer) {
    memset(peer, 0, sizeof *peer);
    CHECK(rdma_create_id(NULL, &peer->id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(peer->id, NULL, at(PORT), PATIENCE) == 0 && rdma_resolve_route(peer->id, PATIENCE) == 0);
    create_end(peer);
}

// Posts a request, and returns its completion's status.
static enum ibv_wc_status post(struct hostile *peer, struct ibv_send_wr *request) {
    struct ibv_send_wr *bad;
    struct ibv_wc completion;
    CHECK(ibv_post_send(peer->id->qp, request, &bad) == 0);
    time_t begin = time(NULL);
    for (;;) {
        int count = ibv_poll_cq(peer->id->send_cq, 1, &completion);
        CHECK(count >= 0 && time(NULL) - begin < PATIENCE / 1000);
        if (count == 1)
            return completion.status;
    }
}

// Writes bytes of the hostile end's memory and states a message.
static enum ibv_wc_status write_to(struct hostile *peer, uint64_t at, uint32_t key, uint32_t length, uint32_t message) {
    struct ibv_sge part = {(uintptr_t)peer->memory + TABLE, length, peer->mr->lkey};
    struct ibv_send_wr request = {
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(message), .sg_list = &part, .num_sge = length > 0,
        .wr.rdma = {at, key},
    };
    return post(peer, &request);
}

static uint32_t message(uint32_t operation, uint32_t value) { return operation << 29 | value; }

static void tell(struct hostile *peer, uint32_t operation, uint32_t value) {
    CHECK(write_to(peer, 0, 0, 0, message(operation, value)) == IBV_WC_SUCCESS);
}

// Writes data to the ring as a socket does, from its offset on.
static enum ibv_wc_status send_data(struct hostile *peer, uint32_t offset, uint32_t length) {
    return write_to(peer, peer->ring.address + offset, peer->ring.key, length, message(OP_DATA, length));
}

// Writes an entry of the socket's table of buffers, and states it.
static void lend(struct hostile *peer, int index, struct entry entry, uint32_t length, uint32_t limit) {
    memcpy(peer->memory + TABLE, &entry, sizeof entry);
    uint64_t to = peer->table.address + index * sizeof entry;
    CHECK(write_to(peer, to, peer->table.key, length, message(OP_CREDIT, limit)) == IBV_WC_SUCCESS);
}

// Two honest sockets, whose connection goes on, and the listener of the sockets under test.
static int bystanders[2], listener;

static void set_up(void) {
    int value = CREDITS, bytes = RING / 2, mappings = MAPPINGS, plain = listening(PORT + 1);
    connect_pair(plain, PORT + 1, bystanders);
    CHECK(rclose(plain) == 0);
    listener = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_RQSIZE, &value, sizeof value) == 0);
    CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &mappings, sizeof mappings) == 0);
    CHECK(rsetsockopt(listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
    CHECK(rbind(listener, at(PORT), sizeof address) == 0 && rlisten(listener, 64) == 0);
}

static void check_bystanders(void) {
    int sent = rand(), received = 0;
    for (int end = 0; end < 2; end++) {
        CHECK(rwrite(bystanders[end], &sent, sizeof sent) == sizeof sent);
        CHECK(receive_all(bystanders[!end], (char *)&received, sizeof received) == sizeof received && received == sent);
    }
}

// Connects a hostile peer with valid private data; returns the socket that it gets, which does not wait.
static int connect_hostile(struct hostile *peer) {
    prepare(peer);
    struct connection data = honest(peer);
    CHECK(request_with(peer, &data, sizeof data));
    int victim = raccept(listener, NULL, NULL);
    CHECK(victim >= 0 && rfcntl(victim, F_SETFL, O_NONBLOCK) == 0);
    return victim;
}

// The connection has ended with an error, before or after the data that was received.
static void check_ended(int victim, int expected, ssize_t data) {
    char bytes[RING];
    short found = events(victim, POLLIN, PATIENCE);
    CHECK(found & (POLLERR | POLLIN));
    ssize_t count, received = 0;
    while ((count = rread(victim, bytes, sizeof bytes)) > 0)
        received += count;
    CHECK(count == -1 && errno == ECONNRESET && received == data);
    CHECK(events(victim, POLLIN | POLLOUT, 0) & POLLERR);
    CHECK(rwrite(victim, "x", 1) == -1 && errno == ECONNRESET);
    int error = 0;
    socklen_t length = sizeof error;
    CHECK(rgetsockopt(victim, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == expected);
}

// The connection still works both ways: it has received nothing, and `offset` is where the ring goes on.
static void check_works(struct hostile *peer, int victim, uint32_t offset) {
    char byte = 0;
    CHECK(rread(victim, &byte, 1) == -1 && errno == EAGAIN);
    peer->memory[TABLE] = 'w';
    CHECK(send_data(peer, offset, 1) == IBV_WC_SUCCESS && events(victim, POLLIN, PATIENCE) == POLLIN);
    CHECK(rread(victim, &byte, 1) == 1 && byte == 'w');
    CHECK(rwrite(victim, "v", 1) == 1);
}

static void finish(struct hostile *peer, int victim) {
    check_bystanders();
    // The socket responds to the end of the connection when it is closed.
    CHECK(rclose(victim) == 0);
    destroy_end(peer);
}

// Requests with invalid private data are rejected; valid ones with useless sizes are harmless.
void hostile_requests(void) {
    set_up();
    struct hostile peer;
    for (int kind = 0; kind < 7; kind++) {
        prepare(&peer);
        struct connection data = honest(&peer);
        uint8_t length = sizeof data;
        switch (kind) {
        case 0: length = 0; break;
        // Zeros follow: the table has no entries.
        case 1: length = 20; break;
        case 2: data.version = 2; break;
        case 3: data.table.length = 0; break;
        // The table, or the buffer, ends behind the end of memory.
        case 4: data.table.address = htobe64(UINT64_MAX - 16); break;
        case 5: data.table.address = htobe64(UINT64_MAX - 64), data.mappings = 255; break;
        case 6: data.buffer.address = htobe64(UINT64_MAX - 16), data.buffer.length = UINT32_MAX; break;
        }
        CHECK(!request_with(&peer, &data, length));
        destroy_end(&peer);
        check_bystanders();
    }
    for (int kind = 0; kind < 5; kind++) {
        prepare(&peer);
        struct connection data = honest(&peer);
        switch (kind) {
        case 0: data.buffer.length = 0; break;
        case 1: data.credits = 0; break;
        case 2: data.buffer.length = UINT32_MAX, data.buffer.key = 0x55555555; break;
        case 3: data.table.length = UINT32_MAX, data.table.address = htobe64(1 << 20), data.mappings = 255; break;
        case 4: data.flags = 0xff; break;
        }
        CHECK(request_with(&peer, &data, sizeof data));
        int victim = raccept(listener, NULL, NULL);
        CHECK(victim >= 0 && rfcntl(victim, F_SETFL, O_NONBLOCK) == 0);
        char bytes[4096] = {0};
        switch (kind) {
        case 0:
        case 1:
            // It has nowhere to write, or no credits.
            CHECK(rwrite(victim, bytes, sizeof bytes) == -1 && errno == EAGAIN);
            CHECK(events(victim, POLLOUT, 10) == 0);
            break;
        case 2:
            // The write fails at the peer, which the socket learns later.
            CHECK(rwrite(victim, bytes, sizeof bytes) == sizeof bytes);
            check_ended(victim, EIO, 0);
            break;
        case 3:
            // Half of the ring is read, so that the socket writes an entry of the table.
            CHECK(send_data(&peer, 0, HALF) == IBV_WC_SUCCESS && events(victim, POLLIN, PATIENCE) == POLLIN);
            for (ssize_t left = HALF, count; left > 0; left -= count)
                CHECK((count = rread(victim, bytes, sizeof bytes)) > 0);
            check_ended(victim, EIO, 0);
            break;
        case 4: check_works(&peer, victim, 0); break;
        }
        finish(&peer, victim);
    }
    printf("rejected or harmless");
}

// Replies with invalid private data end the attempt to connect.
void hostile_replies(void) {
    set_up();
    struct rdma_cm_id *listening;
    CHECK(rdma_create_id(NULL, &listening, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listening, at(PORT + 2)) == 0 && rdma_listen(listening, 4) == 0);
    for (int kind = 0; kind < 4; kind++) {
        int victim = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
        CHECK(rconnect(victim, at(PORT + 2), sizeof address) == -1 && errno == EINPROGRESS);
        struct rdma_cm_id *child;
        struct ibv_qp_init_attr attributes = {
            .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        };
        CHECK(rdma_get_request(listening, &child) == 0 && rdma_create_qp(child, NULL, &attributes) == 0);
        struct connection data = {.version = 1, .flags = 2, .table = {htobe64(4096), 1, htobe32(2)}};
        struct rdma_conn_param parameters = {
            .private_data = &data, .private_data_len = sizeof data, .rnr_retry_count = 7,
        };
        switch (kind) {
        case 0: parameters.private_data_len = 0; break;
        case 1: data.version = 3; break;
        case 2: data.table.length = 0; break;
        case 3: data.buffer.address = UINT64_MAX, data.buffer.length = UINT32_MAX; break;
        }
        rdma_accept(child, &parameters);
        CHECK(events(victim, POLLOUT, PATIENCE) & POLLERR);
        socklen_t length = sizeof error;
        CHECK(rgetsockopt(victim, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ENOTSUP);
        CHECK(rwrite(victim, "x", 1) == -1 && errno == ENOTCONN);
        CHECK(rclose(victim) == 0);
        rdma_destroy_ep(child);
        check_bystanders();
    }
    printf("refused");
}

// Messages that end the connection: they are sent, and followed by data that must not be received.
static void send_violation(struct hostile *peer, int kind) {
    static const uint32_t reserved[] = {1u << 29, 2u << 29 | 7, 3u << 29, 5u << 29 | 1, 7u << 29 | 3, UINT32_MAX};
    struct entry own = {(uintptr_t)peer->memory + TABLE, peer->mr->rkey, 100};
    struct ibv_sge part = {(uintptr_t)peer->memory, 16, peer->mr->lkey};
    struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND};
    switch (kind) {
    case 0 ... 5: write_to(peer, 0, 0, 0, reserved[kind]); break;
    // More bytes than written, less, and more than lent, at once and in parts.
    case 6: write_to(peer, 0, 0, 0, message(OP_DATA, 0x1fffffff)); break;
    case 7: write_to(peer, peer->ring.address, peer->ring.key, 8, message(OP_DATA, 4)); break;
    case 8: write_to(peer, peer->ring.address, peer->ring.key, RING, message(OP_DATA, RING)); break;
    case 9:
        for (int i = 0; i < 3; i++)
            send_data(peer, 0, HALF);
        break;
    // Entries of another size, beyond the end of memory, and one more than there are.
    case 10: write_to(peer, peer->table.address, peer->table.key, 8, message(OP_CREDIT, 64)); break;
    case 11: lend(peer, 1, (struct entry){UINT64_MAX - 10, 1, 100}, sizeof own, 64); break;
    case 12:
        lend(peer, 1, own, sizeof own, 64);
        lend(peer, 0, own, sizeof own, 64);
        break;
    // Memory that was not lent: behind the ring, behind the table, with another key, at no address.
    case 13: write_to(peer, peer->ring.address + RING - 4, peer->ring.key, 8, message(OP_DATA, 8)); break;
    case 14:
        write_to(peer, peer->table.address + 32 + MAPPINGS * 24, peer->table.key, 24, message(OP_MAPPING, 2));
        break;
    case 15: write_to(peer, peer->ring.address, peer->ring.key + 1, 8, message(OP_DATA, 8)); break;
    case 16: write_to(peer, 0, peer->ring.key, 8, message(OP_DATA, 8)); break;
    // A SEND with data, for which a receive has no memory.
    case 17: post(peer, &request); break;
    // A READ and an atomic of memory that cannot be read: the queue pair fails, and receives have no reason.
    case 18:
        request.opcode = IBV_WR_RDMA_READ;
        request.wr.rdma.remote_addr = peer->ring.address;
        request.wr.rdma.rkey = peer->ring.key;
        post(peer, &request);
        break;
    case 19:
        part.length = 8;
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.wr.atomic.remote_addr = peer->table.address;
        request.wr.atomic.rkey = peer->table.key;
        post(peer, &request);
        break;
    }
}

enum { VIOLATIONS = 20 };

static void *read_until_error(void *socket) {
    char bytes[64];
    ssize_t count;
    while ((count = rread(*(int *)socket, bytes, sizeof bytes)) > 0)
        ;
    return (void *)(intptr_t)(count == 0 ? 0 : errno);
}

void hostile_messages(void) {
    set_up();
    for (int kind = 0; kind < VIOLATIONS; kind++) {
        struct hostile peer;
        int victim = connect_hostile(&peer), is_partial = kind == 9;
        CHECK(send_data(&peer, 0, 3) == IBV_WC_SUCCESS && events(victim, POLLIN, PATIENCE) == POLLIN);
        send_violation(&peer, kind);
        check_bystanders();
        // What came before is received.
        check_ended(victim, kind < 18 ? EPROTO : EIO, is_partial ? 3 + HALF : 3);
        // It is no use to send more, unless the queue pair has failed.
        if (kind < 13) {
            char byte;
            send_data(&peer, 0, 3);
            CHECK(rread(victim, &byte, 1) == -1 && errno == ECONNRESET);
        }
        finish(&peer, victim);
    }
    // A thread that waits for data is woken, whichever way the connection fails.
    static const int kinds[] = {0, 6, 13, 17, 18};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct hostile peer;
        int victim = connect_hostile(&peer);
        pthread_t reader;
        void *error;
        CHECK(rfcntl(victim, F_SETFL, 0) == 0 && pthread_create(&reader, NULL, read_until_error, &victim) == 0);
        usleep(20000);
        send_violation(&peer, kinds[i]);
        CHECK(pthread_join(reader, &error) == 0 && (intptr_t)error == ECONNRESET);
        finish(&peer, victim);
    }
    printf("%d ended", VIOLATIONS);
}

// Returns the resident memory of this process in KiB.
static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

// Messages that are allowed, but useless, many of them: the socket ignores them and takes no memory.
void hostile_floods(void) {
    enum { MANY = 20000 };
    set_up();
    struct hostile peer;
    int victim = connect_hostile(&peer);
    long before = resident();
    for (int i = 0; i < MANY; i++) {
        switch (i % 5) {
        case 0: tell(&peer, OP_CONTROL, KEEPALIVE); break;
        case 1: tell(&peer, OP_CREDIT, 64 + i); break;
        case 2: tell(&peer, OP_MAPPING, i); break;
        // No data, which is no end.
        case 3: tell(&peer, OP_DATA, 0); break;
        // The upper bits of the sum are meaningless.
        case 4: tell(&peer, OP_CREDIT, 0x1fff0040); break;
        }
        if (i % 16 == 0) {
            char byte;
            CHECK(rread(victim, &byte, 1) == -1 && errno == EAGAIN);
        }
    }
    CHECK(resident() - before < 4096);
    check_works(&peer, victim, 0);
    finish(&peer, victim);

    // Entries of the table of mapped ranges that are none: nothing is written there.
    victim = connect_hostile(&peer);
    static const struct { uint64_t offset; struct entry entry; } mappings[] = {
        {0, {UINT64_MAX - 3, 1, 100}}, {UINT64_MAX, {4096, 1, UINT32_MAX}}, {1, {0, 0, 0}}, {INT64_MAX, {1, 1, 1}},
    };
    for (int i = 0; i < 4; i++) {
        memcpy(peer.memory + TABLE, &mappings[i], sizeof mappings[i]);
        uint64_t to = peer.table.address + 32 + i % MAPPINGS * 24;
        CHECK(write_to(&peer, to, peer.table.key, 24, message(OP_MAPPING, 0xffff)) == IBV_WC_SUCCESS);
        CHECK(events(victim, POLLIN, 0) == 0 && riowrite(victim, "abc", 3, 5000, 0) <= 0);
    }
    check_works(&peer, victim, 0);
    finish(&peer, victim);

    // More messages than credits: as many as there are receives arrive, and one more violates the protocol.
    victim = connect_hostile(&peer);
    for (int i = 0; i < CREDITS; i++)
        CHECK(send_data(&peer, i, 1) == IBV_WC_SUCCESS);
    CHECK(events(victim, POLLIN, PATIENCE) == POLLIN);
    CHECK(send_data(&peer, CREDITS, 1) == IBV_WC_SUCCESS);
    check_ended(victim, EPROTO, CREDITS);
    finish(&peer, victim);

    // A peer that grants credits, but no memory, and does not receive: the socket sends what was lent at first.
    victim = connect_hostile(&peer);
    char bytes[4096] = {0};
    long sent = 0, count;
    for (int i = 0; i < 1000; i++) {
        tell(&peer, OP_CREDIT, 1000 * i);
        while ((count = rwrite(victim, bytes, sizeof bytes)) > 0)
            sent += count;
        CHECK(errno == EAGAIN && sent <= LENT);
    }
    finish(&peer, victim);

    // Ends of the data, again and again, then of the connection.
    victim = connect_hostile(&peer);
    for (int i = 0; i < 500; i++) {
        tell(&peer, OP_CONTROL, SHUTDOWN);
        CHECK(events(victim, POLLIN, PATIENCE) == POLLIN && rread(victim, bytes, 1) == 0);
    }
    CHECK(rwrite(victim, "v", 1) == 1);
    tell(&peer, OP_CONTROL, DISCONNECT);
    CHECK(events(victim, POLLIN, PATIENCE) & POLLHUP && rread(victim, bytes, 1) == 0);
    write_to(&peer, 0, 0, 0, message(OP_CONTROL, DISCONNECT));
    CHECK(rwrite(victim, "v", 1) == -1 && errno == ECONNRESET);
    finish(&peer, victim);
    printf("harmless");
}
