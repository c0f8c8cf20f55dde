/* What would fit into memory where something does not: found by planning it, so that every figure is a
 * plan's.
 *
 *     MemoryQuestion question = {.present = {.batch = 64, .micro_batch = 64}, .usable = n_free,
 *                                .plan = ..., .state = ...};
 *     MemoryAdvice advice = memory_advise(&question);
 *     memory_advice_text(&question, &advice, text, sizeof text);
 *     // "what would fit: --micro-batch 8 (31.0 GiB), --micro-batch 16 --recompute 1 (28.4 GiB)"
 *
 * A plan takes milliseconds and no memory of the device; at most MEMORY_MOST_PLANS are made. */
#ifndef PGPT_PLAN_ADVICE_H
#define PGPT_PLAN_ADVICE_H

#include "optim/optimizer.h"
#include "parallel/sync/gradient_sync.h"

/* The options that memory depends on and that leave the model as it is. */
typedef struct {
    int64_t batch;            /* sequences a step */
    int64_t micro_batch;      /* sequences that a rank computes at once */
    int64_t recompute;        /* as --recompute takes it */
    int64_t recompute_blocks; /* as --recompute-blocks does; of no account where that is of whole blocks */
    int precision;            /* PrecisionKind */
    int zero;
    bool offloads; /* the optimizer, to the host's memory, or on a CPU to a file */
} MemoryChoice;

typedef struct {
    MemoryChoice present;     /* what does not fit. A batch of 0: nothing to choose from */
    uint64_t needed;          /* bytes of it */
    uint64_t usable;          /* bytes that there are */
    int n_ranks;              /* 0: alone, and it cannot be otherwise */
    bool is_gpu;              /* 16-bit numbers are worth it there */
    bool has_one_micro_batch; /* the batch is what has to become smaller */
    bool may_offload;         /* optimizer state could be kept elsewhere, and is not */
    double offload_bytes;     /* that then cross the bus each way a step, or that a disk reads and writes */
    /* Bytes that a choice needs, by planning it. */
    Status (*plan)(void *context, const MemoryChoice *choice, uint64_t *n_bytes, Error *error);
    /* Bytes that it needs at the very least, without planning: what a rank holds of weights, gradients and
     * moments. */
    uint64_t (*state)(void *context, const MemoryChoice *choice);
    void *context;
} MemoryQuestion;

typedef struct {
    MemoryChoice choice;
    uint64_t n_bytes;
} MemoryAnswer;

enum { MEMORY_MOST_ANSWERS = 5, MEMORY_MOST_PLANS = 15 };

typedef struct {
    MemoryAnswer answer[MEMORY_MOST_ANSWERS];
    int n_answers;      /* 0: nothing fits */
    MemoryAnswer least; /* of all that was planned */
    int n_plans;
    uint64_t least_state; /* of all that was thought of */
} MemoryAdvice;

MemoryAdvice memory_advise(const MemoryQuestion *question);

/* What `state` answers for a training step of this layout, but for the choice's stage and precision. */
uint64_t memory_state_bytes(const GradientSyncOptions *sync, const MemoryChoice *choice,
                            const OptimizerOptions *optimizer, const ParameterTable *table);

/* The advice as the end of a message. */
const char *memory_advice_text(const MemoryQuestion *question, const MemoryAdvice *advice, char *text,
                               size_t n_bytes);

#endif
