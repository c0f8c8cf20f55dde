/* Text is encoded in chunks cut where the tokenizer allows it, so that beside the text and the packed tokens
 * only one chunk's ids are in memory at a time. The tokens lie in blocks of one size, which need no moving
 * when they grow. */
#include "data/dataset.h"

#include "base/system/memory.h"
#include "data/dataset_tokens.h"
#include "data/hash.h"

#include <assert.h>
#include <stdlib.h>

enum {
    CHUNK_BYTES = 1 << 20,
    BLOCK_TOKENS = 1 << 20,
    SPARE_BYTES = 64 << 20, /* of memory, beside tokens */
};

typedef struct {
    void **blocks; /* of BLOCK_TOKENS each, all but the last one full */
    size_t n_blocks;
    uint64_t n_tokens;
    int token_bytes;
    uint64_t hash;
} Packed;

static void packed_free(Packed *packed) {
    for (size_t i = 0; i < packed->n_blocks; i++) free(packed->blocks[i]);
    free(packed->blocks);
}

static Status add_block(Packed *packed, Error *error) {
    TRY(memory_check((uint64_t)packed->token_bytes * BLOCK_TOKENS + SPARE_BYTES, "the tokens of the text",
                     "give less of it, or make shards of it (pgpt data prepare)", error));
    void **blocks = realloc(packed->blocks, (packed->n_blocks + 1) * sizeof *blocks);
    if (blocks) packed->blocks = blocks;
    void *block = blocks ? malloc((size_t)packed->token_bytes * BLOCK_TOKENS) : NULL;
    if (!block) {
        return error_failed(error, "out of memory: no room for more than %llu tokens",
                            (unsigned long long)packed->n_tokens);
    }
    blocks[packed->n_blocks++] = block;
    return STATUS_OK;
}

static Status pack(Packed *packed, const int32_t *ids, size_t n, Error *error) {
    uint64_t hash = packed->hash;
    while (n > 0) {
        size_t at = packed->n_tokens % BLOCK_TOKENS, n_here = BLOCK_TOKENS - at;
        if (at == 0) TRY(add_block(packed, error));
        if (n_here > n) n_here = n;
        void *block = packed->blocks[packed->n_blocks - 1];
        if (packed->token_bytes == 2) {
            uint16_t *out = (uint16_t *)block + at;
            for (size_t i = 0; i < n_here; i++) out[i] = (uint16_t)ids[i];
        } else {
            uint32_t *out = (uint32_t *)block + at;
            for (size_t i = 0; i < n_here; i++) out[i] = (uint32_t)ids[i];
        }
        for (size_t i = 0; i < n_here; i++) {
            hash = (hash ^ (uint32_t)ids[i]) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 32;
        }
        packed->n_tokens += n_here;
        ids += n_here;
        n -= n_here;
    }
    packed->hash = hash;
    return STATUS_OK;
}

/* Encode one document in chunks; `ids` is scratch. */
static Status encode_document(const Tokenizer *tokenizer, const char *bytes, size_t n_bytes, TokenArray *ids,
                              Packed *packed, Error *error) {
    const char *whole = bytes;
    for (size_t chunk = CHUNK_BYTES; n_bytes > 0;) {
        size_t n = n_bytes;
        if (n > chunk) {
            n = tokenizer_cut(tokenizer, bytes, chunk);
            if (n == 0) { /* no place to cut in sight: look further */
                chunk *= 2;
                continue;
            }
        }
        ids->n = 0;
        if (tokenizer_encode(tokenizer, bytes, n, ids, error) != STATUS_OK) {
            if (error->status == STATUS_USER &&
                bytes > whole) { /* say the place in the document, not the chunk */
                *error = (Error){0};
                tokenizer_encode(tokenizer, whole, (size_t)(bytes - whole) + n, ids, error);
            }
            return error->status;
        }
        TRY(pack(packed, ids->ids, ids->n, error));
        bytes += n;
        n_bytes -= n;
        chunk = CHUNK_BYTES;
    }
    return STATUS_OK;
}

static Status encode_text(const Tokenizer *tokenizer, const Text *text, Packed *packed, Error *error) {
    TokenArray ids = {0};
    int32_t end = tokenizer_end_of_text(tokenizer);
    for (size_t i = 0; i < text->n_documents; i++) {
        const TextDocument *document = &text->documents[i];
        if (document->n_bytes == 0) continue;
        if (end >= 0 && packed->n_tokens > 0 && ids.n > 0 && ids.ids[ids.n - 1] != end) {
            TRY_GOTO(pack(packed, &end, 1, error), done);
        }
        if (encode_document(tokenizer, text->bytes + document->first, document->n_bytes, &ids, packed,
                            error) != STATUS_OK) {
            error_prefix(error, "%s: ", document->name);
            goto done;
        }
    }
done:
    token_array_free(&ids);
    return error->status;
}

/* A split is tokens [begin, end) of the whole: one segment for each block they touch. */
static Status list_tokens(TokenList *list, const Packed *packed, uint64_t begin, uint64_t end, Error *error) {
    if (begin == end) return STATUS_OK;
    size_t first_block = begin / BLOCK_TOKENS, last_block = (end - 1) / BLOCK_TOKENS;
    list->segments = calloc(last_block - first_block + 1, sizeof *list->segments);
    if (!list->segments) return error_failed(error, "out of memory: no room for a list of tokens");
    assert(packed->blocks); /* there are tokens, so there are blocks */
    while (begin < end) {
        uint64_t at = begin % BLOCK_TOKENS, n = BLOCK_TOKENS - at;
        if (n > end - begin) n = end - begin;
        /* Every block up to n_blocks was set by add_block, which the analyzer cannot follow through
         * realloc. */
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign) */
        const char *block = packed->blocks[begin / BLOCK_TOKENS];
        list->segments[list->n_segments++] =
            (Segment){block + at * (uint64_t)packed->token_bytes, packed->token_bytes, list->n_tokens,
                      list->n_tokens + n};
        list->n_tokens += n;
        begin += n;
    }
    return STATUS_OK;
}

Status dataset_from_text(const Text *text, const Tokenizer *tokenizer, const DatasetOptions *options,
                         Dataset **dataset, Error *error) {
    *dataset = NULL;
    Dataset *new;
    TRY(dataset_new(options, &new, error));
    int token_bytes = tokenizer_n_vocabulary(tokenizer) <= 65536 ? 2 : 4;
    Packed packed = {.token_bytes = token_bytes, .hash = tokenizer_hash(tokenizer)};
    TRY_GOTO(encode_text(tokenizer, text, &packed, error), failed);
    uint64_t n_validation = (uint64_t)((double)packed.n_tokens * options->validation_fraction);
    uint64_t n_train = packed.n_tokens - n_validation;
    TRY_GOTO(dataset_check_lengths(n_train, n_validation, options, error), failed);
    TRY_GOTO(list_tokens(&new->splits[DATASET_TRAIN], &packed, 0, n_train, error), failed);
    TRY_GOTO(list_tokens(&new->splits[DATASET_VALIDATION], &packed, n_train, packed.n_tokens, error), failed);
    new->hash = hash_u64(hash_u64(packed.hash, n_train), n_validation);
    new->bytes_per_token = (double)text->n_bytes / (double)packed.n_tokens;
    new->blocks = packed.blocks;
    new->n_blocks = packed.n_blocks;
    *dataset = new;
    return STATUS_OK;
failed:
    packed_free(&packed);
    dataset_free(new);
    return error->status;
}
