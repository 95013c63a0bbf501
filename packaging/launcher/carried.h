/* What launcher.c and carried.c share. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Where in this file the carried ones begin, and their table; how many; their checksum; this file's size with them. */
struct carried { char version[24]; uint64_t start, table, count, sum, size; };
struct file { uint64_t offset, size; uint32_t mode; char path[108]; };

extern const char *cni; /* CNI_COMMAND: a runtime asks */
extern struct carried carried;

/* Ends with an error the asker understands; the code is a number. */
_Noreturn void fail(const char *code, const char *what, const char *which, int number);

/* The carried program's directory, unpacked if need be, and locked as in use for as long as this process lives. */
const char *carried_directory(void);
