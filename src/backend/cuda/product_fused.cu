/* product_fused: c = finish(a · b) for sums of at most 384 terms, with 16-bit factors.
 *
 * Floor: 2·rows·columns·inner FLOPs over the matrix rate, or the bytes of a, c and `before` over the copy bandwidth; for
 * (16384,384) by (384,1536) on an H200 24 us and 26 us. What a tile of c costs after its products, gelu's exponential and
 * division and the stores, takes as many cycles as the products: so it must go on beside them.
 *
 * A thread block has 192 columns of b, all of their terms, in shared memory: it goes through a part of the rows with them,
 * and of what the blocks read only a comes more than once, from the second-level cache. Two groups of 4 warps have 64 rows
 * each in turns: while one multiplies, the other ends its tile. Another warp orders the boxes of a ahead of them.
 *
 * Ending a tile. A warp has 16 rows. It brings 64 columns at a time into a box in shared memory, from where the hardware
 * stores them. For the slope, `before` has come into the same boxes meanwhile, and is replaced there by what is stored.
 * Sums of columns stay in registers until the block has seen all of its rows; then the warps add up theirs in order. */
#include "backend/cuda/product_fused_parts.cuh"

#include "backend/cuda/gelu.cuh"
#include "backend/cuda/tensor_map.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* What a thread knows about itself and where its block is. */
typedef struct {
    int lane, warp, group; /* the warp of its group */
    int column, tile, end; /* the panel's first column; the block's tiles of rows */
} Self;

/* The boxes of a in shared memory, in the order of the tiles. */
typedef struct {
    int index, turn;
} Stage;

template <int STAGES> DEVICE void advance(Stage &at, int n) {
    at.index += n;
    while (at.index >= STAGES) at.index -= STAGES, at.turn ^= 1;
}

/* ---- ordering ---- */

template <int MODE>
DEVICE void order_x(const FusedCall &c, FusedShared<MODE> &shared, int stage, int tile, int step) {
    barrier_expect(&shared.x_full[stage], BOX_BYTES);
    order_box(shared.x[stage], &c.x, step * TERMS, tile * TILE, &shared.x_full[stage]);
}

template <int MODE>
DEVICE void order_weight(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int step) {
    uint64_t *full = &shared.weight_full[step];
    barrier_expect(full, PANEL_BYTES);
    if (MODE != MODE_SLOPE) order_box(shared.weight[step], &c.weight, step * TERMS, me.column, full);
    for (int i = 0; MODE == MODE_SLOPE && i < PANEL / 64; i++)
        order_box(shared.weight[step] + i * BOX_BYTES, &c.weight, me.column + i * 64, step * TERMS, full);
}

/* By one thread. The first boxes of a have room; the weights come beside them. */
template <int MODE> DEVICE void order_all(const FusedCall &c, FusedShared<MODE> &shared, const Self &me) {
    enum { STAGES = FusedShared<MODE>::STAGES };
    Stage at = {0, 1};
    for (int step = 0; step < c.n_steps; step++) {
        if (step < STAGES) {
            order_x(c, shared, at.index, me.tile, step);
            advance<STAGES>(at, 1);
        }
        order_weight(c, shared, me, step);
    }
    int tile = me.tile, step = c.n_steps < STAGES ? c.n_steps : STAGES;
    for (;; step++) {
        if (step == c.n_steps) step = 0, tile++;
        if (tile == me.end) break;
        barrier_pass(&shared.x_empty[at.index], at.turn);
        order_x(c, shared, at.index, tile, step);
        advance<STAGES>(at, 1);
    }
}

/* The pieces of `before` that a tile needs, by lane 0 of a warp: the first two, or the last one. Their places are free
 * when what was there before has been stored. */
template <int MODE>
DEVICE void order_before(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int tile,
                         bool is_last) {
    uint64_t *full = &shared.before_full[me.group][me.warp][is_last];
    int row = tile * TILE + me.warp * WARP_ROWS;
    if (me.lane || tile >= me.end) return;
    if (is_last) stores_have_read<0>();
    else stores_have_read<1>();
    barrier_expect(full, is_last ? PIECE_BYTES : (PIECES - 1) * PIECE_BYTES);
    for (int p = is_last ? PIECES - 1 : 0; p < (is_last ? PIECES : PIECES - 1); p++)
        order_box(shared.piece[me.group][me.warp][p], &c.before, me.column + p * PIECE, row, full);
}

/* ---- multiplying ---- */

/* The sums of a tile, by a whole group. */
template <typename T, int MODE>
DEVICE void multiply_tile(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, Stage &at, int tile,
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
        if (is_first) barrier_pass(&shared.weight_full[step], 0);
        barrier_pass(&shared.x_full[at.index], at.turn);
        unsigned a_step = a + (unsigned)(at.index * (BOX_BYTES >> 4));
        unsigned b_step = b + (unsigned)(step * (PANEL_BYTES >> 4));
        products_begin();
#    pragma unroll
        for (int k = 0; k < TERMS / 16; k++)
            multiply_step<TURNED>(sum, a_step + 2 * k, b_step + NEXT * k, step + k, T());
        products_end();
        products_arrive<1>();
        if (step && me.lane == 0) barrier_arrive(&shared.x_empty[before]);
        if (!step && MODE == MODE_SLOPE) order_before(c, shared, me, tile, true);
        __syncwarp();
        before = at.index;
        advance<STAGES>(at, 1);
    }
    if (me.lane == 0) barrier_arrive(&shared.turn[!me.group]);
    __syncwarp();
    products_arrive<0>();
    if (me.lane == 0) barrier_arrive(&shared.x_empty[before]);
    hold(sum);
}

/* ---- ending a tile ---- */

/* Where this lane's row of a piece is, for 16 columns at a time: matrices of 8 rows, the upper and the lower of both. */
DEVICE unsigned matrix_address(const void *piece, int lane, int pair) {
    int row = lane % 16, vector = 2 * pair + lane / 16;
    return shared_address(piece) + (unsigned)(row * 128 + (vector ^ row % 8) * 16);
}

template <typename T> DEVICE void store_piece(const Self &me, void *piece, const float v[PIECE / 2]) {
#    pragma unroll
    for (int pair = 0; pair < PIECE / 16; pair++) {
        unsigned word[4];
#    pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = pair_of_floats(v[8 * pair + 2 * i], v[8 * pair + 2 * i + 1], T());
        store_matrices(matrix_address(piece, me.lane, pair), word);
    }
}

DEVICE void send_piece(const FusedCall &c, const Self &me, const CUtensorMap *map, const void *piece, int p,
                       int row) {
    show_to_copies();
    __syncwarp();
    int column = me.column + p * PIECE;
    if (me.lane) return;
    if (column < c.columns && row < c.rows) store_box(piece, map, column, row);
    stores_end();
}

/* A place for the next piece: what was sent from there before has been read. */
template <int MODE> DEVICE char *next_slot(FusedShared<MODE> &shared, const Self &me, int &n_sent) {
    if (me.lane == 0) stores_have_read<1>();
    __syncwarp();
    return shared.piece[me.group][me.warp][n_sent++ % 2];
}

template <typename T, int MODE>
DEVICE void end_forward(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int tile, int &n_sent,
                        float sum[SUMS]) {
    enum { EACH = SUMS / PIECES };
    int row = tile * TILE + me.warp * WARP_ROWS;
#    pragma unroll
    for (int p = 0; p < PIECES; p++) {
        float *v = sum + p * EACH;
#    pragma unroll
        for (int j = 0; j < PIECE / 8; j++) {
            float2 b = *(const float2 *)&shared.bias[p * PIECE + 8 * j + me.lane % 4 * 2];
            v[4 * j] += b.x, v[4 * j + 1] += b.y, v[4 * j + 2] += b.x, v[4 * j + 3] += b.y;
        }
        if (c.has_before) {
            char *slot = next_slot(shared, me, n_sent);
            store_piece<T>(me, slot, v);
            send_piece(c, me, &c.before, slot, p, row);
        }
#    pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = gelu_tanh_rounded(v[i]);
        char *slot = next_slot(shared, me, n_sent);
        store_piece<T>(me, slot, v);
        send_piece(c, me, &c.y, slot, p, row);
    }
}

/* What is stored is added to the sums of this thread's columns: two of every 8. */
template <typename T, int MODE, bool TOTALS>
DEVICE void end_slope(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int tile, int turn,
                      const float sum[SUMS], float total[SUMS / 2]) {
    int row = tile * TILE + me.warp * WARP_ROWS;
#    pragma unroll
    for (int p = 0; p < PIECES; p++) {
        char *piece = shared.piece[me.group][me.warp][p];
        if (p == 0) barrier_pass(&shared.before_full[me.group][me.warp][0], turn);
        if (p == PIECES - 1) barrier_pass(&shared.before_full[me.group][me.warp][1], turn);
#    pragma unroll
        for (int pair = 0; pair < PIECE / 16; pair++) {
            unsigned word[4], at = matrix_address(piece, me.lane, pair);
            load_matrices(word, at);
#    pragma unroll
            for (int i = 0; i < 4; i++) {
                int k = p * (PIECE / 2) + pair * 8 + 2 * i, column = k / 4 * 2;
                float2 x = pair_as_floats(word[i], T());
                word[i] = pair_of_floats(sum[k] * gelu_tanh_slope_rounded(x.x),
                                         sum[k + 1] * gelu_tanh_slope_rounded(x.y), T());
                float2 stored = pair_as_floats(word[i], T());
                if (TOTALS) total[column] += stored.x, total[column + 1] += stored.y;
            }
            store_matrices(at, word);
        }
        send_piece(c, me, &c.y, piece, p, row);
    }
    order_before(c, shared, me, tile + GROUPS, false);
}

/* The sums of the block's rows: over the 8 lanes that have the same columns, then over the warps in order. */
template <int MODE>
DEVICE void end_totals(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int part,
                       const float total[SUMS / 2]) {
    if (me.lane == 0) stores_have_read<0>();
    __syncwarp();
    float *mine = (float *)shared.piece[me.group][me.warp][0];
#    pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        float x = total[i];
#    pragma unroll
        for (int step = 4; step < WARP; step *= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
        if (me.lane < 4) mine[i / 2 * 8 + me.lane * 2 + i % 2] = x;
    }
    asm volatile("barrier.sync 1, %0;" ::"n"(GROUPS * GROUP_WARPS * WARP) : "memory");
    int column = (int)threadIdx.x;
    if (column >= PANEL || me.column + column >= c.columns) return;
    float all = 0.0f;
    for (int w = 0; w < GROUPS * GROUP_WARPS; w++)
        all += ((const float *)shared.piece[w / GROUP_WARPS][w % GROUP_WARPS][0])[column];
    c.partial[(int64_t)part * c.columns + me.column + column] = all;
}

/* The tiles of a group: every second one. */
template <typename T, int MODE, bool TOTALS>
DEVICE void compute_all(const FusedCall &c, FusedShared<MODE> &shared, const Self &me, int part) {
    enum { STAGES = FusedShared<MODE>::STAGES };
    float sum[SUMS], total[SUMS / 2] = {0};
    Stage at = {0, 0};
    int n_sent = 0;
    advance<STAGES>(at, me.group * c.n_steps);
    if (MODE == MODE_SLOPE) order_before(c, shared, me, me.tile + me.group, false);
#    pragma unroll 1
    for (int tile = me.tile + me.group, n = 0; tile < me.end; tile += GROUPS, n++) {
        int turn = n - !me.group; /* the one that the other group has ended */
        if (turn >= 0) barrier_pass(&shared.turn[me.group], turn & 1);
        multiply_tile<T>(c, shared, me, at, tile, n == 0, sum);
        advance<STAGES>(at, c.n_steps); /* the other group's */
        if (MODE == MODE_SLOPE) end_slope<T, MODE, TOTALS>(c, shared, me, tile, n & 1, sum, total);
        else end_forward<T>(c, shared, me, tile, n_sent, sum);
    }
    if (TOTALS) end_totals(c, shared, me, part, total);
    if (me.lane == 0) stores_have_read<0>();
}

template <int MODE> DEVICE void init_barriers(FusedShared<MODE> &shared) {
    for (int i = 0; i < MOST_STEPS; i++) barrier_init(&shared.weight_full[i], 1);
    for (int i = 0; i < FusedShared<MODE>::STAGES; i++) {
        barrier_init(&shared.x_full[i], 1);
        barrier_init(&shared.x_empty[i], GROUP_WARPS);
    }
    for (int i = 0; i < GROUPS; i++) {
        barrier_init(&shared.turn[i], GROUP_WARPS);
        for (int j = 0; j < 2 * GROUP_WARPS; j++) barrier_init(&shared.before_full[i][j / 2][j % 2], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

#endif

template <typename T, int MODE, bool TOTALS>
static __global__ void __launch_bounds__(FUSED_THREADS, 1) fused_kernel(const __grid_constant__ FusedCall c) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    FusedShared<MODE> &shared = *(FusedShared<MODE> *)fused_shared;
    int thread = (int)threadIdx.x, part = (int)blockIdx.x / c.n_panels, panel = (int)blockIdx.x % c.n_panels;
    Self me = {};
    me.lane = thread % WARP, me.warp = thread / WARP % GROUP_WARPS, me.group = thread / WARP / GROUP_WARPS;
    me.column = panel * PANEL, me.tile = part * c.tiles_each;
    me.end = me.tile + c.tiles_each < c.n_tiles ? me.tile + c.tiles_each : c.n_tiles;
    if (thread == 0) init_barriers(shared);
    if (thread < PANEL) {
        float b[VECTOR] = {0};
        int column = me.column + thread;
        if (c.bias.data && column < c.columns) load8(c.bias, column, 1, b);
        shared.bias[thread] = b[0];
    }
    __syncthreads();
    if (me.group == GROUPS) { /* registers go from this group to the others */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (me.warp == 0 && me.lane == 0) order_all(c, shared, me);
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

template <typename T> static FusedChoice choose(const Product *p, bool has_totals) {
    FusedChoice gelu = {fused_kernel<T, MODE_GELU, false>, sizeof(FusedShared<MODE_GELU>)};
    FusedChoice slope = {has_totals ? fused_kernel<T, MODE_SLOPE, true> : fused_kernel<T, MODE_SLOPE, false>,
                         sizeof(FusedShared<MODE_SLOPE>)};
    return p->finish == FINISH_SLOPE ? slope : gelu;
}

/* How the product is cut: all panels, and as many parts of the rows as there is room for at once. */
static void cut(const CudaContext *context, const Product *p, FusedCall *c) {
    c->rows = (int)p->rows, c->columns = (int)p->columns;
    c->n_steps = (int)((p->inner + TERMS - 1) / TERMS);
    c->n_panels = (int)((p->columns + PANEL - 1) / PANEL);
    c->n_tiles = (int)((p->rows + TILE - 1) / TILE);
    int parts = context->n_processors / c->n_panels;
    if (parts < 1) parts = 1;
    c->tiles_each = (c->n_tiles + parts - 1) / parts;
}

static int64_t parts_of(const FusedCall *c) {
    return (c->n_tiles + c->tiles_each - 1) / c->tiles_each;
}

static bool is_vectors(const void *data, int64_t columns) {
    return is_aligned(data) && columns % VECTOR == 0;
}

/* With fewer tiles the weights' way into shared memory takes longer than it saves, and columns that a panel has for nothing
 * are multiplied like the others. */
static bool is_worth_it(const CudaContext *context, const Product *p) {
    FusedCall c = {};
    cut(context, p, &c);
    return (int64_t)c.n_panels * c.n_tiles >= 4 * context->n_processors &&
           4 * p->columns >= (int64_t)3 * c.n_panels * PANEL;
}

extern "C" bool cuda_product_fused_exists(const CudaContext *context) {
#ifdef PGPT_HAVE_SM90A
    return context->properties.major == 9 && context->properties.minor == 0 && cuda_tensor_maps_exist();
#else
    (void)context;
    return false;
#endif
}

extern "C" bool cuda_product_fused_fits(const CudaContext *context, const Product *p) {
    bool is_slope = p->finish == FINISH_SLOPE,
         is_gelu = p->finish == FINISH_GELU || p->finish == FINISH_BIAS_GELU;
    if (!(is_gelu && p->transpose_b) && !(is_slope && !p->transpose_b && p->before)) return false;
    if (p->c_type == DTYPE_F32 || p->a_type != p->c_type || p->b_type != p->c_type) return false;
    if (p->transpose_a || p->a_stride || p->b_stride || p->c_stride || p->addend) return false;
    if (!p->rows || !p->columns || !p->inner || p->inner > FUSED_MOST_INNER || p->rows > INT32_MAX - TILE ||
        p->columns > INT32_MAX - PANEL)
        return false;
    return is_vectors(p->a, p->inner) && is_aligned(p->b) && is_vectors(p->c, p->columns) &&
           is_aligned(p->before) && is_worth_it(context, p) && cuda_product_fused_exists(context);
}

extern "C" int64_t cuda_product_fused_partials(const CudaContext *context, const Product *p) {
    FusedCall c = {};
    cut(context, p, &c);
    return parts_of(&c);
}

/* A row-major (rows,columns) matrix in boxes. */
static bool map_matrix(CUtensorMap *map, const void *data, int64_t rows, int64_t columns, uint32_t box_rows) {
    uint64_t size[2] = {(uint64_t)columns, (uint64_t)rows}, stride[1] = {(uint64_t)columns * 2};
    uint32_t box[2] = {64, box_rows};
    return cuda_tensor_map(map, data, 2, size, stride, box);
}

static bool map_all(const Product *p, FusedCall *c) {
    bool is_turned = p->finish == FINISH_SLOPE;
    if (!map_matrix(&c->x, p->a, p->rows, p->inner, TILE)) return false;
    if (is_turned ? !map_matrix(&c->weight, p->b, p->inner, p->columns, TERMS)
                  : !map_matrix(&c->weight, p->b, p->columns, p->inner, PANEL))
        return false;
    c->has_before = p->before;
    if (p->before && !map_matrix(&c->before, p->before, p->rows, p->columns, WARP_ROWS)) return false;
    return map_matrix(&c->y, p->c, p->rows, p->columns, WARP_ROWS);
}

extern "C" Status cuda_product_fused(CudaContext *context, const Product *p, float *partial, Error *error) {
    FusedCall c = {};
    cut(context, p, &c);
    if (!map_all(p, &c)) return cuda_check(cudaErrorNotSupported, "matrix product", error);
    c.partial = partial;
    if (p->vector) c.bias = {(void *)p->vector, p->vector_type, false};
    FusedChoice choice = p->c_type == DTYPE_BF16 ? choose<bf16>(p, partial) : choose<f16>(p, partial);
    cudaError_t code = cudaFuncSetAttribute(choice.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)choice.shared_bytes);
    if (code != cudaSuccess) return cuda_check(code, "matrix product", error);
    unsigned n_blocks = (unsigned)(c.n_panels * parts_of(&c));
    choice.kernel<<<n_blocks, FUSED_THREADS, choice.shared_bytes, context->stream>>>(c);
    return cuda_launched("matrix product", error);
}
