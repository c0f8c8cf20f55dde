/* What the two kinds have in common is little but enough for everybody who only wants a model: its
 * configuration, its parameters one by one, and the place of its tokenizer. */
#include "huggingface/model_source.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A path below the folder if it is there, else NULL. */
static const char *existing(ModelSource *source, const char *name) {
    const char *path = arena_printf(&source->arena, "%s/%s", source->folder, name);
    return file_exists(path) ? path : NULL;
}

/* A file that says all is preferred to the pair of files that older tools write, which goes by its folder. */
static const char *find_tokenizer(ModelSource *source) {
    static const char *const whole[] = {"tokenizer.json", MODEL_SOURCE_OUR_TOKENIZER};
    static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
    for (int i = 0; i < 2; i++) {
        const char *path = existing(source, whole[i]);
        if (path) return path;
    }
    for (int i = 0; i < 2; i++) {
        if (existing(source, pairs[i][0]) && existing(source, pairs[i][1])) return source->folder;
    }
    return NULL;
}

static void describe_checkpoint(ModelSource *source) {
    const Checkpoint *checkpoint = &source->checkpoint;
    source->path = checkpoint->path;
    source->folder = checkpoint->run;
    source->config = checkpoint->config;
    source->step = checkpoint->state.step;
    source->warning = checkpoint->warning;
    source->tokenizer_hash = checkpoint->state.tokenizer_hash;
    source->origin = existing(source, MODEL_SOURCE_ORIGIN);
    /* Weights that were trained since are worth all their bits. */
    bool is_untouched = source->origin && checkpoint->state.step == 0 && checkpoint->state.n_moments == 0;
    source->type = is_untouched ? huggingface_config_type(source->origin) : SAFETENSORS_F32;
}

static void describe_huggingface(ModelSource *source) {
    const HuggingFaceModel *model = &source->huggingface;
    source->path = source->folder = model->path;
    source->config = model->config;
    source->origin = existing(source, HUGGINGFACE_CONFIG);
    source->type = model->type == SAFETENSORS_F64 ? SAFETENSORS_F32 : model->type;
    source->warning = model->note[0] ? arena_printf(&source->arena, "%s/%s: %s", model->path,
                                                    HUGGINGFACE_CONFIG, model->note)
                                     : "";
}

static bool is_run(const char *path, Arena *arena) {
    return file_exists(arena_printf(arena, "%s/manifest.json", path)) ||
           file_exists(arena_printf(arena, "%s/checkpoints", path));
}

static Status find_kind(ModelSource *source, const char *path, Comm *comm, Error *error) {
    bool is_theirs = !is_run(path, &source->arena) && huggingface_is_model(path);
    int32_t kind = is_theirs ? MODEL_SOURCE_HUGGINGFACE : MODEL_SOURCE_CHECKPOINT;
    if (comm) TRY(comm_broadcast(comm, &kind, 1, COMM_I32, 0, error)); /* whatever the others see */
    source->kind = (ModelSourceKind)kind;
    return STATUS_OK;
}

Status model_source_open_together(ModelSource *source, Comm *comm, const char *path, CheckpointChoice choice,
                                  Error *error) {
    *source = (ModelSource){.kind = MODEL_SOURCE_CHECKPOINT, .warning = ""};
    if (comm && comm->size == 1) comm = NULL;
    TRY_GOTO(find_kind(source, path, comm, error), failed);
    if (source->kind == MODEL_SOURCE_HUGGINGFACE) {
        huggingface_open(&source->huggingface, path, error);
        if (comm) comm_agree(comm, error);
        TRY_GOTO(error->status, failed);
        describe_huggingface(source);
    } else {
        TRY_GOTO(checkpoint_open_together(&source->checkpoint, comm, path, choice, false, error), failed);
        describe_checkpoint(source);
    }
    source->tokenizer = find_tokenizer(source);
    return STATUS_OK;
failed:
    model_source_close(source);
    return error->status;
}

Status model_source_open(ModelSource *source, const char *path, CheckpointChoice choice, Error *error) {
    return model_source_open_together(source, NULL, path, choice, error);
}

void model_source_close(ModelSource *source) {
    if (source->kind == MODEL_SOURCE_HUGGINGFACE) huggingface_close(&source->huggingface);
    else checkpoint_close(&source->checkpoint);
    arena_free(&source->arena);
    *source = (ModelSource){.warning = ""};
}

Status model_source_check(const ModelSource *source, const ParameterTable *table, Error *error) {
    return source->kind == MODEL_SOURCE_HUGGINGFACE ? huggingface_check(&source->huggingface, table, error)
                                                    : checkpoint_check(&source->checkpoint, table, error);
}

void model_source_read_router_bias(const ModelSource *source, const ParameterTable *table, float *values) {
    memset(values, 0, (size_t)parameters_n_router_biases(table) * sizeof *values);
    const CheckpointState *state = &source->checkpoint.state;
    if (source->kind == MODEL_SOURCE_CHECKPOINT && state->router_bias)
        parameters_take_router_bias(table, &source->config, state->router_bias, values);
}

Status model_source_read(const ModelSource *source, const Parameter *parameter, float *values, Error *error) {
    if (source->kind == MODEL_SOURCE_HUGGINGFACE)
        return huggingface_read(&source->huggingface, parameter, values, error);
    return checkpoint_read_part(&source->checkpoint, parameter, -1, 0, shape_count(parameter->shape), values,
                                error);
}

/* Ours begins with its own name; see data/tokenizer/tokenizer_file.c. */
bool model_source_is_our_tokenizer(const char *path) {
    char begin[64] = "";
    struct stat facts;
    FILE *stream = stat(path, &facts) == 0 && S_ISREG(facts.st_mode) ? fopen(path, "rb") : NULL;
    if (!stream) return false;
    size_t n = fread(begin, 1, sizeof begin - 1, stream);
    fclose(stream);
    begin[n] = 0;
    return strstr(begin, "\"pgpt_tokenizer\"") != NULL;
}
