/* A shard: header, size, tokens, documents. The header's checksum is made right first, so that the fields behind it
 * are met; as it came, the input is tried too. */
#include "fuzz.h"

#include "data/hash.h"
#include "data/shards/shard.h"

#include <string.h>

static void read_shard(const char *bytes, size_t n_bytes) {
    enum { PIECE = 64 };
    Shard shard = {0};
    Error error = {0};
    int32_t ids[PIECE];
    if (shard_open(fuzz_file(0, bytes, n_bytes), &shard, &error) == STATUS_OK) {
        FUZZ_CHECK(shard_file_bytes(&shard.header) == n_bytes);
        for (uint64_t first = 0; first < shard.header.n_tokens; first += PIECE) {
            uint64_t left = shard.header.n_tokens - first;
            shard_read(&shard, first, left < PIECE ? left : PIECE, ids);
        }
        if (shard_verify(&shard, NULL, &error) == STATUS_OK) {
            const uint64_t *documents = shard_documents(&shard);
            for (uint64_t i = 0; i < shard.header.n_documents; i++) {
                FUZZ_CHECK(documents[i] < shard.header.n_tokens && (!i || documents[i - 1] < documents[i]));
            }
        }
    }
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
    shard_close(&shard);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    enum { CHECKSUM_OFFSET = SHARD_HEADER_BYTES - 8 };
    char *copy = malloc(n_bytes + 1);
    FUZZ_CHECK(copy);
    memcpy(copy, bytes, n_bytes);
    read_shard(copy, n_bytes);
    if (n_bytes >= SHARD_HEADER_BYTES) {
        uint64_t checksum = hash_bytes(0, copy, CHECKSUM_OFFSET);
        for (int i = 0; i < 8; i++) copy[CHECKSUM_OFFSET + i] = (char)(checksum >> 8 * i);
        read_shard(copy, n_bytes);
    }
    free(copy);
    return 0;
}
