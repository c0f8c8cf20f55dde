/* gemm_fused: c = epilogue(a · b) for sums of at most 384 terms, with 16-bit factors.
 *
 * Floor: 2·rows·columns·inner FLOPs over the matrix rate, or the bytes of a, c and `before` over the copy
 * bandwidth; for (16384,384) by (384,1536) on an H200 24 us and 26 us. It takes 39 us with gelu and 50 with
 * the slope. The epilogue of a tile of c, gelu's exponential and division and the stores, takes as many
 * cycles as its multiplications. So it must go on beside them, and take nothing that they need.
 *
 * The kernel is persistent and warp-specialized. A thread block has 192 columns of b, all of their terms, in
 * shared memory: it goes through a part of the rows with them, and of what the blocks read only a comes more
 * than once, from the L2 cache. Two consumer warpgroups (4 warps) have 64 rows each in turns: while one
 * multiplies, the other runs the epilogue of its tile. Producer warps load the boxes of a and `before` by TMA
 * ahead of them. At any time all blocks are at neighbouring tiles: memory takes what they store faster than
 * parts that are far apart.
 *
 * The epilogue. The tensor cores give a thread two columns of every 8. So b's columns are put in another
 * order in shared memory, in which a thread's columns are 8 neighbours: it stores whole vectors from
 * registers. Through shared memory they would take bandwidth from the tensor cores, and warps would wait for
 * copies. Where b comes as rows of terms, TMA brings it in that order; for the slope it comes as rows of
 * columns, and the second warpgroup, which has nothing else to do then, sorts it. Sums of columns stay in
 * registers until the block has seen all of its rows; then the warps add up theirs in order. (`before` would
 * have room in registers, too, but the arithmetic would not.) */
#include "backend/cuda/gemm/gemm_fused_parts.cuh"

#include "backend/cuda/ops/gelu.cuh"
#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/runtime/tma_descriptor.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What a thread knows about itself and where its block is. */
typedef struct {
    int lane, warp, group; /* the warp of its group */
    int column, tile;      /* the panel's first column, the first of the block's tiles of rows */
} Self;

/* Places in shared memory, which boxes take in the order of the tiles. */
typedef struct {
    int index, turn;
} Stage;

template <int STAGES> DEVICE void advance(Stage &at, int n) {
    at.index += n;
    while (at.index >= STAGES) at.index -= STAGES, at.turn ^= 1;
}

/* ---- TMA loads: the producer warps ---- */

template <int MODE>
DEVICE void produce_x(const FusedCall &c, FusedShared<MODE> &shared, int stage, int tile, int step) {
    mbarrier_expect(&shared.x_full[stage], BOX_BYTES);
    tma_load_box(shared.x[stage], &c.x, step * TERMS, tile * TILE, &shared.x_full[stage]);
}

template <int MODE>
DEVICE void produce_weight(const FusedCall &c, FusedShared<MODE> &shared, int column, int step) {
    enum { WIDTH = MODE == MODE_SLOPE ? 64 : SORTED };
    uint64_t *full = &shared.weight_full[step];
    mbarrier_expect(full, PANEL_BYTES);
    for (int i = 0; i < PANEL / WIDTH; i++) {
        char *to = shared.weight[step] + i * WIDTH * TERMS * 2;
        int first = column + i * WIDTH;
        if (MODE == MODE_SLOPE) tma_load_box(to, &c.weight, first, step * TERMS, full);
        else tma_load_sorted_box(to, &c.weight, step * TERMS, first, full);
    }
}

/* By one thread, before the others can wait for anything: the weights, and the boxes of a that have room. */
template <int MODE> DEVICE void produce_first(const FusedCall &c, FusedShared<MODE> &shared, const Self &me) {
    for (int step = 0; step < c.n_steps; step++) {
        if (step < FusedShared<MODE>::STAGES) produce_x(c, shared, step, me.tile, step);
        produce_weight(c, shared, me.column, step);
    }
}

/* The other boxes of a, by the same thread. */
template <int MODE> DEVICE void produce_rest(const FusedCall &c, FusedShared<MODE> &shared, const Self &me) {
    enum { STAGES = FusedShared<MODE>::STAGES };
    int tile = me.tile, step = c.n_steps < STAGES ? c.n_steps : STAGES;
    Stage at = {0, 1};
    advance<STAGES>(at, step);
    for (;; step++) {
        if (step == c.n_steps) step = 0, tile += c.n_parts;
        if (tile >= c.n_tiles) break;
        mbarrier_wait(&shared.x_empty[at.index], at.turn);
        produce_x(c, shared, at.index, tile, step);
        advance<STAGES>(at, 1);
    }
}

/* Where a chunk of `before` is: chunk k of the block's i-th tile. */
DEVICE Stage place_of(int i, int k) {
    enum { PLACES = FusedShared<MODE_SLOPE>::PLACES };
    int n = i * CHUNKS + k;
    return {n % PLACES, n / PLACES % 2};
}

/* All of `before`, by one thread. */
DEVICE void produce_before(const FusedCall &c, FusedShared<MODE_SLOPE> &shared, const Self &me) {
    for (int tile = me.tile, i = 0; tile < c.n_tiles; tile += c.n_parts, i++) {
        for (int k = 0; k < CHUNKS; k++) {
            Stage at = place_of(i, k);
            uint64_t *full = &shared.before_full[at.index];
            mbarrier_wait(&shared.before_empty[at.index], !at.turn);
            mbarrier_expect(full, CHUNK_BYTES);
            for (int j = 0; j < CHUNK / SORTED; j++)
                tma_load_box(shared.before[at.index] + j * SORTED * TILE * 2, &c.before_map,
                             me.column + k * CHUNK + j * SORTED, tile * TILE, full);
        }
    }
}

/* By a whole group, for the slope: of every 32 columns in a row of terms, column 8q+2j+e goes to place
 * 8j+2q+e. Those are four vectors of four words, and the j-th word of the q-th becomes the q-th of the
 * j-th. */
DEVICE void sort_weight(const FusedCall &c, FusedShared<MODE_SLOPE> &shared, const Self &me) {
    enum { PARTS = PANEL / 64 * TERMS * 64 / SORTED };
    for (int step = 0; step < c.n_steps; step++) {
        mbarrier_wait(&shared.weight_full[step], 0);
        for (int i = me.warp * WARP + me.lane; i < PARTS; i += GROUP_WARPS * WARP) {
            int term = i / 2, first = i % 2 * 4; /* the boxes lie one after the other */
            uint4 *row = (uint4 *)(shared.weight[step] + term * 128), v[4];
#    pragma unroll
            for (int q = 0; q < 4; q++) v[q] = row[(first + q) ^ term % 8];
            row[(first + 0) ^ term % 8] = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
            row[(first + 1) ^ term % 8] = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
            row[(first + 2) ^ term % 8] = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
            row[(first + 3) ^ term % 8] = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
        }
        fence_async_proxy();
        __syncwarp();
        if (me.lane == 0) mbarrier_arrive(&shared.weight_sorted[step]);
    }
}

/* ---- multiplying ---- */

/* The sums of a tile, by a whole group. */
template <typename T, int MODE>
DEVICE void multiply_tile(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, Stage &at,
                          bool is_first, float sum[SUMS]) {
    enum {
        STAGES = FusedShared<MODE>::STAGES,
        TURNED = MODE == MODE_SLOPE,
        NEXT = (TURNED ? 2048 : 32) >> 4
    };
    unsigned a = describe(shared.x[0], 16), b = describe(shared.weight[0], TURNED ? BOX_BYTES : 16);
    int before = 0;
    hold(sum);
#    pragma unroll 1
    for (int step = 0; step < c.n_steps; step++) {
        if (is_first) mbarrier_wait(TURNED ? &shared.weight_sorted[step] : &shared.weight_full[step], 0);
        mbarrier_wait(&shared.x_full[at.index], at.turn);
        unsigned a_step = a + (unsigned)(at.index * (BOX_BYTES >> 4));
        unsigned b_step = b + (unsigned)(step * (PANEL_BYTES >> 4));
        wgmma_fence();
#    pragma unroll
        for (int k = 0; k < TERMS / 16; k++)
            multiply_step<TURNED>(sum, a_step + 2 * k, b_step + NEXT * k, step + k, T());
        wgmma_commit();
        wgmma_wait<1>();
        if (step && me.lane == 0) mbarrier_arrive(&shared.x_empty[before]);
        __syncwarp();
        before = at.index;
        advance<STAGES>(at, 1);
    }
    if (me.lane == 0) mbarrier_arrive(&shared.turn[!me.group]);
    __syncwarp();
    wgmma_wait<0>();
    if (me.lane == 0) mbarrier_arrive(&shared.x_empty[before]);
    hold(sum);
}

/* ---- the epilogue of a tile ---- */

/* Vector i of a thread: row i%2·8 of the thread's two, columns i/2·32 on. Its word j is the (i/2·4+j)-th pair
 * of the tensor cores' columns. */
DEVICE int sum_of(int i, int j) {
    return (i / 2 * (SORTED / VECTOR) + j) * 4 + i % 2 * 2;
}

/* Where this thread's part of a tile is, in elements, and how much of it is there. */
typedef struct {
    int64_t at;
    int rows8, columns32; /* rows 8 apart, columns 32 apart */
} Part;

DEVICE Part part_of(const FusedCall &c, const Self &me, int tile) {
    int row = tile * TILE + me.warp * WARP_ROWS + me.lane / 4, column = me.column + me.lane % 4 * VECTOR;
    return {(int64_t)row * c.columns + column, (c.rows - row + 7) / 8,
            (c.columns - column + SORTED - 1) / SORTED};
}
DEVICE bool is_there(const Part &part, int i) {
    return i % 2 < part.rows8 && i / 2 < part.columns32;
}
template <typename T> DEVICE T *vector_of(const FusedCall &c, void *data, const Part &part, int i) {
    return (T *)data + part.at + (i % 2 ? 8 * (int64_t)c.columns : 0) + i / 2 * SORTED;
}

template <typename T> DEVICE void store_floats(T *to, const float v[VECTOR], bool is_there) {
    unsigned word[4];
#    pragma unroll
    for (int j = 0; j < 4; j++) word[j] = pair_of_floats(v[2 * j], v[2 * j + 1], T());
    store_vector(to, word, is_there);
}

template <typename T, int MODE>
DEVICE void end_forward(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int tile,
                        const float sum[SUMS]) {
    Part part = part_of(c, me, tile);
#    pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const float4 *bias = (const float4 *)&shared.bias[i / 2 * SORTED + me.lane % 4 * VECTOR];
        const float4 low = bias[0], high = bias[1];
        const float b[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        float v[VECTOR];
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = sum[sum_of(i, k / 2) + k % 2] + b[k];
        if constexpr (MODE == MODE_GELU) {
            store_floats(vector_of<T>(c, c.before, part, i), v, c.before && is_there(part, i));
#    pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = gelu_tanh_rounded(v[k]);
        }
        store_floats(vector_of<T>(c, c.y, part, i), v, is_there(part, i));
    }
}

/* Vector i of a chunk of `before`. Its boxes have rows of 64 bytes. */
DEVICE uint4 vector_before(const char *chunk, const Self &me, int i) {
    int row = me.warp * WARP_ROWS + me.lane / 4 + i % 2 * 8, place = me.lane % 4 ^ row / 2 % 4;
    return ((const uint4 *)(chunk + i / 2 * SORTED * TILE * 2))[row * 4 + place];
}

/* The chunk that had the place before may be the other group's, and on its way still: then the barrier's turn
 * is another one. The chunk before that one has been used by all warps of its group: they have made GEMMs
 * since, which all warps of a group make together, and the other group waits for them to do so. With three
 * groups that would not be so. */
DEVICE void chunk_arrives(FusedShared<MODE_SLOPE> &shared, const Stage &at) {
    mbarrier_wait(&shared.before_empty[at.index], !at.turn);
    mbarrier_wait(&shared.before_full[at.index], at.turn);
}

/* What is stored is added to the sums of this thread's columns: 8 of every 32. */
template <typename T, bool TOTALS>
DEVICE void end_slope(const FusedCall &c, FusedShared<MODE_SLOPE> &shared, const Self &me, int tile, int n,
                      const float sum[SUMS], float total[SUMS / 2]) {
    enum { EACH = VECTORS / CHUNKS };
    Part part = part_of(c, me, tile);
#    pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        Stage at = place_of(GROUPS * n + me.group, i / EACH);
        if (i % EACH == 0) chunk_arrives(shared, at);
        uint4 before = vector_before(shared.before[at.index], me, i % EACH);
        unsigned word[4] = {before.x, before.y, before.z, before.w};
#    pragma unroll
        for (int j = 0; j < 4; j++) {
            int k = sum_of(i, j), column = i / 2 * VECTOR + 2 * j;
            float2 x = pair_as_floats(word[j], T());
            word[j] = pair_of_floats(sum[k] * gelu_tanh_slope_rounded(x.x),
                                     sum[k + 1] * gelu_tanh_slope_rounded(x.y), T());
            float2 stored = pair_as_floats(word[j], T());
            if (TOTALS) total[column] += stored.x, total[column + 1] += stored.y;
        }
        store_vector(vector_of<T>(c, c.y, part, i), word, is_there(part, i));
        if (i % EACH < EACH - 1) continue;
        __syncwarp();
        if (me.lane == 0) mbarrier_arrive(&shared.before_empty[at.index]);
    }
}

DEVICE void all_groups_meet(void) {
    asm volatile("barrier.sync 1, %0;" ::"n"(GROUPS * GROUP_WARPS * WARP) : "memory");
}

/* The sums of the block's rows: over the 8 lanes that have the same columns, then over the warps in order. */
DEVICE void end_totals(const FusedCall &c, FusedShared<MODE_SLOPE> &shared, const Self &me, int part,
                       const float total[SUMS / 2]) {
    float *mine = shared.total[me.group * GROUP_WARPS + me.warp];
    all_groups_meet(); /* nobody reads `before` any more */
#    pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        float x = total[i];
#    pragma unroll
        for (int step = 4; step < WARP; step *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
        if (me.lane < 4) mine[i / VECTOR * SORTED + me.lane * VECTOR + i % VECTOR] = x;
    }
    all_groups_meet();
    int column = (int)threadIdx.x;
    if (column >= PANEL || me.column + column >= c.columns) return;
    float all = 0.0f;
    for (int w = 0; w < GROUPS * GROUP_WARPS; w++) all += shared.total[w][column];
    c.partial[(int64_t)part * c.columns + me.column + column] = all;
}

/* The tiles of a group: every second one of the block's. */
template <typename T, int MODE, bool TOTALS>
DEVICE void compute_all(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int part) {
    enum { STAGES = FusedShared<MODE>::STAGES };
    float sum[SUMS], total[SUMS / 2] = {0};
    Stage at = {0, 0};
    int tile = me.tile + me.group * c.n_parts;
    advance<STAGES>(at, me.group * c.n_steps);
    if constexpr (MODE == MODE_SLOPE)
        if (me.group) sort_weight(c, shared, me);
#    pragma unroll 1
    for (int n = 0; tile < c.n_tiles; tile += GROUPS * c.n_parts, n++) {
        int turn = n - !me.group; /* the one that the other group is done with */
        if (turn >= 0) mbarrier_wait(&shared.turn[me.group], turn & 1);
        multiply_tile<T>(c, shared, me, at, n == 0, sum);
        advance<STAGES>(at, c.n_steps); /* the other group's */
        if constexpr (MODE == MODE_SLOPE) end_slope<T, TOTALS>(c, shared, me, tile, n, sum, total);
        else end_forward<T>(c, shared, me, tile, sum);
    }
    if constexpr (TOTALS) end_totals(c, shared, me, part, total);
}

template <int MODE> DEVICE void init_barriers(FusedShared<MODE> &shared) {
    for (int i = 0; i < MOST_STEPS; i++) {
        mbarrier_init(&shared.weight_full[i], 1);
        mbarrier_init(&shared.weight_sorted[i], GROUP_WARPS);
    }
    for (int i = 0; i < FusedShared<MODE>::STAGES; i++) {
        mbarrier_init(&shared.x_full[i], 1);
        mbarrier_init(&shared.x_empty[i], GROUP_WARPS);
    }
    for (int i = 0; i < FusedShared<MODE>::PLACES; i++) {
        mbarrier_init(&shared.before_full[i], 1);
        mbarrier_init(&shared.before_empty[i], GROUP_WARPS);
    }
    for (int i = 0; i < GROUPS; i++) mbarrier_init(&shared.turn[i], GROUP_WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

#endif

template <typename T, int MODE, bool TOTALS>
static __global__ void __launch_bounds__(FUSED_THREADS, 1) fused_kernel(const __grid_constant__ FusedCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FusedShared<MODE> &shared = *(FusedShared<MODE> *)fused_shared;
    int thread = (int)threadIdx.x, part = (int)blockIdx.x / c.n_panels, panel = (int)blockIdx.x % c.n_panels;
    Self me = {};
    me.lane = thread % WARP, me.warp = thread / WARP % GROUP_WARPS, me.group = thread / WARP / GROUP_WARPS;
    me.column = panel * PANEL, me.tile = part;
    bool is_producer = thread == GROUPS * GROUP_WARPS * WARP;
    if (is_producer) {
        init_barriers(shared);
        wait_for_predecessor();
        produce_first(c, shared, me);
    }
    wait_for_predecessor();
    if (MODE != MODE_SLOPE && thread < PANEL) {
        float b[VECTOR] = {0};
        int column = me.column + thread;
        if (c.bias.data && column < c.columns) load8(c.bias, column, 1, b);
        shared.bias[thread] = b[0];
    }
    __syncthreads();
    if (me.group == GROUPS) { /* registers go from this group to the others */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (is_producer) produce_rest(c, shared, me);
        if constexpr (MODE == MODE_SLOPE)
            if (me.warp == 1 && me.lane == 0) produce_before(c, shared, me);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        compute_all<T, MODE, TOTALS>(c, shared, me, part);
    }
#endif
}

/* ---- on the host's side ---- */

typedef void FusedKernel(const FusedCall);

typedef struct {
    FusedKernel *kernel;
    size_t shared_bytes;
} FusedChoice;

static bool is_gelu(const Gemm *p) {
    return p->epilogue == EPILOGUE_GELU || p->epilogue == EPILOGUE_BIAS_GELU;
}

template <typename T> static FusedChoice choose(const Gemm *p, bool has_totals) {
    FusedChoice plain = {fused_kernel<T, MODE_PLAIN, false>, sizeof(FusedShared<MODE_PLAIN>)};
    FusedChoice gelu = {fused_kernel<T, MODE_GELU, false>, sizeof(FusedShared<MODE_GELU>)};
    FusedChoice slope = {has_totals ? fused_kernel<T, MODE_SLOPE, true> : fused_kernel<T, MODE_SLOPE, false>,
                         sizeof(FusedShared<MODE_SLOPE>)};
    return p->epilogue == EPILOGUE_DGELU ? slope : is_gelu(p) ? gelu : plain;
}

/* How the GEMM is cut: all panels, and as many parts of the rows as there is room for at once. */
static void cut(const CudaContext *context, const Gemm *p, FusedCall *c) {
    c->rows = (int)p->rows, c->columns = (int)p->columns;
    c->n_steps = (int)((p->inner + TERMS - 1) / TERMS);
    c->n_panels = (int)((p->columns + PANEL - 1) / PANEL);
    c->n_tiles = (int)((p->rows + TILE - 1) / TILE);
    int parts = context->traits.n_processors / c->n_panels;
    c->n_parts = parts < 1 ? 1 : parts < c->n_tiles ? parts : c->n_tiles;
}

static bool is_vectors(const void *data, int64_t columns) {
    return is_aligned(data) && columns % VECTOR == 0;
}

/* With fewer tiles the weights' way into shared memory takes longer than it saves, columns that a panel has
 * for nothing are multiplied like the others, and multiprocessors that blocks leave idle are idle to the
 * end. */
static bool is_worth_it(const CudaContext *context, const Gemm *p) {
    FusedCall c = {};
    cut(context, p, &c);
    int64_t blocks = (int64_t)c.n_panels * c.n_parts, n = context->traits.n_processors,
            places = (blocks + n - 1) / n * n;
    return (int64_t)c.n_panels * c.n_tiles >= 4 * n && 100 * blocks >= 85 * places &&
           4 * p->columns >= (int64_t)3 * c.n_panels * PANEL;
}

extern "C" bool cuda_gemm_fused_exists(const CudaContext *context) {
#ifdef PGPT_HAVE_SM90A
    return context->traits.major == 9 && context->traits.minor == 0 && cuda_tma_exists();
#else
    (void)context;
    return false;
#endif
}

extern "C" bool cuda_gemm_fused_fits(const CudaContext *context, const Gemm *p) {
    bool is_slope = p->epilogue == EPILOGUE_DGELU;
    if (is_slope ? p->transpose_b || !p->before : !p->transpose_b) return false;
    if (p->c_type == DTYPE_F32 || p->a_type != p->c_type || p->b_type != p->c_type) return false;
    if (p->transpose_a || p->a_stride || p->b_stride || p->c_stride || p->addend) return false;
    if (!p->rows || !p->columns || !p->inner || p->inner > FUSED_MOST_INNER || p->rows > INT32_MAX - TILE ||
        p->columns > INT32_MAX - PANEL)
        return false;
    return is_vectors(p->a, p->inner) && is_aligned(p->b) && is_vectors(p->c, p->columns) &&
           is_aligned(p->before) && is_worth_it(context, p) && cuda_gemm_fused_exists(context);
}

extern "C" int64_t cuda_gemm_fused_partials(const CudaContext *context, const Gemm *p) {
    FusedCall c = {};
    cut(context, p, &c);
    return c.n_parts;
}

/* A row-major (rows,columns) matrix in boxes. */
static bool map_matrix(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, uint32_t box_rows,
                       uint32_t box_columns) {
    uint64_t size[2] = {(uint64_t)columns, (uint64_t)rows}, stride[1] = {(uint64_t)columns * 2};
    uint32_t box[2] = {box_columns, box_rows};
    return cuda_tma_descriptor(map, data, 2, size, stride, box);
}

/* (columns,inner) with the columns of every 32 in the order in which the tensor cores take them: a pair of
 * columns, the same pair of the other 8s, the other pairs. */
static bool map_sorted(CUtensorMap *map, const void *data, int64_t columns, int64_t inner) {
    uint64_t row = (uint64_t)inner * 2;
    uint64_t size[4] = {(uint64_t)inner, 2, (uint64_t)columns / VECTOR, 4};
    uint64_t stride[3] = {row, VECTOR * row, 2 * row};
    uint32_t box[4] = {TERMS, 2, SORTED / VECTOR, 4};
    return cuda_tma_descriptor(map, data, 4, size, stride, box);
}

static bool map_all(const Gemm *p, FusedCall *c) {
    if (!map_matrix(&c->x, p->a, p->rows, p->inner, TILE, TERMS)) return false;
    if (p->epilogue != EPILOGUE_DGELU) return map_sorted(&c->weight, p->b, p->columns, p->inner);
    return map_matrix(&c->weight, p->b, p->inner, p->columns, TERMS, 64) &&
           map_matrix(&c->before_map, p->before, p->rows, p->columns, TILE, SORTED);
}

extern "C" Status cuda_gemm_fused(CudaContext *context, const Gemm *p, float *partial, Error *error) {
    FusedCall c = {};
    cut(context, p, &c);
    if (!map_all(p, &c)) return cuda_check(cudaErrorNotSupported, "GEMM", error);
    c.before = p->before, c.y = p->c, c.partial = partial;
    if (p->vector) c.bias = {(void *)p->vector, p->vector_type, false};
    FusedChoice choice = p->c_type == DTYPE_BF16 ? choose<bf16>(p, partial) : choose<f16>(p, partial);
    cudaError_t code = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)choice.shared_bytes);
    if (code != cudaSuccess) return cuda_check(code, "GEMM", error);
    unsigned n_blocks = (unsigned)(c.n_panels * c.n_parts);
    code = launch_pdl(choice.kernel, n_blocks, FUSED_THREADS, choice.shared_bytes, context->stream, c);
    return cuda_check(code, "GEMM", error);
}
