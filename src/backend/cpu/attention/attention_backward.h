/* What the backward of attention works in, dense and sparse. Private to attention_*.c and sparse_*.c. */
#ifndef PGPT_BACKEND_CPU_ATTENTION_ATTENTION_BACKWARD_H
#define PGPT_BACKEND_CPU_ATTENTION_ATTENTION_BACKWARD_H

#include "backend/cpu/attention/attention_tile.h"

#define QUERY_TILE                                                                                           \
    TILE_KEYS /* equal and aligned: in a run of its own, only the same number is on the diagonal */

/* What a thread works in; HS* is HS rounded up to whole vectors, Tk rows of keys. */
typedef struct {
    float *keys_by_column[ATTENTION_MAX_RUNS];   /* [tile][HS][TILE_KEYS] of each run */
    float *values_by_column[ATTENTION_MAX_RUNS]; /* likewise */
    float *keys;                                 /* [Tk][HS*] */
    float *dkeys;                                /* [Tk][HS*] */
    float *dvalues;                              /* [Tk][HS*] */
    float *q;                                    /* [T][HS*], scaled by scale·log2(e) */
    float *dq;                                   /* [T][HS*] */
    float *dy;                                   /* [T][HS*] */
    float *lse;                                  /* (T), as an exponent of 2 */
    float *dot;                                  /* (T): D */
    float *weights;                              /* [QUERY_TILE][TILE_KEYS]: P, then P∘M */
    float *dscores;                              /* [QUERY_TILE][TILE_KEYS] */
    float *mask;                                 /* [TILE_KEYS] */
} Backward;

/* T rows of HS, from padded rows, times a factor; written or added. */
void backward_unpack_rows(const float *from, int64_t T, int size, float factor, float *to, int64_t to_step,
                          bool adds);

/* lse as an exponent of 2, and D, of rows first .. first + n - 1, whose dy are packed; `lse` and `y` begin
 * with the first of them. */
void backward_row_numbers(const Backward *work, int64_t first, int64_t n, int size, const float *lse,
                          const float *y, int64_t y_row);

/* One row of scores and of dP = dY·Vᵀ to one of weights and dS, in place. The row sees `visible` keys. */
static inline void row_gradients(float *weights, float *dscores, const float *mask, int n_vecs,
                                 int64_t visible, float lse, float dot) {
    for (int v = 0; v < n_vecs; v++) {
        vec score = vec_load(weights + v * VEC_LANES), dweight = vec_load(dscores + v * VEC_LANES);
        int64_t left = visible - v * VEC_LANES;
        if (left < VEC_LANES) score = tile_mask(score, left);
        vec weight = tile_exp2(score - vec_set(lse)), used = weight;
        if (mask) {
            vec factor = vec_load(mask + v * VEC_LANES);
            used *= factor;
            dweight *= factor;
        }
        vec_store(weights + v * VEC_LANES, used);
        vec_store(dscores + v * VEC_LANES, weight * (dweight - vec_set(dot)));
    }
}

#endif
