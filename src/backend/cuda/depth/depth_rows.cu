/* depth_gather, depth_scatter and their backward: rows out of the stream, and back into it.
 *
 * Floor: the chosen rows, read and written, over the copy bandwidth; where the stream stays in its place,
 * rows that go by are not touched. A warp takes a row, chosen ones in their order: 8 elements a lane at a
 * time. */
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/depth/depth.h"
}

enum { THREADS = 256, ROWS = THREADS / WARP };

typedef struct {
    int64_t first_row, N, B, T, K, C;
    const int32_t *rows, *slot; /* (B,K), (B,T) */
    bool aligned, add;
} Shapes;

static Shapes shapes_of(const KernelCall *call, const Tensor *x, int rows) {
    const Node *node = call->node;
    Shapes s = {((const DepthRowsAttributes *)node->attributes)->first_row,
                shape_rows(x->shape),
                node->input[rows]->shape.dim[0],
                node->input[rows + 1]->shape.dim[1],
                node->input[rows]->shape.dim[1],
                shape_columns(x->shape),
                (const int32_t *)call->in[rows],
                (const int32_t *)call->in[rows + 1],
                shape_columns(x->shape) % VECTOR == 0,
                call->add[0]};
    return s;
}

DEVICE int64_t warp_number(void) {
    return (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
}

/* The row of x behind chosen row i; -1: another rank's. */
DEVICE int64_t row_of(const Shapes &s, int64_t i) {
    int64_t row = i / s.K * s.T + s.rows[i] - s.first_row;
    return row >= 0 && row < s.N ? row : -1;
}

/* The chosen row that row n of x is; -1: none. */
DEVICE int64_t chosen_of(const Shapes &s, int64_t n) {
    int64_t at = s.first_row + n;
    int32_t slot = s.slot[at];
    return slot < 0 ? -1 : at / s.T * s.K + slot;
}

/* ---- gather ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    gather_kernel(const T *x, const float *score, T *chosen, float *gate, bool add_gate, Shapes s) {
    int64_t i = warp_number();
    int lane = (int)threadIdx.x % WARP;
    if (i >= s.B * s.K) return;
    int64_t row = row_of(s, i);
    if (lane == 0) write_element(gate + i, score[i / s.K * s.T + s.rows[i]], add_gate);
    for (int64_t c = lane * VECTOR; c < s.C; c += WARP * VECTOR) {
        float v[VECTOR] = {0};
        if (row >= 0) load8(x + row * s.C + c, s.C - c, s.aligned, v);
        write8(chosen + i * s.C + c, s.C - c, s.aligned, v, s.add);
    }
}

extern "C" Status cuda_depth_gather(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    Shapes s = shapes_of(call, x, 2);
    s.aligned = s.aligned && is_aligned(call->in[0]) && is_aligned(call->out[0]);
    if (!s.B) return STATUS_OK;
    FOR_TYPE(x, T,
             gather_kernel<T><<<blocks_for(s.B * s.K, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const float *)call->in[1], (T *)call->out[0], (float *)call->out[1],
                 call->add[1], s));
    return cuda_launched("depth_gather", error);
}

/* dx[row] = or += dchosen[j] + dgate[j]·router. Warps take chosen rows where all they do is to add, else rows
 * of x, since those that went by become 0. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    gather_backward_kernel(const T *dchosen, const float *dgate, const T *router, T *dx, Shapes s) {
    int64_t number = warp_number();
    int lane = (int)threadIdx.x % WARP;
    if (number >= (s.add ? s.B * s.K : s.N)) return;
    int64_t j = s.add ? number : chosen_of(s, number), row = s.add ? row_of(s, number) : number;
    if (row < 0) return;
    float d = j >= 0 && dgate ? dgate[j] : 0.0f;
    for (int64_t c = lane * VECTOR; c < s.C; c += WARP * VECTOR) {
        float v[VECTOR] = {0}, w[VECTOR] = {0};
        if (j >= 0 && dchosen) load8(dchosen + j * s.C + c, s.C - c, s.aligned, v);
        if (j >= 0 && dgate) load8(router + c, s.C - c, s.aligned, w);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = fmaf(d, w[k], v[k]);
        write8(dx + row * s.C + c, s.C - c, s.aligned, v, s.add);
    }
}

extern "C" Status cuda_depth_gather_backward(const KernelCall *call, Error *error) {
    const Tensor *dx = call->node->output[0];
    if (!same_types(dx, call->node->input[0]) || !same_types(dx, call->node->input[2]))
        return cuda_unsupported(call, dx, error);
    Shapes s = shapes_of(call, dx, 3);
    s.aligned = s.aligned && is_aligned(call->in[0]) && is_aligned(call->in[2]) && is_aligned(call->out[0]);
    int64_t n_rows = s.add ? s.B * s.K : s.N;
    if (!n_rows) return STATUS_OK;
    FOR_TYPE(dx, T,
             gather_backward_kernel<T><<<blocks_for(n_rows, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const float *)call->in[1], (const T *)call->in[2],
                 (T *)call->out[0], s));
    return cuda_launched("depth_gather_backward", error);
}

/* ---- scatter ---- */

/* Warps take chosen rows where y lies on x, else rows of x. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    scatter_kernel(const T *x, const T *made, const float *gate, T *y, bool in_place, Shapes s) {
    int64_t number = warp_number();
    int lane = (int)threadIdx.x % WARP;
    if (number >= (in_place ? s.B * s.K : s.N)) return;
    int64_t j = in_place ? number : chosen_of(s, number), row = in_place ? row_of(s, number) : number;
    if (row < 0) return;
    float r = j >= 0 ? gate[j] : 0.0f;
    for (int64_t c = lane * VECTOR; c < s.C; c += WARP * VECTOR) {
        float v[VECTOR], f[VECTOR] = {0};
        load8(x + row * s.C + c, s.C - c, s.aligned, v);
        if (j >= 0) load8(made + j * s.C + c, s.C - c, s.aligned, f);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = fmaf(r, f[k], v[k]);
        write8(y + row * s.C + c, s.C - c, s.aligned, v, s.add);
    }
}

extern "C" Status cuda_depth_scatter(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->input[1]) || !same_types(x, call->node->output[0]))
        return cuda_unsupported(call, call->node->output[0], error);
    Shapes s = shapes_of(call, x, 3);
    s.aligned = s.aligned && is_aligned(call->in[0]) && is_aligned(call->in[1]) && is_aligned(call->out[0]);
    /* Slots, not rows, say who passes where rows beyond them are named too (depth_admit). */
    bool in_place = call->in[0] == call->out[0] && !call->add[0] && s.K < s.T;
    int64_t n_rows = in_place ? s.B * s.K : s.N;
    if (!n_rows) return STATUS_OK;
    FOR_TYPE(x, T,
             scatter_kernel<T><<<blocks_for(n_rows, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const T *)call->in[1], (const float *)call->in[2],
                 (T *)call->out[0], in_place, s));
    return cuda_launched("depth_scatter", error);
}

/* dmade[j] = gate[j]·dy[row] and dgate[j] = dy[row]·made[j]. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    scatter_backward_kernel(const T *dy, const T *made, const float *gate, T *dmade, float *dgate,
                            bool add_gate, Shapes s) {
    int64_t i = warp_number();
    int lane = (int)threadIdx.x % WARP;
    if (i >= s.B * s.K) return;
    int64_t row = row_of(s, i);
    float r = gate[i], sum = 0.0f;
    for (int64_t c = lane * VECTOR; c < s.C; c += WARP * VECTOR) {
        float v[VECTOR] = {0}, f[VECTOR];
        if (row >= 0) load8(dy + row * s.C + c, s.C - c, s.aligned, v);
        load8(made + i * s.C + c, s.C - c, s.aligned, f);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            sum = fmaf(v[k], f[k], sum);
            v[k] *= r;
        }
        if (dmade) write8(dmade + i * s.C + c, s.C - c, s.aligned, v, s.add);
    }
    sum = warp_sum(sum);
    if (lane == 0 && dgate) write_element(dgate + i, sum, add_gate);
}

extern "C" Status cuda_depth_scatter_backward(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0];
    if (!same_types(dy, call->node->input[1]) || !same_types(dy, call->node->output[0]))
        return cuda_unsupported(call, dy, error);
    Shapes s = shapes_of(call, dy, 3);
    s.aligned = s.aligned && is_aligned(call->in[0]) && is_aligned(call->in[1]) && is_aligned(call->out[0]);
    if (!s.B) return STATUS_OK;
    FOR_TYPE(dy, T,
             scatter_backward_kernel<T>
             <<<blocks_for(s.B * s.K, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const T *)call->in[1], (const float *)call->in[2],
                 (T *)call->out[0], (float *)call->out[1], call->add[1], s));
    return cuda_launched("depth_scatter_backward", error);
}
