/* config.json of Llama-like models: rmsnorm, rotary positions, SwiGLU, no biases; Mistral's have a window of
 * attention, and Mixtral's experts besides, the K best by softmax, their gates normalised: --router topk.
 *
 * What would change results and is not computed here (scaled angles, biases, other activations) is
 * refused. */
#include "huggingface/huggingface_config.h"

#include "ops/experts/experts.h"

#include <math.h>
#include <string.h>

bool config_is_llama(const char *model_type) {
    return strcmp(model_type, "llama") == 0 || strcmp(model_type, "mistral") == 0 ||
           strcmp(model_type, "mixtral") == 0;
}

/* ---- reading */

/* What transformers takes where a file does not name a field. */
typedef struct {
    int64_t n_kv_heads; /* 0: as many as heads, as for null in every kind */
    double epsilon, theta;
} KindDefaults;

static KindDefaults defaults_of(const char *model_type) {
    if (strcmp(model_type, "mixtral") == 0) return (KindDefaults){8, 1e-5, 1e6};
    if (strcmp(model_type, "mistral") == 0) return (KindDefaults){8, 1e-6, 1e4};
    return (KindDefaults){0, 1e-6, 1e4};
}

static Status read_sizes(const json_t *object, const char *path, const KindDefaults *defaults, json_t *ours,
                         Error *error) {
    int64_t layers, heads, kv_heads, channels, hidden, vocabulary, context, head_size;
    TRY(json_field_int(object, path, "num_hidden_layers", 1, CONFIG_MOST_LAYERS, &layers, error));
    TRY(json_field_int(object, path, "num_attention_heads", 1, CONFIG_LARGEST, &heads, error));
    TRY(json_field_int(object, path, "hidden_size", 1, CONFIG_LARGEST, &channels, error));
    TRY(json_field_int(object, path, "intermediate_size", 1, CONFIG_LARGEST, &hidden, error));
    TRY(json_field_int(object, path, "max_position_embeddings", 1, CONFIG_LARGEST, &context, error));
    TRY(json_field_int(object, path, "vocab_size", 1, CONFIG_LARGEST, &vocabulary, error));
    bool is_named = json_object_get(object, "num_key_value_heads");
    kv_heads =
        is_named || !defaults->n_kv_heads || heads < defaults->n_kv_heads ? heads : defaults->n_kv_heads;
    if (config_field(object, "num_key_value_heads"))
        TRY(json_field_int(object, path, "num_key_value_heads", 1, heads, &kv_heads, error));
    if (channels % heads != 0) {
        return error_user(error, "%s: field 'num_attention_heads': %lld does not divide hidden_size %lld",
                          path, (long long)heads, (long long)channels);
    }
    head_size = channels / heads;
    if (config_field(object, "head_dim"))
        TRY(json_field_int(object, path, "head_dim", 1, CONFIG_LARGEST, &head_size, error));
    if (head_size != channels / heads) {
        return error_user(error,
                          "%s: field 'head_dim' is %lld, which is not supported; only hidden_size / "
                          "num_attention_heads, %lld, is",
                          path, (long long)head_size, (long long)(channels / heads));
    }
    json_object_set_new(ours, "layers", json_integer(layers));
    json_object_set_new(ours, "heads", json_integer(heads));
    json_object_set_new(ours, "kv-heads", json_integer(kv_heads));
    json_object_set_new(ours, "channels", json_integer(channels));
    json_object_set_new(ours, "hidden", json_integer(hidden));
    json_object_set_new(ours, "context", json_integer(context));
    json_object_set_new(ours, "vocab", json_integer(vocabulary));
    return STATUS_OK;
}

/* Numbers that are not options here, or whose other values change what is computed. */
static Status check_variants(const json_t *object, const char *path, const KindDefaults *defaults,
                             Error *error) {
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    double epsilon = defaults->epsilon;
    const char *activation = "silu";
    for (int i = 0; i < 2; i++) {
        bool has_bias;
        TRY(config_read_switch(object, path, biases[i], false, &has_bias, error));
        if (has_bias)
            return error_user(error,
                              "%s: field '%s' is true, which is not supported; only models without are", path,
                              biases[i]);
    }
    if (config_field(object, "rms_norm_eps"))
        TRY(json_field_float(object, path, "rms_norm_eps", 0.0, 1.0, &epsilon, error));
    if (fabs(epsilon - 1e-5) > 1e-11)
        return error_user(error, "%s: field 'rms_norm_eps' is %g, which is not supported; only 1e-05 is",
                          path, epsilon);
    if (config_field(object, "hidden_act"))
        TRY(json_field_text(object, path, "hidden_act", &activation, error));
    if (strcmp(activation, "silu") != 0)
        return error_user(error, "%s: field 'hidden_act': %.60s is not supported; only silu is", path,
                          activation);
    const json_t *scaling = config_field(object, "rope_scaling");
    const char *kind = json_string_value(json_object_get(scaling, "rope_type"));
    if (scaling && (!kind || strcmp(kind, "default") != 0))
        return error_user(error,
                          "%s: field 'rope_scaling' is set, which is not supported; only models whose "
                          "rotary angles are not scaled are",
                          path);
    return STATUS_OK;
}

/* Newer versions of transformers keep the angles' base in an object of its own. */
static Status read_theta(const json_t *object, const char *path, const KindDefaults *defaults, json_t *ours,
                         Error *error) {
    double theta = defaults->theta;
    const json_t *rope = config_field(object, "rope_parameters");
    const char *kind = json_string_value(json_object_get(rope, "rope_type"));
    if (rope && kind && strcmp(kind, "default") != 0)
        return error_user(error, "%s: field 'rope_parameters': %.60s is not supported; only default is", path,
                          kind);
    const json_t *holder = config_field(object, "rope_theta") ? object : rope;
    if (holder && config_field(holder, "rope_theta"))
        TRY(json_field_float(holder, path, "rope_theta", 1.0, 1e12, &theta, error));
    json_object_set_new(ours, "rotary-theta", json_make_number(theta));
    return STATUS_OK;
}

/* A token sees the last W positions, itself included, in all blocks; a window at least as long as the
 * sequences is none. Llama has none whatever its file says. Mistral's is 4096 where the file does not name
 * it, as transformers has it; null says that there is none. */
static Status read_window(const json_t *object, const char *path, const char *model_type, json_t *ours,
                          Error *error) {
    int64_t window = 4096, context;
    bool is_used = true, is_named = json_object_get(object, "sliding_window");
    if (strcmp(model_type, "llama") == 0) return STATUS_OK;
    if (config_field(object, "use_sliding_window"))
        TRY(json_field_bool(object, path, "use_sliding_window", &is_used, error));
    if (is_named ? !config_field(object, "sliding_window") : strcmp(model_type, "mistral") != 0)
        return STATUS_OK;
    if (is_named) TRY(json_field_int(object, path, "sliding_window", 1, CONFIG_LARGEST, &window, error));
    TRY(json_field_int(object, path, "max_position_embeddings", 1, CONFIG_LARGEST, &context, error));
    if (!is_used || window >= context) return STATUS_OK;
    char words[PATTERN_TEXT_BYTES];
    pattern_print(&(AttentionPattern){.kind = PATTERN_WINDOW, .number = {(int32_t)window}}, words,
                  sizeof words);
    json_object_set_new(ours, "attention", json_make_text(words));
    return STATUS_OK;
}

static Status read_experts(const json_t *object, const char *path, json_t *ours, Error *error) {
    int64_t experts, chosen;
    double balance = 0.001, jitter = 0.0; /* Mixtral's own where nothing is said */
    TRY(json_field_int(object, path, "num_local_experts", 1, ROUTE_MAX_EXPERTS, &experts, error));
    TRY(json_field_int(object, path, "num_experts_per_tok", 1, experts, &chosen, error));
    if (chosen > ROUTE_MAX_CHOSEN || (chosen == 1 && experts > 1)) /* one gate, normalised, is 1; here σ */
        return error_user(
            error, "%s: field 'num_experts_per_tok' is %lld, which is not supported; only 2 to %d are%s",
            path, (long long)chosen, ROUTE_MAX_CHOSEN,
            chosen == 1 ? ", since one expert's gate is its probability here, and 1 there" : "");
    if (config_field(object, "router_aux_loss_coef"))
        TRY(json_field_float(object, path, "router_aux_loss_coef", 0.0, 1e6, &balance, error));
    if (config_field(object, "router_jitter_noise"))
        TRY(json_field_float(object, path, "router_jitter_noise", 0.0, 1e6, &jitter, error));
    if (jitter > 0.0)
        return error_user(error, "%s: field 'router_jitter_noise' is %g, which is not supported; only 0 is",
                          path, jitter);
    json_object_set_new(ours, "experts", json_integer(experts));
    json_object_set_new(ours, "experts-per-token", json_integer(chosen));
    json_object_set_new(ours, "balance-loss", json_make_number(balance));
    json_object_set_new(ours, "z-loss", json_make_number(0.0));
    return STATUS_OK;
}

static Status read_dropout(const json_t *object, const char *path, char *note, Error *error) {
    double dropout = 0.0;
    if (config_field(object, "attention_dropout"))
        TRY(json_field_float(object, path, "attention_dropout", 0.0, 1.0, &dropout, error));
    if (dropout > 0.0)
        snprintf(note, CONFIG_NOTE_BYTES,
                 "attention_dropout %g is of attention alone, which is no option here: dropout is off",
                 dropout);
    return STATUS_OK;
}

Status config_read_llama(const json_t *object, const char *path, const char *model_type, json_t *ours,
                         char *note, Error *error) {
    const KindDefaults defaults = defaults_of(model_type);
    bool is_tied;
    TRY(read_sizes(object, path, &defaults, ours, error));
    TRY(check_variants(object, path, &defaults, error));
    TRY(read_window(object, path, model_type, ours, error));
    TRY(read_theta(object, path, &defaults, ours, error));
    TRY(read_dropout(object, path, note, error));
    TRY(config_read_switch(object, path, "tie_word_embeddings", false, &is_tied, error));
    if (strcmp(model_type, "mixtral") == 0) TRY(read_experts(object, path, ours, error));
    json_object_set_new(ours, "model", json_make_text("gpt2"));
    json_object_set_new(ours, "norm", json_make_text("rmsnorm"));
    json_object_set_new(ours, "position", json_make_text("rotary"));
    json_object_set_new(ours, "mlp", json_make_text("swiglu"));
    json_object_set_new(ours, "bias", json_false());
    json_object_set_new(ours, "tied", json_boolean(is_tied));
    json_object_set_new(ours, "dropout", json_make_number(0.0));
    return STATUS_OK;
}

/* ---- writing */

/* The window of all blocks; 0: attention is dense; -1: neither. */
static int64_t window_of(const ModelConfig *config) {
    AttentionPattern first = config_pattern(config, 0);
    for (int i = 1; i < config->n_patterns; i++)
        if (!pattern_equal(&config->pattern[i], &first)) return -1;
    return first.kind == PATTERN_DENSE ? 0 : first.kind == PATTERN_WINDOW ? first.number[0] : -1;
}

const char *config_llama_obstacle(const ModelConfig *config, char *text, size_t n_bytes) {
    const char *plain = config->position != POSITION_ROTARY ? "--position learned"
                        : config->norm != NORM_RMSNORM      ? "--norm layernorm"
                        : config->mlp != MLP_SWIGLU         ? "--mlp gelu"
                        : config->bias                      ? "--bias"
                        : window_of(config) < 0     ? "an --attention that is neither dense nor one window:W"
                        : !config->n_experts        ? NULL
                        : config->router != 0       ? "another --router than topk"
                        : config->router_gate != 0  ? "--router-gate sigmoid"
                        : config->n_shared_experts  ? "--shared-experts"
                        : config->expert_every != 1 ? "--expert-every"
                        : config->expert_capacity > 0.0                  ? "--expert-capacity"
                        : config->n_experts > 1 && config->n_chosen == 1 ? "--experts-per-token 1"
                                                                         : NULL;
    snprintf(text, n_bytes, "%s", plain ? plain : "");
    return plain ? text : NULL;
}

json_t *config_fresh_llama(const ModelConfig *config, int32_t end_token) {
    json_t *object = json_object();
    bool has_experts = config->n_experts > 0;
    int64_t window = window_of(config); /* a Llama with a window is a Mistral */
    int64_t hidden = has_experts ? config->expert_hidden : config->n_hidden;
    json_object_set_new(object, "architectures",
                        json_pack("[s]", has_experts ? "MixtralForCausalLM"
                                         : window    ? "MistralForCausalLM"
                                                     : "LlamaForCausalLM"));
    json_object_set_new(object, "attention_dropout", json_make_number(0.0));
    json_object_set_new(object, "bos_token_id", end_token >= 0 ? json_integer(end_token) : json_null());
    json_object_set_new(object, "eos_token_id", end_token >= 0 ? json_integer(end_token) : json_null());
    json_object_set_new(object, "hidden_act", json_make_text("silu"));
    json_object_set_new(object, "hidden_size", json_integer(config->n_channels));
    json_object_set_new(object, "initializer_range", json_make_number(0.02));
    json_object_set_new(object, "intermediate_size", json_integer(hidden));
    json_object_set_new(object, "max_position_embeddings", json_integer(config->context));
    json_object_set_new(object, "model_type",
                        json_make_text(has_experts ? "mixtral"
                                       : window    ? "mistral"
                                                   : "llama"));
    json_object_set_new(object, "num_attention_heads", json_integer(config->n_heads));
    json_object_set_new(object, "num_hidden_layers", json_integer(config->n_layers));
    json_object_set_new(object, "num_key_value_heads", json_integer(config->n_kv_heads));
    json_object_set_new(object, "rms_norm_eps", json_make_number(1e-5));
    json_object_set_new(object, "rope_theta", json_make_number(config->rotary_theta));
    json_object_set_new(object, "tie_word_embeddings", json_boolean(config->tied));
    json_object_set_new(object, "torch_dtype", json_make_text("float32"));
    json_object_set_new(object, "use_cache", json_true());
    json_object_set_new(object, "vocab_size", json_integer(config->vocabulary));
    if (has_experts) {
        json_object_set_new(object, "num_experts_per_tok", json_integer(config->n_chosen));
        json_object_set_new(object, "num_local_experts", json_integer(config->n_experts));
        json_object_set_new(object, "router_aux_loss_coef", json_make_number(config->balance_loss));
        json_object_set_new(object, "router_jitter_noise", json_make_number(0.0));
    }
    if (has_experts || window) {
        json_object_set_new(object, "sliding_window", window ? json_integer(window) : json_null());
    } else {
        json_object_set_new(object, "attention_bias", json_false());
        json_object_set_new(object, "mlp_bias", json_false());
    }
    return object;
}
