/* pgpt train --compress: what it comes to in this run, and with what it cannot go. */
#include "job/train_run.h"

#include "base/options/options_refuse.h"
#include "parallel/mesh_hosts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Status refuse_ignored(const TrainRun *run, Error *error) {
    bool compresses = run->compression.kind != COMPRESS_NONE;
    const OptionCondition rules[] = {
        {"compress-warmup", "--compress", compresses},
        {"compress-across", "--compress", compresses},
        {"lamb-scale-beta", "--compress 1bit-lamb", compression_is_lamb(&run->compression)},
        {"lamb-scale-min", "--compress 1bit-lamb", compression_is_lamb(&run->compression)},
        {"lamb-scale-max", "--compress 1bit-lamb", compression_is_lamb(&run->compression)},
        {"lamb-scale-change", "--compress 1bit-lamb", compression_is_lamb(&run->compression)},
    };
    return options_refuse_idle(&run->options, rules, sizeof rules / sizeof rules[0], OPTION_FROM_COMMAND,
                               error);
}

/* A run that was begun on several ranks may be ended by one, which sends nothing. */
static Status check_alone(TrainRun *run, Error *error) {
    const int *size = run->shape.size;
    if (run->compression.kind == COMPRESS_NONE || size[AXIS_DP] * size[AXIS_CP] > 1) return STATUS_OK;
    const char *text = run->values.parallel.compress;
    int n_ranks = mesh_n_ranks(&run->shape);
    if (run->is_any_layout) {
        run->compression = (Compression){0}; /* until there is one */
        return STATUS_OK;
    }
    if (options_source(&run->options, "compress") == OPTION_FROM_COMMAND) {
        char several[64] = "start several with mpirun -n 4";
        if (n_ranks > 1)
            snprintf(several, sizeof several, "start %d (mpirun -n) and let --dp take them", 2 * n_ranks);
        return error_user(error,
                          "--compress %s is for ranks that share a batch, along dp or cp, and here is one of "
                          "them; %s, or leave it out",
                          text, several);
    }
    log_warning(&run->log, "the run was begun with --compress %s; with nobody to send to it goes on as exact",
                text);
    run->compression = (Compression){0};
    return STATUS_OK;
}

/* A run that was begun on several hosts may be ended on one, where everything is exact. */
static Status check_hosts(TrainRun *run, Error *error) {
    ParallelOptions *parallel = &run->values.parallel;
    run->compression.is_across_hosts = parallel->compress_across == COMPRESS_ACROSS_HOSTS;
    if (!run->compression.is_across_hosts) return STATUS_OK;
    train_hosts_number(run);
    if (mesh_check_hosts(&run->shape, run->hosts, error) == STATUS_OK) return STATUS_OK;
    HostPlace place = mesh_host_place(&run->shape, 0, run->hosts);
    if (options_source(&run->options, "compress-across") == OPTION_FROM_COMMAND || place.n_hosts > 1)
        return error->status;
    *error = (Error){0};
    log_warning(&run->log, "the run was begun with --compress %s between hosts; on one it goes on as exact",
                parallel->compress);
    run->compression = (Compression){0};
    return STATUS_OK;
}

/* What else of the run it cannot go with. */
static Status check_others(const TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    const char *text = values->parallel.compress;
    Precision precision = precision_of((PrecisionKind)values->train.precision);
    if (values->parallel.zero > 2)
        return error_user(error,
                          "--compress %s needs whole weights on every rank, and --zero 3 shards them; choose "
                          "--zero 1 or 2, or leave one out",
                          text);
    if (values->async.sync != SYNC_EXACT)
        return error_user(error,
                          "--compress %s is of sums in every step, and --sync %s makes none; leave one out",
                          text, sync_names[values->async.sync]);
    if (offload_has(&run->offload, OFFLOAD_OPTIMIZER))
        return error_user(error,
                          "--compress %s works on the optimizer's state where gradients are, and --offload "
                          "optimizer keeps it elsewhere; leave one out",
                          text);
    if (run->offload.to[OFFLOAD_GRADIENTS] == OFFLOAD_FILE)
        return error_user(
            error,
            "--compress %s packs gradients in memory, and --offload gradients:file has them in a "
            "file; leave one out",
            text);
    if (run->shape.size[AXIS_EP] > 1)
        return error_user(error,
                          "--compress %s is for what all ranks hold, and --ep %d divides the experts among "
                          "them; leave one out",
                          text, run->shape.size[AXIS_EP]);
    if (train_has_pipeline(run) && schedule_info(run->layout.kind)->is_asynchronous)
        return error_user(
            error,
            "--compress %s needs the whole gradient of a step, and --schedule %s is not flushed "
            "between them; choose a synchronous schedule (1f1b)",
            text, schedule_info(run->layout.kind)->name);
    if (values->optimizer.clip_style == CLIP_CHECK)
        return error_user(
            error,
            "--compress %s cannot take an update back, as --clip-style check may have to: errors "
            "are spent by then; leave out --clip-style",
            text);
    if (precision.gradient != DTYPE_F32)
        return error_user(
            error,
            "--compress %s keeps its errors in f32 beside f32 gradients; choose --dtype bf16 or "
            "f16 in the place of %s",
            text, precision_names[values->train.precision]);
    if (compression_is_adam(&run->compression) && values->optimizer.moments != MOMENTS_AUTO &&
        values->optimizer.moments != MOMENTS_F32)
        return error_user(
            error,
            "--compress %s needs its moments in f32; leave out --moments, or choose int8, f16 or "
            "topk:X",
            text);
    if (compression_is_lamb(&run->compression) && values->optimizer.kind != OPTIMIZER_LAMB)
        return error_user(
            error,
            "--compress %s is a form of LAMB and needs --optimizer lamb, with a --lr for it (0.03, say); for %s "
            "choose %sint8, f16 or topk:X",
            text, optimizer_name((OptimizerKind)values->optimizer.kind),
            values->optimizer.kind == OPTIMIZER_ADAMW ? "1bit-adam, 0/1-adam, " : "");
    if (compression_is_adam(&run->compression) && !compression_is_lamb(&run->compression) &&
        values->optimizer.kind != OPTIMIZER_ADAMW)
        return error_user(
            error,
            "--compress %s is a form of Adam and needs --optimizer adamw; for %s choose %sint8, f16 "
            "or topk:X",
            text, optimizer_name((OptimizerKind)values->optimizer.kind),
            values->optimizer.kind == OPTIMIZER_LAMB ? "1bit-lamb, " : "");
    Precision stored = optimizer_precision(&values->optimizer, precision);
    if (compression_is_adam(&run->compression) && (stored.moment != DTYPE_F32 || stored.has_packed_moments))
        return error_user(error,
                          "--compress %s sends moments in the place of gradients, and they have to be f32; "
                          "leave out --moments %s",
                          text, moments_names[values->optimizer.moments]);
    return STATUS_OK;
}

static Status parse_warmup(const char *text, int64_t *n_steps, Error *error) {
    if (options_whole_number(text, n_steps) && *n_steps >= -1 && *n_steps <= INT64_MAX / 2) return STATUS_OK;
    return error_user(
        error,
        "--compress-warmup %s: it is a number of steps, -1 (a fifth of them) or auto (until the "
        "variance is steady)",
        text);
}

/* The run looks at the variance itself, from one time constant of it to the next. */
static Status find_warmup(TrainRun *run, Error *error) {
    const OptimizerOptions *optimizer = &run->values.optimizer;
    Compression *compression = &run->compression;
    if (!compression_is_adam(compression))
        return error_user(error,
                          "--compress-warmup auto is by a variance that is frozen, and --compress %s freezes "
                          "none; give a number of steps",
                          run->values.parallel.compress);
    bool is_lamb = compression_is_lamb(compression);
    double beta2 = is_lamb ? optimizer->lamb.beta2 : optimizer->adamw.beta2;
    int64_t n_steps = run->values.train.n_steps;
    compression->is_auto = true;
    compression->n_warmup = COMPRESS_UNDECIDED;
    compression->n_interval = (int64_t)fmin(ceil(1.0 / (1.0 - beta2) - 1e-6), 1e15);
    compression->n_before = optimizer_learning_rate(optimizer, n_steps).n_warmup_steps;
    if (2 * compression->n_interval < n_steps) return STATUS_OK;
    return error_user(error,
                      "--compress-warmup auto compares the variance over 1/(1-%s) = %lld steps, and a run of "
                      "%lld would hardly compress; give a number of steps, or lower --%s",
                      is_lamb ? "lamb-beta2" : "beta2", (long long)compression->n_interval,
                      (long long)n_steps, is_lamb ? "lamb-beta2" : "beta2");
}

/* Ranks that have weights of their own for some steps. */
static Status check_local(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    const OptimizerOptions *optimizer = &values->optimizer;
    const char *text = values->parallel.compress;
    run->compression.highest_rate = optimizer->rate;
    if (!compression_is_local(&run->compression)) return STATUS_OK;
    if (run->compression.is_across_hosts)
        return error_user(error,
                          "--compress %s has every rank go by its own gradient for some steps, and with "
                          "--compress-across hosts ranks of a host share theirs in each; choose 0/1-adam, or "
                          "leave --compress-across out",
                          text);
    if (run->shape.size[AXIS_CP] > 1)
        return error_user(
            error,
            "--compress %s gives ranks weights of their own for some steps, and those of --cp %d "
            "work on one sequence together; choose 0/1-adam, or --tp or --pp in the place of "
            "--cp",
            text, run->shape.size[AXIS_CP]);
    if (run->offload.to[OFFLOAD_WEIGHTS] == OFFLOAD_FILE)
        return error_user(
            error,
            "--compress %s keeps each rank's own weights beside those that all have, and --offload "
            "weights:file has them in a file; choose 0/1-adam, or leave --offload out",
            text);
    if (precision_of((PrecisionKind)values->train.precision).scales_loss)
        return error_user(
            error,
            "--compress %s with --dtype %s: a step that overflows is left out, and ranks that are "
            "apart would stay so; choose --dtype bf16, or 0/1-adam",
            text, precision_names[values->train.precision]);
    if (optimizer->schedule == LEARNING_RATE_CONSTANT)
        return error_user(error,
                          "--compress %s: intervals grow as the learning rate falls, and with --lr-schedule "
                          "constant it never does; choose another schedule, or 0/1-adam",
                          text);
    return STATUS_OK;
}

Status train_compress_complete(TrainRun *run, Error *error) {
    ParallelOptions *parallel = &run->values.parallel;
    TRY(compression_parse(parallel->compress, &run->compression, error));
    TRY(refuse_ignored(run, error));
    TRY(check_alone(run, error));
    if (run->compression.kind == COMPRESS_NONE) return STATUS_OK;
    TRY(check_others(run, error));
    TRY(check_hosts(run, error));
    if (run->compression.kind == COMPRESS_NONE) return STATUS_OK;
    TRY(check_local(run, error));
    if (run->compression.kind == COMPRESS_TOPK && run->values.optimizer.kind == OPTIMIZER_ADAMW)
        log_note(
            &run->log,
            "--compress %s sends gradients, by which Adam learns slowly; topk-adam:%g sends its momentum",
            parallel->compress, run->compression.share);
    if (strcmp(parallel->compress_warmup, "auto") == 0) return find_warmup(run, error);
    TRY(parse_warmup(parallel->compress_warmup, &run->compression.n_warmup, error));
    if (run->compression.n_warmup < 0)
        run->compression.n_warmup = compression_default_warmup(&run->compression, run->values.train.n_steps);
    if (compression_is_adam(&run->compression) && run->compression.n_warmup == 0)
        return error_user(error,
                          "--compress-warmup 0: %s freezes a variance that it has to learn first; give it "
                          "some steps, a fifth of them say, or auto",
                          parallel->compress);
    if (run->compression.n_warmup >= run->values.train.n_steps)
        log_warning(&run->log,
                    "--compress %s: the first %lld steps are exact (--compress-warmup), which are all of the "
                    "%lld; nothing is compressed",
                    parallel->compress, (long long)run->compression.n_warmup,
                    (long long)run->values.train.n_steps);
    return STATUS_OK;
}

static bool is_multiple(int64_t every, int64_t n_done) {
    return every > 0 && n_done % every == 0;
}

/* Is there something behind it that needs weights that are the same everywhere? */
static bool is_followed(const TrainOptions *train, int64_t n_done) {
    return n_done == train->n_steps || is_multiple(train->eval_every, n_done) ||
           is_multiple(train->save_every, n_done) || is_multiple(train->sample_every, n_done);
}

CompressedSteps train_compress_steps(const TrainRun *run) {
    enum { MOST_COUNTED = 10000000 };
    const TrainOptions *train = &run->values.train;
    Compression compression = run->compression;
    LearningRateSchedule schedule = optimizer_learning_rate(&run->values.optimizer, train->n_steps);
    CompressedSteps steps = {0};
    if (train->n_steps > MOST_COUNTED) return steps;
    if (compression.n_warmup == COMPRESS_UNDECIDED) compression.n_warmup = 0;
    for (int64_t i = 0; i < train->n_steps; i++) {
        bool joins =
            is_followed(train, i + 1) || compression_joins(&compression, i, learning_rate_at(&schedule, i));
        if (compression_is_exact(&compression, i)) steps.n_exact++;
        else if (joins) steps.n_compressed++;
        else steps.n_local++;
    }
    return steps;
}
