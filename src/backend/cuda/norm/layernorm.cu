/* layernorm and its backward; the row's work is in norm_rows.cuh.
 *
 * Floor over the copy bandwidth: x read and y written forward; dy and x read and dx written backward (2 and 3
 * C-wide rows, 4 and 6 bytes an element in 16 bits). The variance is taken from the row in registers after
 * its mean, not from a sum of squares, so rows with a large mean keep their digits. */
#include "backend/cuda/norm/norm_rows.cuh"

extern "C" Status cuda_layernorm(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *x = node->input[0];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, ((const NormAttributes *)node->attributes)->epsilon};
    if (!same_types(x, node->output[0]) || channels > NORM_MOST_CHANNELS)
        return cuda_unsupported(call, x, error);
    if (!s.rows) return STATUS_OK;
    if (!weights_fit(x, node->input[1]) || !weights_fit(x, node->n_inputs > 2 ? node->input[2] : NULL))
        return cuda_unsupported(call, node->input[1], error);
    Memory weight = memory_of(call->in[1], node->input[1], channels),
           bias = memory_of(call->in[2], node->input[2], channels);
    FOR_TYPE(x, T,
             norm_forward<T, true, false>(cuda_context(call), x, call->in[0], weight, bias, call->out[0],
                                          (float *)call->out[1], (float *)call->out[2], s, Branch()));
    return cuda_launched("layernorm", error);
}

extern "C" Status cuda_layernorm_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *x = node->input[1], *dweight = node->output[1], *dbias = node->output[2];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, 0.0f};
    if (!same_types(x, node->input[0]) || !same_types(x, node->output[0]) || channels > NORM_MOST_CHANNELS) {
        return cuda_unsupported(call, x, error);
    }
    if (!weights_fit(x, node->input[2])) return cuda_unsupported(call, node->input[2], error);
    bool has_sums = call->out[1] || call->out[2];
    float *partial = has_sums ? (float *)call->scratch : NULL;
    unsigned n_partials = 0;
    FOR_TYPE(x, T,
             n_partials = norm_backward<T, true, false>(
                              cuda_context(call), x, call->in[0], call->in[1],
                              memory_of(call->in[2], node->input[2], channels), (const float *)call->in[3],
                              (const float *)call->in[4], call->out[0], partial, s, call->add[0], Branch())
                              .rows);
    TRY(cuda_launched("layernorm_backward", error));
    if (!has_sums) return STATUS_OK;
    const SumOutput output[2] = {{call->out[1], dweight ? dweight->dtype : DTYPE_F32, call->add[1]},
                                 {call->out[2], dbias ? dbias->dtype : DTYPE_F32, call->add[2]}};
    return cuda_reduce_partials(cuda_context(call), partial, n_partials, channels, 2, output, error);
}
