/* The proof that a layout never changes the result: a small model, trained serially and in every layout that
 * the ranks at hand allow, with losses and weights compared after every step.
 *
 * The serial run is the root's; its losses and weights after each step are every rank's reference. */
#ifndef PGPT_TRAIN_VERIFY_H
#define PGPT_TRAIN_VERIFY_H

#include "parallel/launch/launch.h"
#include "parallel/mesh.h"
#include "train/step.h"

/* One way to train. */
typedef struct {
    MeshShape shape;
    int zero;
    int all_reduce;          /* see comm_algorithm; -1: there is no choice */
    int64_t n_micro_batches; /* that a rank's share is cut into, at least */
    int64_t recompute;
    bool overlaps;
    bool by_sequence;      /* sequence parallelism, along tp */
    ScheduleKind schedule; /* of pp, in so many chunks */
    int n_chunks;
} VerifyCase;

/* "dp 8, zero 2, ring, 2 micro-batches, recompute" */
const char *verify_case_name(const VerifyCase *layout, char *text, size_t n_bytes);

/* Which layouts: `breaks`, only those in which a sum of gradients can be left out and would be missed (in 16
 * bits, not one of a norm's weights alone); has_algorithms: all-reduce is by an algorithm of ours. */
typedef struct {
    int n_ranks;
    int64_t n_layers, batch;
    bool has_algorithms, breaks, is_f32;
} VerifyChoice;

/* Every legal layout of so many ranks: all meshes over the available axes, and on each every ZeRO stage with
 * and without overlap, accumulation and recomputation, sequence parallelism, and every all-reduce algorithm,
 * where there is a choice. From the arena. */
VerifyCase *verify_cases(const VerifyChoice *choice, Arena *arena, int *n_cases);

typedef struct {
    const ModelConfig *config; /* complete */
    const Backend *backend;
    Launch *launch;
    Precision precision;
    int64_t n_steps, batch;
    double tolerance;        /* of the loss, relative */
    double weight_tolerance; /* of weights, of the largest of each tensor */
    int left_out;            /* see GradientSyncOptions */
} VerifyOptions;

typedef struct {
    ParameterTable table;
    double *losses; /* (n_steps) of the serial run */
    float *weights; /* (n_steps, n_flat_elements) after each step */
    double seconds;
    size_t weights_bytes;
} VerifyReference;

/* Train serially on the root, and hand out what came of it. Collective. */
Status verify_reference_open(VerifyReference *reference, const VerifyOptions *options, Error *error);
void verify_reference_close(VerifyReference *reference);

typedef struct {
    double loss_deviation;   /* the largest over all steps and ranks, relative */
    double weight_deviation; /* likewise */
    /* The first deviation beyond the tolerance: of the earliest step, there the loss or the first tensor of
     * the table. */
    bool differs;
    int64_t step;    /* counted from 1 */
    int parameter;   /* its position in the table, -1: only the loss */
    int64_t element; /* of that parameter */
    int rank;
    double value, wanted;
    double seconds;
    const char *transport; /* what the sums over ranks went by: "mpi", "nccl", "staged" (through the host) */
} VerifyResult;

/* Train in this layout. Collective; every rank gets the same result. */
Status verify_run(const VerifyOptions *options, const VerifyReference *reference, const VerifyCase *layout,
                  VerifyResult *result, Error *error);

#endif
