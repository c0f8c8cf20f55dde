/* Four lanes of 8-byte words, so that the multiplications of one stripe overlap. Every step is invertible: a
 * lane that differs in one place differs from there on, whatever the later bytes are, and the final mix keeps
 * lanes apart. That is the promise about one changed word. */
#include "checkpoint/checksum.h"

#include "base/file/file.h"
#include "data/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_LANES = CHECKSUM_STRIPE_BYTES / 8, BUFFER_BYTES = 1 << 20 };

static uint64_t step(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * 0x9E3779B97F4A7C15u;
    return lane << 29 | lane >> 35;
}

static void add_stripes(Checksum *checksum, const unsigned char *bytes, size_t n_stripes) {
    uint64_t lane[N_LANES];
    memcpy(lane, checksum->lane, sizeof lane);
    for (; n_stripes > 0; n_stripes--, bytes += CHECKSUM_STRIPE_BYTES) {
        uint64_t word[N_LANES];
        memcpy(word, bytes, sizeof word);
        for (int i = 0; i < N_LANES; i++) lane[i] = step(lane[i], word[i]);
    }
    memcpy(checksum->lane, lane, sizeof lane);
}

Checksum checksum_start(void) {
    Checksum checksum = {0};
    for (int i = 0; i < N_LANES; i++) checksum.lane[i] = hash_mix((uint64_t)i + 1);
    return checksum;
}

void checksum_add(Checksum *checksum, const void *bytes, size_t n_bytes) {
    const unsigned char *from = bytes;
    size_t n_rest = checksum->n_bytes % CHECKSUM_STRIPE_BYTES;
    checksum->n_bytes += n_bytes;
    if (n_rest > 0) {
        size_t n = CHECKSUM_STRIPE_BYTES - n_rest < n_bytes ? CHECKSUM_STRIPE_BYTES - n_rest : n_bytes;
        memcpy(checksum->rest + n_rest, from, n);
        if (n_rest + n < CHECKSUM_STRIPE_BYTES) return;
        add_stripes(checksum, checksum->rest, 1);
        from += n;
        n_bytes -= n;
    }
    add_stripes(checksum, from, n_bytes / CHECKSUM_STRIPE_BYTES);
    size_t n_left = n_bytes % CHECKSUM_STRIPE_BYTES;
    if (n_left > 0) memcpy(checksum->rest, from + n_bytes - n_left, n_left);
}

uint64_t checksum_value(const Checksum *checksum) {
    Checksum last = *checksum;
    size_t n_rest = last.n_bytes % CHECKSUM_STRIPE_BYTES;
    memset(last.rest + n_rest, 0,
           CHECKSUM_STRIPE_BYTES - n_rest); /* the length below tells zeros from nothing */
    if (n_rest > 0) add_stripes(&last, last.rest, 1);
    uint64_t value = hash_mix(last.n_bytes + 1);
    for (int i = 0; i < N_LANES; i++) value = hash_mix(value ^ last.lane[i]);
    return value;
}

Status checksum_file(const char *path, uint64_t *value, uint64_t *n_bytes, Error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor < 0) {
        return errno == ENOENT ? error_user(error, "%s is missing", path)
                               : error_user(error, "cannot read %s: %s", path, strerror(errno));
    }
    Checksum checksum = checksum_start();
    unsigned char *buffer = malloc(BUFFER_BYTES);
    ssize_t got = 0;
    if (!buffer) error_failed(error, "cannot read %s: out of memory", path);
    while (buffer && ((got = read(descriptor, buffer, BUFFER_BYTES)) > 0 || (got < 0 && errno == EINTR))) {
        if (got > 0) checksum_add(&checksum, buffer, (size_t)got);
    }
    if (got < 0) error_failed(error, "cannot read %s: %s", path, strerror(errno));
    free(buffer);
    close(descriptor);
    *value = checksum_value(&checksum);
    *n_bytes = checksum.n_bytes;
    return error->status;
}
