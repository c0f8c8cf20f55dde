/* PowerSGD, written down plainly: a matrix at a time, of all that send one, in double. */
#include "ops/compress/lowrank.h"
#include "train/verify/compressed_model.h"

#include <math.h>
#include <string.h>

/* One matrix of a part. */
typedef struct {
    CompressedModel *model;
    CompressedPart *part;
    const FlatMatrix *matrix;
    int rank;
    double *left, *right; /* (rank, rows) and (rank, columns): P, and Q where the part has it */
} LowRank;

static double *error_of(const LowRank *lowrank, int sender) {
    return lowrank->part->error + sender * lowrank->part->n + lowrank->matrix->first;
}

static void add_gradient(CompressedModel *model, CompressedPart *part, int sender, int64_t first, int64_t n) {
    double *error = part->error + sender * part->n;
    for (int64_t i = first; i < first + n; i++)
        if (part->place[i] != COMPRESSED_PADDING)
            error[i] += model->gradient[sender * model->n + part->place[i]];
}

static void set_sum(CompressedModel *model, CompressedPart *part, int64_t i, double value) {
    if (part->place[i] != COMPRESSED_PADDING) model->sum[part->place[i]] = value;
}

/* What is sent as it is. */
static void simulate_run(CompressedModel *model, CompressedPart *part, int64_t first, int64_t n) {
    for (int r = 0; r < model->n_senders; r++) add_gradient(model, part, r, first, n);
    for (int64_t i = first; i < first + n; i++) {
        double sum = 0.0;
        for (int r = 0; r < model->n_senders; r++) {
            sum += part->error[r * part->n + i];
            part->error[r * part->n + i] = 0.0;
        }
        set_sum(model, part, i, sum);
    }
}

static void draw(const LowRank *lowrank) {
    int64_t n = lowrank->matrix->columns;
    for (int r = 0; r < lowrank->rank; r++) {
        double most = 0.0, *column = lowrank->right + r * n;
        for (int64_t k = 0; k < n; k++) most = fmax(most, fabs(column[k]));
        for (int64_t k = 0; k < n && most == 0.0; k++)
            column[k] = (double)lowrank_start(lowrank->matrix->identity, r * n + k);
    }
}

static void multiply(const LowRank *lowrank) {
    int64_t rows = lowrank->matrix->rows, columns = lowrank->matrix->columns;
    memset(lowrank->left, 0, (size_t)(lowrank->rank * rows) * sizeof(double));
    for (int s = 0; s < lowrank->model->n_senders; s++)
        for (int r = 0; r < lowrank->rank; r++)
            for (int64_t i = 0; i < rows * columns; i++)
                lowrank->left[r * rows + i / columns] +=
                    error_of(lowrank, s)[i] * lowrank->right[r * columns + i % columns];
}

static double inner(const double *a, const double *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* True: whether a column is more than rounding of the others was nearly undecided. */
static bool orthonormalise(const LowRank *lowrank) {
    const double far = 1e4;
    int64_t n = lowrank->matrix->rows;
    bool is_near = false;
    for (int r = 0; r < lowrank->rank; r++) {
        double *column = lowrank->left + r * n, before = inner(column, column, n);
        for (int s = 0; s < r; s++) {
            const double *other = lowrank->left + s * n;
            double along = inner(other, column, n);
            for (int64_t i = 0; i < n; i++) column[i] -= along * other[i];
        }
        double left = inner(column, column, n);
        is_near |= before > 0.0 && left < far * LOWRANK_LEAST * before;
        double scale = left > LOWRANK_LEAST * before ? 1.0 / sqrt(left) : 0.0;
        for (int64_t i = 0; i < n; i++) column[i] *= scale;
    }
    return is_near;
}

static void multiply_back(const LowRank *lowrank) {
    int64_t rows = lowrank->matrix->rows, columns = lowrank->matrix->columns;
    memset(lowrank->right, 0, (size_t)(lowrank->rank * columns) * sizeof(double));
    for (int s = 0; s < lowrank->model->n_senders; s++)
        for (int r = 0; r < lowrank->rank; r++)
            for (int64_t i = 0; i < rows * columns; i++)
                lowrank->right[r * columns + i % columns] +=
                    error_of(lowrank, s)[i] * lowrank->left[r * rows + i / columns];
}

static void simulate_matrix(const LowRank *lowrank) {
    CompressedModel *model = lowrank->model;
    CompressedPart *part = lowrank->part;
    int64_t rows = lowrank->matrix->rows, columns = lowrank->matrix->columns, first = lowrank->matrix->first;
    for (int s = 0; s < model->n_senders; s++) add_gradient(model, part, s, first, rows * columns);
    draw(lowrank);
    multiply(lowrank);
    bool is_near = orthonormalise(lowrank);
    multiply_back(lowrank);
    for (int64_t i = 0; i < rows * columns; i++) {
        double sum = 0.0;
        for (int r = 0; r < lowrank->rank; r++)
            sum += lowrank->left[r * rows + i / columns] * lowrank->right[r * columns + i % columns];
        for (int s = 0; s < model->n_senders; s++) error_of(lowrank, s)[i] -= sum / model->n_senders;
        set_sum(model, part, first + i, sum);
        part->is_near[first + i] |= is_near;
    }
    for (int64_t i = 0; i < lowrank->rank * columns; i++)
        part->is_basis_near[lowrank->right - part->basis + i] = is_near;
}

void compressed_lowrank_simulate(CompressedModel *model, CompressedPart *part) {
    int rank = model->compression->rank;
    int64_t n_basis = 0;
    for (int p = 0; p < part->n_pieces; p++) {
        const FlatPiece *piece = &part->piece[p];
        if (!piece->n_matrices) simulate_run(model, part, piece->first, piece->n);
        for (int k = 0; k < piece->n_matrices; k++) {
            const FlatMatrix *matrix = &piece->matrix[k];
            if (!lowrank_pays(rank, matrix->rows, matrix->columns)) {
                simulate_run(model, part, matrix->first, matrix->rows * matrix->columns);
                continue;
            }
            LowRank lowrank = {.model = model,
                               .part = part,
                               .matrix = matrix,
                               .rank = rank,
                               .left = model->slice_room, /* less than the matrix has */
                               .right = part->basis + n_basis};
            simulate_matrix(&lowrank);
            n_basis += rank * matrix->columns;
        }
    }
}
