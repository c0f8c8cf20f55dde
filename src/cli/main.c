/* pgpt: finds the subcommand, runs it, says what went wrong. Everything else is in the library.
 *
 * Under mpirun or srun all ranks come through here. They are brought together before anything that can fail,
 * so that a mistake which all of them make is printed once. A command that runs on many ranks agrees with the
 * others (launch_agree) on what went wrong while it prepares; an error that they have not agreed upon is one
 * rank's alone, the others may be waiting for it in the middle of something, and nothing but ending the job
 * reaches them. */
#include "cli/commands.h"

#include "base/text/format.h"
#include "base/text/json.h"
#include "base/text/log.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"
#include "base/version.h"
#include "cli/lab/lab.h"
#include "job/plan_run.h"
#include "train/options.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Has one of the two functions. */
typedef struct {
    const OptionCommand *description;
    Status (*run)(int n_words, char *const *words, Error *error);
    Status (*run_parallel)(Launch *launch, int n_words, char *const *words, Error *error);
    const OptionCommand *(*describe)(int n_words,
                                     char *const *words); /* what --help shows, if not the description */
} Command;

static const Command commands[] = {
    {&train_command, .run_parallel = command_train},
    {&plan_command, .run_parallel = command_plan},
    {&verify_command, .run_parallel = command_verify},
    {&generate_command, .run_parallel = command_generate},
    {&eval_command, .run_parallel = command_eval},
    {&plot_command, .run = command_plot},
    {&convert_command, .run = command_convert},
    {&data_command, .run = command_data},
    {&bench_command, .run_parallel = command_bench},
    {&supervise_command, .run = command_supervise},
    {&lab_command, .run_parallel = command_lab, .describe = lab_description},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const OptionCommand *const descriptions[] = {
    &train_command, &plan_command,  &generate_command, &eval_command, &plot_command,      &convert_command,
    &data_command,  &bench_command, &verify_command,   &lab_command,  &supervise_command, NULL};

static const ManSection sections[] = {
    {"CONFIGURATION FILES",
     "A word that ends in .ini names a file of 'key = value' lines with the same keys as the options. Options on the "
     "command line win over the file, the file over a preset, a preset over the defaults. [Sections] are those of the help, "
     "for the eye. Every run writes its configuration to config.ini in its folder: what was given as 'key = value', all else "
     "as a comment '#key = value'. Passing that file back repeats the run; options behind it count as if they had been given "
     "then. With --resume, a run goes on with all of it. What the run is (its model, tokenizer, seed, optimizer and --init) "
     "cannot change; anything else can, is said, and is written to config.ini, with a line '#+' about the change."},
    {"EXIT STATUS",
     "0: done. 1: something failed, or a check did not hold. 2: the user's mistake; the message says what to do instead. "
     "With --json the last line on standard output says it too: {\"error\": \"...\", \"exit_code\": 2}."},
    {"LIBRARY",
     "libpgpt does the same for other programs: it opens models, completes and scores texts, and trains, with callbacks. "
     "Its one header, pgpt.h, describes it; pkg-config --cflags --libs pgpt says how to compile with it."},
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

static const Command *find_command(const char *name, Error *error) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i].description->name) == 0) return &commands[i];
    }
    const char *names[N_COMMANDS + 1] = {NULL};
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].description->name;
    error_user(error, "unknown command '%s'; %s'pgpt --help' lists the commands", plain_value(name).text,
               format_did_you_mean(name, names).text);
    return NULL;
}

/* Is the first option --help? Then nothing but that will happen. */
static bool is_help(int n_words, char *const *words) {
    int i = 0;
    while (i < n_words && words[i][0] != '-') i++;
    return i < n_words && (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0);
}

/* On one of several ranks. Rank 0 shows the help. */
static Status run_among_others(const Command *command, Launch *launch, int n_words, char *const *words,
                               Error *error) {
    bool wants_help = is_help(n_words, words);
    TRY(launch_check_same(launch, "--help", wants_help ? "yes" : "no", error));
    if (wants_help && !launch->is_root) return STATUS_OK;
    if (wants_help && command->run) return command->run(n_words, words, error);
    if (wants_help) {
        command_show_help(command->describe ? command->describe(n_words, words) : command->description);
        return STATUS_OK;
    }
    if (!command->run_parallel) {
        error_user(error, "pgpt %s runs in one process; start it without mpirun", command->description->name);
        return launch_agree(launch, error);
    }
    return command->run_parallel(launch, n_words, words, error);
}

static Status run_command(Launch *launch, int n_words, char *const *words, Error *error) {
    TRY(launch_check_same(launch, "command", words[0], error));
    const Command *command = find_command(words[0], error);
    TRY(launch_agree(launch, error));
    if (launch->world.size > 1) return run_among_others(command, launch, n_words - 1, words + 1, error);
    if (command->run_parallel) return command->run_parallel(launch, n_words - 1, words + 1, error);
    return command->run(n_words - 1, words + 1, error);
}

/* Threads that wait for others spin before they sleep. GNU's OpenMP spins for milliseconds, which costs
 * nothing on an idle machine and most of the speed on a busy one: the spinning thread holds the core that the
 * late one needs. It reads its settings before main(), so the program starts itself once more with a short
 * spin, unless the user has chosen. */
static void shorten_spinning(char *const *argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    char program[4096]; /* its own name, so that ps shows it */
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0 || setenv("GOMP_SPINCOUNT", "2000", 1) != 0) return;
    program[n] = '\0';
    execv(program, argv); /* if it fails, all is as before */
}

/* What is asked for without a command. */
static void write_overview(void) {
    options_write_overview(stdout, &manual_page, terminal_columns(stdout));
}

static void write_version(void) {
    printf("pgpt %s\n", PGPT_VERSION);
}

/* The studies of pgpt lab are commands of their own there. */
static void write_manual(void) {
    const OptionCommand *all[64] = {NULL};
    size_t n = 0, most = sizeof all / sizeof all[0] - 1;
    for (; descriptions[n]; n++) all[n] = descriptions[n];
    for (int i = 0; lab_study(i) && n < most; i++) all[n++] = lab_study(i);
    ManPage page = manual_page;
    page.commands = all;
    options_write_man(stdout, &page);
}

typedef struct {
    const char *word;
    void (*write)(void);
} Page;

static const Page pages[] = {{"--help", write_overview},
                             {"-h", write_overview},
                             {"help", write_overview},
                             {"--version", write_version},
                             {"man", write_manual}};

static const Page *find_page(const char *word) {
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        if (strcmp(word, pages[i].word) == 0) return &pages[i];
    }
    return NULL;
}

/* --help=1, which is a page but for what follows. */
static Status refuse_value(const char *word, Error *error) {
    size_t n = strcspn(word, "=");
    if (!word[n] || word[0] != '-') return STATUS_OK;
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        if (strlen(pages[i].word) == n && strncmp(word, pages[i].word, n) == 0)
            return error_user(error, "%s takes no value; write 'pgpt %s'", pages[i].word, pages[i].word);
    }
    return STATUS_OK;
}

/* Say what went wrong, once, and leave together with the others. */
static int finish(Launch *launch, Error *error) {
    Log logger = launch_log(launch, false);
    bool has_others = launch->world.size > 1;
    if (error->status == STATUS_OK && (fflush(stdout) != 0 || ferror(stdout)))
        error_failed(error, "cannot write to standard output");
    launch_fail(launch, error);
    log_error(&logger, error);
    bool wants_json = launch->is_root && launch->wants_json;
    if (error->status != STATUS_OK && log_is_unheard(&logger) && !wants_json)
        printf("pgpt: %s\n", error->text);
    if (wants_json) error_write_json(error, stdout);
    /* Nobody leaves before it is said: some launchers end everybody when the first one fails. */
    if (error->status != STATUS_OK && has_others) comm_barrier(&launch->world, &(Error){0});
    launch_close(launch);
    return (int)error->status;
}

/* Token files are mapped into memory, and the system has no other way to say that a part of one is not there
 * any more. */
static volatile sig_atomic_t sigbus_in_json;

static void say_file_is_gone(int number) {
    static const char words[] =
        "\npgpt: a file that is read piece by piece was cut off, taken away or cannot be read any more (SIGBUS), a data file most "
        "likely; bring it back, then go on from the last checkpoint, if there is one, with --resume\n";
    static const char json[] =
        "{\"error\":\"a file that is read piece by piece is gone (SIGBUS)\",\"exit_code\":1}\n";
    ssize_t ignored = write(STDERR_FILENO, words, sizeof words - 1);
    if (sigbus_in_json) ignored = write(STDOUT_FILENO, json, sizeof json - 1);
    (void)ignored, (void)number;
    _exit(STATUS_FAILED);
}

/* --hang-timeout, before the options are read: they are read together with the other ranks, who have to be
 * there for it. Whether it is well written is found then. */
static double find_hang_seconds(int n_words, char *const *words) {
    static const char name[] = "--hang-timeout";
    for (int i = n_words - 1; i >= 0; i--) {
        if (strncmp(words[i], name, sizeof name - 1) != 0) continue;
        const char *rest = words[i] + sizeof name - 1;
        if (*rest == '=') return strtod(rest + 1, NULL);
        if (!*rest && i + 1 < n_words) return strtod(words[i + 1], NULL);
    }
    return TRAIN_HANG_SECONDS;
}

/* Does the call ask for JSON? Before the options are read, since reading them is what may fail: as they will
 * be read, the last one counts, and behind "--" stand words of others. What a config file says is not looked
 * at. */
static bool asks_for_json(int n_words, char *const *words) {
    bool asks = false;
    for (int i = 0; i < n_words && strcmp(words[i], "--") != 0; i++) {
        if (strcmp(words[i], "--no-json") == 0) asks = false;
        if (strncmp(words[i], "--json", 6) != 0 || (words[i][6] && words[i][6] != '=')) continue;
        const char *value = words[i][6] ? words[i] + 7 : "true";
        asks = strcasecmp(value, "false") != 0 && strcasecmp(value, "no") != 0 &&
               strcasecmp(value, "off") != 0 && strcmp(value, "0") != 0;
    }
    return asks;
}

/* A stream that the caller has closed is opened so that nothing else gets its number: a file that is written
 * would take the place of stdout, and receive what is printed. stdout can be written to by nobody then, which
 * is an error where something is; that there is no stderr is the caller's wish. */
static void occupy_streams(void) {
    for (int descriptor = 0; descriptor < 3; descriptor++) {
        if (fcntl(descriptor, F_GETFD) == 0 || errno != EBADF) continue;
        int opened = open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR);
        if (opened >= 0 && opened != descriptor) close(opened);
    }
}

int main(int argc, char **argv) {
    occupy_streams();
    shorten_spinning(argv);
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN);         /* a write beyond 'ulimit -f' is an error like others */
    signal(SIGBUS, say_file_is_gone); /* before MPI, which would show a stack instead */
    Error error = {0};
    Launch launch;
    const char *word = argc > 1 ? argv[1] : "--help";
    const Page *page = find_page(word);
    Status opened = launch_open(&launch, find_hang_seconds(argc - 1, argv + 1), &error);
    launch.wants_json = !page && asks_for_json(argc - 1, argv + 1);
    sigbus_in_json = launch.wants_json;
    if (opened != STATUS_OK) {
        if (page) error = (Error){0}; /* a page needs nobody else */
    } else if (page) {
        launch_check_same(&launch, "command", word, &error);
    } else if (refuse_value(word, &error) != STATUS_OK) {
        launch_agree(&launch, &error);
    } else {
        run_command(&launch, argc - 1, argv + 1, &error);
    }
    if (page && error.status == STATUS_OK && launch.is_root) page->write();
    return finish(&launch, &error);
}
