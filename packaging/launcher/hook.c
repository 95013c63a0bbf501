/*
 * hpn hook memlock LIMIT [required]: an OCI hook, createRuntime, that hpn node writes into its CDI files.
 *
 * It raises the container's limit of locked memory (RLIMIT_MEMLOCK), which no CDI file can do otherwise.  Runtimes set no
 * limit after these hooks that the container's configuration does not list, and Kubernetes lists none.
 * The container's process is in the state on stdin (OCI runtime-spec, State).
 */
#include "carried.h"

#include <poll.h>
#include <sys/resource.h>

#define STATE_MOST (4 << 20)   /* bytes: a runtime may put all annotations of the pod into it */
#define STATE_TIMEOUT 4000     /* ms: less than the time that the CDI file gives to the hook */
#define PID_MOST (4 << 20)     /* PID_MAX_LIMIT of the kernel's include/linux/threads.h */

static char state[STATE_MOST + 1];

/* Reads all of stdin.  It ends by the deadline, because a hook that the runtime has to kill fails the container. */
static const char *read_state(void)
{
    int64_t deadline = now() + STATE_TIMEOUT, left;
    ssize_t n = 1;
    size_t size = 0;
    while (n > 0 && size < sizeof state) {
        if ((left = deadline - now()) <= 0 || poll(&(struct pollfd){0, POLLIN, 0}, 1, left) <= 0)
            return "stdin, the container's state, does not end";
        if ((n = read(0, state + size, sizeof state - size)) > 0)
            size += n;
    }
    if (n < 0 || size == sizeof state)
        return n < 0 ? "stdin, the container's state, cannot be read" : "the container's state is longer than 4 MiB";
    return strlen(state) == size ? NULL : "the container's state has a zero byte";
}

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

static const char *skip_string(const char *at)
{
    while (*++at && *at != '"')
        at += *at == '\\' && at[1];
    return at + !!*at;
}

/* Returns the number at this place if it can be a process of the container, else 0. */
static pid_t process(const char *at)
{
    char *end;
    long pid = *at >= '1' && *at <= '9' ? strtol(at, &end, 10) : 0;
    return pid > 1 && pid <= PID_MOST && strchr(",} \t\r\n", *end) && pid != getpid() && pid != getppid() ? pid : 0;
}

/* Returns the member "pid" of the outermost object; 0 if it is missing, occurs twice, or cannot be the container's.
 * Pods' authors write the annotations, which are in strings of an inner object. */
static pid_t container(const char *at)
{
    int depth = 0, count = 0;
    pid_t found = 0;
    at = skip_blanks(at);
    if (*at != '{')
        return 0;
    do {
        if (*at == '"') {
            const char *word = at, *behind = skip_blanks(at = skip_string(at));
            if (depth == 1 && *behind == ':' && !strncmp(word, "\"pid\"", at - word))
                found = process(skip_blanks(behind + 1)), count++;
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0 && *at);
    return !depth && !*skip_blanks(at) && count == 1 ? found : 0;
}

/* Returns the limit in bytes; 0 if the text is none. */
static rlim_t parsed(const char *text)
{
    if (!strcmp(text, "unlimited"))
        return RLIM_INFINITY;
    return strlen(text) < 19 && !text[strspn(text, "0123456789")] ? strtoull(text, NULL, 10) : 0;
}

static rlim_t larger(rlim_t one, rlim_t other)
{
    return one > other ? one : other;
}

void hook(int argc, char **argv)
{
    const char *why, *text = argc > 3 ? argv[3] : "";
    struct rlimit limit;
    rlim_t wanted = parsed(text);
    pid_t pid;
    exit_status = !strcmp(argv[argc - 1], "required");
    if (argc < 4 || strcmp(argv[2], "memlock") || !wanted)
        FAIL("4", 0, "hook: write: hpn hook memlock unlimited|BYTES [required]");
    if ((why = read_state()))
        FAIL("5", 0, "hook memlock ", text, ": ", why);
    if (!(pid = container(state)))
        FAIL("6", 0, "hook memlock ", text, ": the container's state has no pid of a container");
    if (prlimit(pid, RLIMIT_MEMLOCK, NULL, &limit))
        FAIL("5", errno, "hook memlock ", text, ": the container's limit cannot be read");
    limit.rlim_cur = larger(limit.rlim_cur, wanted), limit.rlim_max = larger(limit.rlim_max, wanted);
    if (prlimit(pid, RLIMIT_MEMLOCK, &limit, NULL))
        FAIL("5", errno, "hook memlock ", text, ": the container's limit cannot be raised");
    _exit(0);
}
