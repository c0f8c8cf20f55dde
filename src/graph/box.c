/* Positions are converted by taking an element number apart into coordinates, last dim first, and putting
 * it together again by the other box's sizes. Boxes that are in a tensor have counts that fit, so only
 * box_is_within has to be careful. */
#include "graph/box.h"

Box box_whole(Shape shape) {
    return (Box){.shape = shape};
}

bool box_equal(const Box *a, const Box *b) {
    if (!shape_equal(a->shape, b->shape)) return false;
    for (int i = 0; i < a->shape.n_dims; i++) {
        if (a->offset[i] != b->offset[i]) return false;
    }
    return true;
}

bool box_is_within(const Box *box, Shape whole) {
    if (box->shape.n_dims != whole.n_dims) return false;
    for (int i = 0; i < whole.n_dims; i++) {
        int64_t n = box->shape.dim[i];
        if (n < 0 || n > whole.dim[i] || box->offset[i] < 0 || box->offset[i] > whole.dim[i] - n)
            return false;
    }
    return true;
}

bool box_intersect(const Box *a, const Box *b, Box *common) {
    *common = (Box){.shape = {.n_dims = a->shape.n_dims}};
    for (int i = 0; i < a->shape.n_dims; i++) {
        int64_t a_end = a->offset[i] + a->shape.dim[i], b_end = b->offset[i] + b->shape.dim[i];
        int64_t first = a->offset[i] > b->offset[i] ? a->offset[i] : b->offset[i];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (first >= end) return false;
        common->offset[i] = first;
        common->shape.dim[i] = end - first;
    }
    return true;
}

int64_t box_run(const Box *inner, const Box *outer) {
    int64_t run = 1;
    for (int i = inner->shape.n_dims - 1; i >= 0; i--) {
        run *= inner->shape.dim[i];
        if (inner->shape.dim[i] == outer->shape.dim[i]) continue;
        while (--i >= 0 && inner->shape.dim[i] == 1) {} /* a dim of one does not break it */
        return i < 0 ? shape_count(inner->shape) : run;
    }
    return run;
}

int64_t box_element(const Box *inner, const Box *outer, int64_t element) {
    int64_t found = 0, stride = 1;
    for (int i = inner->shape.n_dims - 1; i >= 0; i--) {
        int64_t at = element % inner->shape.dim[i] + inner->offset[i] - outer->offset[i];
        element /= inner->shape.dim[i];
        found += at * stride;
        stride *= outer->shape.dim[i];
    }
    return found;
}

BoxRange box_range_flat(const BoxRange *range, Shape whole) {
    Box all = box_whole(whole);
    int64_t count = shape_count(range->box.shape);
    if (count == 0 || box_run(&range->box, &all) < count) return *range;
    return (BoxRange){all, box_element(&range->box, &all, range->first), range->n};
}

/* Elements first .. first + n - 1, counted from dim `dim` on, of the box whose dims before it are settled. */
static int split(Box box, int dim, int64_t first, int64_t n, Box *boxes) {
    if (n <= 0) return 0;
    int64_t stride = 1;
    for (int i = dim + 1; i < box.shape.n_dims; i++) stride *= box.shape.dim[i];
    if (dim >= box.shape.n_dims) {
        *boxes = box;
        return 1;
    }
    int n_boxes = 0;
    Box one = box;
    one.shape.dim[dim] = 1;
    if (first % stride != 0 || n < stride) { /* the rest of a row that has begun, or a piece of one */
        int64_t left = stride - first % stride, here = n < left ? n : left;
        one.offset[dim] = box.offset[dim] + first / stride;
        n_boxes += split(one, dim + 1, first % stride, here, boxes);
        first += here;
        n -= here;
    }
    if (n >= stride) {
        boxes[n_boxes] = box;
        boxes[n_boxes].offset[dim] += first / stride;
        boxes[n_boxes++].shape.dim[dim] = n / stride;
        first += n / stride * stride;
        n %= stride;
    }
    if (n > 0) {
        one.offset[dim] = box.offset[dim] + first / stride;
        n_boxes += split(one, dim + 1, 0, n, boxes + n_boxes);
    }
    return n_boxes;
}

int box_range_split(const BoxRange *range, Box boxes[BOX_RANGE_MAX_BOXES]) {
    return split(range->box, 0, range->first, range->n, boxes);
}
