/*
 * The program that the launcher carries.  packaging/pack.py appends its files and a table of them to the launcher, and
 * writes their offsets into "carried".
 *
 * The files are unpacked once per version, into a directory that no other user may open, below directories that no
 * other user may change (place.c).  A process holds a shared lock on its version's directory, which marks it as in use.
 * The first run of a newer version removes versions that are not in use.
 *
 * The files that were checked are the files that run.  The loader is executed by its descriptor, and opens the rest
 * through the descriptor of the version's directory (/proc/self/fd/N), so renaming or replacing a directory above has no
 * effect.  Only root, or the user who owns the directory, can change a file in it.  A changed file has another ctime,
 * which no process can set.  A checksum of all 28 MB would take a third of every start.
 */
#include "carried.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/statvfs.h>

#define FNV_OFFSET 14695981039346656037ULL
#define FNV_PRIME 1099511628211ULL
#define STAMP ".stamp" /* the sum of look() after unpacking */
#define LOCK ".lock"

struct carried carried = {.version = "packed over this"};
static const uint8_t *self; /* this file, mapped */
static const struct file *files;
static const char *place; /* the directory of all versions, for messages */

static void map_carried(void)
{
    struct stat st;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        FAIL("5", errno, "mount a procfs of this PID namespace on /proc (mount -t proc proc /proc): /proc/self/exe cannot be opened");
    if ((uint64_t)st.st_size != carried.size)
        FAIL("5", 0, "this file is cut short; install it again");
    self = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (self == MAP_FAILED)
        FAIL("5", errno, "cannot map myself");
    close(fd);
    files = (const void *)(self + carried.table);
}

/* FNV-1a, by words. */
static uint64_t mixed(uint64_t sum, uint64_t word)
{
    return (sum ^ word) * FNV_PRIME;
}

static uint64_t mixed_in(uint64_t sum, const struct stat *st)
{
    return mixed(mixed(mixed(sum, st->st_ctim.tv_sec), st->st_ctim.tv_nsec), st->st_mode);
}

/* Checks each directory in the path that is not in the path before it. */
static int look_above(int dir, const char *path, const char *before, uint64_t *sum)
{
    struct stat st;
    char name[sizeof files->path];
    for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
        size_t size = slash - path;
        if (!strncmp(path, before, size + 1))
            continue;
        memcpy(name, path, size);
        name[size] = 0;
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) || !is_ours_alone(&st))
            return 0;
        *sum = mixed_in(*sum, &st);
    }
    return 1;
}

/* Whether each file and directory exists and is ours alone, and each file has its size.  The sum changes with any. */
static int look(int dir, uint64_t *sum)
{
    struct stat st;
    *sum = FNV_OFFSET;
    for (uint32_t i = 0; i < carried.count; i++) {
        if (!look_above(dir, files[i].path, i ? files[i - 1].path : "", sum) ||
            fstatat(dir, files[i].path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) || !is_ours_alone(&st) ||
            (uint64_t)st.st_size != files[i].size)
            return 0;
        *sum = mixed_in(*sum, &st);
    }
    return 1;
}

static int is_as_unpacked(int dir)
{
    uint64_t found, noted = 0;
    int fd = openat(dir, STAMP, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* it may be a FIFO */
    if (fd < 0 && is_short(errno))
        FAIL("11", errno, "cannot open ", place, "/", carried.version, "/" STAMP);
    if (fd < 0)
        return 0;
    int is_noted = read(fd, &noted, sizeof noted) == sizeof noted;
    close(fd);
    return is_noted && look(dir, &found) && found == noted;
}

/* Returns this version's directory, locked as in use; -1 if it is absent or not as it was unpacked. */
static int open_version(int base)
{
    struct stat st, linked;
    int dir = openat(base, carried.version, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 && is_short(errno))
        FAIL("11", errno, "cannot open ", place, "/", carried.version);
    if (dir < 0)
        return -1;
    /* Check the mode first, because another user who can open it might hold its lock. */
    if (!fstat(dir, &st) && is_ours_alone(&st)) {
        lock(dir, LOCK_SH, place, carried.version);
        /* A process removes it under an exclusive lock, so the directory that we have locked may have lost its name. */
        if (!fstatat(base, carried.version, &linked, AT_SYMLINK_NOFOLLOW) && st.st_ino == linked.st_ino &&
            is_as_unpacked(dir))
            return dir;
    }
    close(dir);
    return -1;
}

/* Removes a directory of ours that is not in use, or that a process left incomplete when it died. */
static void remove_tree(int parent, const char *name)
{
    int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = dir < 0 || flock(dir, LOCK_EX | LOCK_NB) ? NULL : fdopendir(dir);
    if (!entries && dir >= 0)
        close(dir);
    for (struct dirent *e; entries && (e = readdir(entries));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(dir, e->d_name, 0) && errno == EISDIR)
            remove_tree(dir, e->d_name);
    if (entries && !closedir(entries))
        unlinkat(parent, name, AT_REMOVEDIR);
}

/* Whether it is the name of a version's directory, or of a version that was put aside or is incomplete. */
static int is_version(const char *name)
{
    return !strcmp(name, "new") || !strncmp(name, "old-", 4) || (strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16);
}

/* Removes other versions and their remains, and no other files. */
static void remove_others(int base)
{
    int again = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), is_only_ours = 1;
    DIR *others = again < 0 ? NULL : fdopendir(again);
    for (struct dirent *e; others && (e = readdir(others));) {
        if (is_version(e->d_name) && strcmp(e->d_name, carried.version))
            remove_tree(base, e->d_name);
        is_only_ours &= is_version(e->d_name) || *e->d_name == '.';
    }
    if (others)
        closedir(others);
    /* An older version made it readable for all users. */
    if (is_only_ours)
        fchmod(base, 0700);
}

/* Makes the directories in the path. */
static void make_parents(int dir, const char *path)
{
    char name[sizeof files->path];
    for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
        memcpy(name, path, slash - path);
        name[slash - path] = 0;
        if (!mkdirat(dir, name, 0700))
            fchmodat(dir, name, 0700, 0);
    }
}

static void write_file(int dir, const char *name, const void *data, size_t size, mode_t mode)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    for (ssize_t n; fd >= 0 && size; data = (const char *)data + n, size -= n)
        if ((n = write(fd, data, size)) <= 0)
            break;
    if (fd < 0 || size || fchmod(fd, mode))
        FAIL("5", errno, "cannot unpack ", place, "/", name);
    close(fd);
}

/* Removes or renames the directory of this version: it is damaged, or other users may read it, and it may be in use. */
static void put_aside(int base)
{
    uint64_t number;
    char aside[DIGITS + 4] = "old-";
    remove_tree(base, carried.version);
    if (getrandom(&number, sizeof number, 0) == sizeof number) {
        digits(aside + 4, number);
        renameat(base, carried.version, base, aside);
    }
}

/* Call this with the base's lock held: one process unpacks, the others wait and find the result. */
static void unpack(int base)
{
    uint64_t sum = FNV_OFFSET; /* of all carried data */
    for (const uint64_t *w = (const void *)(self + carried.start); w < (const uint64_t *)(self + carried.size); w++)
        sum = mixed(sum, *w);
    if (sum != carried.sum)
        FAIL("5", 0, "this file was altered; install it again");
    put_aside(base);
    remove_tree(base, "new");
    int dir = mkdirat(base, "new", 0700) ? -1 : openat(base, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || fchmod(dir, 0700))
        FAIL("5", errno, "cannot unpack ", place, "/", carried.version);
    for (uint32_t i = 0; i < carried.count; i++) {
        make_parents(dir, files[i].path);
        write_file(dir, files[i].path, self + files[i].offset, files[i].size, files[i].mode & 0700);
    }
    look(dir, &sum);
    write_file(dir, STAMP, &sum, sizeof sum, 0600);
    if (syncfs(dir) || renameat(base, "new", base, carried.version))
        FAIL("5", errno, "cannot unpack ", place, "/", carried.version);
    close(dir);
    remove_others(base);
}

/* Locks out other processes that would unpack.  The lock is a separate file that no other user can open.  Other users
 * may have opened the base, which an older version made, and can lock a directory that they have opened. */
static int lock_base(int base)
{
    struct stat st;
    int fd = openat(base, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 || fstat(fd, &st))
        FAIL("5", errno, "cannot open ", place, "/" LOCK);
    if (!S_ISREG(st.st_mode) || !is_ours_alone(&st))
        FAIL("5", 0, place, "/" LOCK " is not mine alone; remove it");
    lock(fd, LOCK_EX, place, LOCK);
    return fd;
}

/* Opens the directory of all versions; makes it if it does not exist. */
static int open_base(void)
{
    static char path[PATH_MAX];
    struct statvfs st;
    const char *home = me ? getenv("HOME") : NULL, *chosen = getenv("HPN_PROGRAM_DIR");
    int is_chosen = chosen && *chosen;
    if (is_chosen && *chosen != '/')
        FAIL("5", 0, "HPN_PROGRAM_DIR=", chosen, ": not an absolute path; set one, or none");
    place = is_chosen ? chosen : home ? home : "/var/lib/cni/hpn/program";
    if (strlcpy(path, place, sizeof path) >= sizeof path ||
        (home && !is_chosen && strlcat(path, "/.cache/hpn", sizeof path) >= sizeof path))
        FAIL("5", ENAMETOOLONG, is_chosen ? "HPN_PROGRAM_DIR" : "HOME");
    place = path;
    int base = open_place(path);
    if (!fstatvfs(base, &st) && st.f_flag & ST_NOEXEC)
        FAIL("5", 0, place, " is on a file system that is mounted noexec, and the program cannot run there; mount it exec, or set HPN_PROGRAM_DIR in the caller's environment to a directory on another file system, such as /opt/cni/hpn");
    return base;
}

int carried_directory(void)
{
    me = geteuid();
    map_carried();
    int base = open_base(), dir = open_version(base);
    if (dir < 0) {
        int held = lock_base(base);
        if ((dir = open_version(base)) < 0) {
            unpack(base);
            dir = open_version(base);
        }
        close(held);
    }
    if (dir < 0)
        FAIL("5", errno, "cannot use what was unpacked into ", place);
    close(base);
    return dir;
}
