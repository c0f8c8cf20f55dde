/* pgpt lab staleness: what is lost when those who train do not wait for each other, or are gone. Three parts:
 * ranks under every --sync of pgpt train, with one that is late (lab_staleness_schemes.c); threads that write
 * the same weights without locks (lab_staleness_hogwild.c); nodes that fail, with data that lies in several
 * places (lab_staleness_overlap.c). What is wrong in the options of any of them is found before the first
 * one runs. */
#include "cli/lab/staleness/lab_staleness.h"

#include "base/text/plain.h"

#include <stdio.h>
#include <string.h>

static const OptionSpec specs[] = {
    OPTION_STRING("parts", StalenessCall, parts, "schemes,hogwild,overlap", "LIST",
                  "which of the three to run, in this order"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", StalenessCommand, call, specs),
    OPTION_GROUP("Schemes: ranks under every --sync", StalenessCommand, schemes, staleness_schemes_specs),
    OPTION_GROUP("Hogwild: threads without locks", StalenessCommand, hogwild, staleness_hogwild_specs),
    OPTION_GROUP("Overlap: nodes that fail", StalenessCommand, overlap, staleness_overlap_specs),
    OPTION_GROUP("Runs", StalenessCommand, runs, lab_run_specs),
    OPTION_GROUP("Output", StalenessCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    LAB_TRAIN_WORDS(" for the schemes; without any: --model nano --sequence 32"),
    {.name = NULL},
};

static const char *const examples[] = {
    "all of it: schemes with another rank 50 ms late in each step, Hogwild, overlapping shares",
    "pgpt lab staleness",
    "the schemes with the ranks of this launch, of which the last is always late",
    "mpirun -n 4 pgpt lab staleness --parts schemes --delay-rank 3 --delay-ms 100 -- --model nano",
    "how much staleness costs",
    "pgpt lab staleness --parts schemes --schemes exact,server --staleness 32 --delay-ms 0",
    "lost updates of up to 8 threads",
    "pgpt lab staleness --parts hogwild --threads 1,2,4,8",
    "16 nodes of which 3 fail, each share at up to 3 neighbours",
    "pgpt lab staleness --parts overlap --nodes 16 --lose 3 --overlap 0,1,2,3",
    NULL,
};

const OptionCommand lab_staleness_command = {
    .name = "lab staleness",
    .summary = "what not waiting costs: async schemes with a late rank, Hogwild, nodes that fail",
    .description =
        "Schemes: trains the same model on the same data under every --sync of pgpt train and compares the losses after the same "
        "time and the same number of steps. One rank is late in each step, since that is what the async schemes are for.\n\n"
        "Hogwild: threads of one process update shared weights without locks, on a sparse and a dense problem, beside locked and "
        "atomic updates and one thread: loss, speed, and how many updates were lost, counted exactly.\n\n"
        "Overlap: nodes fail and take their share of the data with them, unless it lies also at their neighbours; the loss after "
        "that, simulated in one process.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

static const LabDefault quick[] = {
    {"steps", "24"},          {"points", "100000"}, {"epochs", "8"}, {"rounds", "3"},
    {"overlap-steps", "400"}, {"draws", "6"},       {NULL, NULL},
};

static const struct {
    const char *name;
    Status (*check)(const StalenessStudy *study, Error *error);
    Status (*run)(const StalenessStudy *study, Error *error);
} parts[] = {
    {"schemes", staleness_schemes_check, staleness_schemes},
    {"hogwild", staleness_hogwild_check, staleness_hogwild},
    {"overlap", staleness_overlap_check, staleness_overlap},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static Status read_parts(const StalenessStudy *study, bool *is_wanted, Error *error) {
    const char *text = study->values->call.parts;
    for (const char *next = text;; next++) {
        size_t length = strcspn(next, ",");
        int i = 0;
        while (i < N_PARTS && (strlen(parts[i].name) != length || strncmp(next, parts[i].name, length) != 0))
            i++;
        if (i == N_PARTS)
            return error_user(error, "--parts '%s': '%s' is none of schemes, hogwild and overlap",
                              plain_value(text).text, plain_value_of(next, length).text);
        if (is_wanted[i])
            return error_user(error, "--parts '%s' has %s twice; leave one out", plain_value(text).text,
                              parts[i].name);
        is_wanted[i] = true;
        next += length;
        if (!*next) return STATUS_OK;
    }
}

static Status check(const StalenessStudy *study, bool *is_wanted, Error *error) {
    TRY(read_parts(study, is_wanted, error));
    if (!is_wanted[0] && study->options->n_arguments)
        return error_user(
            error,
            "only the part 'schemes' trains; leave out what stands behind '--', or give it in --parts");
    for (int i = 0; i < N_PARTS; i++)
        if (is_wanted[i]) TRY(parts[i].check(study, error));
    return lab_check_folder(study->launch, study->output, error);
}

static Status run(StalenessStudy *study, Error *error) {
    bool is_wanted[N_PARTS] = {false};
    check(study, is_wanted, error);
    TRY(launch_agree(study->launch, error));
    study->json = json_object();
    json_object_set_new(study->json, "command", json_string("lab staleness"));
    for (int i = 0; i < N_PARTS && error->status == STATUS_OK; i++) {
        if (!is_wanted[i]) continue;
        parts[i].run(study, error);
        fflush(stdout);
        launch_agree(study->launch, error);
    }
    json_object_set_new(study->json, "out", json_make_text(study->output->folder));
    bool is_shown = error->status == STATUS_OK && study->launch->is_root && study->values->lab.json;
    if (is_shown) return lab_print_json(study->json, error);
    json_decref(study->json);
    return error->status;
}

Status lab_staleness(Launch *launch, int n_words, char *const *words, Error *error) {
    StalenessCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options(launch, &options, &lab_staleness_command, &values, n_words, words, &goes_on, error));
    if (goes_on) {
        LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
        StalenessStudy study = {.values = &values,
                                .output = &output,
                                .launch = launch,
                                .options = &options,
                                .arena = &options.arena};
        lab_apply_quick(&options, &values.runs, quick, error);
        run(&study, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
