/* pgpt lab staleness: the same training run under every --sync, with a rank that is late, and their losses
 * against the clock.
 *
 * Each run is pgpt train itself. Started without mpirun, the study starts the ranks, as lab scaling does;
 * started as several ranks, it trains with those, one run after the other. Either way everything is read from
 * what the runs write. */
#include "cli/lab/lab.h"
#include "comm/comm_mpi.h"
#include "job/train_run.h"
#include "lab/launch/launch_child.h"
#include "lab/staleness.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *schemes, *launcher;
    int64_t n_ranks, n_steps, staleness, group_size, every, delay_rank;
    double delay_ms, timeout;
} StalenessCall;

typedef struct {
    StalenessCall call;
    LabOptions lab;
} StalenessCommand;

static const OptionSpec specs[] = {
    OPTION_STRING("schemes", StalenessCall, schemes, "exact,server,push,groups,local", "LIST",
                  "what to compare: values of pgpt train --sync"),
    OPTION_INT("ranks", StalenessCall, n_ranks, 4, 2, 4096,
               "ranks to start; under mpirun: those that there are"),
    OPTION_INT("steps", StalenessCall, n_steps, 150, 2, 1000000, "steps of each run"),
    OPTION_FLOAT("delay-ms", StalenessCall, delay_ms, 50.0, 0.0, 3600e3,
                 "milliseconds that a rank is late in each step; 0: none is"),
    OPTION_INT("delay-rank", StalenessCall, delay_rank, -1, -1, 4095,
               "which; -1: another one in each step, drawn by lot"),
    OPTION_INT("staleness", StalenessCall, staleness, -1, -1, 1 << 16, "of server; see pgpt train"),
    OPTION_INT("group-size", StalenessCall, group_size, 2, 2, 4096, "of groups"),
    OPTION_INT("sync-every", StalenessCall, every, 8, 1, 1 << 16,
               "of local, and between meetings of push and groups"),
    OPTION_STRING("launcher", StalenessCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", StalenessCall, timeout, 3600.0, 1.0, 1e7, "seconds after which a run is ended"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", StalenessCommand, call, specs),
    OPTION_GROUP("Output", StalenessCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "WORDS",
     .help = "behind '--': options of pgpt train; without any: --model nano --sequence 32",
     .optional = true,
     .repeated = true,
     .behind_dashes = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "all schemes, with another rank 50 ms late in each step",
    "pgpt lab staleness",
    "the same with the ranks of this launch, of which the last is always late",
    "mpirun -n 4 pgpt lab staleness --delay-rank 3 --delay-ms 100 -- --model nano",
    "how much staleness costs",
    "pgpt lab staleness --schemes exact,server --staleness 32 --delay-ms 0",
    NULL,
};

const OptionCommand lab_staleness_command = {
    .name = "lab staleness",
    .summary = "loss against time of the async schemes, with a rank that is late",
    .description =
        "Trains the same model on the same data under every --sync of pgpt train and compares the losses after the same time and "
        "the same number of steps. One rank is late in each step, since that is what the async schemes are for.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

/* ---- What is to be run */

typedef struct {
    const StalenessCommand *values;
    LabOutput output;
    Launch *launch;
    Arena *arena;
    const char *const *arguments; /* of train, from the command line */
    int n_arguments;
    bool says_model;
    int n_ranks;
    SyncKind scheme[N_SYNCS];
    SyncRun run[N_SYNCS];
    int n_runs;
    double target; /* a loss that all of them reach */
    Launcher launcher;
} Study;

static Status read_schemes(Study *study, Error *error) {
    const char *text = study->values->call.schemes;
    for (const char *next = text;; next++) {
        size_t length = strcspn(next, ",");
        int kind = 0;
        while (kind < N_SYNCS &&
               (strlen(sync_names[kind]) != length || strncmp(next, sync_names[kind], length) != 0))
            kind++;
        if (kind == N_SYNCS)
            return error_user(error,
                              "--schemes '%.60s': '%.*s' is none of exact, server, push, groups and local",
                              text, (int)(length > 40 ? 40 : length), next);
        for (int i = 0; i < study->n_runs; i++)
            if (study->scheme[i] == (SyncKind)kind)
                return error_user(error, "--schemes '%.60s' has %s twice; leave one out", text,
                                  sync_names[kind]);
        study->scheme[study->n_runs++] = (SyncKind)kind;
        next += length;
        if (!*next) return STATUS_OK;
    }
}

/* What the study says itself must not be said twice, and what is misspelt is found before anything is
 * started. */
static Status check_train_words(Study *study, const Options *options, Error *error) {
    static const char *const ours[] = {"sync",     "staleness",  "group-size", "sync-every",    "delay-rank",
                                       "delay-ms", "steps",      "epochs",     "out",           "resume",
                                       "json",     "quiet",      "zero",       "print-program", "print-mesh",
                                       "trace",    "eval-every", NULL};
    TrainCommand values;
    Options train;
    TRY(options_init(&train, &train_command, &values, error));
    lab_read_train_words(&lab_staleness_command, options->arguments, options->n_arguments, ours, &train,
                         error);
    study->says_model = options_source(&train, "model") == OPTION_FROM_COMMAND;
    study->arguments = options->arguments;
    study->n_arguments = options->n_arguments;
    options_free(&train);
    return error->status;
}

static void add(const char **words, int *n, const char *name, const char *value) {
    words[(*n)++] = name;
    words[(*n)++] = value;
}

static void plan_run(Study *study, int index, const char *folder) {
    const StalenessCall *call = &study->values->call;
    Arena *arena = study->arena;
    SyncKind sync = study->scheme[index];
    const char **words = ARENA_ARRAY(arena, const char *, study->n_arguments + 32);
    int n = 0;
    words[n++] = "train";
    if (!study->says_model) add(words, &n, "--model", "nano");
    if (!study->n_arguments) add(words, &n, "--sequence", "32"); /* a minute or two for all of it */
    for (int i = 0; i < study->n_arguments; i++) words[n++] = study->arguments[i];
    add(words, &n, "--sync", sync_names[sync]);
    if (sync == SYNC_SERVER) add(words, &n, "--staleness", arena_printf(arena, "%" PRId64, call->staleness));
    if (sync == SYNC_GROUPS)
        add(words, &n, "--group-size", arena_printf(arena, "%" PRId64, call->group_size));
    if (sync >= SYNC_PUSH) add(words, &n, "--sync-every", arena_printf(arena, "%" PRId64, call->every));
    if (call->delay_ms > 0.0) {
        add(words, &n, "--delay-ms", arena_printf(arena, "%.17g", call->delay_ms));
        add(words, &n, "--delay-rank", arena_printf(arena, "%" PRId64, call->delay_rank));
    }
    add(words, &n, "--steps", arena_printf(arena, "%" PRId64, call->n_steps));
    add(words, &n, "--sample-tokens", "0");
    add(words, &n, "--eval-every", "0");
    add(words, &n, "--out", arena_printf(arena, "%s/%s", folder, sync_names[sync]));
    words[n++] = "--quiet";
    words[n] = launcher_no_save(words); /* or the end */
    study->run[index] = (SyncRun){
        .words = words, .folder = words[n - 2], .n_ranks = study->n_ranks, .n_steps = call->n_steps};
}

/* ---- Running */

/* With the ranks that are here. */
static Status train_here(Study *study, const SyncRun *run, Error *error) {
    int n = 0;
    while (run->words[n]) n++;
    char **words = ARENA_ARRAY(study->arena, char *, n);
    for (int i = 1; i < n; i++) words[i - 1] = arena_strdup(study->arena, run->words[i]);
    return command_train(study->launch, n - 1, words, error);
}

/* The root has the folder; all know its name. */
static Status share_folder(Study *study, RunFolder *folder, char *path, size_t n_bytes, Error *error) {
    if (study->launch->is_root) run_folder_make(folder, study->output.folder, error);
    TRY(launch_agree(study->launch, error));
    memset(path, 0, n_bytes);
    if (study->launch->is_root) snprintf(path, n_bytes, "%s", folder->path);
    return comm_broadcast(&study->launch->world, path, (int64_t)n_bytes, COMM_U8, 0, error);
}

static Status run_one(Study *study, int index, Error *error) {
    SyncRun *run = &study->run[index];
    bool is_here = study->launch->world.size > 1;
    log_note(&study->output.log, "%s: %" PRId64 " steps on %d ranks", sync_names[study->scheme[index]],
             run->n_steps, study->n_ranks);
    if (is_here) TRY(train_here(study, run, error));
    else TRY(sync_run_start(run, &study->launcher, study->values->call.timeout, error));
    if (study->launch->is_root) sync_run_read(run, error);
    return launch_agree(study->launch, error);
}

static Status run_all(Study *study, Error *error) {
    RunFolder folder = {0};
    char path[4096];
    bool is_here = study->launch->world.size > 1;
    if (share_folder(study, &folder, path, sizeof path, error) == STATUS_OK) {
        if (!is_here) interrupt_watch();
        for (int i = 0; i < study->n_runs && error->status == STATUS_OK; i++) {
            plan_run(study, i, path);
            run_one(study, i, error);
        }
        if (!is_here) interrupt_ignore();
    }
    run_folder_remove(&folder);
    return error->status;
}

/* ---- What came of it */

/* That it spent in steps. */
static double seconds_of(const SyncRun *run) {
    return run->seconds && run->n_steps > 0 ? run->seconds[run->n_steps - 1] : (double)NAN;
}

static void print_table(const Study *study) {
    printf("\n%-8s %10s %10s %10s %9s %9s %10s %10s\n", "sync", "loss", "val loss", "- first", "seconds",
           "steps/s", "s to loss", "staleness");
    for (int i = 0; i < study->n_runs; i++) {
        const SyncRun *run = &study->run[i];
        if (!run->seconds || run->n_steps < 1) continue;
        double seconds = seconds_of(run);
        printf("%-8s %10.4f %10.4f %+10.4f %9.2f %9.2f %10.2f", sync_names[study->scheme[i]], run->final_loss,
               run->val_loss, run->val_loss - study->run[0].val_loss, seconds, run->steps_per_s,
               sync_run_time_to(run, study->target));
        if (run->max_staleness >= 0) printf(" %10" PRId64 "\n", run->max_staleness);
        else printf(" %10s\n", "-");
    }
    printf(
        "\nloss: mean of the last tenth of the steps. val loss: of the model that is left. seconds: spent in steps. s to loss: until\n"
        "the loss, averaged over the steps around, is at %.3f, which all of them reach. staleness: updates that a gradient was late,\n"
        "at most.\n",
        study->target);
}

static const char *title_of(const Study *study) {
    const StalenessCall *call = &study->values->call;
    const char *late =
        call->delay_ms <= 0.0 ? "nobody late"
        : call->delay_rank < 0
            ? arena_printf(study->arena, "another rank %g ms late in each step", call->delay_ms)
            : arena_printf(study->arena, "rank %" PRId64 " %g ms late in each step", call->delay_rank,
                           call->delay_ms);
    return arena_printf(study->arena, "Loss against time on %d ranks, %s", study->n_ranks, late);
}

static Status draw(const Study *study, Error *error) {
    PlotSeries series[N_SYNCS];
    for (int i = 0; i < study->n_runs; i++) {
        const SyncRun *run = &study->run[i];
        series[i] = (PlotSeries){sync_names[study->scheme[i]], PLOT_LINES, run->seconds, run->smooth,
                                 (int)run->n_steps};
    }
    Plot plot = {.title = title_of(study),
                 .x_label = "time spent in steps (s)",
                 .y_label = "loss (nats a token)",
                 .y_log = true, /* the schemes differ at the end, where the loss is low */
                 .series = series,
                 .n_series = study->n_runs};
    return lab_draw(&study->output, &plot, "staleness", error);
}

static Status print_json(const Study *study, Error *error) {
    const StalenessCall *call = &study->values->call;
    json_t *object = json_object(), *runs = json_array();
    for (int i = 0; i < study->n_runs; i++) {
        const SyncRun *run = &study->run[i];
        json_t *entry = json_object();
        json_object_set_new(entry, "sync", json_string(sync_names[study->scheme[i]]));
        json_object_set_new(entry, "loss", json_make_number(run->final_loss));
        json_object_set_new(entry, "val_loss", json_make_number(run->val_loss));
        json_object_set_new(entry, "seconds", json_make_number(seconds_of(run)));
        json_object_set_new(entry, "steps_per_s", json_make_number(run->steps_per_s));
        json_object_set_new(entry, "seconds_to_loss", json_make_number(sync_run_time_to(run, study->target)));
        json_object_set_new(entry, "max_staleness",
                            run->max_staleness < 0 ? json_null() : json_integer(run->max_staleness));
        json_array_append_new(runs, entry);
    }
    json_object_set_new(object, "command", json_string("lab staleness"));
    json_object_set_new(object, "ranks", json_integer(study->n_ranks));
    json_object_set_new(object, "steps", json_integer(call->n_steps));
    json_object_set_new(object, "delay_ms", json_make_number(call->delay_ms));
    json_object_set_new(object, "delay_rank", json_integer(call->delay_rank));
    json_object_set_new(object, "target_loss", json_make_number(study->target));
    json_object_set_new(object, "runs", runs);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

static Status show(Study *study, Error *error) {
    if (!study->launch->is_root) return STATUS_OK;
    for (int i = 0; i < study->n_runs; i++) {
        if (!study->run[i].smooth || study->run[i].n_steps < 1) continue;
        double last = study->run[i].smooth[study->run[i].n_steps - 1];
        if (i == 0 || study->target < last) study->target = last;
    }
    print_table(study);
    fflush(stdout);
    TRY(draw(study, error));
    return study->values->lab.json ? print_json(study, error) : STATUS_OK;
}

/* ---- All of it */

/* Where the ranks come from. */
static Status find_ranks(Study *study, const Options *options, Error *error) {
    const StalenessCall *call = &study->values->call;
    int here = study->launch->world.size;
    if (here > 1 && options_source(options, "launcher") == OPTION_FROM_COMMAND)
        return error_user(
            error, "--launcher starts ranks, and there are %d already; leave out one of the two", here);
    if (here > 1 && options_source(options, "ranks") == OPTION_FROM_COMMAND && call->n_ranks != here)
        return error_user(error, "--ranks %" PRId64 ", but mpirun has started %d; leave --ranks out",
                          call->n_ranks, here);
    study->n_ranks = here > 1 ? here : (int)call->n_ranks;
    for (int i = 0; i < study->n_runs; i++) { /* better now than after some runs */
        AsyncOptions async = {.sync = (int)study->scheme[i],
                              .staleness = call->staleness,
                              .group_size = call->group_size,
                              .every = call->every,
                              .delay_rank = call->delay_rank,
                              .delay_ms = call->delay_ms};
        TRY(async_complete(&async, study->n_ranks, error));
    }
    if (here > 1) return STATUS_OK;
    if (!comm_mpi_is_built())
        return error_user(
            error, "this pgpt was built without MPI, and has one rank only; build it with -DPGPT_MPI=on");
    return launcher_open(&study->launcher, call->launcher, error);
}

Status lab_staleness(Launch *launch, int n_words, char *const *words, Error *error) {
    StalenessCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options(launch, &options, &lab_staleness_command, &values, n_words, words, &goes_on, error));
    if (goes_on) {
        Study study = {.values = &values,
                       .output = lab_output(launch, &options, &values.lab, n_words, words),
                       .launch = launch,
                       .arena = &options.arena};
        if (read_schemes(&study, error) == STATUS_OK &&
            check_train_words(&study, &options, error) == STATUS_OK)
            find_ranks(&study, &options, error);
        if (launch_agree(launch, error) == STATUS_OK && run_all(&study, error) == STATUS_OK)
            show(&study, error);
        for (int i = 0; i < study.n_runs; i++) sync_run_free(&study.run[i]);
        launcher_close(&study.launcher);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
