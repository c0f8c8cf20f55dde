/* What an engine of the study is: a table of functions over the points of one rank. */
#ifndef PGPT_LAB_LINEAR_LINEAR_ENGINE_H
#define PGPT_LAB_LINEAR_LINEAR_ENGINE_H

#include "lab/linear/linear.h"

/* The points that one rank computes with. */
typedef struct {
    int n_weights;
    int n_inputs, n_targets; /* numbers of x and y of a point: for least squares n_weights and 1 */
    int64_t n_points, n_all; /* its own, and those of all ranks: the loss is the mean over these */
    double *x;               /* (n_points, n_inputs), numbers that f32 holds exactly */
    double *y;               /* (n_points, n_targets) */
} LinearPoints;

/* Points first .. first + n - 1 of n_all. (linear_points.c) */
Status linear_points_open(const LinearProblem *problem, int64_t first, int64_t n, int64_t n_all,
                          LinearPoints *points, Error *error);
void linear_points_close(LinearPoints *points); /* safe on {0} */

typedef struct {
    const char *name;
    /* Weights of zero. `points` stays for as long as the engine. */
    Status (*open)(const LinearProblem *problem, const LinearPoints *points, void **engine, Error *error);
    void (*close)(void *engine); /* safe on NULL */
    Status (*set_weights)(void *engine, const double *weights, Error *error);
    Status (*get_weights)(void *engine, double *weights, Error *error);
    /* The share of these points in the gradient (n_weights) and, behind it, in the loss. *forward is the part
     * of the time that passed that went into the forward, 0 to 1. */
    Status (*gradient)(void *engine, double *sums, double *forward, Error *error);
    /* weights -= lr · gradient, the one of all ranks together. */
    Status (*update)(void *engine, const double *gradient, Error *error);
    /* Of one gradient: evaluations of nodes, and floating-point operations. NAN: not counted. */
    double (*evaluations)(const void *engine);
    double (*flops)(const void *engine);
    /* Of a thread, since it was opened; false: there is no such thread. NULL: the engine does not say. */
    bool (*work)(const void *engine, int thread, LinearThreadWork *work);
} LinearEngine;

extern const LinearEngine linear_scalar_engine, linear_objects_engine, linear_tensor_engine;

#endif
