/* What a launch prints with --json is all that is known of it: whatever is compared here, a user can see. */
#include "lab/linear/linear_start.h"

#include "lab/launch/launch_child.h"

#include <math.h>
#include <string.h>

static const char source[] = "what a launch printed";

/* Null is a figure that was not measured. */
static Status read_figure(const json_t *object, const char *field, double *value, Error *error) {
    *value = (double)NAN;
    if (json_is_null(json_object_get(object, field))) return STATUS_OK;
    return json_field_float(object, source, field, 0, (double)INFINITY, value, error);
}

static Status read_engine(const json_t *object, LinearRunEngine *engine, Error *error) {
    LinearResult *result = &engine->result;
    const char *name;
    int64_t n_samples;
    TRY(json_field_text(object, source, "engine", &name, error));
    for (int kind = 0; kind < N_LINEAR_ENGINES; kind++)
        if (strcmp(linear_engine_name((LinearEngineKind)kind), name) == 0)
            engine->kind = (LinearEngineKind)kind;
    for (int p = 0; p < N_LINEAR_PHASES; p++)
        TRY(json_field_float(object, source, linear_phase_fields[p], 0, (double)INFINITY,
                             &result->phase_ms[p], error));
    TRY(read_figure(object, "largest_error", &result->largest_error, error));
    TRY(read_figure(object, "seconds", &result->seconds, error));
    TRY(read_figure(object, "best_seconds", &result->best_seconds, error));
    TRY(read_figure(object, "efficiency", &result->efficiency, error));
    TRY(read_figure(object, "best_efficiency", &result->best_efficiency, error));
    TRY(read_figure(object, "compute_base_s", &result->compute.base, error));
    TRY(read_figure(object, "compute_spread_s", &result->compute.spread, error));
    TRY(read_figure(object, "compute_chance", &result->compute.chance, error));
    TRY(read_figure(object, "compute_delay_s", &result->compute.delay, error));
    TRY(json_field_int(object, source, "compute_samples", 0, INT32_MAX, &n_samples, error));
    result->compute.n_samples = (int)n_samples;
    return STATUS_OK;
}

static Status read_run(const json_t *object, LinearRun *run, Error *error) {
    int64_t n_ranks, n_hosts;
    json_t *engines;
    TRY(json_field_int(object, source, "ranks", 1, 1 << 20, &n_ranks, error));
    TRY(json_field_int(object, source, "hosts", 1, 1 << 20, &n_hosts, error));
    TRY(json_field_int(object, source, "epochs", 1, INT64_MAX, &run->n_epochs, error));
    TRY(json_field_bool(object, source, "ranks_share_cores", &run->is_shared, error));
    TRY(json_field_array(object, source, "engines", &engines, error));
    run->n_ranks = (int)n_ranks;
    run->n_hosts = (int)n_hosts;
    for (size_t i = 0; i < json_array_size(engines) && i < N_LINEAR_ENGINES; i++) {
        TRY(read_engine(json_array_get(engines, i), &run->engine[i], error));
        run->n_engines++;
    }
    return STATUS_OK;
}

Status linear_start(Launcher *launcher, int n_ranks, const char *const *arguments, double timeout_s,
                    LinearRun *run, Error *error) {
    static const char *const ours[] = {"--json", "--quiet", "--no-draw"};
    enum { N_OURS = sizeof ours / sizeof ours[0] };
    int n = 0, at = 0;
    while (arguments[n]) n++;
    const char **all = ARENA_ARRAY(&launcher->arena, const char *, n + N_OURS + 3);
    all[at++] = "lab";
    all[at++] = "linear";
    for (int i = 0; i < n; i++) all[at++] = arguments[i];
    for (int i = 0; i < N_OURS; i++) all[at++] = ours[i];
    all[at] = NULL;
    const char *const *words = launcher_words(launcher, n_ranks, all);
    ChildResult child;
    json_t *object = NULL;
    *run = (LinearRun){0};
    TRY(child_run(&(ChildSetup){.words = words, .timeout_s = timeout_s}, &child, error));
    if (child_check(&child, words, error) == STATUS_OK &&
        child_json(&child, words, &object, error) == STATUS_OK)
        read_run(object, run, error);
    json_decref(object);
    child_free(&child);
    if (error->status == STATUS_OK && run->n_ranks != n_ranks)
        return error_failed(error, "%d ranks were to be started, and %d came up; look at --launcher", n_ranks,
                            run->n_ranks);
    return error->status;
}
