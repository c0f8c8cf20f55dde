/* A prepared corpus' manifest, and documents in JSON lines. */
#include "fuzz_folder.h"

#include "data/hash.h"
#include "data/shards/prepare_input.h"
#include "data/shards/shard_set.h"

#include <string.h>

enum { MANIFEST, SHARD, LINES };

/* Five ids of a vocabulary of 300 in one document: the shard that a manifest may name. */
static void make_shard(void) {
    unsigned char bytes[SHARD_HEADER_BYTES + 16 + 8] = {0};
    ShardHeader header = {
        .token_bytes = 2, .n_vocabulary = 300, .n_tokens = 5, .n_documents = 1, .n_text_bytes = 11};
    header.tokenizer_hash = 7;
    shard_header_write(&header, bytes);
    for (int i = 0; i < 5; i++) bytes[SHARD_HEADER_BYTES + 2 * i] = (unsigned char)i;
    fuzz_file(SHARD, bytes, sizeof bytes);
}

static Status count_bytes(void *context, const PieceText *text, Error *error) {
    (void)error;
    size_t *sum = context;
    for (size_t i = 0; i < text->n_bytes; i++) *sum += (unsigned char)text->bytes[i] > 0;
    return STATUS_OK;
}

static void read_lines(const char *folder, const uint8_t *bytes, size_t n_bytes) {
    char path[320];
    const char *source = path;
    snprintf(path, sizeof path, "%s/lines.jsonl", folder);
    fuzz_file(LINES, bytes, n_bytes);
    InputList list;
    Error error = {0};
    if (input_list_open(&source, 1, &list, &error) == STATUS_OK) {
        PieceReader reader = piece_reader(&list, NULL, 64);
        Piece piece = {0};
        size_t sum = 0;
        for (bool more = true; more && error.status == STATUS_OK;) {
            if (piece_reader_next(&reader, &piece, &more, &error) == STATUS_OK && more)
                piece_texts(&piece, count_bytes, &sum, &error);
        }
        piece_free(&piece);
        piece_reader_close(&reader);
        FUZZ_CHECK(sum <= n_bytes);
        input_list_close(&list);
    }
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char *folder;
    if (!folder) {
        folder = fuzz_folder("manifest.json", MANIFEST);
        fuzz_folder("tokens-00000.bin", SHARD);
        fuzz_folder("lines.jsonl", LINES);
        make_shard();
    }
    ShardSet set;
    Error error = {0};
    fuzz_file(MANIFEST, bytes, n_bytes);
    if (shard_set_open(folder, &set, &error) == STATUS_OK) {
        int32_t ids[8];
        FUZZ_CHECK(set.n_tokens <= 8 && set.validation_start <= set.n_tokens);
        shard_set_read(&set, 0, set.n_tokens, ids);
        shard_set_close(&set);
    }
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
    read_lines(folder, bytes, n_bytes);
    return 0;
}
