/* pgpt train: from options to a finished run.
 *
 * Everything that can be wrong is found before the run folder is made: options, data, sizes, memory. After that only
 * the system can fail. */
#include "cli/commands.h"

#include "backend/cpu/cpu.h"
#include "base/format.h"
#include "base/timer.h"
#include "data/source.h"
#include "train/checkpoint.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    bool print_program, json, quiet;
} CallOptions;

typedef struct {
    ModelConfig model;
    DataOptions data;
    OptimizerOptions optimizer;
    TrainOptions train;
    CallOptions call;
} TrainCommand;

static const OptionSpec call_option_specs[] = {
    OPTION_BOOL("print-program", CallOptions, print_program, false,
                "print every instruction of a training step and the memory plan, then leave",
                .flags = OPTION_TRANSIENT),
    OPTION_BOOL("json", CallOptions, json, false, "make the last line of the output one JSON object",
                .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", CallOptions, quiet, false, "say only what went wrong", .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Model", TrainCommand, model, model_option_specs),
    OPTION_GROUP("Data", TrainCommand, data, data_option_specs),
    OPTION_GROUP("Optimizer", TrainCommand, optimizer, optimizer_option_specs),
    OPTION_GROUP("Training", TrainCommand, train, train_option_specs),
    OPTION_GROUP("This call", TrainCommand, call, call_option_specs),
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
    "repeat a run, then go on for longer",
    "pgpt train runs/first/config.ini --resume runs/first --steps 4000",
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

/* What a run needs, opened one after the other and closed together. */
typedef struct {
    Options options;
    TrainCommand values;
    DataSource source;
    Backend backend;
    Trainer trainer;
    Log log;
    bool has_backend, has_trainer;
    bool is_auto; /* --resume auto: whatever is there is fine */
    const char *run;
    ModelSource init; /* what it begins with */
    bool has_init;
} Run;

static void close_run(Run *run) {
    if (run->has_trainer) trainer_close(&run->trainer);
    if (run->has_backend) run->backend.close(run->backend.context);
    data_source_close(&run->source);
    model_source_close(&run->init);
    options_free(&run->options);
}

/* Turn --resume into the folder of a run, or into nothing where auto finds none. */
static Status find_resumed(Run *run, Error *error) {
    TrainOptions *train = &run->values.train;
    if (!*train->resume) return STATUS_OK;
    run->is_auto = strcmp(train->resume, "auto") == 0;
    if (!run->is_auto) {
        if (options_source(&run->options, "out") == OPTION_FROM_COMMAND) {
            return error_user(
                error,
                "--out and --resume are both given; a resumed run stays in its folder, leave --out out");
        }
        train->resume = resume_folder(train->resume, &run->options.arena);
        return STATUS_OK;
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

/* Open the model of --init, and make the run's model one like it. */
static Status open_init(Run *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    if (*train->init && *train->resume && !run->is_auto &&
        options_source(&run->options, "init") == OPTION_FROM_COMMAND) {
        return error_user(
            error, "--init and --resume are both given; a resumed run has its weights, leave --init out");
    }
    if (!*train->init || *train->resume) return STATUS_OK; /* a resumed run has begun already */
    if (options_source(&run->options, "model") > OPTION_FROM_PRESET)
        TRY(config_apply_preset(&run->options, run->values.model.preset, error));
    TRY(model_source_open(&run->init, train->init, CHECKPOINT_NEWEST, error));
    run->has_init = true;
    if (run->init.warning[0]) log_warning(&run->log, "%s", run->init.warning);
    TRY(options_set(&run->options, "lr", "5e-5", OPTION_FROM_PRESET, error));
    return model_source_set_options(&run->init, &run->options, error);
}

static Status read_options(Run *run, int n_words, char *const *words, Error *error) {
    TRY(options_init(&run->options, &train_command, &run->values, error));
    TRY(options_parse(&run->options, n_words, words, error));
    if (run->options.help_wanted) return STATUS_OK;
    run->log = log_make(run->values.call.quiet);
    TRY(find_resumed(run, error));
    const char *resume = run->values.train.resume;
    if (*resume) {
        TRY(options_read_config(&run->options, arena_printf(&run->options.arena, "%s/config.ini", resume),
                                error));
    }
    TRY(open_init(run, error));
    /* The record of a new run says what was chosen. */
    if (!*resume && !run->init.tokenizer) {
        TRY(options_set(&run->options, "tokenizer", data_source_tokenizer(&run->values.data),
                        OPTION_FROM_COMMAND, error));
    }
    if (run->has_init) return STATUS_OK;
    return config_apply_preset(&run->options, run->values.model.preset, error);
}

/* A prompt that the samples cannot begin with is found now, not at the end of the run. */
static Status check_prompt(const Run *run, Error *error) {
    const char *prompt = run->values.train.prompt;
    TokenArray tokens = {0};
    if (*prompt &&
        tokenizer_encode(run->source.tokenizer, prompt, strlen(prompt), &tokens, error) != STATUS_OK)
        error_prefix(error, "--prompt: ");
    else if (*prompt && !tokens.n) error_user(error, "--prompt has no words in it; leave it out");
    token_array_free(&tokens);
    return error->status;
}

/* Options that the others leave without effect. On the command line only: a config file holds them all. */
static Status refuse_ignored(const Run *run, Error *error) {
    const OptimizerOptions *optimizer = &run->values.optimizer;
    bool is_adamw = optimizer->kind == OPTIMIZER_ADAMW;
    const struct {
        const char *name, *needs;
        bool has_effect;
    } rules[] = {
        {"beta1", "--optimizer adamw", is_adamw},
        {"beta2", "--optimizer adamw", is_adamw},
        {"epsilon", "--optimizer adamw", is_adamw},
        {"momentum", "--optimizer sgd", !is_adamw},
        {"nesterov", "--optimizer sgd", !is_adamw},
        {"lr-decay", "--lr-schedule wsd", optimizer->schedule == SCHEDULE_WSD},
        {"lr-min", "a schedule that decays", optimizer->schedule != SCHEDULE_CONSTANT},
        {"rotary-theta", "--position rotary", run->values.model.position == POSITION_ROTARY},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].has_effect || options_source(&run->options, rules[i].name) != OPTION_FROM_COMMAND)
            continue;
        return error_user(error, "--%s means something only with %s; leave it out, or give that too",
                          rules[i].name, rules[i].needs);
    }
    return STATUS_OK;
}

/* Fill in what depends on something else, and check what must fit together. */
static Status complete_options(Run *run, Error *error) {
    TrainOptions *train = &run->values.train;
    StepOptions step = {.batch = train->batch,
                        .micro_batch = train->micro_batch,
                        .T = train->sequence,
                        .loss_chunk = train->loss_chunk};
    TRY(step_options_complete(&step, run->values.model.context, error));
    train->micro_batch = step.micro_batch;
    train->sequence = step.T;
    TRY(check_prompt(run, error));
    TRY(refuse_ignored(run, error));
    return optimizer_check(&run->values.optimizer, train->batch / train->micro_batch, error);
}

static Status count_steps(Run *run, Error *error) {
    TrainOptions *train = &run->values.train;
    if (train->n_epochs <= 0.0) return STATUS_OK;
    if (options_source(&run->options, "steps") > options_source(&run->options, "epochs")) return STATUS_OK;
    if (options_source(&run->options, "steps") == OPTION_FROM_COMMAND) {
        return error_user(error, "--steps and --epochs are both given; choose one");
    }
    uint64_t n_windows = dataset_n_windows(run->source.dataset, DATASET_TRAIN, (int)train->sequence);
    double steps = ceil(train->n_epochs * (double)n_windows / (double)train->batch);
    if (steps > 1e15) return error_user(error, "--epochs %g makes too many steps", train->n_epochs);
    train->n_steps = steps < 1.0 ? 1 : (int64_t)steps;
    return STATUS_OK;
}

static void say_plan(const Run *run) {
    const ModelConfig *model = &run->values.model;
    const TrainOptions *train = &run->values.train;
    const MemoryPlan *plan = &run->trainer.step.program.plan;
    log_note(&run->log, "model %s: %lld layers, %lld heads, %lld channels, context %lld, %s parameters",
             model->preset, (long long)model->n_layers, (long long)model->n_heads,
             (long long)model->n_channels, (long long)model->context,
             format_count((double)run->trainer.table.n_elements).text);
    log_note(&run->log, "data %s: %s tokens to learn, %s held out, %d symbols (%s)", run->values.data.data,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_TRAIN)).text,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_VALIDATION)).text,
             tokenizer_n_vocabulary(run->source.tokenizer), tokenizer_kind(run->source.tokenizer));
    log_note(&run->log, "memory %s: activations %s (sharing saved %s), %d threads; %s a step",
             format_bytes(trainer_planned_bytes(&run->trainer)).text,
             format_bytes(plan->bytes[PLACE_ACTIVATION]).text,
             format_bytes(plan->unshared_bytes - plan->bytes[PLACE_ACTIVATION]).text, run->backend.n_threads,
             format_rate(train_step_flops(&run->trainer.step), "FLOP").text);
    log_note(&run->log, "%lld steps of %lld x %lld tokens into %s", (long long)train->n_steps,
             (long long)train->batch, (long long)train->sequence, run->run);
}

static json_t *summary(const Run *run, double seconds) {
    const Trainer *trainer = &run->trainer;
    const TrainOptions *train = &run->values.train;
    double per_step = trainer->n_steps_timed ? trainer->step_seconds / (double)trainer->n_steps_timed : NAN;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("train"));
    json_object_set_new(object, "model", json_make_text(run->values.model.preset));
    json_object_set_new(object, "parameters", json_integer(trainer->table.n_elements));
    json_object_set_new(object, "step", json_integer(trainer->n_done));
    json_object_set_new(object, "tokens", json_integer(trainer->last.n_tokens));
    json_object_set_new(object, "loss", json_make_number(trainer->last.loss));
    json_object_set_new(object, "val_loss", json_make_number(trainer->validation_loss));
    json_object_set_new(object, "lr", json_make_number(trainer->last.rate));
    json_object_set_new(object, "grad_norm", json_make_number(trainer->last.gradient_norm));
    json_object_set_new(object, "seconds", json_make_number(seconds));
    json_object_set_new(object, "step_ms", json_make_number(per_step * 1e3));
    json_object_set_new(object, "tokens_per_s",
                        json_make_number((double)train->batch * (double)train->sequence / per_step));
    json_object_set_new(object, "flops_per_s", json_make_number(train_step_flops(&trainer->step) / per_step));
    json_object_set_new(object, "mfu", json_null()); /* the peak of this processor is not known */
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_allocated_bytes(trainer)));
    json_object_set_new(object, "interrupted", json_boolean(trainer->was_interrupted));
    json_object_set_new(object, "run", json_make_text(run->run));
    return object;
}

static Status print_json(json_t *object, Error *error) {
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

static Status print_program(const Run *run, Error *error) {
    trainer_print_program(&run->trainer, stdout);
    if (!run->values.call.json) return STATUS_OK;
    Cost cost = program_cost(&run->trainer.step.program);
    json_t *object = json_object();
    json_object_set_new(object, "instructions", json_integer(run->trainer.step.graph->n_nodes));
    json_object_set_new(object, "flops_per_step", json_make_number(cost.flops));
    json_object_set_new(object, "bytes_per_step", json_make_number(cost.bytes));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)trainer_planned_bytes(&run->trainer)));
    return print_json(object, error);
}

/* The model that the run begins with must have room for all that the tokenizer makes. */
static Status check_init(const Run *run, Error *error) {
    int n_tokens = tokenizer_n_vocabulary(run->source.tokenizer);
    if (!run->has_init || n_tokens <= run->init.config.vocabulary) return STATUS_OK;
    return error_user(
        error,
        "the tokenizer has %d tokens, and the model of --init %s knows %lld; give the model's own "
        "with --tokenizer",
        n_tokens, run->init.path, (long long)run->init.config.vocabulary);
}

static Status plan_run(Run *run, Error *error) {
    TrainCommand *values = &run->values;
    const char *resume = values->train.resume;
    const char *saved =
        *resume ? arena_printf(&run->options.arena, "%s/tokenizer.json", resume) : run->init.tokenizer;
    values->data.log = &run->log;
    TRY(data_source_open(&run->source, &values->data, saved, error));
    TRY(check_init(run, error));
    TRY(config_complete(&values->model, tokenizer_n_vocabulary(run->source.tokenizer), error));
    TRY(complete_options(run, error));
    TRY(data_source_encode(&run->source, &values->data, (uint64_t)values->train.seed, values->train.sequence,
                           error));
    TRY(count_steps(run, error));
    TRY(backend_cpu_open(&run->backend, (int)values->train.n_threads, error));
    run->has_backend = true;
    TrainerSetup setup = {.config = &values->model,
                          .optimizer = &values->optimizer,
                          .options = &values->train,
                          .dataset = run->source.dataset,
                          .tokenizer = run->source.tokenizer,
                          .backend = &run->backend,
                          .log = &run->log};
    run->has_trainer = true;
    return trainer_plan(&run->trainer, &setup, error);
}

/* A run whose first checkpoint cannot be written is of no use. */
static Status check_disk(const Run *run, Error *error) {
    uint64_t needed = checkpoint_bytes(&run->trainer.table, run->trainer.step.optimizer.n_moments);
    uint64_t room = file_free_bytes(run->run);
    if (needed <= room) return STATUS_OK;
    return error_user(
        error,
        "a checkpoint of this run takes %s, %s are free on the disk of %s; make room, or choose "
        "another --out or a smaller --model",
        format_bytes(needed).text, format_bytes(room).text, run->run);
}

static Status prepare_folder(Run *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    run->run = *train->resume ? train->resume
                              : run_folder_name(&run->options.arena, train->out, run->values.model.preset);
    if (!*train->resume && !run->is_auto) TRY(run_folder_check(run->run, error));
    return check_disk(run, error);
}

/* Resumed, and there is nothing left to do: a mistake, unless it is a script that cannot know. */
static Status say_finished(const Run *run, Error *error) {
    long long n_done = (long long)run->trainer.n_done;
    if (!run->is_auto) {
        return error_user(
            error, "the run has %lld steps done already; give more than that with --steps to go on", n_done);
    }
    log_note(
        &run->log,
        "%s has its %lld steps done; give more with --steps to go on, or leave out --resume for a new run",
        run->run, n_done);
    return run->values.call.json ? print_json(summary(run, 0.0), error) : STATUS_OK;
}

static Status train(Run *run, Error *error) {
    uint64_t start = timer_now_ns();
    const TrainOptions *train = &run->values.train;
    TRY(trainer_check_memory(&run->trainer, error));
    TRY(prepare_folder(run, error));
    TRY(trainer_open(&run->trainer, error));
    if (*train->resume) {
        TRY(trainer_resume(&run->trainer, train->resume, error));
        if (run->trainer.n_done >= train->n_steps) return say_finished(run, error);
    } else {
        if (run->has_init) TRY(trainer_take_weights(&run->trainer, &run->init, error));
        if (run->is_auto) TRY(resume_restart(run->run, error));
        TRY(run_folder_create(run->run, &run->options, run->source.tokenizer, error));
        if (run->has_init) TRY(model_source_keep_origin(&run->init, run->run, error));
    }
    say_plan(run);
    TRY(trainer_run(&run->trainer, run->run, error));
    double seconds = timer_seconds_since(start);
    if (run->trainer.was_interrupted) {
        /* The run's config.ini keeps the steps that it began with; a resumed run may want more. */
        const char *steps =
            *train->resume ? arena_printf(&run->options.arena, " --steps %lld", (long long)train->n_steps)
                           : "";
        log_note(&run->log, "stopped after step %lld and saved; go on with: pgpt train --resume %s%s",
                 (long long)run->trainer.n_done, run->run, steps);
    } else {
        log_note(&run->log, "done in %s; the model is in %s: pgpt generate %s", format_duration(seconds).text,
                 run->run, run->run);
        TRY(trainer_sample(&run->trainer, stdout, error));
    }
    return run->values.call.json ? print_json(summary(run, seconds), error) : STATUS_OK;
}

Status command_train(int n_words, char *const *words, Error *error) {
    Run run = {0};
    TRY_GOTO(read_options(&run, n_words, words, error), done);
    if (run.options.help_wanted) {
        command_show_help(&train_command);
        goto done;
    }
    TRY_GOTO(plan_run(&run, error), done);
    if (run.values.call.print_program) {
        print_program(&run, error);
    } else {
        train(&run, error);
    }
done:
    close_run(&run);
    return error->status;
}
