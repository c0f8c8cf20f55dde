/* What one launch of lab linear has found: tables, warnings, JSON. */
#include "cli/lab/linear/lab_linear.h"

#include "base/text/format.h"

#include <math.h>
#include <stdio.h>

static bool is_attention(const Linear *study) {
    return study->problem.task == LINEAR_ATTENTION;
}

/* ---- The table */

static void print_head(const Linear *study) {
    const LinearProblem *problem = &study->problem;
    char text[256];
    printf("%s: %s, %s of %s %s, lr %g", is_attention(study) ? "attention" : "least squares",
           format_things(problem->n_weights, "weight").text, format_things(problem->n_epochs, "epoch").text,
           format_things(problem->n_points, is_attention(study) ? "sequence" : "point").text,
           problem->is_divided ? "in all" : "a rank", problem->lr);
    if (problem->noise > 0.0) printf(", noise %g", problem->noise);
    printf("; %s\n\n", launch_describe(study->launch, problem->n_threads, text, sizeof text));
}

static void print_weights(const Linear *study) {
    enum { SHOWN = 16 };
    const LinearProblem *problem = &study->problem;
    printf("%-24s %14s", "weight", "true");
    for (int e = 0; e < study->n_engines; e++) printf(" %14s", linear_engine_name(study->kind[e]));
    printf("\n");
    for (int k = 0; k < problem->n_weights && k < SHOWN; k++) {
        printf("%-24d %14.7g", k, problem->truth[k]);
        for (int e = 0; e < study->n_engines; e++) printf(" %14.7g", study->result[e].weights[k]);
        printf("\n");
    }
    if (problem->n_weights > SHOWN) printf("... and %d more\n", problem->n_weights - SHOWN);
    printf("%-24s %14s", "largest error", "");
    for (int e = 0; e < study->n_engines; e++) printf(" %14.1e", study->result[e].largest_error);
    printf("\n%-24s %14s", "last loss", "");
    for (int e = 0; e < study->n_engines; e++)
        printf(" %14.1e", study->result[e].losses[problem->n_epochs - 1]);
    printf("\n\n");
}

static void print_learned(const Linear *study) {
    const LinearResult *result = &study->result[0];
    printf("loss %.4f before the first step (chance: %.4f), %.4f before the last\n", result->losses[0],
           log(4.0), result->losses[study->problem.n_epochs - 1]);
    printf("tokens named right in sequences that it was not trained with: %.1f %% (chance: 25 %%)\n\n",
           100.0 * study->accuracy[0]);
}

static void print_time(const Linear *study, int e, double ms) {
    double all_ms = study->result[e].seconds * 1e3;
    printf(" %12.2f %11.2f %5.1f %%", ms, ms * 1e3 / (double)study->problem.n_epochs, 100.0 * ms / all_ms);
}

static void print_times(const Linear *study) {
    printf("%-24s", "time");
    for (int e = 0; e < study->n_engines; e++)
        printf(" %9s ms %11s %7s", linear_engine_name(study->kind[e]), "us an epoch", "");
    for (int p = 0; p < N_LINEAR_PHASES; p++) {
        printf("\n%-24s", linear_phase_names[p]);
        for (int e = 0; e < study->n_engines; e++) print_time(study, e, study->result[e].phase_ms[p]);
    }
    printf("\n%-24s", "all");
    for (int e = 0; e < study->n_engines; e++) print_time(study, e, study->result[e].seconds * 1e3);
    printf("\n\n");
}

static void print_efficiency(const Linear *study, int e) {
    const LinearResult *result = &study->result[e];
    const Launch *launch = study->launch;
    if (isnan(result->efficiency)) return;
    printf("%s: efficiency %.3f of %s scaling on %d ranks: alone %.2f ms, together %.2f ms%s\n",
           linear_engine_name(study->kind[e]), result->efficiency,
           study->problem.is_divided ? "strong" : "weak", launch->world.size, result->alone_seconds * 1e3,
           result->seconds * 1e3, launch->is_shared ? "; the ranks share cores" : "");
    printf("%s: best case %.3f, every epoch in its fastest round: alone %.2f ms, together %.2f ms\n",
           linear_engine_name(study->kind[e]), result->best_efficiency, result->alone_best_seconds * 1e3,
           result->best_seconds * 1e3);
}

static void print_rates(const Linear *study) {
    for (int e = 0; e < study->n_engines; e++) {
        const LinearResult *result = &study->result[e];
        double points = (double)result->n_points * (double)study->problem.n_epochs;
        printf("%s: %s", linear_engine_name(study->kind[e]),
               format_rate(points / result->seconds, is_attention(study) ? "sequences/s" : "points/s").text);
        if (!isnan(result->nodes_per_s))
            printf(", %s a core, forward and backward", format_rate(result->nodes_per_s, "nodes/s").text);
        if (!isnan(result->flops_per_s))
            printf(", %s a rank", format_rate(result->flops_per_s, "FLOP/s").text);
        printf("\n");
        print_efficiency(study, e);
    }
    printf("times are those of the median of %s, by the clock; phases are means over the ranks\n",
           format_things(study->result[0].n_rounds, "round").text);
}

/* ---- JSON */

static json_t *json_numbers(const double *values, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_make_number(values[i]));
    return list;
}

static void set_number(json_t *object, const char *name, double value) {
    json_object_set_new(object, name, json_make_number(value));
}

static void set_times(json_t *object, const Linear *study, const LinearResult *result) {
    set_number(object, "seconds", result->seconds);
    for (int p = 0; p < N_LINEAR_PHASES; p++) set_number(object, linear_phase_fields[p], result->phase_ms[p]);
    set_number(object, "epoch_ms", result->seconds * 1e3 / (double)study->problem.n_epochs);
    set_number(object, "best_seconds", result->best_seconds);
    set_number(object, "alone_seconds", result->alone_seconds);
    set_number(object, "alone_best_seconds", result->alone_best_seconds);
    set_number(object, "efficiency", result->efficiency);
    set_number(object, "best_efficiency", result->best_efficiency);
    set_number(object, "compute_base_s", result->compute.base);
    set_number(object, "compute_spread_s", result->compute.spread);
    set_number(object, "compute_chance", result->compute.chance);
    set_number(object, "compute_delay_s", result->compute.delay);
    json_object_set_new(object, "compute_samples", json_integer(result->compute.n_samples));
}

static void set_result(json_t *object, const Linear *study, int e) {
    const LinearResult *result = &study->result[e];
    const LinearProblem *problem = &study->problem;
    json_object_set_new(object, "engine", json_string(linear_engine_name(study->kind[e])));
    json_object_set_new(object, "weights", json_numbers(result->weights, result->n_weights));
    set_number(object, "largest_error", result->largest_error);
    json_object_set_new(object, "recovered",
                        isnan(result->largest_error)
                            ? json_null()
                            : json_boolean(result->largest_error <= LINEAR_RECOVERED_WITHIN));
    set_number(object, "first_loss", result->losses[0]);
    set_number(object, "loss", result->losses[problem->n_epochs - 1]);
    set_number(object, "accuracy", study->accuracy[e]);
    set_times(object, study, result);
    set_number(object, "points_per_s",
               (double)result->n_points * (double)problem->n_epochs / result->seconds);
    json_object_set_new(object, "node_evaluations",
                        isnan(result->evaluations) ? json_null()
                                                   : json_integer((json_int_t)result->evaluations));
    set_number(object, "nodes_per_s", result->nodes_per_s);
    set_number(object, "flops_per_s", result->flops_per_s);
    json_object_set_new(object, "rounds", json_integer(result->n_rounds));
}

/* The first engine's results at the top, and those of each in a list. */
static Status print_json(const Linear *study, Error *error) {
    const LinearProblem *problem = &study->problem;
    const Launch *launch = study->launch;
    json_t *object = json_object(), *list = json_array();
    json_object_set_new(object, "command", json_string("lab linear"));
    json_object_set_new(object, "problem", json_string(is_attention(study) ? "attention" : "squares"));
    json_object_set_new(object, "ranks", json_integer(launch->world.size));
    json_object_set_new(object, "hosts", json_integer(launch->n_hosts));
    json_object_set_new(object, "ranks_share_cores", json_boolean(launch->is_shared));
    json_object_set_new(object, "threads", json_integer(problem->n_threads));
    json_object_set_new(object, "scaling", json_string(problem->is_divided ? "strong" : "weak"));
    json_object_set_new(object, "points", json_integer(problem->n_points));
    json_object_set_new(object, "all_points", json_integer(study->result[0].n_points));
    json_object_set_new(object, "epochs", json_integer(problem->n_epochs));
    set_number(object, "lr", problem->lr);
    set_number(object, "noise", problem->noise);
    json_object_set_new(object, "seed", json_integer((json_int_t)problem->seed));
    json_object_set_new(object, "true_weights",
                        problem->truth ? json_numbers(problem->truth, problem->n_weights) : json_null());
    set_result(object, study, 0);
    for (int e = 0; e < study->n_engines; e++) {
        json_t *own = json_object();
        set_result(own, study, e);
        json_array_append_new(list, own);
    }
    json_object_set_new(object, "engines", list);
    return lab_print_json(object, error);
}

/* ---- Warnings */

static void warn_disturbed(const Linear *study, const LinearResult *result, const char *name,
                           const Log *log) {
    double whole = result->efficiency, best = result->best_efficiency;
    if (isnan(whole) || fabs(best - whole) <= LINEAR_DISTURBED_BY * whole) return;
    log_warning(
        log,
        "%s: efficiency is %.2f by the clock and %.2f at best: %s; believe the first, and measure on a quiet machine",
        name, whole, best,
        study->launch->is_shared ? "ranks share cores" : "something else ran beside the ranks");
}

static void warn_weights(const Linear *study, const LinearResult *result, const char *name, const Log *log) {
    if (isnan(result->largest_error) || result->largest_error <= LINEAR_RECOVERED_WITHIN) return;
    if (result->n_points < study->problem.n_weights) return;
    log_warning(log,
                "%s: a weight is %.2g off; more --epochs or a higher --lr bring it nearer, noise needs more "
                "--points",
                name, result->largest_error);
}

static void warn(const Linear *study, const Log *log) {
    const LinearProblem *problem = &study->problem;
    int64_t n_points = study->result[0].n_points;
    if (!is_attention(study) && n_points < problem->n_weights)
        log_warning(log, "%s %s not determine %s", format_things(n_points, "point").text,
                    n_points == 1 ? "does" : "do", format_things(problem->n_weights, "weight").text);
    for (int e = 0; e < study->n_engines; e++) {
        warn_weights(study, &study->result[e], linear_engine_name(study->kind[e]), log);
        warn_disturbed(study, &study->result[e], linear_engine_name(study->kind[e]), log);
    }
}

Status lab_linear_show(Linear *study, const LabOutput *output, Error *error) {
    print_head(study);
    if (is_attention(study)) print_learned(study);
    else print_weights(study);
    print_times(study);
    print_rates(study);
    fflush(stdout);
    warn(study, &output->log);
    if (study->values.linear.draws) TRY(lab_linear_draw(study, output, error));
    return study->values.lab.json ? print_json(study, error) : STATUS_OK;
}
