/*
 * A directory for a program that root runs, which other users can neither change, nor replace, nor lock.
 */
#include "carried.h"

#include <sys/file.h>
#include <sys/sysmacros.h>

#define LINKS_MOST 40

uid_t me;
static uid_t top; /* the owner of "/": root, or in a user namespace the user that root appears as */

int is_ours(const struct stat *st)
{
    return st->st_uid == me && !(st->st_mode & 022);
}

int is_ours_alone(const struct stat *st)
{
    return st->st_uid == me && !(st->st_mode & 077);
}

_Noreturn static void refuse(const char *path, const char *why, const char *which, const char *remedy)
{
    which = *which ? which : "/";
    FAIL("5", 0, "HPN_PROGRAM_DIR=", path, ": ", why, which, "; ", remedy, " ", which, ", or set another directory");
}

_Noreturn static void give_up(const char *path, int number)
{
    FAIL("5", number, "HPN_PROGRAM_DIR=", path, ": it cannot be made or opened");
}

/* A user who may change a directory or a link can replace all below it.  In a sticky directory that user cannot replace
 * another user's files, and each step checks the owner.  A user's own directories are that user's responsibility. */
static void check(const struct stat *st, const char *path, const char *which)
{
    if (st->st_uid && st->st_uid != me && st->st_uid != top)
        refuse(path, "another user owns ", which, "chown");
    if (!S_ISLNK(st->st_mode) && st->st_mode & 022 && !(st->st_mode & S_ISVTX) && !(me && st->st_uid == me))
        refuse(path, "others may write to ", which, "chmod go-w");
}

/* Takes the next name from a path and returns its size: 0 at the end, more than NAME_MAX if the name is too long. */
static size_t next(char *rest, char *name)
{
    char *start = rest + strspn(rest, "/");
    size_t size = strcspn(start, "/");
    if (size > NAME_MAX)
        return size;
    memcpy(name, start, size);
    name[size] = 0;
    memmove(rest, start + size, strlen(start + size) + 1);
    return size;
}

/* Opens the next directory by descriptor; makes it if it is absent. */
static int step(int at, const char *name, int is_last, struct stat *st)
{
    int fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && (!mkdirat(at, name, is_last ? 0700 : 0755) || errno == EEXIST))
        fd = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 && !fstat(fd, st) ? fd : -1;
}

/* Puts the link's target in front of the rest of the path, and returns the directory that it starts from. */
static int follow(int link, int from, char *rest, size_t room)
{
    static char target[PATH_MAX];
    ssize_t size = readlinkat(link, "", target, sizeof target);
    if (size <= 0 || size == sizeof target || size + strlen(rest) >= room)
        return -1;
    memmove(rest + size, rest, strlen(rest) + 1);
    memcpy(rest, target, size);
    return *target == '/' ? open("/", O_PATH | O_CLOEXEC) : dup(from);
}

/* Goes by descriptors from "/", so the checked directories are those that are used. */
int open_place(const char *path)
{
    static char rest[2 * PATH_MAX], seen[2 * PATH_MAX + NAME_MAX];
    char name[NAME_MAX + 1];
    struct stat st;
    size_t size;
    int at = open("/", O_PATH | O_CLOEXEC), below, links = 0;
    if (at < 0 || fstat(at, &st))
        give_up(path, errno);
    top = st.st_uid;
    for (strlcpy(rest, path, PATH_MAX); (size = next(rest, name)); at = below) {
        int is_last = !rest[strspn(rest, "/")];
        check(&st, path, seen);
        if (size > NAME_MAX || strlen(seen) + size >= sizeof seen - 1)
            give_up(path, ENAMETOOLONG);
        if ((below = step(at, name, is_last, &st)) < 0)
            give_up(path, errno);
        strcat(strcat(seen, "/"), name);
        if (S_ISLNK(st.st_mode) && !is_last) {
            int link = below;
            check(&st, path, seen);
            below = links++ < LINKS_MOST ? follow(link, at, rest, sizeof rest) : -1;
            if (below < 0 || fstat(below, &st))
                give_up(path, ELOOP);
            close(link);
        } else if (!S_ISDIR(st.st_mode)) {
            refuse(path, S_ISLNK(st.st_mode) ? "a link is at " : "no directory is at ", seen, "remove");
        }
        close(at);
    }
    if (st.st_uid != me)
        refuse(path, "another user owns ", seen, "chown");
    if (!is_ours(&st))
        refuse(path, "others may write to ", seen, "remove");
    int base = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (base < 0)
        give_up(path, errno);
    close(at);
    return base;
}

/* Returns the process that holds the lock, as digits; NULL if it is unknown. */
static const char *holder(int fd)
{
    static char all[1 << 16];
    struct stat st;
    size_t size = 0;
    int locks = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    for (ssize_t n; locks >= 0 && (n = read(locks, all + size, sizeof all - 1 - size)) > 0;)
        size += n;
    if (fstat(fd, &st))
        return NULL;
    /* 1: FLOCK  ADVISORY  WRITE 14400 00:1b:19897 0 EOF */
    for (char *line = all, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        char *word = strstr(line, "FLOCK ");
        if (!word || strstr(line, "->"))
            continue;
        char *pid = word + strcspn(word, "-0123456789"), *after;
        long number = strtol(pid, &after, 10);
        unsigned long maj = strtoul(after, &word, 16), min = strtoul(word + !!*word, &word, 16);
        if (number > 0 && strtoull(word + !!*word, NULL, 10) == st.st_ino && maj == major(st.st_dev) && min == minor(st.st_dev)) {
            *after = 0;
            return pid;
        }
    }
    return NULL;
}

void lock(int fd, int how, const char *what, const char *name)
{
    int64_t deadline = now() + LOCK_TIMEOUT * 1000;
    while (flock(fd, how | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            FAIL("5", errno, "cannot lock ", what, "/", name);
        if (now() > deadline) {
            const char *pid = holder(fd);
            FAIL("11", 0, what, "/", name, " is locked", pid ? " by process " : "", pid ? pid : "", "; try again, and see: lslocks");
        }
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}
