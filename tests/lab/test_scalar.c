/* The engine of single numbers: its gradients against finite differences and against formulas, nodes that are used more than
 * once, graphs of a million nodes, IEEE's corners, and the same graph run again. */
#include "lab/linear/scalar.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) fail_msg("%.17g, not %.17g", got, want);
}

static void assert_recorded(const ScalarGraph *graph) {
    Error error = {0};
    if (scalar_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
}

/* ((a·b + c) / (b - a)) · (c / (a·b + c)) - a/c + b·b: all four operations, shared nodes, a shared divisor. */
static Scalar record_expression(ScalarGraph *graph, const Scalar leaf[3]) {
    Scalar a = leaf[0], b = leaf[1], c = leaf[2];
    Scalar shared = scalar_add(graph, scalar_multiply(graph, a, b), c);
    Scalar left = scalar_divide(graph, shared, scalar_subtract(graph, b, a));
    Scalar right = scalar_divide(graph, c, shared);
    Scalar product = scalar_multiply(graph, left, right);
    Scalar rest = scalar_subtract(graph, product, scalar_divide(graph, a, c));
    return scalar_add(graph, rest, scalar_multiply(graph, b, b));
}

static double expression(const double v[3]) {
    double shared = v[0] * v[1] + v[2];
    return shared / (v[1] - v[0]) * (v[2] / shared) - v[0] / v[2] + v[1] * v[1];
}

static void test_finite_differences(void **unused) {
    (void)unused;
    static const double points[][3] = {{0.7, -1.3, 2.1}, {-0.2, 0.9, -0.4}, {3.0, 0.5, 0.25}};
    ScalarGraph graph = {0};
    Scalar leaf[3];
    for (int i = 0; i < 3; i++) leaf[i] = scalar_leaf(&graph, points[0][i]);
    Scalar root = record_expression(&graph, leaf);
    assert_recorded(&graph);
    assert_close(graph.value[root], expression(points[0]), 1e-15);
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++) {
        for (int i = 0; i < 3; i++) graph.value[leaf[i]] = points[p][i];
        scalar_forward(&graph);
        scalar_backward(&graph, root);
        assert_close(graph.value[root], expression(points[p]), 1e-15);
        for (int i = 0; i < 3; i++) {
            const double step = 1e-5;
            double above[3], below[3];
            memcpy(above, points[p], sizeof above);
            memcpy(below, points[p], sizeof below);
            above[i] += step;
            below[i] -= step;
            assert_close(graph.gradient[leaf[i]], (expression(above) - expression(below)) / (2.0 * step),
                         1e-7);
        }
    }
    scalar_close(&graph);
}

/* tanh(exp(a)·relu(b)) + log(c) · a^b - relu(-b) + c^2: the functions, alone and inside each other. */
static Scalar record_functions(ScalarGraph *graph, const Scalar leaf[3]) {
    Scalar zero = scalar_leaf(graph, 0.0), two = scalar_leaf(graph, 2.0);
    Scalar inner = scalar_multiply(graph, scalar_exp(graph, leaf[0]), scalar_relu(graph, leaf[1]));
    Scalar power = scalar_multiply(graph, scalar_log(graph, leaf[2]), scalar_power(graph, leaf[0], leaf[1]));
    Scalar minus = scalar_relu(graph, scalar_subtract(graph, zero, leaf[1]));
    Scalar sum = scalar_subtract(graph, scalar_add(graph, scalar_tanh(graph, inner), power), minus);
    return scalar_add(graph, sum, scalar_power(graph, leaf[2], two));
}

static double functions(const double v[3]) {
    return tanh(exp(v[0]) * fmax(v[1], 0.0)) + log(v[2]) * pow(v[0], v[1]) - fmax(-v[1], 0.0) + v[2] * v[2];
}

static void test_functions(void **unused) {
    (void)unused;
    static const double points[][3] = {{0.7, 0.4, 2.1}, {0.3, -0.9, 0.4}, {1.6, 1.1, 0.25}};
    ScalarGraph graph = {0};
    Scalar leaf[3];
    for (int i = 0; i < 3; i++) leaf[i] = scalar_leaf(&graph, points[0][i]);
    Scalar root = record_functions(&graph, leaf);
    assert_recorded(&graph);
    for (size_t p = 0; p < sizeof points / sizeof points[0]; p++) {
        for (int i = 0; i < 3; i++) graph.value[leaf[i]] = points[p][i];
        scalar_forward(&graph);
        scalar_backward(&graph, root);
        assert_close(graph.value[root], functions(points[p]), 1e-14);
        for (int i = 0; i < 3; i++) {
            const double step = 1e-6;
            double above[3], below[3];
            memcpy(above, points[p], sizeof above);
            memcpy(below, points[p], sizeof below);
            above[i] += step;
            below[i] -= step;
            assert_close(graph.gradient[leaf[i]], (functions(above) - functions(below)) / (2.0 * step), 1e-7);
        }
    }
    scalar_close(&graph);
}

/* Where a function has a corner or an end: relu at 0, log of 0, a power of 0. */
static void test_function_corners(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Scalar zero = scalar_leaf(&graph, 0.0), two = scalar_leaf(&graph, 2.0), minus = scalar_leaf(&graph, -3.0);
    Scalar corner = scalar_relu(&graph, zero), nothing = scalar_power(&graph, zero, two);
    Scalar square = scalar_power(&graph, minus, two), low = scalar_log(&graph, zero);
    assert_recorded(&graph);
    scalar_backward(&graph, corner);
    assert_true(graph.value[corner] == 0.0 && graph.gradient[zero] == 0.0);
    assert_true(graph.value[low] == -(double)INFINITY);
    scalar_backward(&graph, square);
    assert_true(graph.value[square] == 9.0 && graph.gradient[minus] == -6.0);
    assert_true(isnan(graph.gradient[two])); /* (-3)^x has no slope */
    scalar_backward(&graph, nothing);
    assert_true(graph.gradient[zero] == 0.0 && graph.gradient[two] == 0.0);
    scalar_close(&graph);
}

/* x·x, x+x, x-x, x/x: both operands are the same node. */
static void test_node_used_twice(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Scalar x = scalar_leaf(&graph, 3.0);
    Scalar square = scalar_multiply(&graph, x, x), twice = scalar_add(&graph, x, x);
    Scalar nothing = scalar_subtract(&graph, x, x), one = scalar_divide(&graph, x, x);
    assert_recorded(&graph);
    scalar_backward(&graph, square);
    assert_true(graph.value[square] == 9.0 && graph.gradient[x] == 6.0);
    scalar_backward(&graph, twice);
    assert_true(graph.value[twice] == 6.0 && graph.gradient[x] == 2.0);
    scalar_backward(&graph, nothing);
    assert_true(graph.value[nothing] == 0.0 && graph.gradient[x] == 0.0);
    scalar_backward(&graph, one);
    assert_close(graph.gradient[x], 0.0, 1e-15);
    scalar_close(&graph);
}

/* Both a/d and b/d divide by d: dy/dd = -(a+b)/d². */
static void test_shared_divisor(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Scalar a = scalar_leaf(&graph, 5.0), b = scalar_leaf(&graph, -2.0), d = scalar_leaf(&graph, 4.0);
    Scalar y = scalar_add(&graph, scalar_divide(&graph, a, d), scalar_divide(&graph, b, d));
    assert_recorded(&graph);
    scalar_backward(&graph, y);
    assert_close(graph.gradient[d], -3.0 / 16.0, 1e-15);
    assert_close(graph.gradient[a], 0.25, 1e-15);
    assert_close(graph.gradient[b], 0.25, 1e-15);
    scalar_close(&graph);
}

/* A chain of a million nodes, which grows its memory many times and would end any recursion. */
static void test_deep_chain(void **unused) {
    (void)unused;
    enum { LENGTH = 1000000 };
    ScalarGraph graph = {0};
    Scalar x = scalar_leaf(&graph, 0.5), one = scalar_leaf(&graph, 1.0),
           factor = scalar_leaf(&graph, 0.999999);
    Scalar node = x;
    for (int i = 0; i < LENGTH; i++) {
        node = i % 2 ? scalar_multiply(&graph, node, factor) : scalar_add(&graph, node, one);
    }
    assert_recorded(&graph);
    assert_int_equal(graph.n_steps, LENGTH);
    assert_int_equal(graph.n_nodes, LENGTH + 3);
    double recorded = graph.value[node];
    scalar_backward(&graph, node);
    assert_close(graph.gradient[x], pow(0.999999, 0.5 * LENGTH), 1e-9);
    graph.value[x] = 1.5;
    scalar_forward(&graph);
    assert_close(graph.value[node] - recorded, pow(0.999999, 0.5 * LENGTH), 1e-6);
    scalar_close(&graph);
}

static void test_division_by_zero(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Scalar one = scalar_leaf(&graph, 1.0), zero = scalar_leaf(&graph, 0.0), minus = scalar_leaf(&graph, -1.0);
    Scalar infinite = scalar_divide(&graph, one, zero), negative = scalar_divide(&graph, minus, zero);
    Scalar undefined = scalar_divide(&graph, zero, zero);
    assert_recorded(&graph);
    assert_true(graph.value[infinite] == (double)INFINITY && graph.value[negative] == -(double)INFINITY);
    assert_true(isnan(graph.value[undefined]));
    scalar_backward(&graph, infinite);
    assert_true(graph.gradient[one] == (double)INFINITY && graph.gradient[zero] == -(double)INFINITY);
    scalar_forward(&graph);
    assert_true(graph.value[infinite] == (double)INFINITY);
    scalar_close(&graph);
}

/* A backward leaves nothing of the one before it, and nothing flows to what comes after its root. */
static void test_backward_again(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Scalar a = scalar_leaf(&graph, 2.0), b = scalar_leaf(&graph, 3.0);
    Scalar product = scalar_multiply(&graph, a, b), sum = scalar_add(&graph, product, a);
    assert_recorded(&graph);
    for (int i = 0; i < 3; i++) {
        scalar_backward(&graph, sum);
        assert_true(graph.gradient[a] == 4.0 && graph.gradient[b] == 2.0 && graph.gradient[product] == 1.0);
        scalar_backward(&graph, product);
        assert_true(graph.gradient[a] == 3.0 && graph.gradient[b] == 2.0 && graph.gradient[sum] == 0.0);
        scalar_backward(&graph, a);
        assert_true(graph.gradient[a] == 1.0 && graph.gradient[b] == 0.0);
    }
    scalar_close(&graph);
}

static void test_refused(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Error error = {0};
    Scalar a = scalar_leaf(&graph, 2.0);
    scalar_add(&graph, a, 7);
    scalar_multiply(&graph, a, a); /* after a mistake nothing is recorded */
    assert_int_equal(scalar_status(&graph, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "node 7 of a graph of 1 numbers"));
    assert_int_equal(graph.n_steps, 0);
    scalar_close(&graph);
    Error refused = {0};
    assert_int_equal(scalar_reserve(&graph, INT64_C(1) << 40, &refused), STATUS_USER);
    assert_int_equal(scalar_reserve(&graph, 5, &error), STATUS_OK);
    assert_int_equal(graph.capacity, 5);
    scalar_close(&graph);
    scalar_close(&graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_function_corners),
        cmocka_unit_test(test_node_used_twice),
        cmocka_unit_test(test_shared_divisor),
        cmocka_unit_test(test_deep_chain),
        cmocka_unit_test(test_division_by_zero),
        cmocka_unit_test(test_backward_again),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
