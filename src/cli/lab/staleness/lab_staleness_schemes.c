/* The first part of pgpt lab staleness: the same training run under every --sync, with a rank that is late,
 * and their losses against the clock.
 *
 * Each run is pgpt train itself. Started without mpirun, the study starts the ranks, as lab scaling does;
 * started as several ranks, it trains with those, one run after the other. Either way everything is read from
 * what the runs write. */
#include "cli/lab/staleness/lab_staleness.h"
#include "job/train_run.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/machine_note.h"
#include "lab/staleness/sync_run.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const OptionSpec staleness_schemes_specs[] = {
    OPTION_STRING("schemes", SchemesCall, schemes, "exact,server,push,groups,local", "LIST",
                  "what to compare: values of pgpt train --sync"),
    OPTION_INT("ranks", SchemesCall, n_ranks, 4, 2, 4096,
               "ranks to start; under mpirun: those that there are"),
    OPTION_INT("steps", SchemesCall, n_steps, 150, 2, 1000000, "steps of each run"),
    OPTION_FLOAT("delay-ms", SchemesCall, delay_ms, 50.0, 0.0, 3600e3,
                 "milliseconds that a rank is late in each step; 0: none is"),
    OPTION_INT("delay-rank", SchemesCall, delay_rank, -1, -1, 4095,
               "which; -1: another one in each step, drawn by lot"),
    OPTION_INT("staleness", SchemesCall, staleness, -1, -1, 1 << 16, "of server; see pgpt train"),
    OPTION_INT("group-size", SchemesCall, group_size, 2, 2, 4096, "of groups"),
    OPTION_INT("sync-every", SchemesCall, every, 8, 1, 1 << 16,
               "of local, and between meetings of push and groups"),
    OPTION_END,
};

/* ---- What is to be run */

typedef struct {
    const StalenessCommand *values;
    const LabOutput *output;
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
} SchemesStudy;

static Status read_schemes(SchemesStudy *study, Error *error) {
    const char *text = study->values->schemes.schemes;
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
static Status check_train_words(SchemesStudy *study, const Options *options, Error *error) {
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

static void plan_run(SchemesStudy *study, int index, const char *folder) {
    const SchemesCall *call = &study->values->schemes;
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
static Status train_here(SchemesStudy *study, const SyncRun *run, Error *error) {
    int n = 0;
    while (run->words[n]) n++;
    char **words = ARENA_ARRAY(study->arena, char *, n);
    for (int i = 1; i < n; i++) words[i - 1] = arena_strdup(study->arena, run->words[i]);
    return command_train(study->launch, n - 1, words, error);
}

/* The root has the folder; all know its name. */
static Status share_folder(SchemesStudy *study, RunFolder *folder, char *path, size_t n_bytes, Error *error) {
    if (study->launch->is_root) run_folder_make(folder, study->output->folder, error);
    TRY(launch_agree(study->launch, error));
    memset(path, 0, n_bytes);
    if (study->launch->is_root) snprintf(path, n_bytes, "%s", folder->path);
    return comm_broadcast(&study->launch->world, path, (int64_t)n_bytes, COMM_U8, 0, error);
}

static Status run_one(SchemesStudy *study, int index, Error *error) {
    SyncRun *run = &study->run[index];
    bool is_here = study->launch->world.size > 1;
    log_note(&study->output->log, "%s: %" PRId64 " steps on %d ranks", sync_names[study->scheme[index]],
             run->n_steps, study->n_ranks);
    if (is_here) TRY(train_here(study, run, error));
    else TRY(sync_run_start(run, &study->launcher, study->values->runs.timeout, error));
    if (study->launch->is_root) sync_run_read(run, error);
    return launch_agree(study->launch, error);
}

static Status run_all(SchemesStudy *study, Error *error) {
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

static void print_table(const SchemesStudy *study) {
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

static const char *title_of(const SchemesStudy *study) {
    const SchemesCall *call = &study->values->schemes;
    const char *late =
        call->delay_ms <= 0.0 ? "nobody late"
        : call->delay_rank < 0
            ? arena_printf(study->arena, "another rank %g ms late in each step", call->delay_ms)
            : arena_printf(study->arena, "rank %" PRId64 " %g ms late in each step", call->delay_rank,
                           call->delay_ms);
    return arena_printf(study->arena, "Loss against time on %d ranks, %s", study->n_ranks, late);
}

static Status draw(const SchemesStudy *study, Error *error) {
    PlotSeries series[N_SYNCS];
    for (int i = 0; i < study->n_runs; i++) {
        const SyncRun *run = &study->run[i];
        series[i] = (PlotSeries){sync_names[study->scheme[i]], PLOT_LINES, run->seconds, run->smooth,
                                 (int)run->n_steps};
    }
    int64_t n_mean = sync_run_smoothing(study->values->schemes.n_steps);
    const char *smoothing =
        arena_printf(study->arena, "%s%sLosses are means over the %" PRId64 " steps around each",
                     study->output->note, *study->output->note ? ". " : "", n_mean);
    if (n_mean == 1) smoothing = study->output->note;
    Plot plot = {.title = title_of(study),
                 .x_label = "time spent in steps (s)",
                 .y_label = "loss (nats a token)",
                 .y_log = true, /* the schemes differ at the end, where the loss is low */
                 .note = machine_note(study->arena, arena_printf(study->arena, "%d ranks", study->n_ranks),
                                      study->n_ranks, smoothing),
                 .series = series,
                 .n_series = study->n_runs};
    return lab_draw(study->output, &plot, "staleness", error);
}

static void add_json(const SchemesStudy *study, json_t *object) {
    const SchemesCall *call = &study->values->schemes;
    json_t *runs = json_array();
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
    json_object_set_new(object, "ranks", json_integer(study->n_ranks));
    json_object_set_new(object, "steps", json_integer(call->n_steps));
    json_object_set_new(object, "delay_ms", json_make_number(call->delay_ms));
    json_object_set_new(object, "delay_rank", json_integer(call->delay_rank));
    json_object_set_new(object, "target_loss", json_make_number(study->target));
    json_object_set_new(object, "runs", runs);
}

static Status show(SchemesStudy *study, Error *error) {
    if (!study->launch->is_root) return STATUS_OK;
    for (int i = 0; i < study->n_runs; i++) {
        if (!study->run[i].smooth || study->run[i].n_steps < 1) continue;
        double last = study->run[i].smooth[study->run[i].n_steps - 1];
        if (i == 0 || study->target < last) study->target = last;
    }
    print_table(study);
    fflush(stdout);
    return draw(study, error);
}

/* ---- All of it */

static Status prepare(const StalenessStudy *study, SchemesStudy *schemes, Error *error) {
    *schemes = (SchemesStudy){
        .values = study->values, .output = study->output, .launch = study->launch, .arena = study->arena};
    const SchemesCall *call = &study->values->schemes;
    int here = study->launch->world.size;
    TRY(read_schemes(schemes, error));
    TRY(check_train_words(schemes, study->options, error));
    if (here > 1 && options_source(study->options, "ranks") == OPTION_FROM_COMMAND && call->n_ranks != here)
        return error_user(error, "--ranks %" PRId64 ", but mpirun has started %d; leave --ranks out",
                          call->n_ranks, here);
    schemes->n_ranks = here > 1 ? here : (int)call->n_ranks;
    for (int i = 0; i < schemes->n_runs; i++) { /* better now than after some runs */
        AsyncOptions async = {.sync = (int)schemes->scheme[i],
                              .staleness = call->staleness,
                              .group_size = call->group_size,
                              .every = call->every,
                              .delay_rank = call->delay_rank,
                              .delay_ms = call->delay_ms};
        TRY(async_complete(&async, schemes->n_ranks, error));
    }
    return lab_open_launcher(study->launch, study->options, &study->values->runs, &schemes->launcher, error);
}

Status staleness_schemes_check(const StalenessStudy *study, Error *error) {
    SchemesStudy schemes;
    prepare(study, &schemes, error);
    launcher_close(&schemes.launcher);
    return error->status;
}

Status staleness_schemes(const StalenessStudy *study, Error *error) {
    SchemesStudy schemes;
    if (prepare(study, &schemes, error) == STATUS_OK && run_all(&schemes, error) == STATUS_OK) {
        show(&schemes, error);
        if (study->launch->is_root) add_json(&schemes, study->json);
    }
    for (int i = 0; i < schemes.n_runs; i++) sync_run_free(&schemes.run[i]);
    launcher_close(&schemes.launcher);
    return error->status;
}
