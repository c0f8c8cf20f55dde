/* Large matrix products, called directly: sums over several blocks of k, stationary operands packed in several passes,
 * and results shared between threads, which the shapes of other tests are too small for.
 *
 * Reference values are sums in double, of sampled elements only: a full one would take a hundred times as long as the
 * product. What differs from block to block or from task to task is wrong over whole tiles, and is hit by the sample. The
 * corners and edges are always in it. Rows are longer than they need be, so that a leading dimension is not the width,
 * and what lies between them must stay as it was. */
#include "backend/cpu/gemm/gemm.h"
#include "base/random.h"
#include "base/system/memory.h"
#include "data_support.h"
#include "harness.h"

#include <math.h>

enum { GAP = 3, N_SAMPLES = 2000 };

static const float FENCE = -12345.0f;

/* Rows of `width` random values, GAP apart. */
static float *random_matrix(int64_t rows, int64_t width, const char *name) {
    float *matrix = malloc((size_t)(rows * (width + GAP)) * sizeof *matrix);
    uint64_t state = test_hash(name, (uint64_t)(rows * 31 + width)) | 1;
    for (int64_t i = 0; i < rows * (width + GAP); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        matrix[i] = i % (width + GAP) < width ? (float)(int32_t)(state >> 32) * 0x1p-31f : FENCE;
    }
    return matrix;
}

static float *copy_of(const float *matrix, int64_t rows, int64_t width) {
    size_t n_bytes = (size_t)(rows * (width + GAP)) * sizeof *matrix;
    float *copy = malloc(n_bytes);
    memcpy(copy, matrix, n_bytes);
    return copy;
}

typedef enum { PLAIN, ACCUMULATE, BIAS_GELU, RESIDUAL_IN_PLACE, GELU_RESIDUAL_IN_PLACE, N_MODES } Mode;

static const char *const mode_names[N_MODES] = {"plain", "accumulate", "bias, gelu and preactivation",
                                                "residual in place", "bias, gelu and residual in place"};

/* A product, and what its result is compared with. */
typedef struct {
    int64_t m, n, k;
    bool transpose_a, transpose_b;
    Mode mode;
    float *a, *b, *bias, *before; /* before: (m,n), what C holds before the product */
} Case;

static double gelu(double x) {
    return x / 2.0 * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double element(const float *matrix, int64_t width, int64_t row, int64_t column) {
    return (double)matrix[row * (width + GAP) + column];
}

/* Where the case is run: C and preactivation afterwards, malloc'ed. */
typedef struct {
    float *c, *preactivation;
} Result;

static Result run_case(const Case *test, int n_threads) {
    Result result = {.c = copy_of(test->before, test->m, test->n),
                     .preactivation = copy_of(test->before, test->m, test->n)};
    const bool with_gelu = test->mode == BIAS_GELU || test->mode == GELU_RESIDUAL_IN_PLACE;
    const bool with_residual = test->mode == RESIDUAL_IN_PLACE || test->mode == GELU_RESIDUAL_IN_PLACE;
    const GemmEpilogue epilogue = {.bias = with_gelu ? test->bias : NULL,
                                   .preactivation = with_gelu ? result.preactivation : NULL,
                                   .activation = with_gelu ? GEMM_GELU_TANH : GEMM_IDENTITY,
                                   .residual = with_residual ? result.c : NULL};
    const Gemm gemm = {.transpose_a = test->transpose_a,
                       .transpose_b = test->transpose_b,
                       .m = test->m,
                       .n = test->n,
                       .k = test->k,
                       .a = test->a,
                       .lda = (test->transpose_a ? test->m : test->k) + GAP,
                       .b = test->b,
                       .ldb = (test->transpose_b ? test->k : test->n) + GAP,
                       .c = result.c,
                       .ldc = test->n + GAP,
                       .accumulate = test->mode == ACCUMULATE,
                       .epilogue = test->mode == ACCUMULATE ? NULL : &epilogue};
    const size_t n_bytes = gemm_scratch_bytes(&gemm, n_threads);
    void *scratch;
    Error error = {0};
    assert_ok(memory_alloc(&scratch, n_bytes, "scratch", &error), &error);
    memset(scratch, 0xFF, n_bytes); /* NaN: nobody may rely on it */
    gemm_run(&gemm, scratch, n_threads);
    memory_free(scratch, n_bytes);
    return result;
}

static void check_value(const Case *test, const char *what, int64_t i, int64_t j, double got, double want,
                        double tolerance) {
    if (fabs(got - want) <= tolerance) return; /* false for NaN */
    fail_msg("%lldx%lldx%lld, %s%s%s: %s[%lld,%lld] is %.9g, should be %.9g", (long long)test->m,
             (long long)test->n, (long long)test->k, mode_names[test->mode],
             test->transpose_a ? ", A transposed" : "", test->transpose_b ? ", B transposed" : "", what,
             (long long)i, (long long)j, got, want);
}

static void check_element(const Case *test, const Result *result, int64_t i, int64_t j) {
    double sum = 0.0, squares = 1.0;
    for (int64_t p = 0; p < test->k; p++) {
        double a = test->transpose_a ? element(test->a, test->m, p, i) : element(test->a, test->k, i, p);
        double b = test->transpose_b ? element(test->b, test->k, j, p) : element(test->b, test->n, p, j);
        sum += a * b;
        squares += a * b * a * b;
    }
    /* Rounding errors of a sum grow like its terms' norm times, at worst by chance, the root of their number. */
    const double tolerance = 4e-7 * sqrt(squares) * sqrt((double)test->k) + 1e-6;
    const double before = element(test->before, test->n, i, j), got = element(result->c, test->n, i, j);
    double want = sum;
    if (test->mode == ACCUMULATE || test->mode == RESIDUAL_IN_PLACE) want += before;
    if (test->mode == BIAS_GELU || test->mode == GELU_RESIDUAL_IN_PLACE) {
        want += (double)test->bias[j];
        check_value(test, "preactivation", i, j, element(result->preactivation, test->n, i, j), want,
                    tolerance);
        want = gelu(want) + (test->mode == GELU_RESIDUAL_IN_PLACE ? before : 0.0);
    }
    check_value(test, "c", i, j, got, want, 1.2 * tolerance);
}

/* Nothing was written between the rows. */
static void check_gaps(const Case *test, const float *matrix) {
    for (int64_t i = 0; i < test->m; i++)
        for (int64_t g = 0; g < GAP; g++)
            assert_true(element(matrix, test->n, i, test->n + g) == (double)FENCE);
}

static void check_case(const Case *test, int64_t n_samples) {
    Result one = run_case(test, 1), three = run_case(test, 3);
    const size_t n_bytes = (size_t)(test->m * (test->n + GAP)) * sizeof(float);
    if (memcmp(one.c, three.c, n_bytes) != 0 ||
        memcmp(one.preactivation, three.preactivation, n_bytes) != 0) {
        fail_msg("%lldx%lldx%lld, %s: three threads give other bits than one", (long long)test->m,
                 (long long)test->n, (long long)test->k, mode_names[test->mode]);
    }
    check_gaps(test, one.c);
    check_gaps(test, one.preactivation);
    for (int64_t s = 0; s < n_samples; s++) {
        int64_t i = (int64_t)(test_hash("row", (uint64_t)s) % (uint64_t)test->m);
        int64_t j = (int64_t)(test_hash("column", (uint64_t)s) % (uint64_t)test->n);
        if (s % 16 == 0) i = s / 16 % 2 ? test->m - 1 : 0;
        if (s % 16 == 1) j = s / 16 % 2 ? test->n - 1 : 0;
        check_element(test, &one, i, j);
    }
    check_element(test, &one, test->m - 1, test->n - 1);
    free(one.c);
    free(one.preactivation);
    free(three.c);
    free(three.preactivation);
}

/* One shape in the modes of a set of bits, with the transposes: 0 none, 1 A, 2 B, 3 both. */
static void check_shape(int64_t m, int64_t n, int64_t k, unsigned modes, unsigned transposes,
                        int64_t n_samples) {
    float *bias = random_matrix(1, n, "bias"), *before = random_matrix(m, n, "before");
    for (unsigned t = 0; t < 4; t++) {
        if (!(transposes >> t & 1)) continue;
        Case test = {m, n, k, t & 1, t & 2, PLAIN, NULL, NULL, bias, before};
        test.a = random_matrix(t & 1 ? k : m, t & 1 ? m : k, "a");
        test.b = random_matrix(t & 2 ? n : k, t & 2 ? k : n, "b");
        for (int mode = 0; mode < N_MODES; mode++) {
            test.mode = (Mode)mode;
            if (modes >> mode & 1) check_case(&test, n_samples);
        }
        free(test.a);
        free(test.b);
    }
    free(bias);
    free(before);
}

enum { ALL_MODES = (1 << N_MODES) - 1, ALL_TRANSPOSES = 15 };

static void several_blocks_of_k(void **state) {
    (void)state;
    check_shape(300, 310, 3100, ALL_MODES, ALL_TRANSPOSES, 150);
    check_shape(310, 290, 1537, ALL_MODES, 1 << 2, 500); /* the other operand moves */
}

static void many_blocks_of_k(void **state) {
    (void)state;
    check_shape(130, 70, 9000, ALL_MODES, ALL_TRANSPOSES, 100);
}

/* So much stationary that not all blocks of k are packed at once. */
static void several_passes_over_k(void **state) {
    (void)state;
    check_shape(800, 800, 3072, 1 << PLAIN | 1 << GELU_RESIDUAL_IN_PLACE, 1 << 2, N_SAMPLES / 2);
    check_shape(801, 790, 3071, 1 << ACCUMULATE | 1 << RESIDUAL_IN_PLACE, 1 << 1, N_SAMPLES / 2);
}

/* More stationary rows or columns than are packed at once, however small k is. */
static void several_passes_over_columns(void **state) {
    (void)state;
    check_shape(8300, 8210, 8, 1 << BIAS_GELU, 1 << 0, 10 * N_SAMPLES);
    check_shape(8210, 8300, 8, 1 << ACCUMULATE, 1 << 3, 10 * N_SAMPLES);
}

static void sums_of_middle_length(void **state) {
    (void)state;
    for (int64_t k = 767; k <= 769; k++) { /* just one block, and two */
        check_shape(131, 257, k, ALL_MODES, 1 << 2, 300);
        check_shape(257, 131, k, ALL_MODES, 1 << 2, 300);
    }
}

/* Few strips: operands are multiplied as they lie, with odd rows and ends of k. */
static void operands_that_are_not_packed(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{257, 48, 130},  {67, 128, 257}, {18, 32, 3},   {99, 64, 7},
                                        {130, 80, 1100}, {17, 16, 40},   {40, 130, 45}, {34, 96, 256},
                                        {128, 64, 33},   {1, 64, 70}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_shape(shapes[i][0], shapes[i][1], shapes[i][2], ALL_MODES, ALL_TRANSPOSES, 150);
}

/* Columns `n` of the product, and how its first `narrow` columns come out alone. */
static void check_narrow(int64_t m, int64_t n, int64_t narrow, int64_t k, unsigned transposes) {
    const bool transpose_a = transposes & 1, transpose_b = transposes & 2;
    float *a = random_matrix(transpose_a ? k : m, transpose_a ? m : k, "a"),
          *b = random_matrix(transpose_b ? n : k, transpose_b ? k : n, "b"),
          *whole = random_matrix(m, n, "c"), *alone = copy_of(whole, m, n);
    void *scratch;
    Error error = {0};
    Gemm gemm = {.transpose_a = transpose_a,
                 .transpose_b = transpose_b,
                 .m = m,
                 .n = n,
                 .k = k,
                 .a = a,
                 .lda = (transpose_a ? m : k) + GAP,
                 .b = b,
                 .ldb = (transpose_b ? k : n) + GAP,
                 .c = whole,
                 .ldc = n + GAP};
    const size_t n_bytes = gemm_scratch_bytes_up_to(&gemm, 1);
    assert_ok(memory_alloc(&scratch, n_bytes, "scratch", &error), &error);
    gemm_run(&gemm, scratch, 1);
    gemm.c = alone;
    gemm.n = narrow;
    gemm_run(&gemm, scratch, 1);
    for (int64_t i = 0; i < m * narrow; i++) {
        const int64_t at = i / narrow * (n + GAP) + i % narrow;
        uint32_t bits, bits_alone;
        memcpy(&bits, &whole[at], sizeof bits);
        memcpy(&bits_alone, &alone[at], sizeof bits_alone);
        if (bits != bits_alone)
            fail_msg("%lldx%lldx%lld%s%s: element %lld is %.9g, alone %.9g", (long long)m, (long long)n,
                     (long long)k, transpose_a ? ", A transposed" : "", transpose_b ? ", B transposed" : "",
                     (long long)i, (double)whole[at], (double)alone[at]);
    }
    memory_free(scratch, n_bytes);
    free(a);
    free(b);
    free(whole);
    free(alone);
}

/* Packed or not, sums are made in the same order: an expert's GEMM has the bits of the dense one's. */
static void columns_alone_have_the_same_bits(void **state) {
    (void)state;
    for (unsigned transposes = 0; transposes < 4; transposes++) {
        check_narrow(131, 400, 64, 150, transposes);
        check_narrow(64, 300, 32, 200, transposes);
        check_narrow(90, 480, 96, 1300, transposes);
    }
}

/* A bound for sizes up to given ones is one for each of them, on any number of threads. */
static void scratch_is_bounded(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 13, 64, 127, 384, 769, 1025, 3000, 9001};
    enum { N_SIZES = sizeof sizes / sizeof sizes[0] };
    for (int i = 0; i < N_SIZES * N_SIZES * N_SIZES * 4; i++) {
        Gemm most = {.m = sizes[i % N_SIZES],
                     .n = sizes[i / N_SIZES % N_SIZES],
                     .k = sizes[i / N_SIZES / N_SIZES % N_SIZES],
                     .transpose_a = i & 1,
                     .transpose_b = i & 2};
        int n_threads = 1 + (int)(test_hash("threads", (uint64_t)i) % 7);
        size_t bound = gemm_scratch_bytes_up_to(&most, n_threads);
        assert_int_equal(bound % 64, 0);
        for (uint64_t j = 0; j < 12; j++) {
            Gemm gemm = most;
            if (j) gemm.m = 1 + (int64_t)(test_hash("m", 12 * (uint64_t)i + j) % (uint64_t)most.m);
            if (j) gemm.k = 1 + (int64_t)(test_hash("k", 12 * (uint64_t)i + j) % (uint64_t)most.k);
            if (gemm_scratch_bytes(&gemm, n_threads) > bound)
                fail_msg("(%lld,%lld,%lld) needs more than those up to (%lld,%lld,%lld)", (long long)gemm.m,
                         (long long)gemm.n, (long long)gemm.k, (long long)most.m, (long long)most.n,
                         (long long)most.k);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_blocks_of_k),          cmocka_unit_test(many_blocks_of_k),
        cmocka_unit_test(several_passes_over_k),        cmocka_unit_test(several_passes_over_columns),
        cmocka_unit_test(sums_of_middle_length),        cmocka_unit_test(scratch_is_bounded),
        cmocka_unit_test(operands_that_are_not_packed), cmocka_unit_test(columns_alone_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
