/* Where the arithmetic of a training step goes: counted over the program that would run, and timed over one
 * that does.
 *
 *     ModelConfig config;
 *     TRY(flops_ladder_config(i, 2048, &config, error));
 *     FlopsCount count;
 *     TRY(flops_count(&config, 1, 2048, 0, &count, error));   // on the null backend: no memory is taken
 *     ... count.flops[FLOPS_MLP] / count.total ... */
#ifndef PGPT_LAB_FLOPS_H
#define PGPT_LAB_FLOPS_H

#include "device/device.h"
#include "model/config.h"

typedef enum {
    FLOPS_PROJECTIONS, /* of attention: queries, keys, values, and what joins the heads */
    FLOPS_SCORES,      /* of attention: queries by keys, softmax, weights by values */
    FLOPS_MLP,
    FLOPS_LOGITS, /* with cross-entropy */
    FLOPS_REST,   /* embedding, norms, residuals, update */
    N_FLOPS_PARTS
} FlopsPart;

extern const char *const flops_part_names[N_FLOPS_PARTS];

typedef struct {
    double flops[N_FLOPS_PARTS], seconds[N_FLOPS_PARTS]; /* of a step; seconds 0 unless it ran */
    double total, again;    /* FLOPs: all; and of these what activation checkpointing computes again */
    double total_s, step_s; /* of all instructions, and of the step around them */
    int64_t n_parameters;
} FlopsCount;

/* ---- GPT-3's ladder of sizes, which OPT took over */

const char *flops_ladder_name(int index);                /* "1.3B" */
int flops_ladder_find(const char *name, size_t n_bytes); /* -1: there is none */
Status flops_ladder_config(int index, int64_t context, ModelConfig *config, Error *error);

/* ---- Counting and timing */

/* A step of n_sequences sequences of T tokens, `recompute` blocks a segment (0: none). */
Status flops_count(const ModelConfig *config, int64_t n_sequences, int64_t T, int64_t recompute,
                   FlopsCount *count, Error *error);

/* The same, run n_steps times on random tokens behind one that does not count; mean seconds of a step. */
Status flops_measure(const ModelConfig *config, const DeviceOptions *device, int64_t n_sequences, int64_t T,
                     int64_t n_steps, FlopsCount *count, Error *error);

#endif
