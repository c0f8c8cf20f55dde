/* sgd: one pass over gradient, parameter and, if there is one, momentum of a flat array.
 *
 * Floor over the copy bandwidth: in f32 20 bytes an element with momentum, 12 without. A thread takes 8
 * elements, of whatever types. */
#include "backend/cuda/ops/decay_runs.cuh"
#include "backend/cuda/ops/moments.cuh"

extern "C" {
#include "ops/update/sgd.h"
}

enum { THREADS = 256 };

typedef struct {
    Memory gradient, parameter, momentum, copy;
    const float *hyper, *factor;
    float mu, weight_decay;
    bool nesterov;
    uint64_t first_element; /* of all parameters, for the draws */
} SgdCall;

static __global__ void __launch_bounds__(THREADS)
    sgd_kernel(SgdCall a, const __grid_constant__ DecayTable table) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR, n = table.count - i;
    bool packed = a.momentum.data && is_packed(a.momentum);
    if (n <= 0 && !packed) return; /* of a packed group both threads come to the end */
    i += table.first;
    float g[VECTOR], p[VECTOR], u[VECTOR] = {0};
    load8(a.gradient, i, n, g);
    load8(a.parameter, i, n, p);
    if (a.momentum.data) load_moment(a.momentum, 0, i, n, u);
    float scale = a.factor ? *a.factor : 1.0f, rate = a.hyper[HYPER_RATE];
    if (!isfinite(scale)) return; /* the step is skipped */
    unsigned decays = n > 0 ? decay_bits(table, i) : 0u;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float gradient = fmaf(decays >> k & 1 ? a.weight_decay : 0.0f, p[k], scale * g[k]);
        u[k] = fmaf(a.mu, u[k], gradient); /* without momentum mu is 0 */
        p[k] = fmaf(-rate, a.nesterov ? fmaf(a.mu, u[k], gradient) : u[k], p[k]);
    }
    uint32_t draw = __float_as_uint(a.hyper[HYPER_DRAW]);
    uint64_t element = a.first_element + (uint64_t)i;
    if (a.momentum.data) store_moment(a.momentum, 0, i, n, u, draw, element);
    if (n <= 0) return;
    stochastic_round(p, a.parameter.dtype, draw, 0, element);
    store8(a.parameter, i, n, p);
    if (a.copy.data) store8(a.copy, i, n, p);
}

extern "C" Status cuda_sgd(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const SgdAttributes *a = (const SgdAttributes *)node->attributes;
    SgdCall arguments = {};
    arguments.hyper = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.mu = a->momentum;
    arguments.weight_decay = a->weight_decay;
    arguments.nesterov = a->nesterov;
    arguments.first_element = (uint64_t)a->elements.first_element;
    const Tensor *copy = node->n_outputs > 2 ? node->output[2] : NULL;
    DecayTable table;
    int run = 0;
    for (int64_t element = 0;
         decay_table_next(&table, a->elements.runs, a->elements.n_runs, &run, &element);) {
        arguments.gradient = part_of(call->in[0], node->input[0], table.first);
        arguments.parameter = part_of(call->out[0], node->output[0], table.first);
        arguments.momentum = part_of(call->out[1], node->output[1], table.first);
        arguments.copy = part_of(copy ? call->out[2] : NULL, copy, table.first);
        sgd_kernel<<<blocks_for(table.count, THREADS * VECTOR), THREADS, 0, cuda_context(call)->stream>>>(
            arguments, table);
        TRY(cuda_launched("sgd", error));
    }
    return STATUS_OK;
}
