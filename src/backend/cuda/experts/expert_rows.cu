/* expert_gather, expert_scatter and their backwards: rows on their way to the experts and back.
 *
 * Floor: the bytes of what is read and written over the copy bandwidth: for K choices a token, each of the
 * four moves K + 1 times the bytes of x, and the backward of scatter 2·K + 1 times.
 *
 * A warp has a row, of tokens or of experts, and takes it in vectors of 16 bytes. Sums over a token's choices
 * are in f32, in the order of the choices. Rows behind offsets[E] are neither read nor written: `source` says
 * -1 there. */
#include "backend/cuda/runtime/device.cuh"

enum { MOVE_THREADS = 256, MOVE_WARPS = MOVE_THREADS / WARP, STRIP = WARP * VECTOR };

typedef struct {
    int64_t n_tokens, n_rows, channels;
    int n_slots; /* of a token */
    const int32_t *slot, *source;
    const float *gates; /* NULL: all 1 */
} MoveShape;

DEVICE int64_t row_of_warp(void) {
    return (int64_t)blockIdx.x * MOVE_WARPS + threadIdx.x / WARP;
}
DEVICE int64_t first_channel(void) {
    return (int64_t)(threadIdx.x % WARP) * VECTOR;
}

/* ---- rows[m] = x[source[m] / S] ---- */

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(MOVE_THREADS)
    gather_kernel(const T *x, T *rows, const MoveShape s, bool add) {
    enum { AT_ONCE = 4 };
    int64_t m = row_of_warp();
    int source = m < s.n_rows ? s.source[m] : -1;
    if (source < 0) return;
    const T *from = x + source / s.n_slots * s.channels;
    T *to = rows + m * s.channels;
    for (int64_t c = first_channel(); c < s.channels; c += AT_ONCE * STRIP) {
        Raw<T> raw[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            raw[j] = load_raw<T, ALIGNED>(from + c + j * STRIP, s.channels - c - j * STRIP);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (c + j * STRIP >= s.channels) break;
            float v[VECTOR];
            unpack(raw[j], v);
            write8(to + c + j * STRIP, s.channels - c - j * STRIP, ALIGNED, v, add);
        }
    }
}

/* ---- y[n] = Σ over s of gates[n,s] · rows[slot[n,s]] ---- */

/* The row and the gate of the choices that there are, 32 of them at a time: a lane has one, and all go
 * through those that have a row. */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(MOVE_THREADS)
    sum_kernel(const T *rows, T *y, const MoveShape s, bool add) {
    int64_t n = row_of_warp();
    int lane = (int)threadIdx.x % WARP;
    if (n >= s.n_tokens) return;
    for (int64_t base = 0; base < s.channels; base += STRIP) {
        int64_t c = base + first_channel();
        float sum[VECTOR] = {0};
        for (int first = 0; first < s.n_slots; first += WARP) {
            int64_t at = n * s.n_slots + first + lane;
            bool is_slot = first + lane < s.n_slots;
            int slot = is_slot ? s.slot[at] : -1;
            float gate = is_slot && s.gates ? s.gates[at] : 1.0f;
            unsigned there = __ballot_sync(0xFFFFFFFFu, slot >= 0);
            for (; there; there &= there - 1) {
                int from = __ffs((int)there) - 1;
                int64_t row = __shfl_sync(0xFFFFFFFFu, slot, from);
                float weight = __shfl_sync(0xFFFFFFFFu, gate, from), v[VECTOR];
                load8(rows + row * s.channels + c, s.channels - c, ALIGNED, v);
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum[k] = fmaf(weight, v[k], sum[k]);
            }
        }
        if (c < s.channels) write8(y + n * s.channels + c, s.channels - c, ALIGNED, sum, add);
    }
}

/* ---- dmade[m] = gate · dy[n], dgates[n,s] = dy[n] · made[m]; where a choice has no row, dgates is 0 ---- */

typedef struct {
    const void *dy, *made;
    void *dmade;
    float *dgates;
    bool add_made, add_gates;
    unsigned row_blocks; /* the blocks behind them have the choices without a row */
} ScatterGradients;

DEVICE void end_lost_gates(const MoveShape &s, const ScatterGradients &g) {
    int64_t i = (int64_t)(blockIdx.x - g.row_blocks) * MOVE_THREADS + threadIdx.x;
    if (g.dgates && !g.add_gates && i < s.n_tokens * s.n_slots && s.slot[i] < 0) g.dgates[i] = 0.0f;
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(MOVE_THREADS)
    scatter_backward_kernel(const MoveShape s, const ScatterGradients g) {
    if (blockIdx.x >= g.row_blocks) {
        end_lost_gates(s, g);
        return;
    }
    int64_t m = row_of_warp();
    int source = m < s.n_rows ? s.source[m] : -1;
    if (source < 0) return;
    const T *dy = (const T *)g.dy + source / s.n_slots * s.channels,
            *made = (const T *)g.made + m * s.channels;
    T *dmade = (T *)g.dmade + m * s.channels;
    float gate = s.gates[source], dot = 0.0f;
    for (int64_t c = first_channel(); c < s.channels; c += STRIP) {
        float d[VECTOR], v[VECTOR];
        load8(dy + c, s.channels - c, ALIGNED, d);
        load8(made + c, g.dgates ? s.channels - c : 0, ALIGNED, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) dot = fmaf(d[k], v[k], dot), d[k] *= gate;
        if (g.dmade) write8(dmade + c, s.channels - c, ALIGNED, d, g.add_made);
    }
    dot = warp_sum(dot);
    if (g.dgates && threadIdx.x % WARP == 0) write_element(g.dgates + source, dot, g.add_gates);
}

/* ---- on the host's side ---- */

static MoveShape move_shape(const Tensor *tokens, const Tensor *rows, const Tensor *slots) {
    MoveShape s = {};
    s.n_tokens = shape_rows(tokens->shape);
    s.n_rows = shape_rows(rows->shape);
    s.channels = shape_columns(rows->shape);
    s.n_slots = (int)shape_columns(slots->shape);
    return s;
}

static bool are_aligned(const MoveShape *s, const void *a, const void *b) {
    return rows_aligned(a, s->channels) && is_aligned(b);
}

extern "C" Status cuda_expert_gather(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0], *rows = call->node->output[0];
    MoveShape s = move_shape(x, rows, call->node->input[1]);
    s.source = (const int32_t *)call->in[2];
    unsigned blocks = blocks_for(s.n_rows, MOVE_WARPS);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(x, T, {
        auto kernel =
            are_aligned(&s, call->in[0], call->out[0]) ? gather_kernel<T, true> : gather_kernel<T, false>;
        kernel<<<blocks, MOVE_THREADS, 0, cuda_context(call)->stream>>>((const T *)call->in[0],
                                                                        (T *)call->out[0], s, call->add[0]);
    });
    return cuda_launched("expert gather", error);
}

/* Sums over a token's choices: of the scatter, and of the gather's backward. */
static Status sum_rows(const KernelCall *call, const MoveShape *s, Error *error) {
    const Tensor *rows = call->node->input[0];
    unsigned blocks = blocks_for(s->n_tokens, MOVE_WARPS);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(rows, T, {
        auto kernel = are_aligned(s, call->in[0], call->out[0]) ? sum_kernel<T, true> : sum_kernel<T, false>;
        kernel<<<blocks, MOVE_THREADS, 0, cuda_context(call)->stream>>>((const T *)call->in[0],
                                                                        (T *)call->out[0], *s, call->add[0]);
    });
    return cuda_launched("sums of experts' rows", error);
}

extern "C" Status cuda_expert_gather_backward(const KernelCall *call, Error *error) {
    MoveShape s = move_shape(call->node->output[0], call->node->input[0], call->node->input[1]);
    s.slot = (const int32_t *)call->in[1];
    return sum_rows(call, &s, error);
}

extern "C" Status cuda_expert_scatter(const KernelCall *call, Error *error) {
    MoveShape s = move_shape(call->node->output[0], call->node->input[0], call->node->input[2]);
    s.gates = (const float *)call->in[1];
    s.slot = (const int32_t *)call->in[2];
    return sum_rows(call, &s, error);
}

extern "C" Status cuda_expert_scatter_backward(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0];
    MoveShape s = move_shape(dy, call->node->input[1], call->node->input[3]);
    s.gates = (const float *)call->in[2];
    s.slot = (const int32_t *)call->in[3], s.source = (const int32_t *)call->in[4];
    ScatterGradients g = {call->in[0],
                          call->in[1],
                          call->out[0],
                          (float *)call->out[1],
                          call->add[0],
                          call->add[1],
                          blocks_for(s.n_rows, MOVE_WARPS)};
    unsigned blocks = g.row_blocks + (g.dgates ? blocks_for(s.n_tokens * s.n_slots, MOVE_THREADS) : 0);
    bool aligned = are_aligned(&s, g.dy, g.made) && is_aligned(g.dmade);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(dy, T, {
        auto kernel = aligned ? scatter_backward_kernel<T, true> : scatter_backward_kernel<T, false>;
        kernel<<<blocks, MOVE_THREADS, 0, cuda_context(call)->stream>>>(s, g);
    });
    return cuda_launched("expert scatter, backward", error);
}
