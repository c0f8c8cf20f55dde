/* The epilogue of a tile of grouped_sm90.cu.
 *
 * The tensor cores give a thread two columns of every 8, for two rows. Four lanes with the same rows exchange
 * pairs so that each has 8 neighbours of every 32 columns (turn_quad, which is its own inverse): what is read
 * or written beside the sums is whole vectors. Nothing goes through shared memory, which the other group's
 * GEMMs need. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_GROUPED_EPILOGUE_CUH
#define PGPT_BACKEND_CUDA_EXPERTS_GROUPED_EPILOGUE_CUH

#include "backend/cuda/experts/grouped_warpgroup.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { SPAN = 32, SPANS = PANEL / SPAN, HALF = SPANS / 2 }; /* columns among which lanes exchange */

/* Of four lanes, lane q's word i becomes lane i's word q. */
DEVICE void turn_quad(unsigned word[4], int lane) {
    bool odd = lane & 1, upper = lane & 2;
#    pragma unroll
    for (int i = 0; i < 4; i += 2) {
        unsigned got = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[i] : word[i + 1], 1);
        word[i] = odd ? got : word[i], word[i + 1] = odd ? word[i + 1] : got;
    }
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned got = __shfl_xor_sync(0xFFFFFFFFu, upper ? word[i] : word[i + 2], 2);
        word[i] = upper ? got : word[i], word[i + 2] = upper ? word[i + 2] : got;
    }
}

/* Where this lane's vectors are: 8 columns from `column` on of every 32, of a row and the one 8 below it. */
typedef struct {
    int64_t at; /* of the first, in elements */
    int64_t next_row;
    int rows8, columns; /* rows 8 apart, and columns from the first one on, that are there */
} Part;

DEVICE Part part_of(const WarpgroupCall &c, const Work &w, const Self &me) {
    int row = w.row + me.group * GROUP_ROWS + me.warp * 16 + me.lane / 4,
        column = w.column + me.lane % 4 * VECTOR;
    int64_t first = c.g.kind == GROUPED_WEIGHT ? w.expert * c.g.outputs : 0;
    return {(first + row) * c.columns + column, (int64_t)8 * c.columns, (w.row_end - row + 7) / 8,
            c.columns - column};
}
DEVICE bool is_there(const Part &part, int span, int half) {
    return half < part.rows8 && span * SPAN < part.columns;
}
DEVICE int64_t place_of(const Part &part, int span, int half) {
    return part.at + half * part.next_row + span * SPAN;
}

/* 16 bytes; zeros if they are not there. Without a branch, so that arithmetic goes on around it. */
DEVICE void load_vector(unsigned word[4], const void *from, bool is_there) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\n"
                 "mov.b32 %3, 0;\n@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "=&r"(word[0]), "=&r"(word[1]), "=&r"(word[2]), "=&r"(word[3])
                 : "l"(from), "r"((int)is_there)
                 : "memory");
}
DEVICE void store_vector(void *to, const unsigned word[4], bool is_there) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
        "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]), "r"((int)is_there)
        : "memory");
}

/* The sum of pair j of a span: the first of its two. */
DEVICE int sum_of(int span, int half, int j) {
    return (span * 4 + j) * 4 + half * 2;
}

template <typename T> DEVICE void store_pairs(T *to, unsigned word[4], const Self &me, bool is_there) {
    turn_quad(word, me.lane);
    store_vector(to, word, is_there);
}

/* ---- forward ---- */

DEVICE float2 bias_pair(const WarpgroupCall &c, int64_t at, bool is_there) {
    if (!c.bias.data || !is_there) return make_float2(0.0f, 0.0f);
    if (c.bias.dtype == DTYPE_F32) return *(const float2 *)((const float *)c.bias.data + at);
    unsigned pair = *(const unsigned *)((const uint16_t *)c.bias.data + at);
    return c.bias.dtype == DTYPE_BF16 ? pair_as_floats(pair, bf16()) : pair_as_floats(pair, f16());
}

template <Activation ACTIVATION> DEVICE float activated(float x) {
    return ACTIVATION == ACTIVATION_GELU_TANH ? gelu_tanh_rounded(x) : gelu_forward<ACTIVATION>(x);
}
template <Activation ACTIVATION> DEVICE float slope_of(float x) {
    return ACTIVATION == ACTIVATION_GELU_TANH ? gelu_tanh_slope_rounded(x) : gelu_backward<ACTIVATION>(x);
}

template <typename T, Activation ACTIVATION>
DEVICE void end_forward(const WarpgroupCall &c, const Work &w, const Self &me, const float sum[SUMS]) {
    Part part = part_of(c, w, me);
    int column = w.column + me.lane % 4 * 2; /* of the first pair */
#    pragma unroll
    for (int span = 0; span < SPANS; span++) {
        float2 bias[4];
#    pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = column + span * SPAN + j * 8;
            bias[j] = bias_pair(c, w.expert * c.g.outputs + at, at < c.columns);
        }
#    pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned before[4], word[4];
#    pragma unroll
            for (int j = 0; j < 4; j++) {
                int k = sum_of(span, half, j);
                float x = sum[k] + bias[j].x, y = sum[k + 1] + bias[j].y;
                before[j] = pair_of_floats(x, y, T());
                word[j] = pair_of_floats(activated<ACTIVATION>(x), activated<ACTIVATION>(y), T());
            }
            int64_t at = place_of(part, span, half);
            bool there = is_there(part, span, half);
            if (ACTIVATION != ACTIVATION_NONE && c.g.before)
                store_pairs((T *)c.g.before + at, before, me, there);
            store_pairs((T *)c.g.c + at, word, me, there);
        }
    }
}

/* ---- gradients in 16 bits: times a slope, added to what is there. Vectors of half a tile at a time ---- */

template <typename T, Activation ACTIVATION, bool ADD>
DEVICE void end_gradient(const WarpgroupCall &c, const Work &w, const Self &me, const float sum[SUMS]) {
    Part part = part_of(c, w, me);
#    pragma unroll
    for (int first = 0; first < SPANS; first += HALF) {
        unsigned before[HALF][2][4], old[HALF][2][4];
#    pragma unroll
        for (int i = 0; i < HALF * 2; i++) {
            int span = first + i / 2, half = i % 2;
            int64_t at = place_of(part, span, half);
            bool there = is_there(part, span, half);
            if (ACTIVATION != ACTIVATION_NONE)
                load_vector(before[i / 2][half], (const T *)c.g.before + at, there);
            if (ADD) load_vector(old[i / 2][half], (const T *)c.g.c + at, there);
        }
#    pragma unroll
        for (int i = 0; i < HALF * 2; i++) {
            int span = first + i / 2, half = i % 2;
            unsigned word[4];
            if (ACTIVATION != ACTIVATION_NONE) turn_quad(before[i / 2][half], me.lane);
            if (ADD) turn_quad(old[i / 2][half], me.lane);
#    pragma unroll
            for (int j = 0; j < 4; j++) {
                int k = sum_of(span, half, j);
                float x = sum[k], y = sum[k + 1];
                if (ACTIVATION != ACTIVATION_NONE) {
                    float2 at = pair_as_floats(before[i / 2][half][j], T());
                    x *= slope_of<ACTIVATION>(at.x), y *= slope_of<ACTIVATION>(at.y);
                }
                if (ADD) {
                    float2 there = pair_as_floats(old[i / 2][half][j], T());
                    x += there.x, y += there.y;
                }
                word[j] = pair_of_floats(x, y, T());
            }
            store_pairs((T *)c.g.c + place_of(part, span, half), word, me, is_there(part, span, half));
        }
    }
}

/* ---- gradients of weights in f32: pairs, of which four lanes have 32 bytes ---- */

DEVICE void add_floats(const WarpgroupCall &c, const Work &w, const Self &me, const float sum[SUMS]) {
    enum { AT_ONCE = 8 }; /* 8s of columns */
    Part part = part_of(c, w, me);
    int column = w.column + me.lane % 4 * 2;
    float *to = (float *)c.g.c + part.at - me.lane % 4 * (VECTOR - 2);
#    pragma unroll
    for (int first = 0; first < PANEL / 8; first += AT_ONCE) {
        float2 old[AT_ONCE][2];
#    pragma unroll
        for (int i = 0; i < AT_ONCE * 2; i++) {
            int at = (first + i / 2) * 8;
            bool there = (c.g.add || w.piece) && i % 2 < part.rows8 && column + at < c.columns;
            old[i / 2][i % 2] = make_float2(0.0f, 0.0f);
            if (there) old[i / 2][i % 2] = __ldcg((const float2 *)(to + i % 2 * part.next_row + at));
        }
#    pragma unroll
        for (int i = 0; i < AT_ONCE * 2; i++) {
            int j = first + i / 2, k = j * 4 + i % 2 * 2;
            float2 all = make_float2(old[i / 2][i % 2].x + sum[k], old[i / 2][i % 2].y + sum[k + 1]);
            if (i % 2 < part.rows8 && column + j * 8 < c.columns)
                *(float2 *)(to + i % 2 * part.next_row + j * 8) = all;
        }
    }
}

/* Other blocks have the other pieces of the tile: they are added in order, so that the bits do not depend on
 * who is first. A piece waits for one that was taken before it, so somebody always goes on. */
DEVICE unsigned *ticket_of(const WarpgroupCall &c, const Work &w, const Self &me) {
    int row_tiles = c.n_rows * c.unit_tiles;
    return c.tickets +
           ((w.expert * row_tiles + w.row / TILE_ROWS) * c.n_columns + w.column / PANEL) * GROUPS + me.group;
}

DEVICE void end_floats(const WarpgroupCall &c, const Work &w, const Self &me, const float sum[SUMS]) {
    if (w.n_pieces == 1) {
        add_floats(c, w, me, sum);
        return;
    }
    unsigned *ticket = ticket_of(c, w, me), done = 0;
    bool is_first_thread = me.warp == 0 && me.lane == 0;
    while (is_first_thread && w.piece && done != (unsigned)w.piece)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(done) : "l"(ticket) : "memory");
    group_meets(me.group);
    add_floats(c, w, me, sum);
    __threadfence();
    group_meets(me.group);
    if (!is_first_thread) return;
    unsigned next = w.piece + 1 == w.n_pieces ? 0u : (unsigned)w.piece + 1u;
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ticket), "r"(next) : "memory");
}

/* ---- all of them ---- */

template <typename T, GroupedKind KIND, Activation ACTIVATION>
DEVICE void end_tile(const WarpgroupCall &c, const Work &w, const Self &me, const float sum[SUMS]) {
    if constexpr (KIND == GROUPED_FORWARD) end_forward<T, ACTIVATION>(c, w, me, sum);
    else {
        if (KIND == GROUPED_WEIGHT && c.g.c_type == DTYPE_F32) end_floats(c, w, me, sum);
        else if (c.g.add) end_gradient<T, ACTIVATION, true>(c, w, me, sum);
        else end_gradient<T, ACTIVATION, false>(c, w, me, sum);
    }
}

#endif

#endif
