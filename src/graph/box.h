/* Boxes: a part of a tensor that has a range of every dim. Elements of a box count in the order of its own
 * rows, so a box of columns lies in memory without the columns beside it.
 *
 *     whole (4,6)            box of shape (2,3) at offset (1,2)
 *     .  .  .  .  .  .
 *     .  .  0  1  2  .       its element 4 is element 15 of the whole
 *     .  .  3  4  5  .
 *     .  .  .  .  .  .
 *
 * A BoxRange is a run of a box's elements: what is left of a shard when it is cut again, as a flat array.
 * Elements of a whole tensor from the first on are a BoxRange too, of the box that is all of it. */
#ifndef PGPT_GRAPH_BOX_H
#define PGPT_GRAPH_BOX_H

#include "graph/shape.h"

typedef struct {
    Shape shape;
    int64_t offset[SHAPE_MAX_DIMS];
} Box;

typedef struct {
    Box box;
    int64_t first, n;
} BoxRange;

Box box_whole(Shape shape);
bool box_equal(const Box *a, const Box *b);

/* Does it lie in a tensor of that shape? For boxes of any numbers. */
bool box_is_within(const Box *box, Shape whole);

/* What two boxes have in common; false if it is nothing. */
bool box_intersect(const Box *a, const Box *b, Box *common);

/* Consecutive elements of `inner` are consecutive in `outer`, which contains it, in runs of this length. */
int64_t box_run(const Box *inner, const Box *outer);

/* Which element of `outer`, which contains it, is this one of `inner`? */
int64_t box_element(const Box *inner, const Box *outer, int64_t element);

/* Where the elements are consecutive in the whole tensor, the same elements as a range of the whole; else
 * as it was. */
BoxRange box_range_flat(const BoxRange *range, Shape whole);

/* The range as boxes that have nothing in common; returns how many. Of n dims they are at most 2n - 1. */
enum { BOX_RANGE_MAX_BOXES = 2 * SHAPE_MAX_DIMS };
int box_range_split(const BoxRange *range, Box boxes[BOX_RANGE_MAX_BOXES]);

#endif
