/*
 * dist/hpn: sends the request to the agent; without an agent it runs the program that it carries.
 * docs/develop/agent.md lists the frames.
 *
 * It is static, and uses no stdio and no malloc on the way to the agent, because it runs for every command.  It takes
 * little longer than an empty program.
 */
#include "carried.h"

#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>

#define VARIABLES_MOST (1 << 20)
#define STDIN_MOST (4 << 20)
#define REPLY_MOST (16 << 20)
#define NUDGE_AFTER 200 /* ms without an answer */
#define TAKEN_MOST 2000 /* ms until an agent must confirm that it has taken a request */

struct request { char magic[4], version[16]; uint32_t ipam, variables, input; };
struct reply { char word; struct __attribute__((packed)) { uint32_t code, out, err; }; char text[2 * REPLY_MOST]; };

const char *cni;
int exit_status = 1;
static char text[VARIABLES_MOST + STDIN_MOST + 1]; /* environment and stdin, as the agent gets them */
static size_t text_size;

static void print(int fd, const char *data, size_t size)
{
    for (ssize_t n; size && (n = write(fd, data, size)) > 0; data += n, size -= n) {}
}

/* Paths come from the environment, so a character that JSON would escape becomes a question mark. */
static char *join(char *end, const char *limit, const char *more)
{
    for (unsigned char c; (c = *more) && end < limit; more++)
        *end++ = cni && (c < ' ' || c > '~' || c == '"' || c == '\\') ? '?' : c;
    return end;
}

int is_short(int number)
{
    return number == EMFILE || number == ENFILE || number == ENOMEM;
}

void fail_with(const char *code, int number, const char *const *texts)
{
    static char line[4 * PATH_MAX];
    code = is_short(number) ? "11" : code;
    const char *limit = line + sizeof line - 4; /* room for its end */
    char *end = cni ? stpcpy(stpcpy(stpcpy(line, "{\"cniVersion\":\"1.1.0\",\"code\":"), code), ",\"msg\":\"") :
                      stpcpy(line, "hpn: ");
    while (*texts)
        end = join(end, limit, *texts++);
    if (number)
        end = join(join(end, limit, ": "), limit, strerror(number));
    end = stpcpy(end, cni ? "\"}\n" : "\n");
    print(cni ? 1 : 2, line, end - line);
    _exit(exit_status);
}

const char *digits(char *room, uint64_t number)
{
    char *first = room + DIGITS - 1;
    for (*first = 0; first == room + DIGITS - 1 || number; number /= 10)
        *--first = '0' + number % 10;
    memmove(room, first, room + DIGITS - first);
    return room;
}

int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Sends also the pod's namespace and a netlink socket inside it, because the agent may not see the path, and then need
 * not enter the namespace. */
static int send_request(int fd, struct request *q)
{
    union { char room[CMSG_SPACE(2 * sizeof(int))]; struct cmsghdr head; } control = {0};
    struct iovec parts[] = {{q, sizeof *q}, {text, text_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    const char *path = getenv("CNI_NETNS");
    int pod = path && *path ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1, own = -1, inside = -1;

    if (pod >= 0 && (own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) >= 0 && !setns(pod, CLONE_NEWNET)) {
        inside = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0);
        if (setns(own, CLONE_NEWNET))
            FAIL("5", errno, "cannot return from the pod's namespace");
    }
    if (inside >= 0) {
        control.head.cmsg_level = SOL_SOCKET, control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(&control.head), (int[]){pod, inside}, 2 * sizeof(int));
        message.msg_control = &control, message.msg_controllen = sizeof control.room;
    }
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    for (size_t all = sizeof *q + text_size, done = sent; sent > 0 && done < all; done += sent)
        sent = send(fd, text + (done - sizeof *q), all - done, MSG_NOSIGNAL);
    return sent > 0 ? 0 : -1;
}

/* A connection wakes one of the agent's processes.  If that process is stopped, another connection wakes the next one,
 * which takes the first connection first. */
static void nudge(int fd, const struct sockaddr_un *address)
{
    if (poll(&(struct pollfd){fd, POLLIN, 0}, 1, NUDGE_AFTER))
        return;
    int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (other >= 0) {
        connect(other, (const void *)address, sizeof *address);
        close(other);
    }
}

/* Reads the part of the agent's answer that arrives in time; returns its size, and whether the agent's end is closed. */
static size_t receive(int fd, struct reply *r, int *closed)
{
    const char *limit = getenv("HPN_AGENT_TIMEOUT");
    const size_t head = offsetof(struct reply, text);
    int64_t deadline = now() + TAKEN_MOST - NUDGE_AFTER, left;
    size_t got = 0, all = 1;
    ssize_t n = -1;

    while (got < all && (left = deadline - now()) > 0 && poll(&(struct pollfd){fd, POLLIN, 0}, 1, left) > 0 &&
           (n = recv(fd, (char *)r + got, sizeof *r - got, 0)) > 0) {
        if (!got && r->word == 'T')
            deadline = now() + (limit ? atoi(limit) : 120) * 1000LL, all = head;
        if ((got += n) >= head && all <= head) {
            if (r->out > REPLY_MOST || r->err > REPLY_MOST)
                break;
            all = head + r->out + r->err;
        }
    }
    *closed = !n;
    return got;
}

/* Prints the agent's answer and ends this process.  Returns only if the agent will not act on the request; descriptors
 * close when the program is executed. */
static void ask_agent(size_t variables)
{
    static struct reply r;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    struct timeval timeout = {5, 0};
    socklen_t size = sizeof peer;
    const char *path = getenv("HPN_AGENT");
    uint32_t is_ipam = !strcmp(program_invocation_short_name, "hpn-ipam");
    struct request q = {"HPN1", "", is_ipam, variables, text_size - variables};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    path = path ? path : "/run/hpn/agent.sock";
    if (fd < 0 || !*path || strlen(path) >= sizeof address.sun_path)
        return;
    strcpy(address.sun_path, path);
    memcpy(q.version, carried.version, sizeof q.version);
    /* EAGAIN means a full queue; then this process does the work. */
    if (connect(fd, (void *)&address, sizeof address) || fcntl(fd, F_SETFL, 0) ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || (peer.uid && peer.uid != geteuid()) ||
        send_request(fd, &q))
        return;
    nudge(fd, &address);
    int closed;
    size_t got = receive(fd, &r, &closed);
    /* Until the agent confirms the request, we may give up: after the shutdown it cannot confirm. */
    if (!got) {
        shutdown(fd, SHUT_RDWR);
        recv(fd, &r.word, 1, MSG_DONTWAIT);
    }
    if (r.word != 'T')
        return;
    if (got < offsetof(struct reply, text) || got < offsetof(struct reply, text) + r.out + r.err) {
        if (!closed)
            FAIL("11", 0, "the agent took the request and did not answer; it may be done or not, so repeat it");
        /* Its process was killed.  This one finds in the journal what was begun, undoes it and begins again. */
        setenv("HPN_AGENT_ENDED", "1", 1);
        return;
    }
    print(2, r.text + r.out, r.err);
    print(1, r.text, r.out);
    _exit(r.code);
}

/* Restores stdin, which was read for the agent. */
static void rewind_input(size_t variables)
{
    int again = memfd_create("stdin", MFD_CLOEXEC);
    size_t size = text_size - variables;
    if (again < 0 || write(again, text + variables, size) != (ssize_t)size || lseek(again, 0, SEEK_SET) ||
        dup2(again, 0))
        FAIL("5", errno, "cannot keep stdin");
}

/* Sets HPN_FILE to this file's path, which only hpn install needs. */
static void name_this_file(void)
{
    static char path[PATH_MAX];
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0)
        setenv("HPN_FILE", path, 1);
}

/* Runs the loader by its descriptor.  The loader and Python open their files through the directory's descriptor. */
_Noreturn static void run_carried(int argc, char **argv)
{
    static const char loader[] = "/ld-hpn.so.2";
    int unpacked = carried_directory(), dir = fcntl(unpacked, F_DUPFD, 3), fd = openat(dir, loader + 1, O_RDONLY | O_CLOEXEC);
    char number[DIGITS], path[64], program[64], name[64], script[64];
    stpcpy(stpcpy(path, "/proc/self/fd/"), digits(number, dir));
    stpcpy(stpcpy(program, path), "/hpn");
    stpcpy(stpcpy(name, path), loader);
    stpcpy(stpcpy(script, path), "/boot.pyc");
    /* The process is about to get the loader's name, and an agent must know its own version. */
    setenv("HPN_ARGV0", argv[0], 1);
    setenv("HPN_VERSION", carried.version, 1);
    if (!cni)
        name_this_file();
    const char *first[] = {name, "--library-path", path, program, "-IB", "-Xutf8", script};
    const size_t count = sizeof first / sizeof *first;
    const char **words = calloc(count + argc, sizeof *words);
    if (!words)
        FAIL("5", errno, "cannot run ", program);
    memcpy(words, first, sizeof first);
    memcpy(words + count, argv + 1, argc * sizeof *words); /* with the NULL at their end */
    syscall(SYS_execveat, fd, "", words, environ, AT_EMPTY_PATH);
    FAIL("5", errno, "cannot run ", program);
}

/* Opens /dev/null in place of stdin, stdout and stderr that the caller closed: else the agent's socket gets their number,
 * and the answer would go back into it. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd >= 0 && fd <= 2;)
        fd = fcntl(fd, F_GETFD) < 0 ? open("/dev/null", O_RDWR) : fd + 1;
}

int main(int argc, char **argv, char **environment)
{
    fill_standard_streams();
    if (argc < 1)
        FAIL("4", 0, "called without a name");
    if (argc > 1 && !strcmp(argv[1], "hook"))
        hook(argc, argv);
    cni = getenv("CNI_COMMAND");
    if (cni && !isatty(0)) {
        for (; *environment && text_size + strlen(*environment) < VARIABLES_MOST; environment++)
            text_size = stpcpy(text + text_size, *environment) + 1 - text;
        size_t variables = text_size;
        for (ssize_t n; (n = read(0, text + text_size, sizeof text - text_size)) > 0;)
            text_size += n;
        if (text_size > variables + STDIN_MOST)
            FAIL("6", 0, "stdin is longer than 4 MiB");
        if (!*environment) /* all of it fitted in */
            ask_agent(variables);
        rewind_input(variables);
    }
    run_carried(argc, argv);
}
