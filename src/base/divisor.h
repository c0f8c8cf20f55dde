/* Numbers that divide another: what a message offers in the place of one that does not. */
#ifndef PGPT_BASE_DIVISOR_H
#define PGPT_BASE_DIVISOR_H

#include <stddef.h>
#include <stdint.h>

/* The largest divisor of n that is `most` or less, the smallest that is `least` or more; n, most >= 1, and
 * least <= n. */
int64_t divisor_at_most(int64_t n, int64_t most);
int64_t divisor_at_least(int64_t n, int64_t least);

/* "choose --micro-batch 2 or --micro-batch 4": those of n that are next to `wanted`. */
const char *divisor_advice(const char *option, int64_t wanted, int64_t n, char *text, size_t n_bytes);

#endif
