/* Each line is started as a user would start it. Where runs take longer than was said by a factor that they
 * have in common, the machine is slower by that factor: its rates are divided by it, and its latencies
 * multiplied. */
#include "cli/plan/plan_measure.h"

#include "lab/launch/launch_child.h"
#include "lab/launch/launcher.h"
#include "run/interrupt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_STEPS = 6, MOST_SECONDS = 600 };

static const char *const *words_of(const PlanRun *plan, const TunedLayout *found, Launcher *launcher,
                                   const char *folder, Arena *arena) {
    const char *const own[] = {"--no-save",
                               "--json",
                               "--quiet",
                               "--sample-tokens",
                               "0",
                               "--eval-every",
                               "0",
                               "--steps",
                               arena_printf(arena, "%d", N_STEPS),
                               "--out",
                               arena_printf(arena, "%s/run", folder),
                               "--threads",
                               arena_printf(arena, "%lld", (long long)plan->train.values.train.n_threads)};
    int n_ranks = 1, n_own = sizeof own / sizeof own[0] - (machine_is_gpu(&plan->machine.machine) ? 2 : 0);
    for (int axis = 0; axis < N_AXES; axis++) n_ranks *= found->layout.size[axis];
    const char **words = plan_train_words(plan, &found->layout, n_own, arena);
    int n = 0;
    while (words[n]) n++;
    for (int i = 0; i < n_own; i++) words[n + i] = own[i];
    return launcher_words(launcher, n_ranks, words);
}

static Status measure_one(const PlanRun *plan, const TunedLayout *found, Launcher *launcher, double *seconds,
                          Error *error) {
    Arena arena = {0};
    RunFolder folder = {0};
    ChildResult result = {0};
    json_t *object = NULL;
    const char *parent = getenv("TMPDIR");
    TRY_GOTO(run_folder_make(&folder, parent && *parent ? parent : "/tmp", error), done);
    const char *const *words = words_of(plan, found, launcher, folder.path, &arena);
    TRY_GOTO(child_run(&(ChildSetup){.words = words, .timeout_s = MOST_SECONDS}, &result, error), done);
    TRY_GOTO(child_check(&result, words, error), done);
    TRY_GOTO(child_json(&result, words, &object, error), done);
    *seconds = json_number_value(json_object_get(object, "step_ms")) * 1e-3;
done:
    json_decref(object);
    child_free(&result);
    run_folder_remove(&folder);
    arena_free(&arena);
    return error->status;
}

static Status write_corrected(const PlanRun *plan, double factor, const char *path, Arena *arena,
                              Error *error) {
    Machine values = plan->machine.machine;
    MachineDevice *device = &values.device;
    double *rates[] = {&device->tflops_16,      &device->tflops_tf32,        &device->tflops_32,
                       &device->vector_tflops,  &device->memory_gbs,         &device->cache_gbs,
                       &values.host.inside_gbs, &values.network.between_gbs, &values.host.host_memory_gbs,
                       &values.host.bus_gbs};
    const char **samples[] = {&device->samples, &device->all_thread_samples, &device->busy_samples,
                              &values.host.message_samples};
    double *times[] = {&device->launch_us, &values.host.inside_us, &values.network.between_us,
                       &values.network.step_us};
    char comment[120];
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) *rates[i] /= factor;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) *times[i] *= factor;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        *samples[i] = samples_scale(*samples[i], 1.0 / factor, arena);
    snprintf(comment, sizeof comment,
             "Corrected by 'pgpt plan --tune --measure': runs took %.3f times what was predicted.", factor);
    return machine_write(&values, comment, path, error);
}

Status plan_measure(const PlanRun *plan, const PlanTuning *tuning, int n, const char *folder, Error *error) {
    Launcher launcher;
    double sum = 0.0;
    int n_done = 0;
    if (plan->n_ranks > 1) TRY(launcher_open(&launcher, "", error));
    else TRY(launcher_open_alone(&launcher, error));
    interrupt_watch();
    printf("\n%3s %12s %12s %8s\n", "", "predicted", "measured", "error");
    for (int i = 0; i < n && i < tuning->n_best && error->status == STATUS_OK; i++) {
        double seconds = 0.0, said = tuning->best[i].seconds;
        if (measure_one(plan, &tuning->best[i], &launcher, &seconds, error) != STATUS_OK) break;
        printf("%3d %9.1f ms %9.1f ms %+6.1f %%\n", i + 1, said * 1e3, seconds * 1e3,
               100.0 * (said / seconds - 1.0));
        sum += log(seconds / said);
        n_done++;
    }
    interrupt_ignore();
    launcher_close(&launcher);
    if (error->status != STATUS_OK || !n_done) return error->status;
    if (!*folder) {
        printf(
            "runs took %.3f times what was predicted; --plan-out DIR writes the machine, corrected by it\n",
            exp(sum / n_done));
        return STATUS_OK;
    }
    Arena arena = {0};
    const char *path = arena_printf(&arena, "%s/machine.ini", folder);
    if (write_corrected(plan, exp(sum / n_done), path, &arena, error) == STATUS_OK)
        printf("the machine, corrected: pgpt plan --machine %s\n", path);
    arena_free(&arena);
    return error->status;
}
