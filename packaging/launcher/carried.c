/*
 * The program that the launcher carries: packaging/pack.py appends files and their table, and says here where.
 *
 * They are unpacked once per version into a directory that nobody else may write to; a shared lock held on a version's
 * directory says that it is in use, so that a newer version's first run can remove those that are not.
 */
#include "carried.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

struct carried carried = {.version = "packed over this"};
static const uint8_t *self; /* this file, mapped */
static const struct file *files;
static uid_t me;

static void map_carried(void)
{
    struct stat st;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        fail("5", "cannot read myself; is /proc mounted", "", errno);
    if ((uint64_t)st.st_size != carried.size)
        fail("5", "this file is cut short; install it again", "", 0);
    self = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (self == MAP_FAILED)
        fail("5", "cannot map myself", "", errno);
    close(fd);
    files = (const void *)(self + carried.table);
}

/* Ours, and nobody else's to write. */
static int is_ours(const struct stat *st)
{
    return st->st_uid == me && !(st->st_mode & 022);
}

/* This version's directory, locked as in use, each file in it as it was carried; -1 if it is not. */
static int open_version(int base)
{
    struct stat st, linked;
    int dir = openat(base, carried.version, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    /* Who removes it holds it exclusively: what we then hold may have no name any more. */
    int whole = dir >= 0 && !flock(dir, LOCK_SH) && !fstat(dir, &st) && is_ours(&st) &&
                !fstatat(base, carried.version, &linked, AT_SYMLINK_NOFOLLOW) && st.st_ino == linked.st_ino;
    for (uint32_t i = 0; whole && i < carried.count; i++)
        whole = !fstatat(dir, files[i].path, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) && is_ours(&st) &&
                (uint64_t)st.st_size == files[i].size;
    if (whole || dir < 0)
        return dir;
    close(dir);
    return -1;
}

/* A directory of ours, two levels deep at most; in use by nobody, or left half-made by one that died. */
static void remove_tree(int parent, const char *name)
{
    int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = dir < 0 || flock(dir, LOCK_EX | LOCK_NB) ? NULL : fdopendir(dir);
    for (struct dirent *e; entries && (e = readdir(entries));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(dir, e->d_name, 0) && errno == EISDIR)
            remove_tree(dir, e->d_name);
    if (entries && !closedir(entries))
        unlinkat(parent, name, AT_REMOVEDIR);
}

/* All that the path names before its last slash. */
static void make_parents(int dir, char *path)
{
    for (char *slash = path; (slash = strchr(slash + 1, '/')); *slash = '/') {
        *slash = 0;
        mkdirat(dir, path, 0755);
    }
}

/* With the base's lock held: one unpacks, the others wait and find it done. */
static void unpack(int base)
{
    uint64_t sum = 14695981039346656037ULL; /* FNV-1a by words, of all that is carried */
    for (const uint64_t *w = (const void *)(self + carried.start); w < (const uint64_t *)(self + carried.size); w++)
        sum = (sum ^ *w) * 1099511628211ULL;
    if (sum != carried.sum)
        fail("5", "this file was altered; install it again", "", 0);
    remove_tree(base, carried.version);
    remove_tree(base, "new");
    int dir = mkdirat(base, "new", 0755) ? -1 : openat(base, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (uint32_t i = 0; i < carried.count; i++) {
        struct file f = files[i];
        make_parents(dir, f.path);
        int fd = openat(dir, f.path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, f.mode);
        for (uint64_t done = 0, n; done < f.size; done += n)
            if ((n = write(fd, self + f.offset + done, f.size - done)) == (uint64_t)-1)
                fail("5", "cannot unpack ", f.path, errno);
        close(fd);
    }
    if (dir < 0 || syncfs(dir) || renameat(base, "new", base, carried.version))
        fail("5", "cannot unpack ", carried.version, errno);
    close(dir);
    DIR *others = fdopendir(openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (struct dirent *e; others && (e = readdir(others));)
        if (*e->d_name != '.' && strcmp(e->d_name, carried.version))
            remove_tree(base, e->d_name);
}

/* Where versions lie, made if need be; it must be ours alone to write. */
static int open_base(char *path)
{
    struct stat st;
    const char *home = me ? getenv("HOME") : NULL, *chosen = getenv("HPN_PROGRAM_DIR");
    int is_chosen = chosen && *chosen == '/';
    strlcpy(path, is_chosen ? chosen : home ? home : "/var/lib/cni/hpn/program", PATH_MAX);
    if (home && !is_chosen)
        strlcat(path, "/.cache/hpn", PATH_MAX);
    make_parents(AT_FDCWD, path);
    mkdir(path, 0755);
    int base = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (base < 0 || fstat(base, &st))
        fail("5", "cannot make ", path, errno);
    if (!is_ours(&st))
        fail("5", "others may write to ", path, 0);
    return base;
}

const char *carried_directory(void)
{
    static char path[PATH_MAX + 20], resolved[PATH_MAX];
    me = geteuid();
    map_carried();
    int base = open_base(path), dir = open_version(base);
    if (dir < 0 && !flock(base, LOCK_EX) && (dir = open_version(base)) < 0) {
        unpack(base);
        dir = open_version(base);
    }
    if (dir < 0)
        fail("5", "cannot use what was unpacked into ", path, errno);
    close(base);
    strcat(strcat(path, "/"), carried.version);
    return realpath(path, resolved) ? resolved : path;
}
