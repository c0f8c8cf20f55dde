/* sparse_attention, forward, of heads of 64 or 128 in 16 bits, by warpgroups (4 warps) that multiply 64 rows
 * at a time (wgmma, compute capability 9.0). sparse_forward.cu computes it elsewhere.
 *
 * Floor: a tile of 64 queries and 64 keys of heads of 64 takes a multiprocessor 256 cycles to multiply, and
 * as many for its exponentials; both at once would be the peak of the tensor cores.
 *
 * A block has two blocks of queries of one head, neighbours or such that see the same, a warpgroup each, and
 * a thread of a third one is the producer. That one walks over both rows of the list at once, from the last
 * key block on, and loads by TMA each block of keys and values that either has: mostly both have the same, so
 * they are read once for 128 queries. What a step is to each group it leaves beside the keys: nothing, all of
 * it, or some.
 *
 * A group waits for each of its GEMMs; meanwhile others compute. Scores and weights are not there at once, so
 * that registers suffice for four groups on a multiprocessor: two blocks. With heads of 128 the GEMMs take
 * twice as long, and two groups do.
 *
 * Every query's own block comes first, in which it sees a key: so rows have a maximum from the first tile on.
 *
 * Who waits for whom: queries_full and full, for copies (and what the producer wrote before); empty, for both
 * groups, those too that a step is nothing to. */
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/attention/attention_warpgroup_spans.cuh"
#include "backend/cuda/sparse/sparse_walk.cuh"

static_assert((int)SPAN == (int)ATTENTION_BLOCK, "a block of the list is what a group multiplies");

enum {
    GROUPS = 2,
    GROUPS_WARPS = GROUPS * GROUP_WARPS,
    SPARSE_THREADS = (GROUPS_WARPS + GROUP_WARPS) * WARP,
    STEPS = 4 /* that there is room for */
};

typedef enum { STEP_NOTHING, STEP_ALL, STEP_SOME } StepKind;

typedef struct {
    CUtensorMap qkv; /* in boxes of SPAN rows and SIZE channels */
    void *y;
    float *lse;
    int n_blocks; /* of a sequence */
    int apart;    /* the two that a block of threads has (sparse_split.h) */
    ListWalk walk;
} SparseCall;

/* first: of its keys; -1: there are no more steps. */
typedef struct {
    int first, kind[GROUPS], unused;
} SparseStep;

template <int HS> struct SparseShared {
    enum { BOXES = HS / SIZE };
    alignas(1024) char queries[GROUPS][BOXES][SPAN_BYTES];
    char keys[STEPS][BOXES][SPAN_BYTES], values[STEPS][BOXES][SPAN_BYTES];
    SparseStep step[STEPS];
    uint64_t queries_full, full[STEPS], empty[STEPS];
};
static_assert(sizeof(SparseShared<128>) <= 227 * 1024, "what a block may have");
static_assert(2 * (sizeof(SparseShared<64>) + 1024) <= 228 * 1024, "two blocks on a multiprocessor");

/* Of blocks that are `apart`: within each 2·apart, the first half with the second. What is left at the end
 * has no partner, or one that is not there. */
static inline __host__ __device__ int pairs_of(int n_blocks, int apart) {
    int rest = n_blocks % (GROUPS * apart);
    return n_blocks / (GROUPS * apart) * apart + (rest < apart ? rest : apart);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int HS> DEVICE void barriers_init(SparseShared<HS> &shared) {
    mbarrier_init(&shared.queries_full, 1);
    for (int i = 0; i < STEPS; i++) {
        mbarrier_init(&shared.full[i], 1);
        mbarrier_init_warps(&shared.empty[i], GROUPS_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

/* Where a block is. The same rows of all heads are next to each other, the last ones first. */
typedef struct {
    int b, h, kv, first_block; /* of queries: the first of two */
} SparsePlace;

DEVICE SparsePlace sparse_place(const SparseCall &c) {
    const TiledShape &s = c.walk.rows.queries;
    int n_pairs = pairs_of(c.n_blocks, c.apart), n_heads = (int)gridDim.x / n_pairs,
        head = (int)blockIdx.x % n_heads, h = head % s.n_heads,
        pair = n_pairs - 1 - (int)blockIdx.x / n_heads;
    SparsePlace place = {head / s.n_heads, h, h / s.share,
                         pair / c.apart * GROUPS * c.apart + pair % c.apart};
    return place;
}

/* ---- the producer ---- */

/* The next step of both rows: false: there is none. */
DEVICE bool next_step(ListRow row[GROUPS], int n_positions, SparseStep *step) {
    const int now[GROUPS] = {list_next(row[0]), list_next(row[1])};
    int block = max(now[0] >> 1, now[1] >> 1);
    if (block < 0) return false;
    step->first = block * SPAN;
#    pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        bool is_its = now[g] >> 1 == block, is_masked = now[g] & 1 || step->first + SPAN > n_positions;
        step->kind[g] = !is_its ? STEP_NOTHING : is_masked ? STEP_SOME : STEP_ALL;
        if (is_its) row[g].left--;
    }
    return true;
}

/* One thread. Columns are those of a row of qkv. */
template <int HS>
DEVICE void produce(const SparseCall &c, SparseShared<HS> &shared, const SparsePlace &place) {
    enum { BOXES = HS / SIZE };
    const TiledShape &s = c.walk.rows.queries;
    AttentionBlockList list = c.walk.list_of(place.b);
    ListRow row[GROUPS];
    int query_column = place.h * HS, key_column = (s.n_heads + place.kv) * HS,
        value_column = key_column + s.n_kv_heads * HS;
    mbarrier_expect(&shared.queries_full, GROUPS * BOXES * SPAN_BYTES);
    for (int i = 0; i < GROUPS * BOXES; i++) /* rows that are not there are zeros */
        produce_span(shared.queries[i / BOXES][i % BOXES], &c.qkv, query_column + i % BOXES * SIZE,
                     (place.first_block + i / BOXES * c.apart) * SPAN, place.b, &shared.queries_full);
#    pragma unroll
    for (int g = 0; g < GROUPS; g++)
        row[g] = list_row(list.row_begin, list.row, place.first_block + g * c.apart, c.n_blocks);
#    pragma unroll 1
    for (int n = 0;; n++) {
        int at = n % STEPS;
        SparseStep step = {-1, {STEP_NOTHING, STEP_NOTHING}, 0};
        bool goes_on = next_step(row, s.n_positions, &step);
        mbarrier_wait(&shared.empty[at], ~(n / STEPS) & 1);
        shared.step[at] = step;
        if (!goes_on) {
            mbarrier_arrive(&shared.full[at]);
            return;
        }
        mbarrier_expect(&shared.full[at], 2 * BOXES * SPAN_BYTES);
#    pragma unroll
        for (int i = 0; i < BOXES; i++) {
            produce_span(shared.keys[at][i], &c.qkv, key_column + i * SIZE, step.first, place.b,
                         &shared.full[at]);
            produce_span(shared.values[at][i], &c.qkv, value_column + i * SIZE, step.first, place.b,
                         &shared.full[at]);
        }
    }
}

/* ---- queries ---- */

template <int HS> DEVICE void hold_rows(ForwardRows<HS, 1> &rows) {
#    pragma unroll
    for (int i = 0; i < HS / SIZE; i++) hold(rows.y[0] + i * 8);
}

/* Scores of a group's queries, over all channels. */
template <typename T, int HS>
DEVICE void multiply_scores(float p[8][4], char (*queries)[SPAN_BYTES], char (*keys)[SPAN_BYTES]) {
#    pragma unroll
    for (int i = 0; i < HS / SIZE; i++) {
        unsigned first = describe(queries[i], 16), second = describe(keys[i], 16);
#    pragma unroll
        for (int k = 0; k < SIZE / 16; k++)
            multiply_step<false>(p, first + k * NEXT_COLUMNS, second + k * NEXT_COLUMNS, i || k ? 1 : 0, T());
    }
}

/* Weights become first factors. */
template <typename T> DEVICE void narrow(unsigned kept[4][4], const float p[8][4]) {
#    pragma unroll
    for (int i = 0; i < 16; i++) { /* the pair of row j % 2 of the 8 columns 2·k + j / 2 */
        int k = i / 4, j = i % 4;
        const float *pair = p[2 * k + j / 2] + j % 2 * 2;
        kept[k][j] = pair_of_floats(pair[0], pair[1], T());
    }
}

/* The weights of a group's queries, their sums, and y without the factors. first_row is the thread's own. */
template <typename T, int HS, bool DROPS>
DEVICE void attend_steps(ForwardRows<HS, 1> &rows, const SparseCall &c, SparseShared<HS> &shared,
                         const Self &me, const SparsePlace &place, const Dropout &dropout, int first_row) {
    mbarrier_wait(&shared.queries_full, 0);
#    pragma unroll 1
    for (int n = 0;; n++) {
        int at = n % STEPS;
        mbarrier_wait(&shared.full[at], n / STEPS & 1);
        int first = shared.step[at].first, kind = shared.step[at].kind[me.group];
        if (first < 0) return;
        if (kind != STEP_NOTHING) {
            float p[1][8][4];
            unsigned kept[4][4];
            uint64_t seen[1][2] = {}; /* found while there are registers */
            if (kind == STEP_SOME) find_seen<1>(seen, c.walk.rows, place.b, first_row, first);
            hold(p[0]);
            wgmma_fence();
            multiply_scores<T, HS>(p[0], shared.queries[me.group], shared.keys[at]);
            wgmma_commit();
            wgmma_wait<0>();
            hold(p[0]);
            if (kind == STEP_SOME) hide_scores<1, 8>(p, seen);
            soften<HS, 1, 8>(rows, p, c.walk.rows.queries.scale_log2);
            if (DROPS) drop_weights<1, 8>(p, dropout, first_row, first / 8);
            narrow<T>(kept, p[0]);
            hold(kept);
            hold_rows<HS>(rows);
            wgmma_fence();
#    pragma unroll
            for (int i = 0; i < HS / SIZE; i++)
                multiply_rows<T>(rows.y[0] + i * 8, kept, shared.values[at][i], true);
            wgmma_commit();
            wgmma_wait<0>();
            hold_rows<HS>(rows);
            hold(kept);
        }
        mbarrier_arrive(&shared.empty[at]);
    }
}

/* By way of the group's own queries, with which all of its warps are done. */
template <typename T, int HS>
DEVICE void store_group(ForwardRows<HS, 1> &rows, const SparseCall &c, SparseShared<HS> &shared,
                        const Self &me, const SparsePlace &place, float keep) {
    const WalkRows &r = c.walk.rows;
    int first = (place.first_block + me.group * c.apart) * SPAN + me.warp * 16;
    T *y = (T *)c.y + walk_y_at(r, place.b, place.h);
    float *lse = c.lse + walk_lse_at(r, place.b, place.h), factor[2];
    unsigned unused[4];
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + me.lane / 4 + i * 8;
        float sum = row_sum(rows.sum[0][i]);
        factor[i] = keep / sum;
        if (me.lane % 4 == 0 && row < r.queries.n_positions)
            lse[row] = (rows.max[0][i] * r.queries.scale_log2 + log2f(sum)) * LN_2;
    }
    if (me.group) asm volatile("bar.sync 2, %0;" ::"n"(GROUP_WARPS * WARP) : "memory");
    else asm volatile("bar.sync 1, %0;" ::"n"(GROUP_WARPS * WARP) : "memory");
#    pragma unroll
    for (int i = 0; i < HS / SIZE; i++)
        store_through_box(unused, shared.queries[me.group][i], y + i * SIZE, r.queries.y_width, first,
                          r.queries.n_positions, me, factor, rows.y[0] + i * 8);
}

#endif

/* Two blocks on a multiprocessor are so many threads that each begins with 80 registers; the producer's group
 * gives most of its own to the others. */
template <typename T, int HS, bool DROPS>
static __global__ void __launch_bounds__(SPARSE_THREADS, HS == SIZE && !DROPS ? 2 : 1)
    sparse_forward_kernel(const __grid_constant__ SparseCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { IS_ONE_OF_TWO = HS == SIZE && !DROPS };
    SparseShared<HS> &shared = *(SparseShared<HS> *)warpgroup_shared;
    int warp = warp_of_block();
    Self me = self_of(warp);
    SparsePlace place = sparse_place(c);
    if (threadIdx.x == 0) barriers_init<HS>(shared);
    __syncthreads();
    if (me.group < GROUPS) {
        if (IS_ONE_OF_TWO) asm volatile("setmaxnreg.inc.sync.aligned.u32 96;");
        ForwardRows<HS, 1> rows;
        Dropout dropout = {};
        int block = 0;
        if (DROPS) dropout = walk_dropout(c.walk.rows, place.b, place.h, &block);
        start_rows<HS, 1>(rows);
        attend_steps<T, HS, DROPS>(rows, c, shared, me, place, dropout,
                                   (place.first_block + me.group * c.apart) * SPAN + me.warp * 16 +
                                       me.lane / 4);
        store_group<T, HS>(rows, c, shared, me, place, DROPS ? dropout.scale : 1.0f);
    } else {
        if (IS_ONE_OF_TWO) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (me.warp == 0 && me.lane == 0) produce<HS>(c, shared, place);
    }
#endif
}

/* ---- on the host's side ---- */

template <typename T, int HS>
static cudaError_t launch(const SparseCall &c, bool drops, int64_t n_blocks, cudaStream_t stream) {
    auto kernel = drops ? sparse_forward_kernel<T, HS, true> : sparse_forward_kernel<T, HS, false>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)sizeof(SparseShared<HS>));
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)n_blocks, SPARSE_THREADS, sizeof(SparseShared<HS>), stream>>>(c);
    return cudaGetLastError();
}

Status sparse_warpgroup_forward(const AttentionShape *s, const AttentionMemory *m, const SparseLists *lists,
                                cudaStream_t stream, Error *error) {
    SparseCall c = {};
    c.y = m->y, c.lse = m->lse;
    c.n_blocks = (int)attention_n_blocks(s->n_positions);
    c.apart = sparse_blocks_apart(&m->pattern, s->n_positions);
    c.walk = sparse_walk(s, m, lists);
    int64_t n_blocks = pairs_of(c.n_blocks, c.apart) * s->n_sequences * s->n_heads;
    cudaError_t code = cudaErrorNotSupported;
    if (map_heads(&c.qkv, m->qkv, s, s->width)) {
        FOR_SHORT_TYPE(s, T, {
            code = s->head_size == SIZE ? launch<T, SIZE>(c, s->threshold != 0, n_blocks, stream)
                                        : launch<T, 2 * SIZE>(c, s->threshold != 0, n_blocks, stream);
        });
    }
    return cuda_check(code, "sparse_attention (groups)", error);
}

bool sparse_warpgroup_takes(const AttentionShape *s, int capability) {
#ifdef PGPT_HAVE_SM90A
    static const bool is_built = true;
#else
    static const bool is_built = false;
#endif
    return is_built && capability == 90 && s->dtype != DTYPE_F32 &&
           (s->head_size == SIZE || s->head_size == 2 * SIZE);
}
