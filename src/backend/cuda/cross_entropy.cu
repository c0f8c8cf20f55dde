/* cross_entropy: the loss of every row of logits and, when asked, its gradient, which may replace them.
 *
 * Floor over the copy bandwidth: the logits read once and dlogits written once, 4 bytes a logit in 16 bits. Nothing
 * V-wide is ever stored in f32.
 *
 * A long row with a gradient is kept by a block in shared memory (GPT-2's vocabulary in 16 bits takes 100 kB, and two
 * such blocks fit a multiprocessor) and visited three times: for the maximum as it comes in, for the exponentials and
 * their sum, and to write the gradient. Exponentials are what limits the speed beside memory, so they are made once: the
 * second visit leaves them where the logits were. Between 0 and 1 as they are, f16 times 2^15 holds them to 11 bits down
 * to 2e-9, more than a 16-bit gradient shows.
 *
 * Other rows (short ones, those without a gradient, and those too long to keep) are visited twice by a team: in the first
 * visit every thread keeps a running maximum and the sum of exponentials relative to it, which is scaled down when the
 * maximum rises; the second makes the gradient. A short row is one warp's, a long one a block's.
 *
 * Rows of an odd vocabulary begin anywhere, so vectors are counted from the last 16-byte boundary before the row: all
 * but the first and the last are whole. A row with a NaN or an infinite greatest logit has a NaN loss, as plain
 * arithmetic would give. */
#include "backend/cuda/device.cuh"

enum {
    BLOCK = 512,
    SHORT_BLOCK = 128,
    SHORT = 2048
}; /* threads of a block; a row below SHORT is one warp's */

#define LOG2_E 1.4426950408889634f

typedef struct {
    float max, sum; /* sum of e^(x-max); max is -inf while nothing finite was seen */
} Softmax;

/* e^x as 2^(x·log2 e): a multiply-add that also subtracts the maximum, and one instruction for the power. */
DEVICE float power(float exponent) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(exponent));
    return result;
}

/* What exponents are relative to, times log2 e: nothing is -inf away from -inf. */
DEVICE float reference_of(float max) {
    return max == -INFINITY ? 0.0f : max * LOG2_E;
}

/* The sum that belongs to a maximum of -inf is 0 or NaN, and 0 times either is what it should be. */
DEVICE Softmax join(Softmax a, Softmax b) {
    float max = fmaxf(a.max, b.max), reference = reference_of(max);
    Softmax s = {max, a.sum * power(fmaf(a.max, LOG2_E, -reference)) +
                          b.sum * power(fmaf(b.max, LOG2_E, -reference))};
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
        s->sum *= power(fmaf(s->max, LOG2_E, -reference_of(max))); /* from -inf: 0 times 0 */
        s->max = max;
    }
    float reference = reference_of(s->max), term[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) term[k] = power(fmaf(v[k], LOG2_E, -reference));
    s->sum += ((term[0] + term[1]) + (term[2] + term[3])) + ((term[4] + term[5]) + (term[6] + term[7]));
}

/* 8 elements of a row of n from column c on, which may be negative in the first vector. What is not there is -inf. */
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
    int vocabulary;
    float gradient_scale;
    bool add_gradient;
} EntropyShape;

/* THREADS of a block, TEAM of them have a row: a warp, or the whole block. loss_scale is NULL or multiplies the
 * gradient. */
template <typename T, int THREADS, int TEAM>
static __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    cross_entropy_kernel(const T *logits, const int32_t *targets, const float *loss_scale, float *losses,
                         T *dlogits, EntropyShape s, CudaFault *fault) {
    enum { AT_ONCE = TEAM == WARP ? 1 : 4 }; /* vectors on their way together */
    __shared__ Softmax shared[THREADS / WARP];
    int64_t n = (int64_t)blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
    int member = (int)threadIdx.x % TEAM;
    if (n >= s.rows) return; /* a whole warp, or a whole block */
    const T *row = logits + n * s.vocabulary;
    T *gradient = dlogits ? dlogits + n * s.vocabulary : NULL;
    int target = targets[n], skew = (int)((uintptr_t)row % 16 / sizeof(T));
    bool is_wrong = target >= s.vocabulary, is_ignored = target < 0 || is_wrong;
    if (is_wrong && member == 0) report(fault, FAULT_TARGET, target, s.vocabulary);
    Softmax softmax = {-INFINITY, 0.0f};
    float target_logit = is_ignored || member ? 0.0f : as_float(row[target]);
    if (!is_ignored) {
        for (int c = member * VECTOR - skew; c < s.vocabulary; c += AT_ONCE * TEAM * VECTOR) {
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
    for (int c = member * VECTOR - skew; c < s.vocabulary; c += AT_ONCE * TEAM * VECTOR) {
        Raw<T> raw[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE && !is_ignored; j++) {
            raw[j] = load_columns(row, c + j * TEAM * VECTOR, s.vocabulary);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int at = c + j * TEAM * VECTOR;
            if (at >= s.vocabulary) break;
            float v[VECTOR];
            unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                v[k] = is_ignored ? 0.0f : power(fmaf(v[k], LOG2_E, -reference)) * factor;
            if ((unsigned)(target - at) < VECTOR && !is_ignored) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] -= target - at == k ? scale : 0.0f;
            }
            write_columns(gradient, at, s.vocabulary, aligned, v, s.add_gradient);
        }
    }
}

/* ---- rows that are kept ---- */

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

/* The block's greatest logit, and the row in `kept`. */
template <typename T>
DEVICE float keep_row(const T *row, int skew, int vocabulary, Raw<T> *kept, float *shared) {
    enum { AT_ONCE = 4 };
    Raw<T> max;
    for (int k = 0; k < VECTOR; k++) set_element(&max.element[k], -INFINITY);
    for (int c = (int)threadIdx.x * VECTOR - skew; c < vocabulary; c += AT_ONCE * BLOCK * VECTOR) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) raw[j] = load_columns(row, c + j * BLOCK * VECTOR, vocabulary);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int at = c + j * BLOCK * VECTOR;
            if (at < vocabulary) kept[(at + skew) / VECTOR] = raw[j];
            raise(&max, raw[j]);
        }
    }
    float v[VECTOR], greatest = -INFINITY;
    unpack(max, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) greatest = fmaxf(greatest, v[k]);
    greatest = warp_max(greatest);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = greatest;
    __syncthreads();
    return warp_max(shared[threadIdx.x % (BLOCK / WARP)]);
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK, 2)
    kept_kernel(const T *logits, const int32_t *targets, const float *loss_scale, float *losses, T *dlogits,
                EntropyShape s, CudaFault *fault) {
    typedef typename Kept<T>::type E;
    __shared__ float shared[2][BLOCK / WARP];
    extern __shared__ uint4
        memory[]; /* the row, from the 16-byte boundary before it on; then its exponentials */
    Raw<T> *kept = (Raw<T> *)memory;
    int64_t n = blockIdx.x;
    const T *row = logits + n * s.vocabulary;
    T *gradient = dlogits + n * s.vocabulary;
    int target = targets[n], skew = (int)((uintptr_t)row % 16 / sizeof(T));
    int n_vectors = (s.vocabulary + skew + VECTOR - 1) / VECTOR;
    bool is_wrong = target >= s.vocabulary, is_ignored = target < 0 || is_wrong;
    bool aligned = (uintptr_t)gradient % 16 == (uintptr_t)row % 16;
    if (is_wrong && threadIdx.x == 0) report(fault, FAULT_TARGET, target, s.vocabulary);
    float target_logit = is_ignored || threadIdx.x ? 0.0f : as_float(row[target]), sum = 0.0f, factor = 0.0f;
    float scale = s.gradient_scale * (loss_scale ? *loss_scale : 1.0f);
    if (!is_ignored) {
        float max = keep_row(row, skew, s.vocabulary, kept, shared[0]), reference = max * LOG2_E;
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < n_vectors; i += BLOCK) {
            float v[VECTOR];
            unpack(kept[i], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = power(fmaf(v[k], LOG2_E, -reference));
            sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] *= Kept<T>::scale;
            store8((E *)&kept[i], v);
        }
        sum = block_sum(sum, shared[1]);
        factor = scale / sum / Kept<T>::scale;
        if (threadIdx.x == 0) losses[n] = max + logf(sum) - target_logit;
    } else if (threadIdx.x == 0) losses[n] = 0.0f;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < n_vectors; i += BLOCK) {
        float v[VECTOR] = {0};
        int c = i * VECTOR - skew;
        if (!is_ignored) {
            load8((const E *)&kept[i], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] *= factor;
            if ((unsigned)(target - c) < VECTOR) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] -= target - c == k ? scale : 0.0f;
            }
        }
        write_columns(gradient, c, s.vocabulary, aligned, v, s.add_gradient);
    }
}

extern "C" Status cuda_cross_entropy(const KernelCall *call, Error *error) {
    const CrossEntropyAttributes *a = (const CrossEntropyAttributes *)call->node->attributes;
    const Tensor *logits = call->node->input[0];
    if (!same_types(logits, call->node->output[1]))
        return cuda_unsupported(call, call->node->output[1], error);
    if (shape_columns(logits->shape) > INT32_MAX / 2) return cuda_unsupported(call, logits, error);
    EntropyShape s = {shape_rows(logits->shape), (int)shape_columns(logits->shape), a->gradient_scale,
                      call->add[1]};
    if (!s.rows) return STATUS_OK;
    const CudaContext *context = cuda_context(call);
    const int32_t *targets = (const int32_t *)call->in[1];
    const float *loss_scale = call->node->n_inputs > 2 ? (const float *)call->in[2] : NULL;
    float *losses = (float *)call->out[0];
    FOR_TYPE(logits, T, {
        const T *from = (const T *)call->in[0];
        T *to = (T *)call->out[1];
        size_t kept = (size_t)(vectors_for(s.vocabulary) + 1) * sizeof(Raw<T>);
        if (s.vocabulary < SHORT) {
            cross_entropy_kernel<T, SHORT_BLOCK, WARP>
                <<<blocks_for(s.rows, SHORT_BLOCK / WARP), SHORT_BLOCK, 0, context->stream>>>(
                    from, targets, loss_scale, losses, to, s, context->device_fault);
        } else if (to && kept <= (size_t)context->max_shared_bytes - 1024) {
            TRY(cuda_check(
                cudaFuncSetAttribute(kept_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)kept),
                "cross_entropy", error));
            kept_kernel<T><<<(unsigned)s.rows, BLOCK, kept, context->stream>>>(
                from, targets, loss_scale, losses, to, s, context->device_fault);
        } else {
            cross_entropy_kernel<T, BLOCK, BLOCK><<<(unsigned)s.rows, BLOCK, 0, context->stream>>>(
                from, targets, loss_scale, losses, to, s, context->device_fault);
        }
    });
    return cuda_launched("cross_entropy", error);
}
