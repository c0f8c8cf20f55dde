/* dropout: y = x · mask / (1-p), the mask drawn again wherever it is needed.
 *
 * Drawing is most of the work, so it is done for a run of elements that stays in the first-level cache
 * (dropout_mask.h) and multiplied in at once. Runs begin at multiples of 64 of their sequence, where drawing
 * is fastest; how many threads share them changes nothing. */
#include "backend/cpu/dropout_mask.h"
#include "backend/cpu/kernels.h"
#include "ops/ops.h"
#include "ops/reference.h"

enum { RUN = 2048 };

CPU_INLINE void drop_step(const float *x, const float *mask, float *y, bool add, int lanes) {
    lanes_write(y, lanes_load(x, lanes) * lanes_load(mask, lanes), add, lanes);
}

Status cpu_dropout(const KernelCall *call, Error *error) {
    (void)error;
    const DropoutAttributes *a = call->node->attributes;
    const float *x = call->in[0];        /* (B,...) */
    const int32_t *random = call->in[1]; /* (N_RANDOM_WORDS) */
    float *y = call->out[0];             /* (B,...) */
    Shape shape = call->node->input[0]->shape;
    bool is_split = a->rows.length > 0; /* then a line is a row; otherwise a sequence */
    int64_t count = shape_count(shape), n_lines = is_split ? shape_rows(shape) : shape.dim[0];
    int64_t length = n_lines ? count / n_lines : 0, n_runs = (length + RUN - 1) / RUN;
    RandomKey key = reference_dropout_key(random, a->site);
    uint64_t first_sequence = reference_first_sequence(random);
    uint32_t threshold = random_dropout_threshold(a->probability);
    float scale = random_dropout_scale(threshold);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, count))
    for (int64_t task = 0; task < n_lines * n_runs; task++) {
        int64_t line = task / n_runs, first = task % n_runs * RUN;
        RowPosition at = is_split ? row_position(&a->rows, line) : (RowPosition){.sequence = line};
        int64_t n = length - first < RUN ? length - first : RUN, i = 0;
        const float *from = x + line * length + first;
        float *to = y + line * length + first, mask[RUN];
        dropout_mask_fill(key, first_sequence + (uint64_t)at.sequence,
                          (uint64_t)(at.position * length + first), n, threshold, scale, mask);
        for (; i + VEC_LANES <= n; i += VEC_LANES)
            drop_step(from + i, mask + i, to + i, call->add[0], VEC_LANES);
        if (i < n) drop_step(from + i, mask + i, to + i, call->add[0], (int)(n - i));
    }
    return STATUS_OK;
}
