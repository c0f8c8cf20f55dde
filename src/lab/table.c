/* A row is three runs of this program, as a user would start them, and their closing JSON objects. The
 * training time is that of the steps: reading the text and writing the checkpoint are the same in every row
 * and would blur what the rows differ in. */
#include "lab/table.h"

#include "base/text/json.h"
#include "lab/launch/launch_child.h"
#include "lab/scaling.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static Status run_json(const TableSetup *setup, int n_ranks, const char *const *arguments, json_t **object,
                       Error *error) {
    const char *const *words = launcher_words(setup->launcher, n_ranks, arguments);
    ChildResult result;
    TRY(child_run(&(ChildSetup){.words = words, .timeout_s = setup->timeout_s}, &result, error));
    if (child_check(&result, words, error) == STATUS_OK) child_json(&result, words, object, error);
    child_free(&result);
    return error->status;
}

static Status read_model(const json_t *object, const char *source, TableModel *model, Error *error) {
    TRY(json_field_int(object, source, "parameters", 1, INT64_MAX, &model->n_parameters, error));
    TRY(json_field_int(object, source, "layers", 1, INT64_MAX, &model->n_layers, error));
    TRY(json_field_int(object, source, "heads", 1, INT64_MAX, &model->n_heads, error));
    TRY(json_field_int(object, source, "channels", 1, INT64_MAX, &model->n_channels, error));
    return json_field_int(object, source, "vocab", 1, INT64_MAX, &model->n_vocabulary, error);
}

static Status train(const TableSetup *setup, TableRow *row, const char *run, Error *error) {
    static const char source[] = "what pgpt train printed";
    Arena *arena = &setup->launcher->arena;
    int n = 0, at = 0;
    while (setup->arguments[n]) n++;
    const char **words = ARENA_ARRAY(arena, const char *, n + 20);
    words[at++] = "train";
    for (int i = 0; i < n; i++) words[at++] = setup->arguments[i];
    const char *set[] = {"--steps",         arena_printf(arena, "%" PRId64, setup->n_steps),
                         "--threads",       arena_printf(arena, "%d", row->n_threads),
                         "--device",        row->device,
                         "--out",           run,
                         "--sample-tokens", "0",
                         "--validation",    "0",
                         "--json",          "--quiet"};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) words[at++] = set[i];
    json_t *object = NULL;
    int64_t n_done, n_tokens;
    double step_ms;
    TRY(run_json(setup, row->n_ranks, words, &object, error));
    TRY_GOTO(json_field_int(object, source, "step", 1, INT64_MAX, &n_done, error), done);
    TRY_GOTO(json_field_int(object, source, "tokens", 1, INT64_MAX, &n_tokens, error), done);
    TRY_GOTO(read_model(object, source, &row->model, error), done);
    TRY_GOTO(json_field_float(object, source, "step_ms", 0, INFINITY, &step_ms, error), done);
    TRY_GOTO(json_field_float(object, source, "loss", -INFINITY, INFINITY, &row->loss, error), done);
    row->train_s = (double)n_done * step_ms * 1e-3;
    row->model.n_step_tokens = n_tokens / n_done;
done:
    json_decref(object);
    return error->status;
}

static Status generate(const TableSetup *setup, const TableRow *row, const char *run, bool has_cache,
                       double *seconds, Error *error) {
    static const char source[] = "what pgpt generate printed";
    Arena *arena = &setup->launcher->arena;
    const char *words[] = {"generate",
                           run,
                           "--tokens",
                           arena_printf(arena, "%" PRId64, setup->n_tokens),
                           "--threads",
                           arena_printf(arena, "%d", row->n_text_threads),
                           "--device",
                           row->device,
                           "--json",
                           "--quiet",
                           has_cache ? "--cache" : "--no-cache",
                           NULL};
    json_t *object = NULL;
    int64_t n_made;
    TRY(run_json(setup, 1, words, &object, error));
    TRY_GOTO(json_field_int(object, source, "tokens", 1, INT64_MAX, &n_made, error), done);
    TRY_GOTO(json_field_float(object, source, "seconds", 0, INFINITY, seconds, error), done);
    if (n_made != setup->n_tokens)
        error_failed(error, "pgpt generate made %" PRId64 " tokens, not %" PRId64, n_made, setup->n_tokens);
done:
    json_decref(object);
    return error->status;
}

/* From its metrics, since the closing object has the mean over all steps. */
static Status read_later_steps(const TableSetup *setup, TableRow *row, const char *run, Error *error) {
    ScalingPoint point = {0};
    row->later_step_s = NAN;
    if (setup->n_steps < 2) return STATUS_OK;
    TRY(scaling_read(run, 2, setup->n_steps - 1, &point, error));
    row->later_step_s = point.step_ms * 1e-3;
    return STATUS_OK;
}

static Status measure(const TableSetup *setup, TableRow *row, const char *run, Error *error) {
    TRY(train(setup, row, run, error));
    TRY(read_later_steps(setup, row, run, error));
    TRY(generate(setup, row, run, false, &row->generate_s, error));
    return generate(setup, row, run, true, &row->cached_s, error);
}

Status table_measure(const TableSetup *setup, TableRow *row, Error *error) {
    RunFolder folder;
    TRY(run_folder_make(&folder, setup->folder, error));
    measure(setup, row, arena_printf(&setup->launcher->arena, "%s/run", folder.path), error);
    run_folder_remove(&folder);
    return error->status;
}

double table_steps_s(const TableRow *row, int64_t n_measured, int64_t n_wanted) {
    if (n_wanted == n_measured) return row->train_s;
    if (isnan(row->later_step_s)) return row->train_s / (double)n_measured * (double)n_wanted;
    return row->train_s + row->later_step_s * (double)(n_wanted - n_measured);
}

const TableRecord *table_record(const char *name) {
    for (int i = 0; i < N_TABLE_RECORDS; i++) {
        const TableRecord *record = &TABLE_RECORDS[i];
        if (record->date && strcmp(record->name, name) == 0) return record;
    }
    return NULL;
}
