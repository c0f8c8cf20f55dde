/* The source is checked whole, and the room on the disk, before the first byte is written; what is written
 * then goes to a staged folder. So a mistake costs nothing, and a folder with the final name is complete.
 *
 * Weights go through the room of one tensor in either direction: the checkpoint asks for them in pieces, in
 * the order of the table, and gets them from the tensor that was read last. */
#include "huggingface/convert.h"

#include "base/file/staged_folder.h"
#include "base/system/memory.h"
#include "base/text/format.h"
#include "huggingface/huggingface_write.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    const ModelSource *source;
    const ConvertOptions *options;
    ParameterTable table;
    const Parameter *read; /* the last one that was read, NULL before the first */
    float *values;         /* of it */
    int64_t n_done;        /* elements */
} Conversion;

/* ---- files that go along as they are */

static Status copy_bytes(int from, const char *path, FileWriter *to, Error *error) {
    char bytes[1 << 14];
    for (;;) {
        ssize_t n = read(from, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_failed(error, "cannot read %s: %s", path, strerror(errno));
        if (n == 0) return file_writer_commit(to, error);
        TRY(file_writer_write(to, bytes, (size_t)n, error));
    }
}

/* Copy a file, if there is one: a plain one, since a pipe would keep us waiting. */
static Status copy_file(const char *from, const char *to, Error *error) {
    struct stat facts;
    if (stat(from, &facts) != 0 || !S_ISREG(facts.st_mode)) return STATUS_OK;
    int descriptor = open(from, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return error_user(error, "cannot read %s: %s; it belongs to the model", from, strerror(errno));
    FileWriter writer;
    if (file_writer_open(&writer, to, error) == STATUS_OK) copy_bytes(descriptor, from, &writer, error);
    file_writer_abort(&writer);
    close(descriptor);
    return error->status;
}

/* In a folder of Hugging Face, tokenizer.json is theirs; ours has another name there. */
static Status copy_tokenizer(const Conversion *conversion, const char *folder, Arena *arena, Error *error) {
    static const char *const names[] = {"vocab.json",
                                        "merges.txt",
                                        "encoder.json",
                                        "vocab.bpe",
                                        "added_tokens.json",
                                        "special_tokens_map.json",
                                        "tokenizer_config.json",
                                        "generation_config.json"};
    const ModelSource *source = conversion->source;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TRY(copy_file(arena_printf(arena, "%s/%s", source->folder, names[i]),
                      arena_printf(arena, "%s/%s", folder, names[i]), error));
    }
    if (!source->tokenizer || strcmp(source->tokenizer, source->folder) == 0) return STATUS_OK;
    bool is_ours = model_source_is_our_tokenizer(source->tokenizer);
    bool is_renamed = is_ours && conversion->options->to_huggingface;
    if (is_renamed) {
        log_note(conversion->options->log,
                 "the tokenizer has no form that transformers reads; it goes along as %s",
                 MODEL_SOURCE_OUR_TOKENIZER);
    }
    const char *name = is_renamed ? MODEL_SOURCE_OUR_TOKENIZER : "tokenizer.json";
    return copy_file(source->tokenizer, arena_printf(arena, "%s/%s", folder, name), error);
}

/* ---- progress */

static Status report(void *context, double fraction, Error *error) {
    const Conversion *conversion = context;
    const ConvertOptions *options = conversion->options;
    if (options->progress && progress_due(options->progress)) {
        char status[PROGRESS_STATUS_BYTES];
        snprintf(status, sizeof status, "%s parameters",
                 format_count((double)conversion->table.n_elements).text);
        progress_update(options->progress, fraction, status);
    }
    if (!options->should_stop || !options->should_stop()) return STATUS_OK;
    return error_failed(error, "stopped; nothing was written");
}

/* ---- to a run of ours */

/* Serves the checkpoint, which asks for the elements of the flat array in their order. */
static Status read_elements(void *context, int array, int64_t first, int64_t n, void *values, Error *error) {
    Conversion *conversion = context;
    const ParameterTable *table = &conversion->table;
    const Parameter *parameter = conversion->read;
    (void)array;
    if (!parameter || first >= parameter->flat_offset + shape_count(parameter->shape)) {
        parameter = parameter ? parameter + 1 : table->parameter;
        if (parameter == table->parameter + table->n_parameters || first != parameter->flat_offset)
            return error_failed(error, "tensors were asked for in another order than the table's");
        TRY(model_source_read(conversion->source, parameter, conversion->values, error));
        conversion->read = parameter;
        conversion->n_done += shape_count(parameter->shape);
        TRY(report(conversion, (double)conversion->n_done / (double)table->n_elements, error));
    }
    memcpy(values, conversion->values + (first - parameter->flat_offset), (size_t)n * sizeof(float));
    return STATUS_OK;
}

/* Sizes that follow from the others are left to follow. */
static ModelConfig without_derived(const ModelConfig *config) {
    ModelConfig asked = *config, completed;
    Error ignored = {0};
    asked.n_kv_heads = asked.n_hidden = 0;
    completed = asked;
    config_complete(&completed, config->vocabulary, &ignored);
    if (completed.n_kv_heads != config->n_kv_heads) asked.n_kv_heads = config->n_kv_heads;
    if (completed.n_hidden != config->n_hidden) asked.n_hidden = config->n_hidden;
    return asked;
}

/* The model's options, so that `pgpt train CONFIG` trains one like it from the beginning. */
static Status write_config(const ModelConfig *config, const char *path, Arena *arena, Error *error) {
    FileWriter writer;
    TRY(file_writer_open(&writer, path, error));
    file_writer_printf(&writer, error,
                       "# The model's options. It was converted, not trained here.\n\n[Model]\n");
    ModelConfig asked = without_derived(config);
    for (const OptionSpec *spec = model_option_specs; spec->name && error->status == STATUS_OK; spec++) {
        const void *field = (const char *)&asked + spec->offset;
        const char *text = option_value_text(spec, field, arena);
        bool is_plain = *text && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-.:,") == strlen(text);
        if (is_plain) file_writer_printf(&writer, error, "%s = %s\n", spec->name, text);
    }
    if (error->status == STATUS_OK) file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return error->status;
}

static Status write_run(Conversion *conversion, const char *folder, Arena *arena, Error *error) {
    const ModelSource *source = conversion->source;
    CheckpointState state = {.step = source->step,
                             .tokenizer_hash = source->tokenizer_hash,
                             .validation_loss = NAN,
                             .optimizer = "none"};
    CheckpointSource checkpoint = {.config = &source->config,
                                   .table = &conversion->table,
                                   .state = &state,
                                   .read = read_elements,
                                   .context = conversion};
    size_t n_bytes = (size_t)parameters_largest(&conversion->table) * sizeof(float);
    void *values;
    TRY(memory_alloc(&values, n_bytes, "the largest tensor", error));
    conversion->values = values;
    conversion->read = NULL;
    checkpoint_save(folder, &checkpoint, error);
    memory_free(values, n_bytes);
    TRY(error->status);
    TRY(model_source_keep_origin(source, folder, error));
    return write_config(&source->config, arena_printf(arena, "%s/config.ini", folder), arena, error);
}

/* ---- both */

static Status write_model(Conversion *conversion, const char *folder, ConvertResult *result, Arena *arena,
                          Error *error) {
    const ConvertOptions *options = conversion->options;
    result->n_files = 1;
    if (!options->to_huggingface) {
        TRY(write_run(conversion, folder, arena, error));
        return copy_tokenizer(conversion, folder, arena, error);
    }
    HuggingFaceWriteOptions write = {.type = options->type,
                                     .shard_bytes = options->shard_bytes,
                                     .end_token = options->end_token,
                                     .report = report,
                                     .context = conversion};
    TRY(huggingface_write(conversion->source, &conversion->table, folder, &write, &result->n_files, error));
    return copy_tokenizer(conversion, folder, arena, error);
}

/* Everything that can be known to fail before the folder is made. */
static Status check(const Conversion *conversion, const char *folder, const ConvertResult *result,
                    Error *error) {
    if (conversion->options->to_huggingface) TRY(huggingface_can_express(&conversion->source->config, error));
    TRY(model_source_check(conversion->source, &conversion->table, error));
    TRY(staged_folder_check(folder, error));
    uint64_t room = file_free_bytes(folder);
    if (result->n_bytes <= room) return STATUS_OK;
    return error_user(error,
                      "the model takes %s, %s are free on the disk of %s; make room or choose another disk",
                      format_bytes(result->n_bytes).text, format_bytes(room).text, folder);
}

Status convert_model(const ModelSource *source, const char *folder, const ConvertOptions *options,
                     ConvertResult *result, Error *error) {
    Conversion conversion = {.source = source, .options = options};
    StagedFolder staged = {0};
    Arena arena = {0};
    if (parameters_build(&conversion.table, &source->config, error) != STATUS_OK)
        return error_prefix(error, "%s: ", source->path);
    SafetensorsType type = options->to_huggingface ? options->type : SAFETENSORS_F32;
    *result =
        (ConvertResult){.n_parameters = conversion.table.n_elements,
                        .n_tensors = conversion.table.n_parameters,
                        .n_bytes = (uint64_t)conversion.table.n_elements * safetensors_type_bytes(type)};
    TRY_GOTO(check(&conversion, folder, result, error), done);
    TRY_GOTO(staged_folder_open(&staged, folder, error), done);
    TRY_GOTO(write_model(&conversion, staged.temporary, result, &arena, error), done);
    staged_folder_commit(&staged, error);
done:
    staged_folder_abort(&staged);
    parameters_free(&conversion.table);
    arena_free(&arena);
    return error->status;
}
