/* A router's few numbers a token, a vector at a time. What libm takes for one exponential is enough for a
 * vector of them, and who is among the largest is found without a branch that depends on it. */
#include "backend/cpu/experts/route_lanes.h"

#include "backend/cpu/simd.h"

_Static_assert(ROUTE_MAX_EXPERTS % VEC_LANES == 0, "what is written of a row is whole vectors");

static inline int n_vectors(int n) {
    return (n + VEC_LANES - 1) / VEC_LANES;
}

/* Vector i of a row of E numbers, with `fill` behind them. */
static inline vec row_vector(const float *x, int E, int i, float fill) {
    int left = E - i * VEC_LANES;
    x += i * VEC_LANES;
    return left >= VEC_LANES ? vec_load(x) : vec_load_part(x, left, fill);
}

/* What is no number is passed over here, and makes the sum none. */
static float softmax(const float *x, int E, float *p) {
    int n = n_vectors(E);
    vec top = vec_set(-INFINITY), sum = vec_set(0.0f);
    for (int i = 0; i < n; i++) {
        vec values = row_vector(x, E, i, -INFINITY);
        top = vec_select(values > top, values, top);
    }
    float most = vec_max_lane(top);
    for (int i = 0; i < n; i++) {
        vec shifted = row_vector(x, E, i, -INFINITY) - vec_set(most), power = vec_exp(shifted);
        power = vec_select(shifted == shifted, power, shifted);
        vec_store(p + i * VEC_LANES, power);
        sum += power;
    }
    float all = vec_sum(sum);
    for (int i = 0; i < n; i++)
        vec_store(p + i * VEC_LANES, vec_load(p + i * VEC_LANES) * vec_set(1.0f / all));
    return most + logf(all);
}

/* By e^-|x|, which is at most 1. */
static void sigmoids(const float *x, int E, float *y) {
    for (int i = 0; i < n_vectors(E); i++) {
        vec value = row_vector(x, E, i, 0.0f);
        vec power = vec_exp((vec)((veci)value | (veci)vec_set(-0.0f))), one = vec_set(1.0f);
        vec made = vec_select(value >= vec_set(0.0f), one, power) / (one + power);
        vec_store(y + i * VEC_LANES, vec_select(value == value, made, value));
    }
}

static float dot(const float *a, const float *b, int E) {
    vec sum = vec_set(0.0f);
    for (int i = 0; i < n_vectors(E); i++)
        sum = vec_fma(row_vector(a, E, i, 0.0f), row_vector(b, E, i, 0.0f), sum);
    return vec_sum(sum);
}

/* ---- the largest */

/* Floats as whole numbers in the same order: 0 and -0 are equal, and what is no number is below all
 * others. */
static inline veci order_of(vec x) {
    veci bits = (veci)(x + vec_set(0.0f)), is_number = x == x;
    bits ^= (bits < 0) & INT32_MAX;
    return (is_number & bits) | (~is_number & INT32_MIN);
}

/* Each is compared with each, which nothing has to wait for, up to so many vectors of experts: of one or two
 * wishes it is sooner known by looking for them. */
enum { MOST_VECTORS = 8, FEW_VECTORS = 2, FEW_WISHES = 2 };

static void largest(const float *score, int E, int n_wishes, int *wish) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int32_t order[MOST_VECTORS * VEC_LANES], rank[MOST_VECTORS * VEC_LANES], ranked[MOST_VECTORS * VEC_LANES];
    int n = n_vectors(E);
    if (n > (n_wishes > FEW_WISHES ? MOST_VECTORS : FEW_VECTORS)) {
        route_largest(score, E, n_wishes, wish);
        return;
    }
    veci number, own[MOST_VECTORS];
    memcpy(&number, lane, sizeof number);
    for (int i = 0; i < n; i++) own[i] = order_of(row_vector(score, E, i, -INFINITY));
    memcpy(order, own, (size_t)n * sizeof *own);
    for (int i = 0; i < n; i++) {
        const int first = i * VEC_LANES, end = first + VEC_LANES < E ? first + VEC_LANES : E;
        veci above = {0}; /* minus how many come before */
        for (int e = 0; e < first; e++) above += order[e] >= own[i];
        for (int e = first; e < end; e++) {
            veci is_behind = number + first > e;
            above += (order[e] > own[i]) | (is_behind & (order[e] == own[i]));
        }
        for (int e = end; e < E; e++) above += order[e] > own[i];
        above = -above;
        memcpy(rank + first, &above, sizeof above);
    }
    for (int e = 0; e < E; e++) ranked[rank[e]] = e; /* NOLINT(clang-analyzer-core.uninitialized.*): n > 0 */
    memcpy(wish, ranked, (size_t)n_wishes * sizeof *wish);
}

const RouteMath cpu_route_math = {softmax, sigmoids, largest, dot};
