/* pgpt bench: reads the options, finds the benchmark by the first word, refuses options that it would
 * ignore. */
#include "cli/commands.h"

#include "base/options/options_refuse.h"
#include "base/text/format.h"
#include "cli/bench/bench.h"
#include "train/options.h"

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
    OPTION_CHOICE(
        "clip-style", OptimizerOptions, clip_style, CLIP_WAIT, clip_style_names,
        "wait for the norm, or update first and again where it was too large (as 'pgpt train' has it)"),
    OPTION_BOOL(
        "eager-update", OptimizerOptions, eager, false,
        "update each parameter as soon as its gradient is known and reuse the gradient's memory; needs --clip 0, one micro-batch a step and no f16"),
    OPTION_END,
};

static const OptionSpec bench_option_specs[] = {
    OPTION_INT("batch", BenchCall, setup.bench.batch, 16, 1, MANY, "sequences a step (all but 'generate')"),
    OPTION_INT("micro-batch", BenchCall, setup.bench.micro_batch, 0, 0, MANY,
               "sequences at a time (gradient accumulation); must divide the batch; 0: all"),
    OPTION_INT("sequence", BenchCall, setup.bench.sequence, 0, 0, MANY,
               "tokens of a sequence; 0: the model's context"),
    OPTION_INT(
        "recompute", BenchCall, setup.bench.recompute, 0, 0, 1000,
        "activation checkpointing: keep only every Nth block's input and recompute the rest in the backward; "
        "selective: recompute what is cheap; 0: keep everything",
        .words = recompute_words),
    OPTION_INT(
        "recompute-blocks", BenchCall, setup.bench.recompute_blocks, 0, 0, MANY,
        "recompute the first so many blocks whole, one by one; the others are as --recompute says: none or "
        "selective"),
    OPTION_INT("loss-chunk", BenchCall, setup.bench.loss_chunk, 0, 0, MANY,
               "tokens whose logits are in memory at a time; 0: chosen by size"),
    OPTION_INT("steps", BenchCall, setup.bench.n_steps, 5, 1, MANY_RUNS, "timed steps of 'step'"),
    OPTION_INT("warmup-steps", BenchCall, setup.bench.n_warmup_steps, 1, 0, MANY_RUNS,
               "steps before those, not timed"),
    OPTION_INT("tokens", BenchCall, setup.bench.n_tokens, 256, 4, MANY_RUNS,
               "length of a text of 'generate'"),
    OPTION_INT("samples", BenchCall, setup.bench.n_samples, 1, 1, MANY_RUNS,
               "texts that 'generate' makes at once"),
    OPTION_STRING("pattern", BenchCall, patterns, "window:256", "LIST",
                  "patterns of 'attention', with commas between them: window:W, strided:L, fixed:L:C, "
                  "bigbird:S:W:G:R"),
    OPTION_INT("document-length", BenchCall, document_length, 0, 0, MANY,
               "'attention' in documents of so many tokens; 0: there are none"),
    OPTION_INT("runs", BenchCall, setup.bench.n_runs, 3, 1, MANY_RUNS,
               "timed runs of 'generate', rounds of 'attention' (the best counts)"),
    OPTION_DEVICE(BenchCall, setup.bench.device),
    OPTION_CHOICE("dtype", BenchCall, setup.bench.precision, PRECISION_F32, precision_names,
                  "precision to compute in"),
    OPTION_BOOL(
        "one-expert", BenchCall, setup.bench.one_expert, false,
        "every token of 'step' chooses the first expert of a block, which has half of the rows where a "
        "token chooses two; needs --router balance-free"),
    OPTION_BOOL("any-order", BenchCall, setup.bench.any_order, false, DEVICE_ANY_ORDER_HELP),
    OPTION_INT("streams", BenchCall, setup.bench.n_streams, DEVICE_STREAMS, 1, 2, DEVICE_STREAMS_HELP),
    OPTION_THREADS(BenchCall, setup.bench.n_threads),
    OPTION_STRING("out", BenchCall, out, "", "FILE",
                  "of 'machine': write a machine file for 'pgpt plan' there", .flags = OPTION_TRANSIENT),
    OPTION_JSON(BenchCall, json, .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Model", BenchCall, setup.model, model_option_specs),
    OPTION_GROUP("Update", BenchCall, setup.optimizer, update_option_specs),
    OPTION_GROUP("Offload", BenchCall, setup.offload, offload_option_specs),
    {.title = "Benchmark", .offset = 0, .specs = bench_option_specs}, /* of the whole call */
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "WHAT",
     .help =
         "step: whole training steps. ops: every kernel of a step against its floor. generate: decoding with the "
         "KV cache. experts: the GEMMs of a mixture of experts against the dense one, with rows shared out evenly and "
         "with half of them at one expert. attention: patterns of sparse attention beside dense attention. machine: what "
         "'pgpt plan' wants to know of this machine; under mpirun with what its ranks send each other"},
    {.name = NULL},
};

static const char *const examples[] = {
    "how fast a model trains here, and where the time goes",
    "pgpt bench step --model mini --batch 16",
    "the same with one thread, for a script",
    "pgpt bench step --model mini --batch 16 --threads 1 --json",
    "with optimizer state in a file",
    "pgpt bench step --model mini --batch 16 --offload optimizer:file=/tmp",
    "each kernel against what the machine can do",
    "pgpt bench ops --model mini",
    "the same on a GPU: GPT-2 with 64 sequences, unless --model and --batch say otherwise",
    "pgpt bench ops --device cuda --dtype bf16",
    "generation",
    "pgpt bench generate --model mini --tokens 256",
    "experts against the dense GEMM of as many rows",
    "pgpt bench experts --model gpt2-medium --experts 8 --batch 32 --dtype bf16 --device cuda",
    "sparse attention against dense attention, at a length of one's own",
    "pgpt bench attention --model mini --sequence 4096 --batch 1 --pattern window:256,strided:64",
    "a machine file of this computer, for pgpt plan",
    "mpirun -n 2 pgpt bench machine --out mine.ini",
    NULL,
};

const OptionCommand bench_command = {
    .name = "bench",
    .summary = "measure training steps, kernels, generation, experts and sparse attention",
    .description =
        "Measures this program on this machine, with random weights and tokens, against limits that are "
        "measured in the same run: multiply-adds between registers (on a GPU: a large GEMM), copies, reads. Nothing is "
        "written to disk.\n\n"
        "Where the preset has no vocabulary of its own (nano, mini), 65 is taken; --vocab changes it.",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
};

enum { FOR_STEP = 1, FOR_OPS = 2, FOR_GENERATE = 4, FOR_EXPERTS = 8, FOR_ATTENTION = 16, FOR_MACHINE = 32 };

typedef struct {
    const char *name;
    unsigned mask;
    Status (*run)(BenchCall *call, Error *error);
} Benchmark;

static const Benchmark benchmarks[] = {
    {"step", FOR_STEP, bench_step},
    {"ops", FOR_OPS, bench_ops},
    {"generate", FOR_GENERATE, bench_generate},
    {"experts", FOR_EXPERTS, bench_experts},
    {"attention", FOR_ATTENTION, bench_attention},
    {"machine", FOR_MACHINE, bench_machine},
};
enum { N_BENCHMARKS = sizeof benchmarks / sizeof benchmarks[0] };

/* Options that only some benchmarks obey; what is not here is for all. */
static const OptionUse limited_options[] = {
    {"optimizer", FOR_STEP | FOR_OPS},
    {"clip", FOR_STEP | FOR_OPS},
    {"clip-style", FOR_STEP},
    {"eager-update", FOR_STEP | FOR_OPS},
    {"offload", FOR_STEP},
    {"offload-share", FOR_STEP},
    {"offload-update", FOR_STEP},
    {"offload-bucket-mb", FOR_STEP},
    {"offload-io", FOR_STEP},
    {"batch", FOR_STEP | FOR_OPS | FOR_EXPERTS | FOR_ATTENTION},
    {"micro-batch", FOR_STEP | FOR_OPS},
    {"sequence", FOR_STEP | FOR_OPS | FOR_EXPERTS | FOR_ATTENTION},
    {"recompute", FOR_STEP | FOR_OPS},
    {"recompute-blocks", FOR_STEP | FOR_OPS},
    {"loss-chunk", FOR_STEP | FOR_OPS},
    {"dropout", FOR_STEP | FOR_OPS},
    {"any-order", FOR_STEP | FOR_OPS | FOR_ATTENTION},
    {"attention", FOR_STEP | FOR_OPS | FOR_GENERATE}, /* bench attention has --pattern */
    {"attention-pattern", FOR_STEP | FOR_OPS | FOR_GENERATE},
    {"document-mask", FOR_STEP | FOR_OPS | FOR_GENERATE},
    {"pattern", FOR_ATTENTION},
    {"document-length", FOR_ATTENTION},
    {"streams", FOR_STEP},
    {"one-expert", FOR_STEP},
    {"steps", FOR_STEP},
    {"warmup-steps", FOR_STEP},
    {"tokens", FOR_GENERATE},
    {"samples", FOR_GENERATE},
    {"runs", FOR_GENERATE | FOR_ATTENTION},
    {"out", FOR_MACHINE},
    {"threads", FOR_STEP | FOR_OPS | FOR_GENERATE | FOR_EXPERTS | FOR_ATTENTION},
};

static Status find_benchmark(const char *word, const Benchmark **found, Error *error) {
    const char *names[N_BENCHMARKS + 1] = {NULL};
    for (int i = 0; i < N_BENCHMARKS; i++) {
        names[i] = benchmarks[i].name;
        *found = &benchmarks[i];
        if (strcmp(word, names[i]) == 0) return STATUS_OK;
    }
    return error_user(error,
                      "there is no benchmark '%s'; %schoose step, ops, generate, experts, attention or "
                      "machine",
                      word, format_did_you_mean(word, names).text);
}

/* On the command line only: a config file may have been written for something else. */
static Status refuse_ignored(const Options *options, const Benchmark *benchmark, Error *error) {
    char name[40];
    snprintf(name, sizeof name, "'bench %s'", benchmark->name);
    return options_refuse_unused(options, limited_options, sizeof limited_options / sizeof limited_options[0],
                                 benchmark->mask, name, OPTION_FROM_COMMAND, error);
}

/* Kernels that last microseconds say little about a GPU. */
static Status choose_gpu_sizes(Options *options, Error *error) {
    TRY(options_set(options, "model", "gpt2", OPTION_FROM_PRESET, error));
    return options_set(options, "batch", "64", OPTION_FROM_PRESET, error);
}

static Status run_bench(Options *options, BenchCall *call, Error *error) {
    const Benchmark *benchmark;
    TRY(find_benchmark(options->arguments[0], &benchmark, error));
    TRY(refuse_ignored(options, benchmark, error));
    bool takes_gpu = device_takes_gpu(call->setup.bench.device);
    const OptionCondition of_gpus[] = {{"any-order", "--device cuda", takes_gpu},
                                       {"streams", "--device cuda", takes_gpu}};
    TRY(options_refuse_idle(options, of_gpus, 2, OPTION_FROM_COMMAND, error));
    if (takes_gpu && benchmark->mask == FOR_OPS) TRY(choose_gpu_sizes(options, error));
    TRY(config_apply_preset(options, call->setup.model.preset, error));
    if (!call->setup.model.vocabulary) call->setup.model.vocabulary = USUAL_VOCABULARY;
    TRY(config_refuse_idle(options, &call->setup.model, error));
    TRY(config_complete(&call->setup.model, call->setup.model.vocabulary, error));
    const ModelConfig *model = &call->setup.model;
    const OptionCondition of_experts[] = {{"one-expert", "--experts with --router balance-free",
                                           model->n_experts > 0 && model->router == ROUTER_BALANCE_FREE}};
    TRY(options_refuse_idle(options, of_experts, 1, OPTION_FROM_COMMAND, error));
    return benchmark->run(call, error);
}

Status command_bench(Launch *launch, int n_words, char *const *words, Error *error) {
    BenchCall call;
    Options options;
    if (launch->world.size > 1 && (n_words < 1 || strcmp(words[0], "machine") != 0)) {
        error_user(error,
                   "pgpt bench runs in one process; start it without mpirun, but for 'pgpt bench machine'");
        return launch_agree(launch, error);
    }
    TRY(options_init(&options, &bench_command, &call, error));
    /* What the tables leave out is as usual: its numbers do not change the work. */
    OptimizerOptions usual = optimizer_defaults((OptimizerKind)call.setup.optimizer.kind);
    usual.rate = 3e-4;
    usual.clip = call.setup.optimizer.clip;
    usual.clip_style = call.setup.optimizer.clip_style;
    usual.eager = call.setup.optimizer.eager;
    call.setup.optimizer = usual;
    call.launch = launch;
    TRY_GOTO(options_parse(&options, n_words, words, error), done);
    if (options.help_wanted) {
        command_show_help(&bench_command);
    } else {
        run_bench(&options, &call, error);
    }
done:
    options_free(&options);
    return error->status;
}
