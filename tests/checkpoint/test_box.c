/* Boxes against an enumeration of their elements, and parts that do or do not make up a tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "checkpoint/checkpoint_cover.h"
#include "checkpoint/part_name.h"

#include <stdlib.h>
#include <string.h>

static uint64_t drawn;

static int64_t draw(int64_t n) {
    RandomKey key = random_key(3, RANDOM_TEST, 0);
    return (int64_t)(random_block(key, 0, drawn++).word[0] % (uint64_t)n);
}

static Shape draw_shape(int n_dims) {
    Shape shape = {.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) shape.dim[i] = 1 + draw(5);
    return shape;
}

static Box draw_box(Shape whole) {
    Box box = {.shape = whole};
    for (int i = 0; i < whole.n_dims; i++) {
        box.offset[i] = draw(whole.dim[i]);
        box.shape.dim[i] = 1 + draw(whole.dim[i] - box.offset[i]);
    }
    return box;
}

/* The elements of the whole tensor that a box has, in its order. */
static int64_t enumerate(const Box *box, Shape whole, int64_t *elements) {
    int64_t n = 0;
    for (int64_t e = 0; e < shape_count(whole); e++) {
        int64_t rest = e;
        bool is_in = true;
        for (int i = whole.n_dims - 1; i >= 0; i--) {
            int64_t at = rest % whole.dim[i] - box->offset[i];
            is_in = is_in && at >= 0 && at < box->shape.dim[i];
            rest /= whole.dim[i];
        }
        if (is_in) elements[n++] = e;
    }
    return n;
}

static void check_pair(Shape whole) {
    int64_t in_a[625], in_b[625], in_common[625];
    Box a = draw_box(whole), b = draw_box(whole), common, all = box_whole(whole);
    assert_true(box_is_within(&a, whole));
    int64_t n_a = enumerate(&a, whole, in_a), n_b = enumerate(&b, whole, in_b), n_both = 0;
    assert_int_equal(n_a, shape_count(a.shape));
    for (int64_t i = 0; i < n_a; i++) assert_int_equal(box_element(&a, &all, i), in_a[i]);
    for (int64_t i = 0, k = 0; i < n_a; i++) {
        while (k < n_b && in_b[k] < in_a[i]) k++;
        n_both += k < n_b && in_b[k] == in_a[i];
    }
    assert_int_equal(box_intersect(&a, &b, &common), n_both > 0);
    if (!n_both) return;
    assert_int_equal(enumerate(&common, whole, in_common), n_both);
    int64_t run = box_run(&common, &a);
    assert_int_equal(n_both % run, 0);
    for (int64_t i = 0; i < n_both; i++) {
        assert_int_equal(in_a[box_element(&common, &a, i)], in_common[i]);
        bool is_next = i > 0 && box_element(&common, &a, i) == box_element(&common, &a, i - 1) + 1;
        if (i % run) assert_true(is_next);
        else if (run < n_both) assert_false(is_next);
    }
}

static void check_range(Shape whole) {
    int64_t in_box[625], in_tile[625];
    unsigned char n_found[625] = {0};
    BoxRange range = {.box = draw_box(whole)};
    int64_t count = enumerate(&range.box, whole, in_box);
    range.first = draw(count);
    range.n = 1 + draw(count - range.first);
    Box boxes[BOX_RANGE_MAX_BOXES];
    int n_boxes = box_range_split(&range, boxes);
    assert_in_range(n_boxes, 1, 2 * whole.n_dims - 1);
    for (int i = 0; i < n_boxes; i++) {
        int64_t n = enumerate(&boxes[i], whole, in_tile);
        for (int64_t k = 0; k < n; k++) n_found[in_tile[k]]++;
    }
    for (int64_t k = range.first; k < range.first + range.n; k++) n_found[in_box[k]]--;
    for (int64_t e = 0; e < shape_count(whole); e++) assert_int_equal(n_found[e], 0);
    BoxRange flat = box_range_flat(&range, whole);
    const Box all = box_whole(whole);
    bool is_consecutive = in_box[count - 1] - in_box[0] == count - 1;
    assert_int_equal(box_equal(&flat.box, &all), is_consecutive);
    assert_int_equal(flat.n, range.n);
    if (is_consecutive) assert_int_equal(flat.first, in_box[range.first]);
}

/* A name that is written is read again as what it was. */
static void check_name(Shape whole) {
    Arena arena = {0};
    BoxRange range = {.box = draw_box(whole)}, got;
    range.first = draw(shape_count(range.box.shape));
    range.n = draw(2) ? shape_count(range.box.shape) - range.first
                      : 1 + draw(shape_count(range.box.shape) - range.first);
    range = box_range_flat(&range, whole);
    Shape shape, got_shape;
    const char *name = part_name_write("moment1.", "x", whole, &range, &shape, &arena);
    assert_memory_equal(name, "moment1.x", 9);
    assert_int_equal(part_name_read(name + 9, whole, &got, &got_shape), PART_NAME_SOUND);
    assert_true(box_equal(&got.box, &range.box) && shape_equal(shape, got_shape));
    assert_int_equal(got.first, range.first);
    assert_int_equal(got.n, range.n);
    assert_int_equal(shape_count(shape), range.n);
    arena_free(&arena);
}

static void test_boxes(void **state) {
    (void)state;
    for (int i = 0; i < 4000; i++) {
        Shape whole = draw_shape(1 + i % SHAPE_MAX_DIMS);
        check_pair(whole);
        check_range(whole);
        check_name(whole);
    }
}

static void test_boxes_outside(void **state) {
    (void)state;
    const Box wrong[] = {{SHAPE(4), {0}},
                         {SHAPE(4, 7), {0, 0}},
                         {SHAPE(4, 6), {0, 1}},
                         {SHAPE(1, 1), {4, 0}},
                         {SHAPE(1, 1), {-1, 0}},
                         {SHAPE(-1, 1), {0, 0}},
                         {SHAPE(1, 1), {INT64_MAX, 0}},
                         {SHAPE(INT64_MAX, 1), {1, 0}},
                         {SHAPE(INT64_MIN, 1), {INT64_MAX, 0}},
                         {SHAPE(1, 1), {INT64_MIN, 0}}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(box_is_within(&wrong[i], SHAPE(4, 6)));
    const Box corner = {SHAPE(1, 1), {3, 5}}, nothing = {SHAPE(0, 6), {4, 0}};
    assert_true(box_is_within(&corner, SHAPE(4, 6)));
    assert_true(box_is_within(&nothing, SHAPE(4, 6)));
}

/* ---- parts that make up a tensor */

enum { MOST_PARTS = 4096 };

typedef struct {
    BoxRange range[MOST_PARTS];
    const BoxRange *pointer[MOST_PARTS];
    int n;
} Parts;

static void add_part(Parts *parts, Box box, int64_t first, int64_t n) {
    parts->range[parts->n] = (BoxRange){box, first, n};
    parts->pointer[parts->n] = &parts->range[parts->n];
    parts->n++;
}

/* Cut a box in two, again and again, and some of what is left into ranges. */
static void cut(Parts *parts, Box box, int depth) {
    int dim = (int)draw(box.shape.n_dims);
    if (depth > 0 && box.shape.dim[dim] > 1) {
        int64_t at = 1 + draw(box.shape.dim[dim] - 1);
        Box rest = box;
        rest.offset[dim] += at;
        rest.shape.dim[dim] -= at;
        box.shape.dim[dim] = at;
        cut(parts, rest, depth - 1);
        cut(parts, box, depth - 1);
        return;
    }
    int64_t count = shape_count(box.shape), first = draw(3) ? 0 : draw(count);
    if (first > 0) add_part(parts, box, 0, first);
    add_part(parts, box, first, count - first);
}

static Cover cover_of(const Parts *parts, Shape whole) {
    Arena arena = {0};
    Cover cover = checkpoint_cover(parts->pointer, parts->n, whole, &arena);
    arena_free(&arena);
    return cover;
}

static void test_cover(void **state) {
    (void)state;
    Parts *parts = calloc(1, sizeof *parts);
    assert_non_null(parts);
    for (int i = 0; i < 2000; i++) {
        Shape whole = draw_shape(1 + i % SHAPE_MAX_DIMS);
        whole.dim[0] += 1;
        parts->n = 0;
        cut(parts, box_whole(whole), i % 7);
        assert_int_equal(cover_of(parts, whole).flaw, COVER_EXACT);
        /* One that is not there. */
        BoxRange last = parts->range[--parts->n];
        Cover cover = cover_of(parts, whole);
        assert_int_equal(cover.flaw, COVER_GAP);
        assert_int_equal(cover.n_missing, last.n);
        /* One element of it in the place of another's: the count comes out even where the part has one. */
        Box one = box_whole(whole);
        for (int k = 0; k < whole.n_dims; k++) one.shape.dim[k] = 1;
        parts->range[parts->n++] = last;
        add_part(parts, one, 0, 1);
        cover = cover_of(parts, whole);
        assert_int_equal(cover.flaw, COVER_OVERLAP);
        assert_true(cover.first != cover.second);
        assert_true(cover.first == parts->n - 1 || cover.second == parts->n - 1);
    }
    free(parts);
}

/* Boxes round a middle, which no straight cut parts; and more of them in a row than any run makes. */
static void test_cover_odd(void **state) {
    (void)state;
    Parts *parts = calloc(1, sizeof *parts);
    assert_non_null(parts);
    const Box wheel[] = {{SHAPE(1, 2), {0, 0}},
                         {SHAPE(2, 1), {0, 2}},
                         {SHAPE(1, 2), {2, 1}},
                         {SHAPE(2, 1), {1, 0}},
                         {SHAPE(1, 1), {1, 1}}};
    for (int i = 0; i < 5; i++) add_part(parts, wheel[i], 0, shape_count(wheel[i].shape));
    assert_int_equal(cover_of(parts, SHAPE(3, 3)).flaw, COVER_EXACT);
    parts->range[4].box.offset[1] = 2; /* on another one, and a hole where it was */
    assert_int_equal(cover_of(parts, SHAPE(3, 3)).flaw, COVER_OVERLAP);
    parts->n = 0;
    for (int i = 0; i < 2000; i++) add_part(parts, (Box){SHAPE(2, 1), {0, i}}, 0, 2);
    assert_int_equal(cover_of(parts, SHAPE(2, 2000)).flaw, COVER_CROWDED);
    parts->n = 1000;
    assert_int_equal(cover_of(parts, SHAPE(2, 1000)).flaw, COVER_EXACT);
    free(parts);
}

/* Endings that come from outside. */
static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *ending;
        PartNameFlaw flaw;
    } cases[] = {
        {"", PART_NAME_SOUND},
        {"[0:24]", PART_NAME_SOUND},
        {"[0:25]", PART_NAME_BEYOND},
        {"[0:4,0:6]", PART_NAME_SOUND},
        {"[3:4,5:6]", PART_NAME_SOUND},
        {"[3:5,5:6]", PART_NAME_BEYOND},
        {"[3:4,5:7]", PART_NAME_BEYOND},
        {"[0:4,0:9223372036854775807]", PART_NAME_BEYOND},
        {"[0:9223372036854775807,0:9223372036854775807]", PART_NAME_BEYOND},
        {"[9223372036854775806:9223372036854775807,0:1]", PART_NAME_BEYOND},
        {"[0:9223372036854775808,0:1]", PART_NAME_NO_RANGE},
        {"[0:4,1:3][0:8]", PART_NAME_SOUND},
        {"[0:4,1:3][7:8]", PART_NAME_SOUND},
        {"[0:4,1:3][7:9]", PART_NAME_BEYOND},
        {"[0:4,1:3][8:9]", PART_NAME_BEYOND},
        {"[0:4,1:3][1:9223372036854775807]", PART_NAME_BEYOND},
        {"[0:4,1:3][0:8][0:8]", PART_NAME_NO_RANGE},
        {"[0:4,1:3][0:4,0:2]", PART_NAME_NO_RANGE},
        {"[0:4,1:3][", PART_NAME_NO_RANGE},
        {"[0:4,1:3]x", PART_NAME_NO_RANGE},
        {"[0:4,1:3]]", PART_NAME_NO_RANGE},
        {"[0:4,1:1]", PART_NAME_NO_RANGE},
        {"[0:4,3:1]", PART_NAME_NO_RANGE},
        {"[0:4,]", PART_NAME_NO_RANGE},
        {"[,0:4]", PART_NAME_NO_RANGE},
        {"[0:4,0:6", PART_NAME_NO_RANGE},
        {"[0:4,0:6,", PART_NAME_NO_RANGE},
        {"[0:4,0:6,0:1]", PART_NAME_NO_RANGE},
        {"[0:4,0:6,0:1,0:1,0:1]", PART_NAME_NO_RANGE},
        {"[0:4, 0:6]", PART_NAME_NO_RANGE},
        {"[0:4;0:6]", PART_NAME_NO_RANGE},
        {"[00:4,0:6]", PART_NAME_NO_RANGE},
        {"[-1:4,0:6]", PART_NAME_NO_RANGE},
        {"[0:8][0:4]", PART_NAME_NO_RANGE},
        {"[", PART_NAME_NO_RANGE},
        {"[]", PART_NAME_NO_RANGE},
        {"x", PART_NAME_NO_RANGE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        BoxRange range;
        Shape shape;
        if (part_name_read(cases[i].ending, SHAPE(4, 6), &range, &shape) != cases[i].flaw)
            fail_msg("'%s' should be read with flaw %d", cases[i].ending, cases[i].flaw);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boxes),     cmocka_unit_test(test_boxes_outside), cmocka_unit_test(test_cover),
        cmocka_unit_test(test_cover_odd), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
