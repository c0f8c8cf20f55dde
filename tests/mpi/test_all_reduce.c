/* Every way to all-reduce: the right result, and the same bits on every rank. Sums of floating-point numbers are made of
 * terms for which the order matters, so that equal bits are no accident.
 *
 * Ranks: 1 2 3 4 5 8, long: 6 7 9 */
#include "comm_support.h"

#include "comm/algo/algo.h"
#include "comm/combine.h"

#include <float.h>

/* Vectors repeat after so many elements; a prime, so that no two slices look alike. */
enum { PERIOD = 4099 };

static const int64_t LENGTHS[] = {0, 1, 7, 1000, 1000003};
enum { N_LENGTHS = sizeof LENGTHS / sizeof LENGTHS[0] };

static const CommType TYPES[] = {COMM_F32, COMM_F64, COMM_I32, COMM_I64, COMM_BF16, COMM_F16};
enum { N_TYPES = sizeof TYPES / sizeof TYPES[0] };

/* ---- What goes in */

static uint32_t mix(uint32_t value) {
    value = (value ^ value >> 16) * 0x7feb352du;
    value = (value ^ value >> 15) * 0x846ca68bu;
    return value ^ value >> 16;
}

/* A term of rank r. 16-bit numbers are whole and small: sums of them are exact until they are rounded, once. */
static double term(int r, int i, CommType type) {
    uint32_t bits = mix((uint32_t)(r * PERIOD + i) + 1);
    double whole = (double)(int32_t)bits;
    switch (type) {
    case COMM_F32: return (double)(float)ldexp(whole, -31 + (int)(bits % 13) - 6);
    case COMM_F64: return ldexp(whole / 3, -31 + (int)(bits % 13) - 6);
    case COMM_I32: return (double)((int32_t)bits >> 5);
    case COMM_I64: return whole * 1024;
    default: return (double)(bits % 201) - 100;
    }
}

/* One period of what this rank brings along, and of what must come out; sums may be off by `slack`. */
typedef struct {
    CommType type;
    CommReduction reduction;
    char own[PERIOD * 8], want[PERIOD * 8];
    double slack[PERIOD];
} Period;

static void fill_period(Period *period, CommType type, CommReduction reduction) {
    *period = (Period){.type = type, .reduction = reduction};
    bool is_rounded = reduction == COMM_SUM && (type == COMM_F32 || type == COMM_F64);
    double epsilon = type == COMM_F32 ? (double)FLT_EPSILON : DBL_EPSILON;
    for (int i = 0; i < PERIOD; i++) {
        long double result = (long double)term(0, i, type), size = fabsl(result);
        for (int r = 1; r < world.size; r++) {
            long double value = (long double)term(r, i, type);
            size += fabsl(value);
            if (reduction == COMM_SUM) result += value;
            if (reduction == COMM_MAX) result = fmaxl(result, value);
            if (reduction == COMM_MIN) result = fminl(result, value);
        }
        put(period->own, i, type, term(world.rank, i, type));
        float single = (float)result;
        if (comm_type_is_narrow(type)) comm_narrow((uint16_t *)(void *)period->want + i, &single, 1, type);
        else put(period->want, i, type, (double)result);
        period->slack[i] = is_rounded ? (double)(size * world.size) * epsilon : 0;
    }
}

/* ---- What comes out */

static uint64_t checksum(const void *data, size_t n_bytes) {
    const unsigned char *bytes = data;
    uint64_t sum = 1469598103934665603u;
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, n_bytes - i < 8 ? n_bytes - i : 8);
        sum = (sum ^ word) * 1099511628211u;
        sum ^= sum >> 29;
    }
    return sum;
}

static void check_result(const char *data, int64_t n, const Period *period, const char *what) {
    size_t element_bytes = comm_type_bytes(period->type), whole_bytes = PERIOD * element_bytes;
    for (int64_t first = 0; first < n; first += PERIOD) {
        int length = (int)(n - first < PERIOD ? n - first : PERIOD);
        const char *got = data + (size_t)first * element_bytes;
        size_t n_bytes = length < PERIOD ? (size_t)length * element_bytes : whole_bytes;
        if (memcmp(got, period->want, n_bytes) == 0) continue;
        for (int i = 0; i < length; i++) {
            double is = get(got, i, period->type), should_be = get(period->want, i, period->type);
            if (!(fabs(is - should_be) <= period->slack[i]))
                fail_msg("%s, %lld of %s, rank %d of %d: element %lld is %.17g, not %.17g", what,
                         (long long)n, comm_type_name(period->type), world.rank, world.size,
                         (long long)first + i, is, should_be);
        }
    }
}

static void check_same_bits(const void *data, size_t n_bytes, const char *what) {
    Error error = {0};
    uint64_t own = checksum(data, n_bytes), of_first = own;
    OK(comm_broadcast(&world, &of_first, (int64_t)sizeof own, COMM_U8, 0, &error));
    if (own != of_first) fail_msg("%s: ranks 0 and %d of %d differ", what, world.rank, world.size);
}

static void check_all_reduce(int choice, int64_t n, const Period *period) {
    Error error = {0};
    size_t element_bytes = comm_type_bytes(period->type), n_bytes = (size_t)n * element_bytes;
    char *data = make(n, period->type, -1);
    for (size_t first = 0; first < n_bytes; first += PERIOD * element_bytes) {
        size_t left = n_bytes - first;
        memcpy(data + first, period->own, left < PERIOD * element_bytes ? left : PERIOD * element_bytes);
    }
    world.all_reduce = comm_algorithm(choice);
    OK(comm_all_reduce(&world, data, n, period->type, period->reduction, &error));
    world.all_reduce = NULL;
    check_result(data, n, period, comm_algorithm_names[choice]);
    check_same_bits(data, n_bytes, comm_algorithm_names[choice]);
    release(data, n, period->type);
}

static void check_reduction(CommReduction reduction) {
    Period *period = malloc(sizeof *period);
    assert_non_null(period);
    for (int t = 0; t < N_TYPES; t++) {
        fill_period(period, TYPES[t], reduction);
        for (int choice = 0; comm_algorithm_names[choice]; choice++) {
            for (int i = 0; i < N_LENGTHS; i++) check_all_reduce(choice, LENGTHS[i], period);
        }
    }
    free(period);
}

static void sums(void **state) {
    (void)state;
    check_reduction(COMM_SUM);
}

static void maxima(void **state) {
    (void)state;
    check_reduction(COMM_MAX);
}

static void minima(void **state) {
    (void)state;
    check_reduction(COMM_MIN);
}

/* ---- The halves of the ring */

/* Slices of very different lengths, some empty, some of several rounds. */
static void halves_of_the_ring(void **state) {
    (void)state;
    Error error = {0};
    int64_t border[10] = {0};
    for (int r = 0; r < world.size; r++) border[r + 1] = border[r] + (r % 3 == 1 ? 0 : r % 3 ? 17 : 300007);
    int64_t n = border[world.size];
    int32_t *data = make(n, COMM_I32, world.rank);
    world.all_reduce = &ALGORITHM_RING;
    OK(comm_reduce_scatter(&world, data, border, COMM_I32, COMM_SUM, &error));
    for (int64_t i = border[world.rank]; i < border[world.rank + 1]; i++)
        check_element(data, i, COMM_I32, reduced(world.size, i, COMM_I32, COMM_SUM), "reduce-scatter");
    OK(comm_all_gather(&world, data, border, COMM_I32, &error));
    for (int64_t i = 0; i < n; i++)
        check_element(data, i, COMM_I32, reduced(world.size, i, COMM_I32, COMM_SUM), "all-gather");
    world.all_reduce = NULL;
    release(data, n, COMM_I32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),
        cmocka_unit_test(maxima),
        cmocka_unit_test(minima),
        cmocka_unit_test(halves_of_the_ring),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
