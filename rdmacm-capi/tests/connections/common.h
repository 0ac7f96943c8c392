// What the parts of the program share. Each part has cases, which `main.c` lists.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"

// Prints the error of a call.
#define TRY(call) \
    do { \
        errno = 0; \
        int result_ = (call); \
        printf("%s ", result_ == 0 ? "0" : error_name(errno)); \
    } while (0)

enum { PATIENCE = 20000 };

extern struct sockaddr_in server_address, client_address;
// Both addresses as text.
extern char **addresses;
// The channel that the functions below use.
extern struct rdma_event_channel *channel;

struct sockaddr *at(struct sockaddr_in *address, int port);
const char *error_name(int error);
int readable(int fd, int milliseconds);
// Returns the next event, which must come.
struct rdma_cm_event *next(void);
// Reads the next event, prints its name and its status, and acknowledges it.
enum rdma_cm_event_type take(struct rdma_cm_id *id);
struct rdma_cm_id *create_id(enum rdma_port_space space);
struct rdma_cm_id *listening(enum rdma_port_space space, int port);
struct ibv_qp_init_attr qp_attributes(enum ibv_qp_type type);
void create_qp(struct rdma_cm_id *id, enum ibv_qp_type type);
// Resolves the address and the route of the server.
struct rdma_cm_id *routed(enum rdma_port_space space, int port);
struct rdma_conn_param parameters(const char *data);
void destroy(struct rdma_cm_id *id);
int timeout_of(struct ibv_qp *qp);
// Sends a message from each end to the other.
void exchange(struct rdma_cm_id *one, struct rdma_cm_id *other);
