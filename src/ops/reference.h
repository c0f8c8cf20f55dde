/* What the files of this room share: checks of the builders, and helpers of the reference kernels. These are
 * written to be read and trusted: sums in double, no threads. */
#ifndef PGPT_OPS_REFERENCE_H
#define PGPT_OPS_REFERENCE_H

#include "base/error.h"
#include "base/half.h"
#include "base/random.h"
#include "ops/ops.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline void reference_write(float *element, float value, bool add) {
    *element = add ? *element + value : value;
}

/* Element `index` of an array of any float type. */
static inline float reference_read(const void *values, DType dtype, int64_t index) {
    if (dtype == DTYPE_F32) return ((const float *)values)[index];
    uint16_t half = ((const uint16_t *)values)[index];
    return dtype == DTYPE_BF16 ? half_bf16_to_f32(half) : half_f16_to_f32(half);
}

/* Element `index` of an output of any float type, rounded to the nearest. */
static inline void reference_write_copy(const KernelCall *call, int output, int64_t index, float value) {
    DType dtype = call->node->output[output]->dtype;
    if (dtype == DTYPE_F32) ((float *)call->out[output])[index] = value;
    else
        ((uint16_t *)call->out[output])[index] =
            dtype == DTYPE_BF16 ? half_bf16_from_f32(value) : half_f16_from_f32(value);
}

/* Zeroed doubles to sum into; the caller frees them. At least one, so that NULL only means failure. */
static inline double *reference_sums(int64_t count, Error *error) {
    double *sums = calloc(count > 0 ? (size_t)count : 1, sizeof *sums);
    if (!sums) error_failed(error, "no memory for %lld sums of a reference kernel", (long long)count);
    return sums;
}

/* out (columns) = or += the sums over the rows of x (rows, columns). */
static inline void reference_column_sums(const float *x, int64_t rows, int64_t columns, float *out,
                                         bool add) {
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0.0;
        for (int64_t n = 0; n < rows; n++) sum += (double)x[n * columns + c];
        reference_write(&out[c], (float)sum, add);
    }
}

/* The stream of one dropout site in this step, and the global number of the first sequence, from the random
 * input. */
static inline RandomKey reference_dropout_key(const int32_t *random, int site) {
    uint64_t low = (uint32_t)random[RANDOM_SEED_LOW], high = (uint32_t)random[RANDOM_SEED_HIGH];
    return random_key(high << 32 | low, RANDOM_DROPOUT + (unsigned)site, (uint32_t)random[RANDOM_STEP]);
}

static inline uint64_t reference_first_sequence(const int32_t *random) {
    return (uint32_t)random[RANDOM_FIRST_SEQUENCE];
}

/* Builders: is qkv (B,T,(NH+2·NKV)·HS) with heads that can be? */
static inline bool reference_check_heads(Graph *graph, const char *op, const Tensor *qkv, int n_heads,
                                         int n_kv_heads, int head_size) {
    return graph_check(graph, n_heads > 0 && n_kv_heads > 0 && head_size > 0 && n_heads % n_kv_heads == 0,
                       "%s: %d heads over %d key/value heads of size %d for %s cannot be", op, n_heads,
                       n_kv_heads, head_size, qkv->name) &&
           graph_check(graph,
                       qkv->shape.n_dims == 3 &&
                           qkv->shape.dim[2] == ((int64_t)n_heads + 2 * (int64_t)n_kv_heads) * head_size,
                       "%s: %s must have shape (B,T,(%d+2·%d)·%d)", op, qkv->name, n_heads, n_kv_heads,
                       head_size);
}

/* Builders: can dropout be done with this probability? Nearly 1 would round to dropping everything. */
static inline bool reference_can_drop(float probability) {
    return probability >= 0.0f && probability < 1.0f && random_dropout_threshold(probability) < 65536;
}

#endif
