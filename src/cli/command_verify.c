/* pgpt verify: a table, one line a layout; of all layouts there are, one line a mesh. */
#include "cli/commands.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/json.h"
#include "base/text/progress.h"
#include "device/device.h"
#include "train/verify/verify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLE = 100, FEW_STEPS = 4, MANY_STEPS = 20, N_MODELS = 5 };

typedef struct {
    bool all;
    int64_t n_sample, n_steps, batch, left_out, n_prompt;
    int precision, device, optimizer, moments, compress_across;
    int64_t host_ranks;
    const char *only, *compress;
    double tolerance;
    int64_t n_threads;
    bool json;
} VerifyCallOptions;

typedef struct {
    ModelConfig model;
    VerifyCallOptions call;
    OffloadOptions offload;
} VerifyCommand;

static const OptionSpec call_specs[] = {
    OPTION_BOOL(
        "all", VerifyCallOptions, all, false,
        "every layout of 1, 2, 3, 4, 6 and 8 ranks, as far as there are so many, of a model like GPT-2, one "
        "like Llama, one with experts and one of several depths, tied and untied"),
    OPTION_INT("sample", VerifyCallOptions, n_sample, -1, -1, 1 << 30,
               "at most so many layouts, in which every choice meets every other; 0: all of them; -1: 100, "
               "with --all all of them"),
    OPTION_STRING("only", VerifyCallOptions, only, "", "NAME",
                  "layouts in whose name this stands, as \"tp 2\" or \"pp 2, dp 2, zero 3\"; several with "
                  "| between them"),
    OPTION_STRING(
        "compress", VerifyCallOptions, compress, "none", "WAY",
        "layouts that send less than gradients, as pgpt train --compress; compared with what n ranks do, "
        "simulated in one process"),
    OPTION_CHOICE("compress-across", VerifyCallOptions, compress_across, COMPRESS_ACROSS_ALL,
                  compress_across_names,
                  "of --compress: between all ranks of dp, or between hosts of --ranks-per-host ranks"),
    OPTION_INT(
        "delayed-update", VerifyCallOptions, n_prompt, 0, 0, 10000,
        "after so many steps, updates are a step late, as pgpt train --delayed-update; compared with what one "
        "process makes of kept gradients; 0: none is"),
    OPTION_INT("ranks-per-host", VerifyCallOptions, host_ranks, 0, 0, 1 << 20,
               "of --compress-across hosts: so many ranks on each, in their order"),
    OPTION_INT("steps", VerifyCallOptions, n_steps, 0, 0, 10000,
               "optimizer steps in every layout; 0: 20, with --all 4"),
    OPTION_INT("batch", VerifyCallOptions, batch, 0, 0, 1 << 20,
               "sequences a step; 0: two a rank and one more, so that ranks have unequal shares"),
    OPTION_DEVICE(VerifyCallOptions, device),
    OPTION_CHOICE("dtype", VerifyCallOptions, precision, PRECISION_F32, precision_names,
                  "numbers to train in"),
    OPTION_CHOICE("optimizer", VerifyCallOptions, optimizer, OPTIMIZER_ADAMW, optimizer_names, "update rule"),
    OPTION_CHOICE("moments", VerifyCallOptions, moments, MOMENTS_AUTO, moments_names,
                  "what moments are stored in; auto: as --dtype has it"),
    OPTION_FLOAT(
        "tolerance", VerifyCallOptions, tolerance, 0.0, 0.0, 1.0,
        "largest deviation: relative for losses, of a tensor's largest value for weights; 0: 1e-5 and 1e-4 "
        "in f32, and what rounding makes of it in other numbers (0.02 and 0.1 in bf16) and moments (0.002 and "
        "0.12 in 8 bits)"),
    OPTION_INT(
        "break", VerifyCallOptions, left_out, 0, 0, 1 << 20,
        "leave out the sum of this bucket of gradients, counted from 1, to see that it is noticed; 0: none"),
    OPTION_INT("threads", VerifyCallOptions, n_threads, 0, 0, 4096,
               "CPU threads a rank; 0: its share of the cores"),
    OPTION_JSON(VerifyCallOptions, json),
    OPTION_END,
};

/* Some twice what 20 steps of the default model are off by, on 2 and 4 ranks (tf32 has f16's mantissa, and
 * its tolerance). A sum left out is off by more. An update divides by the size of a gradient, so where that
 * is small rounding shows in the weights first. */
typedef struct {
    double loss, weight;
} Tolerance;

static Tolerance default_tolerance(PrecisionKind kind) {
    switch (kind) {
    case PRECISION_TF32:
    case PRECISION_F16: return (Tolerance){4e-3, 1.2e-2};
    case PRECISION_PURE_F16: return (Tolerance){2e-2, 2e-2};
    case PRECISION_BF16: return (Tolerance){2e-2, 0.1};
    case PRECISION_PURE_BF16: return (Tolerance){0.1, 0.1};
    default: return (Tolerance){1e-5, 1e-4};
    }
}

/* A sum that is rounded otherwise now and then rounds a moment the other way, which moves a weight by a part
 * of a step. */
static Tolerance tolerance_of(PrecisionKind kind, MomentsKind moments) {
    Tolerance tolerance = default_tolerance(kind);
    if (moments == MOMENTS_BF16 || moments == MOMENTS_8BIT) {
        tolerance.loss = fmax(tolerance.loss, moments == MOMENTS_BF16 ? 1e-3 : 2e-3);
        tolerance.weight = fmax(tolerance.weight, moments == MOMENTS_BF16 ? 2e-2 : 0.12);
    }
    return tolerance;
}

static const OptionGroup groups[] = {
    OPTION_GROUP("Verification", VerifyCommand, call, call_specs),
    OPTION_GROUP("Model", VerifyCommand, model, model_option_specs),
    OPTION_GROUP("Offload", VerifyCommand, offload, offload_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "check layouts of eight ranks",
    "mpirun -n 8 pgpt verify",
    "check every layout of up to eight ranks",
    "mpirun -n 8 pgpt verify --all",
    "check one kind of layout",
    "mpirun -n 4 pgpt verify --only 'cp 2, tp 2|zb-v'",
    "see that a forgotten sum is found",
    "mpirun -n 4 pgpt verify --break 1",
    "check another kind of model",
    "mpirun -n 4 pgpt verify --norm rmsnorm --mlp swiglu --position rotary --kv-heads 2",
    "check that offload changes no bit of any layout",
    "mpirun -n 4 pgpt verify --offload optimizer:file=/tmp --offload-bucket-mb 0.01",
    "check updates that are a step late",
    "mpirun -n 4 pgpt verify --delayed-update 3 --offload optimizer:file=/tmp",
    NULL,
};

const OptionCommand verify_command = {
    .name = "verify",
    .summary = "check that every layout trains as one process does",
    .description =
        "Trains a small model serially, then in layouts that the number of ranks allows, and compares losses, norms of "
        "the gradient and weights after each step. One line a layout; where one differs, the first step and tensor in "
        "which it does. Exits 1 if any differs. The model is small unless its options are given, and as deep as the "
        "layout needs unless --layers is. --all has models of its own, of the sizes that are given, and one line for all "
        "layouts of a mesh. With --offload each layout is trained without it, too, and has to have the same bits."
        " (On a CPU, :host is a copy in the same memory here: so it can be checked without another.)",
    .groups = groups,
    .examples = examples,
};

typedef struct {
    Launch *launch;
    Options options;
    VerifyCommand values;
    Backend backend;
    bool has_backend;
    VerifyModel models[N_MODELS];
    VerifyChoice choice;
    VerifyCase *cases;
    int n_cases;
    Verifier verifier;
    bool has_lines; /* one a layout */
    Progress progress;
    int n_differ;
    const char *transport; /* of the sums over ranks, in the last layout */
    double loss_deviation, weight_deviation, norm_deviation;
    double seconds;
} Verify;

/* Of two channels layernorm leaves little but a sign, which rounding turns where they are nearly equal: no
 * layout would train like another, and none were wrong. One channel is 0 for all. */
static Status check_channels(const ModelConfig *model, Error *error) {
    enum { FEWEST_CHANNELS = 4 };
    if (model->norm != NORM_LAYERNORM || model->n_channels == 1 || model->n_channels >= FEWEST_CHANNELS)
        return STATUS_OK;
    return error_user(
        error,
        "--channels %lld: layernorm makes large differences of rounding with so few, and layouts cannot be "
        "compared; give at least %d, or --norm rmsnorm",
        (long long)model->n_channels, FEWEST_CHANNELS);
}

/* Small, but with everything that a layout could get wrong: several blocks, an odd vocabulary, dropout. With
 * --all smaller, since there are thousands. */
static Status read_model(Verify *run, Error *error) {
    static const struct {
        const char *name, *value, *of_all;
    } small[] = {{"layers", "3", "3"},   {"heads", "4", "6"},   {"channels", "48", "24"},
                 {"context", "24", "9"}, {"vocab", "61", "37"}, {"dropout", "0.1", "0.1"}};
    Options *options = &run->options;
    if (options_source(options, "model") == OPTION_FROM_COMMAND)
        TRY(config_apply_preset(options, run->values.model.preset, error));
    run->choice.varies_layers = options_source(options, "layers") < OPTION_FROM_PRESET;
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        const char *value = run->values.call.all ? small[i].of_all : small[i].value;
        if (options_source(options, small[i].name) < OPTION_FROM_PRESET)
            TRY(options_set(options, small[i].name, value, OPTION_FROM_PRESET, error));
    }
    TRY(config_complete(&run->values.model, run->values.model.vocabulary, error));
    return check_channels(&run->values.model, error);
}

static Status make_llama(VerifyModel *model, Error *error) {
    ModelConfig *llama = &model->config;
    model->name = "llama";
    llama->norm = NORM_RMSNORM;
    llama->mlp = MLP_SWIGLU;
    llama->position = POSITION_ROTARY;
    llama->bias = llama->tied = false;
    llama->n_hidden = 0;
    llama->n_kv_heads = llama->n_heads % 2 ? 1 : 2;
    return config_complete(llama, llama->vocabulary, error);
}

/* In every other block, so many that no number of ranks divides them; one that all tokens pass. */
static Status make_experts(VerifyModel *model, Error *error) {
    model->name = "experts";
    model->is_special = true;
    model->config.n_experts = 5;
    model->config.n_chosen = 2;
    model->config.expert_every = model->config.n_layers > 1 ? 2 : 1;
    model->config.n_shared_experts = 1;
    model->config.expert_hidden = model->config.n_channels;
    return config_complete(&model->config, model->config.vocabulary, error);
}

/* In every other block two of five positions pass. */
static Status make_depths(VerifyModel *model, Error *error) {
    model->name = "depths";
    model->is_special = true;
    model->config.depth_capacity = 0.4;
    if (model->config.n_layers == 1) model->config.depth_every = 1;
    return config_complete(&model->config, model->config.vocabulary, error);
}

/* Blocks that see a few tokens, or all, of their own document. */
static Status make_sparse(VerifyModel *model, Error *error) {
    ModelConfig *sparse = &model->config;
    model->name = "sparse";
    model->keeps_tied = true; /* which attention knows nothing of */
    sparse->attention = "dense";
    sparse->attention_pattern = "window:5,dense";
    sparse->document_mask = true;
    sparse->document_end = 3 % sparse->vocabulary;
    return config_complete(sparse, sparse->vocabulary, error);
}

/* The kinds of --all, and what a user may not say then. */
static Status choose_models(Verify *run, Error *error) {
    static const char *const kinds[] = {
        "norm",           "mlp",       "position",          "tied",         "bias", "kv-heads", "experts",
        "depth-capacity", "attention", "attention-pattern", "document-mask"};
    for (int i = 0; i < N_MODELS; i++)
        run->models[i] = (VerifyModel){.name = "", .config = run->values.model};
    run->choice.model = run->models;
    run->choice.n_models = 1;
    if (!run->values.call.all) return STATUS_OK;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (options_source(&run->options, kinds[i]) >= OPTION_FROM_RUN)
            return error_user(
                error,
                "--%s says what kind of model it is, and --all tries a model like GPT-2, one like Llama, one "
                "with experts, one of several depths and one with sparse attention; leave one of them out",
                kinds[i]);
    }
    run->models[0].name = "gpt-2";
    run->choice.n_models = N_MODELS;
    run->choice.varies_tied = true;
    TRY(make_llama(&run->models[1], error));
    TRY(make_experts(&run->models[2], error));
    TRY(make_depths(&run->models[3], error));
    return make_sparse(&run->models[4], error);
}

static Status read_call(Verify *run, Error *error) {
    VerifyCallOptions *call = &run->values.call;
    int n_ranks = run->launch->world.size;
    if (call->n_sample < 0) call->n_sample = call->all ? 0 : SAMPLE;
    if (!call->n_steps) call->n_steps = call->all ? FEW_STEPS : MANY_STEPS;
    if (!call->batch) call->batch = 2 * n_ranks + 1;
    if (call->batch < n_ranks) {
        return error_user(error, "--batch %lld has fewer sequences than there are ranks (%d); raise it",
                          (long long)call->batch, n_ranks);
    }
    if (call->left_out && n_ranks == 1) {
        return error_user(
            error, "--break leaves out a sum over ranks, and there is one rank; start several (mpirun -n)");
    }
    return STATUS_OK;
}

static Status read_options(Verify *run, int n_words, char *const *words, Error *error) {
    TRY(options_init(&run->options, &verify_command, &run->values, error));
    TRY(options_parse(&run->options, n_words, words, error));
    if (run->options.help_wanted) return STATUS_OK;
    TRY(read_model(run, error));
    TRY(choose_models(run, error));
    TRY(read_call(run, error));
    const VerifyCallOptions *call = &run->values.call;
    DeviceOptions device = {.kind = call->device,
                            .index = run->launch->host_rank,
                            .n_threads = launch_threads(run->launch, (int)call->n_threads),
                            .precision = (PrecisionKind)call->precision,
                            .first_gemm = true,
                            .n_streams = DEVICE_STREAMS};
    TRY(device_backend_open(&run->backend, &device, error));
    run->has_backend = true;
    Tolerance tolerance = tolerance_of((PrecisionKind)call->precision, (MomentsKind)call->moments);
    if (call->tolerance > 0.0) tolerance = (Tolerance){call->tolerance, call->tolerance};
    Precision precision = precision_of((PrecisionKind)call->precision);
    Offload offload;
    TRY(offload_parse(&run->values.offload, &offload, error));
    if (offload.automatic) return error_user(error, "--offload auto is of pgpt train; say what to offload");
    TRY(offload_check(&offload, &run->backend.traits, true, error));
    Compression compression;
    TRY(compression_parse(call->compress, &compression, error));
    compression.n_warmup = call->n_steps < 8 ? 1 : call->n_steps / 4; /* a variance to go by */
    compression.is_across_hosts = call->compress_across == COMPRESS_ACROSS_HOSTS;
    if (compression.is_across_hosts && (compression.kind == COMPRESS_NONE || !call->host_ranks))
        return error_user(error,
                          "--compress-across hosts is of --compress between hosts of several ranks; give "
                          "that, and --ranks-per-host 2 say");
    if (call->host_ranks && !compression.is_across_hosts)
        return error_user(error, "--ranks-per-host is of --compress-across hosts; give both or neither");
    if (compression_is_local(&compression) && compression.is_across_hosts)
        return error_user(
            error, "--compress %s is between all ranks; leave out --compress-across, or choose 0/1-adam",
            call->compress);
    OptimizerKind wanted = compression_is_lamb(&compression) ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW;
    if (compression.kind != COMPRESS_NONE && call->optimizer != (int)wanted)
        return error_user(error, "--compress %s is simulated with --optimizer %s; give that one",
                          call->compress, optimizer_name(wanted));
    if (compression.kind != COMPRESS_NONE && (precision.gradient != DTYPE_F32 || precision.scales_loss))
        return error_user(
            error,
            "--compress %s is compared in f32, tf32 and bf16, where one process computes the same gradients as "
            "each rank; choose one of them in the place of --dtype %s",
            call->compress, precision_names[call->precision]);
    if (call->n_prompt && (compression.kind != COMPRESS_NONE || precision.scales_loss))
        return error_user(
            error,
            "--delayed-update is compared without --compress, and in types without a loss scale; leave "
            "out %s",
            precision.scales_loss ? "--dtype f16" : "one of them");
    VerifySetting setting = {.optimizer = wanted}; /* intervals as long as they may be, from the first one */
    compression.highest_rate = (double)compression.n_local * verify_rate(&setting);
    /* One process computes each rank's gradient as it does, in 16 bits but for an activation now and then. */
    if (compression.kind != COMPRESS_NONE && precision.weight != DTYPE_F32 && call->tolerance <= 0.0)
        tolerance = (Tolerance){1e-3, 1e-2};
    run->choice.batch = call->batch;
    run->choice.has_algorithms = !backend_has_own_memory(&run->backend);
    run->choice.breaks = call->left_out > 0;
    run->choice.is_f32 = precision.weight == DTYPE_F32;
    run->choice.scales_loss = precision.scales_loss;
    run->choice.compresses = compression.kind != COMPRESS_NONE;
    run->choice.is_flushed = offload_has(&offload, OFFLOAD_WEIGHTS) || call->n_prompt;
    run->choice.waits = call->n_prompt > 0;
    run->choice.host_ranks = compression.is_across_hosts ? (int)call->host_ranks : 0;
    run->verifier.options = (VerifyOptions){.setting = {.backend = &run->backend,
                                                        .precision = precision,
                                                        .batch = call->batch,
                                                        .optimizer = (OptimizerKind)call->optimizer,
                                                        .n_prompt = call->n_prompt,
                                                        .n_steps = call->n_steps,
                                                        .moments = (MomentsKind)call->moments},
                                            .choice = &run->choice,
                                            .launch = run->launch,
                                            .n_steps = call->n_steps,
                                            .tolerance = tolerance.loss,
                                            .weight_tolerance = tolerance.weight,
                                            .left_out = (int)call->left_out,
                                            .offload = offload,
                                            .compression = compression,
                                            .host_ranks = (int)call->host_ranks};
    return STATUS_OK;
}

/* Ranks that were told different things would wait for each other. */
static Status check_same_options(Verify *run, Error *error) {
    if (run->launch->world.size == 1) return STATUS_OK;
    TRY(launch_check_same(run->launch, "--help", run->options.help_wanted ? "yes" : "no", error));
    return launch_check_options(run->launch, &run->options, error);
}

/* Does one of the texts, which | separates, stand in the layout's name? */
static bool is_named(const Verify *run, const VerifyCase *layout, const char *texts) {
    char name[VERIFY_NAME_BYTES], text[VERIFY_NAME_BYTES];
    verify_case_name(&run->choice, layout, name, sizeof name);
    for (const char *at = texts;; at++) {
        size_t n = strcspn(at, "|");
        snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), at);
        if (n && n < sizeof text && strstr(name, text)) return true;
        at += n;
        if (!*at) return false;
    }
}

/* Leave out what --only does not name. */
static Status keep_named(Verify *run, Error *error) {
    const char *texts = run->values.call.only;
    int n = 0;
    if (!*texts) return STATUS_OK;
    for (int i = 0; i < run->n_cases; i++) {
        if (is_named(run, &run->cases[i], texts)) run->cases[n++] = run->cases[i];
    }
    run->n_cases = n;
    if (n) return STATUS_OK;
    return error_user(error, "--only '%s' stands in no layout of %d rank%s; leave it out to see their names",
                      texts, run->launch->world.size, run->launch->world.size == 1 ? "" : "s");
}

/* Of all numbers of ranks that are wanted. */
static Status list_cases(Verify *run, Error *error) {
    static const int counts[] = {1, 2, 3, 4, 6, 8};
    enum { N_COUNTS = sizeof counts / sizeof counts[0] };
    Arena *arena = &run->options.arena;
    int n_ranks = run->launch->world.size, n_lists = run->values.call.all ? N_COUNTS : 1, n[N_COUNTS] = {0};
    VerifyCase *list[N_COUNTS] = {0};
    for (int i = 0; i < n_lists; i++) {
        run->choice.n_ranks = run->values.call.all ? counts[i] : n_ranks;
        if (run->choice.n_ranks <= n_ranks) list[i] = verify_cases(&run->choice, arena, &n[i]);
        run->n_cases += n[i];
    }
    run->cases = ARENA_ARRAY(arena, VerifyCase, run->n_cases + 1);
    for (int i = 0, at = 0; i < n_lists; at += n[i++])
        if (n[i]) memcpy(run->cases + at, list[i], (size_t)n[i] * sizeof **list);
    TRY(keep_named(run, error));
    if (run->values.call.n_sample)
        run->n_cases = verify_sample(run->cases, run->n_cases, (int)run->values.call.n_sample);
    run->has_lines = !run->values.call.all || run->values.call.n_sample;
    return STATUS_OK;
}

/* ---- what is said */

static void say_difference(const VerifyResult *result) {
    if (result->parameter == VERIFY_BITS) {
        printf(
            "    first difference in step %lld: not the bits of the same layout without offload (rank %d)\n",
            (long long)result->step, result->rank);
        return;
    }
    if (result->parameter < 0) {
        printf("    first difference in step %lld: the %s is %.9g instead of %.9g\n", (long long)result->step,
               result->parameter == VERIFY_LOSS ? "loss" : "gradient norm", result->value, result->wanted);
        return;
    }
    printf("    first difference in step %lld: %s, element %lld, is %.9g instead of %.9g (rank %d)\n",
           (long long)result->step, result->name, (long long)result->element, result->value, result->wanted,
           result->rank);
}

typedef struct {
    int n_cases, n_differ;
    double loss, weight, seconds;
} MeshSummary;

enum { NAME_COLUMNS = 88 };

/* The bar is on stderr, and makes room. */
static void say_line(Verify *run, const char *name, double loss, double weight, double seconds,
                     const char *words) {
    progress_hide(&run->progress);
    printf("%-*s %8.1e %8.1e %9s  %s\n", NAME_COLUMNS, name, loss, weight, format_duration(seconds).text,
           words);
    fflush(stdout);
}

static void say_case(Verify *run, const VerifyCase *layout, const VerifyResult *result) {
    char name[VERIFY_NAME_BYTES];
    if (!run->has_lines && !result->differs) return;
    say_line(run, verify_case_name(&run->choice, layout, name, sizeof name), result->loss_deviation,
             result->weight_deviation, result->seconds, result->differs ? "DIFFERS" : "same");
    if (result->differs) say_difference(result);
}

/* And how much of all is done by then. */
static void say_mesh(Verify *run, int i, const MeshSummary *summary) {
    char name[128], mesh[64], words[64];
    const VerifyCase *layout = &run->cases[i];
    snprintf(name, sizeof name, "%s: %d layouts", verify_mesh_name(&layout->shape, mesh, sizeof mesh),
             summary->n_cases);
    snprintf(words, sizeof words, "%d differ  %3d %%", summary->n_differ,
             (int)(100L * (i + 1) / run->n_cases));
    say_line(run, name, summary->loss, summary->weight, summary->seconds, words);
}

static void show_progress(Verify *run, int i) {
    char name[VERIFY_NAME_BYTES], text[256];
    if (!progress_due(&run->progress)) return;
    snprintf(text, sizeof text, "%d/%d  %d differ  %s", i, run->n_cases, run->n_differ,
             verify_case_name(&run->choice, &run->cases[i], name, sizeof name));
    progress_update(&run->progress, (double)i / run->n_cases, text);
}

static void say_beginning(const Verify *run) {
    char text[256];
    const ModelConfig *model = &run->values.model;
    printf("%s\n", launch_describe(run->launch, run->backend.n_threads, text, sizeof text));
    printf("%d layouts, each with %lld steps of %lld x %lld tokens, %lld channels", run->n_cases,
           (long long)run->values.call.n_steps, (long long)run->values.call.batch, (long long)model->context,
           (long long)model->n_channels);
    if (!run->choice.varies_layers) printf(", %lld layers", (long long)model->n_layers);
    printf("; compared with one process\n\n%-*s %8s %8s %9s\n", NAME_COLUMNS,
           run->has_lines ? "layout" : "mesh", "loss", "weights", "time");
    fflush(stdout);
}

static void say_end(const Verify *run) {
    char text[256];
    if (backend_has_own_memory(&run->backend))
        printf("\non %s, sums over ranks by %s", device_describe(&run->backend, text, sizeof text),
               run->transport);
    printf("\n%d layouts in %s, %d differ (tolerance %g of the loss, %g of a tensor's largest weight)\n",
           run->n_cases, format_duration(run->seconds).text, run->n_differ, run->verifier.options.tolerance,
           run->verifier.options.weight_tolerance);
}

/* The layouts that differ are a result and an error: one line says both. */
static Status print_json(const Verify *run, Error *failure, Error *error) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("verify"));
    json_object_set_new(object, "ranks", json_integer(run->launch->world.size));
    json_object_set_new(object, "layouts", json_integer(run->n_cases));
    json_object_set_new(object, "differ", json_integer(run->n_differ));
    json_object_set_new(object, "carrier", json_string(run->transport));
    json_object_set_new(object, "loss_deviation", json_make_number(run->loss_deviation));
    json_object_set_new(object, "norm_deviation", json_make_number(run->norm_deviation));
    json_object_set_new(object, "weight_deviation", json_make_number(run->weight_deviation));
    json_object_set_new(object, "tolerance", json_make_number(run->verifier.options.tolerance));
    json_object_set_new(object, "weight_tolerance", json_make_number(run->verifier.options.weight_tolerance));
    json_object_set_new(object, "seconds", json_make_number(run->seconds));
    if (failure->status != STATUS_OK) error_add_json(failure, object);
    return json_print(stdout, object, error);
}

/* ---- all of it */

static void take_result(Verify *run, const VerifyResult *result, MeshSummary *summary) {
    run->n_differ += result->differs;
    run->transport = result->transport;
    run->loss_deviation = fmax(run->loss_deviation, result->loss_deviation);
    run->norm_deviation = fmax(run->norm_deviation, result->norm_deviation);
    run->weight_deviation = fmax(run->weight_deviation, result->weight_deviation);
    summary->n_cases++;
    summary->n_differ += result->differs;
    summary->loss = fmax(summary->loss, result->loss_deviation);
    summary->weight = fmax(summary->weight, result->weight_deviation);
    summary->seconds += result->seconds;
}

static bool ends_mesh(const Verify *run, int i) {
    return i + 1 == run->n_cases ||
           memcmp(&run->cases[i].shape, &run->cases[i + 1].shape, sizeof run->cases[i].shape) != 0;
}

static Status run_cases(Verify *run, Error *error) {
    MeshSummary summary = {0};
    for (int i = 0; i < run->n_cases; i++) {
        VerifyResult result;
        if (run->launch->is_root) show_progress(run, i);
        TRY(verify_run(&run->verifier, &run->cases[i], &result, error));
        take_result(run, &result, &summary);
        if (run->launch->is_root) say_case(run, &run->cases[i], &result);
        if (!ends_mesh(run, i)) continue;
        if (run->launch->is_root && !run->has_lines) say_mesh(run, i, &summary);
        summary = (MeshSummary){0};
    }
    return STATUS_OK;
}

/* Two experts that a token likes nearly equally may change places where its numbers are rounded otherwise. */
static const char *what_rounding_may_do(const Verify *run) {
    bool has_experts = false;
    for (int i = 0; i < N_MODELS; i++) has_experts |= run->models[i].config.n_experts > 1;
    Precision precision = precision_of((PrecisionKind)run->values.call.precision);
    if (!has_experts || precision.weight == DTYPE_F32) return "";
    return "; in 16 bits layouts round otherwise, and a token may go to another expert for that: see whether "
           "they differ with --dtype f32";
}

static Status run_all(Verify *run, Error *error) {
    bool speaks = run->launch->is_root;
    uint64_t start = timer_now_ns();
    device_meet(&run->backend, &run->launch->world, run->launch->host_size, error);
    device_keep_comms(&run->backend, &run->launch->world, error);
    TRY(launch_agree(run->launch, error));
    list_cases(run, error);
    TRY(launch_agree(run->launch, error));
    if (speaks) say_beginning(run);
    if (speaks) progress_begin(&run->progress, stderr, 0.0);
    run_cases(run, error);
    if (speaks) progress_end(&run->progress);
    TRY(error->status);
    run->seconds = timer_seconds_since(start);
    if (speaks) say_end(run);
    Error failure = {0};
    if (run->n_differ)
        error_failed(&failure, "%d of %d layouts do not train as one process does%s", run->n_differ,
                     run->n_cases, what_rounding_may_do(run));
    if (speaks && run->values.call.json) TRY(print_json(run, &failure, error));
    run->launch->is_agreed = run->n_differ > 0;
    *error = failure;
    return error->status;
}

Status command_verify(Launch *launch, int n_words, char *const *words, Error *error) {
    Verify run = {.launch = launch};
    read_options(&run, n_words, words, error);
    if (launch_agree(launch, error) == STATUS_OK) check_same_options(&run, error);
    if (error->status == STATUS_OK) {
        if (!run.options.help_wanted) run_all(&run, error);
        else if (launch->is_root) command_show_help(&verify_command);
    }
    launch_fail(launch, error);
    verify_close(&run.verifier);
    if (run.has_backend) device_drop_comms(&run.backend);
    if (run.has_backend) run.backend.close(run.backend.context);
    options_free(&run.options);
    return error->status;
}
