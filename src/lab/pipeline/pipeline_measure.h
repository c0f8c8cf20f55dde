/* How long forward, input gradient and weight gradient of a transformer block take on this machine: what a
 * pipeline's schedule is predicted from.
 *
 *     BlockTimes times;
 *     TRY(pipeline_measure(&times, error));        // a second or so */
#ifndef PGPT_LAB_PIPELINE_PIPELINE_MEASURE_H
#define PGPT_LAB_PIPELINE_PIPELINE_MEASURE_H

#include "base/error.h"

/* Of one block and one micro-batch, in milliseconds; the update of one block. */
typedef struct {
    double forward_ms, input_gradient_ms, weight_gradient_ms, update_ms;
    char what[96]; /* was measured: "a block of 128 channels, 4 x 64 tokens, 2 threads" */
} BlockTimes;

Status pipeline_measure(BlockTimes *times, Error *error);

#endif
