/* What the two halves of the peer have in common: peer.c, the exchange of lines, and peer_verbs.c, the verbs. */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_WORDS 24

/* A command line, taken apart. */
struct command {
	char *words[MAX_WORDS]; /* name and arguments */
	int count;
	char *options[MAX_WORDS]; /* name=value */
	int option_count;
};

/* The exchange, in peer.c. */
uint64_t argument(const struct command *command, int index);
uint64_t option(const struct command *command, const char *name, uint64_t otherwise);
const char *option_text(const struct command *command, const char *name, const char *otherwise);
void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool refuse(const char *why, int error);
void die(const char *what) __attribute__((noreturn));

/* The verbs, in peer_verbs.c. */
void start_verbs(const char *device_name, int index, unsigned mtu);
void stop_verbs(void);
void answer_greeting(void);
void run_command(const struct command *command);

#endif
