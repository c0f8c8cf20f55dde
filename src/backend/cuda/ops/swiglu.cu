/* swiglu: y (N,F) = silu(gate) · value of the two halves of each row of x (N,2F), and its backward.
 *
 * Floor: 3 F-wide rows forward, 5 backward over the copy bandwidth: 6 and 10 bytes an element of y in 16
 * bits. A thread takes 8 elements of the gate and the 8 of the value that belong to them, and reads both
 * before it writes either, so dx may lie on x. */
#include "backend/cuda/ops/gelu.cuh"
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

typedef struct {
    int64_t rows, columns, vectors; /* columns: F; vectors of a row of F */
    bool aligned;
} Halves;

static Halves halves_of(const Tensor *gate, const void *a, const void *b, const void *c) {
    int64_t columns = shape_columns(gate->shape);
    Halves h = {shape_rows(gate->shape), columns, vectors_for(columns),
                columns % VECTOR == 0 && is_aligned(a) && is_aligned(b) && is_aligned(c)};
    return h;
}

/* Thread -> row and first column; false behind the end. */
DEVICE bool place_of(const Halves &h, int64_t *row, int64_t *column) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    *row = i / h.vectors;
    *column = (i - *row * h.vectors) * VECTOR;
    return *row < h.rows;
}

template <typename T> static __global__ void swiglu_kernel(const T *x, T *y, Halves h) {
    int64_t row, column;
    if (!place_of(h, &row, &column)) return;
    int64_t n = h.columns - column;
    float gate[VECTOR], value[VECTOR];
    load8(x + row * 2 * h.columns + column, n, h.aligned, gate);
    load8(x + row * 2 * h.columns + h.columns + column, n, h.aligned, value);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float rest;
        value[k] *= gate[k] * sigmoid(gate[k], &rest);
    }
    store8(y + row * h.columns + column, n, h.aligned, value);
}

extern "C" Status cuda_swiglu(const KernelCall *call, Error *error) {
    const Tensor *y = call->node->output[0];
    if (!same_types(y, call->node->input[0])) return cuda_unsupported(call, y, error);
    Halves h = halves_of(y, call->in[0], call->out[0], NULL);
    if (!h.rows || !h.vectors) return STATUS_OK;
    FOR_TYPE(y, T,
             swiglu_kernel<T>
             <<<blocks_for(h.rows * h.vectors, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (T *)call->out[0], h));
    return cuda_launched("swiglu", error);
}

template <typename T>
static __global__ void backward_kernel(const T *dy, const T *x, T *dx, Halves h, bool add) {
    int64_t row, column;
    if (!place_of(h, &row, &column)) return;
    int64_t n = h.columns - column, first = row * 2 * h.columns + column, second = first + h.columns;
    float gate[VECTOR], value[VECTOR], g[VECTOR];
    load8(x + first, n, h.aligned, gate);
    load8(x + second, n, h.aligned, value);
    load8(dy + row * h.columns + column, n, h.aligned, g);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float rest, s = sigmoid(gate[k], &rest), dgate = g[k] * value[k] * s * fmaf(gate[k], rest, 1.0f);
        value[k] = g[k] * gate[k] * s;
        gate[k] = dgate;
    }
    write8(dx + first, n, h.aligned, gate, add);
    write8(dx + second, n, h.aligned, value, add);
}

extern "C" Status cuda_swiglu_backward(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0];
    if (!same_types(dy, call->node->input[1]) || !same_types(dy, call->node->output[0])) {
        return cuda_unsupported(call, call->node->output[0], error);
    }
    Halves h = halves_of(dy, call->in[0], call->in[1], call->out[0]);
    if (!h.rows || !h.vectors) return STATUS_OK;
    FOR_TYPE(dy, T,
             backward_kernel<T>
             <<<blocks_for(h.rows * h.vectors, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const T *)call->in[1], (T *)call->out[0], h, call->add[0]));
    return cuda_launched("swiglu_backward", error);
}
