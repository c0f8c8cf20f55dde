/* Tokens are packed into one block of the checksum's size, hashed when it is full and passed on, so a shard
 * of any length takes little memory to write. The header comes first in the file and is known last: zeros are
 * written in its place and replaced before the file gets its name. The starts of documents wait in memory;
 * they are few beside the tokens. */
#include "data/shards/shard.h"

#include "data/shards/shard_checksum.h"

#include <stdlib.h>
#include <string.h>

static Status out_of_memory(const ShardWriter *writer, Error *error) {
    return error_failed(error, "out of memory: no room to write %s",
                        writer->file.path ? writer->file.path : "a shard");
}

Status shard_writer_open(ShardWriter *writer, const char *path, const ShardHeader *header, Error *error) {
    *writer = (ShardWriter){.file = {.descriptor = -1},
                            .header = {.token_bytes = header->token_bytes,
                                       .n_vocabulary = header->n_vocabulary,
                                       .tokenizer_hash = header->tokenizer_hash}};
    static const unsigned char zeros[SHARD_HEADER_BYTES];
    TRY(file_writer_open(&writer->file, path, error));
    writer->block = malloc(SHARD_BLOCK_BYTES);
    if (!writer->block) {
        out_of_memory(writer, error);
        goto failed;
    }
    TRY_GOTO(file_writer_write(&writer->file, zeros, sizeof zeros, error), failed);
    return STATUS_OK;
failed:
    shard_writer_abort(writer);
    return error->status;
}

Status shard_writer_document(ShardWriter *writer, Error *error) {
    ShardHeader *header = &writer->header;
    if (header->n_documents == writer->capacity) {
        size_t capacity = writer->capacity ? 2 * writer->capacity : 64;
        uint64_t *documents = realloc(writer->documents, capacity * sizeof *documents);
        if (!documents) return out_of_memory(writer, error);
        writer->documents = documents;
        writer->capacity = capacity;
    }
    writer->documents[header->n_documents++] = header->n_tokens;
    return STATUS_OK;
}

static Status flush_block(ShardWriter *writer, Error *error) {
    ShardHeader *header = &writer->header;
    header->tokens_checksum = shard_checksum_block(header->tokens_checksum, writer->block, writer->n_block);
    TRY(file_writer_write(&writer->file, writer->block, writer->n_block, error));
    writer->n_block = 0;
    return STATUS_OK;
}

static void pack(void *out, uint32_t token_bytes, const int32_t *ids, size_t n) {
    if (token_bytes == 2) {
        for (size_t i = 0; i < n; i++) ((uint16_t *)out)[i] = (uint16_t)ids[i];
    } else {
        for (size_t i = 0; i < n; i++) ((uint32_t *)out)[i] = (uint32_t)ids[i];
    }
}

Status shard_writer_add(ShardWriter *writer, const int32_t *ids, size_t n, Error *error) {
    ShardHeader *header = &writer->header;
    for (size_t i = 0; i < n; i++) {
        if ((uint32_t)ids[i] < header->n_vocabulary) continue;
        return error_failed(error, "the tokenizer made the id %d, but its vocabulary has %u", ids[i],
                            header->n_vocabulary);
    }
    header->n_tokens += n;
    while (n > 0) {
        size_t n_here = (SHARD_BLOCK_BYTES - writer->n_block) / header->token_bytes;
        if (n_here > n) n_here = n;
        pack(writer->block + writer->n_block, header->token_bytes, ids, n_here);
        writer->n_block += n_here * header->token_bytes;
        if (writer->n_block == SHARD_BLOCK_BYTES) TRY(flush_block(writer, error));
        ids += n_here;
        n -= n_here;
    }
    return STATUS_OK;
}

Status shard_writer_commit(ShardWriter *writer, Error *error) {
    ShardHeader *header = &writer->header;
    if (header->n_tokens == 0) return error_failed(error, "a shard without tokens was to be written");
    while (writer->n_block % 8) writer->block[writer->n_block++] = 0;
    if (writer->n_block) TRY(flush_block(writer, error));
    size_t documents_bytes = header->n_documents * sizeof *writer->documents;
    header->documents_checksum = shard_checksum(writer->documents, documents_bytes);
    TRY(file_writer_write(&writer->file, writer->documents, documents_bytes, error));
    unsigned char bytes[SHARD_HEADER_BYTES];
    shard_header_write(header, bytes);
    TRY(file_writer_rewrite(&writer->file, 0, bytes, sizeof bytes, error));
    return file_writer_commit(&writer->file, error);
}

void shard_writer_abort(ShardWriter *writer) {
    file_writer_abort(&writer->file);
    free(writer->block);
    free(writer->documents);
    writer->block = NULL;
    writer->documents = NULL;
    writer->capacity = 0;
}
