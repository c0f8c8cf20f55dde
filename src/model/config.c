/* Presets are rows of one table. The sizes are those that OpenAI published for GPT-2 and GPT-3; where the
 * GPT-3 paper's own numbers do not multiply (XL: 24 heads of 128 in 2,048 channels; 13B: 5,140 channels), the
 * usual correction is taken (16 heads; 5,120 channels: 40 heads of 128). GPT-3's blocks alternate between
 * dense attention and bands "similar to the Sparse Transformer", whose width is not published: 256 is what
 * the 13B preset takes. Learning rates are GPT-3's for the size, and what was
 * found good for the two small ones. */
#include "model/config.h"

#include "base/options/options_refuse.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <string.h>

enum { GPT2_VOCABULARY = 50257 };

typedef struct {
    const char *name;
    int64_t layers, heads, channels, context;
    int64_t vocabulary;             /* 0: the tokenizer's */
    const char *rate;               /* a learning rate that suits the size */
    int64_t experts, expert_hidden; /* experts of a token: as the router has them */
} Preset;

static const Preset presets[] = {
    {"nano", 4, 4, 128, 128, 0, "3e-3", 0, 0},
    {"mini", 6, 6, 384, 256, 0, "1e-3", 0, 0},
    {"moe-mini", 4, 4, 128, 128, 0, "3e-3", 8, 256}, /* as much work a token as nano */
    {"gpt2", 12, 12, 768, 1024, GPT2_VOCABULARY, "6e-4", 0, 0},
    {"gpt2-moe-8x", 12, 12, 768, 1024, GPT2_VOCABULARY, "6e-4", 8, 0},
    {"gpt2-medium", 24, 16, 1024, 1024, GPT2_VOCABULARY, "3e-4", 0, 0},
    {"gpt2-large", 36, 20, 1280, 1024, GPT2_VOCABULARY, "2.5e-4", 0, 0},
    {"gpt2-xl", 48, 25, 1600, 1024, GPT2_VOCABULARY, "2e-4", 0, 0},
    {"gpt3-xl", 24, 16, 2048, 2048, GPT2_VOCABULARY, "2e-4", 0, 0},
    {"gpt3-13b", 40, 40, 5120, 2048, GPT2_VOCABULARY, "1e-4", 0, 0},
    {"gpt3-175b", 96, 96, 12288, 2048, GPT2_VOCABULARY, "6e-5", 0, 0},
    {"1t", 128, 160, 25600, 2048, 51200, "3e-5", 0, 0}, /* the largest of Narayanan et al. 2021 */
};
enum { N_PRESETS = sizeof presets / sizeof presets[0] };

/* Presets whose attention is not dense in every block. */
static const struct { const char *name, *pattern; } preset_patterns[] = {{"gpt3-13b", "dense,window:256"}};

static const char *pattern_of_preset(const char *name) {
    for (size_t i = 0; i < sizeof preset_patterns / sizeof preset_patterns[0]; i++)
        if (strcmp(preset_patterns[i].name, name) == 0) return preset_patterns[i].pattern;
    return "";
}

static const char *const norm_names[] = {"layernorm", "rmsnorm", NULL};
static const char *const mlp_names[] = {"gelu", "gelu-erf", "swiglu", NULL};
static const char *const position_names[] = {"learned", "rotary", NULL};
static const char *const router_names[] = {"topk",         "switch",        "gshard", "noisy-topk",
                                           "balance-free", "expert-choice", NULL};
static const char *const gate_names[] = {"softmax", "sigmoid", NULL};

enum { LARGEST = 1 << 30 };
#define CHOSEN -1.0 /* of a loss: as suits the router */

/* All but dropout is the architecture, which a run keeps for its life. */
const OptionSpec model_option_specs[] = {
    OPTION_STRING(
        "model", ModelConfig, preset, "nano", "NAME",
        "sizes to start from: nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-xl, gpt3-13b, "
        "gpt3-175b, 1t, or with experts moe-mini, gpt2-moe-8x; each of the options below overrides its part",
        .flags = OPTION_FIXED),
    OPTION_INT("layers", ModelConfig, n_layers, 4, 1, 1000, "transformer blocks", .flags = OPTION_FIXED),
    OPTION_INT("heads", ModelConfig, n_heads, 4, 1, LARGEST, "attention heads; must divide the channels",
               .flags = OPTION_FIXED),
    OPTION_INT("kv-heads", ModelConfig, n_kv_heads, 0, 0, LARGEST,
               "key/value heads, fewer than heads for grouped-query attention; 0: as many as heads",
               .flags = OPTION_FIXED),
    OPTION_INT("channels", ModelConfig, n_channels, 128, 1, LARGEST, "width of the residual stream",
               .flags = OPTION_FIXED),
    OPTION_INT(
        "hidden", ModelConfig, n_hidden, 0, 0, LARGEST,
        "width inside the MLP; 0: 4 x channels (swiglu: 8/3 x channels, rounded up to a multiple of 32)",
        .flags = OPTION_FIXED),
    OPTION_INT("context", ModelConfig, context, 128, 1, LARGEST, "positions that the model sees at once",
               .flags = OPTION_FIXED),
    OPTION_INT("vocab", ModelConfig, vocabulary, 0, 0, LARGEST,
               "rows of the embedding; 0: the tokenizer's size", .flags = OPTION_FIXED),
    OPTION_CHOICE("norm", ModelConfig, norm, NORM_LAYERNORM, norm_names,
                  "normalisation before attention and MLP", .flags = OPTION_FIXED),
    OPTION_CHOICE("mlp", ModelConfig, mlp, MLP_GELU_TANH, mlp_names,
                  "the MLP's non-linearity (gelu: tanh form)", .flags = OPTION_FIXED),
    OPTION_CHOICE("position", ModelConfig, position, POSITION_LEARNED, position_names,
                  "how positions are told apart", .flags = OPTION_FIXED),
    OPTION_FLOAT("rotary-theta", ModelConfig, rotary_theta, 10000.0, 1.0, 1e12,
                 "base of the wavelengths of rotary positions", .flags = OPTION_FIXED | OPTION_F32),
    OPTION_BOOL("tied", ModelConfig, tied, true, "use the token embedding as the output head too",
                .flags = OPTION_FIXED),
    OPTION_BOOL("bias", ModelConfig, bias, true, "biases in linear layers and layernorms",
                .flags = OPTION_FIXED),
    OPTION_STRING("attention", ModelConfig, attention, "dense", "PATTERN",
                  "which earlier positions a token sees: dense, window:W (the last W, itself included), "
                  "strided:L (the last L, and every L-th), fixed:L:C (its own block of L, and the last C of "
                  "every block) or bigbird:BLOCK:WINDOW:GLOBAL:RANDOM (in blocks: the last ones, the first "
                  "ones, and some drawn for good)",
                  .flags = OPTION_FIXED),
    OPTION_STRING("attention-pattern", ModelConfig, attention_pattern, "", "PATTERN,...",
                  "patterns as those of --attention that the blocks take in turn, from the first on: "
                  "dense,window:256 alternates as GPT-3 does; in place of --attention",
                  .flags = OPTION_FIXED | OPTION_MAY_BE_EMPTY),
    OPTION_BOOL("document-mask", ModelConfig, document_mask, false,
                "a token sees its own document only, and positions begin anew with each; documents end with "
                "the tokenizer's end-of-text token",
                .flags = OPTION_FIXED),
    OPTION_INT("document-end", ModelConfig, document_end, -1, -1, LARGEST,
               "token that ends a document, for --document-mask; -1: the tokenizer's end of text",
               .flags = OPTION_FIXED),
    OPTION_FLOAT(
        "depth-capacity", ModelConfig, depth_capacity, 0.0, 0.0, 1.0,
        "mixture of depths: the share of a sequence's positions that pass a block with a router, the "
        "rest go by; 0: all blocks are for all",
        .flags = OPTION_FIXED | OPTION_F32),
    OPTION_INT("depth-every", ModelConfig, depth_every, 2, 1, 1000,
               "mixture of depths: which blocks have a router, the last of each so many; 1: all",
               .flags = OPTION_FIXED),
    OPTION_FLOAT(
        "dropout", ModelConfig, dropout, 0.0, 0.0, 0.999,
        "probability of dropout after the embedding, on attention weights and on both residual branches",
        .flags = OPTION_F32),
    OPTION_INT("experts", ModelConfig, n_experts, 0, 0, ROUTE_MAX_EXPERTS,
               "mixture of experts in the place of the MLP: how many; 0: none", .flags = OPTION_FIXED),
    OPTION_INT("experts-per-token", ModelConfig, n_chosen, 0, 0, ROUTE_MAX_CHOSEN,
               "experts that each token is sent to; 0: 2, with --router switch 1", .flags = OPTION_FIXED),
    OPTION_INT("expert-every", ModelConfig, expert_every, 1, 1, 1000,
               "the last of every so many blocks has experts, the others keep their MLP",
               .flags = OPTION_FIXED),
    OPTION_INT("shared-experts", ModelConfig, n_shared_experts, 0, 0, ROUTE_MAX_EXPERTS,
               "experts beside those that every token passes, one MLP so many times as wide",
               .flags = OPTION_FIXED),
    OPTION_INT("expert-hidden", ModelConfig, expert_hidden, 0, 0, LARGEST,
               "width inside an expert; 0: that of the MLP (--hidden)", .flags = OPTION_FIXED),
    OPTION_CHOICE("router", ModelConfig, router, ROUTER_TOPK, router_names,
                  "how tokens and experts find each other (docs/EXPERTS.md)", .flags = OPTION_FIXED),
    OPTION_CHOICE("router-gate", ModelConfig, router_gate, GATE_SOFTMAX, gate_names,
                  "what weighs an expert, of routers topk and balance-free", .flags = OPTION_FIXED),
    OPTION_FLOAT("expert-capacity", ModelConfig, expert_capacity, 0.0, 0.0, 1e6,
                 "the most tokens of a sequence that an expert takes, in units of the mean load; later ones "
                 "are dropped; 0: none ever is",
                 .flags = OPTION_F32),
    OPTION_FLOAT("balance-loss", ModelConfig, balance_loss, CHOSEN, CHOSEN, 1e6,
                 "weight of the loss that evens out the experts' load; -1: 0.01, and 0 of routers that do "
                 "without",
                 .flags = OPTION_F32),
    OPTION_FLOAT("z-loss", ModelConfig, z_loss, CHOSEN, CHOSEN, 1e6,
                 "weight of the loss that keeps the router's logits small; -1: 0.001, and 0 with "
                 "--router balance-free",
                 .flags = OPTION_F32),
    OPTION_FLOAT("bias-rate", ModelConfig, bias_rate, 1e-3, 0.0, 1.0,
                 "step by which --router balance-free moves the bias of an expert, up or down by its load",
                 .flags = OPTION_F32),
    OPTION_END,
};

Status config_apply_preset(Options *options, const char *name, Error *error) {
    for (int i = 0; i < N_PRESETS; i++) {
        const Preset *preset = &presets[i];
        if (strcmp(preset->name, name) != 0) continue;
        TRY(options_set_int(options, "layers", preset->layers, OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "heads", preset->heads, OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "channels", preset->channels, OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "context", preset->context, OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "vocab", preset->vocabulary, OPTION_FROM_PRESET, error));
        bool has_own = options_source(options, "attention") > OPTION_FROM_PRESET;
        TRY(options_set(options, "attention-pattern", has_own ? "" : pattern_of_preset(name),
                        OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "experts", preset->experts, OPTION_FROM_PRESET, error));
        TRY(options_set_int(options, "expert-hidden", preset->expert_hidden, OPTION_FROM_PRESET, error));
        if (options_find(options->command, "lr") < 0) return STATUS_OK; /* a command that does not train */
        return options_set(options, "lr", preset->rate, OPTION_FROM_PRESET, error);
    }
    char list[256] = "";
    for (int i = 0; i < N_PRESETS; i++) {
        strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, presets[i].name, sizeof list - strlen(list) - 1);
    }
    return error_user(error, "--model '%s' is not known; choose one of %s", name, list);
}

Status config_refuse_idle(const Options *options, const ModelConfig *config, Error *error) {
    static const char *const of_experts[] = {"experts-per-token", "expert-every", "shared-experts",
                                             "expert-hidden",     "router",       "router-gate",
                                             "expert-capacity",   "balance-loss", "z-loss"};
    enum { N_OF_EXPERTS = sizeof of_experts / sizeof of_experts[0] };
    bool has_experts = config->n_experts > 0;
    OptionCondition rules[N_OF_EXPERTS + 3] = {
        {"rotary-theta", "--position rotary", config->position == POSITION_ROTARY},
        {"depth-every", "--depth-capacity", config->depth_capacity > 0.0},
        {"bias-rate", "--experts and --router balance-free",
         has_experts && config->router == ROUTER_BALANCE_FREE}};
    for (int i = 0; i < N_OF_EXPERTS; i++)
        rules[3 + i] = (OptionCondition){of_experts[i], "--experts", has_experts};
    return options_refuse_idle(options, rules, N_OF_EXPERTS + 3, OPTION_FROM_COMMAND, error);
}

int64_t config_head_size(const ModelConfig *config) {
    return config->n_channels / config->n_heads;
}

bool config_is_depth_block(const ModelConfig *config, int block) {
    return config->depth_capacity > 0.0 && (block + 1) % config->depth_every == 0;
}

int64_t config_depth_rows(const ModelConfig *config, int64_t T) {
    int64_t n = (int64_t)(config->depth_capacity * (double)T + 0.5);
    return n < 1 ? 1 : n > T ? T : n;
}

int config_n_depth_blocks(const ModelConfig *config, int first_block, int end_block) {
    int n = 0;
    for (int block = first_block; block < end_block; block++) n += config_is_depth_block(config, block);
    return n;
}

/* Positions that pass a block are its sequence: what patterns and documents say of others, nobody knows
 * there. */
static Status check_depths(const ModelConfig *config, Error *error) {
    if (config->depth_capacity <= 0.0) return STATUS_OK;
    if (config->depth_every > config->n_layers)
        return error_user(
            error,
            "--depth-every %lld leaves none of --layers %lld with a router; choose at most as many, or leave out "
            "--depth-capacity",
            (long long)config->depth_every, (long long)config->n_layers);
    for (int block = 0; block < config->n_layers; block++) {
        if (!config_is_depth_block(config, block) || !config_is_sparse(config, block)) continue;
        if (config->document_mask)
            return error_user(error,
                              "--document-mask and --depth-capacity do not go together: a router chooses "
                              "among all positions of a sequence; leave one out");
        return error_user(
            error,
            "--depth-capacity: block %d has a router, and attention there is among what passes; give such "
            "blocks dense attention (as --attention-pattern window:256,dense with --depth-every 2)",
            block);
    }
    return STATUS_OK;
}

bool config_has_experts(const ModelConfig *config, int block) {
    return config->n_experts > 0 && (block + 1) % config->expert_every == 0;
}

int config_n_expert_blocks(const ModelConfig *config) {
    return config->n_experts > 0 ? (int)(config->n_layers / config->expert_every) : 0;
}

int64_t config_capacity(const ModelConfig *config, int64_t T) {
    double factor = config->expert_capacity;
    if (config->router == ROUTER_EXPERT_CHOICE && factor <= 0.0) factor = 1.0;
    if (factor <= 0.0) return 0;
    double capacity = ceil(factor * (double)config->n_chosen * (double)T / (double)config->n_experts);
    return capacity < 1.0 ? 1 : capacity > (double)T ? T : (int64_t)capacity;
}

double config_active_hidden(const ModelConfig *config, double expert_hidden) {
    double share = (double)config_n_expert_blocks(config) / (double)config->n_layers;
    double passed = (double)(config->n_chosen + config->n_shared_experts) * expert_hidden;
    return (1.0 - share) * (double)config->n_hidden + share * passed;
}

/* What each router brings with it. */
/* Where the predictor says who passes, how many do is not known before: nobody can choose a number of
 * them. */
static Status check_choosing_experts(const ModelConfig *config, Error *error) {
    for (int block = 0; block < config->n_layers; block++) {
        if (config->depth_capacity <= 0.0 || !config_is_depth_block(config, block)) continue;
        if (config_has_experts(config, block))
            return error_user(
                error,
                "--router expert-choice and --depth-capacity do not go together in one block: where a "
                "predictor says who passes, experts have no number of tokens to choose from; take another "
                "--router (topk), or leave one out");
    }
    return STATUS_OK;
}

/* A loss's weight, or what suits the router. */
static Status complete_weight(const char *option, double *weight, double suitable, Error *error) {
    if (*weight < 0.0 && *weight != CHOSEN)
        return error_user(error, "--%s %g: a loss has no negative weight; choose one from 0 on, or -1 for %g",
                          option, *weight, suitable);
    if (*weight < 0.0) *weight = suitable;
    return STATUS_OK;
}

static Status complete_experts(ModelConfig *config, Error *error) {
    bool by_bias = config->router == ROUTER_BALANCE_FREE, by_expert = config->router == ROUTER_EXPERT_CHOICE;
    int64_t n_chosen = config->router == ROUTER_SWITCH ? 1 : 2;
    bool is_fixed = config->router == ROUTER_SWITCH || config->router == ROUTER_GSHARD;
    if (!config->n_chosen) config->n_chosen = is_fixed || config->n_experts > 1 ? n_chosen : 1;
    if (is_fixed && config->n_chosen != n_chosen)
        return error_user(
            error,
            "--router %s sends a token to %lld expert%s, not --experts-per-token %lld; leave that "
            "out, or take --router topk",
            router_names[config->router], (long long)n_chosen, n_chosen > 1 ? "s" : "",
            (long long)config->n_chosen);
    if (is_fixed && n_chosen > config->n_experts)
        return error_user(error,
                          "--router %s sends a token to %lld experts, and there are --experts %lld; choose "
                          "more, or take --router topk",
                          router_names[config->router], (long long)n_chosen, (long long)config->n_experts);
    if (config->n_chosen > config->n_experts)
        return error_user(error,
                          "--experts-per-token %lld is more than --experts %lld; choose at most as many",
                          (long long)config->n_chosen, (long long)config->n_experts);
    if (config->expert_every > config->n_layers)
        return error_user(
            error, "--expert-every %lld leaves none of --layers %lld with experts; choose at most as many",
            (long long)config->expert_every, (long long)config->n_layers);
    if (config->router_gate == GATE_SIGMOID && config->router != ROUTER_TOPK && !by_bias)
        return error_user(error,
                          "--router-gate sigmoid is for --router topk and balance-free; %s weighs by softmax",
                          router_names[config->router]);
    if (by_expert) TRY(check_choosing_experts(config, error));
    if (!config->expert_hidden) config->expert_hidden = config->n_hidden;
    TRY(complete_weight("balance-loss", &config->balance_loss, by_bias || by_expert ? 0.0 : 0.01, error));
    return complete_weight("z-loss", &config->z_loss, by_bias ? 0.0 : 1e-3, error);
}

AttentionPattern config_pattern(const ModelConfig *config, int64_t block) {
    if (!config->n_patterns) return (AttentionPattern){.kind = PATTERN_DENSE};
    return config->pattern[block % config->n_patterns];
}

bool config_is_sparse(const ModelConfig *config, int64_t block) {
    return config->document_mask || config_pattern(config, block).kind != PATTERN_DENSE;
}

/* Patterns from words: those of all blocks in turn. */
static Status read_patterns(ModelConfig *config, Error *error) {
    if (!config->attention) config->attention = "dense";
    if (!config->attention_pattern) config->attention_pattern = "";
    bool has_list = *config->attention_pattern;
    if (has_list && strcmp(config->attention, "dense") != 0)
        return error_user(
            error,
            "--attention %s is for all blocks, and --attention-pattern %s for each in turn; give "
            "one of them",
            config->attention, config->attention_pattern);
    const char *at = has_list ? config->attention_pattern : config->attention;
    config->n_patterns = 0;
    for (bool goes_on = true; goes_on;) {
        size_t n = strcspn(at, ",");
        if (config->n_patterns == CONFIG_MAX_PATTERNS)
            return error_user(error, "--attention-pattern has more than %d patterns", CONFIG_MAX_PATTERNS);
        if (pattern_parse(at, n, &config->pattern[config->n_patterns++], error) != STATUS_OK)
            return error_prefix(error, has_list ? "--attention-pattern: " : "--attention: ");
        goes_on = has_list && at[n] == ',';
        if (!has_list && at[n])
            return error_user(error, "--attention takes one pattern; give several by --attention-pattern %s",
                              config->attention);
        at += n + 1;
    }
    return STATUS_OK;
}

static Status check_document_end(const ModelConfig *config, Error *error) {
    if (!config->document_mask && config->document_end > 0)
        return error_user(error, "--document-end is for --document-mask; give that too, or leave it out");
    if (config->document_mask && config->document_end >= config->vocabulary)
        return error_user(error, "--document-end %lld is not one of the %lld tokens; choose one of 0 to %lld",
                          (long long)config->document_end, (long long)config->vocabulary,
                          (long long)config->vocabulary - 1);
    return STATUS_OK;
}

Status config_set_document_end(ModelConfig *config, int32_t end_of_text, Error *error) {
    if (!config->document_mask || config->document_end >= 0) return STATUS_OK;
    if (end_of_text < 0)
        return error_user(
            error, "--document-mask needs a token that ends documents, and the tokenizer has none; choose "
                   "a tokenizer that has one (gpt2, or one trained with an end of text), or name the "
                   "token by --document-end");
    config->document_end = end_of_text;
    return STATUS_OK;
}

Status config_complete(ModelConfig *config, int64_t tokenizer_vocabulary, Error *error) {
    if (!config->expert_every) config->expert_every = 1; /* as the options say, where nobody has said it */
    if (!config->depth_every) config->depth_every = 2;
    if (config->n_channels % config->n_heads != 0) {
        return error_user(
            error,
            "--heads %lld does not divide --channels %lld; choose heads so that every head has the same size",
            (long long)config->n_heads, (long long)config->n_channels);
    }
    if (!config->n_kv_heads) config->n_kv_heads = config->n_heads;
    if (config->n_kv_heads > config->n_heads || config->n_heads % config->n_kv_heads != 0) {
        return error_user(
            error,
            "--kv-heads %lld does not divide --heads %lld; choose a divisor, or leave it out for all heads",
            (long long)config->n_kv_heads, (long long)config->n_heads);
    }
    if (config->position == POSITION_ROTARY && config_head_size(config) % 2 != 0) {
        return error_user(
            error,
            "--position rotary turns channels in pairs, but the head size is %lld; choose channels and heads so that it is even",
            (long long)config_head_size(config));
    }
    if (!config->n_hidden) {
        config->n_hidden =
            config->mlp == MLP_SWIGLU ? (config->n_channels * 8 / 3 + 31) / 32 * 32 : 4 * config->n_channels;
    }
    if (!config->vocabulary) config->vocabulary = tokenizer_vocabulary;
    if (config->vocabulary < tokenizer_vocabulary) {
        return error_user(error,
                          "--vocab %lld is smaller than the tokenizer's %lld; leave it out or raise it",
                          (long long)config->vocabulary, (long long)tokenizer_vocabulary);
    }
    if (config->vocabulary < 1)
        return error_user(error, "the vocabulary is empty; give --vocab or a tokenizer");
    TRY(read_patterns(config, error));
    TRY(check_document_end(config, error));
    TRY(check_depths(config, error));
    return config->n_experts ? complete_experts(config, error) : STATUS_OK;
}
