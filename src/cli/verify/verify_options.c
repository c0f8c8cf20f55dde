/* The options of pgpt verify: models that are trained, how far layouts may deviate, what goes with what. */
#include "cli/verify/verify_call.h"

#include "base/block8.h"

#include <math.h>

enum { SAMPLE = 100, FEW_STEPS = 4, MANY_STEPS = 20 };

static const OptionSpec call_specs[] = {
    OPTION_BOOL(
        "all", VerifyCallOptions, all, false,
        "every layout of 1, 2, 3, 4, 6 and 8 ranks, as far as there are so many, of a model like GPT-2, one "
        "like Llama, one with experts, one of several depths, tied and untied, and one with sparse attention"),
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
        "leave out this sum of gradients of every layout, counted from 1 and round where it has fewer, to see "
        "that it is noticed: of a bucket, along tp, or a gradient between stages; 0: none"),
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

/* --all has models of every kind. */
static Status refuse_idle(const Verify *run, Error *error) {
    ModelConfig config = run->values.model;
    if (run->values.call.all) {
        config.position = POSITION_ROTARY;
        config.depth_capacity = 1.0;
        config.n_experts = 1;
    }
    return config_refuse_idle(&run->options, &config, error);
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
    TRY(refuse_idle(run, error));
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
    for (int i = 0; i < VERIFY_MODELS; i++)
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
    run->choice.n_models = VERIFY_MODELS;
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

static Status open_device(Verify *run, Error *error) {
    const VerifyCallOptions *call = &run->values.call;
    DeviceOptions device = {.kind = call->device,
                            .index = run->launch->host_rank,
                            .n_threads = launch_threads(run->launch, (int)call->n_threads),
                            .precision = (PrecisionKind)call->precision,
                            .first_gemm = true,
                            .n_streams = DEVICE_STREAMS};
    TRY(device_backend_open(&run->backend, &device, error));
    run->has_backend = true;
    return STATUS_OK;
}

static Status read_offload(const Verify *run, Offload *offload, Error *error) {
    TRY(offload_parse(&run->values.offload, offload, error));
    if (offload->automatic) return error_user(error, "--offload auto is of pgpt train; say what to offload");
    return offload_check(offload, &run->backend.traits, true, error);
}

static Status check_hosts(const VerifyCallOptions *call, const Compression *compression, Error *error) {
    if (compression->is_across_hosts && (compression->kind == COMPRESS_NONE || !call->host_ranks))
        return error_user(error,
                          "--compress-across hosts is of --compress between hosts of several ranks; give "
                          "that, and --ranks-per-host 2 say");
    if (call->host_ranks && !compression->is_across_hosts)
        return error_user(error, "--ranks-per-host is of --compress-across hosts; give both or neither");
    if (compression_is_local(compression) && compression->is_across_hosts)
        return error_user(
            error, "--compress %s is between all ranks; leave out --compress-across, or choose 0/1-adam",
            call->compress);
    return STATUS_OK;
}

/* One process simulates the ranks of --compress, with an optimizer and numbers for which it can. */
static Status read_compression(const Verify *run, Precision precision, Compression *compression,
                               Error *error) {
    const VerifyCallOptions *call = &run->values.call;
    TRY(compression_parse(call->compress, compression, error));
    compression->n_warmup = call->n_steps < 8 ? 1 : call->n_steps / 4; /* a variance to go by */
    compression->is_across_hosts = call->compress_across == COMPRESS_ACROSS_HOSTS;
    TRY(check_hosts(call, compression, error));
    if (compression->kind == COMPRESS_NONE) return STATUS_OK;
    OptimizerKind wanted = compression_is_lamb(compression) ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW;
    if (call->optimizer != (int)wanted)
        return error_user(error, "--compress %s is simulated with --optimizer %s; give that one",
                          call->compress, optimizer_name(wanted));
    if (precision.gradient != DTYPE_F32 || precision.scales_loss)
        return error_user(
            error,
            "--compress %s is compared in f32, tf32 and bf16, where one process computes the same gradients as "
            "each rank; choose one of them in the place of --dtype %s",
            call->compress, precision_names[call->precision]);
    VerifySetting setting = {.optimizer = wanted}; /* intervals as long as they may be, from the first one */
    compression->highest_rate = (double)compression->n_local * verify_rate(&setting);
    return STATUS_OK;
}

/* One process computes each rank's gradient as it does, in 16 bits but for an activation now and then. */
static Tolerance choose_tolerance(const VerifyCallOptions *call, Precision precision, bool compresses) {
    if (call->tolerance > 0.0) return (Tolerance){call->tolerance, call->tolerance};
    if (compresses && precision.weight != DTYPE_F32) return (Tolerance){1e-3, 1e-2};
    return tolerance_of((PrecisionKind)call->precision, (MomentsKind)call->moments);
}

/* What layouts are chosen from. */
static void choose_layouts(Verify *run, Precision precision, const Offload *offload,
                           const Compression *compression) {
    const VerifyCallOptions *call = &run->values.call;
    run->choice.batch = call->batch;
    run->choice.has_algorithms = !backend_has_own_memory(&run->backend);
    run->choice.breaks = call->left_out > 0;
    run->choice.is_f32 = precision.weight == DTYPE_F32;
    run->choice.scales_loss = precision.scales_loss;
    run->choice.compresses = compression->kind != COMPRESS_NONE;
    run->choice.is_flushed = offload_has(offload, OFFLOAD_WEIGHTS) || call->n_prompt;
    run->choice.waits = call->n_prompt > 0;
    run->choice.moves_state = offload_has(offload, OFFLOAD_OPTIMIZER);
    bool has_codec = run->choice.compresses && !compression_is_lowrank(compression);
    run->choice.n_block = has_codec || call->moments == MOMENTS_8BIT ? BLOCK8_RECORD : 0;
    run->choice.host_ranks = compression->is_across_hosts ? (int)call->host_ranks : 0;
}

Status verify_read_options(Verify *run, int n_words, char *const *words, Error *error) {
    const VerifyCallOptions *call = &run->values.call;
    Offload offload;
    Compression compression;
    TRY(options_init(&run->options, &verify_command, &run->values, error));
    TRY(options_parse(&run->options, n_words, words, error));
    if (run->options.help_wanted) return STATUS_OK;
    TRY(read_model(run, error));
    TRY(choose_models(run, error));
    TRY(read_call(run, error));
    TRY(open_device(run, error));
    TRY(read_offload(run, &offload, error));
    Precision precision = precision_of((PrecisionKind)call->precision);
    TRY(read_compression(run, precision, &compression, error));
    bool compresses = compression.kind != COMPRESS_NONE;
    if (call->n_prompt && (compresses || precision.scales_loss))
        return error_user(
            error,
            "--delayed-update is compared without --compress, and in types without a loss scale; leave "
            "out %s",
            precision.scales_loss ? "--dtype f16" : "one of them");
    Tolerance tolerance = choose_tolerance(call, precision, compresses);
    choose_layouts(run, precision, &offload, &compression);
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
