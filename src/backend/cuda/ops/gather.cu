/* gather: y (M,C) = x[rows (M)].
 *
 * Floor: 2·M·C elements over the copy bandwidth; in practice a launch, since M is the number of sequences
 * that generate a token. A warp takes a row. A row that is not there is zero and is reported (see
 * CudaFault). */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256, ROWS = THREADS / WARP };

template <typename T>
static __global__ void gather_kernel(const T *x, const int32_t *rows, T *y, int64_t n_rows, int64_t count,
                                     int64_t columns, bool aligned, CudaFault *fault) {
    int64_t m = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (m >= count) return;
    int64_t row = rows[m];
    bool is_there = row >= 0 && row < n_rows;
    if (!is_there && lane == 0) report(fault, FAULT_ROW, row, n_rows);
    for (int64_t c = lane * VECTOR; c < columns; c += WARP * VECTOR) {
        float v[VECTOR] = {0};
        if (is_there) load8(x + row * columns + c, columns - c, aligned, v);
        store8(y + m * columns + c, columns - c, aligned, v);
    }
}

extern "C" Status cuda_gather(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0];
    if (!same_types(x, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t n_rows = shape_rows(x->shape), columns = shape_columns(x->shape),
            count = tensor_count(call->node->input[1]);
    if (!count) return STATUS_OK;
    bool aligned = rows_aligned(call->in[0], columns) && is_aligned(call->out[0]);
    const CudaContext *context = cuda_context(call);
    FOR_TYPE(x, T,
             gather_kernel<T><<<blocks_for(count, ROWS), THREADS, 0, context->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], n_rows, count,
                 columns, aligned, context->device_fault));
    return cuda_launched("gather", error);
}
