/* The checksum of a shard's parts: blocks hashed one after the other, so that it can be taken while a file is
 * written or read. Any change within one 8-byte word is found for certain. Private to the shards' files. */
#ifndef PGPT_DATA_SHARDS_SHARD_CHECKSUM_H
#define PGPT_DATA_SHARDS_SHARD_CHECKSUM_H

#include "data/hash.h"

/* All blocks of a part have this size, but for the last one. */
enum { SHARD_BLOCK_BYTES = 1 << 16 };

static inline uint64_t shard_checksum_block(uint64_t checksum, const void *bytes, size_t n_bytes) {
    return hash_bytes(checksum, bytes, n_bytes);
}

static inline uint64_t shard_checksum(const void *bytes, size_t n_bytes) {
    uint64_t checksum = 0;
    for (const char *from = bytes; n_bytes > 0;) {
        size_t n = n_bytes < SHARD_BLOCK_BYTES ? n_bytes : SHARD_BLOCK_BYTES;
        checksum = shard_checksum_block(checksum, from, n);
        from += n;
        n_bytes -= n;
    }
    return checksum;
}

#endif
