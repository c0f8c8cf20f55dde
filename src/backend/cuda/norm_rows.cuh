/* layernorm and rmsnorm: what both do with a row; they differ in whether a mean is taken off. residual_norm is either with
 * a branch: the row is a sum that is made and stored on the way, and its gradient goes to the branch as well.
 *
 * A team of threads has one row at a time in registers, up to 32 channels a thread: a row is read once, whatever is done
 * with it, and up to 1024 channels a team is a warp, which sums by shuffles alone. The grid is as large as the GPU holds
 * at once, and strides over the rows.
 *
 * In the backward every thread also keeps the running sums of dweight and dbias for its channels, which stay the same
 * from row to row. A block adds up the sums of its teams at the end and leaves one row of partial sums; reduce.cu adds
 * those up. All of it happens in an order that depends on shapes and the GPU's model alone. */
#ifndef PGPT_BACKEND_CUDA_NORM_ROWS_CUH
#define PGPT_BACKEND_CUDA_NORM_ROWS_CUH

#include "backend/cuda/device.cuh"

enum {
    NORM_SMALL = 128, /* threads of a block, as far as a row allows */
    NORM_LARGE = 512, /* threads of a block for long rows, and for those that no vector fits */
    NORM_MOST_CHANNELS = NORM_LARGE * 4 * VECTOR,
    /* Blocks of NORM_SMALL threads that a multiprocessor has registers for. */
    NORM_FORWARD_BLOCKS = 6,
    NORM_BRANCH_BLOCKS = 4,
    NORM_BACKWARD_BLOCKS = 4,
};

typedef struct {
    int64_t rows;
    int channels;
    float epsilon;
} NormShape;

/* A branch's dropout: element i of row r is that of sequence r / rows. */
typedef struct {
    const int32_t *random; /* NULL: none */
    uint32_t threshold;
    int site;
    unsigned rows; /* of a sequence */
} Draws;

/* What residual_norm has beside the norm. */
typedef struct {
    const void *branch; /* forward: x + dropout(branch) is what is normed, */
    void *sum;          /* and it is stored here */
    void *dbranch;      /* backward: dropout(dx), NULL: not wanted */
    bool add;           /* to dbranch */
    Draws draws;
} Branch;

/* The first channel of vector j of this thread. A block is (threads of a team, teams). */
DEVICE int channel_of(int j) {
    return (j * (int)blockDim.x + (int)threadIdx.x) * VECTOR;
}

template <typename T, int VECTORS, bool ALIGNED>
DEVICE void load_row(const T *row, int channels, Raw<T> raw[VECTORS]) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        raw[j] = load_raw<T, ALIGNED>(row + channel_of(j), channels - channel_of(j));
    }
}

/* Weights have the type of the activations, or are f32. */
template <typename T> DEVICE void load_weights(Memory m, int c, int n, float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) load8((const float *)m.data + c, n, m.aligned, v);
    else load8((const T *)m.data + c, n, m.aligned, v);
}

/* Blocks of NORM_SMALL threads keep the weights in f32 in shared memory; in the others rows may be too long for it. */
template <typename T, int THREADS> DEVICE void keep_weights(Memory m, int channels, float *shared) {
    if (THREADS != NORM_SMALL || !m.data) return;
    int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), n_threads = (int)(blockDim.x * blockDim.y);
    for (int c = thread * VECTOR; c < channels; c += n_threads * VECTOR) {
        float v[VECTOR];
        load_weights<T>(m, c, channels - c, v);
        store8(shared + c, v);
    }
}
template <typename T, int THREADS>
DEVICE void read_weights(Memory m, const float *shared, int c, int n, float v[VECTOR]) {
    if (THREADS != NORM_SMALL) load_weights<T>(m, c, n, v);
    else if (n > 0) load8(shared + c, v);
}

/* The sums over a team's threads, in all of them. shared has room for every warp of the block, and a barrier must lie
 * between two uses of it; a team of one warp needs neither. */
DEVICE float2 team_sum(float a, float b, float2 *shared) {
    a = warp_sum(a), b = warp_sum(b);
    int n_warps = (int)blockDim.x / WARP;
    if (n_warps == 1) return make_float2(a, b);
    float2 *mine = shared + threadIdx.y * n_warps;
    if (threadIdx.x % WARP == 0) mine[threadIdx.x / WARP] = make_float2(a, b);
    __syncthreads();
    a = b = 0.0f;
    for (int w = 0; w < n_warps; w++) a += mine[w].x, b += mine[w].y;
    return make_float2(a, b);
}

/* ---- dropout of a branch ---- */

/* The masks of a site, and of one row. */
typedef struct {
    RandomKey key;
    uint64_t first_sequence;
    uint32_t threshold; /* 0: no dropout */
    float scale;
    uint64_t sequence, first; /* the row's, and its first element there */
} Masks;

DEVICE Masks masks_of(const Draws &draws) {
    Masks masks = {};
    if (!draws.random) return masks;
    masks.key = dropout_key(draws.random, draws.site);
    masks.first_sequence = first_sequence(draws.random);
    masks.threshold = draws.threshold;
    masks.scale = random_dropout_scale(draws.threshold);
    return masks;
}
DEVICE void set_row(Masks *masks, const Draws &draws, int64_t row, int channels) {
    if (!masks->threshold) return;
    masks->sequence = masks->first_sequence + (unsigned)row / draws.rows;
    masks->first = (uint64_t)((unsigned)row % draws.rows) * (unsigned)channels;
}

/* Dropout of 8 elements from channel c on. Where rows are aligned, one block of draws is theirs; else they may begin within
 * one and end in the next. The product is rounded as that of dropout.cu, and not part of whatever is added to it. */
template <bool ALIGNED> DEVICE void drop8(const Masks &masks, int c, float v[VECTOR]) {
    uint64_t at = masks.first + (unsigned)c;
    RandomBlock draw[2] = {random_block(masks.key, masks.sequence, at / VECTOR)};
    if (!ALIGNED) draw[1] = random_block(masks.key, masks.sequence, at / VECTOR + 1);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        unsigned which = ALIGNED ? (unsigned)k : (unsigned)(at % VECTOR) + (unsigned)k;
        uint32_t drawn = random_half(draw[which / VECTOR], which % VECTOR);
        v[k] = __fmul_rn(v[k], drawn >= masks.threshold ? masks.scale : 0.0f);
    }
}

/* What a tensor of type T would hold. */
DEVICE float as_stored(float x, float) {
    return x;
}
DEVICE float as_stored(float x, bf16) {
    return as_float(__float2bfloat16_rn(x));
}
DEVICE float as_stored(float x, f16) {
    return as_float(__float2half_rn(x));
}

/* v = x + dropout(branch) of a row that is there, and stores it. Behind the row both are 0. */
template <typename T, int VECTORS, bool ALIGNED>
DEVICE void add_branch(float v[VECTORS][VECTOR], const Raw<T> raw[VECTORS], const Masks &masks, T *sum,
                       int channels) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int c = channel_of(j), n = channels - c;
        if (n <= 0) continue;
        float b[VECTOR];
        unpack(raw[j], b);
        if (masks.threshold) drop8<ALIGNED>(masks, c, b);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[j][k] = as_stored(v[j][k] + as_stored(b[k], T()), T());
        store8(sum + c, n, ALIGNED, v[j]);
    }
}

/* ---- forward ---- */

template <typename T, int VECTORS, bool HAS_MEAN, bool HAS_BRANCH, bool ALIGNED, int THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS != NORM_SMALL ? 1
                                                  : HAS_BRANCH          ? NORM_BRANCH_BLOCKS
                                                                        : NORM_FORWARD_BLOCKS)
    norm_forward_kernel(const T *x, Memory weight, Memory bias, T *y, float *means, float *rstds, NormShape s,
                        Branch branch) {
    __shared__ float2 shared[2][THREADS / WARP];
    extern __shared__ __align__(16) float kept[]; /* weights (C), then biases (C) */
    int64_t stride = (int64_t)gridDim.x * blockDim.y, first = (int64_t)blockIdx.x * blockDim.y;
    float part = 1.0f / (float)s.channels;
    keep_weights<T, THREADS>(weight, s.channels, kept);
    keep_weights<T, THREADS>(bias, s.channels, kept + s.channels);
    __syncthreads();
    Raw<T> next[VECTORS] = {}, next_branch[VECTORS] = {};
    Masks masks = {};
    if (HAS_BRANCH) masks = masks_of(branch.draws);
    if (first + threadIdx.y < s.rows) {
        int64_t at = (first + threadIdx.y) * s.channels;
        load_row<T, VECTORS, ALIGNED>(x + at, s.channels, next);
        if (HAS_BRANCH) load_row<T, VECTORS, ALIGNED>((const T *)branch.branch + at, s.channels, next_branch);
    }
    for (int64_t base = first; base < s.rows; base += stride) { /* all teams together: they share barriers */
        int64_t row = base + threadIdx.y;
        float v[VECTORS][VECTOR], sum = 0.0f, mean = 0.0f;
        Raw<T> own_branch[VECTORS];
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            unpack(next[j], v[j]);
            if (HAS_BRANCH) own_branch[j] = next_branch[j];
        }
        if (row + stride < s.rows) {
            int64_t at = (row + stride) * s.channels;
            load_row<T, VECTORS, ALIGNED>(x + at, s.channels, next);
            if (HAS_BRANCH)
                load_row<T, VECTORS, ALIGNED>((const T *)branch.branch + at, s.channels, next_branch);
        }
        if (HAS_BRANCH && row < s.rows) {
            set_row(&masks, branch.draws, row, s.channels);
            add_branch<T, VECTORS, ALIGNED>(v, own_branch, masks, (T *)branch.sum + row * s.channels,
                                            s.channels);
        }
        if (HAS_MEAN) {
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum += v[j][k];
            }
            mean = team_sum(sum, 0.0f, shared[0]).x * part;
            sum = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int n = s.channels - channel_of(j);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                v[j][k] = (ALIGNED ? n > 0 : k < n) ? v[j][k] - mean : 0.0f;
                sum = fmaf(v[j][k], v[j][k], sum);
            }
        }
        float rstd = rsqrtf(team_sum(sum, 0.0f, shared[1]).x * part + s.epsilon);
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of(j), n = row < s.rows ? s.channels - c : 0;
            float w[VECTOR] = {0}, b[VECTOR] = {0};
            read_weights<T, THREADS>(weight, kept, c, n, w);
            if (bias.data) read_weights<T, THREADS>(bias, kept + s.channels, c, n, b);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = fmaf(v[j][k] * rstd, w[k], b[k]);
            store8(y + row * s.channels + c, n, ALIGNED, v[j]);
        }
        if (threadIdx.x == 0 && row < s.rows) {
            if (HAS_MEAN) means[row] = mean;
            rstds[row] = rstd;
        }
        if (!HAS_MEAN && blockDim.x > WARP) __syncthreads(); /* the one sum is used again at once */
    }
}

/* ---- backward ---- */

/* Adds up what the teams have for the same channels and stores it. sums: (teams - 1, 8, threads of a team). */
template <bool ALIGNED> DEVICE void store_sums(float v[VECTOR], float *out, int n, float *sums) {
    if (blockDim.y > 1) {
        __syncthreads();
        if (threadIdx.y) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                sums[((threadIdx.y - 1) * VECTOR + k) * blockDim.x + threadIdx.x] = v[k];
        }
        __syncthreads();
        if (threadIdx.y) return;
        for (int team = 1; team < (int)blockDim.y; team++) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                v[k] += sums[((team - 1) * VECTOR + k) * blockDim.x + threadIdx.x];
        }
    }
    store8(out, n, ALIGNED, v);
}

/* dx, if not NULL; and a row of partial, if not NULL: dweight, then dbias. No mean, no bias. A branch's gradient is made of
 * all of dx, and may lie where dy is. */
template <typename T, int VECTORS, bool HAS_MEAN, bool HAS_BRANCH, bool ALIGNED, int THREADS>
static __global__ void __launch_bounds__(THREADS, THREADS == NORM_SMALL ? NORM_BACKWARD_BLOCKS : 1)
    norm_backward_kernel(const T *dy, const T *x, Memory weight, const float *means, const float *rstds,
                         T *dx, float *partial, NormShape s, bool add, Branch branch) {
    enum { SUMS = HAS_MEAN ? 2 : 1 };
    __shared__ float2 shared[2][THREADS / WARP];
    extern __shared__ __align__(16) float kept[]; /* weights (C); at the end, sums of the teams */
    int use = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.y, first = (int64_t)blockIdx.x * blockDim.y;
    float dweight[VECTORS][VECTOR] = {{0}}, dbias[VECTORS][VECTOR] = {{0}}, part = 1.0f / (float)s.channels;
    Raw<T> own_x[VECTORS] = {}, own_g[VECTORS] = {};
    keep_weights<T, THREADS>(weight, s.channels, kept);
    Masks masks = {};
    if (HAS_BRANCH && branch.dbranch) masks = masks_of(branch.draws);
    __syncthreads();
    for (int64_t base = first; base < s.rows; base += stride) { /* all teams together: they share barriers */
        int64_t row = base + threadIdx.y;
        bool is_there = row < s.rows;
        if (HAS_BRANCH) set_row(&masks, branch.draws, row, s.channels);
        if (is_there) {
            load_row<T, VECTORS, ALIGNED>(x + row * s.channels, s.channels, own_x);
            load_row<T, VECTORS, ALIGNED>(dy + row * s.channels, s.channels, own_g);
        }
        float rstd = is_there ? rstds[row] : 0.0f, shift = HAS_MEAN && is_there ? -means[row] * rstd : 0.0f;
        float sum_g = 0.0f, sum_gx = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of(j), n = is_there ? s.channels - c : 0;
            if (n <= 0) continue;
            float v[VECTOR], g[VECTOR], w[VECTOR];
            unpack(own_x[j], v), unpack(own_g[j], g);
            read_weights<T, THREADS>(weight, kept, c, n, w);
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
        if (!dx) continue;
        float2 both = team_sum(sum_g, sum_gx, shared[use]);
        use ^= 1;
        float of_one = fmaf(-both.y * part * rstd, shift, -both.x * part * rstd),
              of_x = -both.y * part * rstd * rstd;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) { /* unpacked again: registers are short, and this is cheap */
            int c = channel_of(j), n = is_there ? s.channels - c : 0;
            if (n <= 0) continue;
            float v[VECTOR], g[VECTOR], w[VECTOR];
            unpack(own_x[j], v), unpack(own_g[j], g);
            read_weights<T, THREADS>(weight, kept, c, n, w);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = fmaf(g[k] * w[k], rstd, fmaf(v[k], of_x, of_one));
            write8(dx + row * s.channels + c, n, ALIGNED, v, add);
            if (HAS_BRANCH && branch.dbranch) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) v[k] = as_stored(v[k], T());
                drop8<ALIGNED>(masks, c, v);
                write8((T *)branch.dbranch + row * s.channels + c, n, ALIGNED, v, branch.add);
            }
        }
    }
    if (!partial) return;
    float *mine = partial + (int64_t)blockIdx.x * SUMS * s.channels;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int c = channel_of(j);
        store_sums<ALIGNED>(dweight[j], mine + c, s.channels - c, kept);
        if (HAS_MEAN) store_sums<ALIGNED>(dbias[j], mine + s.channels + c, s.channels - c, kept);
    }
}

/* ---- on the host's side ---- */

static inline bool weights_fit(const Tensor *x, const Tensor *weight) {
    return same_types(x, weight) || weight->dtype == DTYPE_F32;
}

/* How rows are shared out: vectors of a thread, threads of a team, teams of a block, blocks. */
typedef struct {
    int vectors, threads, teams;
    unsigned blocks;
    bool is_large; /* blocks may have NORM_LARGE threads */
} NormTeams;

static inline NormTeams norm_teams(const CudaContext *context, DType dtype, int64_t rows, int64_t channels,
                                   bool aligned, int most_blocks) {
    NormTeams t = {4, 0, 1, 1, true};
    if (aligned && dtype == DTYPE_F32 && channels <= 2048) t.vectors = 2, t.is_large = false;
    if (aligned && dtype != DTYPE_F32 && channels <= 4096) {
        t.vectors = channels <= 512 ? 2 : channels <= 768 ? 3 : 4;
        t.is_large = false;
    }
    int64_t warps = (channels + WARP * VECTOR * t.vectors - 1) / (WARP * VECTOR * t.vectors);
    t.threads = (int)(warps > 0 ? warps : 1) * WARP;
    if (!t.is_large) t.teams = NORM_SMALL / t.threads;
    int64_t most = context->n_processors * (t.is_large ? 1 : most_blocks);
    int64_t wanted = (rows + t.teams - 1) / t.teams;
    t.blocks = (unsigned)(wanted < most ? wanted > 0 ? wanted : 1 : most);
    return t;
}

/* Rows may turn out not to be aligned: room for either way. */
static inline size_t norm_backward_scratch(const CudaContext *context, const Node *node) {
    const Tensor *x = node->input[1];
    int64_t rows = shape_rows(x->shape), channels = shape_columns(x->shape);
    unsigned blocks = norm_teams(context, x->dtype, rows, channels, false, NORM_BACKWARD_BLOCKS).blocks;
    unsigned others = norm_teams(context, x->dtype, rows, channels, true, NORM_BACKWARD_BLOCKS).blocks;
    return (blocks > others ? blocks : others) * 2 * (size_t)channels * sizeof(float);
}

/* Runs the launch for the one of the compiled forms that t asks for. */
#define FOR_TEAMS(t, aligned, T, LAUNCH)                                                                     \
    do {                                                                                                     \
        if (t.is_large && aligned) LAUNCH(4, true, NORM_LARGE);                                              \
        else if (t.is_large) LAUNCH(4, false, NORM_LARGE);                                                   \
        else if (t.vectors == 2 || sizeof(T) == 4) LAUNCH(2, true, NORM_SMALL);                              \
        else if (t.vectors == 3) LAUNCH((sizeof(T) == 4 ? 2 : 3), true, NORM_SMALL);                         \
        else LAUNCH((sizeof(T) == 4 ? 2 : 4), true, NORM_SMALL);                                             \
    } while (0)

template <typename T, bool HAS_MEAN, bool HAS_BRANCH>
static void norm_forward(const CudaContext *context, const Tensor *tensor, const void *x, Memory weight,
                         Memory bias, void *y, float *means, float *rstds, NormShape s, Branch branch) {
    bool aligned = rows_aligned(x, s.channels) && is_aligned(y);
    if (HAS_BRANCH) aligned = aligned && is_aligned(branch.branch) && is_aligned(branch.sum);
    NormTeams t = norm_teams(context, tensor->dtype, s.rows, s.channels, aligned,
                             HAS_BRANCH ? NORM_BRANCH_BLOCKS : NORM_FORWARD_BLOCKS);
    dim3 block((unsigned)t.threads, (unsigned)t.teams);
    size_t shared = t.is_large ? 0 : (size_t)s.channels * 2 * sizeof(float);
#define FORWARD(VECTORS, ALIGNED, THREADS)                                                                   \
    norm_forward_kernel<T, VECTORS, HAS_MEAN, HAS_BRANCH, ALIGNED, THREADS>                                  \
        <<<t.blocks, block, shared, context->stream>>>((const T *)x, weight, bias, (T *)y, means, rstds, s,  \
                                                       branch)
    FOR_TEAMS(t, aligned, T, FORWARD);
#undef FORWARD
}

/* Returns the number of rows of partial sums. */
template <typename T, bool HAS_MEAN, bool HAS_BRANCH>
static unsigned norm_backward(const CudaContext *context, const Tensor *tensor, const void *dy, const void *x,
                              Memory weight, const float *means, const float *rstds, void *dx, float *partial,
                              NormShape s, bool add, Branch branch) {
    bool aligned = rows_aligned(x, s.channels) && is_aligned(dy) && is_aligned(dx);
    if (HAS_BRANCH) aligned = aligned && is_aligned(branch.dbranch);
    NormTeams t = norm_teams(context, tensor->dtype, s.rows, s.channels, aligned, NORM_BACKWARD_BLOCKS);
    dim3 block((unsigned)t.threads, (unsigned)t.teams);
    int64_t sums = (int64_t)(t.teams - 1) * t.threads * VECTOR, weights = t.is_large ? 0 : s.channels;
    size_t shared = (size_t)(sums > weights ? sums : weights) * sizeof(float);
#define BACKWARD(VECTORS, ALIGNED, THREADS)                                                                  \
    norm_backward_kernel<T, VECTORS, HAS_MEAN, HAS_BRANCH, ALIGNED, THREADS>                                 \
        <<<t.blocks, block, shared, context->stream>>>((const T *)dy, (const T *)x, weight, means, rstds,    \
                                                       (T *)dx, partial, s, add, branch)
    FOR_TEAMS(t, aligned, T, BACKWARD);
#undef BACKWARD
    return t.blocks;
}

#endif
