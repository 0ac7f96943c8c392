#include "common.h"

struct sockaddr_in address;

struct sockaddr *at(int port) {
    address.sin_port = htons(port);
    return (struct sockaddr *)&address;
}

const char *error_name(int error) {
    static const struct { int number; const char *name; } names[] = {
        {0, "0"}, {EINVAL, "EINVAL"}, {EBADF, "EBADF"}, {EAGAIN, "EAGAIN"}, {EINPROGRESS, "EINPROGRESS"},
        {ECONNREFUSED, "ECONNREFUSED"}, {ECONNRESET, "ECONNRESET"}, {ENOTCONN, "ENOTCONN"}, {ENOTSUP, "ENOTSUP"},
        {EISCONN, "EISCONN"}, {EINTR, "EINTR"}, {EADDRINUSE, "EADDRINUSE"}, {EADDRNOTAVAIL, "EADDRNOTAVAIL"},
        {EMSGSIZE, "EMSGSIZE"}, {EDESTADDRREQ, "EDESTADDRREQ"}, {ENOMEM, "ENOMEM"}, {EOPNOTSUPP, "EOPNOTSUPP"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == error)
            return names[i].name;
    return strerror(error);
}

int listening(int port) {
    int listener = rsocket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(listener >= 0);
    CHECK(rsetsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(rbind(listener, at(port), sizeof address) == 0);
    CHECK(rlisten(listener, 64) == 0);
    return listener;
}

void connect_pair(int listener, int port, int ends[2]) {
    ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(ends[0] >= 0 && rconnect(ends[0], at(port), sizeof address) == 0);
    ends[1] = raccept(listener, NULL, NULL);
    CHECK(ends[1] >= 0);
}

short events(int socket, short asked, int milliseconds) {
    struct pollfd entry = {.fd = socket, .events = asked};
    int count = rpoll(&entry, 1, milliseconds);
    CHECK(count >= 0 && (count == 1) == (entry.revents != 0));
    return entry.revents;
}

void fill(char *bytes, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++)
        bytes[i] = (char)((i * 31 + i / 257 + seed) & 0xff);
}

size_t receive_all(int socket, char *to, size_t length) {
    size_t done = 0;
    while (done < length) {
        ssize_t count = rrecv(socket, to + done, length - done, 0);
        CHECK(count >= 0);
        if (count == 0)
            break;
        done += count;
    }
    return done;
}
