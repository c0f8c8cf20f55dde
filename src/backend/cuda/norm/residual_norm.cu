/* residual_norm and its backward: the norms of norm_rows.cuh with a branch that is added on the way.
 *
 * Floor over the copy bandwidth: stream and branch read, sum and normed rows written forward, 8 bytes an
 * element in 16 bits; dnormed, sum and dsum read, dsum and dbranch written backward, 10 bytes. As dropout,
 * add and norm it was 14 and 12. A block of random numbers, drawn once forward and once backward for 8
 * elements, is integer work that hides behind that, if nothing else is wasted: at 384 channels most of the
 * bytes come from the L2 cache. */
#include "backend/cuda/norm/norm_rows.cuh"

/* Rows, and the blocks of random numbers of a sequence, are counted in 32 bits (masks_of, draw8). */
static bool can_count(Shape shape, const RowSplit *split) {
    return shape_rows(shape) + split->first <= UINT32_MAX &&
           (!shape.dim[0] || shape_count(shape) / shape.dim[0] / VECTOR < UINT32_MAX);
}

static Draws draws_of(const ResidualNormAttributes *a, const void *random, Shape shape) {
    Draws draws = {};
    if (!random || !shape_count(shape)) return draws;
    draws.random = (const int32_t *)random;
    draws.threshold = random_dropout_threshold(a->probability);
    draws.site = a->site;
    const RowSplit *split = &a->rows;
    draws.rows = (unsigned)(split->length ? split->length : shape_rows(shape) / shape.dim[0]);
    draws.head = split->length ? (unsigned)split->head : draws.rows;
    draws.first = (unsigned)split->first;
    draws.shift[0] = (unsigned)split->start[0];
    draws.shift[1] = (unsigned)(split->start[1] - split->head); /* counted in 32 bits, over 0 too */
    return draws;
}

extern "C" Status cuda_residual_norm(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const ResidualNormAttributes *a = (const ResidualNormAttributes *)node->attributes;
    const Tensor *x = node->input[0];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, a->epsilon};
    if (!same_types(x, node->input[1]) || !same_types(x, node->output[0]) ||
        !same_types(x, node->output[1]) || channels > NORM_MOST_CHANNELS || !can_count(x->shape, &a->rows))
        return cuda_unsupported(call, x, error);
    if (!s.rows) return STATUS_OK;
    if (!weights_fit(x, node->input[2]) || !weights_fit(x, node->input[3]))
        return cuda_unsupported(call, node->input[2], error);
    Memory weight = memory_of(call->in[2], node->input[2], channels),
           bias = memory_of(call->in[3], node->input[3], channels);
    Branch branch = {};
    branch.branch = call->in[1];
    branch.sum = call->out[0];
    branch.draws = draws_of(a, call->in[4], x->shape);
#define FORWARD_NORM(HAS_MEAN)                                                                               \
    norm_forward<T, HAS_MEAN, true>(cuda_context(call), x, call->in[0], weight, bias, call->out[1],          \
                                    (float *)call->out[2], (float *)call->out[3], s, branch)
    FOR_TYPE(x, T, {
        if (a->has_mean) FORWARD_NORM(true);
        else FORWARD_NORM(false);
    });
    return cuda_launched("residual_norm", error);
}

extern "C" Status cuda_residual_norm_backward(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const ResidualNormAttributes *a = (const ResidualNormAttributes *)node->attributes;
    const Tensor *x = node->input[1], *dweight = node->output[1], *dbias = node->output[2];
    int64_t channels = shape_columns(x->shape);
    NormShape s = {shape_rows(x->shape), (int)channels, 0.0f};
    if (!same_types(x, node->input[0]) || !same_types(x, node->output[0]) ||
        !same_types(x, node->output[3]) || channels > NORM_MOST_CHANNELS || !can_count(x->shape, &a->rows))
        return cuda_unsupported(call, x, error);
    if (!weights_fit(x, node->input[2])) return cuda_unsupported(call, node->input[2], error);
    Branch branch = {};
    branch.dbranch = call->out[3];
    branch.add = call->add[3];
    branch.sums = call->out[4] != NULL;
    branch.draws = draws_of(a, call->in[5], x->shape);
    bool has_sums = call->out[1] || call->out[2] || call->out[4];
    float *partial = has_sums ? (float *)call->scratch : NULL;
    NormPartials made = {};
    Memory weight = memory_of(call->in[2], node->input[2], channels);
#define BACKWARD_NORM(HAS_MEAN)                                                                              \
    made = norm_backward<T, HAS_MEAN, true>(cuda_context(call), x, call->in[0], call->in[1], weight,         \
                                            (const float *)call->in[3], (const float *)call->in[4],          \
                                            call->out[0], partial, s, call->add[0], branch)
    FOR_TYPE(x, T, {
        if (a->has_mean) BACKWARD_NORM(true);
        else BACKWARD_NORM(false);
    });
    TRY(cuda_launched("residual_norm_backward", error));
    if (!has_sums) return STATUS_OK;
    const Tensor *sums = node->output[4];
    SumOutput output[MOST_SUMS] = {{call->out[1], dweight ? dweight->dtype : DTYPE_F32, call->add[1]},
                                   {call->out[2], dbias ? dbias->dtype : DTYPE_F32, call->add[2]}};
    SumOutput of_branch = {call->out[4], sums ? sums->dtype : DTYPE_F32, call->add[4]};
    if (made.has_branch_sums) output[made.sums - 1] = of_branch;
    TRY(cuda_reduce_partials(cuda_context(call), partial, made.rows, channels, made.sums, output, error));
    if (!of_branch.data || made.has_branch_sums) return STATUS_OK;
    return cuda_reduce_columns(cuda_context(call), call->out[3], x->dtype, s.rows, channels, of_branch.data,
                               of_branch.dtype, of_branch.add, call->scratch, error);
}
