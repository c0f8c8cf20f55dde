/* Reading safetensors, from the file's own words to tensors that can be trusted.
 *
 * The header comes from outside: its length, its JSON, and every number in it may be wrong or meant to do
 * harm. It is read whole only after its length was compared with the file and the format's limit, and parsed
 * only if its commas are as many as real entries have, since jansson turns two bytes of "0," into sixteen
 * times as much memory. Then each entry is checked alone (dtype, shape, size), and all of them together:
 * sorted by offset, each must begin where the one before ended and the last must end with the file. Offsets
 * that pass are in range, and nothing overlaps.
 *
 * The data is read with pread, not mapped: a file that shrinks while it is read is then an error, not a
 * signal. */
#include "checkpoint/safetensors.h"

#include "base/half.h"

#include "base/system/memory.h"
#include "base/text/format.h"
#include "base/text/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The shortest entry with the most dims for its length has more bytes a comma than this. */
enum { FEWEST_BYTES_A_COMMA = 4, SPARE_COMMAS = 64 };

static Status wrong(const SafetensorsFile *file, Error *error, const char *what) {
    return error_user(error, "%s is not a sound safetensors file: %s; it is damaged or something else",
                      file->path, what);
}

static Status wrong_tensor(const SafetensorsFile *file, Error *error, const char *name, const char *what) {
    return error_user(error, "%s: tensor '%.200s' %s; the file is damaged", file->path, name, what);
}

static Status read_at(const SafetensorsFile *file, uint64_t offset, void *bytes, size_t n_bytes,
                      Error *error) {
    char *to = bytes;
    while (n_bytes > 0) {
        ssize_t got = pread(file->descriptor, to, n_bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_failed(error, "cannot read %s: %s", file->path, strerror(errno));
        if (got == 0)
            return error_user(error, "%s ends too early; was it cut while it was read?", file->path);
        to += got;
        offset += (uint64_t)got;
        n_bytes -= (size_t)got;
    }
    return STATUS_OK;
}

/* The header's text, from malloc, and the size of the data behind it. */
static Status read_header(SafetensorsFile *file, char **text, size_t *n_text, uint64_t *n_data_bytes,
                          Error *error) {
    struct stat facts;
    if (fstat(file->descriptor, &facts) < 0)
        return error_failed(error, "cannot read %s: %s", file->path, strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return error_user(error, "%s is not a file; name a safetensors file", file->path);
    uint64_t n_file_bytes = (uint64_t)facts.st_size, n_header = 0;
    if (n_file_bytes < 8) return wrong(file, error, "it is too short for a header");
    unsigned char length[8];
    TRY(read_at(file, 0, length, sizeof length, error));
    for (int i = 0; i < 8; i++) n_header |= (uint64_t)length[i] << (8 * i);
    if (n_header > SAFETENSORS_MAX_HEADER_BYTES)
        return wrong(file, error, "its header claims more than 100 MB");
    if (n_header > n_file_bytes - 8) return wrong(file, error, "its header claims more bytes than it has");
    *text = malloc((size_t)n_header + 1);
    if (!*text) {
        return error_failed(error, "cannot read %s: no memory for its header of %s", file->path,
                            format_bytes(n_header).text);
    }
    *n_text = (size_t)n_header;
    file->data_start = 8 + n_header;
    *n_data_bytes = n_file_bytes - file->data_start;
    return read_at(file, 8, *text, *n_text, error);
}

static Status parse_header(const SafetensorsFile *file, const char *text, size_t n_text, json_t **header,
                           Error *error) {
    size_t n_commas = 0;
    for (size_t i = 0; i < n_text; i++) n_commas += text[i] == ',';
    if (n_commas > n_text / FEWEST_BYTES_A_COMMA + SPARE_COMMAS)
        return wrong(file, error, "its header lists no tensors");
    if (n_text == 0 || text[0] != '{') return wrong(file, error, "its header does not begin with '{'");
    TRY(json_parse(text, n_text, file->path, header, error));
    return json_is_object(*header) ? STATUS_OK : wrong(file, error, "its header is no JSON object");
}

/* ---- one entry */

static Status read_type(const SafetensorsFile *file, const json_t *entry, SafetensorsTensor *tensor,
                        Error *error) {
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name) return wrong_tensor(file, error, tensor->name, "has no dtype");
    for (int type = 0; type < N_SAFETENSORS_TYPES; type++) {
        if (strcmp(name, safetensors_type_name((SafetensorsType)type)) != 0) continue;
        tensor->type = (SafetensorsType)type;
        return STATUS_OK;
    }
    return error_user(error, "%s: tensor '%.200s' has the dtype '%.40s', which is not known here", file->path,
                      tensor->name, name);
}

static Status read_shape(const SafetensorsFile *file, const json_t *entry, SafetensorsTensor *tensor,
                         Error *error) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return wrong_tensor(file, error, tensor->name, "has no shape");
    if (json_array_size(shape) > SAFETENSORS_MAX_DIMS) {
        return error_user(error, "%s: tensor '%.200s' has %zu dims; at most %d are supported", file->path,
                          tensor->name, json_array_size(shape), SAFETENSORS_MAX_DIMS);
    }
    tensor->n_dims = (int)json_array_size(shape);
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return wrong_tensor(file, error, tensor->name, "has a dim that is no whole number of at least 0");
        }
        tensor->dim[i] = json_integer_value(dim);
    }
    return STATUS_OK;
}

static Status read_offsets(const SafetensorsFile *file, const json_t *entry, uint64_t n_data_bytes,
                           SafetensorsTensor *tensor, Error *error) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(end)) {
        return wrong_tensor(file, error, tensor->name, "has no data_offsets [first,end]");
    }
    int64_t from = json_integer_value(first), to = json_integer_value(end);
    if (from < 0 || to < from)
        return wrong_tensor(file, error, tensor->name, "has data_offsets that make no range");
    if ((uint64_t)to > n_data_bytes)
        return wrong_tensor(file, error, tensor->name, "lies beyond the end of the file");
    tensor->offset = (uint64_t)from;
    tensor->n_bytes = (uint64_t)(to - from);
    return STATUS_OK;
}

static Status read_entry(SafetensorsFile *file, const char *name, const json_t *entry, uint64_t n_data_bytes,
                         SafetensorsTensor *tensor, Error *error) {
    *tensor = (SafetensorsTensor){.name = arena_strdup(&file->arena, name)};
    if (!json_is_object(entry)) return wrong_tensor(file, error, name, "is not described by an object");
    if (json_object_size(entry) != 3) {
        return wrong_tensor(file, error, name, "must have dtype, shape and data_offsets, and nothing else");
    }
    TRY(read_type(file, entry, tensor, error));
    TRY(read_shape(file, entry, tensor, error));
    TRY(read_offsets(file, entry, n_data_bytes, tensor, error));
    int64_t count = safetensors_count(tensor), n_bytes;
    if (count < 0 || !int64_multiply(count, (int64_t)safetensors_type_bytes(tensor->type), &n_bytes) ||
        (uint64_t)n_bytes != tensor->n_bytes) {
        return wrong_tensor(file, error, name, "has data_offsets that do not fit its shape and dtype");
    }
    return STATUS_OK;
}

static Status read_metadata(SafetensorsFile *file, json_t *metadata, Error *error) {
    if (!json_is_object(metadata)) return wrong(file, error, "its __metadata__ is no object");
    file->metadata = ARENA_ARRAY(&file->arena, const char *, 2 * json_object_size(metadata) + 1);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value)) return wrong(file, error, "its __metadata__ has a value that is no text");
        file->metadata[2 * file->n_metadata] = arena_strdup(&file->arena, key);
        file->metadata[2 * file->n_metadata++ + 1] = arena_strdup(&file->arena, json_string_value(value));
    }
    return STATUS_OK;
}

/* ---- all of them */

static int by_offset(const void *a, const void *b) {
    const SafetensorsTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static int by_name(const void *a, const void *b) {
    const SafetensorsTensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static Status check_cover(const SafetensorsFile *file, uint64_t n_data_bytes, Error *error) {
    uint64_t end = 0;
    for (int i = 0; i < file->n_tensors; i++) {
        const SafetensorsTensor *tensor = &file->tensor[i];
        if (tensor->offset < end) return wrong_tensor(file, error, tensor->name, "overlaps another one");
        if (tensor->offset > end) return wrong_tensor(file, error, tensor->name, "has a gap before it");
        end += tensor->n_bytes;
    }
    return end == n_data_bytes ? STATUS_OK : wrong(file, error, "it has bytes that belong to no tensor");
}

static Status read_entries(SafetensorsFile *file, json_t *header, uint64_t n_data_bytes, Error *error) {
    if (json_object_size(header) > INT32_MAX / 2) return wrong(file, error, "it has too many tensors");
    file->tensor = ARENA_ARRAY(&file->arena, SafetensorsTensor, json_object_size(header) + 1);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) TRY(read_metadata(file, entry, error));
        else TRY(read_entry(file, name, entry, n_data_bytes, &file->tensor[file->n_tensors++], error));
    }
    size_t n = (size_t)file->n_tensors;
    qsort(file->tensor, n, sizeof *file->tensor, by_offset);
    TRY(check_cover(file, n_data_bytes, error));
    file->by_name = ARENA_ARRAY(&file->arena, SafetensorsTensor *, n + 1);
    for (size_t i = 0; i < n; i++) file->by_name[i] = &file->tensor[i];
    qsort(file->by_name, n, sizeof *file->by_name, by_name);
    return STATUS_OK;
}

Status safetensors_open(SafetensorsFile *file, const char *path, Error *error) {
    *file = (SafetensorsFile){.descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
    if (file->descriptor < 0)
        return error_user(error, "cannot read %s: %s; check the path", path, strerror(errno));
    file->path = arena_strdup(&file->arena, path);
    char *text = NULL;
    json_t *header = NULL;
    size_t n_text = 0;
    uint64_t n_data_bytes = 0;
    if (read_header(file, &text, &n_text, &n_data_bytes, error) == STATUS_OK &&
        parse_header(file, text, n_text, &header, error) == STATUS_OK) {
        read_entries(file, header, n_data_bytes, error);
    }
    free(text);
    json_decref(header);
    if (error->status != STATUS_OK) safetensors_close(file);
    return error->status;
}

void safetensors_close(SafetensorsFile *file) {
    if (file->path && file->descriptor >= 0) close(file->descriptor);
    arena_free(&file->arena);
    *file = (SafetensorsFile){.descriptor = -1};
}

const SafetensorsTensor *safetensors_find(const SafetensorsFile *file, const char *name) {
    const SafetensorsTensor wanted = {.name = name}, *key = &wanted;
    SafetensorsTensor **found = file->n_tensors ? bsearch(&key, file->by_name, (size_t)file->n_tensors,
                                                          sizeof *file->by_name, by_name)
                                                : NULL;
    return found ? *found : NULL;
}

const char *safetensors_metadata(const SafetensorsFile *file, const char *key) {
    for (int i = 0; i < file->n_metadata; i++) {
        if (strcmp(file->metadata[2 * i], key) == 0) return file->metadata[2 * i + 1];
    }
    return NULL;
}

/* ---- data */

Status safetensors_read(const SafetensorsFile *file, const SafetensorsTensor *tensor, uint64_t first_byte,
                        void *bytes, size_t n_bytes, Error *error) {
    if (first_byte > tensor->n_bytes || n_bytes > tensor->n_bytes - first_byte) {
        return error_failed(error, "%s: more was read of tensor '%s' than it has", file->path, tensor->name);
    }
    return read_at(file, file->data_start + tensor->offset + first_byte, bytes, n_bytes, error);
}

static void convert(SafetensorsType type, const void *from, int64_t n, float *values) {
    const uint16_t *half = from;
    const double *wide = from;
    for (int64_t i = 0; i < n; i++) {
        values[i] = type == SAFETENSORS_F16    ? half_f16_to_f32(half[i])
                    : type == SAFETENSORS_BF16 ? half_bf16_to_f32(half[i])
                                               : (float)wide[i];
    }
}

bool safetensors_reads_as_f32(SafetensorsType type) {
    return type == SAFETENSORS_F32 || type == SAFETENSORS_F16 || type == SAFETENSORS_BF16 ||
           type == SAFETENSORS_F64;
}

Status safetensors_read_f32(const SafetensorsFile *file, const SafetensorsTensor *tensor, int64_t first,
                            int64_t n, float *values, Error *error) {
    enum { PIECE = 4096 };
    if (first < 0 || n < 0) return error_failed(error, "%s: a negative range was read", file->path);
    SafetensorsType type = tensor->type;
    size_t size = safetensors_type_bytes(type);
    if (type == SAFETENSORS_F32) {
        return safetensors_read(file, tensor, (uint64_t)first * size, values, (size_t)n * size, error);
    }
    if (!safetensors_reads_as_f32(type)) {
        return error_user(error,
                          "%s: tensor '%s' is of type %s, which cannot be read as numbers with a fraction",
                          file->path, tensor->name, safetensors_type_name(type));
    }
    double piece[PIECE] = {0}; /* room for any type, aligned for all */
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        TRY(safetensors_read(file, tensor, (uint64_t)(first + done) * size, piece, (size_t)count * size,
                             error));
        convert(type, piece, count, values + done);
    }
    return STATUS_OK;
}
