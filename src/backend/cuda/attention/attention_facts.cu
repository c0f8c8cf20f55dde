/* The facts of rows: a group of threads a row and head (attend.cuh), neighbouring groups having neighbouring
 * heads, so that rows are read as they lie. Floor over the copy bandwidth: dy and y, once. */
#include "backend/cuda/attention/attention_facts.h"

#include "backend/cuda/attention/attend.cuh"

#define LOG2_E 1.4426950408889634f

template <typename T, typename Y, int LANES>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    facts_kernel(const T *dy, const Y *y, const float *lse, float2 *facts, FactRows s, bool aligned) {
    int64_t n = (int64_t)blockIdx.x * (ATTEND_THREADS / LANES) + threadIdx.x / LANES,
            all = s.n_sequences * s.n_rows * s.n_heads;
    bool is_there = n < all;
    int64_t row = is_there ? n / s.n_heads : 0, h = is_there ? n % s.n_heads : 0;
    int c = (int)threadIdx.x % LANES * VECTOR, left = is_there ? s.head_size - c : 0;
    int64_t at = row * s.width + h * s.head_size + c;
    float g[VECTOR], out[VECTOR];
    load8(dy + at, left, aligned, g);
    load8(y + at, left, aligned, out);
    float sum = group_sum<LANES>(dot8(g, out));
    if (!is_there || threadIdx.x % LANES) return;
    int64_t to = (row / s.n_rows * s.n_heads + h) * s.n_rows + row % s.n_rows;
    facts[to] = make_float2(lse[to] == -INFINITY ? INFINITY : lse[to] * LOG2_E, sum);
}

Status attention_row_facts(const FactRows *s, const void *dy, const void *y, const float *lse, float *facts,
                           cudaStream_t stream, Error *error) {
    bool aligned = s->head_size % VECTOR == 0 && is_aligned(dy) && is_aligned(y);
    int64_t all = s->n_sequences * s->n_rows * s->n_heads;
    if (!all) return STATUS_OK;
    FOR_ELEMENTS(s->dtype, T, FOR_LANES(s->head_size, LANES, {
                     unsigned blocks = blocks_for(all, ATTEND_THREADS / LANES);
                     if (s->y_dtype == DTYPE_F32)
                         facts_kernel<T, float, LANES><<<blocks, ATTEND_THREADS, 0, stream>>>(
                             (const T *)dy, (const float *)y, lse, (float2 *)facts, *s, aligned);
                     else
                         facts_kernel<T, T, LANES><<<blocks, ATTEND_THREADS, 0, stream>>>(
                             (const T *)dy, (const T *)y, lse, (float2 *)facts, *s, aligned);
                 }));
    return cuda_launched("the backward of attention", error);
}

Status attention_facts(const AttentionShape *s, const AttentionMemory *m, cudaStream_t stream, Error *error) {
    const FactRows rows = {s->dtype,       s->dtype,   s->n_sequences, s->n_heads,
                           s->n_positions, s->y_width, s->head_size};
    return attention_row_facts(&rows, m->dy, m->y, m->lse, (float *)m->scratch, stream, error);
}
