/* config.json and our configuration. Ours is filled through the checkpoint's own reader, from an object with
 * our options' names: options that GPT-2 does not have then get their defaults there, also those yet to come.
 *
 * What would change the model's results and is not known here is refused; what only describes (token ids,
 * task settings) is left to whoever wrote it and kept when a model goes back. */
#include "huggingface/huggingface_config.h"

#include "base/file/file.h"
#include "checkpoint/checkpoint.h"
#include "huggingface/huggingface_layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT_BYTES = 1 << 20 };

const json_t *config_field(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

/* ---- reading */

static Status read_size(const json_t *object, const char *path, const char *field, const char *other,
                        int64_t max, int64_t *size, Error *error) {
    const char *found = config_field(object, field) || !config_field(object, other) ? field : other;
    return json_field_int(object, path, found, 1, max, size, error);
}

Status config_read_switch(const json_t *object, const char *path, const char *field, bool otherwise,
                          bool *value, Error *error) {
    *value = otherwise;
    return config_field(object, field) ? json_field_bool(object, path, field, value, error) : STATUS_OK;
}

/* Variants of GPT-2's attention that are not computed here. */
static Status check_variants(const json_t *object, const char *path, Error *error) {
    static const struct {
        const char *field;
        bool wanted;
    } variants[] = {{"scale_attn_weights", true},
                    {"scale_attn_by_inverse_layer_idx", false},
                    {"reorder_and_upcast_attn", false},
                    {"add_cross_attention", false}};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        bool value;
        TRY(config_read_switch(object, path, variants[i].field, variants[i].wanted, &value, error));
        if (value == variants[i].wanted) continue;
        return error_user(error, "%s: field '%s' is %s, which is not supported; only models with %s are",
                          path, variants[i].field, value ? "true" : "false", value ? "false" : "true");
    }
    double epsilon = NORM_EPSILON;
    if (config_field(object, "layer_norm_epsilon")) {
        TRY(json_field_float(object, path, "layer_norm_epsilon", 0.0, 1.0, &epsilon, error));
    }
    if (fabs(epsilon - 1e-5) <= 1e-11) return STATUS_OK;
    return error_user(error, "%s: field 'layer_norm_epsilon' is %g, which is not supported; only 1e-05 is",
                      path, epsilon);
}

static Status read_activation(const json_t *object, const char *path, const char **mlp, Error *error) {
    static const struct {
        const char *theirs, *ours;
    } known[] = {{"gelu_new", "gelu"},
                 {"gelu_pytorch_tanh", "gelu"},
                 {"gelu", "gelu-erf"},
                 {"gelu_python", "gelu-erf"}};
    const char *name = "gelu_new";
    if (config_field(object, "activation_function"))
        TRY(json_field_text(object, path, "activation_function", &name, error));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].theirs, name) != 0) continue;
        *mlp = known[i].ours;
        return STATUS_OK;
    }
    return error_user(
        error,
        "%s: field 'activation_function': %.60s is not supported; supported: gelu_new (tanh form) and gelu",
        path, name);
}

/* We have one probability where GPT-2 has three. */
static Status read_dropout(const json_t *object, const char *path, double *dropout, char *note,
                           Error *error) {
    static const char *const fields[] = {"embd_pdrop", "attn_pdrop", "resid_pdrop"};
    double values[3];
    for (int i = 0; i < 3; i++) {
        values[i] = 0.1; /* GPT-2's own where nothing is said */
        if (config_field(object, fields[i]))
            TRY(json_field_float(object, path, fields[i], 0.0, 1.0, &values[i], error));
        if (values[i] < 1.0) continue;
        return error_user(error, "%s: field '%s' drops everything; it must be below 1", path, fields[i]);
    }
    bool is_one = values[0] == values[1] && values[1] == values[2];
    *dropout = is_one ? values[0] : 0.0;
    if (!is_one) {
        snprintf(note, CONFIG_NOTE_BYTES,
                 "embd_pdrop %g, attn_pdrop %g and resid_pdrop %g are not one probability: dropout is off",
                 values[0], values[1], values[2]);
    }
    return STATUS_OK;
}

static Status read_sizes(const json_t *object, const char *path, json_t *ours, Error *error) {
    int64_t layers, heads, channels, vocabulary, context, hidden = 0;
    const char *positions = config_field(object, "n_ctx") ? "n_ctx" : "max_position_embeddings";
    TRY(read_size(object, path, "n_layer", "num_hidden_layers", CONFIG_MOST_LAYERS, &layers, error));
    TRY(read_size(object, path, "n_head", "num_attention_heads", CONFIG_LARGEST, &heads, error));
    TRY(read_size(object, path, "n_embd", "hidden_size", CONFIG_LARGEST / 4, &channels, error));
    TRY(read_size(object, path, "n_positions", positions, CONFIG_LARGEST, &context, error));
    TRY(read_size(object, path, "vocab_size", "vocab_size", CONFIG_LARGEST, &vocabulary, error));
    if (config_field(object, "n_inner"))
        TRY(json_field_int(object, path, "n_inner", 1, CONFIG_LARGEST, &hidden, error));
    if (channels % heads != 0) {
        return error_user(error, "%s: field 'n_head': %lld does not divide n_embd %lld", path,
                          (long long)heads, (long long)channels);
    }
    json_object_set_new(ours, "layers", json_integer(layers));
    json_object_set_new(ours, "heads", json_integer(heads));
    json_object_set_new(ours, "channels", json_integer(channels));
    json_object_set_new(ours, "hidden", json_integer(hidden ? hidden : 4 * channels));
    json_object_set_new(ours, "context", json_integer(context));
    json_object_set_new(ours, "vocab", json_integer(vocabulary));
    return STATUS_OK;
}

static Status read_gpt2(const json_t *object, const char *path, json_t *ours, char *note, Error *error) {
    const char *mlp = NULL;
    double dropout = 0.0;
    bool is_tied = true;
    TRY(read_sizes(object, path, ours, error));
    TRY(check_variants(object, path, error));
    TRY(read_activation(object, path, &mlp, error));
    TRY(read_dropout(object, path, &dropout, note, error));
    TRY(config_read_switch(object, path, "tie_word_embeddings", true, &is_tied, error));
    json_object_set_new(ours, "model", json_make_text("gpt2"));
    json_object_set_new(ours, "mlp", json_make_text(mlp));
    json_object_set_new(ours, "dropout", json_make_number(dropout));
    json_object_set_new(ours, "tied", json_boolean(is_tied));
    return STATUS_OK;
}

static Status read_fields(const json_t *object, const char *path, json_t *ours, char *note, Error *error) {
    const char *type;
    if (!json_is_object(object)) return error_user(error, "%s: wants an object of a model's fields", path);
    TRY(json_field_text(object, path, "model_type", &type, error));
    if (strcmp(type, "gpt2") == 0) return read_gpt2(object, path, ours, note, error);
    if (config_is_llama(type)) return config_read_llama(object, path, type, ours, note, error);
    return error_user(error,
                      "%s: field 'model_type': %.60s is not supported yet; supported: gpt2, llama, mistral "
                      "and mixtral",
                      path, type);
}

static Status config_from(const json_t *object, const char *path, ModelConfig *config, char *note,
                          Arena *arena, Error *error) {
    json_t *ours = json_object();
    note[0] = 0;
    if (read_fields(object, path, ours, note, error) == STATUS_OK)
        checkpoint_config_read(ours, path, config, arena, error);
    json_decref(ours);
    return error->status;
}

Status huggingface_config_read(const char *path, ModelConfig *config, char *note, Arena *arena,
                               Error *error) {
    json_t *object;
    TRY(json_read(path, CONFIG_LIMIT_BYTES, &object, error));
    config_from(object, path, config, note, arena, error);
    json_decref(object);
    return error->status;
}

/* ---- writing */

/* A document mask is no obstacle: one document by itself is what Hugging Face computes. */
static bool has_pattern(const ModelConfig *config) {
    for (int i = 0; i < config->n_patterns; i++)
        if (config->pattern[i].kind != PATTERN_DENSE) return true;
    return false;
}

static const char *gpt2_obstacle(const ModelConfig *config, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "--kv-heads %lld", (long long)config->n_kv_heads);
    return config->position != POSITION_LEARNED    ? "--position rotary"
           : config->norm != NORM_LAYERNORM        ? "--norm rmsnorm"
           : config->mlp == MLP_SWIGLU             ? "--mlp swiglu"
           : config->n_kv_heads != config->n_heads ? text
           : !config->bias                         ? "--no-bias"
           : has_pattern(config)                   ? "an --attention that is not dense"
                                                   : NULL;
}

Status huggingface_can_express(const ModelConfig *config, Error *error) {
    char text[64];
    HuggingFaceLayout layout = huggingface_layout(config);
    const char *obstacle = layout == HUGGINGFACE_GPT2 ? gpt2_obstacle(config, text, sizeof text)
                                                      : config_llama_obstacle(config, text, sizeof text);
    if (config->depth_capacity > 0.0) obstacle = "--depth-capacity";
    if (!obstacle) return STATUS_OK;
    return error_user(
        error,
        "the model has %s, which Hugging Face's %s cannot express; a GPT-2 (learned positions, layernorm, "
        "gelu, biases) or a Llama, Mistral or Mixtral (rotary, rmsnorm, swiglu, --no-bias, --attention window:W, "
        "--router topk) can be exported",
        obstacle, huggingface_layout_name(layout));
}

static const char *torch_name(SafetensorsType type) {
    return type == SAFETENSORS_F16 ? "float16" : type == SAFETENSORS_BF16 ? "bfloat16" : "float32";
}

static json_t *fresh_config(const ModelConfig *config, int32_t end_token) {
    if (huggingface_layout(config) != HUGGINGFACE_GPT2) return config_fresh_llama(config, end_token);
    json_t *object = json_object();
    bool is_usual = config->n_hidden == 4 * config->n_channels;
    json_object_set_new(object, "activation_function",
                        json_make_text(config->mlp == MLP_GELU_ERF ? "gelu" : "gelu_new"));
    json_object_set_new(object, "architectures", json_pack("[s]", "GPT2LMHeadModel"));
    json_object_set_new(object, "attn_pdrop", json_make_number(config->dropout));
    json_object_set_new(object, "bos_token_id", end_token >= 0 ? json_integer(end_token) : json_null());
    json_object_set_new(object, "embd_pdrop", json_make_number(config->dropout));
    json_object_set_new(object, "eos_token_id", end_token >= 0 ? json_integer(end_token) : json_null());
    json_object_set_new(object, "initializer_range", json_make_number(0.02));
    json_object_set_new(object, "layer_norm_epsilon", json_make_number(1e-5));
    json_object_set_new(object, "model_type", json_make_text("gpt2"));
    json_object_set_new(object, "n_embd", json_integer(config->n_channels));
    json_object_set_new(object, "n_head", json_integer(config->n_heads));
    json_object_set_new(object, "n_inner", is_usual ? json_null() : json_integer(config->n_hidden));
    json_object_set_new(object, "n_layer", json_integer(config->n_layers));
    json_object_set_new(object, "n_positions", json_integer(config->context));
    json_object_set_new(object, "reorder_and_upcast_attn", json_false());
    json_object_set_new(object, "resid_pdrop", json_make_number(config->dropout));
    json_object_set_new(object, "scale_attn_by_inverse_layer_idx", json_false());
    json_object_set_new(object, "scale_attn_weights", json_true());
    json_object_set_new(object, "tie_word_embeddings", json_boolean(config->tied));
    json_object_set_new(object, "torch_dtype", json_make_text(torch_name(SAFETENSORS_F32)));
    json_object_set_new(object, "use_cache", json_true());
    json_object_set_new(object, "vocab_size", json_integer(config->vocabulary));
    return object;
}

/* Does a file that the model came from still describe it? Then *object is what it holds, else NULL. */
static void read_origin(const char *origin, const ModelConfig *config, json_t **object) {
    Arena arena = {0};
    Error ignored = {0};
    ModelConfig described;
    char note[CONFIG_NOTE_BYTES];
    *object = NULL;
    if (!origin || json_read(origin, CONFIG_LIMIT_BYTES, object, &ignored) != STATUS_OK) goto done;
    bool is_same = config_from(*object, origin, &described, note, &arena, &ignored) == STATUS_OK;
    if (is_same) {
        json_t *theirs = checkpoint_config_json(&described), *ours = checkpoint_config_json(config);
        json_object_set_new(ours, "model", json_make_text(described.preset)); /* a name only */
        is_same = json_equal(theirs, ours);
        json_decref(theirs);
        json_decref(ours);
    }
    if (!is_same) {
        json_decref(*object);
        *object = NULL;
    }
done:
    arena_free(&arena);
}

/* What the file states, NULL if nothing; newer versions of transformers call the field dtype. */
static const char *stated_type(const json_t *object) {
    const char *stated = json_string_value(json_object_get(object, "dtype"));
    return stated ? stated : json_string_value(json_object_get(object, "torch_dtype"));
}

/* Returns whether anything had to be changed. */
static bool state_type(json_t *object, SafetensorsType type) {
    const char *stated = stated_type(object), *name = torch_name(type);
    if (strcmp(stated ? stated : torch_name(SAFETENSORS_F32), name) == 0) return false;
    bool is_new = json_object_get(object, "dtype") != NULL;
    json_object_set_new(object, is_new ? "dtype" : "torch_dtype", json_make_text(name));
    return true;
}

SafetensorsType huggingface_config_type(const char *path) {
    static const SafetensorsType types[] = {SAFETENSORS_F16, SAFETENSORS_BF16};
    SafetensorsType type = SAFETENSORS_F32;
    Error ignored = {0};
    json_t *object;
    if (json_read(path, CONFIG_LIMIT_BYTES, &object, &ignored) != STATUS_OK) return type;
    const char *stated = stated_type(object);
    for (int i = 0; i < 2 && stated; i++) {
        if (strcmp(stated, torch_name(types[i])) == 0) type = types[i];
    }
    json_decref(object);
    return type;
}

/* Fifteen digits show 0.1 as people write it; where one number needs more, all get them. */
static size_t digits_for(const json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        char text[40];
        snprintf(text, sizeof text, "%.15g", json_real_value(value));
        if (json_is_real(value) && strtod(text, NULL) != json_real_value(value)) return JSON_DIGITS_DOUBLE;
    }
    return 15;
}

static bool is_bare_model(const json_t *object) {
    const char *name = json_string_value(json_array_get(json_object_get(object, "architectures"), 0));
    return name && strcmp(name, "GPT2Model") == 0;
}

Status huggingface_config_text(const ModelConfig *config, const char *origin, SafetensorsType type,
                               int32_t end_token, char **text, bool *is_bare, Error *error) {
    *text = NULL;
    TRY(huggingface_can_express(config, error));
    json_t *object;
    read_origin(origin, config, &object);
    bool is_fresh = !object;
    if (is_fresh) object = fresh_config(config, end_token);
    *is_bare = config->tied && is_bare_model(object); /* GPT-2's */
    bool is_changed = state_type(object, type);
    size_t n_bytes;
    if (is_fresh || is_changed) {
        FILE *stream = open_memstream(text, &n_bytes);
        size_t flags = JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(digits_for(object));
        bool is_whole = stream && json_dumpf(object, stream, flags) == 0 && fputc('\n', stream) == '\n';
        if ((stream && fclose(stream) != 0) || !is_whole)
            error_failed(error, "cannot write %s: out of memory", HUGGINGFACE_CONFIG);
    } else {
        file_read_regular(origin, CONFIG_LIMIT_BYTES, text, &n_bytes, error);
    }
    json_decref(object);
    return error->status;
}
