/* pgpt bench: reads the options, finds the benchmark by the first word, refuses options that it would
 * ignore. */
#include "cli/commands.h"

#include "base/text/format.h"
#include "cli/bench/bench.h"

#include <string.h>

/* What a model without a tokenizer has for a vocabulary where its preset names none: Shakespeare's
 * characters, the usual data for models of that size. */
enum { USUAL_VOCABULARY = 65 };

enum { MANY = 1 << 30, MANY_RUNS = 1000000 };

/* Fewer than `pgpt train` has: only what changes the work of a step; clipping is off unless asked for. */
static const OptionSpec update_option_specs[] = {
    OPTION_CHOICE("optimizer", OptimizerOptions, kind, OPTIMIZER_ADAMW, optimizer_names,
                  "update rule of 'step' and 'ops'"),
    OPTION_FLOAT(
        "clip", OptimizerOptions, clip, 0.0, 0.0, 1e30,
        "gradient clipping: scale the gradient down to this norm if it is longer; 0: neither measured nor clipped",
        .flags = OPTION_F32),
    OPTION_BOOL(
        "eager-update", OptimizerOptions, eager, false,
        "update each parameter as soon as its gradient is known and reuse the gradient's memory; needs --clip 0, one micro-batch a step and no f16"),
    OPTION_END,
};

static const OptionSpec bench_option_specs[] = {
    OPTION_INT("batch", BenchOptions, batch, 16, 1, MANY, "sequences a step ('step' and 'ops')"),
    OPTION_INT("micro-batch", BenchOptions, micro_batch, 0, 0, MANY,
               "sequences at a time (gradient accumulation); must divide the batch; 0: all"),
    OPTION_INT("sequence", BenchOptions, sequence, 0, 0, MANY,
               "tokens of a sequence; 0: the model's context"),
    OPTION_INT(
        "recompute", BenchOptions, recompute, 0, 0, 1000,
        "activation checkpointing: keep only every Nth block's input and recompute the rest in the backward; "
        "0: keep everything"),
    OPTION_INT("loss-chunk", BenchOptions, loss_chunk, 0, 0, MANY,
               "tokens whose logits are in memory at a time; 0: chosen by size"),
    OPTION_INT("steps", BenchOptions, n_steps, 5, 1, MANY_RUNS, "timed steps of 'step'"),
    OPTION_INT("warmup-steps", BenchOptions, n_warmup_steps, 1, 0, MANY_RUNS,
               "steps before those, not timed"),
    OPTION_INT("tokens", BenchOptions, n_tokens, 256, 4, MANY_RUNS, "length of a text of 'generate'"),
    OPTION_INT("samples", BenchOptions, n_samples, 1, 1, MANY_RUNS, "texts that 'generate' makes at once"),
    OPTION_INT("runs", BenchOptions, n_runs, 3, 1, MANY_RUNS, "timed runs of 'generate'"),
    OPTION_CHOICE("device", BenchOptions, device, DEVICE_AUTO, device_names,
                  "where to compute; auto: on a GPU if there is one"),
    OPTION_CHOICE("dtype", BenchOptions, precision, PRECISION_F32, precision_names,
                  "precision to compute in"),
    OPTION_BOOL("any-order", BenchOptions, any_order, false, DEVICE_ANY_ORDER_HELP),
    OPTION_INT("streams", BenchOptions, n_streams, DEVICE_STREAMS, 1, 2, DEVICE_STREAMS_HELP),
    OPTION_INT("threads", BenchOptions, n_threads, 0, 0, 4096, "CPU threads; 0: all cores"),
    OPTION_BOOL("json", BenchOptions, json, false, "make the last line of the output one JSON object",
                .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Model", BenchValues, model, model_option_specs),
    OPTION_GROUP("Update", BenchValues, optimizer, update_option_specs),
    OPTION_GROUP("Benchmark", BenchValues, bench, bench_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "WHAT",
     .help =
         "step: whole training steps. ops: every kernel of a step against its floor. generate: decoding with the "
         "KV cache"},
    {.name = NULL},
};

static const char *const examples[] = {
    "how fast a model trains here, and where the time goes",
    "pgpt bench step --model mini --batch 16",
    "the same with one thread, for a script",
    "pgpt bench step --model mini --batch 16 --threads 1 --json",
    "each kernel against what the machine can do",
    "pgpt bench ops --model mini",
    "the same on a GPU: GPT-2 with 64 sequences, unless --model and --batch say otherwise",
    "pgpt bench ops --device cuda --dtype bf16",
    "generation",
    "pgpt bench generate --model mini --tokens 256",
    NULL,
};

const OptionCommand bench_command = {
    .name = "bench",
    .summary = "measure training steps, kernels and generation",
    .description =
        "Measures this program on this machine, with random weights and tokens, against limits that are "
        "measured in the same run: multiply-adds between registers (on a GPU: a large GEMM), copies, reads. Nothing is "
        "written to disk.\n\n"
        "Where the preset has no vocabulary of its own (nano, mini), 65 is taken; --vocab changes it.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

enum { FOR_STEP = 1, FOR_OPS = 2, FOR_GENERATE = 4 };

typedef struct {
    const char *name;
    unsigned mask;
    Status (*run)(BenchValues *values, Error *error);
} Benchmark;

static const Benchmark benchmarks[] = {
    {"step", FOR_STEP, bench_step},
    {"ops", FOR_OPS, bench_ops},
    {"generate", FOR_GENERATE, bench_generate},
};
enum { N_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0] };

/* Options that only some benchmarks obey; what is not here is for all. */
static const struct {
    const char *name;
    unsigned mask;
} limited_options[] = {
    {"optimizer", FOR_STEP | FOR_OPS},
    {"clip", FOR_STEP | FOR_OPS},
    {"eager-update", FOR_STEP | FOR_OPS},
    {"batch", FOR_STEP | FOR_OPS},
    {"micro-batch", FOR_STEP | FOR_OPS},
    {"sequence", FOR_STEP | FOR_OPS},
    {"recompute", FOR_STEP | FOR_OPS},
    {"loss-chunk", FOR_STEP | FOR_OPS},
    {"dropout", FOR_STEP | FOR_OPS},
    {"any-order", FOR_STEP | FOR_OPS},
    {"streams", FOR_STEP},
    {"steps", FOR_STEP},
    {"warmup-steps", FOR_STEP},
    {"tokens", FOR_GENERATE},
    {"samples", FOR_GENERATE},
    {"runs", FOR_GENERATE},
};

static Status find_benchmark(const char *word, const Benchmark **found, Error *error) {
    const char *names[N_BENCHMARKS + 1] = {NULL};
    for (int i = 0; i < N_BENCHMARKS; i++) {
        names[i] = benchmarks[i].name;
        *found = &benchmarks[i];
        if (strcmp(word, names[i]) == 0) return STATUS_OK;
    }
    const char *nearest = format_nearest(word, names);
    return error_user(error, "there is no benchmark '%s'; %s%s%schoose step, ops or generate", word,
                      nearest ? "did you mean '" : "", nearest ? nearest : "", nearest ? "'? " : "");
}

/* On the command line only: a config file may have been written for something else. */
static Status refuse_ignored(const Options *options, const Benchmark *benchmark, Error *error) {
    for (size_t i = 0; i < sizeof limited_options / sizeof limited_options[0]; i++) {
        const char *name = limited_options[i].name;
        if (limited_options[i].mask & benchmark->mask) continue;
        if (options_source(options, name) != OPTION_FROM_COMMAND) continue;
        return error_user(error, "--%s means nothing to 'bench %s'; leave it out", name, benchmark->name);
    }
    return STATUS_OK;
}

/* Kernels that last microseconds say little about a GPU. */
static Status choose_gpu_sizes(Options *options, Error *error) {
    TRY(options_set(options, "model", "gpt2", OPTION_FROM_PRESET, error));
    return options_set(options, "batch", "64", OPTION_FROM_PRESET, error);
}

static Status run_bench(Options *options, BenchValues *values, Error *error) {
    const Benchmark *benchmark;
    TRY(find_benchmark(options->arguments[0], &benchmark, error));
    TRY(refuse_ignored(options, benchmark, error));
    bool takes_gpu = device_takes_gpu(values->bench.device);
    static const char *const of_gpus[] = {"any-order", "streams"};
    for (size_t i = 0; !takes_gpu && i < sizeof of_gpus / sizeof of_gpus[0]; i++) {
        if (options_source(options, of_gpus[i]) == OPTION_FROM_COMMAND)
            return error_user(error, "--%s means something only with --device cuda; leave it out",
                              of_gpus[i]);
    }
    if (takes_gpu && benchmark->mask == FOR_OPS) TRY(choose_gpu_sizes(options, error));
    TRY(config_apply_preset(options, values->model.preset, error));
    if (!values->model.vocabulary) values->model.vocabulary = USUAL_VOCABULARY;
    TRY(config_complete(&values->model, values->model.vocabulary, error));
    return benchmark->run(values, error);
}

Status command_bench(int n_words, char *const *words, Error *error) {
    BenchValues values;
    Options options;
    TRY(options_init(&options, &bench_command, &values, error));
    /* What the tables leave out is as usual: its numbers do not change the work. */
    OptimizerOptions usual = optimizer_defaults((OptimizerKind)values.optimizer.kind);
    usual.rate = 3e-4;
    usual.clip = values.optimizer.clip;
    usual.eager = values.optimizer.eager;
    values.optimizer = usual;
    TRY_GOTO(options_parse(&options, n_words, words, error), done);
    if (options.help_wanted) {
        command_show_help(&bench_command);
    } else {
        run_bench(&options, &values, error);
    }
done:
    options_free(&options);
    return error->status;
}
