/* Shards: files of tokens, made once and mapped by every run that learns from them.
 *
 *     offset  size  field
 *          0     8  magic                "PGPTSHRD"
 *          8     4  version              1
 *         12     4  token_bytes          2 or 4: unsigned 16 or 32 bit ids
 *         16     8  n_tokens             at least 1
 *         24     8  n_documents          documents that begin in this shard
 *         32     8  n_text_bytes         of the text that became these tokens
 *         40     8  tokenizer_hash       of the tokenizer that made them
 *         48     4  n_vocabulary         every id is below it
 *         52     4  zero
 *         56     8  tokens_checksum
 *         64     8  documents_checksum
 *         72    48  zeros
 *        120     8  header_checksum      of the 120 bytes before it
 *        128        tokens, then zeros up to a multiple of 8
 *                   n_documents numbers of 8 bytes, ascending: the tokens of this shard that begin a document
 *
 * Everything is little-endian. A document may go on in the next shard; then its tokens there stand before the
 * first document that begins there. The size of the file follows from the header, exactly. */
#ifndef PGPT_DATA_SHARDS_SHARD_H
#define PGPT_DATA_SHARDS_SHARD_H

#include "base/error.h"
#include "base/file/file.h"

#include <stddef.h>
#include <stdint.h>

enum { SHARD_VERSION = 1, SHARD_HEADER_BYTES = 128 };

typedef struct {
    uint32_t token_bytes, n_vocabulary;
    uint64_t n_tokens, n_documents, n_text_bytes;
    uint64_t tokenizer_hash, tokens_checksum, documents_checksum;
} ShardHeader;

/* ---- Headers. Reading checks every field; a wrong one is a user's error that names the file and the
 * field. */
void shard_header_write(const ShardHeader *header, unsigned char bytes[SHARD_HEADER_BYTES]);
Status shard_header_read(const unsigned char *bytes, size_t n_bytes, const char *path, ShardHeader *header,
                         Error *error);

/* The size of the file, and where its parts begin. */
uint64_t shard_file_bytes(const ShardHeader *header);
uint64_t shard_documents_offset(const ShardHeader *header);

/* Fails if they differ, naming both tokenizers. The kinds may be NULL where they are not known. */
typedef struct {
    const char *where, *kind; /* "runs/first/tokenizer.json", "char" */
    uint64_t hash;
    int n_vocabulary;
} ShardTokenizer;
Status shard_tokenizers_match(const ShardTokenizer *wanted, const ShardTokenizer *found, Error *error);

/* ---- Reading: a shard mapped into memory. */
typedef struct {
    char *path;
    ShardHeader header;
    void *memory; /* the whole file */
    size_t memory_bytes;
} Shard;

/* Maps the file after looking at its header and size; the tokens are not read. {0} is a closed shard. */
Status shard_open(const char *path, Shard *shard, Error *error);
void shard_close(Shard *shard);

const void *shard_tokens(const Shard *shard);        /* uint16_t or uint32_t, n_tokens of them */
const uint64_t *shard_documents(const Shard *shard); /* n_documents */

/* Tokens first .. first + n - 1, which must be there. */
void shard_read(const Shard *shard, uint64_t first, uint64_t n, int32_t *ids);

/* Looks at the tokens while they pass by. */
typedef struct {
    void (*look)(void *context, const int32_t *ids, size_t n);
    void *context;
} ShardVisitor;

/* Read all of the file, not through the map, and check the checksums, the range of every id, and the order of
 * the documents. `visitor` may be NULL. */
Status shard_verify(const Shard *shard, const ShardVisitor *visitor, Error *error);

/* ---- Writing, under a temporary name until it is complete.
 *
 *     ShardWriter writer;
 *     TRY(shard_writer_open(&writer, path, &header, error));   // token_bytes, n_vocabulary, tokenizer_hash
 *     TRY_GOTO(shard_writer_document(&writer, error), done);
 *     TRY_GOTO(shard_writer_add(&writer, ids, n, error), done);
 *     TRY_GOTO(shard_writer_commit(&writer, error), done);     // writer.header is the one in the file
 * done:
 *     shard_writer_abort(&writer); */
typedef struct {
    FileWriter file;
    ShardHeader header; /* n_text_bytes is for the caller to count */
    unsigned char *block;
    size_t n_block; /* bytes in the block */
    uint64_t *documents;
    size_t capacity;
} ShardWriter;

Status shard_writer_open(ShardWriter *writer, const char *path, const ShardHeader *header, Error *error);

/* The next token begins a document. */
Status shard_writer_document(ShardWriter *writer, Error *error);

/* An id outside the vocabulary is an error of the caller's. */
Status shard_writer_add(ShardWriter *writer, const int32_t *ids, size_t n, Error *error);

/* A shard without tokens cannot be written. */
Status shard_writer_commit(ShardWriter *writer, Error *error);

/* Safe after commit, after a failed open, and twice. */
void shard_writer_abort(ShardWriter *writer);

#endif
