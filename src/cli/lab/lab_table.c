/* pgpt lab table: a six-layer GPT-2, trained and asked for text by one core, by MPI, by a GPU, by both,
 * beside the seconds that an older study published for its own program on its own machines. Rows for which
 * this machine has no hardware say so.
 *
 * With other options of pgpt train it is another model. What stands in title and table is what the runs say
 * that they have trained, and the older study's seconds stand beside only if that is the same. */
#include "cli/lab/lab.h"

#include "backend/cuda/cuda.h"
#include "base/system/cores.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "comm/comm_mpi.h"
#include "job/train_run.h"
#include "lab/launch/launch_child.h"
#include "lab/table.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What the older study measured: 50 steps of 4,096 tokens, and 30 tokens of text. It gives one figure for
 * text, of its serial program. */
enum { OLD_STEPS = 50, OLD_TOKENS = 30 };

static const TableModel OLD_MODEL = {.n_parameters = 81912576,
                                     .n_layers = 6,
                                     .n_heads = 12,
                                     .n_channels = 768,
                                     .n_vocabulary = 50257,
                                     .n_step_tokens = 4096};

typedef enum { ROW_SERIAL, ROW_MPI, ROW_CUDA, ROW_BOTH, N_ROWS } RowKind;

static const struct {
    const char *name;
    double train_s, generate_s;
} OLD[N_ROWS] = {
    [ROW_SERIAL] = {"serial", 15264, 113},
    [ROW_MPI] = {"MPI", 1287, NAN},
    [ROW_CUDA] = {"CUDA", 429, NAN},
    [ROW_BOTH] = {"MPI + CUDA", 226, NAN},
};

typedef struct {
    int64_t n_steps, n_tokens, n_ranks;
    const char *launcher;
    double timeout;
} TableCall;

typedef struct {
    TableCall call;
    LabOptions lab;
} TableCommand;

static const OptionSpec specs[] = {
    OPTION_INT("steps", TableCall, n_steps, OLD_STEPS, 1, 1000000,
               "training steps of each row; of the older study's model, times are also shown for 50"),
    OPTION_INT("tokens", TableCall, n_tokens, OLD_TOKENS, 1, 1000000,
               "tokens of text to make; of the older study's model, times are also shown for 30"),
    OPTION_INT("ranks", TableCall, n_ranks, 0, 0, 4096,
               "ranks of the rows with MPI, 2 or more; 0: one a core, between 2 and 4; of GPUs one each"),
    OPTION_STRING("launcher", TableCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", TableCall, timeout, 86400.0, 1.0, 1e7, "seconds after which a run is ended"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", TableCommand, call, specs),
    OPTION_GROUP("Output", TableCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {
    {.name = "WORDS",
     .help = "behind '--': further options of pgpt train, as --data book.txt",
     .optional = true,
     .repeated = true,
     .behind_dashes = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "all of it (an hour on a few cores)",
    "pgpt lab table",
    "quickly, from three steps",
    "pgpt lab table --steps 3",
    NULL,
};

const OptionCommand lab_table_command = {
    .name = "lab table",
    .summary = "serial, MPI, CUDA and both: training and generation time of a six-layer GPT-2",
    .description =
        "Trains a GPT-2 of 6 layers (768 channels, 12 heads, a vocabulary of 50,257) for 50 steps of 4,096 tokens and makes 30 tokens of text "
        "with it: on one core; on several ranks of one core each; on a GPU; on several. The seconds that an older study published for "
        "the same work, by its own program on its own machines, stand beside, unless options behind '--' make it other work. Rows that this "
        "machine has no hardware for say what is missing.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

typedef struct {
    const TableCommand *values;
    LabOutput output;
    Launcher launcher;
    const char *const *arguments;
    TableRow rows[N_ROWS];
} Study;

/* ---- What there is */

static int default_ranks(void) {
    int n_cores = cores_usable();
    return n_cores < 2 ? 2 : n_cores > 4 ? 4 : n_cores;
}

static void plan_rows(Study *study, const char *no_mpi) {
    const TableCall *call = &study->values->call;
    char reason[160] = "";
    int n_gpus = backend_cuda_devices(reason, sizeof reason);
    int n_ranks = call->n_ranks ? (int)call->n_ranks : default_ranks();
    for (int i = 0; i < N_ROWS; i++) {
        TableRow *row = &study->rows[i];
        bool is_gpu = i == ROW_CUDA || i == ROW_BOTH, is_mpi = i == ROW_MPI || i == ROW_BOTH;
        int n_wanted = is_gpu && !call->n_ranks ? n_gpus : n_ranks;
        *row = (TableRow){.name = OLD[i].name,
                          .n_ranks = is_mpi ? n_wanted : 1,
                          .n_threads = 1,
                          .device = is_gpu ? "cuda" : "cpu",
                          .train_s = NAN,
                          .generate_s = NAN,
                          .loss = NAN};
        if (is_gpu && n_gpus == 0) snprintf(row->missing, sizeof row->missing, "no GPU here: %s", reason);
        else if (is_mpi && no_mpi) snprintf(row->missing, sizeof row->missing, "%.200s", no_mpi);
        else if (i == ROW_BOTH && n_gpus < 2)
            snprintf(row->missing, sizeof row->missing, "one GPU here: each rank needs one of its own");
    }
}

/* The model of the study; what stands behind -- comes later and wins. */
static Status plan_words(Study *study, const Options *options, Error *error) {
    static const char *const model[] = {"--model", "gpt2", "--layers", "6", "--batch", "4"};
    static const char *const ours[] = {
        "steps", "epochs",        "threads",    "device",        "out",        "resume", "json",
        "quiet", "print-program", "print-mesh", "sample-tokens", "validation", NULL};
    enum { N_MODEL = sizeof model / sizeof model[0] };
    Arena *arena = &study->launcher.arena;
    const char **words = ARENA_ARRAY(arena, const char *, N_MODEL + options->n_arguments + 1);
    memcpy(words, model, sizeof model);
    for (int i = 0; i < options->n_arguments; i++) words[N_MODEL + i] = options->arguments[i];
    study->arguments = words;
    TrainCommand train;
    Options parsed;
    TRY(options_init(&parsed, &train_command, &train, error));
    lab_read_train_words(&lab_table_command, words, N_MODEL + options->n_arguments, ours, &parsed, error);
    options_free(&parsed);
    return error->status;
}

/* ---- The table */

/* As many steps, or tokens, as the older study took. */
static double scaled_train(const Study *study, int i) {
    return study->rows[i].train_s * OLD_STEPS / (double)study->values->call.n_steps;
}

static double scaled_generate(const Study *study, int i) {
    return study->rows[i].generate_s * OLD_TOKENS / (double)study->values->call.n_tokens;
}

static void print_cell(double value, int width, int decimals, const char *ending) {
    if (isnan(value)) printf(" %*s", width, "-");
    else printf(" %*.*f%s", width - (int)strlen(ending), decimals, value, ending);
}

/* Of any row: all trained the same. */
static const TableModel *model_of(const Study *study) {
    int i = 0;
    while (i + 1 < N_ROWS && isnan(study->rows[i].train_s)) i++;
    return &study->rows[i].model;
}

/* Is it the older study's work, or some part of it? */
static bool compares(const Study *study) {
    const TableModel *model = model_of(study);
    return model->n_parameters == OLD_MODEL.n_parameters && model->n_layers == OLD_MODEL.n_layers &&
           model->n_heads == OLD_MODEL.n_heads && model->n_channels == OLD_MODEL.n_channels &&
           model->n_vocabulary == OLD_MODEL.n_vocabulary && model->n_step_tokens == OLD_MODEL.n_step_tokens;
}

static void print_head(const Study *study) {
    const TableCall *call = &study->values->call;
    const TableModel *model = model_of(study);
    printf("%s, %" PRId64 " channels, %s, %s parameters; %s of %s, then %s of text; seconds\n\n",
           format_things(model->n_layers, "layer").text, model->n_channels,
           format_things(model->n_heads, "head").text, format_count((double)model->n_parameters).text,
           format_things(call->n_steps, "step").text, format_things(model->n_step_tokens, "token").text,
           format_things(call->n_tokens, "token").text);
    if (compares(study)) {
        printf("%-11s %5s | %10s %10s %9s | %10s %10s %9s | %10s %9s %10s\n", "", "", "training", "50 steps",
               "speed-up", "text", "30 tokens", "speed-up", "older", "speed-up", "older text");
        printf("%-11s %5s | %10s %10s %9s | %10s %10s %9s | %10s %9s %10s\n", "", "ranks", "measured", "", "",
               "measured", "", "", "50 steps", "", "30 tokens");
    } else {
        printf("%-11s %5s | %10s %9s | %10s %9s\n", "", "ranks", "training", "speed-up", "text", "speed-up");
    }
}

static void print_row(const Study *study, int i) {
    const TableRow *row = &study->rows[i], *serial = &study->rows[ROW_SERIAL];
    bool has_older = compares(study), is_there = !*row->missing;
    printf("%-11s", row->name);
    if (is_there) printf(" %5d |", row->n_ranks);
    else printf(" %5s |", "-");
    print_cell(is_there ? row->train_s : NAN, 10, 3, "");
    if (has_older) print_cell(scaled_train(study, i), 10, 2, "");
    print_cell(serial->train_s / row->train_s, 9, 2, "x");
    printf(" |");
    print_cell(is_there ? row->generate_s : NAN, 10, 3, "");
    if (has_older) print_cell(scaled_generate(study, i), 10, 3, "");
    print_cell(serial->generate_s / row->generate_s, 9, 2, "x");
    if (has_older) {
        printf(" |");
        print_cell(OLD[i].train_s, 10, 0, "");
        print_cell(OLD[ROW_SERIAL].train_s / OLD[i].train_s, 9, 2, "x");
        print_cell(OLD[i].generate_s, 10, 0, "");
    }
    printf("\n");
    if (!is_there) printf("%11s (%s)\n", "", plain(row->missing).text);
}

static void print_table(const Study *study) {
    const TableCall *call = &study->values->call;
    print_head(study);
    for (int i = 0; i < N_ROWS; i++) print_row(study, i);
    if (!compares(study))
        printf("\nThe older study's seconds are left out: it trained %" PRId64 " layers of %" PRId64
               " channels (%s parameters) in steps of\n%" PRId64 " tokens, which is other work.\n",
               OLD_MODEL.n_layers, OLD_MODEL.n_channels, format_count((double)OLD_MODEL.n_parameters).text,
               OLD_MODEL.n_step_tokens);
    else if (call->n_steps != OLD_STEPS || call->n_tokens != OLD_TOKENS)
        printf("\nColumns of 50 steps and 30 tokens are what was measured, multiplied.\n");
    printf("\nText is made by one process; in a row with MPI it has as many threads as there are ranks.\n");
}

/* Training what, and how much of it the bars stand for. */
static void write_title(const Study *study, char *title, size_t n_bytes) {
    const TableModel *model = model_of(study);
    int64_t n_steps = study->values->call.n_steps, n_shown = compares(study) ? OLD_STEPS : n_steps;
    char measured[64] = "";
    if (n_shown != n_steps)
        snprintf(measured, sizeof measured, " (%s measured)", format_things(n_steps, "step").text);
    snprintf(title, n_bytes, "Training a GPT of %s, %" PRId64 " channels: %s of %s%s",
             format_things(model->n_layers, "layer").text, model->n_channels,
             format_things(n_shown, "step").text, format_things(model->n_step_tokens, "token").text,
             measured);
}

static Status draw(const Study *study, Error *error) {
    const char *names[N_ROWS];
    char title[240];
    double x[N_ROWS], ours[N_ROWS], older[N_ROWS];
    bool has_older = compares(study);
    for (int i = 0; i < N_ROWS; i++) {
        names[i] = *study->rows[i].missing ? (i == ROW_BOTH   ? "MPI + CUDA (not here)"
                                              : i == ROW_CUDA ? "CUDA (not here)"
                                                              : "MPI (not here)")
                                           : OLD[i].name;
        x[i] = i;
        ours[i] = has_older ? scaled_train(study, i) : study->rows[i].train_s;
        older[i] = OLD[i].train_s;
    }
    write_title(study, title, sizeof title);
    PlotSeries series[] = {{"pgpt, this machine", PLOT_BARS, x, ours, N_ROWS},
                           {"older study", PLOT_BARS, x, older, N_ROWS}};
    Plot plot = {.title = title,
                 .x_label = "",
                 .y_label = has_older ? "time (s), logarithmic" : "time (s)",
                 .y_log = has_older, /* from 226 to 15,264, whatever ours are */
                 .series = series,
                 .n_series = has_older ? 2 : 1,
                 .x_names = names};
    return lab_draw(&study->output, &plot, "table", error);
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *rows = json_array();
    const TableModel *model = model_of(study);
    bool has_older = compares(study);
    for (int i = 0; i < N_ROWS; i++) {
        const TableRow *row = &study->rows[i];
        json_t *entry = json_object();
        bool is_there = !*row->missing;
        json_object_set_new(entry, "name", json_string(row->name));
        json_object_set_new(entry, "missing", is_there ? json_null() : json_make_text(row->missing));
        json_object_set_new(entry, "ranks", is_there ? json_integer(row->n_ranks) : json_null());
        json_object_set_new(entry, "train_s", json_make_number(row->train_s));
        json_object_set_new(entry, "generate_s", json_make_number(row->generate_s));
        json_object_set_new(entry, "speed_up",
                            json_make_number(study->rows[ROW_SERIAL].train_s / row->train_s));
        json_object_set_new(entry, "loss", json_make_number(row->loss));
        json_object_set_new(entry, "older_train_s", json_make_number(has_older ? OLD[i].train_s : NAN));
        json_object_set_new(entry, "older_generate_s", json_make_number(has_older ? OLD[i].generate_s : NAN));
        json_array_append_new(rows, entry);
    }
    json_object_set_new(object, "command", json_string("lab table"));
    json_object_set_new(object, "steps", json_integer(study->values->call.n_steps));
    json_object_set_new(object, "tokens", json_integer(study->values->call.n_tokens));
    json_object_set_new(object, "parameters", json_integer(model->n_parameters));
    json_object_set_new(object, "layers", json_integer(model->n_layers));
    json_object_set_new(object, "channels", json_integer(model->n_channels));
    json_object_set_new(object, "step_tokens", json_integer(model->n_step_tokens));
    json_object_set_new(object, "rows", rows);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

/* Without a launcher the rows with MPI are missing; one that was asked for by name must be there. */
static Status open_launcher(Study *study, const char **no_mpi, char *reason, size_t n_bytes, Error *error) {
    const char *text = study->values->call.launcher;
    Error trouble = {0};
    *no_mpi = NULL;
    if (comm_mpi_is_built() && launcher_open(&study->launcher, text, &trouble) == STATUS_OK) return STATUS_OK;
    if (*text && trouble.status != STATUS_OK) {
        *error = trouble;
        return error->status;
    }
    snprintf(reason, n_bytes, "no MPI here: %.180s",
             comm_mpi_is_built() ? trouble.text : "this pgpt was built without it");
    *no_mpi = reason;
    return launcher_open_alone(&study->launcher, error);
}

static Status run_rows(Study *study, Error *error) {
    const TableCall *call = &study->values->call;
    TableSetup setup = {.launcher = &study->launcher,
                        .folder = study->output.folder,
                        .arguments = study->arguments,
                        .n_steps = call->n_steps,
                        .n_tokens = call->n_tokens,
                        .timeout_s = call->timeout};
    for (int i = 0; i < N_ROWS; i++) {
        TableRow *row = &study->rows[i];
        if (*row->missing) {
            log_note(&study->output.log, "%s: left out, %s", row->name, row->missing);
            continue;
        }
        log_note(&study->output.log, "%s: %s on %s", row->name, format_things(row->n_ranks, "rank").text,
                 row->device);
        TRY(table_measure(&setup, row, error));
    }
    return STATUS_OK;
}

static Status run_study(Study *study, const Options *options, Error *error) {
    const char *no_mpi;
    char reason[240];
    if (study->values->call.n_ranks == 1)
        return error_user(error, "--ranks 1 is what the row 'serial' has; give 2 or more, or leave it out");
    TRY(open_launcher(study, &no_mpi, reason, sizeof reason, error));
    if (plan_words(study, options, error) == STATUS_OK) {
        plan_rows(study, no_mpi);
        interrupt_watch();
        run_rows(study, error);
        interrupt_ignore();
    }
    if (error->status == STATUS_OK) {
        print_table(study);
        fflush(stdout);
        draw(study, error);
    }
    if (error->status == STATUS_OK && study->values->lab.json) print_json(study, error);
    launcher_close(&study->launcher);
    return error->status;
}

Status lab_table(Launch *launch, int n_words, char *const *words, Error *error) {
    TableCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options(launch, &options, &lab_table_command, &values, n_words, words, &goes_on, error));
    if (goes_on && launch->world.size > 1) {
        error_user(error,
                   "'lab table' starts its own ranks; run it without mpirun, and name yours with --launcher");
    } else if (goes_on) {
        Study study = {.values = &values,
                       .output = lab_output(launch, &options, &values.lab, n_words, words)};
        run_study(&study, &options, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
