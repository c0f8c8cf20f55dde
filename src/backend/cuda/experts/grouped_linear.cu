/* grouped_linear: the three grouped GEMMs of the experts' layers (grouped.h), and the gradient of the bias.
 *
 * Floor: 2·rows·Ci·Co FLOPs over the matrix rate for each GEMM, with the rows that there are. */
#include "backend/cuda/experts/grouped.h"
#include "backend/cuda/ops/columns.cuh"

static Status run(const KernelCall *call, const GroupedGemm *g, Error *error) {
    CudaContext *context = cuda_context(call);
    if (cuda_grouped_warpgroup_fits(context, g)) return cuda_grouped_warpgroup(context, g, error);
    return cuda_grouped_tiles(context, g, error);
}

/* What all three have. */
static GroupedGemm gemm_of(const KernelCall *call, GroupedKind kind, int64_t inputs, int64_t outputs,
                           int offsets) {
    GroupedGemm g = {};
    g.kind = kind;
    g.rows = shape_rows(call->node->input[0]->shape);
    g.n_experts = (int)tensor_count(call->node->input[offsets]) - 1;
    g.inputs = inputs;
    g.outputs = outputs;
    g.dtype = call->node->input[0]->dtype;
    g.c_type = call->node->output[0]->dtype;
    g.offsets = (const int32_t *)call->in[offsets];
    g.a = call->in[0];
    g.b = call->in[1];
    g.c = call->out[0];
    g.add = call->add[0];
    return g;
}

/* ---- forward: (x, weight, [bias], offsets) -> y, [before] ---- */

extern "C" Status cuda_grouped_linear(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0], *weight = call->node->input[1], *bias = call->node->input[2];
    GroupedGemm g = gemm_of(call, GROUPED_FORWARD, weight->shape.dim[2], weight->shape.dim[1], 3);
    if (!same_types(x, weight) || !same_types(x, call->node->output[0]))
        return cuda_unsupported(call, x, error);
    g.bias = call->in[2];
    g.bias_type = bias ? bias->dtype : g.dtype;
    g.before = call->out[1];
    g.activation = ((const LinearAttributes *)call->node->attributes)->activation;
    if (!call->node->is_from_stored) return run(call, &g, error);
    g.c = g.before; /* as linear.cu does it */
    g.before = NULL;
    g.activation = ACTIVATION_NONE;
    TRY(run(call, &g, error));
    return cuda_gelu_values(call, call->node->output[1], call->out[1], call->out[0], error);
}

/* ---- (dy, weight, offsets, [before]) -> dx ---- */

extern "C" Status cuda_grouped_input_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *weight = call->node->input[1];
    GroupedGemm g = gemm_of(call, GROUPED_INPUT, weight->shape.dim[2], weight->shape.dim[1], 2);
    if (!same_types(dy, weight) || !same_types(dy, call->node->output[0]) ||
        !same_types(dy, call->node->input[3]))
        return cuda_unsupported(call, dy, error);
    g.before = call->in[3];
    g.activation = ((const LinearAttributes *)call->node->attributes)->activation;
    return run(call, &g, error);
}

/* ---- (dy, x, offsets) -> dweight, [dbias] ---- */

/* Sums of the columns of one part of an expert's rows: partial is (parts, n_experts, columns). */
template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
    bias_kernel(const T *dy, const int32_t *offsets, int n_experts, int64_t columns, unsigned strips,
                int64_t parts, float *partial) {
    __shared__ float sums[COLUMN_WARPS][COLUMNS];
    int64_t c = ((int64_t)(blockIdx.x % strips) * WARP + threadIdx.x) * VECTOR;
    int64_t part = blockIdx.x / strips / (unsigned)n_experts;
    int e = (int)(blockIdx.x / strips % (unsigned)n_experts);
    int64_t begin = offsets[e], end = offsets[e + 1], each = (end - begin + parts - 1) / parts;
    begin += part * each;
    end = begin + each < end ? begin + each : end;
    float sum[VECTOR] = {0};
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += COLUMN_WARPS) {
        float v[VECTOR];
        load8(dy + row * columns + c, columns - c, ALIGNED, v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[k] += v[k];
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sums[threadIdx.y][k * WARP + threadIdx.x] = sum[k];
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < COLUMN_WARPS; w++) total += sums[w][threadIdx.y * WARP + threadIdx.x];
    if (c + threadIdx.y < columns) partial[(part * n_experts + e) * columns + c + threadIdx.y] = total;
}

static Status make_bias_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *dbias = call->node->output[1];
    CudaContext *context = cuda_context(call);
    int n_experts = (int)tensor_count(call->node->input[2]) - 1;
    int64_t columns = shape_columns(dy->shape);
    int64_t parts = cuda_grouped_bias_parts(&context->traits, n_experts, columns);
    float *partial = (float *)call->scratch;
    unsigned strips = blocks_for(columns, COLUMNS), blocks = strips * (unsigned)(n_experts * parts);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(dy, T, {
        auto kernel = rows_aligned(call->in[0], columns) ? bias_kernel<T, true> : bias_kernel<T, false>;
        kernel<<<blocks, dim3(WARP, COLUMN_WARPS), 0, context->stream>>>(
            (const T *)call->in[0], (const int32_t *)call->in[2], n_experts, columns, strips, parts, partial);
    });
    TRY(cuda_launched("grouped linear, gradient of the bias", error));
    SumOutput output = {call->out[1], dbias->dtype, call->add[1]};
    return cuda_reduce_partials(context, partial, parts, n_experts * columns, 1, &output, error);
}

extern "C" Status cuda_grouped_weight_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *x = call->node->input[1];
    if (!same_types(dy, x)) return cuda_unsupported(call, x, error);
    if (call->out[0]) {
        GroupedGemm g = gemm_of(call, GROUPED_WEIGHT, shape_columns(x->shape), shape_columns(dy->shape), 2);
        TRY(run(call, &g, error));
    }
    return call->out[1] ? make_bias_gradient(call, error) : STATUS_OK;
}
