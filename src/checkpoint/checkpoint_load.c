/* Reading: the caller's table against the checkpoint's own, then whole tensors out of what the index
 * knows.
 *
 * The checkpoint was verified when it was opened (checkpoint_open.c), so every element of its model is
 * there once. What is left to ask is whether the caller's model is the same; tensors are then the same by
 * their keys. A caller's table may be that of a part: what it holds of a tensor are boxes, each of which
 * is read by itself. */
#include "checkpoint/checkpoint_index.h"

#include "graph/shape.h"
#include "parallel/sync/partition.h"

#include <stdio.h>
#include <string.h>

/* ---- tensors */

enum { NAME_BYTES = 256, SHAPE_BYTES = 160 };

static const char *tensor_name(const Parameter *parameter, int moment, char name[NAME_BYTES]) {
    if (moment < 0) snprintf(name, NAME_BYTES, "%s", parameter->name);
    else snprintf(name, NAME_BYTES, "moment%d.%s", moment + 1, parameter->name);
    return name;
}

/* The tensor of a parameter, in the shape of the whole. */
static Status find_tensor(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                          const CheckpointTensor **tensor, Error *error) {
    char name[NAME_BYTES], has[SHAPE_BYTES], wants[SHAPE_BYTES];
    const ParameterTable *own_table = &checkpoint->table;
    const ParameterKey key = {parameter->role, parameter->block, parameter->expert};
    const Parameter *own = moment + 1 < checkpoint->n_arrays ? parameter_find_key(own_table, key) : NULL;
    tensor_name(parameter, moment, name);
    if (!own) {
        return error_user(error,
                          "%s has no tensor '%s', which this model wants; the checkpoint is of another model",
                          checkpoint->path, name);
    }
    if (!shape_equal(own->whole, parameter->whole)) {
        return error_user(
            error, "%s: tensor '%s' has shape %s, this model wants %s; the checkpoint is of another model",
            checkpoint->path, name, shape_format(own->whole, has, sizeof has),
            shape_format(parameter->whole, wants, sizeof wants));
    }
    *tensor = &checkpoint->tensor[(moment + 1) * own_table->n_parameters + (own - own_table->parameter)];
    return STATUS_OK;
}

static bool is_in_table(const ParameterTable *table, const char *name) {
    for (int i = 0; i < table->n_parameters; i++) {
        if (strcmp(table->parameter[i].name, name) == 0) return true;
    }
    return false;
}

Status checkpoint_check(const Checkpoint *checkpoint, const ParameterTable *table, Error *error) {
    const CheckpointTensor *tensor;
    const ParameterTable *own = &checkpoint->table;
    for (int i = 0; i < table->n_parameters; i++) {
        TRY(find_tensor(checkpoint, &table->parameter[i], -1, &tensor, error));
    }
    /* All of the table's are there; if there are more than its model has, some are not the model's. */
    if (own->n_parameters == table->n_whole_parameters) return STATUS_OK;
    bool is_whole = table->n_parameters == table->n_whole_parameters;
    for (int i = 0; is_whole && i < own->n_parameters; i++) {
        if (is_in_table(table, own->parameter[i].name)) continue;
        return error_user(error,
                          "%s: tensor '%s' is not part of this model; the checkpoint is of another one",
                          checkpoint->path, own->parameter[i].name);
    }
    return error_user(error, "%s has %d tensors where this model has %d; the checkpoint is of another one",
                      checkpoint->path, own->n_parameters, table->n_whole_parameters);
}

Status checkpoint_read_part(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                            int64_t first, int64_t n, float *values, Error *error) {
    const CheckpointTensor *tensor = NULL;
    TRY(find_tensor(checkpoint, parameter, moment, &tensor, error));
    if (first < 0 || n < 0 || first > shape_count(parameter->shape) - n) {
        return error_failed(error,
                            "%s: elements %lld to %lld were read of tensor '%s', which has not as many",
                            checkpoint->path, (long long)first, (long long)(first + n), parameter->name);
    }
    for (int i = 0; i < parameter->shard.n_boxes && n > 0; i++) {
        const Box *box = &parameter->shard.box[i].box;
        int64_t count = shape_count(box->shape), here = count - first < n ? count - first : n;
        if (here > 0) {
            TRY(checkpoint_index_read(tensor, &(BoxRange){*box, first, here}, values, error));
            values += here;
            first += here;
            n -= here;
        }
        first -= count;
    }
    return STATUS_OK;
}

Status checkpoint_read_box(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                           const Box *box, float *values, Error *error) {
    const CheckpointTensor *tensor = NULL;
    TRY(find_tensor(checkpoint, parameter, moment, &tensor, error));
    if (!box_is_within(box, parameter->whole)) {
        return error_failed(error, "%s: a box was read of tensor '%s' that does not lie in it",
                            checkpoint->path, parameter->name);
    }
    return checkpoint_index_read(tensor, &(BoxRange){*box, 0, shape_count(box->shape)}, values, error);
}

/* ---- arrays */

typedef struct {
    const Checkpoint *checkpoint;
    const Parameter *parameter;
    int moment;
    float *local;
} MapReader;

static Status read_run(void *context, int64_t first, int64_t n, int64_t local_first, Error *error) {
    const MapReader *reader = context;
    return checkpoint_read_part(reader->checkpoint, reader->parameter, reader->moment, first, n,
                                reader->local + local_first, error);
}

static Status check_map(const ParameterTable *table, const ShardMap *map, Error *error) {
    int64_t flat_end = 0, local_end = 0;
    for (int i = 0; i < map->n_runs; i++) {
        const ShardRun *run = &map->run[i];
        if (run->flat_first < flat_end || run->local_first < local_end || run->n < 0 ||
            run->flat_first > table->n_flat_elements - run->n || run->local_first > map->n_local - run->n) {
            return error_failed(error, "run %d of a map does not ascend or is beyond the end", i);
        }
        flat_end = run->flat_first + run->n;
        local_end = run->local_first + run->n;
    }
    return STATUS_OK;
}

static Status check_moment(const Checkpoint *checkpoint, int moment, int lowest, Error *error) {
    if (moment >= lowest && moment < checkpoint->state.n_moments) return STATUS_OK;
    return error_user(error, "%s has %d moments of %s; number %d was asked for", checkpoint->path,
                      checkpoint->state.n_moments, checkpoint->state.optimizer, moment + 1);
}

static Status read_map(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                       const ShardMap *map, float *local, Error *error) {
    TRY(checkpoint_check(checkpoint, table, error));
    TRY(check_map(table, map, error));
    if (map->n_local) memset(local, 0, sizeof(float) * (size_t)map->n_local);
    MapReader reader = {.checkpoint = checkpoint, .moment = moment, .local = local};
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = reader.parameter = &table->parameter[i];
        TRY(shard_map_visit(map, parameter->flat_offset, shape_count(parameter->shape), read_run, &reader,
                            error));
    }
    return STATUS_OK;
}

Status checkpoint_read_map(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                           const ShardMap *map, float *local, Error *error) {
    TRY(check_moment(checkpoint, moment, -1, error));
    return read_map(checkpoint, table, moment, map, local, error);
}

Status checkpoint_read_error(const Checkpoint *checkpoint, const ParameterTable *table, int rank,
                             const ShardMap *map, float *local, Error *error) {
    const CheckpointState *state = &checkpoint->state;
    bool is_there = rank == CHECKPOINT_OWNER_ERROR ? state->has_owner_error : rank < state->n_errors;
    if (!is_there) return error_failed(error, "%s has no errors of rank %d", checkpoint->path, rank);
    int behind = rank == CHECKPOINT_OWNER_ERROR ? 0 : state->has_owner_error + rank;
    return read_map(checkpoint, table, state->n_moments + behind, map, local, error);
}

static Status read_basis(const char *path, const char *name, int64_t n, float *values, bool *is_there,
                         Error *error) {
    SafetensorsFile file;
    TRY(safetensors_open(&file, path, error));
    const SafetensorsTensor *tensor = safetensors_find(&file, name);
    *is_there = tensor && tensor->type == SAFETENSORS_F32 && safetensors_count(tensor) == n;
    if (*is_there) safetensors_read_f32(&file, tensor, 0, n, values, error);
    safetensors_close(&file);
    return error->status;
}

Status checkpoint_read_basis(const Checkpoint *checkpoint, uint64_t identity, int64_t n, float *values,
                             bool *is_there, Error *error) {
    Arena arena = {0};
    const char *name = checkpoint_basis_name(identity, &arena);
    *is_there = false;
    for (int i = 0; i < checkpoint->n_basis_files && !*is_there && error->status == STATUS_OK; i++)
        read_basis(checkpoint->basis_path[i], name, n, values, is_there, error);
    arena_free(&arena);
    return error->status;
}

static Status read_flat(const Checkpoint *checkpoint, const ParameterTable *table, int moment, float *flat,
                        Error *error) {
    TRY(checkpoint_check(checkpoint, table, error));
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        TRY(checkpoint_read_part(checkpoint, parameter, moment, 0, shape_count(parameter->shape),
                                 flat + parameter->flat_offset, error));
    }
    return STATUS_OK;
}

Status checkpoint_read_parameters(const Checkpoint *checkpoint, const ParameterTable *table, float *flat,
                                  Error *error) {
    return read_flat(checkpoint, table, -1, flat, error);
}

Status checkpoint_read_moment(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                              float *flat, Error *error) {
    TRY(check_moment(checkpoint, moment, 0, error));
    return read_flat(checkpoint, table, moment, flat, error);
}
