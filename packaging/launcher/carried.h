/* Declarations that the parts of the launcher share. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Offsets of the carried files and their table in this file; their number and checksum; this file's size with them. */
struct carried { char version[24]; uint64_t start, table, count, sum, size; };
struct file { uint64_t offset, size; uint32_t mode; char path[108]; };

extern const char *cni; /* CNI_COMMAND, which a runtime sets */
extern int exit_status; /* after an error */
extern struct carried carried;
extern uid_t me;

/* Whether the error is a shortage of descriptors or memory.  Then it concerns the moment, and nothing that could not be
 * opened is known to be missing. */
int is_short(int number);

/* Ends with an error that the caller understands.  The code is a number as text; the texts are joined, and errno's text
 * goes behind them. */
_Noreturn void fail_with(const char *code, int number, const char *const *texts);
#define FAIL(code, number, ...) fail_with(code, number, (const char *const[]){__VA_ARGS__, NULL})

/* Runs an OCI hook by its words, and ends this process. */
_Noreturn void hook(int argc, char **argv);

/* The number as text; the room has DIGITS bytes. */
#define DIGITS 21
const char *digits(char *room, uint64_t number);

/* Milliseconds of a clock that never goes back. */
int64_t now(void);

/* Returns the carried program's directory, unpacked, and locked as in use until this process ends. */
int carried_directory(void);

/* Opens a directory; makes it if it does not exist.  Only we and root can write to it, or replace a directory above. */
int open_place(const char *path);

/* Whether we own it and no other user may write it; or no other user may even open it. */
int is_ours(const struct stat *st);
int is_ours_alone(const struct stat *st);

/* flock with a time limit: error 11 after LOCK_TIMEOUT seconds.  On a busy node the first of many commands unpacks for
 * all, and takes long. */
#define LOCK_TIMEOUT 60
void lock(int fd, int how, const char *what, const char *name);
