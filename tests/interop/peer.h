/*
 * Declarations shared by the parts of the peer: peer.c, the exchange of lines; peer_verbs.c, the verbs;
 * peer_extended.c, memory windows, FLUSH and ATOMIC WRITE.
 */
#ifndef PEER_H
#define PEER_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_WORDS 24

/* A parsed command line. */
struct command {
	char *words[MAX_WORDS]; /* name and arguments */
	int count;
	char *options[MAX_WORDS]; /* name=value */
	int option_count;
};

/* Defined in peer.c: the exchange. */
uint64_t argument(const struct command *command, int index);
uint64_t option(const struct command *command, const char *name, uint64_t otherwise);
const char *option_text(const struct command *command, const char *name, const char *otherwise);
void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool refuse(const char *why, int error);
void die(const char *what) __attribute__((noreturn));

/* Defined in peer_verbs.c: the verbs. */
void start_verbs(const char *device_name, int index, unsigned mtu);
void stop_verbs(void);
void answer_greeting(void);
void run_command(const struct command *command);

/* Defined in peer_verbs.c, for peer_extended.c. */
extern struct ibv_context *context;
extern struct ibv_pd *domain;
extern struct ibv_qp *queue_pair;
extern uint64_t next_wr_id;
unsigned access_option(const struct command *command);
struct ibv_mr *open_region(uint64_t offset, uint64_t length);
bool answer_posted(const struct command *command, uint64_t first, uint64_t count);

/* Defined in peer_extended.c. */
void find_extensions(void);
void answer_extensions(void);
unsigned extended_rights(void);
struct ibv_qp *create_queue_pair(const struct ibv_qp_init_attr *init);
void destroy_window(void);
bool do_bind(const struct command *command);
bool do_flush(const struct command *command);
bool do_atomic_write(const struct command *command);

#endif
