// A program that connects to itself through rdma_cm, with the system's headers. The first argument selects a case; the
// addresses are the second and the third one. Prints events and results; each line is checked.
#include "common.h"

#define CASES(DO) \
    DO(connection) DO(rejection) DO(external) DO(reply_waits) DO(datagrams) DO(multicast) DO(stale_queue_pair) \
    DO(synchronous_datagrams) DO(synchronous) DO(failed_endpoint) DO(objects) DO(endpoint_domains) \
    DO(repeated_ends) DO(devices_in_turn) DO(wildcards) DO(other_spaces) DO(refused_reply) DO(shared_receives) DO(lookups) \
    DO(descriptors) DO(destruction) DO(threads) DO(freed_port) DO(interruption) DO(cancelled_calls) \
    DO(stopped_peer) DO(forked) DO(forked_acknowledgement) DO(errors) DO(extended) DO(other_transports) \
    DO(forks_in_use) DO(forked_servers)

#define DECLARE(name) void name(void);
#define ENTRY(name) {#name, name},

CASES(DECLARE)

static const struct { const char *name; void (*run)(void); } cases[] = {CASES(ENTRY)};

int main(int count, char **arguments) {
    if (count < 2)
        return 2;
    const char *chosen = arguments[1];
    // A call that never returns fails the test.
    alarm(3 * PATIENCE / 1000);
    setvbuf(stdout, NULL, _IONBF, 0);
    errno = 0;
    channel = rdma_create_event_channel();
    if (strcmp(chosen, "foreign") == 0) {
        printf("%s %s", channel ? "a channel" : "none", error_name(errno));
        return 0;
    }
    CHECK(channel);
    CHECK(count == 4);
    addresses = arguments + 2;
    server_address.sin_family = client_address.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, addresses[0], &server_address.sin_addr) == 1);
    CHECK(inet_pton(AF_INET, addresses[1], &client_address.sin_addr) == 1);
    size_t found = 0;
    while (found < sizeof cases / sizeof *cases && strcmp(chosen, cases[found].name) != 0)
        found++;
    if (found == sizeof cases / sizeof *cases)
        return 2;
    cases[found].run();
    rdma_destroy_event_channel(channel);
    return 0;
}
