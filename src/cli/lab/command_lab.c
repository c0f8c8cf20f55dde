/* pgpt lab: finds the study by its name and hands it the words behind. Each study has options of its own, so
 * each is a command of its own, "lab NAME"; this one only lists them. */
#include "cli/lab/lab.h"

#include "base/text/format.h"
#include "base/text/plain.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    const OptionCommand *description;
    Status (*run)(Launch *launch, int n_words, char *const *words, Error *error);
} Study;

/* In the order in which they are listed and stand in the manual. A new one is a line here (see lab.h). */
static const Study studies[] = {
    {"linear", &lab_linear_command, lab_linear},
    {"collectives", &lab_collectives_command, lab_collectives},
    {"network", &lab_network_command, lab_network},
    {"scaling", &lab_scaling_command, lab_scaling},
    {"timeline", &lab_timeline_command, lab_timeline},
    {"pipeline", &lab_pipeline_command, lab_pipeline},
    {"table", &lab_table_command, lab_table},
    {"staleness", &lab_staleness_command, lab_staleness},
    {"flops", &lab_flops_command, lab_flops},
    {"attention", &lab_attention_command, lab_attention},
    {"experts", &lab_experts_command, lab_experts},
    {"traffic", &lab_traffic_command, lab_traffic},
    {"offload", &lab_offload_command, lab_offload},
    {NULL, NULL, NULL},
};
enum { N_STUDIES = sizeof studies / sizeof studies[0] - 1 };

static const OptionPositional positionals[] = {
    {.name = "STUDY", .help = "which one; without it they are listed", .optional = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "see which studies there are", "pgpt lab", "see what one of them can be told",
    "pgpt lab scaling --help",     NULL,
};

const OptionCommand lab_command = {
    .name = "lab",
    .summary = "studies of parallel training: a table, a picture and the data, one command each",
    .description =
        "Every study prints a table, writes its data as NAME.dat and draws NAME.svg and NAME.png with gnuplot (where there is "
        "none, it says how to draw them later). All take --out FOLDER, --note TEXT, --json and --quiet.",
    .usage = "STUDY [--key value]...",
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

static const Study *find_study(const char *name) {
    for (const Study *study = studies; study->name; study++)
        if (strcmp(name, study->name) == 0) return study;
    return NULL;
}

const OptionCommand *lab_description(int n_words, char *const *words) {
    const Study *study = n_words > 0 ? find_study(words[0]) : NULL;
    return study ? study->description : &lab_command;
}

const OptionCommand *lab_study(int index) {
    return index >= 0 && index < N_STUDIES ? studies[index].description : NULL;
}

static void list_studies(void) {
    printf("Studies:\n");
    for (const Study *study = studies; study->name; study++)
        printf("  pgpt lab %-12s %s\n", study->name, study->description->summary);
    printf("\n'pgpt lab STUDY --help' shows the options of a study.\n");
}

static Status unknown_study(const char *word, Error *error) {
    if (*word == '-')
        return error_user(error, "pgpt lab wants STUDY before %s; 'pgpt lab' lists them",
                          plain_value(word).text);
    const char *names[N_STUDIES + 1] = {NULL};
    for (int i = 0; i < N_STUDIES; i++) names[i] = studies[i].name;
    return error_user(error, "there is no study '%s'; %s'pgpt lab' lists them", plain_value(word).text,
                      format_did_you_mean(word, names).text);
}

Status command_lab(Launch *launch, int n_words, char *const *words, Error *error) {
    const char *word = n_words > 0 ? words[0] : "";
    bool is_help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
    TRY(launch_check_same(launch, "study", word, error));
    if (!*word || is_help) {
        if (launch->is_root && is_help) command_show_help(&lab_command);
        else if (launch->is_root) list_studies();
        return STATUS_OK;
    }
    const Study *study = find_study(word);
    if (!study) unknown_study(word, error);
    if (launch_agree(launch, error) != STATUS_OK || !study) return error->status;
    return study->run(launch, n_words - 1, words + 1, error);
}
