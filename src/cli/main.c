/* pgpt: finds the subcommand, runs it, says what went wrong. Everything else is in the library. */
#include "cli/commands.h"

#include "base/format.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/version.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const OptionCommand *description;
    Status (*run)(int n_words, char *const *words, Error *error);
} Command;

static const Command commands[] = {
    {&train_command, command_train}, {&generate_command, command_generate},
    {&eval_command, command_eval},   {&convert_command, command_convert},
    {&data_command, command_data},   {&bench_command, command_bench},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const OptionCommand *const descriptions[] = {
    &train_command, &generate_command, &eval_command, &convert_command, &data_command, &bench_command, NULL};

static const ManSection sections[] = {
    {"CONFIGURATION FILES",
     "A word that ends in .ini names a file of 'key = value' lines with the same keys as the options. Options on the "
     "command line win over the file, the file over a preset, a preset over the defaults. Every run writes its full "
     "configuration to config.ini in its folder; passing that file back repeats the run."},
    {"EXIT STATUS",
     "0: done. 1: something failed, or a check did not hold. 2: the user's mistake; the message says what to do instead."},
    {NULL, NULL},
};

const ManPage manual_page = {
    .program = "pgpt",
    .version = PGPT_VERSION,
    .date = "",
    .summary = "train, fine-tune and run GPT models",
    .description =
        "pgpt trains GPT models and generates text with them. A training step is a program that is recorded "
        "once, planned, and replayed; 'pgpt train --print-program' shows it.",
    .commands = descriptions,
    .sections = sections,
};

void command_show_help(const OptionCommand *command) {
    options_write_help(stdout, "pgpt", command, terminal_columns(stdout));
}

static Status run_command(int n_words, char *const *words, Error *error) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(words[0], commands[i].description->name) == 0) {
            return commands[i].run(n_words - 1, words + 1, error);
        }
    }
    const char *names[N_COMMANDS + 1] = {NULL};
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].description->name;
    const char *nearest = format_nearest(words[0], names);
    return error_user(error, "unknown command '%s'; %s%s%s'pgpt --help' lists the commands", words[0],
                      nearest ? "did you mean '" : "", nearest ? nearest : "", nearest ? "'? " : "");
}

/* Threads that wait for others spin before they sleep. GNU's OpenMP spins for milliseconds, which costs nothing on an idle
 * machine and most of the speed on a busy one: the spinning thread holds the core that the late one needs. It reads its
 * settings before main(), so the program starts itself once more with a short spin, unless the user has chosen. */
static void shorten_spinning(char *const *argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "2000", 1) == 0)
        execv("/proc/self/exe", argv); /* if it fails, all is as before */
}

int main(int argc, char **argv) {
    shorten_spinning(argv);
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_DFL);
    Error error = {0};
    const char *word = argc > 1 ? argv[1] : "--help";
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        options_write_overview(stdout, &manual_page, terminal_columns(stdout));
    } else if (strcmp(word, "--version") == 0) {
        printf("pgpt %s\n", PGPT_VERSION);
    } else if (strcmp(word, "man") == 0) {
        options_write_man(stdout, &manual_page);
    } else {
        run_command(argc - 1, argv + 1, &error);
    }
    Log logger = log_make(false);
    if (error.status == STATUS_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        error_failed(&error, "cannot write to standard output");
    }
    return (int)log_error(&logger, &error);
}
