/* rmsnorm and its backward; the row's work is in norm_rows.cuh.
 *
 * Floor over the copy bandwidth: x read and y written forward; dy and x read and dx written backward (4 and 6
 * bytes an element in 16 bits). */
#include "backend/cuda/norm/norm_rows.cuh"

extern "C" Status cuda_rmsnorm(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *x = node->input[0];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, ((const NormAttributes *)node->attributes)->epsilon};
    if (!same_types(x, node->output[0]) || channels > NORM_MOST_CHANNELS)
        return cuda_unsupported(call, x, error);
    if (!s.rows) return STATUS_OK;
    if (!weights_fit(x, node->input[1]) || !weights_fit(x, node->n_inputs > 2 ? node->input[2] : NULL))
        return cuda_unsupported(call, node->input[1], error);
    Memory weight = memory_of(call->in[1], node->input[1], channels), none = memory_of(NULL, NULL, channels);
    FOR_TYPE(x, T,
             norm_forward<T, false, false>(cuda_context(call), x, call->in[0], weight, none, call->out[0],
                                           NULL, (float *)call->out[1], s, Branch()));
    return cuda_launched("rmsnorm", error);
}

extern "C" Status cuda_rmsnorm_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const Tensor *x = node->input[1], *dweight = node->output[1];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, 0.0f};
    if (!same_types(x, node->input[0]) || !same_types(x, node->output[0]) || channels > NORM_MOST_CHANNELS) {
        return cuda_unsupported(call, x, error);
    }
    if (!weights_fit(x, node->input[2])) return cuda_unsupported(call, node->input[2], error);
    float *partial = call->out[1] ? (float *)call->scratch : NULL;
    unsigned n_partials = 0;
    FOR_TYPE(x, T,
             n_partials = norm_backward<T, false, false>(cuda_context(call), x, call->in[0], call->in[1],
                                                         memory_of(call->in[2], node->input[2], channels),
                                                         NULL, (const float *)call->in[3], call->out[0],
                                                         partial, s, call->add[0], Branch())
                              .rows);
    TRY(cuda_launched("rmsnorm_backward", error));
    if (!partial) return STATUS_OK;
    const SumOutput output = {call->out[1], dweight->dtype, call->add[1]};
    return cuda_reduce_partials(cuda_context(call), partial, n_partials, channels, 1, &output, error);
}
