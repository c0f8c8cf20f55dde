/* The largest model whose training step fits into a memory, with what is offloaded: found by planning.
 *
 *     LargestQuestion question = {.model = &model, .step = &step, .optimizer = &optimizer,
 *                                 .backend = &backend, .here = 16ull << 30, .beside = 64ull << 30};
 *     LargestModel largest;
 *     TRY(largest_find(&question, &largest, error));
 *     printf("%lld parameters\n", (long long)largest.n_parameters);
 *
 * Models are of one family, with the vocabulary and the kind of block of the one given: H heads of 64
 * channels, and 12 (H/12)^0.7 blocks, which is about what GPT-3's sizes have. */
#ifndef PGPT_LAB_OFFLOAD_LARGEST_H
#define PGPT_LAB_OFFLOAD_LARGEST_H

#include "train/step/step.h"

typedef struct {
    const ModelConfig *model; /* complete */
    const StepOptions *step;  /* complete, with its offload */
    const OptimizerOptions *optimizer;
    const Backend *backend;
    uint64_t here;   /* bytes that kernels work on */
    uint64_t beside; /* bytes of pinned memory */
} LargestQuestion;

typedef struct {
    int64_t n_heads, n_layers, n_channels, n_parameters; /* 0: not even the smallest fits */
    uint64_t here, pinned, file;                         /* that its step takes */
} LargestModel;

Status largest_find(const LargestQuestion *question, LargestModel *largest, Error *error);

/* The family's model with so many heads. */
Status largest_config(const ModelConfig *like, int64_t n_heads, ModelConfig *config, Error *error);

#endif
