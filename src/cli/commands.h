/* The subcommands: each is a table that describes its options and a function that runs it with the words
 * after its name. The function's status is the program's exit code.
 *
 * A command that takes a Launch can be one of many ranks: all of them call it. What goes wrong while it
 * prepares it passes through launch_agree, on all ranks at the same points; an error that it returns without
 * having agreed ends the job. Only the root writes to stdout. The other commands run in one
 * process. */
#ifndef PGPT_CLI_COMMANDS_H
#define PGPT_CLI_COMMANDS_H

#include "base/options/options.h"
#include "base/options/options_text.h"
#include "parallel/launch/launch.h"

extern const OptionCommand verify_command, generate_command, eval_command, convert_command, bench_command,
    data_command, lab_command, plot_command, supervise_command;

Status command_train(Launch *launch, int n_words, char *const *words, Error *error);
Status command_plan(Launch *launch, int n_words, char *const *words, Error *error);
Status command_verify(Launch *launch, int n_words, char *const *words, Error *error);
Status command_generate(Launch *launch, int n_words, char *const *words, Error *error);
Status command_eval(Launch *launch, int n_words, char *const *words, Error *error);
Status command_plot(int n_words, char *const *words, Error *error);
Status command_convert(int n_words, char *const *words, Error *error);
Status command_data(int n_words, char *const *words, Error *error);
Status command_lab(Launch *launch, int n_words, char *const *words, Error *error);
Status command_supervise(int n_words, char *const *words, Error *error);
Status command_bench(Launch *launch, int n_words, char *const *words, Error *error);

/* The page that --help and the manual are made from. */
extern const ManPage manual_page;

/* Show a command's --help on stdout. */
void command_show_help(const OptionCommand *command);

#endif
