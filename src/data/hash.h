/* A 64-bit hash of bytes: fast, well mixed, the same on every little-endian machine. For tables and
 * fingerprints; it does not resist somebody who looks for collisions. */
#ifndef PGPT_DATA_HASH_H
#define PGPT_DATA_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t hash_mix(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 29)) * 0xA0761D6478BD642Fu;
    return x ^ (x >> 32);
}

/* Continue a hash with one value. */
static inline uint64_t hash_u64(uint64_t hash, uint64_t value) {
    return hash_mix(hash ^ hash_mix(value + 0x9E3779B97F4A7C15u)) + 0xE7037ED1A0B428DBu;
}

/* Continue a hash with bytes. The length goes in first, so that ("ab","c") and ("a","bc") differ. */
static inline uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes) {
    hash = (hash ^ n_bytes) * 0x9E3779B97F4A7C15u;
    for (; n_bytes >= 8; bytes += 8, n_bytes -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        hash = hash_mix(hash ^ word);
    }
    uint64_t word = 0;
    for (size_t i = 0; i < n_bytes; i++) word |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
    return hash_mix(hash ^ word);
}

#endif
