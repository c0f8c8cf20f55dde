/* The layouts that `pgpt verify` compares with one process: every legal combination of what can be chosen, or
 * a sample in which every two choices meet.
 *
 *     VerifyChoice choice = {.n_ranks = 8, .model = models, .n_models = 2, .batch = 17};
 *     VerifyCase *cases = verify_cases(&choice, arena, &n_cases);
 *     n_cases = verify_sample(&choice, cases, n_cases, 64);
 *
 * What can be chosen is a table of dimensions (cases.c), each a function that gives its values one by one.
 * The axes of the mesh need no line there: every available one is tried in every size that the ranks divide
 * by. */
#ifndef PGPT_TRAIN_VERIFY_CASES_H
#define PGPT_TRAIN_VERIFY_CASES_H

#include "base/arena.h"
#include "model/config.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/ring_attention.h"
#include "parallel/tensor_style.h"

/* One way to train. */
typedef struct {
    int model;        /* of the choice, */
    bool tied;        /* with its embedding as the head, */
    int64_t n_layers; /* so deep */
    MeshShape shape;
    int zero;
    int all_reduce;           /* see comm_algorithm; -1: there is no choice */
    int64_t n_micro_batches;  /* that a rank's share is cut into */
    bool accumulates;         /* more of them than have to be */
    int64_t recompute;        /* as --recompute takes it */
    int64_t recompute_blocks; /* and --recompute-blocks */
    bool overlaps;
    bool by_sequence;      /* sequence parallelism, along tp */
    TensorStyle style;     /* of tp, */
    int tensor_chunks;     /* in so many parts that take turns */
    ContextStyle context;  /* how ranks of cp share a sequence */
    ScheduleKind schedule; /* of pp, in so many chunks */
    int n_chunks;
    bool checks_later; /* clipping does not wait (CLIP_CHECK) */
} VerifyCase;

typedef struct {
    const char *name; /* "" where there is one */
    ModelConfig config;
    bool is_special; /* of several: tried in each combination, not in all of everything; behind the others */
    bool keeps_tied; /* as its configuration says, though others are tried both ways */
} VerifyModel;

/* Which layouts: of n_ranks ranks. `breaks`: only those in which a sum of gradients can be left out and would
 * be missed (in 16 bits, not one of a norm's weights alone); has_algorithms: all-reduce is by an algorithm of
 * ours. */
typedef struct {
    int n_ranks;
    const VerifyModel *model;
    int n_models;
    bool varies_tied;   /* tied and untied, whatever the models say */
    bool varies_layers; /* as many as the layout needs, and one more: the parts of a pipeline are unequal */
    int64_t batch;
    bool has_algorithms, breaks, is_f32;
    bool scales_loss; /* f16: not without a flush */
    bool compresses;  /* only layouts that can */
    bool is_flushed;  /* pipelines that are, alone: others have several versions of the weights */
    bool waits;       /* for norms, before updates */
    bool moves_state; /* of the optimizer, for updates (--offload): clipping may or may not wait for them */
    int64_t n_block;  /* something is stored or sent in blocks of so many elements; 0: nothing is */
    int host_ranks;   /* of compresses, between hosts of so many ranks; 0: between all */
} VerifyChoice;

/* All of them, from the arena. */
VerifyCase *verify_cases(const VerifyChoice *choice, Arena *arena, int *n_cases);

/* At most n_wanted of the cases, moved to the front in their order; returns how many. Any two values that
 * occur together somewhere do so here, as far as the number allows. The same for the same arguments. */
int verify_sample(VerifyCase *cases, int n_cases, int n_wanted);

/* The ranks that share the batch. */
int verify_n_shares(const VerifyCase *layout);

/* The model that a case trains. */
ModelConfig verify_case_config(const VerifyChoice *choice, const VerifyCase *layout);

enum { VERIFY_NAME_BYTES = 192 };

/* "llama, tied, pp 4, dp 2, zero 2, ring, interleaved, 2 chunks, 8 micro-batches, recompute" */
const char *verify_case_name(const VerifyChoice *choice, const VerifyCase *layout, char *text,
                             size_t n_bytes);

/* "pp 4, dp 2"; "one rank". */
const char *verify_mesh_name(const MeshShape *shape, char *text, size_t n_bytes);

#endif
