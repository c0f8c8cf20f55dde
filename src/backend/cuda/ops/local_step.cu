/* local_step and local_join: one pass over memory, 8 elements a thread.
 *
 * Floor over the copy bandwidth, in f32: 24 bytes an element of a step whose weights are not wanted, 32 where
 * they are, 24 of a join. */
#include "backend/cuda/ops/decay_runs.cuh"
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/compress/local_step.h"
}

enum { THREADS = 256 };

typedef struct {
    Memory gradient, variance, common, momentum, buffer, parameter;
    const float *numbers, *factor;
    float beta1, gain, bound, epsilon;
    bool joins;
} LocalCall;

static __global__ void __launch_bounds__(THREADS)
    local_kernel(LocalCall a, const __grid_constant__ DecayTable table) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR, n = table.count - i;
    float factor = a.factor ? *a.factor : 1.0f;
    if (n <= 0 || !isfinite(factor)) return;
    i += table.first;
    float m[VECTOR], v[VECTOR], u[VECTOR] = {0}, w[VECTOR] = {0}, g[VECTOR] = {0};
    bool has_weights = a.parameter.data != NULL;
    load8(a.momentum, i, n, m);
    load8(a.variance, i, n, v);
    if (has_weights) load8(a.common, i, n, w);
    if (!a.joins) load8(a.gradient, i, n, g);
    if (!a.joins) load8(a.buffer, i, n, u);
    unsigned decays = decay_bits(table, i);
    float gain = a.gain * factor, keep = a.numbers[LOCAL_KEEP];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float root = sqrtf(v[k]), deviation = fmaf(root, a.numbers[LOCAL_ROOT], a.epsilon);
        if (!a.joins) {
            float limit = a.bound * root;
            m[k] = fmaf(a.beta1, m[k], gain * g[k]);
            m[k] = m[k] > limit ? limit : m[k] < -limit ? -limit : m[k];
            u[k] = fmaf(a.numbers[LOCAL_STEP], m[k], u[k]);
        }
        float step = a.joins ? a.numbers[LOCAL_DISTANCE] * m[k] : u[k];
        w[k] = fmaf(decays >> k & 1 ? keep : 1.0f, w[k], -(step / deviation));
    }
    if (!a.joins) store8(a.momentum, i, n, m);
    if (a.joins) store8(a.common, i, n, w);
    store8(a.buffer, i, n, u); /* of a join 0 */
    if (has_weights) store8(a.parameter, i, n, w);
}

/* An array that is an input of the node, or else an output, of those there are. */
static Memory part_at(const KernelCall *call, int input, int output, int64_t first) {
    const Node *node = call->node;
    if (input >= 0) return part_of(call->in[input], node->input[input], first);
    if (output < 0 || !node->output[output]) return part_of(NULL, NULL, first);
    return part_of(call->out[output], node->output[output], first);
}

static Status launch(const KernelCall *call, LocalCall a, Error *error) {
    const LocalAttributes *attributes = (const LocalAttributes *)call->node->attributes;
    a.beta1 = attributes->beta1;
    a.gain = attributes->gain;
    a.bound = attributes->bound;
    a.epsilon = attributes->epsilon;
    a.numbers = (const float *)call->in[2];
    DecayTable table;
    int run = 0;
    for (int64_t element = 0;
         decay_table_next(&table, attributes->elements.runs, attributes->elements.n_runs, &run, &element);) {
        a.gradient = part_at(call, a.joins ? -1 : 0, -1, table.first);
        a.variance = part_at(call, 1, -1, table.first);
        a.common = part_at(call, a.joins ? -1 : 3, 0, table.first);
        a.momentum = part_at(call, a.joins ? 0 : -1, 0, table.first);
        a.buffer = part_at(call, -1, 1, table.first);
        a.parameter = part_at(call, -1, 2, table.first);
        local_kernel<<<blocks_for(table.count, THREADS * VECTOR), THREADS, 0, cuda_context(call)->stream>>>(
            a, table);
        TRY(cuda_launched("local_step", error));
    }
    return STATUS_OK;
}

extern "C" Status cuda_local_step(const KernelCall *call, Error *error) {
    LocalCall a = {};
    a.factor = (const float *)call->in[4];
    return launch(call, a, error);
}

extern "C" Status cuda_local_join(const KernelCall *call, Error *error) {
    LocalCall a = {};
    a.joins = true;
    a.factor = (const float *)call->in[3];
    return launch(call, a, error);
}
