/* muon: what is not a product of matrices (those are linear layers'). Each is one pass over what it reads and
 * writes, 8 elements a thread; the floor is their bytes over the copy bandwidth. */
#include "backend/cuda/ops/decay_runs.cuh"
#include "backend/cuda/ops/moments.cuh"

extern "C" {
#include "ops/update/muon.h"
}

enum { THREADS = 256 };

static Memory whole(void *data, const Tensor *tensor) {
    return part_of(data, tensor, 0);
}

static unsigned grid_of(int64_t count) {
    return blocks_for(count, THREADS * VECTOR);
}

DEVICE int64_t first_element() {
    return ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
}

/* ---- momentum and direction ---- */

typedef struct {
    Memory gradient, moment, direction;
    const float *hyper, *factor;
    float mu;
    bool nesterov;
    uint64_t first_element; /* of all parameters, for the draws */
} MomentumCall;

static __global__ void __launch_bounds__(THREADS) momentum_kernel(MomentumCall a, int64_t count) {
    int64_t i = first_element(), n = count - i;
    if (n <= 0 && !is_packed(a.moment)) return; /* of a packed group both threads come to the end */
    float scale = a.factor ? *a.factor : 1.0f;
    if (!isfinite(scale)) return; /* the step is skipped */
    float g[VECTOR], u[VECTOR], d[VECTOR];
    load8(a.gradient, i, n, g);
    load_moment(a.moment, 0, i, n, u);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float gradient = scale * g[k];
        u[k] = fmaf(a.mu, u[k], gradient);
        d[k] = a.nesterov ? fmaf(a.mu, u[k], gradient) : u[k];
    }
    store_moment(a.moment, 0, i, n, u, __float_as_uint(a.hyper[HYPER_DRAW]), a.first_element + (uint64_t)i);
    if (n > 0) store8(a.direction, i, n, d);
}

extern "C" Status cuda_muon_momentum(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const MuonAttributes *a = (const MuonAttributes *)node->attributes;
    int64_t count = tensor_count(node->input[0]);
    if (!count) return STATUS_OK;
    MomentumCall arguments = {};
    arguments.gradient = whole(call->in[0], node->input[0]);
    arguments.direction = whole(call->out[0], node->output[0]);
    arguments.moment = whole(call->out[1], node->output[1]);
    arguments.hyper = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.mu = a->momentum;
    arguments.nesterov = a->nesterov;
    arguments.first_element = (uint64_t)a->elements.first_element;
    momentum_kernel<<<grid_of(count), THREADS, 0, cuda_context(call)->stream>>>(arguments, count);
    return cuda_launched("muon_momentum", error);
}

/* ---- the step ---- */

typedef struct {
    Memory step, parameter, copy;
    const float *hyper, *factor;
    float rate_factor, weight_decay;
    uint64_t first_element;
} MuonCall;

static __global__ void __launch_bounds__(THREADS) muon_kernel(MuonCall a, int64_t count) {
    int64_t i = first_element(), n = count - i;
    if (n <= 0 || (a.factor && !isfinite(*a.factor))) return;
    double rate = (double)a.hyper[HYPER_RATE] * (double)a.rate_factor;
    float keep = (float)(1.0 - rate * (double)a.weight_decay);
    float p[VECTOR], s[VECTOR];
    load8(a.parameter, i, n, p);
    load8(a.step, i, n, s);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) p[k] = fmaf(-(float)rate, s[k], __fmul_rn(p[k], keep));
    stochastic_round(p, a.parameter.dtype, __float_as_uint(a.hyper[HYPER_DRAW]), 0,
                     a.first_element + (uint64_t)i);
    store8(a.parameter, i, n, p);
    if (a.copy.data) store8(a.copy, i, n, p);
}

extern "C" Status cuda_muon(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const MuonAttributes *a = (const MuonAttributes *)node->attributes;
    int64_t count = tensor_count(node->output[0]);
    if (!count) return STATUS_OK;
    MuonCall arguments = {};
    arguments.step = whole(call->in[0], node->input[0]);
    arguments.parameter = whole(call->out[0], node->output[0]);
    arguments.copy = whole(node->output[1] ? call->out[1] : NULL, node->output[1]);
    arguments.hyper = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.rate_factor = a->rate_factor;
    arguments.weight_decay = a->weight_decay;
    arguments.first_element = (uint64_t)a->elements.first_element;
    muon_kernel<<<grid_of(count), THREADS, 0, cuda_context(call)->stream>>>(arguments, count);
    return cuda_launched("muon", error);
}

/* ---- between the products ---- */

static __global__ void __launch_bounds__(THREADS)
    normalise_kernel(Memory x, const float *squares, Memory y, int64_t count) {
    int64_t i = first_element(), n = count - i;
    if (n <= 0) return;
    float factor = (float)(1.0 / (sqrt((double)*squares) + 1e-7)), v[VECTOR];
    load8(x, i, n, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] *= factor;
    store8(y, i, n, v);
}

extern "C" Status cuda_muon_normalise(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    int64_t count = tensor_count(node->input[0]);
    if (!count) return STATUS_OK;
    normalise_kernel<<<grid_of(count), THREADS, 0, cuda_context(call)->stream>>>(
        whole(call->in[0], node->input[0]), (const float *)call->in[1], whole(call->out[0], node->output[0]),
        count);
    return cuda_launched("muon_normalise", error);
}

/* y may be the matrix itself. */
static __global__ void __launch_bounds__(THREADS)
    polynomial_kernel(Memory matrix, Memory square, Memory y, MuonPolynomial p, int64_t side) {
    int64_t i = first_element(), n = side * side - i;
    if (n <= 0) return;
    float a[VECTOR], b[VECTOR];
    load8(matrix, i, n, a);
    load8(square, i, n, b);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        a[k] = fmaf(p.b, a[k], p.c * b[k]);
        if ((i + k) % (side + 1) == 0) a[k] += p.a; /* the diagonal */
    }
    store8(y, i, n, a);
}

extern "C" Status cuda_muon_polynomial(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const MuonPolynomial *p = (const MuonPolynomial *)node->attributes;
    int64_t side = node->output[0]->shape.dim[0];
    if (!side) return STATUS_OK;
    polynomial_kernel<<<grid_of(side * side), THREADS, 0, cuda_context(call)->stream>>>(
        whole(call->in[0], node->input[0]), whole(call->in[1], node->input[1]),
        whole(call->out[0], node->output[0]), *p, side);
    return cuda_launched("muon_polynomial", error);
}

/* ---- boxes ---- */

/* Of up to four dims, the outer ones 1 where there are fewer. */
typedef struct {
    int64_t shape[SHAPE_MAX_DIMS], stride[SHAPE_MAX_DIMS], first;
} BoxPlaces;

static BoxPlaces places_of(const BoxAttributes *a) {
    BoxPlaces places = {};
    int n = a->whole.n_dims;
    int64_t stride = 1;
    for (int d = SHAPE_MAX_DIMS - 1; d >= 0; d--) {
        int from = d - (SHAPE_MAX_DIMS - n);
        places.shape[d] = from >= 0 ? a->box.shape.dim[from] : 1;
        places.stride[d] = stride;
        places.first += from >= 0 ? a->box.offset[from] * stride : 0;
        stride *= from >= 0 ? a->whole.dim[from] : 1;
    }
    return places;
}

static __global__ void __launch_bounds__(THREADS)
    box_kernel(Memory x, Memory y, BoxPlaces places, bool takes, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    int64_t at = places.first, rest = i;
#pragma unroll
    for (int d = SHAPE_MAX_DIMS - 1; d >= 0; d--) {
        at += rest % places.shape[d] * places.stride[d];
        rest /= places.shape[d];
    }
    write_element(y, takes ? i : at, read_element(x, takes ? at : i), false);
}

extern "C" Status cuda_box(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const BoxAttributes *a = (const BoxAttributes *)node->attributes;
    int64_t count = shape_count(a->box.shape);
    if (!count) return STATUS_OK;
    box_kernel<<<blocks_for(count, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
        whole(call->in[0], node->input[0]), whole(call->out[0], node->output[0]), places_of(a), a->takes,
        count);
    return cuda_launched("box", error);
}
