/* pgpt supervise: a job that is left alone overnight. The words behind -- are the job's own command line;
 * this one needs to know of it where its run folder is. */
#include "cli/commands.h"

#include "base/text/json.h"
#include "base/text/log.h"
#include "run/run_folder.h"
#include "run/supervise.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    int64_t most_restarts;
    double wait_seconds;
    bool json, quiet;
} SuperviseCommand;

typedef struct {
    SuperviseCommand supervise;
} SuperviseValues;

static const OptionSpec specs[] = {
    OPTION_INT("restarts", SuperviseCommand, most_restarts, 5, 0, 1000000,
               "how often the job is started again at most"),
    OPTION_FLOAT("wait", SuperviseCommand, wait_seconds, 1.0, 0.0, 1e6, "seconds before it is started again"),
    OPTION_JSON(SuperviseCommand, json),
    OPTION_BOOL("quiet", SuperviseCommand, quiet, false, "say only what went wrong"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Job", SuperviseValues, supervise, specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "keep a job on four processes going, with a checkpoint every 100 steps",
    "pgpt supervise -- mpirun -n 4 pgpt train --model mini --data book.txt --save-every 100 --out runs/night",
    "give up after 20 restarts, and notice ranks that hang for a minute",
    "pgpt supervise --restarts 20 -- mpirun -n 4 pgpt train --hang-timeout 60 --save-minutes 10 --out runs/night",
    NULL,
};

const OptionCommand supervise_command = {
    .name = "supervise",
    .summary = "start a job again from its last checkpoint when it dies",
    .description =
        "Runs the command behind -- and waits for it. If it fails, says where every rank was and runs it again with "
        "--resume auto, so that it goes on from its last checkpoint. A loss that is not a finite number at the same "
        "step twice in a row is not tried again. Exit code: 0 when the last attempt ended with 0, 2 when it ended with 2 "
        "(a mistake in its options), and 1 otherwise; --json has the job's own as \"job_exit_code\".",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

static int find_separator(int n_words, char *const *words) {
    int i = 0;
    while (i < n_words && strcmp(words[i], "--") != 0) i++;
    return i;
}

/* The job's --out DIR or --out=DIR, the last as for the job itself; NULL if it has none. */
static const char *find_out(int n_words, char *const *words) {
    const char *folder = NULL;
    for (int i = 0; i < n_words; i++) {
        if (strcmp(words[i], "--out") == 0 && i + 1 < n_words) folder = words[i + 1];
        if (strncmp(words[i], "--out=", 6) == 0) folder = words[i] + 6;
    }
    return folder;
}

static Status write_json(const SuperviseResult *result, Error *failure, Error *error) {
    json_t *object = json_object();
    json_object_set_new(object, "restarts", json_integer(result->n_restarts));
    json_object_set_new(object, "job_exit_code", json_integer(result->exit_code));
    json_object_set_new(object, "exit_code", json_integer((json_int_t)failure->status));
    json_object_set_new(object, "stopped", json_boolean(result->was_stopped));
    json_object_set_new(object, "seconds", json_make_number(result->seconds));
    if (failure->status != STATUS_OK) error_add_json(failure, object);
    return json_print(stdout, object, error);
}

static Status supervise_job(const SuperviseCommand *values, int n_words, char *const *words, Error *error) {
    const char *run = find_out(n_words, words);
    if (n_words < 1)
        return error_user(error,
                          "there is no job; write it behind --, as in: pgpt supervise -- mpirun -n 4 pgpt "
                          "train --save-every 100 --out runs/night");
    if (!run || !*run)
        return error_user(error,
                          "the job has no --out; give its run a folder, so that it can be found again");
    if (supervise_has_option(n_words, words, "--no-save"))
        return error_user(error, "the job has --no-save, and would begin from nothing each time; leave it "
                                 "out, or start the job without pgpt supervise");
    Log log = log_make(values->quiet);
    SuperviseOptions options = {.command = words,
                                .n_words = n_words,
                                .run = run,
                                .most_restarts = (int)values->most_restarts,
                                .wait_seconds = values->wait_seconds,
                                .log = &log};
    SuperviseResult result;
    RunClaim claim; /* of the folder, so that nobody else starts the job between two of its attempts */
    TRY(run_claim_supervise(&claim, run, error));
    if (*claim.warning) log_warning(&log, "%s", claim.warning);
    supervise(&options, &result, error);
    run_claim_release(&claim);
    TRY(error->status);
    if (result.n_restarts > 0 && result.exit_code == 0)
        log_note(&log, "the job is done, after %d restart%s", result.n_restarts,
                 result.n_restarts == 1 ? "" : "s");
    Error failure = {0};
    if (result.exit_code == STATUS_USER) error_user(&failure, "the job was not done; see above");
    else if (result.exit_code != 0) error_failed(&failure, "the job was not done; see above");
    if (values->json) TRY(write_json(&result, &failure, error));
    *error = failure;
    return error->status;
}

Status command_supervise(int n_words, char *const *words, Error *error) {
    SuperviseValues values;
    Options options;
    int n_own = find_separator(n_words, words);
    if (options_init(&options, &supervise_command, &values, error) == STATUS_OK &&
        options_parse(&options, n_own, words, error) == STATUS_OK) {
        if (options.help_wanted) command_show_help(&supervise_command);
        else if (n_own < n_words)
            supervise_job(&values.supervise, n_words - n_own - 1, words + n_own + 1, error);
        else supervise_job(&values.supervise, 0, words, error);
    }
    options_free(&options);
    return error->status;
}
