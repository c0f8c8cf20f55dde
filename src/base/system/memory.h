/* Large buffers: arenas of tensors, token files, optimizer state.
 *
 * Everything is zeroed and aligned to 64 bytes; buffers of 4 MiB and more are aligned to 2 MiB, backed by
 * huge pages where the kernel grants them, and take real memory only when first touched. Because of that, an
 * allocation that succeeds does not prove that the memory is there: sum what a run needs and call
 * memory_check once, before it. */
#ifndef PGPT_BASE_SYSTEM_MEMORY_H
#define PGPT_BASE_SYSTEM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Allocate n_bytes (0 is allowed and gives a pointer that must be freed). `what` names the buffer in the
 * message: "activations". More than is available is a user error; *memory is NULL after any error. */
Status memory_alloc(void **memory, size_t n_bytes, const char *what, Error *error);

/* Make the system give the real memory of a buffer that was not touched yet, now and by all cores: a single
 * thread clears a few GB a second, and 100 GiB are half a minute. What is there stays. */
void memory_touch(void *memory, size_t n_bytes);

/* Give back; n_bytes must be what was asked for. NULL is allowed. */
void memory_free(void *memory, size_t n_bytes);

/* A user error "needs 12.3 GiB for WHAT, 3.1 GiB are free: ADVICE" if n_bytes is more than is available. The
 * advice says what to do instead; NULL leaves it out. */
Status memory_check(uint64_t n_bytes, const char *what, const char *advice, Error *error);

/* What may still be taken: the machine's MemAvailable or the room left in the tightest control group (v1 or
 * v2, page cache counted as free), whichever is lower. UINT64_MAX when the system does not say. */
uint64_t memory_available_bytes(void);

/* The same, reading ROOT/proc and ROOT/sys/fs/cgroup: a container's view from outside, or a test's. */
uint64_t memory_available_bytes_under(const char *root);

/* The most real memory this process ever held. */
uint64_t memory_resident_peak_bytes(void);

/* Products and sums of sizes that come from files or users: false, leaving *out alone, if the result does not
 * fit (for the int64 one also if an operand is negative: sizes are not). */
bool size_multiply(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);
bool int64_multiply(int64_t a, int64_t b, int64_t *out);

#endif
