/* When Adam's variance is steady enough to be frozen (--compress-warmup auto), by the rule of 1-bit Adam's
 * authors: a time constant of it, 1/(1-β2) steps, has left it 0.96 of what it was. A variance that begins at
 * 0 grows by its bias alone, so that is corrected for first; and what has grown is no steadier than what has
 * shrunk by as much. All ranks take the same number, so they agree, whoever has summed in which order. */
#include "train/step/step_inside.h"

#include <math.h>

static double corrected(const TrainStep *step, double norm) {
    float hyper[N_HYPER];
    int64_t n = step->phase.n_variance_updates;
    optimizer_hyper(&step->optimizer_options, 0.0, n > 0 ? n - 1 : 0, step->options.seed, hyper);
    return norm * (double)hyper[HYPER_CORRECTION2];
}

Status step_look_at_variance(TrainStep *step, StepResult *result, Error *error) {
    Compression *compression = &step->options.sync.compression;
    CompressedPhase *phase = &step->phase;
    float norm;
    if (!step->variance_norm || !compression_looks(compression, phase->index)) return STATUS_OK;
    TRY(executor_download(&step->executor, step->variance_norm, &norm, error));
    TRY(comm_all_reduce(step->options.sync.mesh->world, &norm, 1, COMM_F32, COMM_MAX, error));
    double now = corrected(step, (double)norm), before = phase->variance_norm;
    phase->variance_norm = now;
    if (!(before > 0.0) || !(now > 0.0)) return STATUS_OK;
    result->variance_kept = fmin(now, before) / fmax(now, before);
    result->begins_to_compress = result->variance_kept >= COMPRESS_STEADY;
    if (result->begins_to_compress) compression->n_warmup = phase->index + 1;
    return STATUS_OK;
}
