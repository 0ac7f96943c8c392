/*
 * peer: one end of a reliable connection on the kernel's verbs device, remote-controlled over TCP.
 *
 * It runs in the guest on libibverbs and represents the standard: the test program at the other end sends commands, a
 * line each, and both check every byte and every completion status. One connection, then it ends.
 *
 *   peer [-d DEVICE] [-g GID_INDEX] [-m PATH_MTU] [-p TCP_PORT] [-t SECONDS]      (rxe0, 1, 1024, 18516, 300)
 *
 * The exit status is 0 after `quit`, 1 otherwise. A watchdog ends the program after -t seconds, whatever happens.
 *
 * THE EXCHANGE. ASCII lines, ended by '\n', words separated by single spaces. This end greets first; from then on every
 * command line gets exactly one line in reply, in order. A reply is `ok`, then ` name=value` words in any order; or
 * `error TEXT`, when the command could not be carried out at all (a failed completion is an `ok` reply with its
 * status). Numbers are read in decimal or 0x hexadecimal and printed in decimal; a GID is 32 hexadecimal digits, its
 * bytes in network order. Arguments come first, in order; then options, each `name=value`.
 *
 * MEMORY. Four areas of AREA_LENGTH bytes, each a memory region of its own, initially zero:
 *   open      remote write, read, atomics and window binding allowed, and FLUSH (not to persistence) where the device
 *             has it: the target of the other end's requests
 *   closed    local access only: the local side of this end's requests. Its remote key must be refused, whatever it
 *             is (Linux 6.1 makes it 0)
 *   receive   local access only: the buffers of receives
 *   readable  remote read only: its key is valid, but remote writes and atomics are refused
 * PATTERN. Byte i of the pattern with seed s (32-bit arithmetic, wrapping):
 *   x = s * 0x9e3779b1 + i;  x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  byte = x & 0xff
 *
 * Greeting, and the reply to `reset`: a new queue pair in INIT, with no receives posted.
 *   ok version=1 qpn= psn= gid= path_mtu= length=AREA_LENGTH open_addr= open_rkey= closed_addr= closed_rkey=
 *      receive_addr= receive_rkey= readable_addr= readable_rkey= flush=0|1 atomic_write=0|1
 * The last two say whether the device has FLUSH and ATOMIC WRITE.
 *
 * Connection
 *   connect QPN PSN GID     to RTS, towards the other end's numbers. Options: mtu (bytes; -m), timeout (14),
 *                           retry_cnt (5), rnr_retry (5), min_rnr_timer (12), rd_atomic (16), dest_rd_atomic (16)
 *   reset                   destroys the queue pair (and window, if any) and makes a new one: needs `connect` again.
 *                           Options: access, the letters of the remote requests that the queue pair allows: any of
 *                           `rwafp` (read, write, atomic, FLUSH to global visibility, to persistence), or `none`
 *                           (rwa). psn, this end's first one (random)
 *   destroy                 destroys the queue pair: no responses from its number until `reset`
 *   state                   ok state=init|rtr|rts|sqd|sqe|err|...
 *   quit                    ok, then exits
 *
 * Memory. AREA is the name of one; FIRST is the pattern index of the first byte (0).
 *   fill AREA OFFSET LENGTH SEED [FIRST]
 *   check AREA OFFSET LENGTH SEED [FIRST]     ok check=good, or ok check=bad at=OFFSET_IN_RANGE expected= found=
 *   zero AREA OFFSET LENGTH
 *   peek AREA OFFSET                          ok value=   the 64-bit number there, in this host's byte order
 *   poke AREA OFFSET VALUE                    (OFFSET a multiple of 8 for both)
 *   bind OFFSET LENGTH                        binds a memory window to a range of `open` on this queue pair;
 *                                             ok status= addr= rkey=. Options: type (2); access, as for `reset`, and
 *                                             `z`, zero-based: addr is 0 then. One window at a time.
 *                                             Never name a window that was invalidated already in another SEND with
 *                                             invalidate: the kernel (6.1 and 6.12) dereferences a null pointer then
 *
 * Requests. Each is posted signaled from (or into) the area `closed` and waited for; the reply is
 *   ok status=STATUS done=N_SUCCESSFUL      STATUS that of the first completion that failed, else `success`; or `none`
 *                                           when the completions do not come in time
 *   write ADDR RKEY LENGTH SEED             writes the pattern
 *   write_imm ADDR RKEY LENGTH SEED IMM
 *   send LENGTH SEED                        sends the pattern
 *   send_imm LENGTH SEED IMM
 *   send_inv LENGTH SEED RKEY
 *   read ADDR RKEY LENGTH SEED              reads into zeroed memory, compares with the pattern: the reply also has
 *                                           check= and so on, as for `check`, when the status is success
 *   cas ADDR RKEY COMPARE SWAP              the reply also has old=VALUE (the last one, when there are several)
 *   faa ADDR RKEY ADD
 *   flush ADDR RKEY LENGTH                  Its own options: type, global (the default), persistent or both;
 *                                           level, range (the default) or region
 *   atomic_write ADDR RKEY VALUE            writes the 64-bit number in this host's byte order
 * For these two, count repeats the same request, and offset and solicited are ignored.
 * Options: wait, milliseconds (10000). count, 1 to 64 requests posted at once (1): each continues where the one before
 * ended, in both memories and in the pattern (atomics stay at their remote address). offset, where in `closed` (0).
 * solicited=1: with the solicited event bit. post=1: posts only, and replies `ok first=WR_ID count=N`; use
 * `poll send` for the completions and `check` for the bytes read.
 *
 * Receives
 *   recv COUNT LENGTH [OFFSET]   posts receives of LENGTH bytes, one behind the other in `receive` from OFFSET (0) on;
 *                                ok first=WR_ID count=N. Possible before `connect`. At most 256 may be outstanding.
 *                                Without it a message that needs a receive finds none (receiver not ready).
 * Completions
 *   poll send|recv               waits for the next completion; ok status=none if there is none in time, else
 *                                ok status= wr_id= opcode= byte_len= qpn= and, if present, imm= or invalidated=
 *                                Option: wait (10000). opcode is send, write, read, cas, faa, bind, flush,
 *                                atomic_write, recv or recv_write_imm; it and byte_len are valid on success only
 *
 * STATUS is the name of the verbs status without its prefix, in lower case: success, loc_len_err, loc_qp_op_err,
 * loc_prot_err, wr_flush_err, mw_bind_err, bad_resp_err, loc_access_err, rem_inv_req_err, rem_access_err, rem_op_err,
 * retry_exc_err, rnr_retry_exc_err, and so on.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static FILE *to_other_end;

/* ---- Replies and arguments ---- */

void die(const char *what)
{
	fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Collects the reply to the current command: one line, whatever the command does. */
static char answer_line[1024];
static size_t answer_length;

void answer(const char *format, ...)
{
	va_list arguments;
	size_t room = sizeof(answer_line) - answer_length;

	va_start(arguments, format);
	int written = vsnprintf(answer_line + answer_length, room, format, arguments);
	va_end(arguments);
	if (written > 0)
		answer_length += (size_t)written < room ? (size_t)written : room - 1;
}

/* Replaces the reply collected so far. Always returns false, for `return refuse(...)`. */
bool refuse(const char *why, int error)
{
	answer_length = 0;
	answer("error %s%s%s", why, error ? ": " : "", error ? strerror(error) : "");
	return false;
}

static void split(char *line, struct command *command)
{
	char *rest = line, *word;

	memset(command, 0, sizeof(*command));
	while ((word = strsep(&rest, " \r\n"))) {
		if (!*word)
			continue;
		if (strchr(word, '=')) {
			if (command->option_count < MAX_WORDS)
				command->options[command->option_count++] = word;
		} else if (command->count < MAX_WORDS) {
			command->words[command->count++] = word;
		}
	}
}

uint64_t argument(const struct command *command, int index)
{
	return index < command->count ? strtoull(command->words[index], NULL, 0) : 0;
}

const char *option_text(const struct command *command, const char *name, const char *otherwise)
{
	size_t length = strlen(name);

	for (int i = 0; i < command->option_count; i++)
		if (!strncmp(command->options[i], name, length) && command->options[i][length] == '=')
			return command->options[i] + length + 1;
	return otherwise;
}

uint64_t option(const struct command *command, const char *name, uint64_t otherwise)
{
	const char *text = option_text(command, name, NULL);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

/* ---- The exchange ---- */

static void end_answer(void)
{
	fprintf(to_other_end, "%s\n", answer_line);
	if (fflush(to_other_end))
		die("answer");
	printf("> %s\n", answer_line);
	fflush(stdout);
	answer_length = 0;
}

/* Returns whether the other end sent `quit`. */
static bool serve(FILE *from_other_end)
{
	char line[1024];
	struct command command;

	answer("ok");
	answer_greeting();
	end_answer();
	while (fgets(line, sizeof(line), from_other_end)) {
		printf("< %s", line);
		split(line, &command);
		answer("ok");
		if (command.count == 1 && !strcmp(command.words[0], "quit")) {
			end_answer();
			return true;
		}
		run_command(&command);
		end_answer();
	}
	return false;
}

static int accept_one(unsigned port)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 1))
		die("listen");
	int connection = accept(listener, NULL, NULL);
	if (connection < 0)
		die("accept");
	close(listener);
	return connection;
}

int main(int count, char **words)
{
	const char *device_name = "rxe0";
	unsigned path_mtu = 1024, port = 18516, seconds = 300;
	int gid_index = 1, letter;

	while ((letter = getopt(count, words, "d:g:m:p:t:")) != -1) {
		switch (letter) {
		case 'd': device_name = optarg; break;
		case 'g': gid_index = atoi(optarg); break;
		case 'm': path_mtu = (unsigned)atoi(optarg); break;
		case 'p': port = (unsigned)atoi(optarg); break;
		case 't': seconds = (unsigned)atoi(optarg); break;
		default: return 2;
		}
	}
	alarm(seconds);
	signal(SIGPIPE, SIG_IGN);
	start_verbs(device_name, gid_index, path_mtu);
	int connection = accept_one(port);
	to_other_end = fdopen(dup(connection), "w");
	FILE *from_other_end = fdopen(connection, "r");
	if (!to_other_end || !from_other_end)
		die("fdopen");
	bool said_quit = serve(from_other_end);
	stop_verbs();
	return said_quit ? 0 : 1;
}
