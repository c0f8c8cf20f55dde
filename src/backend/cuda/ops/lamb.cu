/* lamb: two passes over a flat array, tile by tile.
 *
 * Floor over the copy bandwidth: with everything in f32 24 bytes an element in the first pass (gradient,
 * weight and moments read, moments written) and 16 in the second. A tile is 8 elements a thread of one block
 * and lies within one tensor, so that a block has one sum to make; sums of tiles are added up by a second
 * kernel in a fixed order (lamb_table.cuh says which tile is whose). */
#include "backend/cuda/ops/decay_runs.cuh"
#include "backend/cuda/ops/lamb_table.cuh"
#include "backend/cuda/ops/moments.cuh"

extern "C" {
#include "ops/update/lamb.h"
}

typedef struct {
    Memory gradient, parameter, moment1, moment2, copy;
    const float *hyper, *factor;
    float *sums, *partial;
    float beta1, beta2, new1, new2, epsilon, weight_decay, max_ratio;
    uint64_t first_element; /* of all parameters, for the draws */
} LambCall;

static Memory whole(void *data, const Tensor *tensor) {
    return part_of(data, tensor, 0);
}

static LambCall call_of(const KernelCall *call) {
    const LambAttributes *a = (const LambAttributes *)call->node->attributes;
    LambCall arguments = {};
    arguments.hyper = (const float *)call->in[1];
    arguments.factor = (const float *)call->in[2];
    arguments.beta1 = a->beta1;
    arguments.beta2 = a->beta2;
    arguments.new1 = (float)(1.0 - (double)a->beta1);
    arguments.new2 = (float)(1.0 - (double)a->beta2);
    arguments.epsilon = a->epsilon;
    arguments.weight_decay = a->weight_decay;
    arguments.max_ratio = a->max_ratio;
    arguments.first_element = (uint64_t)a->elements.first_element;
    return arguments;
}

/* ---- on the device ---- */

/* Of moments in 8 bits records may lie in two tensors: read element by element where a part does not begin
 * at a multiple of 8. */
DEVICE void load_part(const Memory &moment, int number, int64_t i, int64_t n, float v[VECTOR]) {
    if (i % VECTOR == 0 || !is_packed(moment)) {
        Memory memory = moment;
        memory.aligned = memory.aligned && i % VECTOR == 0;
        load_moment(memory, number, i, n, v);
        return;
    }
    for (int k = 0; k < VECTOR; k++) {
        float up = k < n ? block8_up(*exponent_at(moment, i + k)) : 0.0f;
        v[k] = k < n ? block8_decode(*codes_at(moment, i + k), number ? BLOCK8_POSITIVE : BLOCK8_SIGNED) * up
                     : 0.0f;
    }
}

/* Where vectors may be taken: the arrays begin at a boundary, and so does this thread's part. */
DEVICE Memory placed(Memory memory, int64_t i) {
    memory.aligned = memory.aligned && i % VECTOR == 0;
    return memory;
}

DEVICE float flush(float moment) {
    return fabsf(moment) <= 1e-37f ? 0.0f : moment;
}

DEVICE float direction(const LambCall &a, float m, float v, float w, float root, float decay) {
    float deviation = fmaf(sqrtf(v), root, a.epsilon);
    return fmaf(decay, w, a.hyper[HYPER_CORRECTION1] * m / deviation);
}

DEVICE void move(const LambCall &a, float scale, const float g[VECTOR], float m[VECTOR], float v[VECTOR]) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float gradient = g[k] * scale;
        m[k] = flush(fmaf(a.beta1, m[k], a.new1 * gradient));
        v[k] = flush(fmaf(a.beta2, v[k], a.new2 * gradient * gradient));
    }
}

/* Moments in 8 bits move first, all of them, whatever tensors they are of. */
static __global__ void __launch_bounds__(THREADS) packed_kernel(LambCall a, int64_t count) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR, n = count - i;
    float scale = a.factor ? *a.factor : 1.0f;
    if (!isfinite(scale)) return; /* the step is skipped */
    float g[VECTOR], m[VECTOR], v[VECTOR];
    load8(a.gradient, i, n, g);
    load_moment(a.moment1, 0, i, n, m);
    load_moment(a.moment2, 1, i, n, v);
    move(a, scale, g, m, v);
    uint32_t draw = __float_as_uint(a.hyper[HYPER_DRAW]);
    store_moment(a.moment1, 0, i, n, m, draw, a.first_element + (uint64_t)i);
    store_moment(a.moment2, 1, i, n, v, draw, a.first_element + (uint64_t)i);
}

static __global__ void __launch_bounds__(THREADS)
    measure_kernel(LambCall a, const __grid_constant__ LambTable table) {
    __shared__ float shared[2][THREADS / WARP];
    int index = segment_of(table, (int)blockIdx.x);
    int64_t i = element_of(table, index), n = table.segment[index].end - i;
    float scale = a.factor ? *a.factor : 1.0f, root = sqrtf(a.hyper[HYPER_CORRECTION2]);
    float decay = table.segment[index].tensor < 0 ? 0.0f : a.weight_decay;
    if (!isfinite(scale)) return; /* the step is skipped */
    float squares = 0.0f, lengths = 0.0f;
    if (n > 0) {
        float g[VECTOR], p[VECTOR], m[VECTOR], v[VECTOR];
        load8(placed(a.parameter, i), i, n, p);
        load_part(a.moment1, 0, i, n, m);
        load_part(a.moment2, 1, i, n, v);
        if (!is_packed(a.moment1)) {
            load8(placed(a.gradient, i), i, n, g);
            move(a, scale, g, m, v);
        }
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            float u = direction(a, m[k], v[k], p[k], root, decay);
            if (k < n) { /* what is not there was read as 0 */
                squares = fmaf(p[k], p[k], squares);
                lengths = fmaf(u, u, lengths);
            }
        }
        uint32_t draw = __float_as_uint(a.hyper[HYPER_DRAW]);
        uint64_t element = a.first_element + (uint64_t)i;
        if (!is_packed(a.moment1)) {
            store_moment(placed(a.moment1, i), 0, i, n, m, draw, element);
            store_moment(placed(a.moment2, i), 1, i, n, v, draw, element);
        }
    }
    squares = block_sum(squares, shared[0]);
    lengths = block_sum(lengths, shared[1]);
    if (threadIdx.x) return;
    a.partial[(int64_t)blockIdx.x * UPDATE_SUMS + LAMB_WEIGHT] = squares;
    a.partial[(int64_t)blockIdx.x * UPDATE_SUMS + LAMB_STEP] = lengths;
}

/* A block a tensor of the launch: adds up the tiles of a segment, in an order that is always the same, and
 * adds that to the tensor's sums, segment by segment: they lie one behind the other. */
static __global__ void __launch_bounds__(THREADS)
    join_kernel(LambCall a, const __grid_constant__ LambTable table) {
    __shared__ double shared[UPDATE_SUMS][THREADS];
    int index = (int)blockIdx.x, tensor = table.segment[index].tensor;
    float scale = a.factor ? *a.factor : 1.0f;
    if (!isfinite(scale) || tensor < 0) return;
    if (index && table.segment[index - 1].tensor == tensor) return; /* another block's */
    for (; index < table.n_segments && table.segment[index].tensor == tensor; index++) {
        if (!table.segment[index].is_counted) continue;
        double sum[UPDATE_SUMS] = {0.0, 0.0};
        int first = index ? table.segment[index - 1].end_tile : 0;
        for (int tile = first + (int)threadIdx.x; tile < table.segment[index].end_tile; tile += THREADS)
#pragma unroll
            for (int k = 0; k < UPDATE_SUMS; k++)
                sum[k] += (double)a.partial[(int64_t)tile * UPDATE_SUMS + k];
        for (int k = 0; k < UPDATE_SUMS; k++) shared[k][threadIdx.x] = sum[k];
        __syncthreads();
        for (int half = THREADS / 2; half; half /= 2) {
            if ((int)threadIdx.x < half)
                for (int k = 0; k < UPDATE_SUMS; k++) shared[k][threadIdx.x] += shared[k][threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x < UPDATE_SUMS)
            a.sums[(int64_t)tensor * UPDATE_SUMS + threadIdx.x] += (float)shared[threadIdx.x][0];
        __syncthreads(); /* the next segment's sums come to the same place */
    }
}

/* lamb_ratio, on the device. */
DEVICE float ratio_of(const LambCall &a, int tensor) {
    const float *sums = a.sums + (int64_t)tensor * UPDATE_SUMS;
    double weight = sqrt((double)sums[LAMB_WEIGHT]), step = sqrt((double)sums[LAMB_STEP]);
    if (!(weight > 0.0) || !(step > 0.0)) return 1.0f;
    double ratio = weight / step, most = (double)a.max_ratio;
    return (float)(most > 0.0 && ratio > most ? most : ratio);
}

static __global__ void __launch_bounds__(THREADS)
    update_kernel(LambCall a, const __grid_constant__ LambTable table) {
    __shared__ float shared_ratio;
    int index = segment_of(table, (int)blockIdx.x), tensor = table.segment[index].tensor;
    int64_t i = element_of(table, index), n = table.segment[index].end - i;
    float scale = a.factor ? *a.factor : 1.0f, root = sqrtf(a.hyper[HYPER_CORRECTION2]);
    if (threadIdx.x == 0) shared_ratio = tensor < 0 ? 1.0f : ratio_of(a, tensor);
    __syncthreads();
    if (!isfinite(scale) || n <= 0) return;
    float step = a.hyper[HYPER_RATE] * shared_ratio, decay = tensor < 0 ? 0.0f : a.weight_decay;
    float p[VECTOR], m[VECTOR], v[VECTOR];
    load8(placed(a.parameter, i), i, n, p);
    load_part(a.moment1, 0, i, n, m);
    load_part(a.moment2, 1, i, n, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) p[k] = fmaf(-step, direction(a, m[k], v[k], p[k], root, decay), p[k]);
    stochastic_round(p, a.parameter.dtype, __float_as_uint(a.hyper[HYPER_DRAW]), 0,
                     a.first_element + (uint64_t)i);
    store8(placed(a.parameter, i), i, n, p);
    if (a.copy.data) store8(placed(a.copy, i), i, n, p);
}

extern "C" Status cuda_lamb_measure(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const LambAttributes *a = (const LambAttributes *)node->attributes;
    LambCall arguments = call_of(call);
    arguments.gradient = whole(call->in[0], node->input[0]);
    arguments.parameter = whole(call->in[3], node->input[3]);
    arguments.moment1 = whole(call->out[1], node->output[1]);
    arguments.moment2 = whole(call->out[2], node->output[2]);
    arguments.sums = (float *)call->out[0];
    arguments.partial = (float *)call->scratch;
    if (!call->add[0])
        TRY(cuda_check(
            cudaMemsetAsync(call->out[0], 0, tensor_bytes(node->output[0]), cuda_context(call)->stream),
            "lamb_measure", error));
    int64_t count = tensor_count(node->input[0]);
    if (update_is_packed(node->output[1]) && count) {
        packed_kernel<<<blocks_for(count, LAMB_TILE), THREADS, 0, cuda_context(call)->stream>>>(arguments,
                                                                                                count);
        TRY(cuda_launched("lamb_measure (moments)", error));
    }
    LambTable table;
    LambWalk walk = {};
    while (next_table(&a->spans, &a->elements, count, &walk, &table)) {
        measure_kernel<<<(unsigned)table.n_tiles, THREADS, 0, cuda_context(call)->stream>>>(arguments, table);
        TRY(cuda_launched("lamb_measure", error));
        join_kernel<<<(unsigned)table.n_segments, THREADS, 0, cuda_context(call)->stream>>>(arguments, table);
        TRY(cuda_launched("lamb_measure (second step)", error));
    }
    return STATUS_OK;
}

extern "C" Status cuda_lamb(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const LambAttributes *a = (const LambAttributes *)node->attributes;
    LambCall arguments = call_of(call);
    arguments.moment1 = whole(call->in[0], node->input[0]);
    arguments.moment2 = whole(call->in[3], node->input[3]);
    arguments.sums = (float *)call->in[4];
    arguments.parameter = whole(call->out[0], node->output[0]);
    arguments.copy = whole(node->output[1] ? call->out[1] : NULL, node->output[1]);
    LambTable table;
    LambWalk walk = {};
    while (next_table(&a->spans, &a->elements, tensor_count(node->output[0]), &walk, &table)) {
        update_kernel<<<(unsigned)table.n_tiles, THREADS, 0, cuda_context(call)->stream>>>(arguments, table);
        TRY(cuda_launched("lamb", error));
    }
    return STATUS_OK;
}
