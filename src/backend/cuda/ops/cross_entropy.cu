/* cross_entropy: the loss of every row of logits and, when asked, its gradient, which may replace them.
 *
 * Floor over the copy bandwidth: the logits read once and dlogits written once, 4 bytes a logit in 16 bits.
 * Nothing V-wide is ever stored in f32.
 *
 * A long row with a gradient is kept by a block in shared memory and visited three times: for the maximum,
 * for the exponentials and their sum, and to write the gradient. The second visit leaves the exponentials
 * where the logits were, so that they are made once. Between 0 and 1 as they are, f16 times 2^15 holds them
 * to 11 bits down to 2e-9, more than a 16-bit gradient shows. While a row is worked on, the block's next one
 * is copied into a second buffer (GPT-2's vocabulary in 16 bits takes 100 kB, twice); without that, all
 * blocks would read, compute and write in step, and memory would idle while they compute.
 *
 * Other rows (short ones, those without a gradient, and those too long to keep) are visited twice by a team:
 * in the first visit every thread keeps a running maximum and the sum of exponentials relative to it, which
 * is scaled down when the maximum rises; the second makes the gradient. A short row is one warp's, a long one
 * a block's.
 *
 * Rows of an odd vocabulary begin anywhere, so vectors are counted from the last 16-byte boundary before the
 * row: all but the first and the last are whole. Padding columns count as -inf, which makes their gradient 0.
 * A row with a NaN or an infinite greatest logit has a NaN loss, as plain arithmetic would give. */
#include "backend/cuda/runtime/cp_async.cuh"

enum {
    SHORT = 2048, /* a row with fewer logits is one warp's, */
    LONG = 16384, /* and one with as many is kept */
    SHORT_BLOCK = 128,
    BLOCK = 512,
    KEPT_BLOCK = 1024,
};

#define LOG2_E 1.4426950408889634f

typedef struct {
    float max, sum; /* sum of e^(x-max); max is -inf while nothing finite was seen */
} Softmax;

/* e^x is taken as 2^(x·log2 e): a multiply-add that also subtracts the maximum, and one instruction for the
 * power.
 *
 * What exponents are relative to, times log2 e: nothing is -inf away from -inf. */
DEVICE float reference_of(float max) {
    return max == -INFINITY ? 0.0f : max * LOG2_E;
}

/* The sum that belongs to a maximum of -inf is 0 or NaN, and 0 times either is what it should be. */
DEVICE Softmax join(Softmax a, Softmax b) {
    float max = fmaxf(a.max, b.max), reference = reference_of(max);
    Softmax s = {max, a.sum * exp2_fast(fmaf(a.max, LOG2_E, -reference)) +
                          b.sum * exp2_fast(fmaf(b.max, LOG2_E, -reference))};
    return s;
}

DEVICE Softmax warp_join(Softmax s, int lanes) {
    for (int step = lanes / 2; step; step /= 2) {
        Softmax other = {__shfl_xor_sync(0xFFFFFFFFu, s.max, step),
                         __shfl_xor_sync(0xFFFFFFFFu, s.sum, step)};
        s = join(s, other);
    }
    return s;
}

DEVICE void add_vector(Softmax *s, const float v[VECTOR]) {
    float low = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])),
          high = fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7]));
    float max = fmaxf(low, high);
    if (max > s->max) {
        s->sum *= exp2_fast(fmaf(s->max, LOG2_E, -reference_of(max))); /* from -inf: 0 times 0 */
        s->max = max;
    }
    float reference = reference_of(s->max), term[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) term[k] = exp2_fast(fmaf(v[k], LOG2_E, -reference));
    s->sum += ((term[0] + term[1]) + (term[2] + term[3])) + ((term[4] + term[5]) + (term[6] + term[7]));
}

/* 8 elements of a row of n from column c on, which may be negative in the first vector. What is not there is
 * -inf. */
template <typename T> DEVICE Raw<T> load_columns(const T *row, int c, int n) {
    if (c >= 0 && c + VECTOR <= n) return load_raw(row + c);
    Raw<T> raw;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        if (c + k >= 0 && c + k < n) raw.element[k] = row[c + k];
        else set_element(&raw.element[k], -INFINITY);
    }
    return raw;
}

template <typename T>
DEVICE void write_columns(T *row, int c, int n, bool aligned, float v[VECTOR], bool add) {
    if (c >= 0) write8(row + c, n - c, aligned, v, add);
    else {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            if (c + k >= 0 && c + k < n) write_element(row + c + k, v[k], add);
        }
    }
}

typedef struct {
    int64_t rows;
    int vocabulary, width; /* classes, and columns with their padding */
    float gradient_scale;
    bool add_gradient;
} EntropyShape;

/* THREADS of a block, TEAM of them have a row: a warp, or the whole block. loss_scale is NULL or multiplies
 * the gradient. */
template <typename T, int THREADS, int TEAM>
static __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    cross_entropy_kernel(const T *logits, const int32_t *targets, const float *loss_scale, float *losses,
                         T *dlogits, EntropyShape s, CudaFault *fault) {
    enum { AT_ONCE = TEAM == WARP ? 1 : 4 }; /* vectors on their way together */
    __shared__ Softmax shared[THREADS / WARP];
    int64_t n = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    int member = (int)threadIdx.x % TEAM;
    if (n >= s.rows) return; /* a whole warp, or a whole block */
    const T *row = logits + n * s.width;
    T *gradient = dlogits ? dlogits + n * s.width : NULL;
    int target = targets[n], skew = (int)((uintptr_t)row % 16 / sizeof(T));
    bool is_wrong = target >= s.vocabulary, is_ignored = target < 0 || is_wrong;
    if (is_wrong && member == 0) report(fault, FAULT_TARGET, target, s.vocabulary);
    Softmax softmax = {-INFINITY, 0.0f};
    float target_logit = is_ignored || member ? 0.0f : as_float(row[target]);
    if (!is_ignored) {
        for (int c = member * VECTOR - skew; c < s.width; c += AT_ONCE * TEAM * VECTOR) {
            Raw<T> raw[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) raw[j] = load_columns(row, c + j * TEAM * VECTOR, s.vocabulary);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                float v[VECTOR];
                unpack(raw[j], v);
                add_vector(&softmax, v);
            }
        }
        softmax = warp_join(softmax, WARP);
    }
    if (TEAM > WARP) {
        if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = softmax;
        __syncthreads();
        softmax = warp_join(shared[threadIdx.x % (TEAM / WARP)], TEAM / WARP);
    }
    if (member == 0) {
        /* A greatest logit of -inf has no softmax: 0/0. */
        float sum = softmax.max == -INFINITY && !is_ignored ? NAN : softmax.sum;
        losses[n] = is_ignored ? 0.0f : softmax.max + logf(sum) - target_logit;
    }
    if (!gradient) return;
    if (TEAM == WARP) __syncwarp(); /* the target's logit is read before anybody replaces it */
    float scale = s.gradient_scale * (loss_scale ? *loss_scale : 1.0f);
    float factor = is_ignored ? 0.0f : scale / softmax.sum, reference = softmax.max * LOG2_E;
    bool aligned = (uintptr_t)gradient % 16 == (uintptr_t)row % 16;
    for (int c = member * VECTOR - skew; c < s.width; c += AT_ONCE * TEAM * VECTOR) {
        Raw<T> raw[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE && !is_ignored; j++) {
            raw[j] = load_columns(row, c + j * TEAM * VECTOR, s.vocabulary);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int at = c + j * TEAM * VECTOR;
            if (at >= s.width) break;
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                v[k] = is_ignored ? 0.0f : exp2_fast(fmaf(v[k], LOG2_E, -reference)) * factor;
            if ((unsigned)(target - at) < VECTOR && !is_ignored) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] -= target - at == k ? scale : 0.0f;
            }
            write_columns(gradient, at, s.width, aligned, v, s.add_gradient);
        }
    }
}

/* ---- rows that are kept ---- */

/* Shared memory for rows, beside a little for the rest. */
static size_t kept_bytes(const CudaContext *context) {
    return (size_t)context->traits.max_shared_bytes - 2048;
}
template <typename T> static size_t row_bytes(const EntropyShape *s) {
    return (size_t)(vectors_for(s->width) + 1) * sizeof(Raw<T>);
}

/* What the exponentials of logits of type T are kept as, and what they are multiplied by before. */
template <typename T> struct Kept {
    typedef f16 type;
    static constexpr float scale = 32768.0f;
};
template <> struct Kept<float> {
    typedef float type;
    static constexpr float scale = 1.0f;
};

DEVICE void raise(Raw<float> *max, const Raw<float> &raw) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) max->element[k] = fmaxf(max->element[k], raw.element[k]);
}
DEVICE void raise(Raw<bf16> *max, const Raw<bf16> &raw) {
#pragma unroll
    for (int k = 0; k < VECTOR / 2; k++)
        ((__nv_bfloat162 *)max)[k] = __hmax2(((__nv_bfloat162 *)max)[k], ((const __nv_bfloat162 *)&raw)[k]);
}
DEVICE void raise(Raw<f16> *max, const Raw<f16> &raw) {
#pragma unroll
    for (int k = 0; k < VECTOR / 2; k++)
        ((__half2 *)max)[k] = __hmax2(((__half2 *)max)[k], ((const __half2 *)&raw)[k]);
}

/* A thread copies, and later visits, every KEPT_BLOCK-th vector of the row, counted from the 16-byte boundary
 * before it; nobody else touches those. */
template <typename T> DEVICE void fetch_row(const T *row, const EntropyShape &s, Raw<T> *kept) {
    int skew = (int)((uintptr_t)row % 16 / sizeof(T));
    for (int i = (int)threadIdx.x; i * VECTOR - skew < s.width; i += KEPT_BLOCK) {
        int c = i * VECTOR - skew;
        if (c >= 0 && c + VECTOR <= s.vocabulary) {
#pragma unroll
            for (int part = 0; part < (int)sizeof(T) / 2; part++)
                cp_async16((uint4 *)&kept[i] + part, (const uint4 *)(row + c) + part);
        } else {
            kept[i] = load_columns(row, c, s.vocabulary);
        }
    }
}

/* What the threads of a block tell each other about a row; a barrier lies between two uses of each. */
typedef struct {
    float max[KEPT_BLOCK / WARP], sum[KEPT_BLOCK / WARP], target_logit;
} RowShared;

/* The greatest logit; also notes the target's, which lies at element target_at of `kept`. */
template <typename T>
DEVICE float row_max(const Raw<T> *kept, int n_vectors, int target_at, RowShared *shared) {
    Raw<T> max;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) set_element(&max.element[k], -INFINITY);
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < n_vectors; i += KEPT_BLOCK) {
        raise(&max, kept[i]);
        if (i == target_at / VECTOR) shared->target_logit = as_float(((const T *)kept)[target_at]);
    }
    float v[VECTOR], greatest = -INFINITY;
    unpack(max, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) greatest = fmaxf(greatest, v[k]);
    greatest = warp_max(greatest);
    if (threadIdx.x % WARP == 0) shared->max[threadIdx.x / WARP] = greatest;
    __syncthreads();
    return warp_max(shared->max[threadIdx.x % (KEPT_BLOCK / WARP)]);
}

/* The logits become exponentials; returns their sum. */
template <typename T> DEVICE float row_sum(Raw<T> *kept, int n_vectors, float max, RowShared *shared) {
    typedef typename Kept<T>::type E;
    float sum = 0.0f, reference = max * LOG2_E;
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < n_vectors; i += KEPT_BLOCK) {
        float v[VECTOR];
        unpack(kept[i], v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = exp2_fast(fmaf(v[k], LOG2_E, -reference));
        sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] *= Kept<T>::scale;
        store8((E *)&kept[i], v);
    }
    return block_sum(sum, shared->sum);
}

/* gradient = exponentials · factor - scale at the target; all 0 where there is no target (-1). */
template <typename T>
DEVICE void write_row(const Raw<T> *kept, T *gradient, int skew, int n_vectors, int target, float factor,
                      float scale, bool aligned, const EntropyShape &s) {
    typedef typename Kept<T>::type E;
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < n_vectors; i += KEPT_BLOCK) {
        float v[VECTOR] = {0};
        int c = i * VECTOR - skew;
        if (target >= 0) {
            load8((const E *)&kept[i], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] *= factor;
            if ((unsigned)(target - c) < VECTOR) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] -= target - c == k ? scale : 0.0f;
            }
        }
        write_columns(gradient, c, s.width, aligned, v, s.add_gradient);
    }
}

/* Block b has rows b, b + gridDim.x, ... */
template <typename T>
static __global__ void __launch_bounds__(KEPT_BLOCK)
    kept_kernel(const T *logits, const int32_t *targets, const float *loss_scale, float *losses, T *dlogits,
                EntropyShape s, int n_buffers, CudaFault *fault) {
    __shared__ RowShared shared;
    extern __shared__ uint4 memory[]; /* (n_buffers, vectors of a row + 1) */
    Raw<T> *buffer = (Raw<T> *)memory;
    int room = (s.width + VECTOR - 1) / VECTOR + 1, use = 0;
    float scale = s.gradient_scale * (loss_scale ? *loss_scale : 1.0f);
    if (n_buffers > 1) fetch_row(logits + blockIdx.x * (int64_t)s.width, s, buffer);
    cp_async_commit();
    for (int64_t n = blockIdx.x; n < s.rows; n += gridDim.x) {
        const T *row = logits + n * s.width;
        T *gradient = dlogits + n * s.width;
        Raw<T> *kept = buffer + use * room;
        int target = targets[n], skew = (int)((uintptr_t)row % 16 / sizeof(T));
        int n_vectors = (s.width + skew + VECTOR - 1) / VECTOR;
        if (n_buffers > 1) {
            use ^= 1;
            if (n + gridDim.x < s.rows) fetch_row(row + gridDim.x * (int64_t)s.width, s, buffer + use * room);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            fetch_row(row, s, kept);
            cp_async_commit();
            cp_async_wait<0>();
        }
        if (target >= s.vocabulary) {
            if (threadIdx.x == 0) report(fault, FAULT_TARGET, target, s.vocabulary);
            target = -1;
        }
        float factor = 0.0f;
        if (target >= 0) {
            float max = row_max(kept, n_vectors, target + skew, &shared), target_logit = shared.target_logit;
            float sum = row_sum(kept, n_vectors, max, &shared);
            factor = scale / sum / Kept<T>::scale;
            if (threadIdx.x == 0) losses[n] = max + logf(sum) - target_logit;
        } else if (threadIdx.x == 0) losses[n] = 0.0f;
        bool aligned = (uintptr_t)gradient % 16 == (uintptr_t)row % 16;
        write_row(kept, gradient, skew, n_vectors, target, factor, scale, aligned, s);
    }
}

template <typename T> static Status launch_kept(const KernelCall *call, const EntropyShape *s, Error *error) {
    const CudaContext *context = cuda_context(call);
    int n_buffers = 2 * row_bytes<T>(s) <= kept_bytes(context) ? 2 : 1;
    size_t shared = (size_t)n_buffers * row_bytes<T>(s);
    int64_t blocks = context->traits.n_processors < s->rows ? context->traits.n_processors : s->rows;
    TRY(cuda_check(
        cudaFuncSetAttribute(kept_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
        "cross_entropy", error));
    kept_kernel<T><<<(unsigned)blocks, KEPT_BLOCK, shared, context->stream>>>(
        (const T *)call->in[0], (const int32_t *)call->in[1],
        call->node->n_inputs > 2 ? (const float *)call->in[2] : NULL, (float *)call->out[0],
        (T *)call->out[1], *s, n_buffers, context->device_fault);
    return STATUS_OK;
}

extern "C" Status cuda_cross_entropy(const KernelCall *call, Error *error) {
    const CrossEntropyAttributes *a = (const CrossEntropyAttributes *)call->node->attributes;
    const Tensor *logits = call->node->input[0];
    if (!same_types(logits, call->node->output[1]))
        return cuda_unsupported(call, call->node->output[1], error);
    if (shape_columns(logits->shape) > INT32_MAX / 2) return cuda_unsupported(call, logits, error);
    EntropyShape s = {shape_rows(logits->shape), (int)a->n_classes, (int)shape_columns(logits->shape),
                      a->gradient_scale, call->add[1]};
    if (!s.rows) return STATUS_OK;
    const CudaContext *context = cuda_context(call);
    const int32_t *targets = (const int32_t *)call->in[1];
    const float *loss_scale = call->node->n_inputs > 2 ? (const float *)call->in[2] : NULL;
    float *losses = (float *)call->out[0];
    FOR_TYPE(logits, T, {
        const T *from = (const T *)call->in[0];
        T *to = (T *)call->out[1];
        if (s.vocabulary < SHORT) {
            cross_entropy_kernel<T, SHORT_BLOCK, WARP>
                <<<blocks_for(s.rows, SHORT_BLOCK / WARP), SHORT_BLOCK, 0, context->stream>>>(
                    from, targets, loss_scale, losses, to, s, context->device_fault);
        } else if (to && s.vocabulary >= LONG && row_bytes<T>(&s) <= kept_bytes(context)) {
            TRY(launch_kept<T>(call, &s, error));
        } else {
            cross_entropy_kernel<T, BLOCK, BLOCK><<<(unsigned)s.rows, BLOCK, 0, context->stream>>>(
                from, targets, loss_scale, losses, to, s, context->device_fault);
        }
    });
    return cuda_launched("cross_entropy", error);
}
