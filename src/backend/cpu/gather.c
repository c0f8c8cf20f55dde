/* gather: y = x[rows]. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

Status cpu_gather(const KernelCall *call, Error *error) {
    const float *x = call->in[0];      /* (N,C) */
    const int32_t *rows = call->in[1]; /* (M) */
    float *y = call->out[0];           /* (M,C) */
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
    int64_t M = tensor_count(call->node->input[1]);
    for (int64_t m = 0; m < M; m++) {
        if (rows[m] >= 0 && rows[m] < N) continue;
        return error_failed(error, "gather: row %d of a tensor of %lld rows", rows[m], (long long)N);
    }
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, M *C))
    for (int64_t m = 0; m < M; m++) memcpy(y + m * C, x + rows[m] * C, (size_t)C * sizeof(float));
    return STATUS_OK;
}
