/* The router: its GEMMs by gemm.h, and what it does with each token shared out to threads. A token, a group
 * or an expert of a group is one thread's, and a report adds up groups in their order: so the bits do not
 * depend on how many threads there are. */
#include "backend/cpu/experts/route_lanes.h"
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/kernels.h"
#include "ops/experts/route_rules.h"

/* ---- logits (N,E) = x (N,C) · weight (E,C)ᵀ ---- */

static Gemm logits_shape(const Node *node) {
    int64_t E = node->input[1]->shape.dim[0], C = node->input[1]->shape.dim[1];
    return (Gemm){.transpose_b = true,
                  .m = shape_rows(node->input[0]->shape),
                  .n = E,
                  .k = C,
                  .lda = C,
                  .ldb = C,
                  .ldc = E};
}

static Gemm input_shape(const Node *node) {
    int64_t E = node->input[1]->shape.dim[0], C = node->input[1]->shape.dim[1];
    return (Gemm){.m = shape_rows(node->input[0]->shape), .n = C, .k = E, .lda = E, .ldb = C, .ldc = C};
}

static Gemm weight_shape(const Node *node) {
    int64_t E = shape_columns(node->input[0]->shape), C = shape_columns(node->input[1]->shape);
    return (Gemm){.transpose_a = true,
                  .m = E,
                  .n = C,
                  .k = shape_rows(node->input[0]->shape),
                  .lda = E,
                  .ldb = C,
                  .ldc = C};
}

static Status run(const KernelCall *call, Gemm gemm) {
    gemm.a = call->in[0];
    gemm.b = call->in[1];
    gemm.c = call->out[0];
    gemm.accumulate = call->add[0];
    gemm_run(&gemm, call->scratch, call->n_threads);
    return STATUS_OK;
}

Status cpu_router_logits(const KernelCall *call, Error *error) {
    (void)error;
    return run(call, logits_shape(call->node));
}

Status cpu_router_input_gradient(const KernelCall *call, Error *error) {
    (void)error;
    return run(call, input_shape(call->node));
}

Status cpu_router_weight_gradient(const KernelCall *call, Error *error) {
    (void)error;
    return run(call, weight_shape(call->node));
}

size_t cpu_router_logits_scratch(const Node *node, int n_threads) {
    Gemm shape = logits_shape(node);
    return gemm_scratch_bytes(&shape, n_threads);
}

size_t cpu_router_input_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = input_shape(node);
    return gemm_scratch_bytes(&shape, n_threads);
}

size_t cpu_router_weight_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = weight_shape(node);
    return gemm_scratch_bytes(&shape, n_threads);
}

/* ---- route ---- */

static RouteInputs inputs_of(const KernelCall *call, int first, int random) {
    const Node *node = call->node;
    RouteInputs in = route_inputs(node->attributes, shape_rows(node->input[first]->shape), call->in[first],
                                  call->in[first + 1], call->in[first + 2], call->in[random]);
    in.math = &cpu_route_math;
    return in;
}

/* A logit is about as much work as ten elements of something simple. */
static int threads_for(const KernelCall *call, const RouteInputs *in) {
    return cpu_threads(call, 10 * in->n_tokens * in->a->n_experts);
}

/* Experts choose; or each group is cut to the experts' capacity. */
static void take_all(const RouteInputs *in, int n_threads, float *gates, int32_t *choice) {
    int64_t E = in->a->n_experts;
    (void)n_threads;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t i = 0; i < in->a->n_groups * E; i++) route_take(in, i / E, (int)(i % E), gates, choice);
}

static void fill_all(const RouteInputs *in, int n_threads, float *gates, int32_t *choice) {
    (void)n_threads;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t group = 0; group < in->a->n_groups; group++) {
        int32_t counts[ROUTE_MAX_EXPERTS];
        route_fill(in, group, gates, choice, counts);
    }
}

Status cpu_route(const KernelCall *call, Error *error) {
    (void)error;
    const RouteInputs in = inputs_of(call, 0, 3);
    const RouteAttributes *a = in.a;
    float *gates = call->out[0];    /* (N,S) */
    int32_t *choice = call->out[1]; /* (N,S) */
    int S = route_n_slots(a), n_threads = threads_for(call, &in);
    (void)n_threads; /* nobody reads it in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t n = 0; n < in.n_tokens; n++) route_token(&in, n, gates + n * S, choice + n * S);
    if (a->kind == ROUTER_EXPERT_CHOICE) take_all(&in, n_threads, gates, choice);
    else if (a->capacity) fill_all(&in, n_threads, gates, choice);
    return STATUS_OK;
}

size_t cpu_route_backward_scratch(const Node *node, int n_threads) {
    const RouteAttributes *a = node->attributes;
    (void)n_threads;
    return a->balance_scale != 0.0f ? (size_t)(a->n_groups * a->n_experts) * sizeof(float) : 0;
}

static void write_row(float *to, const float *from, int n, bool add) {
    for (int i = 0; i < n; i++) to[i] = add ? to[i] + from[i] : from[i];
}

Status cpu_route_backward(const KernelCall *call, Error *error) {
    (void)error;
    const RouteInputs in = inputs_of(call, 1, 5);
    const float *dgates = call->in[0] /* [(N,S)] */, *scale = call->in[6];
    const int32_t *choice = call->in[4]; /* (N,S) */
    float *dlogits = call->out[0] /* (N,E) */, *dnoise = call->out[1] /* [(N,E)] */;
    float *shares = in.a->balance_scale != 0.0f ? call->scratch : NULL; /* (groups,E) */
    int S = route_n_slots(in.a), E = in.a->n_experts, n_threads = threads_for(call, &in);
    (void)n_threads; /* nobody reads it in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t group = 0; group < (shares ? in.a->n_groups : 0); group++)
        if (group * in.T < in.n_there) route_shares(&in, group, choice, shares + group * E);
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t n = 0; n < in.n_tokens; n++) {
        float row[ROUTE_MAX_EXPERTS], noise_row[ROUTE_MAX_EXPERTS];
        route_token_backward(&in, n, dgates ? dgates + n * S : NULL, choice + n * S,
                             shares ? shares + n / in.T * E : NULL, scale ? *scale : 1.0f, row,
                             dnoise ? noise_row : NULL);
        if (dlogits) write_row(dlogits + n * E, row, E, call->add[0]);
        if (dnoise) write_row(dnoise + n * E, noise_row, E, call->add[1]);
    }
    return STATUS_OK;
}

size_t cpu_route_report_scratch(const Node *node, int n_threads) {
    const RouteAttributes *a = node->attributes;
    (void)n_threads;
    return (size_t)(a->n_groups * (a->n_experts + N_ROUTE_COUNTS)) * sizeof(double);
}

Status cpu_route_report(const KernelCall *call, Error *error) {
    (void)error;
    const RouteInputs in = inputs_of(call, 0, 4);
    const int32_t *choice = call->in[3]; /* (N,S) */
    float *report = call->out[0];        /* (E + N_ROUTE_COUNTS) */
    double *sums = call->scratch;        /* (groups, E + N_ROUTE_COUNTS) */
    int n = in.a->n_experts + N_ROUTE_COUNTS, n_threads = threads_for(call, &in);
    (void)n_threads; /* nobody reads it in a build without OpenMP */
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t group = 0; group < in.a->n_groups; group++) {
        float shares[ROUTE_MAX_EXPERTS];
        route_count_group(&in, group, choice, shares, sums + group * n);
    }
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        for (int64_t group = 0; group < in.a->n_groups; group++) sum += sums[group * n + i];
        report[i] = call->add[0] ? report[i] + (float)sum : (float)sum;
    }
    return STATUS_OK;
}

/* ---- once a step, of a few hundred numbers: as the operations say ---- */

Status cpu_route_bias(const KernelCall *call, Error *error) {
    return OP_ROUTE_BIAS.reference(call, error);
}

Status cpu_route_summary(const KernelCall *call, Error *error) {
    return OP_ROUTE_SUMMARY.reference(call, error);
}
