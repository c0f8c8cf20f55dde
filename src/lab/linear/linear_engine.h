/* What an engine of the least-squares study is: a table of functions over the points of one rank. */
#ifndef PGPT_LAB_LINEAR_LINEAR_ENGINE_H
#define PGPT_LAB_LINEAR_LINEAR_ENGINE_H

#include "lab/linear/linear.h"

/* The points that one rank computes with. */
typedef struct {
    int n_weights;
    int64_t n_points, n_all; /* its own, and those of all ranks: the loss is the mean over these */
    double *x;               /* (n_points, n_weights), numbers that f32 holds exactly */
    double *y;               /* (n_points) */
} LinearPoints;

typedef struct {
    double phase_ns[N_LINEAR_PHASES];
} LinearTimes;

typedef struct {
    const char *name;
    /* Weights of zero. `points` stays for as long as the engine. */
    Status (*open)(const LinearProblem *problem, const LinearPoints *points, void **engine, Error *error);
    void (*close)(void *engine); /* safe on NULL */
    Status (*set_weights)(void *engine, const double *weights, Error *error);
    Status (*get_weights)(void *engine, double *weights, Error *error);
    /* The share of these points in the gradient (n_weights) and, behind it, in the loss; adds to the first
     * two times. */
    Status (*gradient)(void *engine, double *sums, LinearTimes *times, Error *error);
    /* weights -= lr · gradient, the one of all ranks together. */
    Status (*update)(void *engine, const double *gradient, Error *error);
    /* Of one gradient: evaluations of nodes, and floating-point operations. NAN: not counted. */
    double (*evaluations)(const void *engine);
    double (*flops)(const void *engine);
} LinearEngine;

extern const LinearEngine linear_scalar_engine, linear_tensor_engine;

#endif
