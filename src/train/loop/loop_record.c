/* What a step has come to: its numbers, the sums of the run, and what is said where they are not finite. */
#include "base/text/format.h"
#include "train/loop/loop.h"

#include <math.h>
#include <stdio.h>

static void add_times(StepResult *sum, const StepResult *step) {
    sum->forward_ms += step->forward_ms;
    sum->backward_ms += step->backward_ms;
    sum->update_ms += step->update_ms;
    sum->comm_ms += step->comm_ms;
    sum->comm_wait_ms += step->comm_wait_ms;
    sum->stage_wait_ms += step->stage_wait_ms;
}

/* A step that is not finite. Before any weight has been changed, no learning rate can be to blame. */
static Status refuse_step(const Trainer *trainer, int64_t step, bool has_loss, double rate, Error *error) {
    const OptimizerOptions *optimizer = trainer->setup.optimizer;
    bool is_scaled = trainer->step.loss.scale != NULL,
         is_first = trainer->n_steps_timed == 1 || step <= trainer->step.scale.n_skipped; /* this one too */
    const Optimizer *rule = optimizer_of(optimizer);
    OptimizerSuspect suspect;
    char advice[256], blamed[64] = "", remedy[80] = "lower --lr";
    if (rule->suspect && rule->suspect(optimizer, &suspect)) {
        snprintf(blamed, sizeof blamed, " and --%s %s", suspect.option, format_double(suspect.value).text);
        snprintf(remedy, sizeof remedy, "raise --%s (%s is usual), or lower --lr", suspect.option,
                 suspect.usual);
    }
    if (is_first)
        snprintf(
            advice, sizeof advice,
            "nothing has been learned yet in this call, so the weights that it began with are wrong, or too large for "
            "--dtype; %s",
            is_scaled ? "use --dtype bf16" : "begin from others, or use --dtype f32");
    else
        snprintf(advice, sizeof advice, "the learning rate was %.3g%s: %s%s%s", rate, blamed, remedy,
                 optimizer->clip > 0.0 ? ", or lengthen --warmup" : ", or set --clip and --warmup",
                 is_scaled ? ", or use --dtype bf16" : "");
    return error_failed(error, "the %s of step %lld is not a finite number%s; %s",
                        has_loss ? "gradient" : "loss", (long long)step,
                        is_scaled && has_loss ? ", though the loss is not scaled any more" : "", advice);
}

/* Now and then, where it lasts: the first steps of a router may be anything. */
static void warn_of_routes(Trainer *trainer, int64_t step) {
    enum { STEPS_TO_WAIT = 20, STEPS_BETWEEN = 500 };
    char text[512];
    bool is_bad = router_report_is_bad(trainer->setup.config, &trainer->last.routes, text, sizeof text);
    trainer->n_bad_routes = is_bad ? trainer->n_bad_routes + 1 : 0;
    if (is_bad && trainer->n_bad_routes % STEPS_BETWEEN == STEPS_TO_WAIT && trainer_is_root(trainer))
        log_warning(trainer->setup.log, "step %lld: %s", (long long)step, text);
}

/* --compress-warmup auto has found its end. */
static void say_compression(const Trainer *trainer, int64_t step, const StepResult *result) {
    if (!result->begins_to_compress || !trainer_is_root(trainer)) return;
    const Compression *compression = &trainer->step.options.sync.compression;
    char name[32];
    log_note(
        trainer->setup.log,
        "step %lld: the variance is steady (%.3f of it has stayed over %lld steps): --compress %s begins "
        "with the next step",
        (long long)step, result->variance_kept, (long long)compression->n_interval,
        compression_name(compression, name, sizeof name));
}

Status loop_record(Loop *loop, int64_t step, const StepResult *result, double rate, double seconds,
                   Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    trainer->step_seconds += seconds;
    add_times(&trainer->sum, result);
    trainer->n_steps_timed++;
    double n_tokens = (double)options->batch * (double)options->sequence;
    trainer->last =
        (StepMetrics){.step = step,
                      .n_tokens = trainer_n_tokens(trainer, step),
                      .loss = result->loss,
                      .validation_loss = NAN,
                      .rate = rate,
                      .gradient_norm = result->was_skipped ? NAN : result->gradient_norm,
                      .depth_loss = result->has_depth ? result->depth_loss : NAN,
                      .depth_accuracy = result->has_depth ? result->depth_accuracy : NAN,
                      .loss_scale = trainer->step.loss.scale ? trainer->step.scale.value : NAN,
                      .n_skipped = trainer->step.scale.n_skipped,
                      .routes = result->routes,
                      .tokens_per_s = n_tokens / seconds,
                      .step_ms = seconds * 1e3,
                      .flops_per_s = loop->flops / seconds,
                      .forward_ms = result->forward_ms,
                      .backward_ms = result->backward_ms,
                      .update_ms = result->update_ms,
                      .comm_ms = trainer_n_ranks(trainer) > 1 ? result->comm_ms : NAN,
                      .comm_wait_ms = trainer_n_ranks(trainer) > 1 ? result->comm_wait_ms : NAN,
                      .stage_wait_ms = trainer->step.options.pipeline ? result->stage_wait_ms : NAN,
                      .slowest_ms = trainer_n_ranks(trainer) > 1 ? loop->slowest_ms : NAN,
                      .slowest_rank = loop->slowest_rank,
                      .variance_kept = result->variance_kept,
                      .begins_to_compress = result->begins_to_compress,
                      .staleness = NAN};
    warn_of_routes(trainer, step);
    say_compression(trainer, step, result);
    bool has_norm = trainer->step.optimizer.norm != NULL;
    bool is_sound = !has_norm || isfinite(result->gradient_norm) || result->was_skipped;
    if (isfinite(result->loss) && is_sound) return STATUS_OK;
    trainer->error_is_common = true;
    trainer->bad_step = step;
    return refuse_step(trainer, step, isfinite(result->loss), rate, error);
}
