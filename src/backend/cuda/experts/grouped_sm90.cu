/* Grouped GEMMs by warpgroups (grouped.h): wgmma and TMA, compute capability 9.0, 16-bit factors.
 *
 * Floor: 2·rows·inputs·outputs FLOPs over the matrix rate; for 65,536 rows, 1024 inputs and 4096 outputs on
 * an H200 0.74 ms at the 742 TFLOP/s that the library's dense GEMM reaches. Of that, storing c takes 0.13 ms,
 * and an epilogue with gelu as many cycles as a quarter of the multiplications: so it must go on beside them.
 *
 * The kernel is persistent and warp-specialized. Blocks take tiles of 128 by 256 (grouped_warpgroup.cuh) in
 * turns; which expert a tile belongs to each finds in a table of where experts begin, made from `offsets` in
 * shared memory. One warpgroup loads, by TMA, up to four steps ahead, and over the border of tiles. Two
 * multiply, 64 rows each, of the same boxes. The first begins a step before the second and stays ahead,
 * since both have as much to do: while it runs its epilogue the second has the tensor cores to itself, and
 * the other way round. That is all that is needed to hide the epilogue; the sums take half of a thread's
 * registers, so there is no room for a second tile.
 *
 * Rows of c that belong to the next expert are multiplied with the wrong weight, and not stored. For the
 * gradient of weights, rows are the terms: there a box must end with the expert. All of an expert's steps but
 * the last are whole boxes; the last one is copied by the loading group's threads, with zeros behind the end.
 * So nothing of a neighbour, or of rows that are not there, is ever added. Where an expert has far more rows
 * than the others its terms are cut into pieces, which are added to c in order. */
#include "backend/cuda/experts/grouped_epilogue.cuh"

#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/runtime/tma_descriptor.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the group that loads ---- */

/* The second factor: the boxes of all columns, of which a block of a cluster loads its share for both. */
template <GroupedKind KIND, int CLUSTER>
DEVICE void load_second(const WarpgroupCall &c, GroupedShared &shared, const Self &me, const Work &w,
                        int stage, int term) {
    enum { SHARE = PANEL / CLUSTER, BOXES = SHARE / 64 };
    uint64_t *full = &shared.full[stage];
    char *to = shared.b[stage] + me.rank * (SECOND_BYTES / CLUSTER);
    int column = w.column + me.rank * SHARE;
    if constexpr (KIND == GROUPED_FORWARD) {
        if constexpr (CLUSTER == 1) load_box(to, &c.b, term, column, w.expert, full);
        else load_box_for_both(to, &c.b, term, column, w.expert, full);
    } else {
#    pragma unroll
        for (int i = 0; i < BOXES; i++) {
            if constexpr (KIND == GROUPED_INPUT && CLUSTER == 1)
                load_box(to + i * BOX_BYTES, &c.b, column + i * 64, term, w.expert, full);
            else if constexpr (KIND == GROUPED_INPUT)
                load_box_for_both(to + i * BOX_BYTES, &c.b, column + i * 64, term, w.expert, full);
            else if constexpr (CLUSTER == 1) load_box(to + i * BOX_BYTES, &c.b, column + i * 64, term, full);
            else load_box_for_both(to + i * BOX_BYTES, &c.b, column + i * 64, term, full);
        }
    }
}

/* A step, by one thread. */
template <GroupedKind KIND, int CLUSTER>
DEVICE void load_step(const WarpgroupCall &c, GroupedShared &shared, const Self &me, const Work &w, int stage,
                      int term) {
    uint64_t *full = &shared.full[stage];
    mbarrier_expect(full, FIRST_BYTES + SECOND_BYTES);
    if constexpr (KIND == GROUPED_WEIGHT) {
#    pragma unroll
        for (int i = 0; i < GROUPS; i++)
            load_box(shared.a[stage] + i * BOX_BYTES, &c.a, w.row + i * 64, term, full);
    } else load_box(shared.a[stage], &c.a, term, w.row, full);
    load_second<KIND, CLUSTER>(c, shared, me, w, stage, term);
}

/* Rows `term` .. end-1 of some boxes of 64 columns each, as TMA would bring them, and zeros behind the end.
 * By the group: a thread has vector thread%8 of every 16th row. */
DEVICE void copy_rows(char *to, int n_boxes, const void *from, int64_t columns, int column, int term,
                      int end) {
    enum { ROW_STEP = GROUP_THREADS / 8 };
    int row = (int)threadIdx.x % GROUP_THREADS / 8, place = (int)threadIdx.x % 8,
        at = column + place * VECTOR;
    const uint16_t *source = (const uint16_t *)from + (int64_t)(term + row) * columns + at;
    to += row * 128 + (place ^ row % 8) * 16;
#    pragma unroll 1
    for (int box = 0; box < n_boxes; box++) {
#    pragma unroll
        for (int i = 0; i < 64; i += ROW_STEP) {
            uint4 vector = make_uint4(0, 0, 0, 0);
            if (term + row + i < end && at + box * 64 < columns)
                vector = *(const uint4 *)(source + i * columns + box * 64);
            *(uint4 *)(to + box * BOX_BYTES + i * 128) = vector;
        }
    }
}

/* The last step of an expert. Thread 0 has waited for the place to be empty. */
DEVICE void copy_step(const WarpgroupCall &c, GroupedShared &shared, const Work &w, int stage, int term,
                      bool is_first_thread) {
    loading_group_meets();
    copy_rows(shared.a[stage], FIRST_BYTES / BOX_BYTES, c.g.a, c.g.outputs, w.row, term, w.end_term);
    copy_rows(shared.b[stage], SECOND_BYTES / BOX_BYTES, c.g.b, c.g.inputs, w.column, term, w.end_term);
    fence_async_proxy();
    loading_group_meets();
    if (is_first_thread) mbarrier_arrive(&shared.full[stage]);
}

/* One thread loads; the others of its group are there for last steps. */
template <GroupedKind KIND, int CLUSTER>
DEVICE void load_all(const WarpgroupCall &c, GroupedShared &shared, const Self &me) {
    bool is_first = me.warp == 0 && me.lane == 0;
    if (KIND != GROUPED_WEIGHT && !is_first) return;
    Stage at = {0, 0};
    Work w;
    for (int unit = (int)blockIdx.x / CLUSTER; find_work<KIND, CLUSTER>(c, shared, me, unit, w);
         unit += (int)gridDim.x / CLUSTER) {
#    pragma unroll 1
        for (int step = 0; step < w.n_steps; step++, advance(at)) {
            int term = w.first_term + step * TERMS;
            if (is_first) mbarrier_wait(&shared.empty[at.index], !at.turn);
            if (KIND == GROUPED_WEIGHT && term + TERMS > w.end_term)
                copy_step(c, shared, w, at.index, term, is_first);
            else if (is_first) load_step<KIND, CLUSTER>(c, shared, me, w, at.index, term);
        }
    }
}

/* ---- the groups that multiply ---- */

/* This warp reads a place no more. */
template <int CLUSTER> DEVICE void leave(GroupedShared &shared, const Self &me, int stage) {
    if constexpr (CLUSTER == 1) {
        if (me.lane == 0) mbarrier_arrive(&shared.empty[stage]);
    } else if (me.lane < CLUSTER) arrive_at_rank(&shared.empty[stage], me.lane);
    __syncwarp();
}

/* The sums of a tile, by a whole group. */
template <typename T, GroupedKind KIND, int CLUSTER>
DEVICE void multiply_tile(GroupedShared &shared, const Self &me, Stage &at, int n_steps, bool is_first,
                          float sum[SUMS]) {
    constexpr bool TURNED_A = KIND == GROUPED_WEIGHT, TURNED_B = KIND != GROUPED_FORWARD;
    enum { NEXT_A = (TURNED_A ? 2048 : 32) >> 4, NEXT_B = (TURNED_B ? 2048 : 32) >> 4 };
    unsigned a = describe(shared.a[0] + me.group * BOX_BYTES, TURNED_A ? BOX_BYTES : 16),
             b = describe(shared.b[0], TURNED_B ? BOX_BYTES : 16);
    int before = 0;
    if (KIND == GROUPED_WEIGHT && !n_steps) {
#    pragma unroll
        for (int i = 0; i < SUMS; i++) sum[i] = 0.0f;
    }
    hold(sum);
#    pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        mbarrier_wait(&shared.full[at.index], at.turn);
        unsigned a_step = a + (unsigned)(at.index * (FIRST_BYTES >> 4)),
                 b_step = b + (unsigned)(at.index * (SECOND_BYTES >> 4));
        wgmma_fence();
#    pragma unroll
        for (int k = 0; k < TERMS / 16; k++)
            multiply_step<TURNED_A, TURNED_B>(sum, a_step + NEXT_A * k, b_step + NEXT_B * k, step + k, T());
        wgmma_commit();
        wgmma_wait<1>();
        if (step) leave<CLUSTER>(shared, me, before);
        before = at.index;
        advance(at);
        if (is_first && me.group == 0 && step == AHEAD - 1) mbarrier_arrive(&shared.ahead);
    }
    wgmma_wait<0>();
    if (n_steps) leave<CLUSTER>(shared, me, before);
    if (is_first && me.group == 0 && n_steps < AHEAD) mbarrier_arrive(&shared.ahead);
    hold(sum);
}

template <typename T, GroupedKind KIND, Activation ACTIVATION, int CLUSTER>
DEVICE void compute_all(const WarpgroupCall &c, GroupedShared &shared, const Self &me) {
    float sum[SUMS];
    Stage at = {0, 0};
    Work w;
    bool is_first = true;
#    pragma unroll 1
    for (int unit = (int)blockIdx.x / CLUSTER; find_work<KIND, CLUSTER>(c, shared, me, unit, w);
         unit += (int)gridDim.x / CLUSTER) {
        if (is_first && me.group) mbarrier_wait(&shared.ahead, 0);
        multiply_tile<T, KIND, CLUSTER>(shared, me, at, w.n_steps, is_first, sum);
        is_first = false;
        end_tile<T, KIND, ACTIVATION>(c, w, me, sum);
    }
}

template <int CLUSTER> DEVICE void init_barriers(GroupedShared &shared) {
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(&shared.full[i], 1);
        mbarrier_init(&shared.empty[i], GROUPS * GROUP_WARPS * CLUSTER);
    }
    mbarrier_init_warps(&shared.ahead, GROUP_WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

#endif

template <typename T, GroupedKind KIND, Activation ACTIVATION, int CLUSTER>
static __global__ void __launch_bounds__(GROUPED_THREADS, 1)
    grouped_kernel(const __grid_constant__ WarpgroupCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    GroupedShared &shared = *(GroupedShared *)grouped_shared;
    int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / WARP, 0);
    Self me = {(int)threadIdx.x % WARP, warp % GROUP_WARPS, warp / GROUP_WARPS,
               CLUSTER == 1 ? 0 : (int)blockIdx.x % CLUSTER};
    if (threadIdx.x == 0) init_barriers<CLUSTER>(shared);
    wait_for_predecessor();
    make_tables<KIND, CLUSTER>(c, shared);
    __syncthreads();
    if (CLUSTER > 1) cluster_meets(); /* both blocks' barriers are there */
    if (me.group == GROUPS) {         /* registers go from this group to the others */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        load_all<KIND, CLUSTER>(c, shared, me);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        compute_all<T, KIND, ACTIVATION, CLUSTER>(c, shared, me);
    }
    if (CLUSTER > 1) cluster_meets(); /* nobody sends to a block that has ended */
#endif
}

/* ---- on the host's side ---- */

typedef void GroupedKernel(const WarpgroupCall);

template <typename T, GroupedKind KIND, int CLUSTER>
static GroupedKernel *choose_activation(Activation activation) {
    if (KIND == GROUPED_WEIGHT || activation == ACTIVATION_NONE)
        return grouped_kernel<T, KIND, ACTIVATION_NONE, CLUSTER>;
    if constexpr (KIND != GROUPED_WEIGHT) {
        return activation == ACTIVATION_GELU_TANH ? grouped_kernel<T, KIND, ACTIVATION_GELU_TANH, CLUSTER>
                                                  : grouped_kernel<T, KIND, ACTIVATION_GELU_ERF, CLUSTER>;
    }
    return NULL;
}

template <typename T, int CLUSTER> static GroupedKernel *choose_kind(const GroupedGemm *g) {
    if (g->kind == GROUPED_FORWARD) return choose_activation<T, GROUPED_FORWARD, CLUSTER>(g->activation);
    if (g->kind == GROUPED_INPUT) return choose_activation<T, GROUPED_INPUT, CLUSTER>(g->activation);
    return choose_activation<T, GROUPED_WEIGHT, CLUSTER>(ACTIVATION_NONE);
}

static GroupedKernel *choose(const GroupedGemm *g, int cluster) {
    if (g->dtype == DTYPE_BF16) return cluster == 2 ? choose_kind<bf16, 2>(g) : choose_kind<bf16, 1>(g);
    return cluster == 2 ? choose_kind<f16, 2>(g) : choose_kind<f16, 1>(g);
}

/* A pair of blocks wastes up to 255 rows of every expert. */
static int cluster_of(const GroupedGemm *g) {
    int64_t rows = g->kind == GROUPED_WEIGHT ? g->outputs : g->rows / g->n_experts / 4;
    return rows >= 2 * TILE_ROWS ? 2 : 1;
}

static int64_t divide_up(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

/* Rows of an expert that are one piece of the gradient of its weight: where an expert has many times the
 * mean, few blocks would go on for long while the others have nothing to do. Where small experts have fewer
 * tiles than there are blocks, all are cut, so that the pieces are what runs at a time. 16-bit sums would be
 * rounded piece by piece. */
static int64_t piece_rows(const GroupedGemm *g, const WarpgroupCall *c, int64_t n_processors) {
    enum { FEWEST = 2048, FEWEST_OF_SMALL = 512 }; /* rows; a piece is added to c behind the one before it */
    int64_t tiles = (int64_t)c->n_rows * c->n_columns, units = n_processors / c->unit_tiles;
    if (g->c_type != DTYPE_F32 || g->n_experts * tiles * c->unit_tiles * GROUPS > N_TICKETS) return g->rows;
    int64_t rows = g->rows / g->n_experts * 3 / 2, pieces = units / tiles - g->n_experts;
    if (rows < FEWEST) rows = FEWEST;
    if (pieces < g->n_experts) return rows;
    int64_t share = divide_up(g->rows, pieces);
    if (share < FEWEST_OF_SMALL) share = FEWEST_OF_SMALL;
    return share < rows ? share : rows;
}

/* How c is cut; returns how many units there could be. */
static int64_t cut(const CudaContext *context, const GroupedGemm *g, int cluster, WarpgroupCall *c) {
    int64_t unit = (int64_t)TILE_ROWS * cluster;
    c->g = *g;
    c->columns = (int)(g->kind == GROUPED_FORWARD ? g->outputs : g->inputs);
    c->n_columns = (int)divide_up(c->columns, PANEL);
    c->n_rows = (int)divide_up(g->outputs, unit);
    c->unit_tiles = cluster;
    c->piece_rows = (int)piece_rows(g, c, context->traits.n_processors);
    c->n_steps = (int)divide_up(g->kind == GROUPED_FORWARD ? g->inputs : g->outputs, TERMS);
    c->bias = {(void *)g->bias, g->bias_type, true};
    int64_t n_rows = g->kind == GROUPED_WEIGHT ? (g->n_experts + g->rows / c->piece_rows) * c->n_rows
                                               : g->rows / unit + g->n_experts;
    return n_rows * c->n_columns;
}

extern "C" bool cuda_grouped_warpgroup_fits(const CudaContext *context, const GroupedGemm *g) {
#ifdef PGPT_HAVE_SM90A
    WarpgroupCall c = {};
    if (context->traits.major != 9 || context->traits.minor != 0 || !cuda_tma_exists()) return false;
    if (g->dtype == DTYPE_F32 || (g->c_type != g->dtype && g->c_type != DTYPE_F32)) return false;
    if (g->kind != GROUPED_WEIGHT && g->c_type != g->dtype) return false;
    if (!g->rows || !g->inputs || !g->outputs || g->n_experts > ROUTE_MAX_EXPERTS) return false;
    if (g->rows > INT32_MAX - 4 * TILE_ROWS || cut(context, g, 1, &c) > INT32_MAX) return false;
    return rows_aligned(g->a, g->inputs) && rows_aligned(g->b, g->outputs) && is_aligned(g->c) &&
           is_aligned(g->before) && is_aligned(g->bias);
#else
    (void)context;
    (void)g;
    return false;
#endif
}

/* A row-major (rows,columns) matrix, and one of each expert, in boxes. */
static bool map_rows(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, uint32_t box_rows) {
    uint64_t size[2] = {(uint64_t)columns, (uint64_t)rows}, stride[1] = {(uint64_t)columns * 2};
    uint32_t box[2] = {64, box_rows};
    return cuda_tma_descriptor(map, data, 2, size, stride, box);
}
static bool map_weight(CUtensorMap *map, const GroupedGemm *g, uint32_t box_rows) {
    uint64_t size[3] = {(uint64_t)g->inputs, (uint64_t)g->outputs, (uint64_t)g->n_experts};
    uint64_t stride[2] = {(uint64_t)g->inputs * 2, (uint64_t)(g->inputs * g->outputs) * 2};
    uint32_t box[3] = {64, box_rows, 1};
    return cuda_tma_descriptor(map, g->b, 3, size, stride, box);
}

static bool map_all(const GroupedGemm *g, int cluster, WarpgroupCall *c) {
    if (g->kind == GROUPED_FORWARD)
        return map_rows(&c->a, g->a, g->rows, g->inputs, TILE_ROWS) &&
               map_weight(&c->b, g, (uint32_t)(PANEL / cluster));
    if (g->kind == GROUPED_INPUT)
        return map_rows(&c->a, g->a, g->rows, g->outputs, TILE_ROWS) && map_weight(&c->b, g, TERMS);
    return map_rows(&c->a, g->a, g->rows, g->outputs, TERMS) &&
           map_rows(&c->b, g->b, g->rows, g->inputs, TERMS);
}

extern "C" Status cuda_grouped_warpgroup(CudaContext *context, const GroupedGemm *g, Error *error) {
    WarpgroupCall c = {};
    int cluster = cluster_of(g);
    int64_t units = cut(context, g, cluster, &c), room = context->traits.n_processors / cluster;
    c.tickets = context->tickets;
    if (!map_all(g, cluster, &c)) return cuda_check(cudaErrorNotSupported, "grouped GEMM", error);
    GroupedKernel *kernel = choose(g, cluster);
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(GroupedShared));
    if (code != cudaSuccess) return cuda_check(code, "grouped GEMM", error);
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = (unsigned)cluster;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.gridDim = (unsigned)((units < room ? units : room) * cluster);
    config.blockDim = GROUPED_THREADS;
    config.dynamicSmemBytes = sizeof(GroupedShared);
    config.stream = context->stream;
    config.attrs = attribute;
    config.numAttrs = 1 + pdl_attribute(&attribute[1], context->stream);
    return cuda_check(cudaLaunchKernelEx(&config, kernel, c), "grouped GEMM", error);
}
