/* What routers do with a token, a group, an expert: the parts that route.c puts together, and that the CPU
 * shares out to threads. Formulas: experts.h. */
#ifndef PGPT_OPS_EXPERTS_ROUTE_RULES_H
#define PGPT_OPS_EXPERTS_ROUTE_RULES_H

#include "ops/experts/experts.h"

/* The arithmetic over all experts of a token; a backend may bring its own. p, of a softmax that returns log Σ
 * e^x, and y have room for ROUTE_MAX_EXPERTS numbers; behind those of E anything may be written. `largest`
 * are the first n, the largest first, of equal ones the first; what is no number is below all others. */
typedef struct {
    float (*softmax)(const float *x, int E, float *p);
    void (*sigmoids)(const float *x, int E, float *y);
    void (*largest)(const float *score, int E, int n, int *which);
    float (*dot)(const float *a, const float *b, int E);
} RouteMath;
extern const RouteMath route_math;
void route_largest(const float *score, int E, int n, int *which);

/* The inputs of route, its backward and its report. */
typedef struct {
    const RouteAttributes *a;
    const RouteMath *math;
    const float *logits, *noise, *bias; /* (N,E), [(N,E)], [(E)] */
    const int32_t *random;              /* or NULL */
    int64_t n_tokens, T, n_there;       /* N; of a group; tokens of the groups that are there */
} RouteInputs;

RouteInputs route_inputs(const RouteAttributes *attributes, int64_t n_tokens, const float *logits,
                         const float *noise, const float *bias, const int32_t *random);

/* A token's wishes and their gates; of expert-choice p of every expert. -1: the token is not there, or chance
 * was against it. */
void route_token(const RouteInputs *in, int64_t n, float *gates /* (S) */, int32_t *choice /* (S) */);

/* Of a group whose tokens have their wishes: who finds no room is dropped. counts: (E) of scratch. */
void route_fill(const RouteInputs *in, int64_t group, float *gates, int32_t *choice, int32_t *counts);

/* Expert-choice: the tokens of a group that this expert takes, by p of all, which are in `gates`. */
void route_take(const RouteInputs *in, int64_t group, int expert, float *gates, int32_t *choice);

/* Shares of the wishes of a group's tokens that go to each expert. choice (N,S): what came of them. */
void route_shares(const RouteInputs *in, int64_t group, const int32_t *choice, float *shares /* (E) */);

/* The gradient of a token's logits, and of its noise. shares: of its group, NULL without a balance loss. */
void route_token_backward(const RouteInputs *in, int64_t n, const float *dgates /* (S) or NULL */,
                          const int32_t *choice /* (S) */, const float *shares, float scale,
                          float *dlogits /* (E) */, float *dnoise /* (E) or NULL */);

/* What a group adds to a report: sums (E + N_ROUTE_COUNTS), written anew. shares: (E) of scratch. */
void route_count_group(const RouteInputs *in, int64_t group, const int32_t *choice, float *shares,
                       double *sums);

#endif
