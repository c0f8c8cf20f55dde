/* A shard is mapped, not read: a corpus may be larger than memory, a run touches its windows in random order,
 * and the kernel keeps what is used and drops the rest. So opening looks at nothing but the header and the
 * size of the file, which the header determines to the byte, and the checksums are for whoever reads
 * everything anyway.
 *
 * Verifying goes through read() and a small buffer instead of the map, because mapped pages count as the
 * process's own while they are there.
 *
 * An id beyond the vocabulary in a shard that nobody verified is met by the kernels, which check what they
 * look up. */
#include "data/shards/shard.h"

#include "data/shards/shard_checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = {'P', 'G', 'P', 'T', 'S', 'H', 'R', 'D'};

/* Where the fields lie; the same as in the header file's table. */
enum {
    AT_VERSION = 8,
    AT_TOKEN_BYTES = 12,
    AT_N_TOKENS = 16,
    AT_N_DOCUMENTS = 24,
    AT_N_TEXT_BYTES = 32,
    AT_TOKENIZER_HASH = 40,
    AT_N_VOCABULARY = 48,
    AT_TOKENS_CHECKSUM = 56,
    AT_DOCUMENTS_CHECKSUM = 64,
    AT_HEADER_CHECKSUM = 120,
};

/* Far beyond any disk, and far from where sizes overflow. */
#define MOST_TOKENS (UINT64_C(1) << 48)

/* ---- Headers ---- */

static void put(unsigned char *bytes, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++) bytes[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *bytes, int n_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

void shard_header_write(const ShardHeader *header, unsigned char bytes[SHARD_HEADER_BYTES]) {
    memset(bytes, 0, SHARD_HEADER_BYTES);
    memcpy(bytes, magic, sizeof magic);
    put(bytes + AT_VERSION, SHARD_VERSION, 4);
    put(bytes + AT_TOKEN_BYTES, header->token_bytes, 4);
    put(bytes + AT_N_TOKENS, header->n_tokens, 8);
    put(bytes + AT_N_DOCUMENTS, header->n_documents, 8);
    put(bytes + AT_N_TEXT_BYTES, header->n_text_bytes, 8);
    put(bytes + AT_TOKENIZER_HASH, header->tokenizer_hash, 8);
    put(bytes + AT_N_VOCABULARY, header->n_vocabulary, 4);
    put(bytes + AT_TOKENS_CHECKSUM, header->tokens_checksum, 8);
    put(bytes + AT_DOCUMENTS_CHECKSUM, header->documents_checksum, 8);
    put(bytes + AT_HEADER_CHECKSUM, hash_bytes(0, (const char *)bytes, AT_HEADER_CHECKSUM), 8);
}

/* The fields make sense, alone and together. */
static Status check_fields(const ShardHeader *header, const char *path, Error *error) {
    if (header->token_bytes != 2 && header->token_bytes != 4) {
        return error_user(error, "%s: field 'token_bytes' is %" PRIu32 ", but must be 2 or 4", path,
                          header->token_bytes);
    }
    uint32_t most_vocabulary = header->token_bytes == 2 ? 65536 : INT32_MAX;
    if (header->n_vocabulary < 1 || header->n_vocabulary > most_vocabulary) {
        return error_user(error,
                          "%s: field 'n_vocabulary' is %" PRIu32 ", but must be between 1 and %" PRIu32, path,
                          header->n_vocabulary, most_vocabulary);
    }
    if (header->n_tokens < 1 || header->n_tokens > MOST_TOKENS) {
        return error_user(error, "%s: field 'n_tokens' is %" PRIu64 ", but must be between 1 and 2^48", path,
                          header->n_tokens);
    }
    if (header->n_documents > header->n_tokens) {
        return error_user(error, "%s: field 'n_documents' is %" PRIu64 ", more than its %" PRIu64 " tokens",
                          path, header->n_documents, header->n_tokens);
    }
    return STATUS_OK;
}

Status shard_header_read(const unsigned char *bytes, size_t n_bytes, const char *path, ShardHeader *header,
                         Error *error) {
    if (n_bytes < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0) {
        return error_user(
            error, "%s: field 'magic' is not PGPTSHRD: not a shard; make shards with 'pgpt data prepare'",
            path);
    }
    if (n_bytes < SHARD_HEADER_BYTES) {
        return error_user(error, "%s: has %zu bytes, fewer than the %d of a shard's header; prepare it again",
                          path, n_bytes, SHARD_HEADER_BYTES);
    }
    uint32_t version = (uint32_t)get(bytes + AT_VERSION, 4);
    if (version != SHARD_VERSION) {
        return error_user(error,
                          "%s: field 'version' is %" PRIu32 ", this program reads %d; prepare the data again",
                          path, version, SHARD_VERSION);
    }
    if (get(bytes + AT_HEADER_CHECKSUM, 8) != hash_bytes(0, (const char *)bytes, AT_HEADER_CHECKSUM)) {
        return error_user(error,
                          "%s: field 'header_checksum' is wrong: the header is damaged; prepare the "
                          "data again",
                          path);
    }
    *header = (ShardHeader){
        .token_bytes = (uint32_t)get(bytes + AT_TOKEN_BYTES, 4),
        .n_vocabulary = (uint32_t)get(bytes + AT_N_VOCABULARY, 4),
        .n_tokens = get(bytes + AT_N_TOKENS, 8),
        .n_documents = get(bytes + AT_N_DOCUMENTS, 8),
        .n_text_bytes = get(bytes + AT_N_TEXT_BYTES, 8),
        .tokenizer_hash = get(bytes + AT_TOKENIZER_HASH, 8),
        .tokens_checksum = get(bytes + AT_TOKENS_CHECKSUM, 8),
        .documents_checksum = get(bytes + AT_DOCUMENTS_CHECKSUM, 8),
    };
    return check_fields(header, path, error);
}

/* With their padding. */
static uint64_t tokens_bytes(const ShardHeader *header) {
    return (header->n_tokens * header->token_bytes + 7) / 8 * 8;
}

uint64_t shard_documents_offset(const ShardHeader *header) {
    return SHARD_HEADER_BYTES + tokens_bytes(header);
}

uint64_t shard_file_bytes(const ShardHeader *header) {
    return shard_documents_offset(header) + 8 * header->n_documents;
}

Status shard_tokenizers_match(const ShardTokenizer *wanted, const ShardTokenizer *found, Error *error) {
    if (wanted->hash == found->hash && wanted->n_vocabulary == found->n_vocabulary) return STATUS_OK;
    return error_user(error,
                      "the tokens of %s (%s, %d symbols, tokenizer_hash %016" PRIx64
                      ") were not made by the tokenizer of %s (%s, %d symbols, tokenizer_hash %016" PRIx64
                      "); prepare the data with that tokenizer",
                      found->where, found->kind ? found->kind : "unknown kind", found->n_vocabulary,
                      found->hash, wanted->where, wanted->kind ? wanted->kind : "unknown kind",
                      wanted->n_vocabulary, wanted->hash);
}

/* ---- Reading ---- */

static int open_file(const char *path, uint64_t *n_bytes, Error *error) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (descriptor < 0) {
        if (errno == ENOENT) error_user(error, "%s is missing; prepare the data again", path);
        else error_user(error, "cannot read %s: %s", path, strerror(errno));
    } else if (fstat(descriptor, &facts) < 0 || !S_ISREG(facts.st_mode)) {
        error_user(error, "%s is not a file; give the folder that 'pgpt data prepare' made", path);
    } else {
        *n_bytes = (uint64_t)facts.st_size;
    }
    if (error->status == STATUS_OK) return descriptor;
    if (descriptor >= 0) close(descriptor);
    return -1;
}

/* As much as there is, up to n_bytes; -1 on failure. */
static ssize_t read_fully(int descriptor, void *bytes, size_t n_bytes) {
    size_t n = 0;
    while (n < n_bytes) {
        ssize_t got = read(descriptor, (char *)bytes + n, n_bytes - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        n += (size_t)got;
    }
    return (ssize_t)n;
}

static Status map_file(int descriptor, uint64_t n_bytes, const char *path, Shard *shard, Error *error) {
    unsigned char bytes[SHARD_HEADER_BYTES];
    ssize_t got = read_fully(descriptor, bytes, sizeof bytes);
    if (got < 0) return error_failed(error, "cannot read %s: %s", path, strerror(errno));
    TRY(shard_header_read(bytes, (size_t)got, path, &shard->header, error));
    uint64_t wanted = shard_file_bytes(&shard->header);
    if (n_bytes != wanted) {
        return error_user(error,
                          "%s: has %" PRIu64
                          " bytes, but its fields 'n_tokens' and 'n_documents' make %" PRIu64
                          ": it was %s; prepare the data again",
                          path, n_bytes, wanted, n_bytes < wanted ? "cut off" : "added to");
    }
    shard->path = strdup(path);
    if (!shard->path) return error_failed(error, "out of memory: no room for a name");
    void *memory = mmap(NULL, (size_t)n_bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return error_failed(error, "cannot map %s: %s", path, strerror(errno));
    shard->memory = memory;
    shard->memory_bytes = (size_t)n_bytes;
    madvise(memory, (size_t)n_bytes,
            MADV_RANDOM); /* windows come in random order: reading ahead is in vain */
    return STATUS_OK;
}

Status shard_open(const char *path, Shard *shard, Error *error) {
    *shard = (Shard){0};
    uint64_t n_bytes = 0;
    int descriptor = open_file(path, &n_bytes, error);
    if (descriptor < 0) return error->status;
    if (map_file(descriptor, n_bytes, path, shard, error) != STATUS_OK) shard_close(shard);
    close(descriptor);
    return error->status;
}

void shard_close(Shard *shard) {
    if (shard->memory) munmap(shard->memory, shard->memory_bytes);
    free(shard->path);
    *shard = (Shard){0};
}

const void *shard_tokens(const Shard *shard) {
    return (const char *)shard->memory + SHARD_HEADER_BYTES;
}

const uint64_t *shard_documents(const Shard *shard) {
    return (const uint64_t *)(const void *)((const char *)shard->memory +
                                            shard_documents_offset(&shard->header));
}

static void unpack(const void *tokens, uint32_t token_bytes, uint64_t n, int32_t *ids) {
    if (token_bytes == 2) {
        for (uint64_t i = 0; i < n; i++) ids[i] = ((const uint16_t *)tokens)[i];
    } else {
        for (uint64_t i = 0; i < n; i++) ids[i] = (int32_t)((const uint32_t *)tokens)[i];
    }
}

void shard_read(const Shard *shard, uint64_t first, uint64_t n, int32_t *ids) {
    uint32_t token_bytes = shard->header.token_bytes;
    unpack((const char *)shard_tokens(shard) + first * token_bytes, token_bytes, n, ids);
}

/* ---- Verifying ---- */

typedef struct {
    const Shard *shard;
    const ShardVisitor *visitor;
    uint64_t n_tokens;    /* looked at so far */
    uint64_t n_documents; /* likewise */
    uint64_t last_document;
} Verification;

static Status look_at_tokens(Verification *verification, const void *block, size_t n_bytes, Error *error) {
    static _Thread_local int32_t ids[SHARD_BLOCK_BYTES / 2];
    const Shard *shard = verification->shard;
    const ShardHeader *header = &shard->header;
    uint64_t n = n_bytes / header->token_bytes, n_left = header->n_tokens - verification->n_tokens;
    if (n > n_left) n = n_left; /* the rest is padding */
    unpack(block, header->token_bytes, n, ids);
    for (uint64_t i = 0; i < n; i++) {
        if ((uint32_t)ids[i] < header->n_vocabulary) continue;
        return error_user(error,
                          "%s: token %" PRIu64 " is %" PRIu32 ", but field 'n_vocabulary' is %" PRIu32
                          "; prepare the data again",
                          shard->path, verification->n_tokens + i, (uint32_t)ids[i], header->n_vocabulary);
    }
    if (verification->visitor) verification->visitor->look(verification->visitor->context, ids, n);
    verification->n_tokens += n;
    return STATUS_OK;
}

static Status look_at_documents(Verification *verification, const void *block, size_t n_bytes, Error *error) {
    const Shard *shard = verification->shard;
    for (size_t i = 0; i < n_bytes / 8; i++) {
        uint64_t start = ((const uint64_t *)block)[i];
        bool ascending = verification->n_documents == 0 || start > verification->last_document;
        if (!ascending || start >= shard->header.n_tokens) {
            return error_user(
                error, "%s: document %" PRIu64 " begins at token %" PRIu64 ", %s; prepare the data again",
                shard->path, verification->n_documents, start,
                ascending ? "behind the last one" : "not behind the one before it");
        }
        verification->last_document = start;
        verification->n_documents++;
    }
    return STATUS_OK;
}

/* One part of the file: its checksum first, so that damage is called damage. A block that makes no sense is
 * only remembered until the checksum has been seen. */
static Status verify_part(Verification *verification, int descriptor, uint64_t n_bytes, uint64_t wanted,
                          const char *field, Status (*look)(Verification *, const void *, size_t, Error *),
                          Error *error) {
    const char *path = verification->shard->path;
    uint64_t *block = malloc(SHARD_BLOCK_BYTES);
    if (!block) return error_failed(error, "out of memory: no room to read %s", path);
    uint64_t checksum = 0;
    Error senseless = {0};
    for (size_t n; n_bytes > 0; n_bytes -= n) {
        n = n_bytes < SHARD_BLOCK_BYTES ? (size_t)n_bytes : SHARD_BLOCK_BYTES;
        ssize_t got = read_fully(descriptor, block, n);
        if (got != (ssize_t)n) {
            error_failed(error, "cannot read %s: %s", path, got < 0 ? strerror(errno) : "it became shorter");
            goto done;
        }
        checksum = shard_checksum_block(checksum, block, n);
        if (senseless.status == STATUS_OK) look(verification, block, n, &senseless);
    }
    if (checksum != wanted) {
        error_user(error,
                   "%s: field '%s' is %016" PRIx64 ", but the content makes %016" PRIx64
                   ": the file is damaged; prepare the data again",
                   path, field, wanted, checksum);
    } else if (senseless.status != STATUS_OK) {
        *error = senseless;
    }
done:
    free(block);
    return error->status;
}

Status shard_verify(const Shard *shard, const ShardVisitor *visitor, Error *error) {
    const ShardHeader *header = &shard->header;
    Verification verification = {.shard = shard, .visitor = visitor};
    uint64_t n_bytes = 0;
    int descriptor = open_file(shard->path, &n_bytes, error);
    if (descriptor < 0) return error->status;
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (lseek(descriptor, SHARD_HEADER_BYTES, SEEK_SET) < 0) {
        error_failed(error, "cannot read %s: %s", shard->path, strerror(errno));
        goto done;
    }
    TRY_GOTO(verify_part(&verification, descriptor, tokens_bytes(header), header->tokens_checksum,
                         "tokens_checksum", look_at_tokens, error),
             done);
    verify_part(&verification, descriptor, 8 * header->n_documents, header->documents_checksum,
                "documents_checksum", look_at_documents, error);
done:
    close(descriptor);
    return error->status;
}
