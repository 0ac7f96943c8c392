// What the parts of the program share. Each part has cases, which `main.c` lists.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"

// Prints the result of a call, or its error.
#define TRY(call) \
    do { \
        errno = 0; \
        long result_ = (long)(call); \
        if (result_ < 0) \
            printf("%s ", error_name(errno)); \
        else \
            printf("%ld ", result_); \
    } while (0)

enum { PATIENCE = 20000, PORT = 7471 };

extern struct sockaddr_in address;

struct sockaddr *at(int port);
const char *error_name(int error);
int listening(int port);
// Connects two streams.
void connect_pair(int listener, int port, int ends[2]);
// Returns the events of a socket that there are in so many milliseconds.
short events(int socket, short asked, int milliseconds);
void fill(char *bytes, size_t length, unsigned seed);
// Receives so many bytes, or less if they end. Returns their number.
size_t receive_all(int socket, char *to, size_t length);

// Many sockets at once, in `scale.c`.
void thousand(void);
// Peers that violate the protocol, in `hostile.c`.
void hostile_requests(void);
void hostile_replies(void);
void hostile_messages(void);
void hostile_floods(void);
