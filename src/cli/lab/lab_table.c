/* pgpt lab table: a small GPT, trained and asked for text by one core, by MPI, by a GPU, by both, beside the
 * seconds that an older study published for the same work by its own program on its own machines. In rows for
 * which this machine has no hardware stands what was recorded elsewhere (lab/table_records.h).
 *
 * With other options of pgpt train it is another model. What stands in title and table is what the runs say
 * that they have trained, and the older study's seconds stand beside only if that is the same. */
#include "cli/lab/lab_table.h"

#include "backend/cuda/cuda.h"
#include "base/system/cores.h"
#include "base/text/format.h"
#include "comm/comm_mpi.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/machine_note.h"
#include "lab/table_text.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUICK_STEPS = 4 };

static const OptionSpec specs[] = {
    OPTION_INT("steps", TableCall, n_steps, TABLE_OLD_STEPS, 1, 1000000,
               "training steps of each row; of fewer than 50, times are shown for 50"),
    OPTION_INT("tokens", TableCall, n_tokens, TABLE_OLD_TOKENS, 1, 1000000,
               "tokens of text to make; of others than 30, times are shown for 30"),
    OPTION_INT("ranks", TableCall, n_ranks, TABLE_OLD_RANKS, 2, 4096,
               "processes of the rows with MPI; ranks may share cores, and a GPU"),
    OPTION_STRING("data", TableCall, data, "", "FILE",
                  "the text to train on, named as for training; without it one is made, as long (290,599 "
                  "bytes) and repetitive as the older study's"),
    OPTION_BOOL("quick", TableCall, is_quick, false,
                "4 steps in place of 50: less than a minute on two cores"),
    OPTION_BOOL("record", TableCall, records, false,
                "print what was measured as lines for src/lab/table_records.h, which stand in the rows of "
                "machines without a GPU"),
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
     .help = "behind '--': further options of pgpt train, as --dtype bf16",
     .optional = true,
     .repeated = true,
     .behind_dashes = true},
    {.name = NULL},
};

static const char *const examples[] = {
    "all of it (minutes on a few cores)",
    "pgpt lab table",
    "quickly, from four steps",
    "pgpt lab table --quick",
    "on a machine with a GPU: figures to keep for those without",
    "pgpt lab table --record",
    NULL,
};

const OptionCommand lab_table_command = {
    .name = "lab table",
    .summary = "serial, MPI, CUDA and both: training and generation time of a small GPT",
    .description =
        "Trains the preset mini (6 layers, 6 heads, 384 channels, context 256) on words of a repetitive text for 50 steps of 16 "
        "sequences, 4,096 tokens, and makes 30 tokens of text with it without a KV cache: on one core; on 4 ranks of one thread each; on a "
        "GPU; on 4 ranks with GPUs. The seconds that an older study published for the same work, by its own program on its own machines, stand "
        "beside, unless options behind '--' make it other work. Rows that this machine has no hardware for show the figure that was "
        "recorded on another one, with its name and date.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

/* ---- What there is */

/* The GPU in words, and whom it is shared by. */
static const char *gpu_name(Arena *arena, int n_gpus, int n_ranks) {
    Backend backend;
    char text[200] = "a GPU";
    if (backend_cuda_open(&backend, 0, &(Error){0}) == STATUS_OK) {
        backend_cuda_describe(&backend, text, sizeof text);
        backend.close(backend.context);
    }
    if (n_ranks <= n_gpus || n_ranks == 1) return arena_strdup(arena, text);
    return arena_printf(arena, "%s; %d ranks on %s", text, n_ranks, format_things(n_gpus, "GPU").text);
}

static const char *cpu_name(Arena *arena, int n_ranks) {
    const char *name = machine_name(arena);
    if (n_ranks <= cores_usable()) return name;
    return arena_printf(arena, "%s; %d ranks, more than there are cores", name, n_ranks);
}

static void plan_row(TableStudy *study, TableRowKind kind, int n_gpus, const char *no_gpu,
                     const char *no_mpi) {
    static const char *const names[N_TABLE_ROWS] = {"serial", "MPI", "CUDA", "MPI + CUDA"};
    bool is_gpu = kind == ROW_CUDA || kind == ROW_BOTH, is_mpi = kind == ROW_MPI || kind == ROW_BOTH;
    int n_ranks = is_mpi ? (int)study->values->call.n_ranks : 1, n_cores = cores_usable();
    TableRow *row = &study->rows[kind];
    *row = (TableRow){.name = names[kind],
                      .n_ranks = n_ranks,
                      .n_threads = 1,
                      .n_text_threads = n_ranks < n_cores ? n_ranks : n_cores,
                      .device = is_gpu ? "cuda" : "cpu",
                      .record = table_record(names[kind]),
                      .train_s = NAN,
                      .later_step_s = NAN,
                      .generate_s = NAN,
                      .cached_s = NAN,
                      .loss = NAN};
    if (is_gpu && n_gpus == 0) snprintf(row->missing, sizeof row->missing, "no GPU here: %s", no_gpu);
    else if (is_mpi && no_mpi) snprintf(row->missing, sizeof row->missing, "%.200s", no_mpi);
    if (*row->missing) return;
    Arena *arena = &study->launcher.arena;
    row->record = NULL;
    row->machine = is_gpu ? gpu_name(arena, n_gpus, n_ranks) : cpu_name(arena, n_ranks);
}

static void plan_rows(TableStudy *study, const char *no_mpi) {
    char reason[160] = "";
    int n_gpus = backend_cuda_devices(reason, sizeof reason);
    for (int i = 0; i < N_TABLE_ROWS; i++) plan_row(study, (TableRowKind)i, n_gpus, reason, no_mpi);
}

/* ---- What is trained */

/* The text of the study, unless there is one. */
static Status plan_data(TableStudy *study, const Options *parsed, const char **path, Error *error) {
    const TableCall *call = &study->values->call;
    Arena *arena = &study->launcher.arena;
    bool is_behind = options_source(parsed, "data") == OPTION_FROM_COMMAND;
    study->data = arena_strdup(arena, is_behind ? study->train.data.data : call->data);
    *path = study->data;
    if (**path) return STATUS_OK;
    TRY(run_folder_make(&study->folder, study->output.folder, error));
    *path = arena_printf(arena, "%s/words.txt", study->folder.path);
    TRY(table_text_write(*path, error));
    log_note(&study->output.log,
             "no --data: a text of %d bytes was made, one paragraph over and over, as long and repetitive as "
             "the older study's",
             TABLE_TEXT_BYTES);
    return STATUS_OK;
}

/* A preset is applied by the run itself, so only what was given is known. */
static int64_t given_sequence(const TableStudy *study, const Options *parsed) {
    if (options_source(parsed, "sequence") == OPTION_FROM_COMMAND && study->train.train.sequence)
        return study->train.train.sequence;
    return options_source(parsed, "context") == OPTION_FROM_COMMAND ? study->train.model.context : 0;
}

/* The model of the study; what stands behind -- comes later and wins. */
static Status plan_words(TableStudy *study, const Options *options, Error *error) {
    static const char *const model[] = {"--model", "mini", "--tokenizer", "word",      "--batch",
                                        "16",      "--lr", "3e-4",        "--dropout", "0"};
    static const char *const ours[] = {
        "steps", "epochs",        "threads",    "device",        "out",        "resume", "json",
        "quiet", "print-program", "print-mesh", "sample-tokens", "validation", NULL};
    enum { N_MODEL = sizeof model / sizeof model[0] };
    int n_given = options->n_arguments;
    Arena *arena = &study->launcher.arena;
    const char **words = ARENA_ARRAY(arena, const char *, N_MODEL + 2 + n_given + 1);
    const char *data = "";
    memcpy(words, model, sizeof model);
    for (int i = 0; i < n_given; i++) words[N_MODEL + i] = options->arguments[i];
    Options parsed;
    TRY(options_init(&parsed, &train_command, &study->train, error));
    if (lab_read_train_words(&lab_table_command, words, N_MODEL + n_given, ours, &parsed, error) == STATUS_OK)
        plan_data(study, &parsed, &data, error);
    study->sequence = given_sequence(study, &parsed);
    options_free(&parsed);
    if (error->status != STATUS_OK) return error->status;
    words[N_MODEL + n_given] = "--data";
    words[N_MODEL + n_given + 1] = data;
    study->arguments = words;
    return STATUS_OK;
}

/* ---- All of it */

/* Without a launcher the rows with MPI are missing; one that was asked for by name must be there. */
static Status open_launcher(TableStudy *study, const char **no_mpi, char *reason, size_t n_bytes,
                            Error *error) {
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

static Status run_rows(TableStudy *study, Error *error) {
    const TableCall *call = &study->values->call;
    TableSetup setup = {.launcher = &study->launcher,
                        .folder = study->output.folder,
                        .arguments = study->arguments,
                        .n_steps = study->n_steps,
                        .n_tokens = call->n_tokens,
                        .timeout_s = call->timeout};
    for (int i = 0; i < N_TABLE_ROWS; i++) {
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

static Status show(TableStudy *study, Error *error) {
    lab_table_print(study);
    if (study->values->call.records) lab_table_print_records(study);
    fflush(stdout);
    TRY(lab_table_draw(study, error));
    return study->values->lab.json ? lab_table_print_json(study, error) : STATUS_OK;
}

static Status run_study(TableStudy *study, const Options *options, Error *error) {
    const char *no_mpi;
    char reason[240];
    const TableCall *call = &study->values->call;
    bool has_steps = options_source(options, "steps") != OPTION_FROM_DEFAULT;
    if (call->is_quick && has_steps)
        return error_user(error, "--quick and --steps exclude each other; give one of them");
    if (call->records && (call->is_quick || has_steps || options->n_arguments || *call->data ||
                          call->n_tokens != TABLE_OLD_TOKENS))
        return error_user(error, "--record is for the whole study as it is; leave out --quick, --steps, "
                                 "--tokens, --data and what stands behind '--'");
    study->n_steps = call->is_quick ? QUICK_STEPS : call->n_steps;
    TRY(open_launcher(study, &no_mpi, reason, sizeof reason, error));
    if (plan_words(study, options, error) == STATUS_OK) {
        plan_rows(study, no_mpi);
        interrupt_watch();
        run_rows(study, error);
        interrupt_ignore();
    }
    run_folder_remove(&study->folder);
    if (error->status == STATUS_OK) show(study, error);
    launcher_close(&study->launcher);
    return error->status;
}

Status lab_table(Launch *launch, int n_words, char *const *words, Error *error) {
    TableCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_table_command,
                               "starts its own ranks; run it without mpirun, and name yours with --launcher",
                               &values, n_words, words, &goes_on, error));
    if (goes_on) {
        TableStudy study = {.values = &values,
                            .output = lab_output(launch, &options, &values.lab, n_words, words)};
        run_study(&study, &options, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
