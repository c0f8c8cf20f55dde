/* rotary: pairs of channels of every query and key are turned by an angle that grows with the position.
 *
 * The angles are the same for all heads, and for all sequences when these start at the same position. So a
 * table of sines and cosines is made first, one row per position, in scratch; turning is then four products a
 * pair, at the speed of memory. The table is computed in double: a sine and a cosine from the library start a
 * block of positions, and the rest of the block follows by turning once more by the same angle, whose error
 * stays far below what a float can show. */
#include "backend/cpu/kernels.h"
#include "ops/ops.h"

enum { BLOCK = 16 }; /* positions that follow from one call of sine and cosine */

typedef struct {
    int64_t n_sequences, n_positions;  /* of the table: one sequence when all are alike */
    int64_t half;                      /* pairs of a head */
    double *frequency, *cosine, *sine; /* (half): angle per position, and the rotation by it */
    float *rows;                       /* (n_sequences, n_positions, 2, half): cosines, sines */
} RotaryTable;

static RotaryTable table_open(const Node *node, void *scratch) {
    const RotaryAttributes *a = node->attributes;
    RotaryTable table = {
        .n_sequences = node->input[1] ? node->input[0]->shape.dim[0] : 1,
        .n_positions = node->input[0]->shape.dim[1],
        .half = a->head_size / 2,
    };
    table.frequency = scratch;
    if (scratch) {
        table.cosine = table.frequency + table.half;
        table.sine = table.cosine + table.half;
        table.rows = (float *)(table.sine + table.half);
    }
    return table;
}

size_t cpu_rotary_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    RotaryTable table = table_open(node, NULL);
    size_t half = (size_t)table.half, n_rows = (size_t)(table.n_sequences * table.n_positions);
    return 3 * half * sizeof(double) + n_rows * 2 * half * sizeof(float);
}

static void fill_block(const RotaryTable *table, int64_t first_position, int64_t n_positions, float *rows) {
    int64_t half = table->half;
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)first_position * table->frequency[i];
        double cosine = cos(angle), sine = sin(angle);
        for (int64_t t = 0; t < n_positions; t++) {
            rows[2 * t * half + i] = (float)cosine;
            rows[(2 * t + 1) * half + i] = (float)sine;
            double next = cosine * table->cosine[i] - sine * table->sine[i];
            sine = sine * table->cosine[i] + cosine * table->sine[i];
            cosine = next;
        }
    }
}

/* n rows from row t of sequence b on, in runs of consecutive positions. */
static void fill_runs(const RotaryTable *table, const RotaryAttributes *a, const Tensor *tensor,
                      const int32_t *start, int64_t b, int64_t t, int64_t n) {
    for (int64_t end = t + n, next; t < end; t = next) {
        int64_t first = start_place(&a->positions, tensor, start, b, t);
        for (next = t + 1; next < end; next++)
            if (start_place(&a->positions, tensor, start, b, next) != first + next - t) break;
        fill_block(table, first, next - t, table->rows + (b * table->n_positions + t) * 2 * table->half);
    }
}

/* The rotation back is the rotation forth with the other sign of the angle. */
static void table_fill(const RotaryTable *table, const RotaryAttributes *a, const Tensor *tensor,
                       const int32_t *start, int n_threads) {
    for (int64_t i = 0; i < table->half; i++) {
        table->frequency[i] =
            pow((double)a->theta, -2.0 * (double)i / a->head_size) * (a->inverse ? -1.0 : 1.0);
        table->cosine[i] = cos(table->frequency[i]);
        table->sine[i] = sin(table->frequency[i]);
    }
    (void)n_threads; /* nobody reads it in a build without OpenMP */
    int64_t n_blocks = (table->n_positions + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t task = 0; task < table->n_sequences * n_blocks; task++) {
        int64_t b = task / n_blocks, first = task % n_blocks * BLOCK, left = table->n_positions - first;
        fill_runs(table, a, tensor, start, b, first, left < BLOCK ? left : BLOCK);
    }
}

CPU_INLINE void turn_step(const float *x, const float *cosines, const float *sines, int64_t half, float *y,
                          bool add, int lanes) {
    vec first = lanes_load(x, lanes), second = lanes_load(x + half, lanes);
    vec cosine = lanes_load(cosines, lanes), sine = lanes_load(sines, lanes);
    lanes_write(y, vec_fma(first, cosine, -(second * sine)), add, lanes);
    lanes_write(y + half, vec_fma(second, cosine, first * sine), add, lanes);
}

CPU_INLINE void copy_step(const float *x, float *y, bool add, int lanes) {
    lanes_write(y, lanes_load(x, lanes), add, lanes);
}

static void turn_head(const float *x, const float *cosines, int64_t half, float *y, bool add) {
    const float *sines = cosines + half;
    int64_t i = 0;
    for (; i + VEC_LANES <= half; i += VEC_LANES) {
        turn_step(x + i, cosines + i, sines + i, half, y + i, add, VEC_LANES);
    }
    if (i < half) turn_step(x + i, cosines + i, sines + i, half, y + i, add, (int)(half - i));
}

Status cpu_rotary(const KernelCall *call, Error *error) {
    (void)error;
    const RotaryAttributes *a = call->node->attributes;
    const float *qkv = call->in[0]; /* (B,T,W) */
    float *turned = call->out[0];   /* (B,T,W) */
    int64_t N = shape_rows(call->node->input[0]->shape), W = shape_columns(call->node->input[0]->shape);
    int64_t rotated = (int64_t)(a->n_heads + a->n_kv_heads) * a->head_size;
    int n_threads = cpu_threads(call, N * W);
    RotaryTable table = table_open(call->node, call->scratch);
    table_fill(&table, a, call->node->input[1], call->in[1], n_threads);
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t n = 0; n < N; n++) {
        const float *x = qkv + n * W;
        float *y = turned + n * W;
        int64_t row = table.n_sequences > 1 ? n : n % table.n_positions;
        for (int64_t head = 0; head < rotated; head += a->head_size) {
            turn_head(x + head, table.rows + row * 2 * table.half, table.half, y + head, call->add[0]);
        }
        if (x == y && !call->add[0]) continue; /* in place: the values are there */
        int64_t i = rotated;
        for (; i + VEC_LANES <= W; i += VEC_LANES) copy_step(x + i, y + i, call->add[0], VEC_LANES);
        if (i < W) copy_step(x + i, y + i, call->add[0], (int)(W - i));
    }
    return STATUS_OK;
}
