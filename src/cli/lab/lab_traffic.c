/* pgpt lab traffic: what compressed gradients send, cost and save, for every way of --compress.
 *
 * Three questions, three kinds of runs. What is sent is counted from the ranks' programs (--print-mesh). What
 * is learned by it does not depend on the network, so one run between ranks of this machine has the curve.
 * What a step takes does: a few steps are timed between hosts made of network namespaces, or, where there can
 * be none, the links' time is added by a model to a step on this machine. */
#include "cli/lab/lab_traffic.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "job/train_run.h"
#include "lab/launch/launch_child.h"
#include "lab/network/hosts.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 96 };

/* Of 1bit-lamb, whose rate is no other optimizer's. */
#define LAMB_RATE "0.03"

static const char *const links_names[] = {"auto", "namespaces", "model", NULL};

static const OptionSpec specs[] = {
    OPTION_STRING("ways", TrafficCall, ways, "all", "LIST",
                  "values of pgpt train's --compress, with commas between; all: one of each kind; none is "
                  "always there to compare with"),
    OPTION_INT("ranks", TrafficCall, n_ranks, 4, 2, 1024, "ranks that share the batch, each on a host"),
    OPTION_INT("steps", TrafficCall, n_steps, 200, 2, 1 << 30, "of the runs that learn"),
    OPTION_INT("points", TrafficCall, n_points, 20, 1, 10000,
               "evaluations of each of them: points of the curves"),
    OPTION_STRING("rates", TrafficCall, rates, "100,1000,10000", "LIST",
                  "bandwidths of the hosts' links, Mbit/s; up to 4"),
    OPTION_INT("timed-steps", TrafficCall, n_timed, 6, 1, 10000,
               "steps whose median is the time of a way on a link"),
    OPTION_CHOICE("links", TrafficCall, links, LINKS_AUTO, links_names,
                  "between hosts made of network namespaces (which root can make), by the model, or auto: "
                  "by the model where the first cannot be"),
    OPTION_FLOAT("latency-us", TrafficCall, latency_us, 50.0, 0.0, 1e7,
                 "of the model: what a message takes besides its bytes"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", TrafficCommand, call, specs),
    OPTION_GROUP("Runs", TrafficCommand, runs, lab_run_specs),
    OPTION_GROUP("Output", TrafficCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --model mini"), {.name = NULL}};

static const char *const examples[] = {
    "every way to compress, on links of 100 Mbit/s, 1 and 10 Gbit/s",
    "pgpt lab traffic",
    "two of them on a slow network, with the optimizer sharded",
    "pgpt lab traffic --ways 1bit-adam,topk:0.05 --rates 10,100 -- --model mini --zero 2",
    NULL,
};

const OptionCommand lab_traffic_command = {
    .name = "lab traffic",
    .summary = "compressed gradients: bytes a step, loss against bytes and against time on slow links",
    .description =
        "Trains a model with every way of --compress on a few ranks. Counts what a step sends, times a step between hosts of "
        "this machine that are network namespaces joined by links of each rate (or adds the links' time by a model), and draws "
        "the validation loss against bytes sent and against time.",
    .positionals = positionals,
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

/* ---- What is asked for */

static Status add_way(TrafficStudy *study, const char *text, Error *error) {
    Compression compression;
    char name[sizeof study->way[0].name];
    if (!*text)
        return error_user(error,
                          "--ways has an empty place; give values of --compress with single commas between");
    TRY(compression_parse(text, &compression, error));
    compression.n_warmup = compression_default_warmup(&compression, study->call->n_steps);
    compression_name(&compression, name, sizeof name);
    if (compression.kind == COMPRESS_NONE && study->n_ways) return STATUS_OK; /* it is there */
    for (int i = 0; i < study->n_ways; i++)
        if (strcmp(study->way[i].name, name) == 0)
            return error_user(error, "--ways has %s twice; leave one out", name);
    if (study->n_ways == TRAFFIC_MOST_WAYS)
        return error_user(error, "--ways has more than %d; leave some out", TRAFFIC_MOST_WAYS - 1);
    TrafficWay *way = &study->way[study->n_ways++];
    *way = (TrafficWay){.compression = compression, .n_wire_bytes = NAN};
    snprintf(way->name, sizeof way->name, "%s", name);
    return STATUS_OK;
}

static Status read_ways(TrafficStudy *study, Error *error) {
    const char *text = study->call->ways;
    TRY(add_way(study, compression_example(COMPRESS_NONE), error));
    if (strcmp(text, "all") == 0) {
        for (int kind = 0; kind < N_COMPRESS_KINDS; kind++)
            TRY(add_way(study, compression_example((CompressKind)kind), error));
        return STATUS_OK;
    }
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        TRY(add_way(study, plain_value_of(at, n).text, error));
        at += n;
        if (!*at) return STATUS_OK;
    }
}

/* What the study sets itself. */
static const char *const ours[] = {"out",
                                   "steps",
                                   "epochs",
                                   "seed",
                                   "threads",
                                   "resume",
                                   "json",
                                   "quiet",
                                   "compress",
                                   "dp",
                                   "no-save",
                                   "eval-every",
                                   "compress-warmup",
                                   "sample-tokens",
                                   "print-mesh",
                                   "log-every",
                                   "compress-across",
                                   "ranks-per-host",
                                   NULL};

static Status read_call(TrafficStudy *study, Error *error) {
    TrainCommand values;
    Options train;
    TRY(read_ways(study, error));
    TRY(lab_read_list("--rates", study->call->rates, 1, 1000000, false, &study->rates, error));
    if (study->rates.n > TRAFFIC_MOST_RATES)
        return error_user(error, "--rates has more than %d numbers; give fewer", TRAFFIC_MOST_RATES);
    if (study->call->links == LINKS_NAMESPACES && *study->values->runs.launcher)
        return error_user(error, "--links namespaces has hosts and a launcher of its own; leave --launcher "
                                 "out, or choose --links model");
    if (study->call->links == LINKS_NAMESPACES &&
        options_source(study->options, "latency-us") == OPTION_FROM_COMMAND)
        return error_user(error, "--latency-us is of --links model: namespaces take the time that they take; "
                                 "leave it out, or choose --links model");
    TRY(options_init(&train, &train_command, &values, error));
    lab_read_train_words(&lab_traffic_command, study->options->arguments, study->options->n_arguments, ours,
                         &train, error);
    study->chooses_device = options_source(&train, "device") == OPTION_FROM_COMMAND;
    study->chooses_optimizer = options_source(&train, "optimizer") == OPTION_FROM_COMMAND;
    study->chooses_rate = options_source(&train, "lr") == OPTION_FROM_COMMAND;
    options_free(&train);
    return error->status;
}

/* ---- Runs */

typedef struct {
    Launcher alone, launcher;
    RunFolder folder;
    Hosts hosts;
    Launcher on_hosts;
    int n_timed; /* runs so far: each has a folder */
} Runs;

/* One of them, in words. NULL and 0: as it is by default. */
typedef struct {
    Launcher *launcher;
    int n_ranks;
    const char *out;
    int64_t n_steps, n_warmup, eval_every;
    bool prints_mesh;
} TrafficRun;

static void add_words(const char **words, int *n, const char *const *more) {
    for (; *more; more++) words[(*n)++] = *more;
}

#define ADD_WORDS(...) add_words(words, &n, (const char *const[]){__VA_ARGS__, NULL})

static Status run_words(const TrafficStudy *study, const TrafficWay *way, const TrafficRun *run,
                        ChildResult *result, const char *const **command, Error *error) {
    char number[4][24];
    const int64_t numbers[4] = {run->n_steps, run->n_warmup, run->eval_every, study->call->n_ranks};
    const char *words[MOST_WORDS];
    int n = 0;
    for (int i = 0; i < 4; i++) snprintf(number[i], sizeof number[i], "%" PRId64, numbers[i]);
    ADD_WORDS("train", "--quiet", "--seed", "1", "--threads", "1", "--compress", way->name, "--steps",
              number[0], "--dp", number[3]);
    if (way->compression.kind != COMPRESS_NONE) ADD_WORDS("--compress-warmup", number[1]);
    if (compression_is_lamb(&way->compression) && !study->chooses_optimizer) {
        ADD_WORDS("--optimizer", "lamb");
        if (!study->chooses_rate) ADD_WORDS("--lr", LAMB_RATE);
    }
    if (!study->chooses_device) ADD_WORDS("--device", "cpu");
    if (run->prints_mesh) ADD_WORDS("--print-mesh", "--json", "--ranks-per-host", "1");
    else ADD_WORDS("--no-save", "--sample-tokens", "0", "--eval-every", number[2], "--out", run->out);
    for (int i = 0; i < study->options->n_arguments && n + 1 < MOST_WORDS; i++)
        words[n++] = study->options->arguments[i];
    words[n] = NULL;
    *command = launcher_words(run->launcher, run->n_ranks, words);
    TRY(child_run(&(ChildSetup){.words = *command, .timeout_s = study->values->runs.timeout}, result, error));
    return child_check(result, *command, error);
}

/* What a step of the way sends. */
static Status count_way(const TrafficStudy *study, Runs *runs, TrafficWay *way, Error *error) {
    TrafficRun run = {.launcher = &runs->alone,
                      .n_ranks = 1,
                      .n_steps = study->call->n_steps,
                      .n_warmup = way->compression.n_warmup,
                      .prints_mesh = true};
    ChildResult result = {0};
    const char *const *command;
    json_t *line = NULL, *all = NULL, *local;
    if (run_words(study, way, &run, &result, &command, error) == STATUS_OK &&
        child_json(&result, command, &line, error) == STATUS_OK &&
        json_field_object(line, "--print-mesh", "all", &all, error) == STATUS_OK) {
        way->n_bytes = json_number_value(json_object_get(all, "busiest_bytes"));
        way->n_messages = json_number_value(json_object_get(all, "busiest_messages"));
        way->n_all_bytes = json_number_value(json_object_get(all, "bytes"));
        local = json_object_get(line, "local_all"); /* or there is none */
        way->n_local_bytes = json_number_value(json_object_get(local, "busiest_bytes"));
        way->n_local_messages = json_number_value(json_object_get(local, "busiest_messages"));
    }
    json_decref(line);
    child_free(&result);
    return error->status;
}

/* The steps that a way is known by. */
static TrafficStep step_of(const TrafficWay *way) {
    return way->compression.kind == COMPRESS_NONE ? TRAFFIC_EXACT : TRAFFIC_OWN;
}

/* What is learned, between ranks of this machine. */
static Status train_way(const TrafficStudy *study, Runs *runs, TrafficWay *way, Error *error) {
    const TrafficCall *call = study->call;
    char out[4200];
    TrafficRun run = {.launcher = &runs->launcher,
                      .n_ranks = (int)call->n_ranks,
                      .out = out,
                      .n_steps = call->n_steps,
                      .n_warmup = way->compression.n_warmup,
                      .eval_every = (call->n_steps + call->n_points - 1) / call->n_points};
    ChildResult result = {0};
    const char *const *command;
    snprintf(out, sizeof out, "%.4000s/way%d", runs->folder.path, (int)(way - study->way));
    log_note(&study->output.log, "training with --compress %s: %" PRId64 " steps on %" PRId64 " ranks",
             way->name, call->n_steps, call->n_ranks);
    if (run_words(study, way, &run, &result, &command, error) == STATUS_OK)
        curve_run_read(&way->curve, out, error);
    child_free(&result);
    way->here_ms = traffic_way_median_ms(way, step_of(way));
    return error->status;
}

/* ---- Links */

enum { N_BEFORE = 2 }; /* steps before those that are timed: an exact one, and the first compressed */

/* What left all hosts while a run was there, and what its steps were counted to send. */
typedef struct {
    double on_cables, counted;
} SentBytes;

/* A few compressed steps between the hosts: their median, and what was sent meanwhile. */
static Status run_on_hosts(const TrafficStudy *study, Runs *runs, const TrafficWay *way, int64_t n_steps,
                           double *median_ms, SentBytes *sent, Error *error) {
    const double bytes[N_TRAFFIC_STEPS] = {study->way[0].n_all_bytes, way->n_all_bytes,
                                           way->n_local_bytes * (double)study->call->n_ranks};
    char out[4200];
    TrafficRun run = {.launcher = &runs->on_hosts,
                      .n_ranks = (int)study->call->n_ranks,
                      .out = out,
                      .n_steps = n_steps,
                      .n_warmup = 1};
    TrafficWay timed = {.compression = way->compression};
    ChildResult result = {0};
    const char *const *command;
    int64_t before = 0, behind = 0;
    snprintf(out, sizeof out, "%.4000s/timed%d", runs->folder.path, runs->n_timed++);
    TRY(hosts_count_sent(&runs->hosts, &before, error));
    if (run_words(study, way, &run, &result, &command, error) == STATUS_OK &&
        curve_run_read(&timed.curve, out, error) == STATUS_OK) {
        timed.compression.n_warmup = run.n_warmup;
        sent->counted = traffic_way_cost(&timed, bytes);
        timed.compression.n_warmup = N_BEFORE; /* the first compressed one does not count */
        *median_ms = traffic_way_median_ms(&timed, step_of(way));
        curve_run_free(&timed.curve);
    }
    child_free(&result);
    if (error->status == STATUS_OK) hosts_count_sent(&runs->hosts, &behind, error);
    sent->on_cables = (double)(behind - before);
    return error->status;
}

static Status time_rate(TrafficStudy *study, Runs *runs, int r, Error *error) {
    double rate = 1e6 * (double)study->rates.values[r], unused;
    int64_t n_steps = N_BEFORE + study->call->n_timed;
    TRY(hosts_set_rate(&runs->hosts, rate, error));
    log_note(&study->output.log, "timing %s of each way between %" PRId64 " network namespaces at %s",
             format_things(study->call->n_timed, "step").text, study->call->n_ranks,
             format_rate(rate, "bit/s").text);
    for (int i = 0; i < study->n_ways; i++) {
        TrafficWay *way = &study->way[i];
        SentBytes sent = {0}, less = {0};
        TRY(run_on_hosts(study, runs, way, n_steps, &way->step_ms[r], &sent, error));
        if (r) continue;
        TRY(run_on_hosts(study, runs, way, N_BEFORE, &unused, &less, error)); /* to start and to end costs */
        /* Exact steps of 0/1 Adam, and local ones, are among them. */
        way->n_wire_bytes =
            way->n_all_bytes * (sent.on_cables - less.on_cables) / (sent.counted - less.counted);
    }
    return STATUS_OK;
}

static Status time_on_hosts(TrafficStudy *study, Runs *runs, Error *error) {
    TRY(hosts_open(&runs->hosts, (int)study->call->n_ranks, runs->folder.path, error));
    TRY(launcher_open(&runs->on_hosts, runs->hosts.launcher, error));
    for (int r = 0; r < study->rates.n; r++) TRY(time_rate(study, runs, r, error));
    return STATUS_OK;
}

static double link_ms(const TrafficStudy *study, double n_bytes, double n_messages, int r) {
    return traffic_way_link_ms(n_bytes, n_messages, 1e6 * (double)study->rates.values[r],
                               1e-6 * study->call->latency_us);
}

/* Steps of a rank by itself are too few to be timed at first, when rates are high. */
static void time_local(TrafficStudy *study) {
    for (int i = 0; i < study->n_ways * study->rates.n; i++) {
        TrafficWay *way = &study->way[i / study->rates.n];
        int r = i % study->rates.n;
        double here = traffic_way_median_ms(way, TRAFFIC_LOCAL);
        if (!isnan(here))
            way->local_ms[r] = here + link_ms(study, way->n_local_bytes, way->n_local_messages, r);
    }
}

static void time_by_model(TrafficStudy *study) {
    for (int i = 0; i < study->n_ways * study->rates.n; i++) {
        TrafficWay *way = &study->way[i / study->rates.n];
        int r = i % study->rates.n;
        way->n_wire_bytes = NAN;
        way->step_ms[r] = way->here_ms + link_ms(study, way->n_bytes, way->n_messages, r);
    }
}

static Status time_ways(TrafficStudy *study, Runs *runs, Error *error) {
    Error trouble = {0};
    int links = *study->values->runs.launcher ? LINKS_MODEL : study->call->links;
    if (links == LINKS_MODEL)
        snprintf(study->why_not, sizeof study->why_not, "%s",
                 study->call->links == LINKS_MODEL ? "--links model" : "ranks are the given launcher's");
    else study->is_measured = time_on_hosts(study, runs, &trouble) == STATUS_OK;
    if (interrupt_was_signalled()) return error_failed(error, "interrupted");
    if (!study->is_measured && links == LINKS_NAMESPACES) return error_failed(error, "%s", trouble.text);
    if (!study->is_measured && links == LINKS_AUTO) {
        snprintf(study->why_not, sizeof study->why_not, "%s", trouble.text);
        log_note(&study->output.log, "links are modelled, not measured: %s", study->why_not);
    }
    if (!study->is_measured) time_by_model(study);
    time_local(study);
    for (int i = 0; i < study->n_ways; i++)
        memcpy(study->way[i].exact_step_ms, study->way[0].step_ms, sizeof study->way[0].step_ms);
    return STATUS_OK;
}

/* ---- All of it */

static Status run_all(TrafficStudy *study, Runs *runs, Error *error) {
    for (int i = 0; i < study->n_ways; i++) TRY(count_way(study, runs, &study->way[i], error));
    for (int i = 0; i < study->n_ways; i++) TRY(train_way(study, runs, &study->way[i], error));
    return time_ways(study, runs, error);
}

static Status run_study(TrafficStudy *study, const Launch *launch, Error *error) {
    Runs runs = {0};
    TRY(read_call(study, error));
    TRY(launcher_open_alone(&runs.alone, error));
    if (lab_open_launcher(launch, study->options, &study->values->runs, &runs.launcher, error) == STATUS_OK &&
        run_folder_make(&runs.folder, study->output.folder, error) == STATUS_OK) {
        interrupt_watch();
        run_all(study, &runs, error);
        interrupt_ignore();
    }
    launcher_close(&runs.on_hosts);
    hosts_close(&runs.hosts);
    run_folder_remove(&runs.folder);
    launcher_close(&runs.launcher);
    launcher_close(&runs.alone);
    if (error->status != STATUS_OK) return error->status;
    traffic_print(study);
    fflush(stdout);
    TRY(traffic_draw(study, error));
    return study->values->lab.json ? lab_print_json(traffic_json(study), error) : STATUS_OK;
}

Status lab_traffic(Launch *launch, int n_words, char *const *words, Error *error) {
    static const LabDefault quick[] = {
        {"ways", "1bit-adam,int8"}, {"ranks", "2"},       {"steps", "40"}, {"points", "5"},
        {"rates", "100"},           {"timed-steps", "4"}, {NULL, NULL}};
    TrafficCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_traffic_command,
                               "starts its own ranks; run it without mpirun", &values, n_words, words,
                               &goes_on, error));
    if (goes_on && lab_apply_quick(&options, &values.runs, quick, error) == STATUS_OK) {
        TrafficStudy *study = calloc(1, sizeof *study);
        if (!study) error_failed(error, "no memory for the study");
        else {
            study->call = &values.call;
            study->values = &values;
            study->options = &options;
            study->output = lab_output(launch, &options, &values.lab, n_words, words);
            if (lab_check_folder(launch, &study->output, error) == STATUS_OK) run_study(study, launch, error);
            for (int i = 0; i < study->n_ways; i++) curve_run_free(&study->way[i].curve);
        }
        free(study);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
