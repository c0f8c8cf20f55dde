#include "lab/experts/expert_run.h"

#include "base/text/json.h"
#include "base/text/plain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double number_of(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* One more time's loads, blocks of E each. */
static Status add_loads(ExpertRun *run, const json_t *blocks, Error *error) {
    int64_t n_blocks = (int64_t)json_array_size(blocks);
    int64_t n_experts = (int64_t)json_array_size(json_array_get(blocks, 0)), n = n_blocks * n_experts;
    if (!run->n_times) {
        run->n_blocks = n_blocks;
        run->n_experts = n_experts;
    }
    if (!n || n_blocks != run->n_blocks || n_experts != run->n_experts)
        return error_failed(error, "%s: loads of experts that do not fit together",
                            plain(run->curve.path).text);
    double *larger = realloc(run->loads, (size_t)((run->n_times + 1) * n) * sizeof *larger);
    if (!larger) return error_failed(error, "no memory for the loads of experts");
    run->loads = larger;
    for (int64_t i = 0; i < n; i++) {
        const json_t *block = json_array_get(blocks, (size_t)(i / n_experts));
        larger[run->n_times * n + i] = json_number_value(json_array_get(block, (size_t)(i % n_experts)));
    }
    run->n_times++;
    return STATUS_OK;
}

/* What the curves leave out: the header's figures and the routers'. */
static Status add_line(ExpertRun *run, const char *line, size_t n, Error *error) {
    json_error_t trouble;
    json_t *object = json_loadb(line, n, 0, &trouble);
    const json_t *loads = json_object_get(object, "expert_loads");
    if (json_object_get(object, "flops_per_step")) {
        run->flops_per_step = number_of(object, "flops_per_step");
        run->n_parameters = number_of(object, "parameters");
    }
    if (json_object_get(object, "router_entropy")) {
        run->entropy = number_of(object, "router_entropy");
        run->dropped = number_of(object, "dropped");
    }
    if (json_is_array(loads)) add_loads(run, loads, error);
    json_decref(object);
    return error->status;
}

static Status read_lines(ExpertRun *run, FILE *file, Error *error) {
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; error->status == STATUS_OK && (n = getline(&line, &capacity, file)) > 0;)
        add_line(run, line, (size_t)n, error);
    free(line);
    return error->status;
}

Status expert_run_read(ExpertRun *run, const char *folder, Error *error) {
    char path[4200];
    *run = (ExpertRun){.dropped = NAN, .entropy = NAN, .flops_per_step = NAN, .n_parameters = NAN};
    TRY(curve_run_read(&run->curve, folder, error));
    snprintf(path, sizeof path, "%.4096s/metrics.jsonl", folder);
    FILE *file = fopen(path, "r");
    if (!file) error_failed(error, "%s cannot be read", plain(path).text);
    else read_lines(run, file, error);
    if (file) fclose(file);
    if (error->status == STATUS_OK && isnan(run->flops_per_step))
        error_failed(error, "%s does not say what a step computes", plain(path).text);
    if (error->status != STATUS_OK) expert_run_free(run);
    return error->status;
}

void expert_run_free(ExpertRun *run) {
    curve_run_free(&run->curve);
    free(run->loads);
    *run = (ExpertRun){0};
}

/* ---- What it came to */

double expert_run_busiest(const ExpertRun *run, int64_t time) {
    int64_t n = run->n_blocks * run->n_experts;
    double most = run->n_times ? 0.0 : NAN;
    for (int64_t i = 0; i < n; i++) most = fmax(most, run->loads[time * n + i]);
    return most;
}

double expert_run_empty(const ExpertRun *run, int64_t time) {
    int64_t n = run->n_blocks * run->n_experts, n_empty = 0;
    for (int64_t i = 0; i < n; i++) n_empty += run->loads[time * n + i] == 0.0;
    return n ? (double)n_empty / (double)n : NAN;
}

static int64_t last_evaluation(const ExpertRun *run) {
    int64_t i = run->curve.n - 1;
    while (i >= 0 && isnan(run->curve.y[CURVE_VALIDATION][i])) i--;
    return i;
}

double expert_run_loss(const ExpertRun *run) {
    int64_t i = last_evaluation(run);
    return i < 0 ? NAN : run->curve.y[CURVE_VALIDATION][i];
}

double expert_run_flops(const ExpertRun *run) {
    return run->curve.n ? run->curve.x[CURVE_X_STEP][run->curve.n - 1] * run->flops_per_step : NAN;
}

double expert_run_seconds(const ExpertRun *run) {
    return run->curve.n ? run->curve.x[CURVE_X_TIME][run->curve.n - 1] : NAN;
}

double expert_run_seconds_to(const ExpertRun *run, double loss) {
    for (int64_t i = 0; i < run->curve.n; i++)
        if (run->curve.y[CURVE_VALIDATION][i] <= loss) return run->curve.x[CURVE_X_TIME][i];
    return NAN;
}
