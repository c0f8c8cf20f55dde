/* A name comes from outside, so there is one way to write a number, without sign, blanks or leading zeros,
 * and nothing is done with one before it is known to lie in the tensor. */
#include "checkpoint/part_name.h"

#include <stdio.h>
#include <string.h>

/* ---- writing */

const char *part_name_write(const char *prefix, const char *name, Shape whole, const BoxRange *range,
                            Shape *shape, Arena *arena) {
    enum { MOST_BYTES = SHAPE_MAX_DIMS * 48 };
    char box[MOST_BYTES] = "", run[64] = "";
    const Box *of = &range->box, all = box_whole(whole);
    bool is_box = !box_equal(of, &all), is_all = range->n == shape_count(of->shape);
    for (int i = 0, n = 0; is_box && i < of->shape.n_dims; i++) {
        long long first = (long long)of->offset[i], end = first + (long long)of->shape.dim[i];
        n += snprintf(box + n, MOST_BYTES - (size_t)n, "%s%lld:%lld%s", i == 0 ? "[" : ",", first, end,
                      i == of->shape.n_dims - 1 ? "]" : "");
    }
    if (!is_all) {
        snprintf(run, sizeof run, "[%lld:%lld]", (long long)range->first,
                 (long long)range->first + (long long)range->n);
    }
    *shape = is_all ? of->shape : SHAPE(range->n);
    return arena_printf(arena, "%s%s%s%s", prefix, name, box, run);
}

/* ---- reading */

static bool take_number(const char **text, int64_t *value) {
    const char *digit = *text;
    if (*digit < '0' || *digit > '9' || (*digit == '0' && digit[1] >= '0' && digit[1] <= '9')) return false;
    for (*value = 0; *digit >= '0' && *digit <= '9'; digit++) {
        if (*value > (INT64_MAX - (*digit - '0')) / 10) return false;
        *value = *value * 10 + (*digit - '0');
    }
    *text = digit;
    return true;
}

/* "first:end" with something between them. */
static bool take_span(const char **text, int64_t *first, int64_t *n) {
    int64_t end;
    if (!take_number(text, first) || *(*text)++ != ':' || !take_number(text, &end)) return false;
    *n = end - *first;
    return *first < end;
}

/* "[first:end,...]" as offsets and sizes. */
static bool take_box(const char **text, Box *box) {
    *box = (Box){0};
    if (*(*text)++ != '[') return false;
    do {
        int dim = box->shape.n_dims++;
        if (dim == SHAPE_MAX_DIMS || !take_span(text, &box->offset[dim], &box->shape.dim[dim])) return false;
    } while (*(*text)++ == ',');
    return (*text)[-1] == ']';
}

static PartNameFlaw make_run(const Box *run, const Box *of, BoxRange *range, Shape *shape) {
    if (run->shape.n_dims != 1) return PART_NAME_NO_RANGE;
    *range = (BoxRange){*of, run->offset[0], run->shape.dim[0]};
    *shape = SHAPE(range->n);
    int64_t count = shape_count(of->shape);
    return range->n <= count && range->first <= count - range->n ? PART_NAME_SOUND : PART_NAME_BEYOND;
}

PartNameFlaw part_name_read(const char *ending, Shape whole, BoxRange *range, Shape *shape) {
    Box all = box_whole(whole), box, run;
    *shape = whole;
    *range = (BoxRange){all, 0, shape_count(whole)};
    if (!*ending) return PART_NAME_SOUND;
    if (!take_box(&ending, &box)) return PART_NAME_NO_RANGE;
    if (box.shape.n_dims == 1) return *ending ? PART_NAME_NO_RANGE : make_run(&box, &all, range, shape);
    if (box.shape.n_dims != whole.n_dims) return PART_NAME_NO_RANGE;
    if (!box_is_within(&box, whole)) return PART_NAME_BEYOND;
    *shape = box.shape;
    *range = (BoxRange){box, 0, shape_count(box.shape)};
    if (!*ending) return PART_NAME_SOUND;
    if (!take_box(&ending, &run) || *ending) return PART_NAME_NO_RANGE;
    return make_run(&run, &box, range, shape);
}
