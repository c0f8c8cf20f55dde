/* layernorm and rmsnorm: what both do with a row; they differ in whether a mean is taken off. residual_norm
 * is either with a branch: the row is a sum that is made and stored on the way, and its gradient goes to the
 * branch as well.
 *
 * A team of threads has one row at a time in registers, up to 32 channels a thread: a row is read once,
 * whatever is done with it. A team is half a warp up to 384 channels (three vectors a thread: none idles at
 * 384, as a quarter would with two vectors in a whole warp), a warp up to 768 (three vectors again), both of
 * which sum by shuffles alone, and as many warps as it takes beyond. The grid is as large as the GPU holds at
 * once, and strides over the rows.
 *
 * In the backward every thread also keeps the running sums of dweight and dbias for its channels, which stay
 * the same from row to row. A block adds up the sums of its teams at the end and leaves one row of partial
 * sums; reduce.cu adds those up. The sums of a branch's gradient come with them. There are no registers left
 * for those: teams within a warp keep them in shared memory, each thread its own, and for larger teams they
 * are a pass of their own. All of it happens in an order that depends on shapes and the GPU's model alone. */
#ifndef PGPT_BACKEND_CUDA_NORM_NORM_ROWS_CUH
#define PGPT_BACKEND_CUDA_NORM_NORM_ROWS_CUH

#include "backend/cuda/norm/norm_parts.cuh"
#include "backend/cuda/runtime/cp_async.cuh"
#include "backend/cuda/runtime/pdl.cuh"

/* ---- forward ---- */

template <typename T, int VECTORS, int LANES, bool HAS_MEAN, bool HAS_BRANCH, bool ALIGNED, int THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS != NORM_SMALL ? 1
                                                  : HAS_BRANCH          ? NORM_BRANCH_RESIDENT / NORM_SMALL
                                                                        : NORM_FORWARD_RESIDENT / NORM_SMALL)
    norm_forward_kernel(const T *x, Memory weight, Memory bias, T *y, float *means, float *rstds, NormShape s,
                        Branch branch) {
    __shared__ float2 shared[2][THREADS / WARP];
    extern __shared__ __align__(16) float kept[]; /* weights, then biases */
    int64_t stride = (int64_t)gridDim.x * blockDim.y, first = (int64_t)blockIdx.x * blockDim.y;
    float part = 1.0f / (float)s.channels;
    Words<T> next[VECTORS] = {}, next_branch[VECTORS] = {};
    wait_for_predecessor();
    if (first + threadIdx.y < s.rows) {
        int64_t at = (first + threadIdx.y) * s.channels;
        load_row<T, VECTORS, LANES, ALIGNED>(x + at, s.channels, next);
        if (HAS_BRANCH)
            load_row<T, VECTORS, LANES, ALIGNED>((const T *)branch.branch + at, s.channels, next_branch);
    }
    Masks masks = {};
    if (HAS_BRANCH) masks = masks_of(branch.draws, first + threadIdx.y, stride);
    int width = width_of<VECTORS, LANES>();
    keep_weights<T, THREADS>(weight, s.channels, kept, width);
    keep_weights<T, THREADS>(bias, s.channels, kept + width, width);
    __syncthreads();
    for (int64_t base = first; base < s.rows; base += stride) { /* all teams together: they share barriers */
        int64_t row = base + threadIdx.y;
        int channels = row < s.rows ? s.channels : 0; /* to be written */
        float v[VECTORS][VECTOR], sum = 0.0f, mean = 0.0f;
        Words<T> own[VECTORS];
        if (HAS_BRANCH) { /* then the next row can have the registers of what was added */
            add_branch<T, VECTORS, LANES, ALIGNED>(next, next_branch, masks, s.channels);
            next_row(&masks, branch.draws);
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) own[j] = next[j];
        if (row + stride < s.rows) {
            int64_t at = (row + stride) * s.channels;
            load_row<T, VECTORS, LANES, ALIGNED>(x + at, s.channels, next);
            if (HAS_BRANCH)
                load_row<T, VECTORS, LANES, ALIGNED>((const T *)branch.branch + at, s.channels, next_branch);
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of<LANES>(j);
            if (HAS_BRANCH)
                store_words<T, ALIGNED>((T *)branch.sum + row * s.channels + c, channels - c, own[j]);
            unpack(own[j], v[j]);
        }
        if (HAS_MEAN) {
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum += v[j][k];
            }
            mean = __fmul_rn(team_sum<LANES>(sum, 0.0f, shared[0]).x, part); /* the same in every form */
            sum = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int n = s.channels - channel_of<LANES>(j);
            float center = n > 0 ? mean : 0.0f;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                v[j][k] -= ALIGNED || k < n ? center : 0.0f;
                sum = fmaf(v[j][k], v[j][k], sum);
            }
        }
        float rstd = rsqrtf(fmaf(team_sum<LANES>(sum, 0.0f, shared[1]).x, part, s.epsilon));
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of<LANES>(j);
            float w[VECTOR], b[VECTOR] = {0};
            read_weights<T, THREADS>(weight, s.channels, kept, width, c, w);
            if (HAS_MEAN || bias.data) read_weights<T, THREADS>(bias, s.channels, kept + width, width, c, b);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = fmaf(v[j][k] * rstd, w[k], b[k]);
            store_words<T, ALIGNED>(y + row * s.channels + c, channels - c, pack<T>(v[j]));
        }
        if (threadIdx.x == 0 && row < s.rows) {
            if (HAS_MEAN) means[row] = mean;
            rstds[row] = rstd;
        }
        if (!LANES && !HAS_MEAN && blockDim.x > WARP) __syncthreads(); /* the one sum is used again at once */
    }
}

/* ---- backward ---- */

/* What the teams of a block have for the same channels is added up and stored. shared: (warps or larger
 * teams, width). */
template <int VECTORS, int LANES, bool ALIGNED, int THREADS>
DEVICE void store_sums(float v[VECTORS][VECTOR], float *out, int channels, float *shared) {
    if (THREADS != NORM_SMALL) { /* one team */
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of<LANES>(j);
            store8(out + c, channels - c, ALIGNED, v[j]);
        }
        return;
    }
    int width = width_of<VECTORS, LANES>();
    int each = LANES && LANES < WARP ? WARP / LANES : 1, n_sums = (int)blockDim.y / each;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
#pragma unroll
        for (int lanes = LANES; lanes && lanes < WARP; lanes *= 2) { /* teams of the same warp */
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] += __shfl_xor_sync(0xFFFFFFFFu, v[j][k], lanes);
        }
        int c = channel_of<LANES>(j);
        if (threadIdx.y % each == 0) store_halves(shared + (int)threadIdx.y / each * width, width, c, v[j]);
    }
    __syncthreads();
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), n_threads = (int)(blockDim.x * blockDim.y);
    for (int i = thread; i < width / 4; i += n_threads) {
        float4 sum = ((const float4 *)shared)[i];
        for (int other = 1; other < n_sums; other++) {
            float4 more = ((const float4 *)(shared + other * width))[i];
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        int n = width / VECTOR, c = i < n ? i * VECTOR : (i - n) * VECTOR + 4;
        if (c < channels) *(float4 *)(out + c) = sum;
    }
}

/* Teams of as many warps as it takes wait for each other in every row, and have no registers for the next
 * one: it is on its way to shared memory meanwhile. (The others lose more to the instructions of this than
 * they wait.) Every thread has places of its own there, which it fills again as soon as it has taken from
 * them: vector j of x, of dy and of dx, if that is read. */
template <typename T, int VECTORS> DEVICE T *place_of(Words<T> *stage, int which, int j) {
    return (T *)(stage + (which * VECTORS + j) * NORM_WAITING_THREADS);
}
template <typename T> DEVICE void fetch8(T *to, const T *from) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) cp_async16((uint4 *)to + i, (const uint4 *)from + i);
}
template <typename T, int VECTORS, int LANES>
DEVICE void fetch(Words<T> *stage, int j, const T *x, const T *dy, const T *dx, bool has_dx, int64_t at,
                  int channels) {
    int c = channel_of<LANES>(j);
    if (c >= channels) return;
    fetch8(place_of<T, VECTORS>(stage, 0, j), x + at + c);
    fetch8(place_of<T, VECTORS>(stage, 1, j), dy + at + c);
    if (has_dx) fetch8(place_of<T, VECTORS>(stage, 2, j), dx + at + c);
}
template <typename T, int VECTORS>
DEVICE void take(Words<T> *stage, int j, Words<T> *x, Words<T> *dy, bool has_dx, Words<T> *dx) {
    load_words<T, true>(place_of<T, VECTORS>(stage, 0, j), VECTOR, x);
    load_words<T, true>(place_of<T, VECTORS>(stage, 1, j), VECTOR, dy);
    if (has_dx) load_words<T, true>(place_of<T, VECTORS>(stage, 2, j), VECTOR, dx);
}

/* Vector j of a thread's own sums in shared memory: first halves of all threads of the block side by side,
 * then the second ones. (With the constant that the size of such a block is, the compiler keeps more
 * addresses than it has registers for.) */
DEVICE float4 *own_sums(float *shared, int j) {
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), n_threads = (int)(blockDim.x * blockDim.y);
    return (float4 *)shared + 2 * j * n_threads + thread;
}
DEVICE void load_own(float *shared, int j, float v[VECTOR]) {
    const float4 *own = own_sums(shared, j);
    float4 low = own[0], high = own[blockDim.x * blockDim.y];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
DEVICE void store_own(float *shared, int j, const float v[VECTOR]) {
    float4 *own = own_sums(shared, j);
    own[0] = make_float4(v[0], v[1], v[2], v[3]);
    own[blockDim.x * blockDim.y] = make_float4(v[4], v[5], v[6], v[7]);
}

/* dx, if not NULL; and a row of partial, if not NULL: dweight, then dbias, then the branch's. No mean, no
 * bias. A branch's gradient is made of all of dx, and may lie where dy is. */
template <typename T, int VECTORS, int LANES, bool HAS_MEAN, bool HAS_BRANCH, bool ALIGNED, int THREADS>
static __global__ void __launch_bounds__(THREADS,
                                         THREADS == NORM_SMALL ? NORM_BACKWARD_RESIDENT / NORM_SMALL : 1)
    norm_backward_kernel(const T *dy, const T *x, Memory weight, const float *means, const float *rstds,
                         T *dx, float *partial, NormShape s, bool add, Branch branch) {
    enum { SUMS = HAS_MEAN ? 2 : 1, IS_STAGED = THREADS == NORM_SMALL && !LANES };
    __shared__ float2 shared[2][THREADS / WARP];
    extern __shared__ __align__(16) float kept[]; /* weights, stage or own sums; at the end, the teams' */
    const bool has_own = HAS_BRANCH && LANES && branch.sums;
    int use = 0, width = width_of<VECTORS, LANES>();
    int64_t stride = (int64_t)gridDim.x * blockDim.y, first = (int64_t)blockIdx.x * blockDim.y;
    int64_t step = stride * s.channels;
    float dweight[VECTORS][VECTOR] = {{0}}, dbias[VECTORS][VECTOR] = {{0}}, part = 1.0f / (float)s.channels;
    Words<T> own_x[VECTORS] = {}, own_g[VECTORS] = {};
    Words<T> *stage = (Words<T> *)(kept + width) + threadIdx.y * blockDim.x + threadIdx.x;
    float next_rstd = 0.0f, next_mean = 0.0f;
    wait_for_predecessor();
    if (IS_STAGED && first + threadIdx.y < s.rows) {
        int64_t row = first + threadIdx.y;
        next_rstd = rstds[row], next_mean = HAS_MEAN ? means[row] : 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            fetch<T, VECTORS, LANES>(stage, j, x, dy, dx, dx && add, row * s.channels, s.channels);
        cp_async_commit();
    }
    keep_weights<T, THREADS>(weight, s.channels, kept, width);
    Masks masks = {};
    if (HAS_BRANCH && branch.dbranch) masks = masks_of(branch.draws, first + threadIdx.y, stride);
    const float none[VECTOR] = {0};
    for (int j = 0; has_own && j < VECTORS; j++) store_own(kept + width, j, none);
    __syncthreads();
    for (int64_t base = first; base < s.rows; base += stride) { /* all teams together: they share barriers */
        int64_t row = base + threadIdx.y, at = row * s.channels;
        int channels = row < s.rows ? s.channels : 0;
        bool has_next = row + stride < s.rows;
        Words<T> before[VECTORS];
        float rstd = next_rstd, mean = next_mean;
        if (IS_STAGED) {
            if (has_next) next_rstd = rstds[row + stride], next_mean = HAS_MEAN ? means[row + stride] : 0.0f;
            cp_async_wait<0>();
        } else {
            load_row<T, VECTORS, LANES, ALIGNED>(x + at, channels, own_x);
            load_row<T, VECTORS, LANES, ALIGNED>(dy + at, channels, own_g);
            rstd = channels ? rstds[row] : 0.0f, mean = HAS_MEAN && channels ? means[row] : 0.0f;
        }
        float shift = HAS_MEAN ? -mean * rstd : 0.0f;
        float sum_g = 0.0f, sum_gx = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of<LANES>(j);
            float v[VECTOR], g[VECTOR], w[VECTOR];
            if (c >= channels) continue;
            if (IS_STAGED) take<T, VECTORS>(stage, j, &own_x[j], &own_g[j], false, &before[j]);
            unpack(own_x[j], v), unpack(own_g[j], g);
            read_weights<T, THREADS>(weight, s.channels, kept, width, c, w);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) { /* behind the row, dy is 0 */
                v[k] = fmaf(v[k], rstd, shift);
                dweight[j][k] = fmaf(g[k], v[k], dweight[j][k]);
                if (HAS_MEAN) dbias[j][k] += g[k];
                g[k] *= w[k];
                if (HAS_MEAN) sum_g += g[k];
                sum_gx = fmaf(g[k], v[k], sum_gx);
            }
        }
        if (!dx) {
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
                if (IS_STAGED && has_next)
                    fetch<T, VECTORS, LANES>(stage, j, x, dy, dx, false, at + step, s.channels);
            }
            if (IS_STAGED) cp_async_commit();
            continue;
        }
        if (add && LANES) load_row<T, VECTORS, LANES, ALIGNED>(dx + at, channels, before);
        float2 both = team_sum<LANES>(sum_g, sum_gx, shared[use]);
        use ^= 1;
        float of_one = fmaf(-both.y * part * rstd, shift, -both.x * part * rstd),
              of_x = -both.y * part * rstd * rstd;
        RandomBlock draw[VECTORS] = {};
        if (HAS_BRANCH && LANES && masks.limit) draw_row<VECTORS, LANES, ALIGNED>(masks, s.channels, draw);
#pragma unroll
        for (int j = 0; j < VECTORS; j++) { /* unpacked again: registers are short, and this is cheap */
            int c = channel_of<LANES>(j);
            float v[VECTOR], g[VECTOR], w[VECTOR];
            if (c >= channels) continue;
            if (IS_STAGED) take<T, VECTORS>(stage, j, &own_x[j], &own_g[j], add, &before[j]);
            unpack(own_x[j], v), unpack(own_g[j], g);
            if (IS_STAGED && has_next)
                fetch<T, VECTORS, LANES>(stage, j, x, dy, dx, add, at + step, s.channels);
            read_weights<T, THREADS>(weight, s.channels, kept, width, c, w);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = fmaf(g[k] * w[k], rstd, fmaf(v[k], of_x, of_one));
            if (add) {
                if (!LANES && !IS_STAGED) load_words<T, ALIGNED>(dx + at + c, channels - c, &before[j]);
                unpack(before[j], g);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] += g[k];
            }
            Words<T> made = pack<T>(v);
            store_words<T, ALIGNED>(dx + at + c, channels - c, made);
            if (HAS_BRANCH && branch.dbranch) {
                T *to = (T *)branch.dbranch + at + c;
                unpack(made, v);
                if (masks.limit) {
                    uint64_t place = row_element(masks, s.channels) + (unsigned)c;
                    if (!LANES) draw[j] = draw8<ALIGNED>(masks, place);
                    drop8(masks, draw[j], v);
                }
                if (branch.add) {
                    load_words<T, ALIGNED>(to, channels - c, &made);
                    unpack(made, g);
#pragma unroll
                    for (int k = 0; k < VECTOR; k++) v[k] += g[k];
                }
                made = pack<T>(v);
                store_words<T, ALIGNED>(to, channels - c, made);
                if (has_own) {
                    unpack(made, v);
                    load_own(kept + width, j, g);
#pragma unroll
                    for (int k = 0; k < VECTOR; k++) g[k] += v[k];
                    store_own(kept + width, j, g);
                }
            }
        }
        if (IS_STAGED) cp_async_commit();
        if (HAS_BRANCH) next_row(&masks, branch.draws);
    }
    if (!partial) return;
    float of_branch[VECTORS][VECTOR];
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        if (has_own) load_own(kept + width, j, of_branch[j]);
    }
    float *mine = partial + (int64_t)blockIdx.x * (SUMS + has_own) * s.channels;
    store_sums<VECTORS, LANES, ALIGNED, THREADS>(dweight, mine, s.channels, kept);
    if (HAS_MEAN) store_sums<VECTORS, LANES, ALIGNED, THREADS>(dbias, mine + s.channels, s.channels, kept);
    if (has_own)
        store_sums<VECTORS, LANES, ALIGNED, THREADS>(of_branch, mine + SUMS * s.channels, s.channels, kept);
}

/* ---- on the host's side ---- */

static inline bool weights_fit(const Tensor *x, const Tensor *weight) {
    return same_types(x, weight) || weight->dtype == DTYPE_F32;
}

/* Bytes of shared memory for `n` rows of floats, as wide as the vectors of a team. */
static inline size_t norm_shared(NormTeams t, int n) {
    return t.is_large ? 0 : (size_t)(n * t.vectors * t.threads * VECTOR) * sizeof(float);
}

/* Runs the launch for the one of the compiled forms that t asks for. */
#define FOR_TEAMS(t, aligned, T, LAUNCH)                                                                     \
    do {                                                                                                     \
        if (t.is_large && aligned) LAUNCH(4, 0, true, NORM_LARGE);                                           \
        else if (t.is_large) LAUNCH(4, 0, false, NORM_LARGE);                                                \
        else if constexpr (sizeof(T) == 4) LAUNCH(2, 0, true, NORM_SMALL);                                   \
        else if (t.lanes == WARP / 2) LAUNCH(3, WARP / 2, true, NORM_SMALL);                                 \
        else if (t.lanes && t.vectors == 2) LAUNCH(2, WARP, true, NORM_SMALL);                               \
        else if (t.lanes) LAUNCH(3, WARP, true, NORM_SMALL);                                                 \
        else LAUNCH(4, 0, true, NORM_SMALL);                                                                 \
    } while (0)

template <typename T, bool HAS_MEAN, bool HAS_BRANCH>
static void norm_forward(const CudaContext *context, const Tensor *tensor, const void *x, Memory weight,
                         Memory bias, void *y, float *means, float *rstds, NormShape s, Branch branch) {
    bool aligned = rows_aligned(x, s.channels) && is_aligned(y);
    if (HAS_BRANCH) aligned = aligned && is_aligned(branch.branch) && is_aligned(branch.sum);
    NormTeams t =
        cuda_norm_teams(&context->traits, tensor->dtype, s.rows, s.channels, aligned, NORM_FORWARD_THREADS,
                        HAS_BRANCH ? NORM_BRANCH_RESIDENT : NORM_FORWARD_RESIDENT);
    dim3 block((unsigned)t.threads, (unsigned)t.teams);
    size_t shared = norm_shared(t, 2);
#define FORWARD(VECTORS, LANES, ALIGNED, THREADS)                                                            \
    launch_pdl(norm_forward_kernel<T, VECTORS, LANES, HAS_MEAN, HAS_BRANCH, ALIGNED, THREADS>, t.blocks,     \
               block, shared, context->stream, (const T *)x, weight, bias, (T *)y, means, rstds, s, branch)
    FOR_TEAMS(t, aligned, T, FORWARD);
#undef FORWARD
}

/* What is left in partial: rows of sums. */
typedef struct {
    unsigned rows;
    int sums;             /* of a row: dweight, and what else there is */
    bool has_branch_sums; /* the last of them */
} NormPartials;

template <typename T, bool HAS_MEAN, bool HAS_BRANCH>
static NormPartials norm_backward(const CudaContext *context, const Tensor *tensor, const void *dy,
                                  const void *x, Memory weight, const float *means, const float *rstds,
                                  void *dx, float *partial, NormShape s, bool add, Branch branch) {
    bool aligned = rows_aligned(x, s.channels) && is_aligned(dy) && is_aligned(dx);
    if (HAS_BRANCH) aligned = aligned && is_aligned(branch.dbranch);
    NormTeams t = cuda_norm_teams(&context->traits, tensor->dtype, s.rows, s.channels, aligned,
                                  NORM_BACKWARD_THREADS, NORM_BACKWARD_RESIDENT);
    dim3 block((unsigned)t.threads, (unsigned)t.teams);
    size_t sums = norm_shared(t, t.threads < WARP ? t.teams * t.threads / WARP : t.teams);
    branch.sums = branch.sums && t.lanes;
    size_t shared = norm_shared(t, branch.sums ? 1 + t.teams : 1);
    if (!t.is_large && !t.lanes) shared += (size_t)(3 * t.vectors * NORM_WAITING_THREADS) * sizeof(Words<T>);
    if (shared < sums) shared = sums;
#define BACKWARD(VECTORS, LANES, ALIGNED, THREADS)                                                           \
    launch_pdl(norm_backward_kernel<T, VECTORS, LANES, HAS_MEAN, HAS_BRANCH, ALIGNED, THREADS>, t.blocks,    \
               block, shared, context->stream, (const T *)dy, (const T *)x, weight, means, rstds, (T *)dx,   \
               partial, s, add, branch)
    FOR_TEAMS(t, aligned, T, BACKWARD);
#undef BACKWARD
    NormPartials partials = {t.blocks, (HAS_MEAN ? 2 : 1) + branch.sums, branch.sums};
    return partials;
}

#endif
