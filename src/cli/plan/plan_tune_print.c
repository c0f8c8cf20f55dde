/* A line a layout, with what sets it apart, and the words that train it. */
#include "cli/plan/plan_tune_print.h"

#include "base/text/format.h"
#include "graph/passes/recompute.h"
#include "lab/picture/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *train_words(const PlanRun *plan, const TunedLayout *found, Arena *arena) {
    int n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++) n_ranks *= found->layout.size[axis];
    const char *start = n_ranks > 1 ? arena_printf(arena, "mpirun -n %d ", n_ranks) : "";
    bool is_said = options_source(&plan->train.options, "threads") >= OPTION_FROM_RUN;
    const char *threads = "";
    if (!machine_is_gpu(&plan->machine.machine) && plan->n_ranks > 1 && !is_said)
        threads = arena_printf(arena, " --threads %lld", (long long)plan->train.values.train.n_threads);
    const char **words = plan_train_words(plan, &found->layout, 0, arena);
    return arena_printf(arena, "%spgpt %s%s", start, plan_words_text(words, arena), threads);
}

/* Why it is where it is: what it loses and what it does about memory. */
static const char *reason_of(const PlanRun *plan, const PlanTuning *tuning, const TunedLayout *found,
                             Arena *arena) {
    const TunedLayout *best = &tuning->best[0];
    const char *text = "";
    if (found->bubble > 0.005) text = arena_printf(arena, "%sbubble %.0f %%, ", text, 100.0 * found->bubble);
    if (found->waited > 0.005) text = arena_printf(arena, "%swaits %.0f %%, ", text, 100.0 * found->waited);
    if (found->layout.recompute)
        text = arena_printf(arena, "%scomputes %sagain, ", text,
                            found->layout.recompute == RECOMPUTE_SELECTIVE ? "what is cheap " : "");
    if (found->layout.offload != TUNE_AS_GIVEN)
        text = arena_printf(arena, "%s%s at the host, ", text, tune_offload_words[found->layout.offload]);
    int n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++) n_ranks *= found->layout.size[axis];
    if (n_ranks < plan->n_ranks)
        text = arena_printf(arena, "%swith %d of %d devices, ", text, n_ranks, plan->n_ranks);
    if (found->layout.has_no_samples) text = arena_printf(arena, "%swithout samples, ", text);
    if (found == best) return arena_printf(arena, "%sthe fastest", text);
    const char *other = found->bytes < 0.97 * best->bytes ? ", with less memory" : "";
    return arena_printf(arena, "%s%.1f %% slower%s", text, 100.0 * (found->seconds / best->seconds - 1.0),
                        other);
}

void plan_tune_print(const PlanRun *plan, const PlanTuning *tuning) {
    Arena arena = {0};
    printf(
        "%lld layouts in %.1f s: %lld need more memory than the %.4g GiB of a device; %d were planned, %d probed\n\n",
        (long long)tuning->n_layouts, tuning->seconds, (long long)tuning->n_refused,
        plan->machine.machine.device.memory_gib, tuning->n_planned, tuning->n_probed);
    printf("%3s %4s %4s %4s %4s %4s %-14s %4s %5s %9s %10s %10s %11s %6s  %s\n", "", "dp", "tp", "cp", "ep",
           "pp", "schedule", "ZeRO", "micro", "recompute", "memory", "step", "tokens/s", "MFU", "why");
    for (int i = 0; i < tuning->n_best; i++) {
        const TunedLayout *found = &tuning->best[i];
        const PlanLayout *layout = &found->layout;
        char schedule[32] = "-", recompute[24];
        if (layout->size[AXIS_PP] > 1)
            snprintf(schedule, sizeof schedule, "%s x%d", schedule_info(layout->schedule)->name,
                     layout->n_chunks);
        printf("%3d %4d %4d %4d %4d %4d %-14s %4d %5lld %9s %10s %10s %11s %5.1f%%  %s\n", i + 1,
               layout->size[AXIS_DP], layout->size[AXIS_TP], layout->size[AXIS_CP], layout->size[AXIS_EP],
               layout->size[AXIS_PP], schedule, layout->zero, (long long)layout->micro_batch,
               recompute_text(layout->recompute, recompute, sizeof recompute),
               format_bytes((uint64_t)found->bytes).text, format_duration(found->seconds).text,
               format_count(found->tokens_per_s).text, 100.0 * found->mfu,
               reason_of(plan, tuning, found, &arena));
    }
    printf("\n");
    for (int i = 0; i < tuning->n_best; i++)
        printf("%2d  %s\n", i + 1, train_words(plan, &tuning->best[i], &arena));
    arena_free(&arena);
}

/* As --recompute takes it: a number, or a name. */
static json_t *recompute_json(int64_t recompute) {
    return recompute == RECOMPUTE_SELECTIVE ? json_string("selective") : json_integer(recompute);
}

static json_t *layout_json(const PlanRun *plan, const PlanTuning *tuning, const TunedLayout *found,
                           Arena *arena) {
    json_t *object = json_object();
    for (int axis = 0; axis < N_AXES; axis++)
        json_object_set_new(object, axis_name((Axis)axis), json_integer(found->layout.size[axis]));
    json_object_set_new(object, "schedule", json_string(schedule_info(found->layout.schedule)->name));
    json_object_set_new(object, "chunks", json_integer(found->layout.n_chunks));
    json_object_set_new(object, "zero", json_integer(found->layout.zero));
    json_object_set_new(object, "micro_batch", json_integer(found->layout.micro_batch));
    json_object_set_new(object, "recompute", recompute_json(found->layout.recompute));
    const char *offload = tune_offload_words[found->layout.offload];
    json_object_set_new(object, "offload", offload ? json_string(offload) : json_null());
    json_object_set_new(object, "offload_share", json_make_number(found->layout.share));
    json_object_set_new(object, "dtype", json_string(precision_names[found->layout.precision]));
    json_object_set_new(object, "step_ms", json_make_number(found->seconds * 1e3));
    json_object_set_new(object, "peak_bytes", json_make_number(found->bytes));
    json_object_set_new(object, "bubble", json_make_number(found->bubble));
    json_object_set_new(object, "mfu", json_make_number(found->mfu));
    json_object_set_new(object, "tokens_per_s", json_make_number(found->tokens_per_s));
    json_object_set_new(object, "why", json_string(reason_of(plan, tuning, found, arena)));
    json_object_set_new(object, "train", json_make_text(train_words(plan, found, arena)));
    return object;
}

/* Estimated: what is known of it is time and memory. */
static json_t *front_json(const PlanRun *plan, const TunedLayout *found, Arena *arena) {
    json_t *object = json_object();
    json_object_set_new(object, "step_ms", json_make_number(found->seconds * 1e3));
    json_object_set_new(object, "peak_bytes", json_make_number(found->bytes));
    json_object_set_new(object, "layout", json_make_text(plan_layout_text(plan, &found->layout, arena)));
    return object;
}

json_t *plan_tune_json(const PlanRun *plan, const PlanTuning *tuning) {
    Arena arena = {0};
    json_t *object = json_object(), *best = json_array(), *front = json_array();
    json_object_set_new(object, "command", json_string("plan --tune"));
    json_object_set_new(object, "model", json_make_text(plan->train.values.model.preset));
    json_object_set_new(object, "machine", json_make_text(plan->machine.machine.device.name));
    json_object_set_new(object, "ranks", json_integer(plan->n_ranks));
    json_object_set_new(object, "layouts", json_integer(tuning->n_layouts));
    json_object_set_new(object, "refused", json_integer(tuning->n_refused));
    json_object_set_new(object, "planned", json_integer(tuning->n_planned));
    json_object_set_new(object, "probed", json_integer(tuning->n_probed));
    json_object_set_new(object, "seconds", json_make_number(tuning->seconds));
    for (int i = 0; i < tuning->n_best; i++)
        json_array_append_new(best, layout_json(plan, tuning, &tuning->best[i], &arena));
    for (int i = 0; i < tuning->n_front; i++)
        json_array_append_new(front, front_json(plan, &tuning->front[i], &arena));
    json_object_set_new(object, "best", best);
    json_object_set_new(object, "front", front);
    arena_free(&arena);
    return object;
}

Status plan_tune_draw(const PlanRun *plan, const PlanTuning *tuning, const char *folder, Error *error) {
    Arena arena = {0};
    bool drawn;
    int n_front = tuning->n_front, n_best = tuning->n_best;
    double *x = ARENA_ARRAY(&arena, double, n_front + n_best),
           *y = ARENA_ARRAY(&arena, double, n_front + n_best);
    for (int i = 0; i < n_front + n_best; i++) {
        const TunedLayout *found = i < n_front ? &tuning->front[i] : &tuning->best[i - n_front];
        x[i] = found->bytes / 1073741824.0;
        y[i] = found->seconds;
    }
    PlotSeries series[] = {{"the front, estimated", PLOT_LINES, x, y, n_front},
                           {"the best that fit, planned", PLOT_POINTS, x + n_front, y + n_front, n_best}};
    const char *title = arena_printf(&arena, "Layouts of %s on %d devices: memory and time",
                                     plan->train.values.model.preset, plan->n_ranks);
    Plot plot = {.title = title,
                 .x_label = "memory of the rank that needs most (GiB)",
                 .y_label = "time of a step (s)",
                 .x_log = true,
                 .y_log = true,
                 .caption = arena_printf(&arena, "pgpt plan --tune, %s", plan->machine.machine.device.name),
                 .series = series,
                 .n_series = 2};
    plot_write(&plot, folder, "pareto", &drawn, error);
    arena_free(&arena);
    return error->status;
}
