/* What the parts of the launcher share. */
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

/* Where in this file the carried ones begin, and their table; how many; their checksum; this file's size with them. */
struct carried { char version[24]; uint64_t start, table, count, sum, size; };
struct file { uint64_t offset, size; uint32_t mode; char path[108]; };

extern const char *cni; /* CNI_COMMAND: a runtime asks */
extern struct carried carried;
extern uid_t me;

/* Ends with an error the asker understands: the code is a number, the texts are joined, errno's own goes behind them. */
_Noreturn void fail_with(const char *code, int number, const char *const *texts);
#define FAIL(code, number, ...) fail_with(code, number, (const char *const[]){__VA_ARGS__, NULL})

/* The number's digits, in a room of so many. */
#define DIGITS 21
const char *digits(char *room, uint64_t number);

/* Milliseconds, of a clock that only goes on. */
int64_t now(void);

/* The carried program's directory, unpacked if need be, and locked as in use for as long as this process lives. */
int carried_directory(void);

/* A directory, made if need be, that nobody but us and root can put anything into, nor in the place of any above it. */
int open_place(const char *path);

/* Ours, and nobody else's to write; or even to open. */
int is_ours(const struct stat *st);
int is_ours_alone(const struct stat *st);

/* flock, with an end: error 11 after PATIENCE seconds. */
#define PATIENCE 10
void lock(int fd, int how, const char *what, const char *name);
