/* pgpt lab: the studies, one file each, and what they share.
 *
 * A study NAME is an OptionCommand lab_NAME_command, whose name is "lab NAME", and a function lab_NAME, both
 * in src/cli/lab/lab_NAME.c; what it computes is in src/lab/. It becomes part of the program by its
 * declaration below and by its line in `studies` of command_lab.c: {"NAME", &lab_NAME_command, lab_NAME}. The
 * line makes the dispatch, the list that `pgpt lab` shows and its part of the manual page.
 *
 * The function is called by all ranks under mpirun, and by the only process without, with the words behind
 * the name:
 *
 *     typedef struct { LinearOptions linear; LabOptions lab; } LinearCommand;
 *     static const OptionGroup groups[] = {OPTION_GROUP("Study", LinearCommand, linear, linear_specs),
 *                                          OPTION_GROUP("Output", LinearCommand, lab, lab_option_specs),
 *                                          OPTION_GROUP_END};
 *     const OptionCommand lab_linear_command = {.name = "lab linear", .summary = "...",
 *                                               .groups = groups, .no_config = true};
 *
 *     Status lab_linear(Launch *launch, int n_words, char *const *words, Error *error) {
 *         LinearCommand values;
 *         Options options;
 *         bool goes_on;
 *         TRY(lab_read_options(launch, &options, &lab_linear_command, &values, n_words, words, &goes_on,
 *                              error));
 *         if (goes_on) {
 *             LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
 *             ... measure; errors that all ranks know: launch_agree(launch, error) ...
 *             ... on the root: print the table, lab_draw(&output, &plot, "linear", error),
 *             ... and last, if values.lab.json: lab_print_json(object, error) ...
 *         }
 *         options_free(&options);
 *         return error->status;
 *     } */
#ifndef PGPT_CLI_LAB_LAB_H
#define PGPT_CLI_LAB_LAB_H

#include "base/text/json.h"
#include "cli/commands.h"
#include "lab/launch/launcher.h"
#include "lab/picture/plot.h"

extern const OptionCommand lab_attention_command, lab_collectives_command, lab_experts_command,
    lab_flops_command, lab_linear_command, lab_network_command, lab_offload_command, lab_pipeline_command,
    lab_scaling_command, lab_staleness_command, lab_table_command, lab_timeline_command, lab_traffic_command;

Status lab_attention(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_collectives(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_experts(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_flops(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_linear(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_network(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_offload(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_pipeline(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_scaling(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_staleness(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_table(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_timeline(Launch *launch, int n_words, char *const *words, Error *error);
Status lab_traffic(Launch *launch, int n_words, char *const *words, Error *error);

/* ---- What every study has (lab_common.c) */

typedef struct {
    const char *out, *note;
    bool json, quiet;
} LabOptions;

extern const OptionSpec lab_option_specs[]; /* --out, --note, --json, --quiet */

/* Reads the options, checks those that all studies have, and agrees on them with the other ranks. *goes_on is
 * false if there is no more to do: help was asked for and shown. After STATUS_OK the caller frees `options`;
 * after an error it need not. Collective. */
Status lab_read_options(Launch *launch, Options *options, const OptionCommand *command, void *values,
                        int n_words, char *const *words, bool *goes_on, Error *error);

/* The same for a study of one process: under mpirun it is refused, for `why`: "measures in one process; run
 * it without mpirun". */
Status lab_read_options_alone(Launch *launch, Options *options, const OptionCommand *command, const char *why,
                              void *values, int n_words, char *const *words, bool *goes_on, Error *error);

/* Where a study's results go, and what to write below its pictures. */
typedef struct {
    const char *folder;
    const char
        *caption; /* "mpirun -n 4 pgpt lab linear --epochs 300", as it was typed; from the options' arena */
    const char *note; /* what the user has to say about it; "": nothing */
    Log log;
} LabOutput;

LabOutput lab_output(const Launch *launch, Options *options, const LabOptions *lab, int n_words,
                     char *const *words);

/* Can anything be written there? To be asked before hours are spent on what would then be lost; leaves
 * nothing behind. Only the root looks, so agree afterwards. */
Status lab_check_folder(const Launch *launch, const LabOutput *output, Error *error);

/* plot_write into the folder, with caption and note if the plot has none of its own, and a line about where
 * picture and data are, or of how to draw it. On the root only. */
Status lab_draw(const LabOutput *output, const Plot *plot, const char *name, Error *error);

/* One line on stdout, flushed; the reference is taken over. On the root only. */
Status lab_print_json(json_t *object, Error *error);

/* ---- Studies that start runs of pgpt train (lab_runs.c)
 *
 *     typedef struct { ScalingCall call; LabRunOptions runs; LabOptions lab; } ScalingCommand;
 *     static const OptionGroup groups[] = {OPTION_GROUP("Study", ScalingCommand, call, specs),
 *                                          OPTION_GROUP("Runs", ScalingCommand, runs, lab_run_specs), ...};
 *     static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --model nano"), {.name = NULL}};
 *     static const LabDefault quick[] = {{"steps", "4"}, {"repeats", "1"}, {NULL, NULL}};
 *     ... after lab_read_options: lab_apply_quick(&options, &values.runs, quick, error) ...
 *     ... lab_open_launcher(launch, &options, &values.runs, &launcher, error) ... launcher_close ... */

typedef struct {
    bool quick;
    const char *launcher;
    double timeout;
} LabRunOptions;

extern const OptionSpec lab_run_specs[]; /* --quick, --launcher, --timeout */

/* The words behind "--"; `more` goes on where "options of pgpt train" ends. */
#define LAB_TRAIN_WORDS(more)                                                                                \
    {                                                                                                        \
        .name = "WORDS", .help = "behind '--': options of pgpt train" more, .optional = true,                \
        .repeated = true, .behind_dashes = true                                                              \
    }

typedef struct {
    const char *name, *value; /* as on a command line, without dashes */
} LabDefault;

/* These instead of the defaults (up to a name of NULL), the second only with --quick; what was given on the
 * command line stays. */
Status lab_apply_defaults(Options *options, const LabDefault *defaults, Error *error);
Status lab_apply_quick(Options *options, const LabRunOptions *runs, const LabDefault *defaults, Error *error);

/* For ranks that the study starts itself. Under mpirun there are ranks already: then nothing is opened, and a
 * --launcher is refused. */
Status lab_open_launcher(const Launch *launch, const Options *options, const LabRunOptions *runs,
                         Launcher *launcher, Error *error);

/* ---- Words for pgpt train, behind '--' (lab_common.c) */

/* Reads them as pgpt train would, into `train`, which is made for it. Refused are --help and `ours` (NULL at
 * the end): what the study sets itself. The words stay the caller's. */
Status lab_read_train_words(const OptionCommand *study, const char *const *words, int n_words,
                            const char *const *ours, Options *train, Error *error);

/* ---- Lists of numbers, "1,2,4" (lab_common.c) */

enum { LAB_LIST_MAX = 32 };

typedef struct {
    int64_t values[LAB_LIST_MAX];
    int n;
} LabList;

/* `option` is for the message: "--ranks 'a,b': 'a' is not a whole number between 1 and 4096; write them as in
 * 1,2,4". With `is_bytes`, a number may be followed by K, M or G (1024s; KiB, MiB, GiB too). Rising or not,
 * but none twice. */
Status lab_read_list(const char *option, const char *text, int64_t min, int64_t max, bool is_bytes,
                     LabList *list, Error *error);

/* ---- For --help and the manual (command_lab.c) */

/* The description of the study that the words behind "lab" name, or lab's own. */
const OptionCommand *lab_description(int n_words, char *const *words);

/* One after the other, from 0 on; NULL after the last. */
const OptionCommand *lab_study(int index);

#endif
