/* Packing: strips of A and B laid out in the order in which the kernel reads them.
 *
 * Packing is pure overhead, and for a batch of 256 tokens a weight earns it back in only 16 cycles of
 * arithmetic. So three of the four cases are arranged to be plain copies (see gemm_kernel.h for the layouts);
 * only B stored (n,k) has to be transposed, which is done in registers, a square of VEC_LANES at a time. Each
 * case walks its source along the rows as stored, so that whole lines and pages are used while they are at
 * hand. */
#include "backend/cpu/gemm/gemm_kernel.h"
#include "backend/cpu/transpose.h"

/* A square at the edge: rows x depth values exist, the others are zero. */
static void transpose_part(const float *in, int64_t stride_in, int64_t rows, int64_t depth, float *out,
                           int64_t stride_out) {
    for (int64_t k = 0; k < VEC_LANES; k++)
        for (int64_t row = 0; row < VEC_LANES; row++)
            out[k * stride_out + row] = row < rows && k < depth ? in[row * stride_in + k] : 0.0f;
}

/* One strip of B stored (n,k). */
static void pack_strip_transposed(const Gemm *gemm, int64_t column, int64_t width, const GemmPart *part,
                                  float *out) {
    for (int64_t j = 0; j < width; j += VEC_LANES) {
        int64_t rows = gemm_min(VEC_LANES, gemm->n - column - j);
        const float *in = gemm->b + (column + j) * gemm->ldb;
        for (int64_t k = part->k_from; k < part->k_to; k += VEC_LANES) {
            float *square = out + (k - part->k_start) * width + j;
            if (rows == VEC_LANES && k + VEC_LANES <= part->k_to)
                vec_transpose(in + k, gemm->ldb, square, width);
            else transpose_part(in + k, gemm->ldb, rows, part->k_to - k, square, width);
        }
    }
}

/* `depth` rows of `count` floats, block <= count <= 2·block, as two moves of constant size that may
 * overlap. */
static inline __attribute__((always_inline)) void copy_rows(const size_t block, int64_t depth, int64_t count,
                                                            const float *in, int64_t stride_in, float *out,
                                                            int64_t stride_out) {
    const int64_t second = count - (int64_t)block;
    for (int64_t k = 0; k < depth; k++, in += stride_in, out += stride_out) {
        memcpy(out, in, block * sizeof(float));
        memcpy(out + second, in + second, block * sizeof(float));
    }
}

/* A rectangle of depth x count floats into padded_depth x width, zeros around it. */
static void copy_padded(int64_t depth, int64_t count, const float *in, int64_t stride_in, float *out,
                        int64_t padded_depth, int64_t width) {
    if (count >= 16) copy_rows(16, depth, count, in, stride_in, out, width);
    else if (count >= 8) copy_rows(8, depth, count, in, stride_in, out, width);
    else if (count >= 4) copy_rows(4, depth, count, in, stride_in, out, width);
    else if (count >= 2) copy_rows(2, depth, count, in, stride_in, out, width);
    else copy_rows(1, depth, count, in, stride_in, out, width);
    if (count < width)
        for (int64_t k = 0; k < depth; k++)
            for (int64_t i = count; i < width; i++) out[k * width + i] = 0.0f;
    memset(out + depth * width, 0, (size_t)((padded_depth - depth) * width) * sizeof(float));
}

/* Strips of a matrix stored with k as its rows, VEC_LANES rows at a time. `start` says where strips begin. */
static void pack_copied(const float *in, int64_t stride, int64_t size, int64_t (*start)(int64_t, int64_t),
                        const GemmPart *part, float *out) {
    const int64_t depth = gemm_pad_k(part->k_end - part->k_start), origin = start(size, part->first);
    for (int64_t k = part->k_from; k < part->k_to; k += VEC_LANES)
        for (int64_t strip = part->first; strip < part->last; strip++) {
            int64_t begin = start(size, strip), width = start(size, strip + 1) - begin;
            copy_padded(gemm_min(VEC_LANES, part->k_to - k), gemm_min(width, size - begin),
                        in + k * stride + begin, stride,
                        out + (begin - origin) * depth + (k - part->k_start) * width, VEC_LANES, width);
        }
}

void gemm_pack_columns(const Gemm *gemm, const GemmPart *part, float *out) {
    if (!gemm->transpose_b) {
        pack_copied(gemm->b, gemm->ldb, gemm->n, gemm_column_start, part, out);
        return;
    }
    const int64_t depth = gemm_pad_k(part->k_end - part->k_start),
                  origin = gemm_column_start(gemm->n, part->first);
    for (int64_t strip = part->first; strip < part->last; strip++) {
        int64_t column = gemm_column_start(gemm->n, strip);
        int64_t width = gemm_column_start(gemm->n, strip + 1) - column;
        pack_strip_transposed(gemm, column, width, part, out + (column - origin) * depth);
    }
}

/* One strip of A stored (m,k): VEC_LANES values of a row at a time. */
static void pack_strip_rows(const Gemm *gemm, int64_t row, int64_t height, const GemmPart *part, float *out) {
    const int64_t length = part->k_to - part->k_from, whole = length / VEC_LANES * VEC_LANES;
    const int64_t existing = gemm_min(height, gemm->m - row);
    const int rest = (int)(length - whole);
    out += (part->k_from - part->k_start) * height;
    for (int64_t i = 0; i < existing; i++) {
        const float *in = gemm->a + (row + i) * gemm->lda + part->k_from;
        float *to = out + i * VEC_LANES;
        for (int64_t k = 0; k < whole; k += VEC_LANES) vec_store(to + k * height, vec_load(in + k));
        if (rest) vec_store(to + whole * height, vec_load_part(in + whole, rest, 0.0f));
    }
    for (int64_t i = existing; i < height; i++)
        for (int64_t k = 0; k < length; k += VEC_LANES)
            vec_store(out + k * height + i * VEC_LANES, vec_set(0.0f));
}

void gemm_pack_rows(const Gemm *gemm, const GemmPart *part, float *out) {
    if (gemm->transpose_a) {
        pack_copied(gemm->a, gemm->lda, gemm->m, gemm_row_start, part, out);
        return;
    }
    const int64_t depth = gemm_pad_k(part->k_end - part->k_start),
                  origin = gemm_row_start(gemm->m, part->first);
    for (int64_t strip = part->first; strip < part->last; strip++) {
        int64_t row = gemm_row_start(gemm->m, strip);
        int64_t height = gemm_row_start(gemm->m, strip + 1) - row;
        pack_strip_rows(gemm, row, height, part, out + (row - origin) * depth);
    }
}
