/* depth_router_gradient and depth_predict: Σ over rows of a number times the row, (C).
 *
 * Floor: the rows over the copy bandwidth. Rows are cut into parts by shape and GPU alone, as for all sums of
 * columns (columns.cuh), and the parts' sums are added in their order. The number of a row is the gate's
 * gradient, or what the predictor had wrong of it; of the latter the first strip of columns keeps three sums
 * more: what was wrong, the loss, right guesses. */
#include "backend/cuda/ops/columns.cuh"

extern "C" {
#include "ops/depth/depth.h"
}

enum { N_NUMBERS = 3 };

/* What the numbers of rows are made of. */
typedef struct {
    const float *dgate; /* (N); NULL: the predictor's */
    const float *guess; /* (N) */
    const int32_t *slot, *random;
    const float *scale; /* or NULL */
    int64_t first_row, T;
    float gradient_scale, report_scale;
} RowNumbers;

typedef struct {
    float factor, loss, hit;
} RowNumber;

DEVICE RowNumber number_of(const RowNumbers &r, int64_t n, float gradient_scale, int64_t n_sequences) {
    RowNumber number = {0.0f, 0.0f, 0.0f};
    if (r.dgate) {
        number.factor = r.dgate[n];
        return number;
    }
    int64_t at = r.first_row + n;
    if (at / r.T >= n_sequences) return number;
    bool is_chosen = r.slot[at] >= 0;
    float g = r.guess[n], e = expf(-fabsf(g)), sigmoid = g >= 0.0f ? 1.0f / (1.0f + e) : e / (1.0f + e);
    number.factor = (sigmoid - (is_chosen ? 1.0f : 0.0f)) * gradient_scale;
    number.loss = (fmaxf(g, 0.0f) - (is_chosen ? g : 0.0f) + log1pf(e)) * r.report_scale;
    number.hit = (g > 0.0f) == is_chosen ? r.report_scale : 0.0f;
    return number;
}

/* partial: (parts, C); numbers: (parts, N_NUMBERS), of the predictor. */
template <typename T>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
    sums_kernel(const T *x, RowNumbers r, int64_t rows, int64_t columns, int64_t rows_each, bool aligned,
                float *partial, float *numbers) {
    __shared__ float of_warps[COLUMN_WARPS][N_NUMBERS];
    const ColumnPart part = column_part(rows, columns, rows_each);
    float sum[VECTOR] = {0}, scale = r.gradient_scale * (r.scale ? *r.scale : 1.0f);
    float wrong = 0.0f, loss = 0.0f, hits = 0.0f;
    int64_t n_sequences = r.random ? r.random[RANDOM_N_SEQUENCES] : 0;
    for (int64_t n = part.first + threadIdx.y; n < part.end; n += COLUMN_WARPS) {
        RowNumber number = number_of(r, n, scale, n_sequences);
        float v[VECTOR];
        wrong += number.factor;
        loss += number.loss;
        hits += number.hit;
        if (part.n <= 0) continue;
        load8(x + n * columns + part.c, part.n, aligned, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] = fmaf(number.factor, v[k], sum[k]);
    }
    if (threadIdx.x == 0) {
        of_warps[threadIdx.y][0] = wrong;
        of_warps[threadIdx.y][1] = loss;
        of_warps[threadIdx.y][2] = hits;
    }
    store_column_sums(part, sum, partial); /* has a barrier */
    if (!numbers || blockIdx.x || threadIdx.y || threadIdx.x >= N_NUMBERS) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < COLUMN_WARPS; w++) total += of_warps[w][threadIdx.x];
    numbers[blockIdx.y * N_NUMBERS + threadIdx.x] = total;
}

static Status sum_rows(const KernelCall *call, const Tensor *x, const void *data, const RowNumbers &numbers,
                       Error *error) {
    const CudaContext *context = cuda_context(call);
    int64_t rows = shape_rows(x->shape), columns = shape_columns(x->shape);
    int64_t parts = cuda_reduce_columns_parts(&context->traits, rows, columns);
    float *partial = (float *)call->scratch, *further = numbers.dgate ? NULL : partial + parts * columns;
    dim3 grid(blocks_for(columns, COLUMNS), (unsigned)parts), block(WARP, COLUMN_WARPS);
    FOR_TYPE(x, T,
             sums_kernel<T><<<grid, block, 0, context->stream>>>(
                 (const T *)data, numbers, rows, columns, (rows + parts - 1) / parts,
                 rows_aligned(data, columns), partial, further));
    TRY(cuda_launched(call->node->op->name, error));
    SumOutput output = {call->out[0], call->node->output[0]->dtype, call->add[0]};
    TRY(cuda_reduce_partials(context, partial, parts, columns, 1, &output, error));
    if (!further) return STATUS_OK;
    SumOutput outputs[N_NUMBERS];
    for (int i = 0; i < N_NUMBERS; i++) {
        outputs[i].data = call->out[1 + i];
        outputs[i].dtype = call->node->output[1 + i]->dtype;
        outputs[i].add = call->add[1 + i];
    }
    return cuda_reduce_partials(context, further, parts, 1, N_NUMBERS, outputs, error);
}

extern "C" Status cuda_depth_router_gradient(const KernelCall *call, Error *error) {
    RowNumbers numbers = {};
    numbers.dgate = (const float *)call->in[0];
    return sum_rows(call, call->node->input[1], call->in[1], numbers, error);
}

extern "C" Status cuda_depth_predict(const KernelCall *call, Error *error) {
    const DepthPredictAttributes *a = (const DepthPredictAttributes *)call->node->attributes;
    RowNumbers numbers = {NULL,
                          (const float *)call->in[0],
                          (const int32_t *)call->in[2],
                          (const int32_t *)call->in[3],
                          (const float *)call->in[4],
                          a->first_row,
                          call->node->input[2]->shape.dim[1],
                          a->gradient_scale,
                          a->report_scale};
    return sum_rows(call, call->node->input[1], call->in[1], numbers, error);
}
