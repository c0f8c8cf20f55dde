/* split_entropy: the cross-entropy of a vocabulary that is split among ranks, in two visits of the logits.
 *
 * Floor over the copy bandwidth: the logits read once for the parts; read again and dlogits written for the
 * loss. Between the two visits ranks exchange three numbers a row.
 *
 * A block has a row. Its threads take every THREADS-th logit and keep a running maximum with the sum of
 * exponentials relative to it. Padding columns are not read and get a gradient of 0. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

typedef struct {
    int64_t rows, n_parts;
    int first_class, n_classes, n_all, width;
    float gradient_scale;
    bool add;
} EntropyShape;

static EntropyShape shape_of(const KernelCall *call) {
    const SplitEntropyAttributes *a = (const SplitEntropyAttributes *)call->node->attributes;
    const Tensor *logits = call->node->input[0];
    EntropyShape s = {};
    s.rows = shape_rows(logits->shape);
    s.width = (int)shape_columns(logits->shape);
    s.first_class = (int)a->first_class;
    s.n_classes = (int)a->n_classes;
    s.n_all = (int)a->n_all;
    s.gradient_scale = a->gradient_scale;
    return s;
}

typedef struct {
    float max, sum; /* sum of e^(x-max); 0 while nothing above -inf was seen */
} Softmax;

DEVICE Softmax join(Softmax a, Softmax b) {
    float max = fmaxf(a.max, b.max);
    if (max == -INFINITY) return {max, a.sum + b.sum};
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
}

/* fmaxf leaves NaN out; the sum keeps it. */
DEVICE Softmax add(Softmax s, float x) {
    if (x > s.max) {
        s.sum = (s.max == -INFINITY ? s.sum : s.sum * expf(s.max - x));
        s.max = x;
    }
    s.sum += x == -INFINITY ? 0.0f : expf(x - s.max);
    return s;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    part_kernel(const T *logits, const int32_t *targets, float *part, EntropyShape s, CudaFault *fault) {
    __shared__ Softmax shared[THREADS / WARP];
    int64_t n = blockIdx.x;
    const T *row = logits + n * s.width;
    Softmax mine = {-INFINITY, 0.0f};
    for (int c = (int)threadIdx.x; c < s.n_classes; c += THREADS) mine = add(mine, as_float(row[c]));
    for (int step = WARP / 2; step; step /= 2) {
        Softmax other = {__shfl_xor_sync(0xFFFFFFFFu, mine.max, step),
                         __shfl_xor_sync(0xFFFFFFFFu, mine.sum, step)};
        mine = join(mine, other);
    }
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < THREADS / WARP; w++) mine = join(mine, shared[w]);
    int target = targets[n] - s.first_class;
    if (targets[n] >= s.n_all) report(fault, FAULT_TARGET, targets[n], s.n_all);
    part[n * ENTROPY_PARTS] = mine.max;
    part[n * ENTROPY_PARTS + 1] = mine.max == INFINITY ? NAN : mine.sum;
    part[n * ENTROPY_PARTS + 2] = target >= 0 && target < s.n_classes ? as_float(row[target]) : 0.0f;
}

extern "C" Status cuda_split_entropy_part(const KernelCall *call, Error *error) {
    EntropyShape s = shape_of(call);
    const CudaContext *context = cuda_context(call);
    if (!s.rows) return STATUS_OK;
    FOR_TYPE(call->node->input[0], T,
             part_kernel<T><<<(unsigned)s.rows, THREADS, 0, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (float *)call->out[0], s,
                 context->device_fault));
    return cuda_launched("split_entropy_part", error);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    entropy_kernel(const T *logits, const int32_t *targets, const float *parts, const float *loss_scale,
                   float *losses, T *dlogits, EntropyShape s) {
    int64_t n = blockIdx.x;
    Softmax all = {-INFINITY, 0.0f};
    float target_logit = 0.0f;
    for (int64_t r = 0; r < s.n_parts; r++) {
        const float *part = parts + (r * s.rows + n) * ENTROPY_PARTS;
        all = join(all, {part[0], part[1]});
        target_logit += part[2];
    }
    if (all.max == -INFINITY) all.sum = NAN;
    bool counts = targets[n] >= 0 && targets[n] < s.n_all;
    if (threadIdx.x == 0) losses[n] = counts ? all.max + logf(all.sum) - target_logit : 0.0f;
    if (!dlogits) return;
    float scale = s.gradient_scale * (loss_scale ? *loss_scale : 1.0f), factor = scale / all.sum;
    int target = targets[n] - s.first_class;
    for (int c = (int)threadIdx.x; c < s.width; c += THREADS) {
        float value = 0.0f;
        if (counts && c < s.n_classes)
            value = expf(as_float(logits[n * s.width + c]) - all.max) * factor - (c == target ? scale : 0.0f);
        write_element(dlogits + n * s.width + c, value, s.add);
    }
}

extern "C" Status cuda_split_entropy(const KernelCall *call, Error *error) {
    EntropyShape s = shape_of(call);
    const Node *node = call->node;
    const CudaContext *context = cuda_context(call);
    s.n_parts = node->input[2]->shape.dim[0];
    s.add = call->add[1];
    if (!s.rows) return STATUS_OK;
    if (!same_types(node->input[0], node->output[1])) return cuda_unsupported(call, node->output[1], error);
    FOR_TYPE(node->input[0], T,
             entropy_kernel<T><<<(unsigned)s.rows, THREADS, 0, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (const float *)call->in[2],
                 (const float *)call->in[3], (float *)call->out[0], (T *)call->out[1], s));
    return cuda_launched("split_entropy", error);
}
