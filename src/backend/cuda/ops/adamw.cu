/* adamw: one pass over gradient, parameter and both moments of a flat array.
 *
 * Floor over the copy bandwidth: with everything in f32 28 bytes an element (16 read, 12 written); with a
 * 16-bit copy of the weights for the next step 30; with everything in 16 bits 14; with f32
 * weights and moments in 8 bits 16.3. A thread takes 8 elements;
 * the types are looked up, not compiled in, since the arithmetic has nothing to do but wait for memory.
 *
 * Moments below 1e-37 become 0, as on the CPU. */
#include "backend/cuda/ops/decay_runs.cuh"
#include "backend/cuda/ops/moments.cuh"

extern "C" {
#include "ops/update/adamw.h"
}

enum { THREADS = 256 };

typedef struct {
    Memory gradient, parameter, moment1, moment2, copy;
    const float *hyper, *factor;
    float beta1, beta2, new1, new2, epsilon, weight_decay;
    uint64_t first_element; /* of all parameters, for the draws */
} AdamwCall;

DEVICE float flush(float moment) {
    return fabsf(moment) <= 1e-37f ? 0.0f : moment;
}

static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(AdamwCall a, const __grid_constant__ DecayTable table) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR, n = table.count - i;
    if (n <= 0 && !is_packed(a.moment1)) return; /* of a packed group both threads come to the end */
    i += table.first;
    float g[VECTOR], p[VECTOR], m[VECTOR], v[VECTOR];
    load8(a.gradient, i, n, g);
    load8(a.parameter, i, n, p);
    load_moment(a.moment1, 0, i, n, m);
    load_moment(a.moment2, 1, i, n, v);
    float scale = a.factor ? *a.factor : 1.0f, rate = a.hyper[HYPER_RATE];
    float step = rate * a.hyper[HYPER_CORRECTION1], root = sqrtf(a.hyper[HYPER_CORRECTION2]);
    float keep = (float)(1.0 - (double)rate * (double)a.weight_decay);
    if (!isfinite(scale)) return; /* the step is skipped */
    unsigned decays = n > 0 ? decay_bits(table, i) : 0u;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float gradient = g[k] * scale;
        m[k] = flush(fmaf(a.beta1, m[k], a.new1 * gradient));
        v[k] = flush(fmaf(a.beta2, v[k], a.new2 * gradient * gradient));
        float deviation = fmaf(sqrtf(v[k]), root, a.epsilon);
        p[k] = fmaf(p[k], decays >> k & 1 ? keep : 1.0f, -(step * m[k] / deviation));
    }
    uint32_t draw = __float_as_uint(a.hyper[HYPER_DRAW]);
    uint64_t element = a.first_element + (uint64_t)i;
    store_moment(a.moment1, 0, i, n, m, draw, element);
    store_moment(a.moment2, 1, i, n, v, draw, element);
    if (n <= 0) return;
    stochastic_round(p, a.parameter.dtype, draw, 0, element);
    store8(a.parameter, i, n, p);
    if (a.copy.data) store8(a.copy, i, n, p);
}

extern "C" Status cuda_adamw(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const AdamwAttributes *a = (const AdamwAttributes *)node->attributes;
    AdamwCall arguments = {};
    arguments.hyper = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.beta1 = a->beta1;
    arguments.beta2 = a->beta2;
    arguments.new1 = (float)(1.0 - (double)a->beta1);
    arguments.new2 = (float)(1.0 - (double)a->beta2);
    arguments.epsilon = a->epsilon;
    arguments.weight_decay = a->weight_decay;
    arguments.first_element = (uint64_t)a->elements.first_element;
    const Tensor *copy = node->n_outputs > 3 ? node->output[3] : NULL;
    DecayTable table;
    int run = 0;
    for (int64_t element = 0;
         decay_table_next(&table, a->elements.runs, a->elements.n_runs, &run, &element);) {
        arguments.gradient = part_of(call->in[0], node->input[0], table.first);
        arguments.parameter = part_of(call->out[0], node->output[0], table.first);
        arguments.moment1 = part_of(call->out[1], node->output[1], table.first);
        arguments.moment2 = part_of(call->out[2], node->output[2], table.first);
        arguments.copy = part_of(copy ? call->out[3] : NULL, copy, table.first);
        adamw_kernel<<<blocks_for(table.count, THREADS * VECTOR), THREADS, 0, cuda_context(call)->stream>>>(
            arguments, table);
        TRY(cuda_launched("adamw", error));
    }
    return STATUS_OK;
}
