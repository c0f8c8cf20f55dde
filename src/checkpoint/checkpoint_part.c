/* The map says which runs of the rank's flat array go into the file; the file holds tensors. So every
 * parameter is laid against the map, and what they have in common is laid against the boxes of the whole
 * tensor that the parameter is a shard of. That makes pieces: runs that touch are one piece, a piece that
 * is all of the tensor is stored as the tensor itself, one whose elements are consecutive in it as a range
 * of them, any other as a box or a range of a box (part_name.h). What lies between parameters is never
 * written, nor what another rank owns.
 *
 * All moments have the same pieces, one moment behind the other. Bytes go from the arrays into the file as
 * they are. */
#include "checkpoint/checkpoint_part.h"

#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/part_name.h"
#include "parallel/sync/partition.h"

#include <string.h>

/* Of a parameter's whole tensor. */
typedef struct {
    const Parameter *parameter;
    BoxRange range;
} Piece;

/* Elements of the rank's array. */
typedef struct {
    int64_t local_first, n;
} Source;

typedef struct {
    Piece *piece;
    Source *source; /* one behind the other, all pieces; a piece may come from several */
    int n_pieces, n_sources;
    int64_t n_elements;
    bool has_boxes;             /* some are no ranges of the whole tensor */
    const Parameter *parameter; /* the one being laid against the map */
} Pieces;

/* ---- what to write */

static bool continues(const Piece *piece, const Parameter *parameter, const BoxRange *range) {
    return piece->parameter == parameter && box_equal(&piece->range.box, &range->box) &&
           piece->range.first + piece->range.n == range->first;
}

static void add_range(Pieces *pieces, const BoxRange *range, int64_t local_first) {
    if (!pieces->piece || !pieces->source) return; /* there was nothing to make room for */
    const Parameter *parameter = pieces->parameter;
    const Box whole = box_whole(parameter->whole);
    BoxRange flat = box_range_flat(range, parameter->whole);
    Piece *last = pieces->n_pieces ? &pieces->piece[pieces->n_pieces - 1] : NULL;
    if (last && continues(last, parameter, &flat)) last->range.n += flat.n;
    else pieces->piece[pieces->n_pieces++] = (Piece){.parameter = parameter, .range = flat};
    pieces->source[pieces->n_sources++] = (Source){local_first, flat.n};
    pieces->n_elements += flat.n;
    pieces->has_boxes = pieces->has_boxes || !box_equal(&flat.box, &whole);
}

/* Elements first .. first + n - 1 of what is here of the parameter: its boxes, one behind the other. */
static Status add_run(void *context, int64_t first, int64_t n, int64_t local_first, Error *error) {
    (void)error;
    Pieces *pieces = context;
    const ParameterShard *shard = &pieces->parameter->shard;
    for (int i = 0; i < shard->n_boxes && n > 0; i++) {
        int64_t count = shape_count(shard->box[i].box.shape);
        if (first < count) {
            int64_t here = count - first < n ? count - first : n;
            if (shard->box[i].is_owner)
                add_range(pieces, &(BoxRange){shard->box[i].box, first, here}, local_first);
            local_first += here;
            n -= here;
            first += here;
        }
        first -= count;
    }
    return STATUS_OK;
}

/* NULL for a map is everything. */
static Status find_pieces(const ParameterTable *table, const ShardMap *map, Pieces *pieces, Arena *arena,
                          Error *error) {
    const ShardRun everything = {.n = table->n_flat_elements};
    const ShardMap whole = {.n_runs = 1, .run = &everything, .n_local = everything.n};
    if (!map) map = &whole;
    *pieces = (Pieces){0};
    /* A border of a run or of a box begins one. */
    size_t most = SHARD_MAX_BOXES * (size_t)table->n_parameters + (size_t)map->n_runs + 1;
    pieces->piece = ARENA_ARRAY(arena, Piece, most);
    pieces->source = ARENA_ARRAY(arena, Source, most);
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = pieces->parameter = &table->parameter[i];
        TRY(shard_map_visit(map, parameter->flat_offset, shape_count(parameter->shape), add_run, pieces,
                            error));
    }
    return STATUS_OK;
}

static SafetensorsTensor describe_piece(const Piece *piece, DType type, const char *prefix, Arena *arena) {
    static const SafetensorsType types[N_DTYPES] = {[DTYPE_F32] = SAFETENSORS_F32,
                                                    [DTYPE_BF16] = SAFETENSORS_BF16,
                                                    [DTYPE_F16] = SAFETENSORS_F16,
                                                    [DTYPE_I32] = SAFETENSORS_I32};
    const Parameter *parameter = piece->parameter;
    Shape shape;
    SafetensorsTensor tensor = {.type = types[type]};
    tensor.name = part_name_write(prefix, parameter->name, parameter->whole, &piece->range, &shape, arena);
    tensor.n_dims = shape.n_dims;
    memcpy(tensor.dim, shape.dim, sizeof shape.dim);
    return tensor;
}

/* ---- writing */

/* Array 0 is the parameters, 1 + i moment i; then come the errors of what is owned here, and this rank's. */
static const char *array_of(const CheckpointSource *source, int array) {
    int n_moments = source->state->n_moments;
    if (array == 0) return source->parameters;
    if (array <= n_moments) return source->moment[array - 1];
    if (array == n_moments + 3) return source->basis;
    return array == n_moments + 1 ? source->owner_error : source->error;
}

static const char *prefix_of(const CheckpointSource *source, int array, Arena *arena) {
    int n_moments = source->state->n_moments;
    if (array == 0) return "";
    if (array <= n_moments) return arena_printf(arena, "moment%d.", array);
    if (array == n_moments + 1) return "owner_error.";
    return arena_printf(arena, "error%d.", source->error_rank + 1);
}

static Status write_elements(SafetensorsWriter *writer, const CheckpointSource *source, int array,
                             int64_t first, int64_t n, Error *error) {
    enum { PIECE_BYTES = 65536 };
    size_t size = dtype_info(source->type[array])->n_bytes;
    if (!source->read) {
        const char *flat = array_of(source, array);
        return safetensors_writer_write(writer, flat + size * (size_t)first, size * (size_t)n, error);
    }
    _Alignas(float) char piece[PIECE_BYTES];
    int64_t most = (int64_t)(PIECE_BYTES / size);
    for (int64_t done = 0; done < n; done += most) {
        int64_t count = n - done < most ? n - done : most;
        TRY(source->read(source->context, array, first + done, count, piece, error));
        TRY(safetensors_writer_write(writer, piece, size * (size_t)count, error));
    }
    return STATUS_OK;
}

static Status write_array(SafetensorsWriter *writer, const CheckpointSource *source, int array,
                          const Pieces *pieces, Error *error) {
    for (int i = 0; i < pieces->n_sources; i++) {
        TRY(write_elements(writer, source, array, pieces->source[i].local_first, pieces->source[i].n, error));
    }
    return STATUS_OK;
}

/* The same pieces of several arrays, from the first one on, each array with its own prefix before the
 * names. */
static Status write_arrays(const char *path, const CheckpointSource *source, const Pieces *pieces, int first,
                           int n_arrays, Arena *arena, CheckpointPartFile *file, Error *error) {
    static const char *const metadata[] = {"format", "pgpt", "layout", "matrices are (out,in)", NULL};
    int n_tensors = n_arrays * pieces->n_pieces;
    SafetensorsTensor *tensors = ARENA_ARRAY(arena, SafetensorsTensor, n_tensors + 1);
    for (int i = 0; i < n_tensors; i++) {
        int array = first + i / pieces->n_pieces;
        tensors[i] = describe_piece(&pieces->piece[i % pieces->n_pieces], source->type[array],
                                    prefix_of(source, array, arena), arena);
    }
    SafetensorsWriter writer;
    TRY(safetensors_writer_open(&writer, path, tensors, n_tensors, metadata, error));
    for (int i = 0; i < n_arrays; i++) TRY_GOTO(write_array(&writer, source, first + i, pieces, error), done);
    *file = (CheckpointPartFile){.n_elements = n_arrays * pieces->n_elements,
                                 .n_bytes = writer.checksum.n_bytes,
                                 .checksum = checksum_value(&writer.checksum)};
    safetensors_writer_commit(&writer, error);
done:
    safetensors_writer_abort(&writer);
    return error->status;
}

const char *const checkpoint_part_names[CHECKPOINT_PART_FILES] = {"model", "optimizer", "owner_errors",
                                                                  "errors", "basis"};

static const char *file_name(int file, int rank, int n_ranks, Arena *arena) {
    const char *holds = checkpoint_part_names[file];
    if (n_ranks == 1) return arena_printf(arena, "%s.safetensors", holds);
    return arena_printf(arena, "%s-%05d-of-%05d.safetensors", holds, rank + 1, n_ranks);
}

/* One tensor, which is named after what it belongs to. */
static Status write_basis(const char *path, const CheckpointSource *source, Arena *arena,
                          CheckpointPartFile *file, Error *error) {
    SafetensorsTensor tensor = {.name = checkpoint_basis_name(source->basis_identity, arena),
                                .type = SAFETENSORS_F32,
                                .n_dims = 1,
                                .dim = {source->n_basis}};
    SafetensorsWriter writer;
    TRY(safetensors_writer_open(&writer, path, &tensor, 1, NULL, error));
    TRY_GOTO(write_elements(&writer, source, source->state->n_moments + 3, 0, source->n_basis, error), done);
    *file = (CheckpointPartFile){.n_elements = source->n_basis,
                                 .n_bytes = writer.checksum.n_bytes,
                                 .checksum = checksum_value(&writer.checksum)};
    safetensors_writer_commit(&writer, error);
done:
    safetensors_writer_abort(&writer);
    return error->status;
}

Status checkpoint_part_write(const char *folder, const CheckpointSource *source, int rank, int n_ranks,
                             CheckpointPart *part, Error *error) {
    *part = (CheckpointPart){0};
    const CheckpointState *state = source->state;
    const ShardMap *const maps[] = {source->parameters_saved, source->moments_saved,
                                    source->owner_error_saved, source->error_saved};
    const int first[] = {0, 1, 1 + state->n_moments, 2 + state->n_moments},
              n_arrays[] = {1, state->n_moments, state->has_owner_error, state->n_errors > 0};
    Arena arena = {0};
    for (int i = 0; i < CHECKPOINT_BASIS_FILE && error->status == STATUS_OK; i++) {
        Pieces pieces;
        TRY_GOTO(find_pieces(source->table, maps[i], &pieces, &arena, error), done);
        if (n_arrays[i] == 0 || pieces.n_pieces == 0) continue;
        part->has_boxes |= pieces.has_boxes;
        const char *path = arena_printf(&arena, "%s/%s", folder, file_name(i, rank, n_ranks, &arena));
        TRY_GOTO(write_arrays(path, source, &pieces, first[i], n_arrays[i], &arena, &part->file[i], error),
                 done);
    }
    if (source->n_basis) {
        const char *name = file_name(CHECKPOINT_BASIS_FILE, rank, n_ranks, &arena);
        write_basis(arena_printf(&arena, "%s/%s", folder, name), source, &arena,
                    &part->file[CHECKPOINT_BASIS_FILE], error);
    }
done:
    arena_free(&arena);
    return error->status;
}

/* ---- the manifest */

/* Where parts overlap or leave a gap, counting finds it, unless one makes up for the other; loading finds
 * both. */
static Status check_sum(const CheckpointSource *source, const CheckpointPart *parts, int n_ranks,
                        Error *error) {
    const CheckpointState *state = source->state;
    const int64_t n_arrays[] = {1, state->n_moments, state->has_owner_error, state->n_errors};
    for (int i = 0; i < CHECKPOINT_BASIS_FILE; i++) {
        int64_t n_written = 0, n_wanted = n_arrays[i] * source->table->n_whole_elements;
        for (int rank = 0; rank < n_ranks; rank++) n_written += parts[rank].file[i].n_elements;
        if (n_written == n_wanted) continue;
        return error_failed(
            error, "the parts that %d ranks saved of the %s have %lld elements where there are %lld", n_ranks,
            i == CHECKPOINT_MODEL_FILE       ? "model"
            : i == CHECKPOINT_OPTIMIZER_FILE ? "optimizer"
                                             : "errors",
            (long long)n_written, (long long)n_wanted);
    }
    return STATUS_OK;
}

Status checkpoint_parts_seal(const char *folder, const CheckpointSource *source, const CheckpointPart *parts,
                             int n_ranks, Error *error) {
    TRY(check_sum(source, parts, n_ranks, error));
    Arena arena = {0};
    Manifest manifest = {.state = *source->state, .config = *source->config, .has_parts = n_ranks > 1};
    manifest.file = ARENA_ARRAY(&arena, ManifestFile, CHECKPOINT_PART_FILES * n_ranks);
    for (int rank = 0; rank < n_ranks; rank++) manifest.has_boxes |= parts[rank].has_boxes != 0;
    for (int i = 0; i < CHECKPOINT_PART_FILES; i++) {
        for (int rank = 0; rank < n_ranks; rank++) {
            const CheckpointPartFile *file = &parts[rank].file[i];
            if (file->n_elements == 0) continue;
            manifest.file[manifest.n_files++] = (ManifestFile){.name = file_name(i, rank, n_ranks, &arena),
                                                               .is_optimizer = i != CHECKPOINT_MODEL_FILE,
                                                               .is_basis = i == CHECKPOINT_BASIS_FILE,
                                                               .n_bytes = file->n_bytes,
                                                               .checksum = file->checksum};
        }
    }
    manifest_write(arena_printf(&arena, "%s/manifest.json", folder), &manifest, error);
    arena_free(&arena);
    return error->status;
}
