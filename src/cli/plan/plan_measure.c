/* Each line is started as a user would start it. Where runs take longer than was said by a factor that they
 * have in common, the machine is slower by that factor: its rates are divided by it, and its latencies
 * multiplied. */
#include "cli/plan/plan_measure.h"

#include "base/options/options_text.h"
#include "lab/launch/launch_child.h"
#include "lab/launch/launcher.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_STEPS = 6, MOST_SECONDS = 600 };

static const char *line_of(const PlanRun *plan, const TunedLayout *found, Launcher *launcher, Arena *arena) {
    int n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++) n_ranks *= found->layout.size[axis];
    const char *const arguments[] = {"train", NULL};
    const char *const *words = launcher_words(launcher, n_ranks, arguments);
    const char *line = "folder=$(mktemp -d) &&";
    for (int i = 0; words[i]; i++) line = arena_printf(arena, "%s %s", line, plan_quoted(words[i], arena));
    bool is_gpu = machine_is_gpu(&plan->machine.machine);
    const char *threads =
        is_gpu ? "" : arena_printf(arena, "--threads %lld", (long long)plan->train.values.train.n_threads);
    const char *words_of_layout = plan_layout_words(plan, &found->layout, arena);
    return arena_printf(arena,
                        "%s %s %s %s --steps %d --no-save --json --quiet --sample-tokens 0 --eval-every 0 "
                        "--out \"$folder/run\"; code=$?; rm -rf \"$folder\"; exit $code",
                        line, plan_other_words(plan, arena), words_of_layout, threads, N_STEPS);
}

static Status measure_one(const PlanRun *plan, const TunedLayout *found, Launcher *launcher, double *seconds,
                          Error *error) {
    Arena arena = {0};
    const char *const words[] = {"sh", "-c", line_of(plan, found, launcher, &arena), NULL};
    ChildResult result = {0};
    json_t *object = NULL;
    TRY_GOTO(child_run(&(ChildSetup){.words = words, .timeout_s = MOST_SECONDS}, &result, error), done);
    TRY_GOTO(child_check(&result, words, error), done);
    TRY_GOTO(child_json(&result, words, &object, error), done);
    *seconds = json_number_value(json_object_get(object, "step_ms")) * 1e-3;
done:
    json_decref(object);
    child_free(&result);
    arena_free(&arena);
    return error->status;
}

static Status write_corrected(const PlanRun *plan, double factor, const char *path, Error *error) {
    Options options;
    Machine values;
    TRY(options_init(&options, &machine_file_command, &values, error));
    values = plan->machine.machine;
    MachineDevice *device = &values.device;
    double *rates[] = {&device->tflops_16,      &device->tflops_tf32,        &device->tflops_32,
                       &device->vector_tflops,  &device->memory_gbs,         &device->cache_gbs,
                       &values.host.inside_gbs, &values.network.between_gbs, &values.host.host_memory_gbs,
                       &values.host.bus_gbs};
    double *times[] = {&device->launch_us, &values.host.inside_us, &values.network.between_us,
                       &values.network.step_us};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] /= factor;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) *times[i] *= factor;
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file,
                "# Corrected by 'pgpt plan --tune --measure': runs took %.3f times what was predicted.\n",
                factor);
        options_write_values(file, &options);
    }
    options_free(&options);
    if (!file || fclose(file) != 0)
        return error_user(error, "cannot write %s; choose another place by --plan-out", path);
    return STATUS_OK;
}

Status plan_measure(const PlanRun *plan, const PlanTuning *tuning, int n, const char *folder, Error *error) {
    Launcher launcher;
    double sum = 0.0;
    int n_done = 0;
    if (plan->n_ranks > 1) TRY(launcher_open(&launcher, "", error));
    else TRY(launcher_open_alone(&launcher, error));
    printf("\n%3s %12s %12s %8s\n", "", "predicted", "measured", "error");
    for (int i = 0; i < n && i < tuning->n_best && error->status == STATUS_OK; i++) {
        double seconds = 0.0, said = tuning->best[i].seconds;
        if (measure_one(plan, &tuning->best[i], &launcher, &seconds, error) != STATUS_OK) break;
        printf("%3d %9.1f ms %9.1f ms %+6.1f %%\n", i + 1, said * 1e3, seconds * 1e3,
               100.0 * (said / seconds - 1.0));
        sum += log(seconds / said);
        n_done++;
    }
    launcher_close(&launcher);
    if (error->status != STATUS_OK || !n_done) return error->status;
    Arena arena = {0};
    const char *path = arena_printf(&arena, "%s%smachine.ini", folder, *folder ? "/" : "");
    if (write_corrected(plan, exp(sum / n_done), path, error) == STATUS_OK)
        printf("the machine, corrected: pgpt plan --machine %s\n", path);
    arena_free(&arena);
    return error->status;
}
