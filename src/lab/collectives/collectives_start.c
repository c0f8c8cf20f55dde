/* The study in processes of its own, started for a number of ranks: for a table of several, and for whoever
 * needs to know the links before it can expect anything. */
#include "lab/collectives/collectives.h"

#include "lab/launch/launch_child.h"

static Status read_result(const json_t *object, CollectivesResult *result, Error *error) {
    static const char source[] = "what a run printed";
    json_t *runs, *run, *rows;
    TRY(json_field_array(object, source, "runs", &runs, error));
    run = json_array_get(runs, 0);
    TRY(json_field_array(run, source, "sizes", &rows, error));
    TRY(collectives_read_machine(json_object_get(run, "machine"), source, &result->machine, error));
    for (size_t i = 0; i < json_array_size(rows) && i < COLLECTIVES_MAX_ROWS; i++) {
        TRY(collectives_read_row(json_array_get(rows, i), source, &result->rows[i], error));
        result->n_rows++;
    }
    return STATUS_OK;
}

Status collectives_start(Launcher *launcher, int n_ranks, const char *sizes,
                         const CollectivesOptions *options, double timeout_s, CollectivesResult *result,
                         Error *error) {
    Arena *arena = &launcher->arena;
    const char *rounds = arena_printf(arena, "%d", options->n_rounds);
    const char *seconds = arena_printf(arena, "%.17g", options->budget_s);
    const char *only = options->only ? options->only : "all-reduce";
    const char *arguments[] = {"lab",  "collectives", "--sizes", sizes,       "--only",  only,     "--rounds",
                               rounds, "--seconds",   seconds,   "--no-draw", "--quiet", "--json", NULL};
    const char *const *words = launcher_words(launcher, n_ranks, arguments);
    ChildResult child;
    json_t *object = NULL;
    *result = (CollectivesResult){0};
    TRY(child_run(&(ChildSetup){.words = words, .timeout_s = timeout_s}, &child, error));
    if (child_check(&child, words, error) == STATUS_OK &&
        child_json(&child, words, &object, error) == STATUS_OK)
        read_result(object, result, error);
    json_decref(object);
    child_free(&child);
    return error->status;
}
