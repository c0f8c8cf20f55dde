/* Grouped GEMMs by warps (grouped.h), for what grouped_sm90.cu does not take: other GPUs, f32, and rows that
 * no vector fits.
 *
 * Floor: 2·rows·inputs·outputs FLOPs over the matrix rate, which for f32 is that without tensor cores.
 *
 * A block has one tile of c. A grid has room for every tile that there could be: of n rows and E experts at
 * most n/TILE + E rows of tiles, since an expert ends within one tile at most. A block whose tile is not
 * there ends at once.
 *
 * 16 bits: tiles of 128 by 128, 8 warps with 64 by 32 of it each (mma.m16n8k16). The next 32 terms are on
 * their way from memory while these are multiplied. A factor lies in shared memory as it does in memory,
 * lines of terms or lines that are terms; ldmatrix turns the second kind. f32: tiles of 64 by 64, a thread
 * has 4 by 4 of it. */
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/experts/grouped_parts.cuh"

enum { TILES_THREADS = 256, PAD = 8 };

/* The tile of a block: of which expert, and where in c its rows and columns begin and end. For the gradient
 * of weights rows of c are outputs; else they are those of `a`, all experts' counted. */
typedef struct {
    int expert;
    int64_t row, row_end, column;
    int64_t first, n_rows; /* of the expert */
} Tile;

typedef struct {
    GroupedGemm g;
    int64_t columns; /* of c */
    int n_columns;   /* of tiles */
    bool aligned;
} TilesCall;

/* By one warp: the expert that has row `at` of the tiles, and how many are before it. -1: there is none. */
DEVICE int find_expert(const int32_t *offsets, int n_experts, int tile_rows, int at, int *before) {
    int lane = (int)threadIdx.x % WARP;
    *before = 0;
    for (int base = 0; base < n_experts; base += WARP) {
        int e = base + lane, n = e < n_experts ? offsets[e + 1] - offsets[e] : 0;
        int tiles = (n + tile_rows - 1) / tile_rows, sum = tiles;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
            if (lane >= step) sum += other;
        }
        unsigned behind = __ballot_sync(0xFFFFFFFFu, *before + sum > at);
        if (behind) {
            int found = __ffs((int)behind) - 1;
            *before += __shfl_sync(0xFFFFFFFFu, sum - tiles, found);
            return base + found;
        }
        *before += __shfl_sync(0xFFFFFFFFu, sum, WARP - 1);
    }
    return -1;
}

/* By the whole block. */
template <int HEIGHT> DEVICE bool find_tile(const TilesCall &c, Tile &tile) {
    __shared__ int shared_expert, shared_before;
    const GroupedGemm &g = c.g;
    int index = (int)(blockIdx.x / (unsigned)c.n_columns), column = (int)(blockIdx.x % (unsigned)c.n_columns);
    tile.column = (int64_t)column * HEIGHT;
    if (g.kind == GROUPED_WEIGHT) {
        int n = (int)((g.outputs + HEIGHT - 1) / HEIGHT);
        tile.expert = index / n;
        tile.row = (int64_t)(index % n) * HEIGHT, tile.row_end = g.outputs;
    } else {
        if (threadIdx.x < WARP) {
            int before, expert = find_expert(g.offsets, g.n_experts, HEIGHT, index, &before);
            if (threadIdx.x == 0) shared_expert = expert, shared_before = before;
        }
        __syncthreads();
        tile.expert = shared_expert;
        if (tile.expert < 0) return false;
        tile.row = g.offsets[tile.expert] + (int64_t)(index - shared_before) * HEIGHT;
        tile.row_end = g.offsets[tile.expert + 1];
    }
    tile.first = g.offsets[tile.expert];
    tile.n_rows = g.offsets[tile.expert + 1] - tile.first;
    return true;
}

/* A factor: lines in memory, which are terms, or have them. */
template <typename T> struct Lines {
    const T *data;
    int64_t n_lines, length;
};

template <typename T, GroupedKind KIND> DEVICE Lines<T> first_factor(const GroupedGemm &g, const Tile &tile) {
    int64_t length = KIND == GROUPED_FORWARD ? g.inputs : g.outputs;
    return {(const T *)g.a + tile.first * length, tile.n_rows, length};
}
template <typename T, GroupedKind KIND>
DEVICE Lines<T> second_factor(const GroupedGemm &g, const Tile &tile) {
    if (KIND == GROUPED_WEIGHT) return {(const T *)g.b + tile.first * g.inputs, tile.n_rows, g.inputs};
    return {(const T *)g.b + tile.expert * g.outputs * g.inputs, g.outputs, g.inputs};
}
template <GroupedKind KIND> DEVICE int64_t n_terms(const GroupedGemm &g, const Tile &tile) {
    return KIND == GROUPED_FORWARD ? g.inputs : KIND == GROUPED_INPUT ? g.outputs : tile.n_rows;
}

/* ---- the end of an element ---- */

template <typename T, GroupedKind KIND>
DEVICE void end_element(const TilesCall &c, const Tile &tile, int64_t row, int64_t column, float v) {
    const GroupedGemm &g = c.g;
    if (row >= tile.row_end || column >= c.columns) return;
    int64_t at = row * c.columns + column;
    if (KIND == GROUPED_WEIGHT) {
        Memory to = {g.c, g.c_type, false};
        write_element(to, tile.expert * g.outputs * g.inputs + at, v, g.add);
    } else if (KIND == GROUPED_FORWARD) {
        Memory bias = {(void *)g.bias, g.bias_type, false};
        if (g.bias) v += read_element(bias, tile.expert * g.outputs + column);
        if (g.before) set_element((T *)g.before + at, v);
        set_element((T *)g.c + at, activate(g.activation, v));
    } else {
        if (g.before) v *= slope_at(g.activation, as_float(((const T *)g.before)[at]));
        write_element((T *)g.c + at, v, g.add);
    }
}

/* ---- 16 bits ---- */

enum { TILE = 128, TERMS = 32, WARP_ROWS = 64, WARP_COLUMNS = 32, ROW_BLOCKS = 4, COLUMN_BLOCKS = 4 };

/* A factor's tile in shared memory: 128 lines of 32 terms, or turned, 32 lines of 128. */
template <bool TURNED> struct Box {
    enum {
        LENGTH = TURNED ? TILE : TERMS,
        LINES = TURNED ? TERMS : TILE,
        STRIDE = LENGTH + PAD,
        VECTORS = LENGTH / VECTOR,
        EACH = LINES * VECTORS / TILES_THREADS
    };
};

/* This thread's part of a box. `at`: the first row or column of the tile; `term`: the first term. */
template <typename T, bool TURNED, bool ALIGNED>
DEVICE void load_box(Raw<T> *raw, const Lines<T> &from, int64_t at, int64_t term) {
    typedef Box<TURNED> B;
#pragma unroll
    for (int i = 0; i < B::EACH; i++) {
        int v = i * TILES_THREADS + (int)threadIdx.x;
        int64_t line = (TURNED ? term : at) + v / B::VECTORS,
                along = (TURNED ? at : term) + v % B::VECTORS * VECTOR;
        int64_t n = line < from.n_lines ? from.length - along : 0;
        raw[i] = load_raw<T, ALIGNED>(from.data + line * from.length + along, n);
    }
}
template <typename T, bool TURNED> DEVICE void store_box(T *box, const Raw<T> *raw) {
    typedef Box<TURNED> B;
#pragma unroll
    for (int i = 0; i < B::EACH; i++) {
        int v = i * TILES_THREADS + (int)threadIdx.x;
        store_raw(box + v / B::VECTORS * B::STRIDE + v % B::VECTORS * VECTOR, raw[i]);
    }
}

/* 16 rows (columns) from `at` on by 16 terms. Lane L gives the address of line L%8 of matrix L/8. Of the
 * first factor the matrices are: rows 0-7, rows 8-15, both again for terms 8-15. Of the second: columns 0-7
 * with terms 0-7, with terms 8-15, then columns 8-15. */
template <typename T, bool TURNED>
DEVICE void load_first_matrices(unsigned r[4], const T *box, int at, int term) {
    int lane = (int)threadIdx.x % WARP, row = at + lane % 16, k = term + lane / 16 * 8;
    if (TURNED) {
        row = at + lane / 8 % 2 * 8, k = term + lane / 16 * 8 + lane % 8;
        load_matrices_turned(r, shared_address(box + k * Box<true>::STRIDE + row));
    } else load_matrices(r, shared_address(box + row * Box<false>::STRIDE + k));
}
template <typename T, bool TURNED>
DEVICE void load_second_matrices(unsigned r[4], const T *box, int at, int term) {
    int lane = (int)threadIdx.x % WARP, column = at + lane / 16 * 8 + lane % 8, k = term + lane / 8 % 2 * 8;
    if (TURNED) {
        column = at + lane / 16 * 8, k = term + lane / 8 % 2 * 8 + lane % 8;
        load_matrices_turned(r, shared_address(box + k * Box<true>::STRIDE + column));
    } else load_matrices(r, shared_address(box + column * Box<false>::STRIDE + k));
}

template <typename T, bool TURNED_A, bool TURNED_B>
DEVICE void multiply_boxes(float sum[ROW_BLOCKS][COLUMN_BLOCKS][4], const T *a, const T *b, int row,
                           int column) {
#pragma unroll
    for (int k = 0; k < TERMS; k += 16) {
        unsigned first[ROW_BLOCKS][4];
#pragma unroll
        for (int i = 0; i < ROW_BLOCKS; i++) load_first_matrices<T, TURNED_A>(first[i], a, row + i * 16, k);
#pragma unroll
        for (int j = 0; j < COLUMN_BLOCKS; j += 2) {
            unsigned second[4];
            load_second_matrices<T, TURNED_B>(second, b, column + j * 8, k);
#pragma unroll
            for (int i = 0; i < ROW_BLOCKS; i++) {
                multiply_add(sum[i][j], first[i], second[0], second[1], T());
                multiply_add(sum[i][j + 1], first[i], second[2], second[3], T());
            }
        }
    }
}

template <typename T, GroupedKind KIND, bool ALIGNED>
static __global__ void __launch_bounds__(TILES_THREADS) tiles_kernel(const __grid_constant__ TilesCall c) {
    constexpr bool TURNED_A = KIND == GROUPED_WEIGHT, TURNED_B = KIND != GROUPED_FORWARD;
    typedef Box<TURNED_A> A;
    typedef Box<TURNED_B> B;
    __shared__ alignas(16) T a[2][A::LINES * A::STRIDE], b[2][B::LINES * B::STRIDE];
    Tile tile;
    if (!find_tile<TILE>(c, tile)) return;
    Lines<T> first = first_factor<T, KIND>(c.g, tile), second = second_factor<T, KIND>(c.g, tile);
    int64_t row = KIND == GROUPED_WEIGHT ? tile.row : tile.row - tile.first, terms = n_terms<KIND>(c.g, tile);
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int own_row = warp / 4 * WARP_ROWS, own_column = warp % 4 * WARP_COLUMNS;
    float sum[ROW_BLOCKS][COLUMN_BLOCKS][4] = {};
    Raw<T> raw_a[A::EACH], raw_b[B::EACH];
    load_box<T, TURNED_A, ALIGNED>(raw_a, first, row, 0);
    load_box<T, TURNED_B, ALIGNED>(raw_b, second, tile.column, 0);
    for (int64_t k = 0, i = 0; k < terms; k += TERMS, i ^= 1) {
        store_box<T, TURNED_A>(a[i], raw_a);
        store_box<T, TURNED_B>(b[i], raw_b);
        __syncthreads(); /* who still reads the other boxes writes to none before the next one */
        if (k + TERMS < terms) {
            load_box<T, TURNED_A, ALIGNED>(raw_a, first, row, k + TERMS);
            load_box<T, TURNED_B, ALIGNED>(raw_b, second, tile.column, k + TERMS);
        }
        multiply_boxes<T, TURNED_A, TURNED_B>(sum, a[i], b[i], own_row, own_column);
    }
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS * COLUMN_BLOCKS * 4; i++) {
        int at_row = own_row + i / (COLUMN_BLOCKS * 4) * 16 + lane / 4 + i / 2 % 2 * 8,
            at_column = own_column + i / 4 % COLUMN_BLOCKS * 8 + lane % 4 * 2 + i % 2;
        end_element<T, KIND>(c, tile, tile.row + at_row, tile.column + at_column,
                             sum[i / (COLUMN_BLOCKS * 4)][i / 4 % COLUMN_BLOCKS][i % 4]);
    }
}

/* ---- f32 ---- */

enum { FLOAT_TILE = 64, FLOAT_TERMS = 16, FLOAT_EACH = 4, FLOAT_STRIDE = FLOAT_TILE + 4 };

/* Terms are lines in shared memory whatever they are in memory. */
template <bool TURNED>
DEVICE void load_floats(float box[FLOAT_TERMS][FLOAT_STRIDE], const Lines<float> &from, int64_t at,
                        int64_t term) {
#pragma unroll
    for (int i = 0; i < FLOAT_TILE * FLOAT_TERMS / TILES_THREADS; i++) {
        int n = i * TILES_THREADS + (int)threadIdx.x;
        int place = TURNED ? n % FLOAT_TILE : n / FLOAT_TERMS, k = TURNED ? n / FLOAT_TILE : n % FLOAT_TERMS;
        int64_t line = TURNED ? term + k : at + place, along = TURNED ? at + place : term + k;
        bool is_there = line < from.n_lines && along < from.length;
        box[k][place] = is_there ? from.data[line * from.length + along] : 0.0f;
    }
}

template <GroupedKind KIND>
static __global__ void __launch_bounds__(TILES_THREADS) floats_kernel(const __grid_constant__ TilesCall c) {
    constexpr bool TURNED_A = KIND == GROUPED_WEIGHT, TURNED_B = KIND != GROUPED_FORWARD;
    __shared__ float a[FLOAT_TERMS][FLOAT_STRIDE], b[FLOAT_TERMS][FLOAT_STRIDE];
    Tile tile;
    if (!find_tile<FLOAT_TILE>(c, tile)) return;
    Lines<float> first = first_factor<float, KIND>(c.g, tile), second = second_factor<float, KIND>(c.g, tile);
    int64_t row = KIND == GROUPED_WEIGHT ? tile.row : tile.row - tile.first, terms = n_terms<KIND>(c.g, tile);
    int own_row = (int)threadIdx.x / 16 * FLOAT_EACH, own_column = (int)threadIdx.x % 16 * FLOAT_EACH;
    float sum[FLOAT_EACH][FLOAT_EACH] = {};
    for (int64_t term = 0; term < terms; term += FLOAT_TERMS) {
        load_floats<TURNED_A>(a, first, row, term);
        load_floats<TURNED_B>(b, second, tile.column, term);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < FLOAT_TERMS; k++) {
#pragma unroll
            for (int i = 0; i < FLOAT_EACH * FLOAT_EACH; i++)
                sum[i / FLOAT_EACH][i % FLOAT_EACH] =
                    fmaf(a[k][own_row + i / FLOAT_EACH], b[k][own_column + i % FLOAT_EACH],
                         sum[i / FLOAT_EACH][i % FLOAT_EACH]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < FLOAT_EACH * FLOAT_EACH; i++)
        end_element<float, KIND>(c, tile, tile.row + own_row + i / FLOAT_EACH,
                                 tile.column + own_column + i % FLOAT_EACH,
                                 sum[i / FLOAT_EACH][i % FLOAT_EACH]);
}

/* ---- on the host's side ---- */

/* Blocks for every tile that there could be. */
static unsigned n_blocks(TilesCall *c, int64_t tile) {
    const GroupedGemm *g = &c->g;
    c->columns = g->kind == GROUPED_FORWARD ? g->outputs : g->inputs;
    c->n_columns = (int)((c->columns + tile - 1) / tile);
    int64_t n_rows = g->kind == GROUPED_WEIGHT ? g->n_experts * ((g->outputs + tile - 1) / tile)
                                               : g->rows / tile + g->n_experts;
    return (unsigned)(n_rows * c->n_columns);
}

template <GroupedKind KIND>
static void launch_floats(const CudaContext *context, const TilesCall *c, unsigned blocks) {
    floats_kernel<KIND><<<blocks, TILES_THREADS, 0, context->stream>>>(*c);
}

template <typename T, GroupedKind KIND>
static void launch_tiles(const CudaContext *context, const TilesCall *c, unsigned blocks) {
    if (c->aligned) tiles_kernel<T, KIND, true><<<blocks, TILES_THREADS, 0, context->stream>>>(*c);
    else tiles_kernel<T, KIND, false><<<blocks, TILES_THREADS, 0, context->stream>>>(*c);
}

template <GroupedKind KIND>
static void launch_kind(const CudaContext *context, const TilesCall *c, unsigned blocks) {
    if (c->g.dtype == DTYPE_F32) launch_floats<KIND>(context, c, blocks);
    else if (c->g.dtype == DTYPE_BF16) launch_tiles<bf16, KIND>(context, c, blocks);
    else launch_tiles<f16, KIND>(context, c, blocks);
}

extern "C" Status cuda_grouped_tiles(CudaContext *context, const GroupedGemm *gemm, Error *error) {
    TilesCall c = {};
    c.g = *gemm;
    c.aligned = rows_aligned(gemm->a, gemm->inputs) && rows_aligned(gemm->b, gemm->outputs);
    unsigned blocks = n_blocks(&c, gemm->dtype == DTYPE_F32 ? (int)FLOAT_TILE : (int)TILE);
    if (!blocks) return STATUS_OK;
    if (gemm->kind == GROUPED_FORWARD) launch_kind<GROUPED_FORWARD>(context, &c, blocks);
    else if (gemm->kind == GROUPED_INPUT) launch_kind<GROUPED_INPUT>(context, &c, blocks);
    else launch_kind<GROUPED_WEIGHT>(context, &c, blocks);
    return cuda_launched("grouped GEMM", error);
}
