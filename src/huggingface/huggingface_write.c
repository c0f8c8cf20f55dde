/* Tensors fill files in the order of the model until one is full, and within a file they lie in the order of
 * their names: where `transformers` would put them, and in the same bytes.
 *
 * A tensor is in memory once, as f32 in our layout. Rows of Hugging Face's layout are gathered from it and
 * turned into the type asked for a band at a time. */
#include "huggingface/huggingface_write.h"

#include "base/half.h"
#include "base/system/memory.h"
#include "huggingface/huggingface_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 18, HEADER_ALIGNMENT = 8 };

typedef struct {
    const Parameter *parameter;
    const HuggingFacePiece *piece; /* of it */
    SafetensorsTensor tensor;
    int shard;
} Entry;

typedef struct {
    const ModelSource *source;
    const HuggingFaceWriteOptions *options;
    Entry *entry;
    int n_entries, n_shards;
    uint64_t total_bytes, done_bytes;
    float *values; /* of one tensor */
    float *band;
    uint16_t *halves; /* of a band */
} Writer;

/* ---- what goes where */

static SafetensorsTensor stored_tensor(const HuggingFacePiece *piece, SafetensorsType type, bool has_prefix,
                                       Arena *arena) {
    SafetensorsTensor tensor = {
        .name = arena_printf(arena, "%s%s", has_prefix ? HUGGINGFACE_PREFIX : "", piece->name),
        .type = type,
        .n_dims = piece->stored.n_dims};
    for (int k = 0; k < tensor.n_dims; k++) tensor.dim[k] = piece->stored.dim[k];
    return tensor;
}

/* Into the file that is being filled, or a new one where it is full. */
static void plan_entry(Writer *writer, const Entry *entry, uint64_t *in_shard) {
    uint64_t n_bytes =
        (uint64_t)shape_count(entry->piece->stored) * safetensors_type_bytes(writer->options->type);
    if (*in_shard > 0 && n_bytes > writer->options->shard_bytes - *in_shard) {
        writer->n_shards++;
        *in_shard = 0;
    }
    *in_shard += n_bytes < writer->options->shard_bytes ? n_bytes : writer->options->shard_bytes;
    writer->total_bytes += n_bytes;
    writer->entry[writer->n_entries] = *entry;
    writer->entry[writer->n_entries++].shard = writer->n_shards;
}

static void plan_entries(Writer *writer, const ParameterTable *table, bool is_bare, Arena *arena) {
    const ModelConfig *config = &writer->source->config;
    bool is_gpt2 = huggingface_layout(config) == HUGGINGFACE_GPT2;
    int64_t most = table->n_parameters * (3 + 2 * config->n_experts);
    writer->entry = ARENA_ARRAY(arena, Entry, most);
    uint64_t in_shard = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        HuggingFacePiece *pieces;
        int n_pieces = huggingface_pieces(config, parameter, arena, &pieces);
        bool has_prefix = is_gpt2 && !is_bare && parameter->role != ROLE_HEAD_WEIGHT;
        for (int k = 0; k < n_pieces; k++) {
            Entry entry = {.parameter = parameter,
                           .piece = &pieces[k],
                           .tensor = stored_tensor(&pieces[k], writer->options->type, has_prefix, arena)};
            plan_entry(writer, &entry, &in_shard);
        }
    }
    writer->n_shards++;
}

static int by_shard_and_name(const void *a, const void *b) {
    const Entry *x = a, *y = b;
    return x->shard != y->shard ? (x->shard < y->shard ? -1 : 1) : strcmp(x->tensor.name, y->tensor.name);
}

static const char *shard_name(const Writer *writer, int shard, Arena *arena) {
    return writer->n_shards == 1
               ? HUGGINGFACE_WEIGHTS
               : arena_printf(arena, "model-%05d-of-%05d.safetensors", shard + 1, writer->n_shards);
}

/* ---- text files */

static Status write_text(const char *path, const char *text, Error *error) {
    FileWriter file;
    TRY(file_writer_open(&file, path, error));
    if (file_writer_write(&file, text, strlen(text), error) == STATUS_OK) file_writer_commit(&file, error);
    file_writer_abort(&file);
    return error->status;
}

static Status write_index(const Writer *writer, const char *folder, Arena *arena, Error *error) {
    json_t *map = json_object();
    int64_t n_elements = 0;
    for (int i = 0; i < writer->n_entries; i++) {
        const Entry *entry = &writer->entry[i];
        n_elements += safetensors_count(&entry->tensor);
        json_object_set_new(map, entry->tensor.name, json_string(shard_name(writer, entry->shard, arena)));
    }
    json_t *object = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters", (json_int_t)n_elements,
                               "total_size", (json_int_t)writer->total_bytes, "weight_map", map);
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(object);
    const char *path = arena_printf(arena, "%s/%s", folder, HUGGINGFACE_INDEX);
    if (!text) return error_failed(error, "cannot write %s: out of memory", path);
    write_text(path, arena_printf(arena, "%s\n", text), error);
    free(text);
    return error->status;
}

/* ---- tensors */

/* Numbers in 16 bits, to writer->halves. */
static Status encode(const Writer *writer, const Entry *entry, const float *from, int64_t n, Error *error) {
    bool is_f16 = writer->options->type == SAFETENSORS_F16;
    uint16_t infinite = is_f16 ? 0x7C00 : 0x7F80;
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = is_f16 ? half_f16_from_f32(from[i]) : half_bf16_from_f32(from[i]);
        if ((half & 0x7FFF) == infinite && isfinite(from[i])) {
            return error_user(error, "tensor '%s' of %s holds %g, which is too large for %s; %s",
                              entry->parameter->name, writer->source->path, (double)from[i],
                              is_f16 ? "f16" : "bf16",
                              is_f16 ? "use --dtype bf16 or f32" : "use --dtype f32");
        }
        writer->halves[i] = half;
    }
    return STATUS_OK;
}

static Status write_values(Writer *writer, SafetensorsWriter *file, const Entry *entry, const float *from,
                           int64_t n, Error *error) {
    if (writer->options->type == SAFETENSORS_F32)
        return safetensors_writer_write(file, from, (size_t)n * sizeof(float), error);
    TRY(encode(writer, entry, from, n, error));
    return safetensors_writer_write(file, writer->halves, (size_t)n * sizeof(uint16_t), error);
}

/* Elements first .. first + n - 1 of the stored order of a matrix that is turned, gathered from ours. */
static void gather(const float *values, int64_t rows, int64_t columns, int64_t first, int64_t n, float *to) {
    int64_t row = first / columns, column = first % columns;
    for (int64_t i = 0; i < n; i++) {
        to[i] = values[column * rows + row];
        if (++column == columns) {
            column = 0;
            row++;
        }
    }
}

static Status write_tensor(Writer *writer, SafetensorsWriter *file, const Entry *entry, Error *error) {
    const SafetensorsTensor *tensor = &entry->tensor;
    int64_t count = safetensors_count(tensor);
    Parameter part = *entry->parameter; /* what of it goes into this tensor */
    part.shard = (ParameterShard){.n_boxes = 1, .box = {{.box = entry->piece->box, .is_owner = true}}};
    part.shape = entry->piece->box.shape;
    TRY(model_source_read(writer->source, &part, writer->values, error));
    for (int64_t first = 0; first < count; first += BAND_ELEMENTS) {
        int64_t n = count - first < BAND_ELEMENTS ? count - first : BAND_ELEMENTS;
        const float *from = writer->values + first;
        if (entry->piece->is_turned) {
            gather(writer->values, tensor->dim[0], tensor->dim[1], first, n, writer->band);
            from = writer->band;
        }
        TRY(write_values(writer, file, entry, from, n, error));
    }
    writer->done_bytes += tensor->n_bytes;
    if (!writer->options->report) return STATUS_OK;
    return writer->options->report(writer->options->context,
                                   (double)writer->done_bytes / (double)writer->total_bytes, error);
}

/* The entries of one shard, which lie together. */
static Status write_shard(Writer *writer, const char *folder, const Entry *entries, int n_entries,
                          Error *error) {
    static const char *const metadata[] = {"format", "pt", NULL};
    Arena arena = {0};
    SafetensorsWriter file;
    SafetensorsTensor *tensors = ARENA_ARRAY(&arena, SafetensorsTensor, n_entries);
    for (int i = 0; i < n_entries; i++) tensors[i] = entries[i].tensor;
    const char *path = arena_printf(&arena, "%s/%s", folder, shard_name(writer, entries[0].shard, &arena));
    TRY_GOTO(
        safetensors_writer_open_aligned(&file, path, tensors, n_entries, metadata, HEADER_ALIGNMENT, error),
        failed);
    for (int i = 0; i < n_entries; i++) {
        Entry entry = entries[i];
        entry.tensor = tensors[i]; /* with its size, which opening filled in */
        TRY_GOTO(write_tensor(writer, &file, &entry, error), done);
    }
    safetensors_writer_commit(&file, error);
done:
    safetensors_writer_abort(&file);
failed:
    arena_free(&arena);
    return error->status;
}

static Status write_shards(Writer *writer, const char *folder, Error *error) {
    for (int first = 0, end; first < writer->n_entries; first = end) {
        for (end = first; end < writer->n_entries; end++) {
            if (writer->entry[end].shard != writer->entry[first].shard) break;
        }
        TRY(write_shard(writer, folder, &writer->entry[first], end - first, error));
    }
    return STATUS_OK;
}

Status huggingface_write(const ModelSource *source, const ParameterTable *table, const char *folder,
                         const HuggingFaceWriteOptions *options, int *n_files, Error *error) {
    Arena arena = {0};
    Writer writer = {.source = source, .options = options};
    char *config = NULL;
    bool is_bare = false;
    void *room = NULL;
    size_t n_values = (size_t)parameters_largest(table);
    size_t n_bytes = (n_values + BAND_ELEMENTS) * sizeof(float) + BAND_ELEMENTS * sizeof(uint16_t);
    TRY_GOTO(huggingface_config_text(&source->config, source->origin, options->type, options->end_token,
                                     &config, &is_bare, error),
             done);
    TRY_GOTO(memory_alloc(&room, n_bytes, "the largest tensor", error), done);
    writer.values = room;
    writer.band = writer.values + n_values;
    writer.halves = (uint16_t *)(writer.band + BAND_ELEMENTS);
    plan_entries(&writer, table, is_bare, &arena);
    *n_files = writer.n_shards;
    qsort(writer.entry, (size_t)writer.n_entries, sizeof *writer.entry, by_shard_and_name);
    const char *path = arena_printf(&arena, "%s/%s", folder, HUGGINGFACE_CONFIG);
    TRY_GOTO(write_text(path, config, error), done);
    if (writer.n_shards > 1) TRY_GOTO(write_index(&writer, folder, &arena, error), done);
    write_shards(&writer, folder, error);
done:
    memory_free(room, n_bytes);
    free(config);
    arena_free(&arena);
    return error->status;
}
