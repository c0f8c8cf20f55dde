/* What ranks that compress make of a model, simulated in one process.
 *
 *     CompressedModel model;
 *     TRY(compressed_model_open(&model, options, config, layout, error));
 *     TRY(compressed_model_step(&model, i, &loss, &norm, error));       // errors and moments move on,
 *     compressed_model_update(&model, i);                               // and weights
 *     compressed_model_close(&model);
 *
 * It is the algorithm of docs/COMPRESSION.md written down plainly, without the operations, the kernels and
 * the messages of a run: the gradient of every share of the batch one after the other, arrays for what every
 * rank and every owner has left over, and loops over them. */
#ifndef PGPT_TRAIN_VERIFY_COMPRESSED_MODEL_H
#define PGPT_TRAIN_VERIFY_COMPRESSED_MODEL_H

#include "train/verify/reference.h"

enum { COMPRESSED_PADDING = -1 };

/* A rank's part of the model, as it is on all n_ranks ranks along dp. */
typedef struct {
    int64_t n;      /* of the flat array */
    int64_t *place; /* (n) in the whole model's, or COMPRESSED_PADDING */
    Partition partition;
    double *error; /* (n_senders, n) */
    double *owner; /* (n) that of each slice's owner */
    const FlatPiece *piece;
    int n_pieces;
    double *basis;       /* Q of all matrices in low rank, in their order; at most n */
    bool *is_basis_near; /* likewise of these, as the next */
    bool *is_near;       /* (n) in the last step rounding may have decided what was sent of its block */
} CompressedPart;

typedef struct {
    const VerifyOptions *options;
    const VerifyCase *layout;
    const Compression *compression;
    VerifyTraining training; /* of the whole model, without clipping */
    int n_ranks, n_parts;
    double near;   /* to a border, of a block's scale: there rounding may decide what is sent */
    int n_senders; /* that have something of their own to say: ranks, or hosts whose ranks add up first */
    int *sender;   /* (n_ranks) */
    CompressedPart *part; /* (n_parts): those of tp of the first stage, then those of the next */
    int64_t n;            /* of the whole model's flat array */
    double *gradient;     /* (n_senders, n): all of them together make the batch's */
    double *weights, *momentum, *variance, *sum; /* (n) */
    float *room;                                 /* (n) */
    double *slice_room;                          /* (3, n) */
    int64_t n_variance_updates;
    /* 1-bit LAMB (compressed_lamb.h): the variance that goes on, the momentum before the step; and of each
     * tensor the mean of its trust ratios, and the factor. NULL: it is not. */
    double *fresh, *before, *average, *factor;
    /* Local steps (compressed_local.h): what each rank has by itself, (n_senders, n), where they are apart;
     * its steps since they were not; how far they went, and what weight decay has left. NULL: there are
     * none. */
    double *own_weights, *own_momentum, *own_steps;
    double distance, keep;
    bool is_apart;
    bool bias_moves; /* routers have biases, which move by the choices of all shares: */
    int64_t n_reports;
    float *reports; /* (2, n_reports) what the last share's routers say, and the sum */
    Arena arena;
} CompressedModel;

/* One part's sum in low rank (compressed_lowrank.c). */
void compressed_lowrank_simulate(CompressedModel *model, CompressedPart *part);

Status compressed_model_open(CompressedModel *model, const VerifyOptions *options, const ModelConfig *config,
                             const VerifyCase *layout, Error *error);
void compressed_model_close(CompressedModel *model); /* after a failed open, too */
Status compressed_model_step(CompressedModel *model, int64_t index, double *loss, double *norm, Error *error);

/* Behind it, by the momentum as it is then. */
void compressed_model_update(CompressedModel *model, int64_t index);

#endif
