/*
 * dist/hpn: asks the agent, and where there is none runs the program it carries.  docs/protocol.md has the frames.
 *
 * Static, so that it needs nothing of the machine's and starts in 0.1 ms; the program takes hundreds of times that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "carried.h"

#define VARIABLES_MOST (1 << 20)
#define STDIN_MOST (4 << 20)
#define REPLY_MOST (16 << 20)

struct request { char magic[4], version[16]; uint32_t ipam, variables, input; };
struct reply { uint32_t code, out, err; };

const char *cni;
static char text[VARIABLES_MOST + STDIN_MOST + 1]; /* environment, stdin: as the agent gets them */
static size_t text_size;

/* The texts are ours and hold nothing that JSON would escape. */
void fail(int code, const char *what, const char *which, int number)
{
    const char *colon = number ? ": " : "", *why = number ? strerror(number) : "";
    if (cni)
        printf("{\"cniVersion\":\"1.1.0\",\"code\":%d,\"msg\":\"%s%s%s%s\"}\n", code, what, which, colon, why);
    else
        fprintf(stderr, "hpn: %s%s%s%s\n", what, which, colon, why);
    fflush(stdout);
    _exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static int receive_all(int fd, void *data, size_t size, int64_t deadline)
{
    while (size) {
        struct pollfd p = {fd, POLLIN, 0};
        int64_t left = deadline - now();
        ssize_t n;
        if (left <= 0 || poll(&p, 1, left) <= 0)
            return -1;
        if ((n = recv(fd, data, size, 0)) <= 0)
            return -1;
        data = (char *)data + n, size -= n;
    }
    return 0;
}

/* With the request go the pod's namespace and a netlink socket inside it: the agent may not see the path, and need not
 * enter. */
static int send_request(int fd, struct request *q)
{
    union { char room[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr head; } control = {0};
    struct iovec parts[] = {{q, sizeof *q}, {text, q->variables + q->input}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    const char *path = getenv("CNI_NETNS");
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), inside = -1;
    int pod = own >= 0 && path && *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t sent;

    if (pod >= 0 && !setns(pod, CLONE_NEWNET)) {
        inside = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0);
        if (setns(own, CLONE_NEWNET))
            fail(5, "cannot return from the pod's namespace", "", errno);
    }
    if (inside >= 0) {
        int both[2] = {pod, inside};
        control.head.cmsg_level = SOL_SOCKET, control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof both);
        memcpy(CMSG_DATA(&control.head), both, sizeof both);
        message.msg_control = &control, message.msg_controllen = sizeof control.room;
    }
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    close(own), close(pod), close(inside);
    for (size_t all = sizeof *q + parts[1].iov_len, done = sent; sent > 0 && done < all; done += sent)
        sent = send(fd, text + (done - sizeof *q), all - done, MSG_NOSIGNAL);
    return sent > 0 ? 0 : -1;
}

/* The agent's answer is printed and ends this process.  It returns where the agent will not act on the request. */
static void ask_agent(const char *name, const char *version, size_t variables)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    struct timeval patience = {5, 0};
    socklen_t size = sizeof peer;
    const char *path = getenv("HPN_AGENT"), *limit = getenv("HPN_AGENT_TIMEOUT");
    struct request q = {"HPN1", "", !strcmp(name, "hpn-ipam"), variables, text_size - variables};
    struct reply r;
    char *answer, word = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    path = path ? path : "/run/hpn/agent.sock";
    if (fd < 0 || !*path || strlen(path) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, path);
    memcpy(q.version, version, sizeof q.version);
    /* A full queue is EAGAIN: then the work is done here. */
    if (connect(fd, (void *)&address, sizeof address) || fcntl(fd, F_SETFL, 0) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || (peer.uid && peer.uid != geteuid()) ||
        send_request(fd, &q)) {
        close(fd);
        return;
    }
    /* Until it says that it has taken the request it may be given up: after the shutdown it can no longer say so. */
    if (receive_all(fd, &word, 1, now() + 5000)) {
        shutdown(fd, SHUT_RDWR);
        if (recv(fd, &word, 1, MSG_DONTWAIT) != 1)
            word = 0;
    }
    if (word != 'T') {
        close(fd);
        return;
    }
    int64_t deadline = now() + (limit ? atoi(limit) : 120) * 1000LL;
    if (receive_all(fd, &r, sizeof r, deadline) || r.out > REPLY_MOST || r.err > REPLY_MOST ||
        !(answer = malloc(r.out + r.err + 1)) || receive_all(fd, answer, r.out + r.err, deadline))
        fail(11, "the agent took the request and did not answer; it may be done or not, so repeat it", "", 0);
    fwrite(answer + r.out, 1, r.err, stderr);
    fwrite(answer, 1, r.out, stdout);
    fflush(stdout);
    _exit(r.code);
}

/* stdin, which was read for the agent, once more for the program. */
static void rewind_input(size_t variables)
{
    int again = memfd_create("stdin", 0);
    size_t size = text_size - variables;
    if (again < 0 || write(again, text + variables, size) != (ssize_t)size || lseek(again, 0, SEEK_SET) || dup2(again, 0))
        fail(5, "cannot keep stdin", "", errno);
    close(again);
}

int main(int argc, char **argv, char **environment)
{
    static char program[PATH_MAX + 40], loader[PATH_MAX + 40];
    const char *version, *directory, *slash = strrchr(argv[0], '/');
    char *words[argc + 4];
    size_t variables;
    cni = getenv("CNI_COMMAND");
    version = find_carried();
    if (cni && !isatty(0)) {
        for (; *environment && text_size + strlen(*environment) < VARIABLES_MOST; environment++) {
            strcpy(text + text_size, *environment);
            text_size += strlen(*environment) + 1;
        }
        variables = text_size;
        for (ssize_t n; (n = read(0, text + text_size, sizeof text - text_size)) > 0;)
            text_size += n;
        if (text_size > variables + STDIN_MOST)
            fail(6, "stdin is longer than 4 MiB", "", 0);
        if (!*environment) /* all of it went in */
            ask_agent(slash ? slash + 1 : argv[0], version, variables);
        rewind_input(variables);
    }
    directory = carried_directory();
    snprintf(program, sizeof program, "%s/hpn", directory);
    snprintf(loader, sizeof loader, "%s/ld-hpn.so.2", directory);
    /* Its own name is the loader's now, and it has to know the agent that is of its version. */
    setenv("HPN_ARGV0", argv[0], 1);
    setenv("HPN_VERSION", version, 1);
    memcpy(words, (char *[]){loader, "--library-path", (char *)directory, program}, 4 * sizeof *words);
    memcpy(words + 4, argv + 1, argc * sizeof *words);
    execv(loader, words);
    fail(5, "cannot run ", program, errno);
}
