/* pgpt lab experts: what a mixture of experts learns for the same arithmetic, router by router.
 *
 * Each way is a run of pgpt train. A token computes as much in all of them: K experts have a K-th of the
 * MLP's hidden channels each. What the router adds is counted too: a run has as many steps as make it the
 * FLOPs of the first. */
#include "cli/lab/lab_experts.h"

#include "base/text/plain.h"
#include "device/device.h"
#include "job/train_run.h"
#include "lab/launch/launch_child.h"
#include "ops/experts/experts.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_WORDS = 96 };

static const OptionSpec specs[] = {
    OPTION_STRING(
        "ways", ExpertsCall, ways, "all", "LIST",
        "what is trained: dense, or a router (of pgpt train's --router), with commas between; the first is "
        "what others are compared with; all: dense, then every router"),
    OPTION_INT("experts", ExpertsCall, n_experts, 8, 1, 1024, "experts of a block"),
    OPTION_INT("experts-per-token", ExpertsCall, n_chosen, 2, 1, 64,
               "experts of a token; switch has 1 and gshard 2 in any case"),
    OPTION_INT("steps", ExpertsCall, n_steps, 400, 1, 1 << 30,
               "steps of the first way; others have as many as make the same FLOPs"),
    OPTION_INT("points", ExpertsCall, n_points, 24, 1, 10000,
               "evaluations of each run: points of the curves"),
    OPTION_CHOICE("device", ExpertsCall, device, DEVICE_AUTO, device_names,
                  "where to train; auto: on a GPU if there is one"),
    OPTION_THREADS(ExpertsCall, n_threads),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", ExpertsCommand, call, specs),
    OPTION_GROUP("Runs", ExpertsCommand, runs, lab_run_specs),
    OPTION_GROUP("Output", ExpertsCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --data book.txt"), {.name = NULL}};

static const char *const examples[] = {
    "a dense model and every router, at the same FLOPs",
    "pgpt lab experts",
    "two routers on a text of one's own",
    "pgpt lab experts --ways dense,topk,balance-free --steps 2000 -- --data book.txt",
    "experts that drop what is more than their share",
    "pgpt lab experts --ways dense,switch,topk -- --expert-capacity 1.25",
    NULL,
};

const OptionCommand lab_experts_command = {
    .name = "lab experts",
    .summary = "mixtures of experts: loss by FLOPs and by time, router by router, and the experts' load",
    .description =
        "Trains a model with an MLP, and the same with experts in its place, of each router. K experts of a token have a K-th of "
        "the MLP's hidden channels each, and all runs have the same FLOPs, so what differs is how much the model holds. Draws "
        "validation loss against FLOPs and against time, and the load of every expert over time. Options of experts behind '--', "
        "as --expert-capacity, are of the ways that know them.",
    .positionals = positionals,
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

/* ---- What is asked for */

static const ExpertWay ways[] = {{"dense", 0, 0},
                                 {"switch", 1, ROUTER_SWITCH},
                                 {"topk", -1, ROUTER_TOPK},
                                 {"gshard", 2, ROUTER_GSHARD},
                                 {"noisy-topk", -1, ROUTER_NOISY_TOPK},
                                 {"balance-free", -1, ROUTER_BALANCE_FREE},
                                 {"expert-choice", -1, ROUTER_EXPERT_CHOICE}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };
static const char all_ways[] = "dense,switch,topk,balance-free,gshard,noisy-topk,expert-choice";

static Status read_ways(ExpertsStudy *study, const char *text, Error *error) {
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        const ExpertWay *found = NULL;
        for (int i = 0; i < N_WAYS; i++)
            if (strlen(ways[i].name) == n && strncmp(at, ways[i].name, n) == 0) found = &ways[i];
        if (!found)
            return error_user(error,
                              "--ways '%s': '%s' is neither dense nor a router; choose among dense, switch, "
                              "topk, gshard, noisy-topk, balance-free, expert-choice",
                              plain_value(text).text, plain_value_of(at, n).text);
        for (int i = 0; i < study->n_ways; i++)
            if (study->way[i].name == found->name)
                return error_user(error, "--ways has %s twice; leave one out", found->name);
        ExpertWay *way = &study->way[study->n_ways++];
        *way = *found;
        if (way->n_chosen < 0) way->n_chosen = study->call->n_chosen;
        if (way->n_chosen > study->call->n_experts)
            return error_user(error,
                              "%s sends a token to %" PRId64 " of --experts %" PRId64
                              "; raise --experts or lower --experts-per-token",
                              way->name, way->n_chosen, study->call->n_experts);
        at += n;
        if (!*at) return STATUS_OK;
    }
}

/* What the study sets itself. */
static const char *const ours[] = {"out",
                                   "steps",
                                   "seed",
                                   "threads",
                                   "log-every",
                                   "device",
                                   "resume",
                                   "experts",
                                   "expert-hidden",
                                   "expert-every",
                                   "experts-per-token",
                                   "router",
                                   "eval-every",
                                   "no-save",
                                   "sample-tokens",
                                   "shared-experts",
                                   NULL};

/* Options of pgpt train that not every way has a use for, and who has. */
static bool is_of_others(const ExpertWay *way, const char *word) {
    static const struct {
        const char *option, *of;
    } limited[] = {
        {"--expert-capacity", NULL}, {"--balance-loss", NULL},          {"--z-loss", NULL},
        {"--router-gate", "topk"},   {"--router-gate", "balance-free"}, {"--bias-rate", "balance-free"},
    };
    bool is_limited = false;
    for (size_t i = 0; i < sizeof limited / sizeof limited[0]; i++) {
        size_t n = strlen(limited[i].option);
        if (strncmp(word, limited[i].option, n) != 0 || (word[n] && word[n] != '=')) continue;
        is_limited = true;
        if (way->n_chosen && (!limited[i].of || strcmp(limited[i].of, way->name) == 0)) return false;
    }
    return is_limited;
}

/* What is behind '--', for one way: words that say nothing there are left out, with their values. */
static int add_own_words(const ExpertsStudy *study, const ExpertWay *way, const char **words, int n) {
    for (int k = 0; k < study->options->n_arguments && n + 1 < MOST_WORDS; k++) {
        const char *word = study->options->arguments[k];
        if (!is_of_others(way, word)) words[n++] = word;
        else k += !strchr(word, '=');
    }
    return n;
}

/* A way that cannot be is refused before the others are trained. */
static Status check_ways(const ExpertsStudy *study, const ModelConfig *model, Error *error) {
    for (int i = 0; i < study->n_ways && error->status == STATUS_OK; i++) {
        const ExpertWay *way = &study->way[i];
        ModelConfig config = *model;
        config.n_experts = way->n_chosen ? study->call->n_experts : 0;
        config.n_chosen = way->n_chosen;
        config.router = way->router;
        if (config.router != ROUTER_TOPK && config.router != ROUTER_BALANCE_FREE)
            config.router_gate = GATE_SOFTMAX;
        config_complete(&config, 1, error);
    }
    return error->status;
}

static Status read_call(ExpertsStudy *study, Error *error) {
    TrainCommand values;
    Options train;
    const char *text = study->call->ways;
    TRY(read_ways(study, strcmp(text, "all") == 0 ? all_ways : text, error));
    TRY(options_init(&train, &train_command, &values, error));
    lab_read_train_words(&lab_experts_command, study->options->arguments, study->options->n_arguments, ours,
                         &train, error);
    if (error->status == STATUS_OK) config_apply_preset(&train, values.model.preset, error);
    if (error->status == STATUS_OK && values.model.n_experts)
        error_user(error, "--model %s has experts already; name one without, as nano or mini",
                   plain(values.model.preset).text);
    if (error->status == STATUS_OK) check_ways(study, &values.model, error);
    if (error->status == STATUS_OK) config_complete(&values.model, 1, error);
    study->n_hidden = values.model.n_hidden;
    study->preset =
        arena_strdup((Arena *)&study->options->arena, values.model.preset ? values.model.preset : "");
    options_free(&train);
    return error->status;
}

/* ---- Runs */

typedef struct {
    Launcher launcher;
    RunFolder folder;
} Runs;

/* Channels of an expert: so that those of a token have the MLP's. */
static int64_t hidden_of(const ExpertsStudy *study, const ExpertWay *way) {
    return study->n_hidden > way->n_chosen ? study->n_hidden / way->n_chosen : 1;
}

/* A run of way i, with its folder's metrics left behind. */
static Status train(ExpertsStudy *study, Runs *runs, int i, int64_t n_steps, bool is_probe, Error *error) {
    const ExpertWay *way = &study->way[i];
    char number[6][24], out[4200];
    const char *words[MOST_WORDS] = {"train",
                                     "--quiet",
                                     "--no-save",
                                     "--sample-tokens",
                                     "0",
                                     "--seed",
                                     "1",
                                     "--device",
                                     device_names[study->call->device],
                                     "--out",
                                     out,
                                     "--steps",
                                     number[0],
                                     "--threads",
                                     number[1],
                                     "--eval-every",
                                     number[2]};
    int n = 17;
    const int64_t numbers[] = {n_steps,
                               study->call->n_threads,
                               is_probe ? 0 : (n_steps + study->call->n_points - 1) / study->call->n_points,
                               study->call->n_experts,
                               way->n_chosen,
                               way->n_chosen ? hidden_of(study, way) : 0};
    for (int k = 0; k < 6; k++) snprintf(number[k], sizeof number[k], "%" PRId64, numbers[k]);
    snprintf(out, sizeof out, "%.4000s/%s%s", runs->folder.path, way->name, is_probe ? "-probe" : "");
    if (way->n_chosen) {
        const char *const more[] = {
            "--router", way->name,         "--experts", number[3], "--experts-per-token",
            number[4],  "--expert-hidden", number[5]};
        for (int k = 0; k < 8; k++) words[n++] = more[k];
    }
    add_own_words(study, way, words, n);
    const char *const *command = launcher_words(&runs->launcher, 1, words);
    ChildResult result = {0};
    TRY(child_run(&(ChildSetup){.words = command, .timeout_s = study->values->runs.timeout}, &result, error));
    if (child_check(&result, command, error) == STATUS_OK) expert_run_read(&study->run[i], out, error);
    child_free(&result);
    study->run[i].name = way->name;
    return error->status;
}

/* The steps of each way that make the FLOPs of the first one's; what a step computes is learned from a run of
 * one. */
static Status train_way(ExpertsStudy *study, Runs *runs, int i, double *flops, Error *error) {
    int64_t n_steps = study->call->n_steps;
    TRY(train(study, runs, i, 1, true, error));
    double a_step = study->run[i].flops_per_step;
    expert_run_free(&study->run[i]);
    if (i) n_steps = (int64_t)fmax(1.0, round(*flops / a_step));
    else *flops = (double)n_steps * a_step;
    log_note(&study->output.log, "training %s: %" PRId64 " steps", study->way[i].name, n_steps);
    return train(study, runs, i, n_steps, false, error);
}

static Status train_all(ExpertsStudy *study, Error *error) {
    Runs runs = {0};
    double flops = 0.0;
    TRY(launcher_open_alone(&runs.launcher, error));
    interrupt_watch();
    run_folder_make(&runs.folder, study->output.folder, error);
    for (int i = 0; i < study->n_ways && error->status == STATUS_OK; i++)
        train_way(study, &runs, i, &flops, error);
    interrupt_ignore();
    run_folder_remove(&runs.folder);
    launcher_close(&runs.launcher);
    return error->status;
}

/* ---- All of it */

static Status run_study(ExpertsStudy *study, Error *error) {
    TRY(read_call(study, error));
    TRY(train_all(study, error));
    experts_print(study);
    fflush(stdout);
    TRY(experts_draw(study, error));
    return study->values->lab.json ? experts_print_json(study, error) : STATUS_OK;
}

Status lab_experts(Launch *launch, int n_words, char *const *words, Error *error) {
    static const LabDefault quick[] = {
        {"ways", "dense,switch,topk,balance-free"}, {"steps", "40"}, {"points", "8"}, {NULL, NULL}};
    ExpertsCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_experts_command,
                               "starts its runs one by one; run it without mpirun", &values, n_words, words,
                               &goes_on, error));
    if (goes_on && lab_apply_quick(&options, &values.runs, quick, error) == STATUS_OK) {
        ExpertsStudy study = {.call = &values.call,
                              .values = &values,
                              .options = &options,
                              .output = lab_output(launch, &options, &values.lab, n_words, words)};
        if (lab_check_folder(launch, &study.output, error) == STATUS_OK) run_study(&study, error);
        for (int i = 0; i < EXPERTS_MOST_WAYS; i++) expert_run_free(&study.run[i]);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
