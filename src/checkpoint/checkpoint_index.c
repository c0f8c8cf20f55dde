/* Names in a file come from outside, so they are compared with what must be there: the manifest gives the model's
 * configuration, that gives the table, and every tensor found must be one of the table's or, by its name, a range of
 * elements of one. Everything found is then sorted by tensor and first element, where a gap or an overlap is
 * between neighbours.
 *
 * The files of thousands of ranks are more than a process may have open. Beyond a number that every system grants they
 * are closed after their headers were read, and opened again for each read. */
#include "checkpoint/checkpoint_index.h"

#include "graph/shape.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHAPE_BYTES = 160 };

typedef struct {
    int tensor; /* in checkpoint->tensor */
    CheckpointPiece piece;
} Found;

typedef struct {
    const Parameter **by_name; /* the table's parameters, sorted */
    Found *found;
    int n_found;
} Index;

/* ---- names */

static int compare_names(const void *a, const void *b) {
    const Parameter *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The parameter whose name is these n characters. */
static const Parameter *find_parameter(const Index *index, int n_parameters, const char *name, size_t n) {
    int low = 0, high = n_parameters;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const Parameter *parameter = index->by_name[middle];
        int order = strncmp(parameter->name, name, n);
        if (order == 0 && parameter->name[n] != 0) order = 1;
        if (order == 0) return parameter;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* Take "moment2." from the front of an optimizer's name: 2, or -1 if it is not there or of a moment too many. */
static int take_moment(const char **name, int n_moments) {
    const char *text = *name;
    if (strncmp(text, "moment", 6) != 0 || text[6] < '1' || text[6] - '0' > n_moments || text[7] != '.')
        return -1;
    *name += 8;
    return text[6] - '0';
}

/* Take a whole number as we write it, without sign or leading zeros, from the front of a text. */
static bool take_number(const char **text, int64_t *value) {
    const char *digit = *text;
    if (*digit < '0' || *digit > '9' || (*digit == '0' && digit[1] >= '0' && digit[1] <= '9')) return false;
    for (*value = 0; *digit >= '0' && *digit <= '9'; digit++) {
        if (*value > (INT64_MAX - (*digit - '0')) / 10) return false;
        *value = *value * 10 + (*digit - '0');
    }
    *text = digit;
    return true;
}

/* "[first:end]", and nothing behind it. */
static bool read_range(const char *text, int64_t *first, int64_t *end) {
    if (*text++ != '[' || !take_number(&text, first)) return false;
    if (*text++ != ':' || !take_number(&text, end)) return false;
    return strcmp(text, "]") == 0 && *first < *end;
}

/* ---- one tensor of a file */

static Status wrong(const SafetensorsFile *file, const SafetensorsTensor *tensor, const char *what,
                    Error *error) {
    return error_user(error, "%s: tensor '%.200s' %s; the checkpoint is damaged", file->path, tensor->name,
                      what);
}

static Status check_shape(const SafetensorsFile *file, const SafetensorsTensor *tensor, Shape shape,
                          Error *error) {
    size_t n_bytes = sizeof(int64_t) * (size_t)shape.n_dims;
    if (tensor->n_dims == shape.n_dims && memcmp(tensor->dim, shape.dim, n_bytes) == 0) return STATUS_OK;
    char has[SHAPE_BYTES], wants[SHAPE_BYTES];
    return error_user(
        error,
        "%s: tensor '%.200s' has shape %s where its name and the manifest want %s; the checkpoint is damaged",
        file->path, tensor->name, safetensors_shape(tensor, has, sizeof has),
        shape_format(shape, wants, sizeof wants));
}

static Status add_tensor(const Checkpoint *checkpoint, Index *index, const SafetensorsFile *file,
                         const SafetensorsTensor *tensor, bool is_optimizer, Error *error) {
    const ParameterTable *table = &checkpoint->table;
    const char *name = tensor->name;
    int array = is_optimizer ? take_moment(&name, checkpoint->state.n_moments) : 0;
    size_t n_name = strcspn(name, "[");
    const Parameter *parameter = array < 0 ? NULL : find_parameter(index, table->n_parameters, name, n_name);
    if (!parameter) return wrong(file, tensor, "is not part of the model that the manifest describes", error);
    if (!safetensors_reads_as_f32(tensor->type))
        return wrong(file, tensor, "has a dtype that a model's numbers do not have", error);
    int64_t count = shape_count(parameter->shape), first = 0, end = count;
    if (name[n_name] == 0) {
        TRY(check_shape(file, tensor, parameter->shape, error));
    } else {
        if (!read_range(name + n_name, &first, &end))
            return wrong(file, tensor, "does not name a range of elements as [first:end]", error);
        if (end > count) return wrong(file, tensor, "reaches beyond the end of what it is a part of", error);
        TRY(check_shape(file, tensor, SHAPE(end - first), error));
    }
    index->found[index->n_found++] =
        (Found){.tensor = array * table->n_parameters + (int)(parameter - table->parameter),
                .piece = {.first = first, .n = end - first, .file = file, .tensor = tensor}};
    return STATUS_OK;
}

/* ---- all of them */

static int compare_found(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->piece.first < y->piece.first ? -1 : x->piece.first > y->piece.first;
}

static Status missing(const Checkpoint *checkpoint, int tensor, int64_t first, int64_t end, Error *error) {
    const Parameter *parameter = &checkpoint->table.parameter[tensor % checkpoint->table.n_parameters];
    int moment = tensor / checkpoint->table.n_parameters;
    char prefix[32] = "";
    if (moment > 0) snprintf(prefix, sizeof prefix, "moment%d.", moment);
    if (first == 0 && end == shape_count(parameter->shape)) {
        return error_user(error, "%s has no tensor '%s%s', which its manifest's model wants; it is damaged",
                          checkpoint->path, prefix, parameter->name);
    }
    return error_user(error, "%s lacks elements %lld to %lld of tensor '%s%s'; it is damaged",
                      checkpoint->path, (long long)first, (long long)(end - 1), prefix, parameter->name);
}

/* The pieces of one tensor, which begin at found[at]; returns where those of the next one do. */
static int join_pieces(const Checkpoint *checkpoint, const Index *index, int at, int tensor,
                       CheckpointTensor *joined, CheckpointPiece *pieces, Error *error) {
    int64_t end = 0;
    *joined = (CheckpointTensor){.piece = pieces};
    for (; at < index->n_found && index->found[at].tensor == tensor; at++) {
        const CheckpointPiece *piece = &index->found[at].piece;
        if (piece->first < end) {
            error_user(error, "%s: elements of tensor '%.200s' are in %s too; the checkpoint is damaged",
                       piece->file->path, piece->tensor->name, pieces[joined->n_pieces - 1].file->path);
        } else if (piece->first > end) {
            missing(checkpoint, tensor, end, piece->first, error);
        }
        if (error->status != STATUS_OK) return at;
        pieces[joined->n_pieces++] = *piece;
        end = piece->first + piece->n;
    }
    const Parameter *parameter = &checkpoint->table.parameter[tensor % checkpoint->table.n_parameters];
    if (end < shape_count(parameter->shape))
        missing(checkpoint, tensor, end, shape_count(parameter->shape), error);
    return at;
}

/* What the files hold becomes the index's pieces: each is found, all are sorted, and those of a tensor joined. */
static Status build(Checkpoint *checkpoint, const bool *is_optimizer, Arena *arena, Error *error) {
    const ParameterTable *table = &checkpoint->table;
    Index index = {.by_name = ARENA_ARRAY(arena, const Parameter *, table->n_parameters + 1)};
    int n_tensors = checkpoint->n_arrays * table->n_parameters;
    size_t n_found = 0;
    for (int i = 0; i < table->n_parameters; i++) index.by_name[i] = &table->parameter[i];
    qsort(index.by_name, (size_t)table->n_parameters, sizeof *index.by_name, compare_names);
    for (int i = 0; i < checkpoint->n_files; i++) n_found += (size_t)checkpoint->file[i].n_tensors;
    if (n_found > INT32_MAX) return error_user(error, "%s has too many tensors", checkpoint->path);
    index.found = ARENA_ARRAY(arena, Found, n_found + 1);
    for (int i = 0; i < checkpoint->n_files; i++) {
        const SafetensorsFile *file = &checkpoint->file[i];
        for (int k = 0; k < file->n_tensors; k++)
            TRY(add_tensor(checkpoint, &index, file, &file->tensor[k], is_optimizer[i], error));
    }
    qsort(index.found, (size_t)index.n_found, sizeof *index.found, compare_found);
    CheckpointTensor *tensors = ARENA_ARRAY(&checkpoint->arena, CheckpointTensor, n_tensors + 1);
    CheckpointPiece *pieces = ARENA_ARRAY(&checkpoint->arena, CheckpointPiece, n_found + 1);
    for (int tensor = 0, at = 0; tensor < n_tensors; tensor++) {
        at = join_pieces(checkpoint, &index, at, tensor, &tensors[tensor], pieces + at, error);
        TRY(error->status);
    }
    checkpoint->tensor = tensors;
    return STATUS_OK;
}

Status checkpoint_index_open(Checkpoint *checkpoint, const Manifest *manifest, bool with_optimizer,
                             Error *error) {
    enum { MOST_OPEN_FILES = 64 };
    Arena arena = {0};
    bool *is_optimizer = ARENA_ARRAY(&arena, bool, manifest->n_files + 1);
    checkpoint->file = ARENA_ARRAY(&checkpoint->arena, SafetensorsFile, manifest->n_files + 1);
    checkpoint->n_arrays = with_optimizer ? 1 + manifest->state.n_moments : 1;
    for (int i = 0; i < manifest->n_files; i++) {
        const ManifestFile *named = &manifest->file[i];
        if (named->is_optimizer && !with_optimizer) continue;
        SafetensorsFile *file = &checkpoint->file[checkpoint->n_files];
        is_optimizer[checkpoint->n_files++] = named->is_optimizer;
        const char *path = arena_printf(&arena, "%s/%s", checkpoint->path, named->name);
        TRY_GOTO(safetensors_open(file, path, error), done);
        if (manifest->n_files <= MOST_OPEN_FILES) continue;
        close(file->descriptor);
        file->descriptor = -1;
    }
    build(checkpoint, is_optimizer, &arena, error);
done:
    arena_free(&arena);
    return error->status;
}

/* ---- reading */

static Status read_piece(const CheckpointPiece *piece, int64_t first, int64_t n, float *values,
                         Error *error) {
    if (piece->file->descriptor >= 0)
        return safetensors_read_f32(piece->file, piece->tensor, first, n, values, error);
    SafetensorsFile file = *piece->file;
    file.descriptor = open(file.path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file.descriptor < 0) return error_user(error, "cannot read %s: %s", file.path, strerror(errno));
    safetensors_read_f32(&file, piece->tensor, first, n, values, error);
    close(file.descriptor);
    return error->status;
}

Status checkpoint_index_read(const CheckpointTensor *tensor, int64_t first, int64_t n, float *values,
                             Error *error) {
    int low = 0, high = tensor->n_pieces - 1; /* the last piece that begins at or before `first` */
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (tensor->piece[middle].first <= first) low = middle;
        else high = middle - 1;
    }
    for (; n > 0 && low < tensor->n_pieces; low++) {
        const CheckpointPiece *piece = &tensor->piece[low];
        int64_t skip = first - piece->first, count = piece->n - skip < n ? piece->n - skip : n;
        TRY(read_piece(piece, skip, count, values, error));
        first += count;
        n -= count;
        values += count;
    }
    return STATUS_OK;
}
