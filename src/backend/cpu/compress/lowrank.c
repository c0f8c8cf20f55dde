/* lowrank_project, lowrank_orthonormal, lowrank_return and lowrank_expand: matrices times a few columns.
 *
 * All are bound by memory: each passes over the matrix once, four columns at a time. Rows of P and columns of
 * Q are shared out to threads, each computed by one of them in an order of its own, so results do not depend
 * on their number. Columns of P are made orthonormal by the plain function, a matrix a thread. */
#include "ops/compress/lowrank.h"
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

enum { FEW = 4 /* columns of P or Q at a time */ };

static int threads_for(const KernelCall *call, const LowRankMatrix *matrix) {
    return cpu_threads(call, matrix->rows * matrix->columns);
}

/* ---- project */

static void draw_columns(const LowRankAttributes *a, const LowRankMatrix *matrix, float *basis) {
    for (int r = 0; r < a->rank; r++) {
        int64_t at = matrix->right + r * matrix->columns, i = 0;
        while (i < matrix->columns && basis[at + i] == 0.0f) i++;
        if (i < matrix->columns) continue;
        for (i = 0; i < matrix->columns; i++)
            basis[at + i] = lowrank_start(matrix->seed, r * matrix->columns + i);
    }
}

CPU_INLINE void gather_lanes(float scale, const float *g, float *e, int lanes) {
    lanes_store(e, vec_fma(vec_set(scale), lanes_load(g, lanes), lanes_load(e, lanes)), lanes);
}

static void gather_row(float scale, const float *g, float *e, int64_t n) {
    int64_t i = 0;
    for (; i + VEC_LANES <= n; i += VEC_LANES) gather_lanes(scale, g + i, e + i, VEC_LANES);
    if (i < n) gather_lanes(scale, g + i, e + i, (int)(n - i));
}

/* The products of a row with `few` columns of Q, which are n apart, to places `stride` apart. */
CPU_INLINE void multiply_row(const float *m, const float *q, int64_t n, float *p, int64_t stride, int few) {
    vec sum[FEW];
    int64_t i = 0;
    for (int r = 0; r < few; r++) sum[r] = vec_set(0.0f);
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        vec x = vec_load(m + i);
        for (int r = 0; r < few; r++) sum[r] = vec_fma(x, vec_load(q + r * n + i), sum[r]);
    }
    if (i < n) {
        vec x = vec_load_part(m + i, (int)(n - i), 0.0f);
        for (int r = 0; r < few; r++)
            sum[r] = vec_fma(x, vec_load_part(q + r * n + i, (int)(n - i), 0.0f), sum[r]);
    }
    for (int r = 0; r < few; r++) p[r * stride] = vec_sum(sum[r]);
}

static void project_row(const LowRankAttributes *a, const LowRankMatrix *matrix, int64_t row, const float *m,
                        const float *basis, float *message) {
    int64_t n = matrix->columns;
    for (int r = 0; r < a->rank; r += FEW) {
        const float *q = basis + matrix->right + r * n;
        float *p = message + matrix->left + r * matrix->rows + row;
        switch (a->rank - r) {
        case 1: multiply_row(m, q, n, p, matrix->rows, 1); break;
        case 2: multiply_row(m, q, n, p, matrix->rows, 2); break;
        case 3: multiply_row(m, q, n, p, matrix->rows, 3); break;
        default: multiply_row(m, q, n, p, matrix->rows, FEW);
        }
    }
}

static void send_run(const LowRankRun *run, float scale, const float *gradient, float *errors,
                     float *message) {
    for (int64_t i = 0; i < run->n; i++) {
        message[run->at + i] = fmaf(scale, gradient[run->first + i], errors[run->first + i]);
        errors[run->first + i] = 0.0f;
    }
}

Status cpu_lowrank_project(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *factor = call->in[1];
    float *message = call->out[0], *errors = call->out[1], *basis = call->out[2];
    float scale = factor ? *factor : 1.0f;
    if (!isfinite(scale)) {
        memset(message, 0, (size_t)a->n_message * sizeof *message);
        return STATUS_OK;
    }
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        int64_t n = matrix->columns;
        int n_threads = threads_for(call, matrix);
        draw_columns(a, matrix, basis);
#pragma omp parallel for schedule(static) num_threads(n_threads)
        for (int64_t row = 0; row < matrix->rows; row++) {
            float *e = errors + matrix->first + row * n;
            gather_row(scale, gradient + matrix->first + row * n, e, n);
            project_row(a, matrix, row, e, basis, message);
        }
    }
    for (int i = 0; i < a->n_runs; i++) send_run(&a->run[i], scale, gradient, errors, message);
    return STATUS_OK;
}

/* ---- orthonormal */

Status cpu_lowrank_orthonormal(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    float *message = call->out[0];
    int n_threads = cpu_threads(call, a->n_message);
    if (call->in[0] != message) memcpy(message, call->in[0], (size_t)a->n_message * sizeof *message);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (int i = 0; i < a->n_matrices; i++)
        lowrank_orthonormalise(message + a->matrix[i].left, a->rank, a->matrix[i].rows);
    return STATUS_OK;
}

/* ---- return */

enum { STRIP_VECS = 4, STRIP = STRIP_VECS * VEC_LANES };

/* `few` columns of Q, `lanes` numbers of each: sums over all rows. */
CPU_INLINE void return_strip(const LowRankMatrix *matrix, const float *m, const float *p, float *q,
                             int n_vecs, int lanes, int few) {
    vec sum[FEW][STRIP_VECS];
    for (int r = 0; r < few; r++)
        for (int v = 0; v < n_vecs; v++) sum[r][v] = vec_set(0.0f);
    for (int64_t row = 0; row < matrix->rows; row++, m += matrix->columns) {
        vec x[STRIP_VECS];
        for (int v = 0; v < n_vecs; v++) x[v] = lanes_load(m + v * VEC_LANES, lanes);
        for (int r = 0; r < few; r++) {
            vec weight = vec_set(p[r * matrix->rows + row]);
            for (int v = 0; v < n_vecs; v++) sum[r][v] = vec_fma(weight, x[v], sum[r][v]);
        }
    }
    for (int r = 0; r < few; r++)
        for (int v = 0; v < n_vecs; v++)
            lanes_store(q + r * matrix->columns + v * VEC_LANES, sum[r][v], lanes);
}

CPU_INLINE void return_columns(const LowRankMatrix *matrix, const float *m, const float *p, float *q,
                               int64_t n, int few) {
    int64_t i = 0;
    if (n == STRIP) {
        return_strip(matrix, m, p, q, STRIP_VECS, VEC_LANES, few);
        return;
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) return_strip(matrix, m + i, p, q + i, 1, VEC_LANES, few);
    if (i < n) return_strip(matrix, m + i, p, q + i, 1, (int)(n - i), few);
}

Status cpu_lowrank_return(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *errors = call->in[0], *message = call->in[1];
    float *returned = call->out[0];
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        int64_t n = matrix->columns, n_strips = (n + STRIP - 1) / STRIP;
        int n_threads = threads_for(call, matrix);
#pragma omp parallel for schedule(static) num_threads(n_threads)
        for (int64_t strip = 0; strip < n_strips; strip++) {
            int64_t first = strip * STRIP, count = n - first < STRIP ? n - first : STRIP;
            const float *m = errors + matrix->first + first;
            for (int r = 0; r < a->rank; r += FEW) {
                const float *p = message + matrix->left + r * matrix->rows;
                float *q = returned + matrix->right + r * n + first;
                switch (a->rank - r) {
                case 1: return_columns(matrix, m, p, q, count, 1); break;
                case 2: return_columns(matrix, m, p, q, count, 2); break;
                case 3: return_columns(matrix, m, p, q, count, 3); break;
                default: return_columns(matrix, m, p, q, count, FEW);
                }
            }
        }
    }
    return STATUS_OK;
}

/* ---- expand */

CPU_INLINE void expand_lanes(const LowRankAttributes *a, const LowRankMatrix *matrix, const float *p,
                             const float *q, float *g, float *e, int lanes) {
    vec sum = vec_set(0.0f);
    for (int r = 0; r < a->rank; r++)
        sum = vec_fma(vec_set(p[r * matrix->rows]), lanes_load(q + r * matrix->columns, lanes), sum);
    lanes_store(g, sum, lanes);
    lanes_store(e, vec_fma(vec_set(-a->share), sum, lanes_load(e, lanes)), lanes);
}

static void expand_row(const LowRankAttributes *a, const LowRankMatrix *matrix, const float *p,
                       const float *q, float *g, float *e) {
    int64_t i = 0, n = matrix->columns;
    for (; i + VEC_LANES <= n; i += VEC_LANES) expand_lanes(a, matrix, p, q + i, g + i, e + i, VEC_LANES);
    if (i < n) expand_lanes(a, matrix, p, q + i, g + i, e + i, (int)(n - i));
}

Status cpu_lowrank_expand(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *message = call->in[0], *returned = call->in[1], *factor = call->in[2];
    float *gradient = call->out[0], *errors = call->out[1];
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        int n_threads = threads_for(call, matrix);
#pragma omp parallel for schedule(static) num_threads(n_threads)
        for (int64_t row = 0; row < matrix->rows; row++) {
            int64_t at = matrix->first + row * matrix->columns;
            expand_row(a, matrix, message + matrix->left + row, returned + matrix->right, gradient + at,
                       errors + at);
        }
    }
    for (int i = 0; i < a->n_runs; i++)
        memcpy(gradient + a->run[i].first, message + a->run[i].at, (size_t)a->run[i].n * sizeof *gradient);
    memcpy(call->out[2], returned, (size_t)a->n_basis * sizeof *returned);
    return STATUS_OK;
}

/* ---- rescale */

Status cpu_rescale(const KernelCall *call, Error *error) {
    (void)error;
    const float factor = *(const float *)call->in[0];
    float *numbers = call->out[0];
    int64_t n = tensor_count(call->node->output[0]);
    int n_parts = cpu_threads(call, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(n, part, n_parts);
        for (int64_t i = range.first; i < range.end; i++) numbers[i] /= factor;
    }
    return STATUS_OK;
}
