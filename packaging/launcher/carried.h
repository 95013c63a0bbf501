/* What launcher.c and carried.c share. */
#pragma once

struct trailer { char magic[8], version[16]; uint64_t start, table, sum; uint32_t files, unused; };
struct file { uint64_t offset, size; uint32_t mode; char path[108]; };

extern const char *cni; /* CNI_COMMAND: a runtime asks */

/* Ends with an error the asker understands. */
_Noreturn void fail(int code, const char *what, const char *which, int number);

/* Finds what is carried, and its version: 16 hexadecimal digits. */
const char *find_carried(void);

/* The carried program's directory, unpacked if need be, and locked as in use for as long as this process lives. */
const char *carried_directory(void);
