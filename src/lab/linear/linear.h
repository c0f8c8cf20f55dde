/* Training by gradient descent on many ranks with everything else left out: the smallest study of parallel
 * training.
 *
 * Least squares: points x are drawn from the normal distribution, y = W·x (+ noise), and the weights are
 * found again from the points. Attention: one transformer block of single numbers learns to look one token
 * back (attention.h). Each epoch every rank computes the gradient over its own points, the gradients are
 * added up over the ranks, and every rank takes the same step. Point i is the same wherever it is: it depends
 * on the seed and on i alone.
 *
 *     LinearProblem problem = {.truth = W, .n_weights = 5, .n_points = 10000, .n_epochs = 300,
 *                              .lr = 0.1, .n_rounds = 5};
 *     LinearResult result;
 *     TRY(linear_run(&problem, LINEAR_SCALAR, launch, &result, error));         // collective
 *     ... result.weights, result.phase_ms[LINEAR_FORWARD] ...
 *     linear_result_close(&result); */
#ifndef PGPT_LAB_LINEAR_LINEAR_H
#define PGPT_LAB_LINEAR_LINEAR_H

#include "lab/linear/slowest.h"
#include "parallel/launch/launch.h"

#include <stdbool.h>
#include <stdint.h>

/* One node per number: in a fixed graph (scalar.h), or allocated one by one in every epoch (objects.h); and
 * the project's own tensors (graph/graph.h). */
typedef enum { LINEAR_SCALAR, LINEAR_TENSOR, LINEAR_OBJECTS, N_LINEAR_ENGINES } LinearEngineKind;

const char *linear_engine_name(LinearEngineKind kind); /* scalar, tensor, allocate */

typedef enum { LINEAR_LEAST_SQUARES, LINEAR_ATTENTION } LinearTask;

/* What an epoch consists of. Waiting is the time from a rank's coming to the all-reduce to the last rank's;
 * communication is the rest of the all-reduce. */
typedef enum {
    LINEAR_FORWARD,
    LINEAR_BACKWARD,
    LINEAR_UPDATE,
    LINEAR_COMM,
    LINEAR_WAITING,
    N_LINEAR_PHASES
} LinearPhase;

/* Their names, and those of their fields in JSON. */
extern const char *const linear_phase_names[N_LINEAR_PHASES], *const linear_phase_fields[N_LINEAR_PHASES];

/* How OpenMP hands out pieces of the points to the threads of the scalar engine. */
typedef enum { LINEAR_STATIC, LINEAR_DYNAMIC, LINEAR_GUIDED } LinearLoopSchedule;

enum { LINEAR_MAX_WEIGHTS = 65536, LINEAR_MAX_THREADS = 1024 };

typedef struct {
    LinearTask task;
    const double *truth; /* (n_weights): W; NULL: there is none to find (attention) */
    const double *start; /* (n_weights): where training begins; NULL: at zero */
    int n_weights;
    int64_t n_points; /* of each rank, or of all together */
    bool is_divided;  /* n_points is that of all ranks together */
    int64_t n_epochs;
    double lr, noise; /* noise: standard deviation of what is added to y */
    uint64_t seed;
    int device;    /* DeviceKind, of the tensor engine */
    int n_threads; /* of each rank */
    LinearLoopSchedule schedule;
    int chunk;                       /* pieces dealt at a time; 0: OpenMP's own choice */
    const CommAlgorithm *all_reduce; /* of the gradients; NULL: the transport's own */
    int64_t n_rounds;                /* the whole training is repeated so often */
    bool measures_alone;             /* rank 0 trains alone before each round, for the efficiency */
} LinearProblem;

/* What a thread did in an epoch, on average. */
typedef struct {
    double n_points, busy_s;
} LinearThreadWork;

typedef struct {
    int n_weights;
    double *weights;      /* (n_weights), found */
    double *losses;       /* (n_epochs): the mean loss before each step */
    int64_t n_points;     /* of all ranks */
    int64_t n_rounds;     /* that were run */
    double largest_error; /* |found - true|; NAN: there is nothing to find */
    /* Of a training: the median round by the clock, from the first rank's beginning to the last one's end.
     * The phases are those of that round, means over the ranks, and add up to the seconds. */
    double seconds, phase_ms[N_LINEAR_PHASES];
    /* The best case: the sum over the epochs, each in its fastest round. */
    double best_seconds;
    /* Of nodes, forward and backward, by all ranks in a training; NAN: it has no such nodes. */
    double evaluations;
    double nodes_per_s; /* by a core; NAN likewise */
    double flops_per_s; /* of a rank while it computes; NAN where they are not counted */
    /* Rank 0 alone, in the same launch: with its own points, or with all of them if they are divided. NAN:
     * not measured. */
    double alone_seconds, alone_best_seconds;
    /* Time alone by time together, for divided points also by the number of ranks; NAN: not measured. */
    double efficiency, best_efficiency;
    SlowestLaw compute;     /* of the time to compute a gradient, over ranks and epochs; on rank 0 */
    int n_threads;          /* that have a line below; 0: the engine does not say */
    LinearThreadWork *work; /* (n_threads), of this rank */
} LinearResult;

/* Collective: an error is that of all ranks (launch_agree). A loss that grows is a user error. */
Status linear_run(const LinearProblem *problem, LinearEngineKind kind, Launch *launch, LinearResult *result,
                  Error *error);
void linear_result_close(LinearResult *result); /* safe on {0} */

#endif
