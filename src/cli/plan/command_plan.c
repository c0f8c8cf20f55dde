/* pgpt plan: a run in advance (job/plan_run.h), printed, drawn and written as a trace. */
#include "cli/commands.h"
#include "cli/plan/plan_draw.h"
#include "cli/plan/plan_measure.h"
#include "cli/plan/plan_print.h"
#include "cli/plan/plan_table.h"
#include "cli/plan/plan_tune_print.h"

#include <stdio.h>

static Status show(PlanRun *plan, Error *error) {
    PlanFigures figures;
    TRY(plan_figures(plan, &figures, error));
    plan_print(plan, &figures);
    plan_draw(plan, &figures, error);
    if (error->status == STATUS_OK && plan->train.values.call.json)
        json_print(stdout, plan_json(plan, &figures), error);
    plan_figures_free(&figures);
    return error->status;
}

static Status tune(PlanRun *plan, Error *error) {
    PlanTuning tuning;
    TRY(plan_tune(plan, &(TuneOptions){.n_best = 10}, &tuning, error));
    plan_tune_print(plan, &tuning);
    if (*plan->options.out) plan_tune_draw(plan, &tuning, plan->options.out, error);
    int n_measured = (int)plan->options.n_measured;
    if (error->status == STATUS_OK && n_measured)
        plan_measure(plan, &tuning, n_measured, plan->options.out, error);
    if (error->status == STATUS_OK && plan->train.values.call.json)
        json_print(stdout, plan_tune_json(plan, &tuning), error);
    plan_tuning_free(&tuning);
    return error->status;
}

/* The file's own lines once more, as one text. */
static Status print_machine_json(const char *name, const char *text, Error *error) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("plan"));
    json_object_set_new(object, "machine", json_make_text(name));
    json_object_set_new(object, "text", json_make_text(text));
    return json_print(stdout, object, error);
}

static Status tell(PlanRun *plan, Error *error) {
    const PlanOptions *options = &plan->options;
    if (plan->train.outcome == TRAIN_RUN_HELP) {
        command_show_help(&plan_command);
        return STATUS_OK;
    }
    if (options->print_machine) {
        const char *text = machine_text(options->machine);
        if (!text)
            return error_user(error,
                              "--print-machine shows a machine that pgpt knows; name one by --machine");
        fputs(text, stdout);
        return plan->train.values.call.json ? print_machine_json(options->machine, text, error) : STATUS_OK;
    }
    if (options->table != TABLE_NONE) return plan_table(plan, error);
    if (*options->budget) return plan_budget(plan, error);
    return options->tune ? tune(plan, error) : show(plan, error);
}

Status command_plan(Launch *launch, int n_words, char *const *words, Error *error) {
    PlanRun plan = {.train = {.launch = launch}};
    if (launch->world.size > 1) {
        error_user(
            error,
            "pgpt plan runs in one process and plans for any number; start it without mpirun, and give "
            "--gpus %d",
            launch->world.size);
        return launch_agree(launch, error);
    }
    if (plan_run_open(&plan, n_words, words, error) == STATUS_OK) tell(&plan, error);
    plan_run_close(&plan, error);
    return error->status;
}
