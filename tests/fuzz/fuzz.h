/* What the fuzz targets share: bytes as a file, and a check that ends the process.
 *
 * A target is one file fuzz_NAME.c with LLVMFuzzerTestOneInput; its seeds lie in corpus/NAME. `make fuzz` builds and
 * runs them all. */
#ifndef PGPT_TESTS_FUZZ_FUZZ_H
#define PGPT_TESTS_FUZZ_FUZZ_H

#ifndef _GNU_SOURCE
#    define _GNU_SOURCE /* memfd_create */
#endif

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* What must hold for any input; libFuzzer keeps the input that broke it. */
#define FUZZ_CHECK(condition)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* The path of a file in memory that holds these bytes until the next call; `which` tells several apart. */
static inline const char *fuzz_file(int which, const void *bytes, size_t n_bytes) {
    enum { N_FILES = 3 };
    static int descriptor[N_FILES];
    static char path[N_FILES][64];
    if (!descriptor[which]) {
        descriptor[which] = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_CHECK(descriptor[which] > 0);
        snprintf(path[which], sizeof path[which], "/proc/self/fd/%d", descriptor[which]);
    }
    FUZZ_CHECK(ftruncate(descriptor[which], 0) == 0);
    FUZZ_CHECK(pwrite(descriptor[which], bytes, n_bytes, 0) == (ssize_t)n_bytes);
    return path[which];
}

#endif
