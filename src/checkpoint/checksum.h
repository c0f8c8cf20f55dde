/* A 64-bit checksum of a stream of bytes, at memory speed. Any change within one 8-byte word is found for
 * certain, anything else but for one case in 2^64. It guards against damage, not against forgery.
 *
 *     Checksum checksum = checksum_start();
 *     checksum_add(&checksum, bytes, n_bytes);   // in pieces of any size
 *     uint64_t value = checksum_value(&checksum); */
#ifndef PGPT_CHECKPOINT_CHECKSUM_H
#define PGPT_CHECKPOINT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { CHECKSUM_STRIPE_BYTES = 32 };

typedef struct {
    uint64_t lane[CHECKSUM_STRIPE_BYTES / 8];
    uint64_t n_bytes;
    unsigned char rest[CHECKSUM_STRIPE_BYTES]; /* the n_bytes % 32 that do not fill a stripe yet */
} Checksum;

Checksum checksum_start(void);
void checksum_add(Checksum *checksum, const void *bytes, size_t n_bytes);
uint64_t checksum_value(const Checksum *checksum); /* may be asked in between */

/* Of a whole file, and its size. */
Status checksum_file(const char *path, uint64_t *value, uint64_t *n_bytes, Error *error);

#endif
