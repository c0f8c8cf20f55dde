/* Names in a file come from outside, so they are compared with what must be there: the manifest gives the
 * model's configuration, that gives the table, and every tensor found must be one of the table's or, by
 * its name, a part of one. Everything found is then sorted by tensor and first element. Where all parts of
 * a tensor are ranges of its elements, a gap or an overlap is between neighbours; where some are boxes,
 * checkpoint_cover.c looks for it.
 *
 * The files of thousands of ranks are more than a process may have open. Beyond a number that every system
 * grants they are closed after their headers were read, and opened again for each read. */
#include "checkpoint/checkpoint_index.h"

#include "checkpoint/checkpoint_cover.h"
#include "checkpoint/part_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_BYTES = 256, SHAPE_BYTES = 160 };

typedef struct {
    int tensor;    /* in checkpoint->tensor */
    int64_t first; /* of its elements in that */
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

/* Take "moment2." from the front of an optimizer's name: 2, or -1 if it is not there or of a moment too
 * many. */
static int take_moment(const char **name, int n_moments) {
    const char *text = *name;
    if (strncmp(text, "moment", 6) != 0 || text[6] < '1' || text[6] - '0' > n_moments || text[7] != '.')
        return -1;
    *name += 8;
    return text[6] - '0';
}

/* Of errors, behind the moments: those of owners, then of each rank. */
static int take_error(const char **name, const CheckpointState *state) {
    const char *owner = "owner_error.";
    int first = 1 + state->n_moments, number = 0, n_read = 0;
    if (state->has_owner_error && strncmp(*name, owner, strlen(owner)) == 0) {
        *name += strlen(owner);
        return first;
    }
    if (sscanf(*name, "error%6d.%n", &number, &n_read) != 1 || !n_read || number < 1 ||
        number > state->n_errors)
        return -1;
    *name += n_read;
    return first + state->has_owner_error + number - 1;
}

/* What is before the name of a parameter says of which array it is; -1: of none. */
static int take_array(const char **name, const CheckpointState *state) {
    int moment = take_moment(name, state->n_moments);
    return moment < 0 ? take_error(name, state) : moment;
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
    int array = is_optimizer ? take_array(&name, &checkpoint->state) : 0;
    size_t n_name = strcspn(name, "[");
    const Parameter *parameter = array < 0 ? NULL : find_parameter(index, table->n_parameters, name, n_name);
    if (!parameter) return wrong(file, tensor, "is not part of the model that the manifest describes", error);
    if (!safetensors_reads_as_f32(tensor->type))
        return wrong(file, tensor, "has a dtype that a model's numbers do not have", error);
    BoxRange range;
    Shape shape;
    PartNameFlaw flaw = part_name_read(name + n_name, parameter->whole, &range, &shape);
    if (flaw == PART_NAME_NO_RANGE)
        return wrong(file, tensor, "does not name a range of elements as [first:end], or of every dim",
                     error);
    if (flaw == PART_NAME_BEYOND)
        return wrong(file, tensor, "reaches beyond the end of what it is a part of", error);
    TRY(check_shape(file, tensor, shape, error));
    if (range.n == 0) return STATUS_OK;
    const Box whole = box_whole(parameter->whole);
    range = box_range_flat(&range, parameter->whole);
    index->found[index->n_found++] =
        (Found){.tensor = array * table->n_parameters + (int)(parameter - table->parameter),
                .first = box_element(&range.box, &whole, range.first),
                .piece = {.range = range, .file = file, .tensor = tensor}};
    return STATUS_OK;
}

/* ---- all of them */

static int compare_found(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* A tensor being put together. */
typedef struct {
    const Checkpoint *checkpoint;
    const Found *found; /* its pieces */
    int n_found;
    const Parameter *parameter;
    char name[NAME_BYTES];
} Joint;

static Joint joint_of(const Checkpoint *checkpoint, const Index *index, int tensor, int at) {
    int n_parameters = checkpoint->table.n_parameters, moment = tensor / n_parameters;
    Joint joint = {.checkpoint = checkpoint,
                   .found = index->found + at,
                   .parameter = &checkpoint->table.parameter[tensor % n_parameters]};
    while (at < index->n_found && index->found[at].tensor == tensor) at++, joint.n_found++;
    if (moment > checkpoint->state.n_moments)
        snprintf(joint.name, NAME_BYTES, "error of %s", joint.parameter->name);
    else if (moment > 0) snprintf(joint.name, NAME_BYTES, "moment%d.%s", moment, joint.parameter->name);
    else snprintf(joint.name, NAME_BYTES, "%s", joint.parameter->name);
    return joint;
}

static Status twice(const CheckpointPiece *first, const CheckpointPiece *second, Error *error) {
    return error_user(error, "%s: elements of tensor '%.200s' are in %s too; the checkpoint is damaged",
                      second->file->path, second->tensor->name, first->file->path);
}

static Status missing(const Joint *joint, int64_t first, int64_t end, Error *error) {
    if (first == 0 && end == shape_count(joint->parameter->whole)) {
        return error_user(error, "%s has no tensor '%s', which its manifest's model wants; it is damaged",
                          joint->checkpoint->path, joint->name);
    }
    return error_user(error, "%s lacks elements %lld to %lld of tensor '%s'; it is damaged",
                      joint->checkpoint->path, (long long)first, (long long)(end - 1), joint->name);
}

static Status check_row(const Joint *joint, Error *error) {
    int64_t end = 0, count = shape_count(joint->parameter->whole);
    for (int i = 0; i < joint->n_found; i++) {
        const CheckpointPiece *piece = &joint->found[i].piece;
        if (piece->range.first < end) return twice(&joint->found[i - 1].piece, piece, error);
        if (piece->range.first > end) return missing(joint, end, piece->range.first, error);
        end += piece->range.n;
    }
    return end < count ? missing(joint, end, count, error) : STATUS_OK;
}

static Status check_boxes(const Joint *joint, Arena *arena, Error *error) {
    const BoxRange **ranges = ARENA_ARRAY(arena, const BoxRange *, joint->n_found + 1);
    for (int i = 0; i < joint->n_found; i++) ranges[i] = &joint->found[i].piece.range;
    Cover cover = checkpoint_cover(ranges, joint->n_found, joint->parameter->whole, arena);
    switch (cover.flaw) {
    case COVER_EXACT: break;
    case COVER_GAP:
        return error_user(error, "%s lacks %lld elements of tensor '%s'; it is damaged",
                          joint->checkpoint->path, (long long)cover.n_missing, joint->name);
    case COVER_OVERLAP:
        return twice(&joint->found[cover.first].piece, &joint->found[cover.second].piece, error);
    case COVER_CROWDED:
        return error_user(error, "%s has tensor '%s' in more parts than a run makes of one; it is damaged",
                          joint->checkpoint->path, joint->name);
    }
    return STATUS_OK;
}

static Status join_pieces(const Joint *joint, CheckpointPiece *pieces, CheckpointTensor *joined, Arena *arena,
                          Error *error) {
    const Box whole = box_whole(joint->parameter->whole);
    *joined = (CheckpointTensor){
        .shape = whole.shape, .piece = pieces, .n_pieces = joint->n_found, .is_in_row = true};
    for (int i = 0; i < joint->n_found; i++) {
        pieces[i] = joint->found[i].piece;
        if (!box_equal(&pieces[i].range.box, &whole)) joined->is_in_row = false;
    }
    return joined->is_in_row ? check_row(joint, error) : check_boxes(joint, arena, error);
}

/* What the files hold becomes the index's pieces: each is found, all are sorted, and those of a tensor
 * joined. */
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
        Joint joint = joint_of(checkpoint, &index, tensor, at);
        TRY(join_pieces(&joint, pieces + at, &tensors[tensor], arena, error));
        at += joint.n_found;
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
    checkpoint->basis_path = ARENA_ARRAY(&checkpoint->arena, const char *, manifest->n_files + 1);
    const CheckpointState *state = &manifest->state;
    checkpoint->n_arrays =
        with_optimizer ? 1 + state->n_moments + state->has_owner_error + state->n_errors : 1;
    for (int i = 0; i < manifest->n_files; i++) {
        const ManifestFile *named = &manifest->file[i];
        if (named->is_optimizer && !with_optimizer) continue;
        if (named->is_basis) {
            checkpoint->basis_path[checkpoint->n_basis_files++] =
                arena_printf(&checkpoint->arena, "%s/%s", checkpoint->path, named->name);
            continue;
        }
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
