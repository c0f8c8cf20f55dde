/* depth_predict: what the predictor had wrong of each row, times the row, summed by blocks of rows as the
 * router's gradient is (depth_rows.c); beside it three numbers a block: what was wrong, loss, right
 * guesses. */
#include "backend/cpu/reduce.h"
#include "ops/depth/depth.h"

#include <math.h>

enum { N_NUMBERS = 3 };

CPU_INLINE void add_step(const float *x, float factor, float *sum, int lanes) {
    lanes_store(sum, vec_fma(vec_set(factor), lanes_load(x, lanes), lanes_load(sum, lanes)), lanes);
}

static void add_row(const float *x, float factor, int64_t C, float *sum) {
    int64_t i = 0;
    for (; i + VEC_LANES <= C; i += VEC_LANES) add_step(x + i, factor, sum + i, VEC_LANES);
    if (i < C) add_step(x + i, factor, sum + i, (int)(C - i));
}

/* Rows first .. end - 1; `sum` (C + N_NUMBERS) of them. */
static void sum_block(const KernelCall *call, int64_t first, int64_t end, float *sum) {
    const DepthPredictAttributes *a = call->node->attributes;
    const float *guess = call->in[0], *x = call->in[1];       /* (N), (N,C) */
    const int32_t *slot = call->in[2], *random = call->in[3]; /* (B,T), words */
    int64_t C = shape_columns(call->node->input[1]->shape), T = call->node->input[2]->shape.dim[1];
    double number[N_NUMBERS] = {0};
    memset(sum, 0, (size_t)C * sizeof(float));
    for (int64_t n = first; n < end; n++) {
        int64_t at = a->first_row + n;
        if (at / T >= random[RANDOM_N_SEQUENCES]) continue;
        bool is_chosen = slot[at] >= 0;
        double g = (double)guess[n], off = 1.0 / (1.0 + exp(-g)) - (is_chosen ? 1.0 : 0.0);
        number[0] += off;
        number[1] += fmax(g, 0.0) - (is_chosen ? g : 0.0) + log1p(exp(-fabs(g)));
        number[2] += (guess[n] > 0.0f) == is_chosen;
        add_row(x + n * C, (float)off, C, sum);
    }
    for (int i = 0; i < N_NUMBERS; i++) sum[C + i] = (float)number[i];
}

static void write_number(const KernelCall *call, int output, double value) {
    float *out = call->out[output];
    *out = call->add[output] ? *out + (float)value : (float)value;
}

Status cpu_depth_predict(const KernelCall *call, Error *error) {
    (void)error;
    const DepthPredictAttributes *a = call->node->attributes;
    const float *scale = call->in[4];
    int64_t N = shape_rows(call->node->input[1]->shape), C = shape_columns(call->node->input[1]->shape);
    int64_t stride = C + N_NUMBERS;
    RowBlocks blocks = reduce_blocks(N);
    float *partials = call->scratch, *total = partials + blocks.n_blocks * stride;
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int block = 0; block < blocks.n_blocks; block++)
        sum_block(call, reduce_first(&blocks, block), reduce_end(&blocks, block), partials + block * stride);
    reduce_partials(partials, blocks.n_blocks, stride, stride, total, false, call->n_threads);
    float factor = a->gradient_scale * (scale ? *scale : 1.0f), *dpredictor = call->out[0];
    for (int64_t c = 0; c < C; c++) dpredictor[c] = total[c] * factor + (call->add[0] ? dpredictor[c] : 0.0f);
    write_number(call, 1, (double)total[C] * (double)factor);
    write_number(call, 2, (double)total[C + 1] * (double)a->report_scale);
    write_number(call, 3, (double)total[C + 2] * (double)a->report_scale);
    return STATUS_OK;
}

size_t cpu_depth_predict_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    Shape shape = node->input[1]->shape;
    return (size_t)((reduce_blocks(shape_rows(shape)).n_blocks + 1) * (shape_columns(shape) + N_NUMBERS)) *
           sizeof(float);
}
