/* residual_norm: row by row what dropout.c, elementwise.c and layernorm.c or rmsnorm.c do one after the
 * other, while the row is in the first-level cache. Memory sees stream and branch once, and what is stored.
 *
 * It gives the bits of the three. The branch is multiplied by its mask in a loop of its own, so that no
 * compiler makes one rounding of the product and the sum; and where the tensors have 16 bits, of which this
 * kernel sees widened copies (half.c), what would be stored between the three is rounded as it would be
 * there. */
#include "backend/cpu/dropout_mask.h"
#include "backend/cpu/norm_rows.h"
#include "backend/cpu/reduce.h"
#include "ops/ops.h"
#include "ops/reference.h"

enum { RUN = 2048 }; /* elements of a mask at a time */

/* Where the masks of a node come from. */
typedef struct {
    bool drops;
    RandomKey key;
    uint64_t first_sequence;
    uint32_t threshold;
    float scale;
    RowSplit rows;
} Draws;

/* Where nothing is split, all rows are here in their order. */
static RowSplit split_of(const RowSplit *rows, Shape shape) {
    int64_t length = shape_rows(shape) / shape.dim[0];
    return rows->length ? *rows : (RowSplit){.length = length, .head = length};
}

static Draws draws_of(const ResidualNormAttributes *a, const int32_t *random, Shape shape) {
    if (!random || !shape_count(shape)) return (Draws){.drops = false};
    uint32_t threshold = random_dropout_threshold(a->probability);
    return (Draws){.drops = true,
                   .key = reference_dropout_key(random, a->site),
                   .first_sequence = reference_first_sequence(random),
                   .threshold = threshold,
                   .scale = random_dropout_scale(threshold),
                   .rows = split_of(&a->rows, shape)};
}

CPU_INLINE void drop_step(const float *x, float *mask, int lanes) {
    lanes_store(mask, lanes_load(x, lanes) * lanes_load(mask, lanes), lanes);
}

/* Elements first .. first + n - 1 of row `row`: out (n) = x (n) under the mask. */
static void drop(const Draws *draws, int64_t row, int64_t C, int64_t first, int64_t n, const float *x,
                 float *out) {
    RowPosition at = row_position(&draws->rows, row);
    dropout_mask_fill(draws->key, draws->first_sequence + (uint64_t)at.sequence,
                      (uint64_t)(at.position * C + first), n, draws->threshold, draws->scale, out);
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) drop_step(x + i, out + i, VEC_LANES);
    if (i < n) drop_step(x + i, out + i, (int)(n - i));
}

CPU_INLINE void add_step(const float *a, const float *b, float *y, int lanes) {
    lanes_store(y, lanes_load(a, lanes) + lanes_load(b, lanes), lanes);
}

/* y (n) = a (n) + b (n); y may be either. */
static void add_up(const float *a, const float *b, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) add_step(a + i, b + i, y + i, VEC_LANES);
    if (i < n) add_step(a + i, b + i, y + i, (int)(n - i));
}

/* sum (C) = stream (C) + dropout(branch (C)); sum may be either. */
static void sum_row(const Draws *draws, DType dtype, int64_t row, int64_t C, const float *stream,
                    const float *branch, float *sum) {
    float dropped[RUN];
    for (int64_t first = 0; first < C && draws->drops; first += RUN) {
        int64_t n = C - first < RUN ? C - first : RUN;
        drop(draws, row, C, first, n, branch + first, dropped);
        cpu_round(dtype, dropped, n);
        add_up(stream + first, dropped, sum + first, n);
    }
    if (!draws->drops) add_up(stream, branch, sum, C);
    cpu_round(dtype, sum, C);
}

Status cpu_residual_norm(const KernelCall *call, Error *error) {
    (void)error;
    const ResidualNormAttributes *a = call->node->attributes;
    const float *stream = call->in[0], *branch = call->in[1]; /* (N,C), (N,C) */
    const float *weight = call->in[2], *bias = call->in[3];   /* (C), [(C)] */
    float *sum = call->out[0], *normed = call->out[1];        /* (N,C), (N,C) */
    float *means = call->out[2], *rstds = call->out[3];       /* [(N)], (N) */
    Shape shape = call->node->input[0]->shape;
    int64_t N = shape_rows(shape), C = shape_columns(shape);
    DType dtype = call->node->output[0]->dtype;
    Draws draws = draws_of(a, call->in[4], shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int64_t n = 0; n < N; n++) {
        float *row = sum + n * C;
        sum_row(&draws, dtype, n, C, stream + n * C, branch + n * C, row);
        NormStatistics statistics =
            a->has_mean ? cpu_layernorm_row(row, weight, bias, a->epsilon, C, normed + n * C, false)
                        : cpu_rmsnorm_row(row, weight, a->epsilon, C, normed + n * C, false);
        if (means) means[n] = statistics.mean;
        rstds[n] = statistics.rstd;
    }
    return STATUS_OK;
}

/* ---- backward: the norm's, and dbranch (C) = or += dropout(dsum (C)) ---- */

static void branch_row(const Draws *draws, int64_t row, int64_t C, const float *dsum, float *dbranch,
                       bool add) {
    float dropped[RUN];
    for (int64_t first = 0; first < C; first += RUN) {
        int64_t n = C - first < RUN ? C - first : RUN;
        float *to = add ? dropped : dbranch + first;
        drop(draws, row, C, first, n, dsum + first, to);
        if (add) add_up(dbranch + first, dropped, dbranch + first, n);
    }
}

Status cpu_residual_norm_backward(const KernelCall *call, Error *error) {
    (void)error;
    const ResidualNormAttributes *a = call->node->attributes;
    const float *dnormed = call->in[0], *sum = call->in[1], *weight = call->in[2]; /* (N,C), (N,C), (C) */
    const float *means = call->in[3], *rstds = call->in[4];                        /* [(N)], (N) */
    float *dsum = call->out[0], *dweight = call->out[1], *dbias = call->out[2], *dbranch = call->out[3];
    Shape shape = call->node->input[1]->shape;
    int64_t N = shape_rows(shape), C = shape_columns(shape), width = 3 * C;
    float *sums = dbranch ? call->out[4] : NULL;
    DType dtype = call->node->input[1]->dtype;
    Draws draws = draws_of(a, call->in[5], shape);
    void (*backward_row)(const NormBackwardRow *row, int64_t C) =
        a->has_mean ? cpu_layernorm_backward_row : cpu_rmsnorm_backward_row;
    RowBlocks blocks = reduce_blocks(N);
    float *partials = call->scratch; /* (n_blocks, width): dweight, dbias, sums of dbranch */
    int n_threads = cpu_threads(call, N * C);
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < blocks.n_blocks; block++) {
        float *partial = partials + block * width;
        int64_t first = reduce_first(&blocks, block), end = reduce_end(&blocks, block);
        if (dweight || dbias) memset(partial, 0, (size_t)(2 * C) * sizeof(float));
        for (int64_t n = first; n < end; n++) {
            float *dsum_row = dsum ? dsum + n * C : NULL;
            backward_row(&(NormBackwardRow){.dy = dnormed + n * C,
                                            .x = sum + n * C,
                                            .weight = weight,
                                            .statistics = {means ? means[n] : 0.0f, rstds[n]},
                                            .dx = dsum_row,
                                            .dweight = dweight ? partial : NULL,
                                            .dbias = dbias ? partial + C : NULL,
                                            .add = call->add[0]},
                         C);
            if (!dbranch) continue;
            cpu_round(dtype, dsum_row, C);
            branch_row(&draws, n, C, dsum_row, dbranch + n * C, call->add[3]);
            if (sums) cpu_round(dtype, dbranch + n * C, C);
        }
        if (sums && blocks.n_blocks == 1) reduce_block(dbranch, N, C, sums, call->add[4]);
        else if (sums) reduce_block(dbranch + first * C, end - first, C, partial + 2 * C, false);
    }
    if (dweight) reduce_partials(partials, blocks.n_blocks, width, C, dweight, call->add[1], n_threads);
    if (dbias) reduce_partials(partials + C, blocks.n_blocks, width, C, dbias, call->add[2], n_threads);
    if (sums && blocks.n_blocks != 1)
        reduce_partials(partials + 2 * C, blocks.n_blocks, width, C, sums, call->add[4], n_threads);
    return STATUS_OK;
}

size_t cpu_residual_norm_backward_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    int64_t channels = shape_columns(node->input[1]->shape);
    RowBlocks blocks = reduce_blocks(shape_rows(node->input[1]->shape));
    return (size_t)(blocks.n_blocks * 3 * channels) * sizeof(float);
}
