// A thousand sockets at once.
#include "common.h"

#include <dirent.h>
#include <glob.h>

enum { SOCKETS = 1000, BYTES = 3000 };

// Counts the descriptors of this process, of which a few lead to other processes at the same address, and come and go.
static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

// Finds where this process is in the registry: it has a socket whose path ends with `life-NAME`.
static void find_life(char path[256]) {
    char line[512], link[64], target[64];
    FILE *sockets = fopen("/proc/net/unix", "r");
    CHECK(sockets);
    path[0] = 0;
    while (fgets(line, sizeof line, sockets) && !path[0]) {
        unsigned long inode;
        char name[256];
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %255s", &inode, name) != 2 || !strstr(name, "life-"))
            continue;
        snprintf(target, sizeof target, "socket:[%lu]", inode);
        for (int fd = 0; fd < 4096 && !path[0]; fd++) {
            char found[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t length = readlink(link, found, sizeof found - 1);
            if (length > 0 && (found[length] = 0, strcmp(found, target) == 0))
                strcpy(path, name);
        }
    }
    fclose(sockets);
    CHECK(path[0]);
}

// Tells the other process to go on, and waits for that.
static void say(int pipe) { CHECK(write(pipe, "x", 1) == 1); }

static void await(int pipe) {
    char byte;
    CHECK(read(pipe, &byte, 1) == 1);
}

static int *socket_list(void) {
    int *list = malloc(SOCKETS * sizeof *list);
    CHECK(list);
    return list;
}

// Echoes what each socket receives until all of it has come, then waits for the end of each.
static void serve_all(int *list) {
    struct pollfd *entries = calloc(SOCKETS, sizeof *entries);
    size_t *received = calloc(SOCKETS, sizeof *received);
    CHECK(entries && received);
    for (int i = 0; i < SOCKETS; i++)
        entries[i] = (struct pollfd){.fd = list[i], .events = POLLIN};
    for (int open = SOCKETS; open > 0;) {
        CHECK(rpoll(entries, SOCKETS, PATIENCE) > 0);
        for (int i = 0; i < SOCKETS; i++) {
            char bytes[BYTES], expected[BYTES];
            if (!entries[i].revents)
                continue;
            ssize_t count = rrecv(list[i], bytes, sizeof bytes, 0);
            CHECK(count > 0 && received[i] + count <= BYTES);
            fill(expected, BYTES, i);
            CHECK(memcmp(bytes, expected + received[i], count) == 0);
            received[i] += count;
            CHECK(rsend(list[i], bytes, count, 0) == count);
            if (received[i] == BYTES) {
                entries[i].fd = -1;
                open--;
            }
        }
    }
    free(entries);
    free(received);
}

// The end that accepts. The first connection opens what a process keeps.
static void accepting_end(int from, int to) {
    int listener = listening(PORT), *list = socket_list();
    say(to);
    int first = raccept(listener, NULL, NULL);
    char byte;
    CHECK(first >= 0 && rread(first, &byte, 1) == 1 && rclose(first) == 0);
    int before = descriptors();
    say(to);
    for (int i = 0; i < SOCKETS; i++) {
        list[i] = raccept(listener, NULL, NULL);
        CHECK(list[i] >= 0);
        // The order of the peer's sockets is the order here.
        int number;
        CHECK(receive_all(list[i], (char *)&number, sizeof number) == sizeof number && number == i);
    }
    say(to);
    serve_all(list);
    for (int i = 0; i < SOCKETS; i++)
        CHECK(rread(list[i], &byte, 1) == 0 && rclose(list[i]) == 0);
    CHECK(descriptors() < before + SOCKETS / 10);
    free(list);
    CHECK(rclose(listener) == 0);
    await(from);
}

static void connecting_end(int from, int to) {
    int *list = socket_list();
    await(from);
    int first = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(first >= 0 && rconnect(first, at(PORT), sizeof address) == 0 && rwrite(first, "x", 1) == 1);
    CHECK(rclose(first) == 0);
    await(from);
    int before = descriptors();
    char bytes[BYTES], expected[BYTES];
    for (int i = 0; i < SOCKETS; i++) {
        list[i] = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK(list[i] >= 0 && rconnect(list[i], at(PORT), sizeof address) == 0);
        CHECK(rwrite(list[i], &i, sizeof i) == sizeof i);
    }
    await(from);
    // All of them carry data at the same time.
    for (int i = 0; i < SOCKETS; i++) {
        fill(bytes, BYTES, i);
        CHECK(rwrite(list[i], bytes, BYTES) == BYTES);
    }
    for (int i = SOCKETS - 1; i >= 0; i--) {
        fill(expected, BYTES, i);
        CHECK(receive_all(list[i], bytes, BYTES) == BYTES && memcmp(bytes, expected, BYTES) == 0);
    }
    for (int i = 0; i < SOCKETS; i++)
        CHECK(rclose(list[i]) == 0);
    CHECK(descriptors() < before + SOCKETS / 10);
    free(list);
    say(to);
}

// Starts an end in a process of its own, which says where it is in the registry before it ends.
static pid_t start(void (*end)(int, int), int from, int to, int name) {
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0)
        return child;
    end(from, to);
    char path[256];
    find_life(path);
    CHECK(write(name, path, sizeof path) == sizeof path);
    exit(0);
}

// Returns whether there is no such file, soon: processes that start at the same time may leave it to each other.
static int vanishes(const char *pattern) {
    for (int i = 0; i < PATIENCE / 100; i++) {
        glob_t found;
        if (glob(pattern, 0, NULL, &found) == GLOB_NOMATCH)
            return 1;
        globfree(&found);
        usleep(100000);
    }
    return 0;
}

// Both ends in two processes. All sockets are open at once and carry data. At the end there are as many descriptors as
// before, but for a few, and nothing is left in the registry's folder.
void thousand(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int there[2], back[2], names[2], status;
    CHECK(pipe(there) == 0 && pipe(back) == 0 && pipe(names) == 0);
    pid_t ends[2];
    ends[0] = start(accepting_end, there[0], back[1], names[1]);
    ends[1] = start(connecting_end, back[0], there[1], names[1]);
    for (int i = 0; i < 2; i++) {
        CHECK(waitpid(-1, &status, 0) > 0);
        if (status != 0) {
            // The other one may wait for it.
            kill(ends[0], SIGKILL);
            kill(ends[1], SIGKILL);
            exit(1);
        }
    }
    // The next process that starts removes what is unused.
    int next[2], listener = listening(PORT + 1);
    connect_pair(listener, PORT + 1, next);
    for (int i = 0; i < 2; i++) {
        char path[256];
        CHECK(read(names[0], path, sizeof path) == sizeof path);
        const char *name = strstr(path, "life-") + strlen("life-"), *kinds[] = {"life", "inbox", "connections"};
        int folder = (int)(strrchr(path, '/') - path);
        for (int kind = 0; kind < 3; kind++) {
            char pattern[600];
            // The names of connections begin with the number of the network namespace.
            snprintf(pattern, sizeof pattern, "%.*s/*%s-%s", folder, path, kinds[kind], name);
            CHECK(vanishes(pattern));
        }
    }
    printf("%d", SOCKETS);
}
