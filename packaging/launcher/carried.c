/*
 * The program that the launcher carries: packaging/pack.py appends files, their table and a trailer.
 *
 * They are unpacked once per version into a directory that nobody else may write to; a shared lock held on a version's
 * directory says that it is in use, so that a newer version's first run can remove those that are not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carried.h"

static const uint8_t *self; /* this file, mapped */
static const struct trailer *carried;
static const struct file *files;
static char version[17];

const char *find_carried(void)
{
    struct stat st;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        fail(5, "cannot read myself; is /proc mounted", "", errno);
    self = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (self == MAP_FAILED)
        fail(5, "cannot map myself", "", errno);
    carried = (const void *)(self + st.st_size - sizeof *carried);
    if (memcmp(carried->magic, "HPNPACK1", 8))
        fail(5, "this file is cut short; install it again", "", 0);
    files = (const void *)(self + carried->table);
    memcpy(version, carried->version, sizeof carried->version);
    return version;
}

/* Whether a file is as it was carried: ours, of its size, nobody else's to write. */
static int is_whole(int dir, const struct file *f)
{
    struct stat st;
    return !fstatat(dir, f->path, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & 022) && (uint64_t)st.st_size == f->size;
}

/* This version's directory, whole and locked as in use; -1 if it is not. */
static int open_version(int base)
{
    struct stat st, linked;
    int dir = openat(base, version, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (dir < 0)
        return -1;
    /* Who removes it holds it exclusively: what we then hold may have no name any more. */
    if (flock(dir, LOCK_SH) || fstat(dir, &st) || fstatat(base, version, &linked, AT_SYMLINK_NOFOLLOW) ||
        st.st_ino != linked.st_ino || st.st_uid != geteuid() || st.st_mode & 022)
        goto not;
    for (uint32_t i = 0; i < carried->files; i++)
        if (!is_whole(dir, &files[i]))
            goto not;
    return dir;
not:
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

/* With the base's lock held: one unpacks, the others wait and find it done. */
static void unpack(int base)
{
    uint64_t sum = 14695981039346656037ULL; /* FNV-1a by words, of all that lies between start and trailer */
    char path[128];
    for (const uint64_t *w = (const void *)(self + carried->start); w < (const uint64_t *)carried; w++)
        sum = (sum ^ *w) * 1099511628211ULL;
    if (sum != carried->sum)
        fail(5, "this file was altered; install it again", "", 0);
    remove_tree(base, version);
    remove_tree(base, "new");
    int dir = mkdirat(base, "new", 0755) ? -1 : openat(base, "new", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (uint32_t i = 0; i < carried->files; i++) {
        const struct file *f = &files[i];
        for (const char *slash = f->path; (slash = strchr(slash, '/')); slash++) {
            snprintf(path, sizeof path, "%.*s", (int)(slash - f->path), f->path);
            mkdirat(dir, path, 0755);
        }
        int fd = openat(dir, f->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, f->mode);
        for (uint64_t done = 0, n; done < f->size; done += n)
            if ((n = write(fd, self + f->offset + done, f->size - done)) == (uint64_t)-1)
                fail(5, "cannot unpack ", f->path, errno);
        close(fd);
    }
    if (dir < 0 || syncfs(dir) || renameat(base, "new", base, version))
        fail(5, "cannot unpack ", version, errno);
    close(dir);
    DIR *others = fdopendir(openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (struct dirent *e; others && (e = readdir(others));)
        if (*e->d_name != '.' && strcmp(e->d_name, version))
            remove_tree(base, e->d_name);
}

/* Where versions lie, made if need be; it must be ours alone to write. */
static int open_base(char *path)
{
    struct stat st;
    const char *home = getenv("HOME"), *chosen = getenv("HPN_PROGRAM_DIR");
    if (chosen && *chosen == '/')
        snprintf(path, PATH_MAX, "%s", chosen);
    else if (!geteuid() || !home)
        strcpy(path, "/var/lib/cni/hpn/program");
    else
        snprintf(path, PATH_MAX, "%s/.cache/hpn", home);
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    mkdir(path, 0755);
    int base = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (base < 0 || fstat(base, &st))
        fail(5, "cannot make ", path, errno);
    if (st.st_uid != geteuid() || st.st_mode & 022)
        fail(5, "others may write to ", path, 0);
    return base;
}

const char *carried_directory(void)
{
    static char path[PATH_MAX + 20];
    int base = open_base(path), dir = open_version(base);
    if (dir < 0) {
        flock(base, LOCK_EX);
        if ((dir = open_version(base)) < 0) {
            unpack(base);
            dir = open_version(base);
        }
    }
    if (dir < 0)
        fail(5, "cannot use what was unpacked into ", path, errno);
    close(base);
    strcat(strcat(path, "/"), version);
    return path;
}
