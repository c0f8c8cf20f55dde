/* pgpt lab network: one training step is measured here on one rank; what it would take on several hosts is
 * modelled for networks from slow to fast, and where this machine permits network namespaces, measured. */
#include "cli/lab/lab_network.h"

#include "base/text/format.h"
#include "job/train_run.h"
#include "lab/launch/launcher.h"
#include "lab/scaling.h"
#include "run/interrupt.h"

#include <stdlib.h>

enum { RING = 3 }; /* of comm_algorithm_names */

static const char *const algorithm_names[] = {"naive", "server", "tree", "ring", "halving", NULL};

static const OptionSpec specs[] = {
    OPTION_STRING("rates", NetworkCall, rates, "100,300,1000,3000,10000,30000,100000", "LIST",
                  "bandwidths of a link to model, in Mbit/s"),
    OPTION_INT("links", NetworkCall, n_links, 4, 1, NETWORK_MAX_LINKS,
               "from 1 to so many links side by side between each host and the others"),
    OPTION_STRING("latencies", NetworkCall, latencies, "10,100,1000,10000", "LIST",
                  "latencies of a message to model, in microseconds, with one link"),
    OPTION_FLOAT("latency-us", NetworkCall, latency_us, 50.0, 0.0, 1e7,
                 "latency of a message where only the bandwidth changes"),
    OPTION_FLOAT("overhead-us", NetworkCall, overhead_us, 5.0, 0.0, 1e6,
                 "the part of a latency that is work: it is there for each message anew"),
    OPTION_INT("hosts", NetworkCall, n_hosts, 2, 2, 256, "hosts, of one rank each"),
    OPTION_CHOICE("allreduce", NetworkCall, all_reduce, RING, algorithm_names,
                  "how the gradients are summed"),
    OPTION_FLOAT("bucket-mb", NetworkCall, bucket_mb, 0.5, 0.0, 1e6,
                 "gradient bucket size in MiB: what is summed at once, as soon as backward has made it"),
    OPTION_INT("steps", NetworkCall, n_steps, 10, 1, 10000, "steps to measure, after two that do not count"),
    OPTION_FLOAT("compute-ms", NetworkCall, compute_ms, 0.0, 0.0, 1e7,
                 "computation of a step, instead of measuring one here; with --parameters"),
    OPTION_INT("parameters", NetworkCall, n_parameters, 0, 0, INT64_C(1) << 40,
               "of that model, which has 4 bytes of gradients for each"),
    OPTION_STRING("measured", NetworkCall, measured, "100,1000", "LIST",
                  "bandwidths to measure between two network namespaces, in Mbit/s, at most four; '': none",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_BOOL("quick", NetworkCall, is_quick, false, "three steps of the training run: less than a minute"),
    OPTION_FLOAT("timeout", NetworkCall, timeout, 3600.0, 1.0, 1e7,
                 "seconds after which the training run is ended"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", NetworkCommand, call, specs),
    OPTION_GROUP("Output", NetworkCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --model nano --batch 8"),
                                               {.name = NULL}};

static const char *const examples[] = {
    "the default model on two hosts, 100 Mbit/s to 100 Gbit/s",
    "pgpt lab network",
    "eight hosts, another model",
    "pgpt lab network --hosts 8 -- --model mini --batch 4",
    "a model that is not here: 1.3 billion parameters, two seconds of computation",
    "pgpt lab network --hosts 64 --parameters 1300000000 --compute-ms 2000 --bucket-mb 25",
    NULL,
};

const OptionCommand lab_network_command = {
    .name = "lab network",
    .summary = "bandwidth and latency swept: step time, efficiency, and where the network begins to decide",
    .description =
        "Measures one training step on one rank (behind '--' stand options of pgpt train) and models what it takes on several "
        "hosts: the messages of the all-reduce are replayed on links of 100 Mbit/s to 100 Gbit/s, one to four side by side, and for "
        "several latencies, with messages after the backward pass (blocking) and behind it (overlapped). Says at which bandwidth "
        "communication takes as long as computation. Few large messages are compared with many small ones. Where network "
        "namespaces are permitted (root, ip, tc), two of them are joined by links of the --measured bandwidths, and steps and "
        "messages are measured between them; they are gone afterwards.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

Network network_of(const NetworkStudy *study, int n_links, double latency_us, double rate_mbit) {
    return (Network){.n_hosts = (int)study->call->n_hosts,
                     .n_links = n_links,
                     .rate = 1e6 * rate_mbit,
                     .latency_s = 1e-6 * latency_us,
                     .overhead_s = 1e-6 * study->call->overhead_us};
}

/* ---- The step */

/* One rank of one thread, as each host would have it. */
static Status measure_step(NetworkStudy *study, const Options *options, Error *error) {
    enum { QUICK_STEPS = 3 };
    const NetworkCall *call = study->call;
    static const char *const DEFAULT_WORDS[] = {"--model", "nano", NULL};
    const char **words = calloc((size_t)options->n_arguments + 1, sizeof *words);
    Launcher launcher;
    if (!words) return error_failed(error, "no memory for the words behind '--'");
    for (int i = 0; i < options->n_arguments; i++) words[i] = options->arguments[i];
    ScalingRuns runs = {.launcher = &launcher,
                        .folder = study->output.folder,
                        .arguments = words[0] ? words : DEFAULT_WORDS,
                        .n_warm_up = 2,
                        .n_steps = call->is_quick ? QUICK_STEPS : call->n_steps,
                        .timeout_s = call->timeout};
    ScalingPoint point = {.n_ranks = 1, .n_threads = 1, .batch = study->batch};
    TRY_GOTO(launcher_open_alone(&launcher, error), done);
    log_note(&study->output.log, "measuring a training step");
    interrupt_watch();
    scaling_run(&runs, &point, error);
    interrupt_ignore();
    launcher_close(&launcher);
    study->step.forward_s = 1e-3 * point.forward_ms;
    study->step.backward_s = 1e-3 * point.backward_ms;
    study->step.update_s = 1e-3 * point.update_ms;
    study->step.gradient_bytes = 4 * point.n_parameters;
done:
    free(words);
    return error->status;
}

/* A third of the time forward, two thirds backward. */
static void take_given_step(NetworkStudy *study) {
    double compute = 1e-3 * study->call->compute_ms;
    study->step.forward_s = compute / 3;
    study->step.backward_s = 2 * compute / 3;
    study->step.gradient_bytes = 4 * study->call->n_parameters;
    study->step_is_given = true;
}

/* ---- Model and measurement */

static Status model(NetworkStudy *study, Error *error) {
    const NetworkCall *call = study->call;
    for (int links = 1; links <= call->n_links; links++) {
        for (int i = 0; i < study->rates.n; i++) {
            Network network = network_of(study, links, call->latency_us, (double)study->rates.values[i]);
            TRY(network_times(&network, study->algorithm, &study->step, &study->times[links - 1][i], error));
        }
        Network network = network_of(study, links, call->latency_us, 1);
        TRY(network_crossover(&network, study->algorithm, &study->step, &study->crossover[links - 1], error));
    }
    for (int k = 0; k < study->latencies.n; k++) {
        double latency_us = (double)study->latencies.values[k];
        for (int i = 0; i < study->rates.n; i++) {
            Network network = network_of(study, 1, latency_us, (double)study->rates.values[i]);
            TRY(network_times(&network, study->algorithm, &study->step, &study->late[k][i], error));
        }
        Network network = network_of(study, 1, latency_us, 1);
        TRY(network_crossover(&network, study->algorithm, &study->step, &study->late_crossover[k], error));
    }
    return STATUS_OK;
}

/* What cannot be measured is said, and no reason to lose the rest. */
static Status measure(NetworkStudy *study, Error *error) {
    interrupt_watch();
    for (int i = 0; i < study->measured_rates.n; i++) {
        Error trouble = {0};
        double rate = 1e6 * (double)study->measured_rates.values[i];
        log_note(&study->output.log, "measuring between two network namespaces at %s",
                 format_rate(rate, "bit/s").text);
        if (namespaces_measure(rate, &study->step, &study->measured[study->n_measured], &trouble) ==
            STATUS_OK) {
            study->n_measured++;
            continue;
        }
        if (interrupt_was_signalled()) {
            error_failed(error, "interrupted");
            break;
        }
        snprintf(study->why_not, sizeof study->why_not, "%s", trouble.text);
        log_note(&study->output.log, "not measured, only modelled: %s", study->why_not);
        break;
    }
    interrupt_ignore();
    return error->status;
}

/* ---- All of it */

static Status read_call(NetworkStudy *study, const Options *options, Error *error) {
    const NetworkCall *call = study->call;
    bool has_time = options_source(options, "compute-ms") == OPTION_FROM_COMMAND;
    bool has_parameters = options_source(options, "parameters") == OPTION_FROM_COMMAND;
    TRY(lab_read_list("--rates", call->rates, 1, 10000000, false, &study->rates, error));
    TRY(lab_read_list("--latencies", call->latencies, 0, 10000000, false, &study->latencies, error));
    if (*call->measured)
        TRY(lab_read_list("--measured", call->measured, 1, 100000, false, &study->measured_rates, error));
    if (study->measured_rates.n > NETWORK_MAX_MEASURED)
        return error_user(error, "--measured has more than %d numbers; give fewer", NETWORK_MAX_MEASURED);
    if (has_time != has_parameters)
        return error_user(error,
                          "--compute-ms and --parameters describe a step together; give the other too");
    if (has_time && (call->compute_ms <= 0 || call->n_parameters < 1))
        return error_user(error, "--compute-ms and --parameters have to be above 0");
    if (has_time && options->n_arguments > 0)
        return error_user(error, "--compute-ms says what a step takes, so there is nothing to train behind "
                                 "'--'; leave one of the two out");
    if (has_time) take_given_step(study);
    study->step.bucket_bytes = (int64_t)(call->bucket_mb * 1048576.0);
    study->algorithm = comm_algorithm(call->all_reduce);
    return STATUS_OK;
}

static Status read_train_words(NetworkStudy *study, const Options *options, Error *error) {
    enum { BATCH = 8 };
    static const char *const ours[] = {
        "steps",         "epochs",     "threads",       "out",        "resume",       "json", "quiet",
        "print-program", "print-mesh", "sample-tokens", "eval-every", "eval-batches", NULL};
    TrainCommand train;
    Options train_options;
    TRY(options_init(&train_options, &train_command, &train, error));
    lab_read_train_words(&lab_network_command, options->arguments, options->n_arguments, ours, &train_options,
                         error);
    bool has_batch = options_source(&train_options, "batch") == OPTION_FROM_COMMAND;
    study->batch = has_batch ? train.train.batch : BATCH;
    options_free(&train_options);
    return error->status;
}

static Status run_study(NetworkStudy *study, const NetworkCommand *values, const Options *options,
                        Error *error) {
    TRY(read_call(study, options, error));
    TRY(read_train_words(study, options, error));
    if (!study->step_is_given) TRY(measure_step(study, options, error));
    TRY(model(study, error));
    TRY(measure(study, error));
    network_print(study);
    fflush(stdout);
    TRY(network_draw(study, error));
    return values->lab.json ? lab_print_json(network_json(study), error) : STATUS_OK;
}

Status lab_network(Launch *launch, int n_words, char *const *words, Error *error) {
    NetworkCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(
        launch, &options, &lab_network_command,
        "models several hosts from one rank; run it without mpirun, and use 'lab collectives' to measure between the ranks that are there",
        &values, n_words, words, &goes_on, error));
    if (goes_on) {
        NetworkStudy *study = calloc(1, sizeof *study);
        if (!study) error_failed(error, "no memory for the study");
        else {
            study->call = &values.call;
            study->output = lab_output(launch, &options, &values.lab, n_words, words);
            if (lab_check_folder(launch, &study->output, error) == STATUS_OK)
                run_study(study, &values, &options, error);
        }
        free(study);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
