/* The online softmax of the forward kernels, over rows of scores that come tile by tile.
 *
 * Scores and weights never leave the registers: a tile's scores are made relative to the largest so far, and
 * what was summed before is scaled down when that grows. Small growth is let pass: weights up to 2^8 are as
 * exact as weights up to 1, and mostly nothing has to be scaled. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_SOFTMAX_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_SOFTMAX_CUH

#include "backend/cuda/attention/attention_tiles.cuh"

/* The state of a warp's rows: for each block of 16, rows g and g+8. */
template <int HS, int M> struct ForwardRows { float max[M][2], sum[M][2], y[M][HS / 8][4]; };

template <int HS, int M> DEVICE void start_rows(ForwardRows<HS, M> &rows) {
    clear<M, HS / 8>(rows.y);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) rows.max[m][i] = -INFINITY, rows.sum[m][i] = 0.0f;
    }
}

/* Everything relative to a new maximum. MAY_BE_BLIND: there may be rows that have not seen a key yet. */
template <int HS, int M, bool MAY_BE_BLIND = false>
DEVICE void shrink_rows(ForwardRows<HS, M> &rows, const float max[M][2], float scale_log2) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float shrink = exp2_fast((rows.max[m][i] - max[m][i]) * scale_log2);
            if (MAY_BE_BLIND && max[m][i] == -INFINITY) shrink = 0.0f;
            rows.max[m][i] = max[m][i];
            rows.sum[m][i] *= shrink;
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                rows.y[m][n][2 * i] *= shrink;
                rows.y[m][n][2 * i + 1] *= shrink;
            }
        }
    }
}

/* Scores become weights relative to each row's maximum. Mostly no score is much larger than that, which every
 * lane sees for itself: only else have the lanes of a row to agree on a new one. */
template <int HS, int M, int N, bool MAY_BE_BLIND = false>
DEVICE void soften(ForwardRows<HS, M> &rows, float s[M][N][4], float scale_log2) {
    float max[M][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            max[m][i] = rows.max[m][i];
#pragma unroll
            for (int n = 0; n < N; n++) {
                max[m][i] = fmaxf(max[m][i], fmaxf(s[m][n][2 * i], s[m][n][2 * i + 1]));
            }
            grows = grows || (max[m][i] - rows.max[m][i]) * scale_log2 > 8.0f;
        }
    }
    if (__any_sync(0xFFFFFFFFu, grows)) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < 2; i++) max[m][i] = row_max(max[m][i]);
        }
        shrink_rows<HS, M, MAY_BE_BLIND>(rows, max, scale_log2);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float shift = -rows.max[m][i] * scale_log2;
            if (MAY_BE_BLIND && rows.max[m][i] == -INFINITY) shift = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    s[m][n][j] = exp2_fast(fmaf(s[m][n][j], scale_log2, shift));
                    rows.sum[m][i] += s[m][n][j];
                }
            }
        }
    }
}

#endif
