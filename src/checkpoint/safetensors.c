/* Types, and writing. Reading, with all its suspicion, is safetensors_read.c.
 *
 * The header comes before the data and names every offset, so the tensors are described up front and their
 * bytes then streamed: a model never has to be in memory a second time to be written. The header is built in
 * memory (some hundred bytes a tensor) through jansson, which knows how names must be escaped. */
#include "checkpoint/safetensors.h"

#include "base/system/memory.h"
#include "base/text/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t n_bytes;
} types[N_SAFETENSORS_TYPES] = {
    [SAFETENSORS_F64] = {"F64", 8},         [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_I16] = {"I16", 2},         [SAFETENSORS_I8] = {"I8", 1},
    [SAFETENSORS_U64] = {"U64", 8},         [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
};

const char *safetensors_type_name(SafetensorsType type) {
    return types[type].name;
}

size_t safetensors_type_bytes(SafetensorsType type) {
    return types[type].n_bytes;
}

int64_t safetensors_count(const SafetensorsTensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        if (!int64_multiply(count, tensor->dim[i], &count)) return -1;
    }
    return count;
}

char *safetensors_shape(const SafetensorsTensor *tensor, char *text, size_t n_bytes) {
    size_t n = (size_t)snprintf(text, n_bytes, "(");
    for (int i = 0; i < tensor->n_dims && n < n_bytes; i++) {
        n += (size_t)snprintf(text + n, n_bytes - n, i ? ",%lld" : "%lld", (long long)tensor->dim[i]);
    }
    if (n < n_bytes) snprintf(text + n, n_bytes - n, ")");
    return text;
}

/* Give every tensor its place; returns the bytes of all data in *total. */
static Status place_tensors(const char *path, SafetensorsTensor *tensors, int n_tensors, uint64_t *total,
                            Error *error) {
    *total = 0;
    for (int i = 0; i < n_tensors; i++) {
        int64_t n_bytes;
        int64_t count = safetensors_count(&tensors[i]);
        if (count < 0 || !int64_multiply(count, (int64_t)types[tensors[i].type].n_bytes, &n_bytes) ||
            *total > (uint64_t)(INT64_MAX - n_bytes)) {
            return error_failed(error, "cannot write %s: tensor '%s' is too large", path, tensors[i].name);
        }
        tensors[i].offset = *total;
        tensors[i].n_bytes = (uint64_t)n_bytes;
        *total += (uint64_t)n_bytes;
    }
    return STATUS_OK;
}

static json_t *entry_json(const SafetensorsTensor *tensor) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++) json_array_append_new(shape, json_integer(tensor->dim[i]));
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", types[tensor->type].name, "shape", shape, "data_offsets",
                     (json_int_t)tensor->offset, (json_int_t)tensor->offset + (json_int_t)tensor->n_bytes);
}

/* The header's JSON text, from malloc. */
static Status header_text(const char *path, const SafetensorsTensor *tensors, int n_tensors,
                          const char *const *metadata, char **text, Error *error) {
    json_t *header = json_object();
    json_t *facts = metadata ? json_object() : NULL;
    for (; facts && *metadata; metadata += 2)
        json_object_set_new(facts, metadata[0], json_make_text(metadata[1]));
    if (facts) json_object_set_new(header, "__metadata__", facts);
    for (int i = 0; i < n_tensors && error->status == STATUS_OK; i++) {
        if (json_object_get(header, tensors[i].name)) {
            error_failed(error, "cannot write %s: tensor '%s' is there twice", path, tensors[i].name);
        } else if (json_object_set_new(header, tensors[i].name, entry_json(&tensors[i])) != 0) {
            error_failed(error, "cannot write %s: the name of tensor %d is not UTF-8", path, i);
        }
    }
    *text = error->status == STATUS_OK ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!*text) error_failed(error, "cannot write %s: no memory for its header", path);
    return error->status;
}

static Status write_bytes(SafetensorsWriter *writer, const void *bytes, size_t n_bytes, Error *error) {
    checksum_add(&writer->checksum, bytes, n_bytes);
    return file_writer_write(&writer->file, bytes, n_bytes, error);
}

static Status write_header(SafetensorsWriter *writer, const char *text, size_t alignment, Error *error) {
    static const char blanks[SAFETENSORS_ALIGNMENT + 1] =
        "                                                                ";
    size_t n_text = strlen(text);
    size_t n_blanks = (alignment - (8 + n_text) % alignment) % alignment;
    uint64_t n_header = n_text + n_blanks;
    if (n_header > SAFETENSORS_MAX_HEADER_BYTES) {
        return error_failed(error, "cannot write %s: its header would be larger than the format allows",
                            writer->file.path);
    }
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(n_header >> (8 * i));
    TRY(write_bytes(writer, length, sizeof length, error));
    TRY(write_bytes(writer, text, n_text, error));
    return write_bytes(writer, blanks, n_blanks, error);
}

Status safetensors_writer_open(SafetensorsWriter *writer, const char *path, SafetensorsTensor *tensors,
                               int n_tensors, const char *const *metadata, Error *error) {
    return safetensors_writer_open_aligned(writer, path, tensors, n_tensors, metadata, SAFETENSORS_ALIGNMENT,
                                           error);
}

Status safetensors_writer_open_aligned(SafetensorsWriter *writer, const char *path,
                                       SafetensorsTensor *tensors, int n_tensors, const char *const *metadata,
                                       size_t alignment, Error *error) {
    *writer = (SafetensorsWriter){.file = {.descriptor = -1}, .checksum = checksum_start()};
    TRY(place_tensors(path, tensors, n_tensors, &writer->n_bytes_left, error));
    char *text;
    TRY(header_text(path, tensors, n_tensors, metadata, &text, error));
    if (file_writer_open(&writer->file, path, error) == STATUS_OK)
        write_header(writer, text, alignment, error);
    free(text);
    if (error->status != STATUS_OK) safetensors_writer_abort(writer);
    return error->status;
}

Status safetensors_writer_write(SafetensorsWriter *writer, const void *bytes, size_t n_bytes, Error *error) {
    if (n_bytes > writer->n_bytes_left) {
        return error_failed(error, "%s got more data than its tensors have", writer->file.path);
    }
    writer->n_bytes_left -= n_bytes;
    return write_bytes(writer, bytes, n_bytes, error);
}

Status safetensors_writer_commit(SafetensorsWriter *writer, Error *error) {
    if (writer->n_bytes_left > 0) {
        return error_failed(error, "%s got too little data: %llu bytes are missing", writer->file.path,
                            (unsigned long long)writer->n_bytes_left);
    }
    return file_writer_commit(&writer->file, error);
}

void safetensors_writer_abort(SafetensorsWriter *writer) {
    file_writer_abort(&writer->file);
}
