/* depth_score: score and guess of every row, two products over its channels.
 *
 * Floor: x over the copy bandwidth, 2 bytes an element in 16 bits. A warp takes a row, 8 elements a lane at a
 * time; the two vectors that it is multiplied with stay in the caches. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256, ROWS = THREADS / WARP };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    score_kernel(const T *x, const T *router, const T *predictor, const T *bias, float *score, float *guess,
                 int64_t rows, int64_t columns, bool aligned, bool add_score, bool add_guess) {
    int64_t n = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (n >= rows) return;
    float r = 0.0f, g = 0.0f;
    for (int64_t c = lane * VECTOR; c < columns; c += WARP * VECTOR) {
        float v[VECTOR], w[VECTOR], p[VECTOR];
        load8(x + n * columns + c, columns - c, aligned, v);
        load8(router + c, columns - c, aligned, w);
        load8(predictor + c, columns - c, aligned, p);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            r = fmaf(v[k], w[k], r);
            g = fmaf(v[k], p[k], g);
        }
    }
    r = warp_sum(r);
    g = warp_sum(g);
    if (lane) return;
    write_element(score + n, r, add_score);
    write_element(guess + n, g + as_float(*bias), add_guess);
}

extern "C" Status cuda_depth_score(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    for (int i = 1; i < 4; i++)
        if (!same_types(x, call->node->input[i])) return cuda_unsupported(call, call->node->input[i], error);
    int64_t rows = shape_rows(x->shape), columns = shape_columns(x->shape);
    if (!rows) return STATUS_OK;
    bool aligned = rows_aligned(call->in[0], columns) && is_aligned(call->in[1]) && is_aligned(call->in[2]);
    FOR_TYPE(x, T,
             score_kernel<T><<<blocks_for(rows, ROWS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const T *)call->in[1], (const T *)call->in[2],
                 (const T *)call->in[3], (float *)call->out[0], (float *)call->out[1], rows, columns, aligned,
                 call->add[0], call->add[1]));
    return cuda_launched("depth_score", error);
}
