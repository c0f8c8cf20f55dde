/* Least squares by gradient descent, on many ranks, with two engines: the smallest study of parallel
 * training.
 *
 * Points x are drawn from the normal distribution, y = W·x (+ noise), and the weights are found again from
 * the points: each epoch every rank computes the gradient over its own points, the gradients are added up
 * over the ranks, and every rank takes the same step. Point i is the same wherever it is: it depends on the
 * seed and on i alone.
 *
 *     LinearProblem problem = {.truth = W, .n_weights = 5, .n_points = 10000, .n_epochs = 300,
 *                              .lr = 0.1, .n_rounds = 5};
 *     LinearResult result;
 *     TRY(linear_run(&problem, LINEAR_SCALAR, launch, &result, error));         // collective
 *     ... result.weights, result.forward_ms ...
 *     linear_result_close(&result); */
#ifndef PGPT_LAB_LINEAR_LINEAR_H
#define PGPT_LAB_LINEAR_LINEAR_H

#include "parallel/launch/launch.h"

#include <stdbool.h>
#include <stdint.h>

/* One node per number (scalar.h), and the project's own tensors (graph/graph.h). */
typedef enum { LINEAR_SCALAR, LINEAR_TENSOR, N_LINEAR_ENGINES } LinearEngineKind;

const char *linear_engine_name(LinearEngineKind kind);

/* What an epoch consists of. */
typedef enum { LINEAR_FORWARD, LINEAR_BACKWARD, LINEAR_COMM, LINEAR_UPDATE, N_LINEAR_PHASES } LinearPhase;

/* How OpenMP hands out pieces of the points to the threads of the scalar engine. */
typedef enum { LINEAR_STATIC, LINEAR_DYNAMIC, LINEAR_GUIDED } LinearLoopSchedule;

enum { LINEAR_MAX_WEIGHTS = 1024 };

typedef struct {
    const double *truth; /* (n_weights): W */
    int n_weights;
    int64_t n_points; /* of each rank, or of all together */
    bool is_divided;  /* n_points is that of all ranks together */
    int64_t n_epochs;
    double lr, noise; /* noise: standard deviation of what is added to y */
    uint64_t seed;
    int n_threads; /* of each rank */
    LinearLoopSchedule schedule;
    const CommAlgorithm *all_reduce; /* of the gradients; NULL: the transport's own */
    /* The whole training is repeated so often, or up to 8 times that while an efficiency is measured and
     * times still fall (not where it is 1); the fastest count. */
    int64_t n_rounds;
    bool measures_alone; /* rank 0 trains alone before each round, for the efficiency */
} LinearProblem;

typedef struct {
    int n_weights;
    double *weights;      /* (n_weights), found */
    double *losses;       /* (n_epochs): the mean squared error before each step */
    int64_t n_points;     /* of all ranks */
    int64_t n_rounds;     /* that were run */
    double largest_error; /* |found - true| */
    /* Of a training: the sum over its epochs, each in its fastest round. The phases are means over the ranks,
     * and add up to the seconds. Beside it the fastest round as a whole, by the clock of the slowest rank. */
    double seconds, phase_ms[N_LINEAR_PHASES], round_seconds;
    double
        /* of nodes, forward and backward, by all ranks in a training; NAN: it has no such nodes */
        evaluations;
    double nodes_per_s; /* by a core; NAN likewise */
    double flops_per_s; /* of a rank while it computes; NAN where they are not counted */
    /* Rank 0 alone, in the same launch: with its own points, or with all of them if they are divided. NAN:
     * not measured. */
    double alone_seconds, alone_round_seconds;
    /* alone_seconds / seconds, for divided points also by the number of ranks; NAN: not measured. */
    double efficiency;
} LinearResult;

/* Collective: an error is that of all ranks (launch_agree). A loss that grows is a user error. */
Status linear_run(const LinearProblem *problem, LinearEngineKind kind, Launch *launch, LinearResult *result,
                  Error *error);
void linear_result_close(LinearResult *result); /* safe on {0} */

#endif
