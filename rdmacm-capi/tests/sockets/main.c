// A program that uses sockets over RDMA, both ends, with the system's headers. The argument selects a case; the address
// is the second one. Prints results; each line is checked.
#include "common.h"

// Data in parts, peeking, waiting for all, addresses, and the end of each direction.
static void stream(void) {
    int listener = listening(PORT), ends[2];
    connect_pair(listener, PORT, ends);
    struct sockaddr_in name, peer;
    socklen_t length = sizeof name, peer_length = sizeof peer;
    CHECK(rgetsockname(ends[0], (struct sockaddr *)&name, &length) == 0 && length == sizeof name);
    CHECK(rgetpeername(ends[1], (struct sockaddr *)&peer, &peer_length) == 0);
    CHECK(name.sin_port == peer.sin_port && name.sin_addr.s_addr == peer.sin_addr.s_addr);
    char bytes[16] = {0};
    struct iovec parts[] = {{"ab", 2}, {"", 0}, {"cde", 3}}, to[] = {{bytes, 1}, {bytes + 1, 10}};
    TRY(rwritev(ends[0], parts, 3));
    TRY(rrecv(ends[1], bytes, 3, MSG_PEEK));
    printf("%.3s ", bytes);
    TRY(rreadv(ends[1], to, 2));
    printf("%.5s ", bytes);
    TRY(rrecv(ends[1], bytes, 1, MSG_DONTWAIT));
    TRY(rsendto(ends[0], "x", 1, 0, at(PORT), sizeof address));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    TRY(rsendmsg(ends[1], &message, 0));
    TRY(rrecv(ends[0], bytes, 5, MSG_WAITALL));
    printf("; ");
    TRY(rshutdown(ends[0], SHUT_WR));
    TRY(rwrite(ends[0], "x", 1));
    TRY(rread(ends[1], bytes, 8));
    CHECK(events(ends[1], POLLIN | POLLOUT, 0) == (POLLIN | POLLOUT));
    TRY(rwrite(ends[1], "last", 4));
    TRY(rclose(ends[1]));
    TRY(rread(ends[0], bytes, 8));
    TRY(rread(ends[0], bytes, 8));
    CHECK(events(ends[0], POLLIN, PATIENCE) & POLLHUP);
    TRY(rclose(ends[0]));
    TRY(rclose(listener));
    TRY(rclose(listener));
}


static void *receive_megabytes(void *socket) {
    static char bytes[8 << 20], expected[8 << 20];
    fill(expected, sizeof expected, 1);
    CHECK(receive_all(*(int *)socket, bytes, sizeof bytes) == sizeof bytes);
    CHECK(memcmp(bytes, expected, sizeof bytes) == 0);
    return NULL;
}

// Two threads for each end, of which one sends and the other receives.
static void *send_megabytes(void *socket) {
    char *bytes = malloc(8 << 20);
    fill(bytes, 8 << 20, 1);
    CHECK(rsend(*(int *)socket, bytes, 8 << 20, 0) == 8 << 20);
    free(bytes);
    return NULL;
}

static void threads(void) {
    int listener = listening(PORT), ends[2];
    connect_pair(listener, PORT, ends);
    pthread_t sender, receiver;
    CHECK(pthread_create(&sender, NULL, send_megabytes, &ends[0]) == 0);
    CHECK(pthread_create(&receiver, NULL, receive_megabytes, &ends[1]) == 0);
    // The other direction at the same time.
    pthread_t back;
    CHECK(pthread_create(&back, NULL, send_megabytes, &ends[1]) == 0);
    char *bytes = malloc(8 << 20), *expected = malloc(8 << 20);
    fill(expected, 8 << 20, 1);
    CHECK(receive_all(ends[0], bytes, 8 << 20) == 8 << 20 && memcmp(bytes, expected, 8 << 20) == 0);
    pthread_join(sender, NULL);
    pthread_join(receiver, NULL);
    pthread_join(back, NULL);
    printf("both directions");
}

// Nonblocking connecting, accepting, sending until the buffers are full, and polling.
static void nonblocking(void) {
    int listener = listening(PORT);
    CHECK(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    TRY(raccept(listener, NULL, NULL));
    int client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(rfcntl(client, F_GETFL) == O_NONBLOCK);
    // It may be complete before the call returns.
    CHECK(rconnect(client, at(PORT), sizeof address) == 0 || errno == EINPROGRESS);
    CHECK(events(client, POLLOUT, PATIENCE) == POLLOUT);
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(rgetsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    printf("%d ", error);
    CHECK(events(listener, POLLIN, PATIENCE) == POLLIN);
    int server = raccept(listener, NULL, NULL);
    CHECK(server >= 0 && rfcntl(server, F_GETFL) == O_NONBLOCK);
    char bytes[4096] = {0};
    TRY(rread(server, bytes, 1));
    long sent = 0, received = 0, count;
    while ((count = rwrite(client, bytes, sizeof bytes)) > 0)
        sent += count;
    printf("%s %d ", error_name(errno), sent >= 1 << 16);
    CHECK(events(client, POLLOUT, 0) == 0);
    while (received < sent) {
        CHECK(events(server, POLLIN, PATIENCE) == POLLIN);
        while ((count = rread(server, bytes, sizeof bytes)) > 0)
            received += count;
    }
    CHECK(events(client, POLLOUT, PATIENCE) == POLLOUT);
    printf("%d ", sent == received);
    // A port without a listener.
    int refused = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(rconnect(refused, at(PORT + 1), sizeof address) == -1);
    error = errno;
    // The refusal may come before the call returns.
    CHECK(error == EINPROGRESS || error == ECONNREFUSED);
    CHECK(events(refused, POLLOUT, PATIENCE) == (POLLOUT | POLLERR));
    if (error == EINPROGRESS)
        CHECK(rgetsockopt(refused, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    printf("%s ", error_name(error));
    TRY(rwrite(refused, bytes, 1));
    int blocking = rsocket(AF_INET, SOCK_STREAM, 0);
    TRY(rconnect(blocking, at(PORT + 1), sizeof address));
}

static void *write_later(void *socket) {
    usleep(100000);
    CHECK(rwrite(*(int *)socket, "x", 1) == 1);
    return NULL;
}

// Several sockets and ordinary descriptors at once.
static void polling(void) {
    int listener = listening(PORT), ends[2], others[2];
    connect_pair(listener, PORT, ends);
    CHECK(pipe(others) == 0);
    struct pollfd entries[] = {
        {.fd = ends[1], .events = POLLIN}, {.fd = others[0], .events = POLLIN}, {.fd = -1, .events = POLLIN},
        {.fd = listener, .events = POLLIN},
    };
    TRY(rpoll(entries, 4, 20));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_later, &ends[0]) == 0);
    TRY(rpoll(entries, 4, PATIENCE));
    pthread_join(thread, NULL);
    printf("%d %d ", entries[0].revents, entries[1].revents);
    CHECK(write(others[1], "x", 1) == 1);
    TRY(rpoll(entries, 4, -1));
    fd_set readable, writable;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(ends[1], &readable);
    FD_SET(others[0], &readable);
    FD_SET(listener, &readable);
    FD_SET(ends[0], &writable);
    struct timeval time = {.tv_sec = 5};
    TRY(rselect(FD_SETSIZE, &readable, &writable, NULL, &time));
    printf("%d%d%d%d ", FD_ISSET(ends[1], &readable) != 0, FD_ISSET(others[0], &readable) != 0,
           FD_ISSET(listener, &readable) != 0, FD_ISSET(ends[0], &writable) != 0);
    TRY(rselect(FD_SETSIZE + 1, &readable, NULL, NULL, &time));
}

static void on_signal(int number) { (void)number; }

static void *block(void *socket) {
    char byte;
    return (void *)rread(*(int *)socket, &byte, 1);
}

// Signals and cancellation end a wait, and the socket still works.
static void interruption(void) {
    int listener = listening(PORT), ends[2];
    connect_pair(listener, PORT, ends);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    alarm(1);
    char byte;
    TRY(rread(ends[1], &byte, 1));
    alarm(1);
    struct pollfd entry = {.fd = ends[1], .events = POLLIN};
    TRY(rpoll(&entry, 1, -1));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, block, &ends[1]) == 0);
    usleep(100000);
    CHECK(pthread_cancel(thread) == 0);
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    printf("%s ", result == PTHREAD_CANCELED ? "cancelled" : "returned");
    CHECK(rwrite(ends[0], "y", 1) == 1);
    TRY(rread(ends[1], &byte, 1));
}

// A peer that dies, and one that closes while this end sends.
static void endings(void) {
    int to_parent[2], to_child[2];
    CHECK(pipe(to_parent) == 0 && pipe(to_child) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int listener = listening(PORT);
        CHECK(write(to_parent[1], "x", 1) == 1);
        int socket = raccept(listener, NULL, NULL);
        char byte;
        CHECK(socket >= 0 && rread(socket, &byte, 1) == 1 && rwrite(socket, "z", 1) == 1);
        CHECK(write(to_parent[1], "x", 1) == 1);
        pause();
        _exit(0);
    }
    char byte, bytes[65536] = {0};
    CHECK(read(to_parent[0], &byte, 1) == 1);
    int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(rconnect(socket, at(PORT), sizeof address) == 0 && rwrite(socket, "a", 1) == 1);
    // A write may leave its packet to a thread, which ends with the process.
    CHECK(read(to_parent[0], &byte, 1) == 1 && events(socket, POLLIN, PATIENCE) == POLLIN);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    // What arrived before is there.
    TRY(rread(socket, &byte, 1));
    errno = 0;
    while (rwrite(socket, bytes, sizeof bytes) > 0)
        ;
    printf("%s ", error_name(errno));
    CHECK(events(socket, POLLIN, PATIENCE) & (POLLHUP | POLLERR));
    CHECK(rclose(socket) == 0);
    int listener = listening(PORT + 1), ends[2];
    connect_pair(listener, PORT + 1, ends);
    CHECK(rclose(ends[1]) == 0);
    while (rwrite(ends[0], bytes, sizeof bytes) > 0)
        ;
    printf("%s ", error_name(errno));
    TRY(rread(ends[0], &byte, 1));
}

// Connections one after another and at once, all of which carry data.
static void many(void) {
    struct rlimit limit = {.rlim_cur = 8192, .rlim_max = 8192};
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    enum { AT_ONCE = 50, ROUNDS = 20 };
    int listener = listening(PORT), ends[AT_ONCE][2], descriptors = -1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < AT_ONCE; i++)
            connect_pair(listener, PORT, ends[i]);
        for (int i = 0; i < AT_ONCE; i++) {
            int sent = round * AT_ONCE + i, received = -1;
            CHECK(rwrite(ends[i][i & 1], &sent, sizeof sent) == sizeof sent);
            CHECK(rread(ends[i][!(i & 1)], &received, sizeof received) == sizeof received && received == sent);
        }
        for (int i = 0; i < AT_ONCE; i++)
            CHECK(rclose(ends[i][0]) == 0 && rclose(ends[i][1]) == 0);
        // Nothing is left of them. The devices open a few sockets later.
        int next = dup(0);
        CHECK(close(next) == 0 && (descriptors < 0 || next <= descriptors + AT_ONCE));
        descriptors = descriptors < 0 ? next : descriptors;
    }
    printf("1000");
}

// Ranges that are mapped for the peer.
static void mapping(void) {
    int listener = listening(PORT), ends[2], count = 2;
    CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof count) == 0);
    int client = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(rsetsockopt(client, SOL_RDMA, RDMA_IOMAPSIZE, &count, sizeof count) == 0);
    CHECK(rconnect(client, at(PORT), sizeof address) == 0);
    ends[0] = client;
    ends[1] = raccept(listener, NULL, NULL);
    static char memory[3][100];
    char byte;
    TRY(riomap(ends[1], memory[0], 100, PROT_WRITE, 0, 1000));
    TRY(riomap(ends[1], memory[1], 100, PROT_WRITE, 0, 5000));
    TRY(riomap(ends[1], memory[2], 100, PROT_WRITE, 0, 6000));
    TRY(riomap(ends[1], memory[2], 100, PROT_READ, 0, 6000));
    // The ranges are announced with the next data.
    CHECK(rwrite(ends[1], "x", 1) == 1 && rread(ends[0], &byte, 1) == 1);
    TRY(riowrite(ends[0], "abc", 3, 5097, 0));
    TRY(riowrite(ends[0], "abcd", 4, 1098, 0));
    TRY(riowrite(ends[0], "abc", 3, 3000, 0));
    CHECK(rwrite(ends[0], "y", 1) == 1 && rread(ends[1], &byte, 1) == 1);
    printf("%.3s %.2s ", memory[1] + 97, memory[0] + 98);
    TRY(riounmap(ends[1], memory[0], 99));
    TRY(riounmap(ends[1], memory[0], 100));
    TRY(riomap(ends[1], memory[2], 100, PROT_WRITE, 0, 6000));
}

static void *receive_datagram(void *socket) {
    char bytes[16];
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    ssize_t count = rrecvfrom(*(int *)socket, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &length);
    CHECK(count == 4 && memcmp(bytes, "late", 4) == 0);
    return NULL;
}

static void datagrams(void) {
    int server = rsocket(AF_INET, SOCK_DGRAM, 0), client = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    CHECK(server >= 0 && client >= 0 && rbind(server, at(PORT), sizeof address) == 0);
    char bytes[2048] = {0};
    TRY(rsend(client, "x", 1, 0));
    TRY(rsendto(client, bytes, sizeof bytes, 0, at(PORT), sizeof address));
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    // The first go through the UDP sockets.
    for (int i = 0; i < 20; i++) {
        char text[8];
        int size = snprintf(text, sizeof text, "%d", i);
        CHECK(rsendto(client, text, size, 0, at(PORT), sizeof address) == size);
        length = sizeof from;
        CHECK(rrecvfrom(server, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &length) == size);
        CHECK(memcmp(bytes, text, size) == 0 && length == sizeof from);
        CHECK(rsendto(server, bytes, size, 0, (struct sockaddr *)&from, length) == size);
        CHECK(rrecv(client, bytes, sizeof bytes, 0) == size && memcmp(bytes, text, size) == 0);
    }
    TRY(rrecv(server, bytes, 1, MSG_DONTWAIT));
    CHECK(events(server, POLLIN | POLLOUT, 0) == POLLOUT);
    CHECK(rconnect(client, at(PORT), sizeof address) == 0 && rsend(client, "peeked", 6, 0) == 6);
    CHECK(events(server, POLLIN, PATIENCE) == POLLIN);
    TRY(rrecv(server, bytes, 3, MSG_PEEK));
    TRY(rrecv(server, bytes, sizeof bytes, 0));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, receive_datagram, &server) == 0);
    usleep(50000);
    CHECK(rsend(client, "late", 4, 0) == 4 && pthread_join(thread, NULL) == 0);
    TRY(rclose(client));
    TRY(rclose(server));
}

static void errors(void) {
    TRY(rsocket(AF_UNIX, SOCK_STREAM, 0));
    TRY(rsocket(AF_INET, SOCK_RAW, 0));
    TRY(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    TRY(rbind(0, at(PORT), sizeof address));
    char byte;
    TRY(rread(99, &byte, 1));
    int socket = rsocket(AF_INET, SOCK_STREAM, 0), value = 0;
    socklen_t length = sizeof value;
    TRY(rread(socket, &byte, 1));
    TRY(rwrite(socket, &byte, 1));
    TRY(raccept(socket, NULL, NULL));
    TRY(rbind(socket, at(PORT), 4));
    TRY(rsetsockopt(socket, SOL_SOCKET, SO_MARK, &value, sizeof value));
    TRY(rgetsockopt(socket, SOL_SOCKET, SO_MARK, &value, &length));
    TRY(rfcntl(socket, F_GETOWN));
    TRY(rshutdown(socket, 7));
    printf("; ");
    value = 100000;
    CHECK(rsetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &value, sizeof value) == 0);
    CHECK(rgetsockopt(socket, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0);
    printf("%d ", value);
    value = 50;
    CHECK(rsetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value) == 0);
    CHECK(rgetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &value, &length) == 0);
    printf("%d ", value);
    value = 1;
    CHECK(rsetsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value) == 0);
    CHECK(rsetsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) == 0);
    value = 0;
    TRY(rsetsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value));
    CHECK(rgetsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0);
    printf("%d ", value);
    int listener = listening(PORT), second = rsocket(AF_INET, SOCK_STREAM, 0);
    TRY(rbind(second, at(PORT), sizeof address));
    TRY(rlisten(listener, 3));
}

// A message that keeps the connection alive is due each second; the peer sees nothing of it.
static void keepalive(void) {
    int listener = listening(PORT), ends[2], value = 1;
    connect_pair(listener, PORT, ends);
    CHECK(rsetsockopt(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, &value, sizeof value) == 0);
    CHECK(rsetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value) == 0);
    CHECK(events(ends[1], POLLIN, 2500) == 0);
    char byte;
    CHECK(rwrite(ends[0], "x", 1) == 1);
    TRY(rread(ends[1], &byte, 1));
}

// A forked child has no sockets of its parent, and can make its own.
static void forked(void) {
    int listener = listening(PORT), ends[2];
    connect_pair(listener, PORT, ends);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        TRY(rread(ends[1], &byte, 1));
        int own = listening(PORT + 1);
        connect_pair(own, PORT + 1, ends);
        CHECK(rwrite(ends[0], "x", 1) == 1);
        TRY(rread(ends[1], &byte, 1));
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char byte;
    CHECK(rwrite(ends[0], "x", 1) == 1);
    TRY(rread(ends[1], &byte, 1));
}

int main(int count, char **arguments) {
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"stream", stream}, {"threads", threads}, {"nonblocking", nonblocking}, {"polling", polling},
        {"interruption", interruption}, {"endings", endings}, {"many", many}, {"mapping", mapping},
        {"datagrams", datagrams}, {"errors", errors}, {"keepalive", keepalive}, {"forked", forked},
        {"thousand", thousand}, {"hostile_requests", hostile_requests}, {"hostile_replies", hostile_replies},
        {"hostile_messages", hostile_messages}, {"hostile_floods", hostile_floods},
    };
    CHECK(count == 3);
    address.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, arguments[2], &address.sin_addr) == 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, arguments[1]) == 0) {
            cases[i].run();
            printf("\n");
            return 0;
        }
    return 2;
}
