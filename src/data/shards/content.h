/* Content: which bytes a file held, taken while they pass by, so that a second look at them can be compared
 * with the first. The hash does not depend on how many bytes come at a time. */
#ifndef PGPT_DATA_SHARDS_CONTENT_H
#define PGPT_DATA_SHARDS_CONTENT_H

#include "data/hash.h"

#include <stdbool.h>

typedef struct {
    uint64_t n_bytes, hash;
} Content;

/* {0} is the beginning. */
typedef struct {
    uint64_t n_bytes, hash;
    uint64_t word; /* the last n_bytes % 8 bytes, which wait for the rest of theirs */
} ContentHash;

static inline void content_add(ContentHash *content, const char *bytes, size_t n_bytes) {
    uint64_t hash = content->hash;
    for (; n_bytes > 0 && (content->n_bytes % 8 != 0 || n_bytes < 8); bytes++, n_bytes--) {
        content->word |= (uint64_t)(unsigned char)*bytes << 8 * (content->n_bytes % 8);
        if (++content->n_bytes % 8 != 0) continue;
        hash = hash_mix(hash ^ content->word) + 0x9E3779B97F4A7C15u;
        content->word = 0;
    }
    for (; n_bytes >= 8; bytes += 8, n_bytes -= 8, content->n_bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = hash_mix(hash ^ word) + 0x9E3779B97F4A7C15u;
    }
    content->hash = hash;
    if (n_bytes > 0) content_add(content, bytes, n_bytes); /* fewer than 8: the loop above takes them */
}

/* Of all that was added so far; more may follow. */
static inline Content content_of(const ContentHash *content) {
    return (Content){content->n_bytes, hash_u64(hash_mix(content->hash ^ content->word), content->n_bytes)};
}

static inline bool content_equal(Content a, Content b) {
    return a.n_bytes == b.n_bytes && a.hash == b.hash;
}

#endif
