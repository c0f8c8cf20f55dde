/* pgpt train: its options, from the words of the call to values that fit together.
 *
 * There are four sources: defaults, the preset of --model, files (a config file, that of a resumed run, the
 * model of --init) and the command line, each above the ones before it; options.h keeps track of who said
 * what. What depends on the data or on the number of ranks is completed when these are known. */
#include "job/train_run.h"

#include "base/options/options_refuse.h"
#include "device/device.h"
#include "ops/experts/experts.h"
#include "ops/ops.h"
#include "run/resume.h"
#include "train/model_mesh.h"

#include <string.h>

const OptionSpec call_option_specs[] = {
    OPTION_BOOL("print-program", CallOptions, print_program, false,
                "print every instruction of a training step and the memory plan, then leave",
                .flags = OPTION_TRANSIENT),
    OPTION_BOOL("print-mesh", CallOptions, print_mesh, false,
                "print every rank's place in the mesh, the groups that talk to each other and what a step "
                "sends along every axis, then leave; one process plans a mesh of any size",
                .flags = OPTION_TRANSIENT),
    OPTION_INT(
        "ranks-per-host", CallOptions, host_ranks, 0, 0, 1 << 20,
        "of --print-mesh and --compress-across hosts: so many ranks on each host, in their order; 0: as "
        "they were started"),
    OPTION_STRING(
        "fault", CallOptions, fault, "", "KIND:RANK:STEP",
        "let something go wrong, to see that the job survives it: kill, stop or hang a rank before a step, "
        "throw an error there, or let its disk be full",
        .flags = OPTION_TRANSIENT | OPTION_MAY_BE_EMPTY),
    OPTION_JSON(CallOptions, json, .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", CallOptions, quiet, false, "say only what went wrong", .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    TRAIN_OPTION_GROUPS,
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "train the demo model on the built-in stories",
    "pgpt train",
    "train on your own text",
    "pgpt train --model mini --data book.txt --steps 2000",
    "train a model of Hugging Face further",
    "pgpt train --init downloads/gpt2 --data book.txt --micro-batch 1",
    "see the step as a program",
    "pgpt train --model mini --print-program",
    "train on four processes with optimizer state, gradients and weights sharded (ZeRO 3, as FSDP)",
    "mpirun -n 4 pgpt train --model mini --data book.txt --zero 3",
    "local SGD: four processes that average their weights every 8 steps",
    "mpirun -n 4 pgpt train --model mini --data book.txt --sync local --sync-every 8",
    "repeat a run with another batch",
    "pgpt train runs/first/config.ini --batch 32",
    "go on with a run for longer; the new number of steps is recorded",
    "pgpt train --resume runs/first --steps 4000",
    NULL,
};

const OptionCommand train_command = {
    .name = "train",
    .summary = "train a model on text",
    .description =
        "Trains a GPT on text and leaves a run folder with its configuration, metrics and checkpoints. "
        "Without options it trains a small model on built-in stories and ends with a sample of its own.",
    .groups = groups,
    .examples = examples,
};
/* Turn --resume into the folder of a run, or into nothing where auto finds none. */
static Status find_resumed(TrainRun *run, Error *error) {
    TrainOptions *train = &run->values.train;
    if (!*train->resume) return STATUS_OK;
    run->is_auto = strcmp(train->resume, "auto") == 0;
    if (!run->is_auto) {
        if (options_source(&run->options, "out") == OPTION_FROM_COMMAND) {
            return error_user(
                error,
                "--out and --resume are both given; a resumed run stays in its folder, leave --out out");
        }
        if (*train->init && options_source(&run->options, "init") == OPTION_FROM_COMMAND) {
            return error_user(
                error, "--init and --resume are both given; a resumed run has its weights, leave --init out");
        }
        return resume_named(train->resume, &run->options.arena, &train->resume, error);
    }
    const char *folder;
    TRY(resume_find(train->out, &run->options.arena, &folder, error));
    if (!folder) {
        log_note(&run->log, "nothing to resume: %s has no checkpoint; beginning anew",
                 *train->out ? train->out : "runs/latest");
    }
    train->resume = folder ? folder : "";
    return STATUS_OK;
}

/* The run that goes on is this process's from here on, before its files are read; one that is only looked
 * at need not be. */
static Status claim_resumed(TrainRun *run, Error *error) {
    const CallOptions *call = &run->values.call;
    const char *resume = run->values.train.resume;
    if (!*resume || run->launch->world.rank != 0 || call->print_mesh || call->print_program) return STATUS_OK;
    return run_claim_again(&run->claim, resume, error);
}

/* Open the model of --init, and make the run's model one like it. */
static Status open_init(TrainRun *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    if (!*train->init) return STATUS_OK;
    if (options_source(&run->options, "model") > OPTION_FROM_PRESET)
        TRY(config_apply_preset(&run->options, run->values.model.preset, error));
    TRY(model_source_open(&run->init, train->init, CHECKPOINT_NEWEST, error));
    run->has_init = true;
    if (run->init.warning[0]) log_warning(&run->log, "%s", run->init.warning);
    TRY(options_set(&run->options, "lr", "5e-5", OPTION_FROM_PRESET, error));
    return model_source_set_options(&run->init, &run->options, error);
}

Status train_options_read(TrainRun *run, int n_words, char *const *words, Error *error) {
    const OptionCommand *command = run->command ? run->command : &train_command;
    TRY(options_init(&run->options, command, &run->values, error));
    TRY(options_parse(&run->options, n_words, words, error));
    if (run->options.help_wanted) return STATUS_OK;
    run->log = launch_log(run->launch, run->values.call.quiet);
    if (run->sink.line) run->log = (Log){.quiet = run->values.call.quiet, .sink = &run->sink};
    if (*run->launch->cleared) { /* whichever rank has done it */
        Log own = log_make(run->values.call.quiet);
        log_note(&own, "%s", run->launch->cleared);
    }
    TRY(find_resumed(run, error));
    TRY(claim_resumed(run, error));
    if (*run->values.train.resume) return train_resume_options(run, error);
    TRY(open_init(run, error));
    if (!run->init.tokenizer) run->values.data.tokenizer = data_source_tokenizer(&run->values.data);
    if (run->has_init) return STATUS_OK;
    return config_apply_preset(&run->options, run->values.model.preset, error);
}

/* A prompt that the samples cannot begin with is found now, not at the end of the run. */
static Status check_prompt(const TrainRun *run, Error *error) {
    const char *prompt = run->values.train.prompt;
    TokenArray tokens = {0};
    if (*prompt &&
        tokenizer_encode(run->source.tokenizer, prompt, strlen(prompt), &tokens, error) != STATUS_OK)
        error_prefix(error, "--prompt: ");
    else if (*prompt && !tokens.n) error_user(error, "--prompt has no words in it; leave it out");
    token_array_free(&tokens);
    return error->status;
}

/* Hyperparameters of optimizers that are not this run's. */
static Status refuse_other_optimizers(const TrainRun *run, Error *error) {
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        const OptionSpec *spec = optimizer_own_specs((OptimizerKind)kind);
        for (; kind != run->values.optimizer.kind && spec->name; spec++) {
            if (options_source(&run->options, spec->name) != OPTION_FROM_COMMAND) continue;
            return error_user(error,
                              "--%s means something only with --optimizer %s; leave it out, or give that too",
                              spec->name, optimizer_name((OptimizerKind)kind));
        }
    }
    return STATUS_OK;
}

/* Those of axes along which there is one rank. Where a layout is looked for they ask for more. */
static Status refuse_idle_axes(const TrainRun *run, Error *error) {
    const OptionCondition rules[] = {
        {"tp-style", "--tp 2 or more", run->values.parallel.size[AXIS_TP] > 1},
        {"tp-chunks", "--tp or --ep 2 or more",
         run->values.parallel.size[AXIS_TP] > 1 || run->values.parallel.size[AXIS_EP] > 1},
        {"sequence-parallel", "--tp 2 or more", run->values.parallel.size[AXIS_TP] > 1},
        {"cp-style", "--cp 2 or more", run->values.parallel.size[AXIS_CP] > 1},
        {"layout", "several ranks", run->launch->world.size > 1 || !run->values.parallel.layout},
        {"schedule", "--pp 2 or more", train_has_pipeline(run)},
        {"chunks", "--pp 2 or more", train_has_pipeline(run)},
        {"stages", "--pp 2 or more", train_has_pipeline(run)},
        {"recompute-stages", "--pp 2 or more", train_has_pipeline(run)},
    };
    if (run->is_any_layout) return STATUS_OK;
    return options_refuse_idle(&run->options, rules, sizeof rules / sizeof rules[0], OPTION_FROM_COMMAND,
                               error);
}

/* Options that the others leave without effect. On the command line only: a config file holds them all. */
static Status refuse_ignored(const TrainRun *run, Error *error) {
    const OptimizerOptions *optimizer = &run->values.optimizer;
    TRY(refuse_other_optimizers(run, error));
    TRY(config_refuse_idle(&run->options, &run->values.model, error));
    const OptionCondition rules[] = {
        {"lr-decay", "--lr-schedule wsd", optimizer->schedule == LEARNING_RATE_WSD},
        {"lr-min", "a schedule that decays", optimizer->schedule != LEARNING_RATE_CONSTANT},
        {"any-order", "--device cuda", device_takes_gpu(run->values.train.device)},
        {"streams", "--device cuda", device_takes_gpu(run->values.train.device)},
        {"offload-share", "--offload", *run->values.offload.what != 0},
        {"offload-update", "--offload optimizer on a GPU",
         offload_has(&run->offload, OFFLOAD_OPTIMIZER) && device_takes_gpu(run->values.train.device)},
        {"offload-bucket-mb", "--offload optimizer, or weights or gradients in a file",
         offload_has(&run->offload, OFFLOAD_OPTIMIZER) || run->offload.to[OFFLOAD_WEIGHTS] == OFFLOAD_FILE ||
             run->offload.to[OFFLOAD_GRADIENTS] == OFFLOAD_FILE},
        {"offload-io", "--offload ...:file=DIR", *run->offload.folder != 0},
        {"ranks-per-host", "--print-mesh or --compress-across hosts",
         run->values.call.print_mesh || run->host_names},
    };
    TRY(options_refuse_idle(&run->options, rules, sizeof rules / sizeof rules[0], OPTION_FROM_COMMAND,
                            error));
    return refuse_idle_axes(run, error);
}

/* When and how to save, where nothing is saved. A config file may say it: it is the call that says
 * --no-save. */
static Status refuse_unsaved(const TrainRun *run, Error *error) {
    static const char *const names[] = {"save-every", "save-minutes", "background-save", "keep"};
    const TrainOptions *train = &run->values.train;
    const bool has_effect[] = {train->save_every > 0, train->save_minutes > 0.0, true, true};
    for (size_t i = 0; !train->saves && i < sizeof names / sizeof names[0]; i++) {
        if (!has_effect[i] || options_source(&run->options, names[i]) != OPTION_FROM_COMMAND) continue;
        return error_user(error, "--%s and --no-save are both given, and nothing is saved; leave one out",
                          names[i]);
    }
    return STATUS_OK;
}

/* The largest number of ranks up to `most` that an axis could be of without another number of ranks in
 * all. */
static int nearest_size(const TrainRun *run, Axis axis, int64_t most) {
    int n_ranks = run->shape.size[axis] * run->shape.size[AXIS_DP], n = n_ranks < most ? n_ranks : (int)most;
    while (n > 1 && n_ranks % n) n--;
    return n > 1 ? n : 1;
}

/* Ranks that share each sequence: are there positions and heads enough, and nothing that needs whole ones? */
static Status check_context(const TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    ContextStyle style = (ContextStyle)values->parallel.context;
    int n_ranks = run->shape.size[AXIS_CP], n_tensor = run->shape.size[AXIS_TP];
    int64_t most = context_most_ranks(style, values->train.sequence);
    int64_t n_heads = values->model.n_kv_heads / n_tensor;
    if (n_ranks == 1) return STATUS_OK;
    if (values->model.depth_capacity > 0.0) {
        return error_user(
            error,
            "--depth-capacity chooses among all positions of a sequence, and --cp %d divides each among ranks; "
            "leave one out, or divide the layers (--tp)",
            n_ranks);
    }
    if (n_ranks > most) {
        return error_user(
            error,
            "--cp %d is more than sequences of %lld tokens can be divided into (%s: at least %s a "
            "rank); lower it to %d, or %s",
            n_ranks, (long long)values->train.sequence, context_style_names[style],
            style == CONTEXT_RING ? "two" : "one", nearest_size(run, AXIS_CP, most),
            values->train.sequence < values->model.context ? "raise --sequence"
                                                           : "take a model with a larger --context");
    }
    if (style == CONTEXT_ALL_TO_ALL && (n_ranks > n_heads || n_ranks > PACK_MAX_PARTS)) {
        int64_t fits = n_heads < PACK_MAX_PARTS ? n_heads : PACK_MAX_PARTS;
        return error_user(
            error,
            "--cp-style all-to-all gives each of the %d ranks of --cp some of the %lld key/value "
            "heads%s, which are too few; choose --cp-style ring, or lower --cp to %d",
            n_ranks, (long long)values->model.n_kv_heads, n_tensor > 1 ? " that --tp divides already" : "",
            nearest_size(run, AXIS_CP, fits));
    }
    if (values->async.sync != SYNC_EXACT) {
        return error_user(
            error, "--sync %s is of whole sequences, and --cp %d divides each among ranks; leave one out",
            sync_names[values->async.sync], n_ranks);
    }
    return STATUS_OK;
}

/* What a model with experts cannot be trained with. */
static Status check_experts(TrainRun *run, Error *error) {
    TrainCommand *values = &run->values;
    if (!values->model.n_experts) return STATUS_OK;
    if (values->async.sync != SYNC_EXACT)
        return error_user(
            error, "--sync %s lets ranks differ, and --experts are balanced over all of them; leave one out",
            sync_names[values->async.sync]);
    if (values->model.router != ROUTER_EXPERT_CHOICE || !values->train.sample_tokens) return STATUS_OK;
    if (options_source(&run->options, "sample-tokens") == OPTION_FROM_COMMAND)
        return error_user(
            error, "a model with --router expert-choice writes no text, since an expert chooses from a "
                   "whole sequence; leave out --sample-tokens, or take another --router");
    values->train.sample_tokens = 0;
    return STATUS_OK;
}

/* What updates that are a step late cannot be had with. */
static Status check_delayed(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    long long n_prompt = values->optimizer.n_prompt, n_steps = values->train.n_steps;
    if (!n_prompt) return STATUS_OK;
    if (values->async.sync != SYNC_EXACT)
        return error_user(error,
                          "--sync %s has updates of its own that are late; leave out it or --delayed-update",
                          sync_names[values->async.sync]);
    if (strcmp(values->parallel.compress, "none") != 0)
        return error_user(error, "--compress %s and --delayed-update both change the update; leave one out",
                          values->parallel.compress);
    if (train_has_pipeline(run) && schedule_info(run->layout.kind)->is_asynchronous)
        return error_user(error,
                          "--delayed-update: a pipeline that is not flushed is late already; choose another "
                          "--schedule, or leave it out");
    if (n_prompt + 1 >= n_steps)
        log_warning(
            &run->log,
            "--delayed-update %lld: of %lld steps the first %lld and the last update at once; none is "
            "late",
            n_prompt, n_steps, n_prompt < n_steps ? n_prompt : n_steps);
    return STATUS_OK;
}

/* Some blocks recomputed whole, where the others are not. */
static Status check_recompute(const TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    long long n = values->train.recompute_blocks, n_layers = values->model.n_layers;
    if (n && values->train.recompute > 0)
        return error_user(
            error,
            "--recompute %lld recomputes all blocks, and --recompute-blocks %lld the first ones; leave "
            "one out, or give --recompute selective",
            (long long)values->train.recompute, n);
    if (n && *values->parallel.recompute)
        return error_user(
            error,
            "--recompute-stages %s says of each stage what --recompute-blocks %lld says of all; give "
            "one of them",
            values->parallel.recompute, n);
    if (n > n_layers)
        return error_user(error, "--recompute-blocks %lld: the model has %lld; give --recompute 1 for all", n,
                          n_layers);
    return STATUS_OK;
}

/* What offload cannot be had with. */
static Status check_offload(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    TRY(offload_parse(&values->offload, &run->offload, error));
    if (!offload_is_on(&run->offload)) return STATUS_OK;
    if (values->async.sync != SYNC_EXACT)
        return error_user(error,
                          "--sync %s exchanges weights and moments between steps, and --offload keeps them "
                          "elsewhere; leave one out",
                          sync_names[values->async.sync]);
    if (offload_has(&run->offload, OFFLOAD_GRADIENTS) && values->optimizer.eager)
        return error_user(error, "--eager-update leaves no gradients that could be offloaded; leave one out");
    if (offload_has(&run->offload, OFFLOAD_WEIGHTS) && values->train.sample_tokens > 0)
        return error_user(error, "--offload weights leaves the sampler without them; give --sample-tokens 0");
    return STATUS_OK;
}

/* Of a micro-batch, as many as a rank computes at once at most. */
static int64_t micro_batch_sequences(const TrainRun *run, int n_shares) {
    const TrainOptions *train = &run->values.train;
    int64_t share = (train->batch + n_shares - 1) / n_shares;
    int64_t n_micro_batches = (share + train->micro_batch - 1) / train->micro_batch;
    return (share + n_micro_batches - 1) / n_micro_batches;
}

/* A sequence at least for each rank of dp and ep. */
static Status check_batch(const TrainRun *run, Error *error) {
    const int *size = run->shape.size;
    int n_shares = size[AXIS_DP] * size[AXIS_EP];
    int64_t batch = run->values.train.batch, n_fit = batch / size[AXIS_EP];
    char fewer[96] = "";
    if (batch >= n_shares) return STATUS_OK;
    if (n_fit) {
        int64_t n_ranks = n_fit * size[AXIS_EP] * size[AXIS_TP] * size[AXIS_CP] * size[AXIS_PP];
        int n = snprintf(fewer, sizeof fewer, ", or start %lld rank%s (mpirun -n)", (long long)n_ranks,
                         n_ranks == 1 ? "" : "s");
        if (run->values.parallel.size[AXIS_DP])
            snprintf(fewer + n, sizeof fewer - (size_t)n, " with --dp %lld", (long long)n_fit);
    }
    return error_user(
        error, "--batch %lld has fewer sequences than the %d ranks that share it; raise --batch to %d%s",
        (long long)batch, n_shares, n_shares, fewer);
}

/* What several ranks cannot do. */
static Status check_ranks(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    int n_shares = run->shape.size[AXIS_DP] * run->shape.size[AXIS_EP];
    TRY(check_batch(run, error));
    int n_tensor = run->shape.size[AXIS_TP];
    if (n_tensor > 1 && values->async.sync != SYNC_EXACT) {
        return error_user(error,
                          "--sync %s is of whole models, and --tp %d divides each among ranks; leave one out",
                          sync_names[values->async.sync], n_tensor);
    }
    bool asks_sequence = values->parallel.by_sequence &&
                         options_source(&run->options, "sequence-parallel") == OPTION_FROM_COMMAND;
    if (values->parallel.tensor_style == TENSOR_ROW && n_tensor > 1 && asks_sequence)
        return error_user(error, "--tp-style row has all rows on every rank, and --sequence-parallel divides "
                                 "them; leave one out");
    if (values->parallel.tensor_chunks > 1 && train_has_pipeline(run))
        return error_user(error,
                          "--tp-chunks %lld is of layers that one stage has all of, and in a pipeline "
                          "micro-batches are in flight already; leave it out, or --pp",
                          (long long)values->parallel.tensor_chunks);
    if (values->parallel.tensor_chunks > 1 && n_tensor > 1 && values->parallel.tensor_style == TENSOR_ROW)
        return error_user(error, "--tp-chunks %lld overlaps the messages of --tp-style column; leave one out",
                          (long long)values->parallel.tensor_chunks);
    int64_t n_sequences = micro_batch_sequences(run, n_shares);
    if (values->parallel.tensor_chunks > n_sequences)
        return error_user(
            error,
            "--tp-chunks %lld makes more parts of a micro-batch than the %lld sequence%s that it has on a "
            "rank; lower it to that, or make micro-batches larger",
            (long long)values->parallel.tensor_chunks, (long long)n_sequences, n_sequences == 1 ? "" : "s");
    if (n_tensor > values->model.vocabulary || n_tensor > PACK_MAX_PARTS) {
        int64_t most = values->model.vocabulary < PACK_MAX_PARTS ? values->model.vocabulary : PACK_MAX_PARTS;
        return error_user(error,
                          "--tp %d divides the vocabulary of %lld tokens into more parts than the %lld that "
                          "can be; lower it to %d, and let --dp take the other ranks",
                          n_tensor, (long long)values->model.vocabulary, (long long)most,
                          nearest_size(run, AXIS_TP, most));
    }
    TRY(check_context(run, error));
    TRY(model_mesh_check_experts(&run->shape, &values->model, error));
    if (run->shape.size[AXIS_EP] > 1 && values->async.sync != SYNC_EXACT)
        return error_user(error,
                          "--sync %s is of whole models, and --ep %d divides the experts among ranks; leave "
                          "one out",
                          sync_names[values->async.sync], run->shape.size[AXIS_EP]);
    if (values->optimizer.eager && (n_shares > 1 || n_tensor > 1 || run->shape.size[AXIS_CP] > 1)) {
        bool is_given = options_source(&run->options, "eager-update") == OPTION_FROM_COMMAND;
        if (!is_given)
            return error_user(error, "the run was begun with --eager-update, which is for one process; give "
                                     "--no-eager-update to go on with several");
        return error_user(error,
                          "--eager-update is for one process; leave it out, and save memory by --zero 2");
    }
    return STATUS_OK;
}

/* By the clock alone, only where nothing else is said; and not where a save changes the weights, which
 * would then depend on the clock. */
static void choose_clock(TrainRun *run) {
    TrainOptions *train = &run->values.train;
    bool is_given = options_source(&run->options, "save-minutes") >= OPTION_FROM_RUN;
    bool averages = run->async.sync == SYNC_PUSH || run->async.sync == SYNC_GROUPS;
    bool by_clock = train->saves && (is_given || (train->save_every == 0 && !averages));
    train->clock_minutes = by_clock ? train->save_minutes : 0.0;
    train->clock_is_asked = by_clock && is_given && train->save_minutes > 0.0;
}

Status train_options_complete(TrainRun *run, Error *error) {
    TrainOptions *train = &run->values.train;
    train_pipeline_choose(run);
    StepOptions step = {.batch = train->batch,
                        .micro_batch = train->micro_batch,
                        .T = train->sequence,
                        .loss_chunk = train->loss_chunk};
    TRY(step_options_complete(&step, run->values.model.context, error));
    train->micro_batch = step.micro_batch;
    train->sequence = step.T;
    TRY(train_async_complete(run, error));
    choose_clock(run);
    TRY(check_ranks(run, error));
    TRY(check_experts(run, error));
    TRY(check_recompute(run, error));
    TRY(check_offload(run, error));
    TRY(train_pipeline_complete(run, error));
    TRY(train_compress_complete(run, error));
    TRY(train_heads_check(run, error));
    TRY(check_delayed(run, error));
    TRY(check_prompt(run, error));
    TRY(refuse_ignored(run, error));
    TRY(refuse_unsaved(run, error));
    return optimizer_check(&run->values.optimizer, precision_of((PrecisionKind)train->precision),
                           train->batch / train->micro_batch, error);
}
