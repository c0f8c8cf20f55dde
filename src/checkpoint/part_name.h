/* Names of tensors and of parts of them in a checkpoint's files:
 *
 *     NAME                            all of it, in its shape
 *     NAME[1000:2000]                 elements 1000 to 1999 in the order of the rows, as one dim
 *     NAME[0:64,128:256]              a box: a range of every dim, in the shape of the box
 *     NAME[0:64,128:256][1000:2000]   elements 1000 to 1999 of that box, as one dim */
#ifndef PGPT_CHECKPOINT_PART_NAME_H
#define PGPT_CHECKPOINT_PART_NAME_H

#include "base/arena.h"
#include "graph/box.h"

/* The name of a part of a tensor of shape `whole`, which box_range_flat has seen, and the shape that it is
 * stored in. */
const char *part_name_write(const char *prefix, const char *name, Shape whole, const BoxRange *range,
                            Shape *shape, Arena *arena);

typedef enum { PART_NAME_SOUND, PART_NAME_NO_RANGE, PART_NAME_BEYOND } PartNameFlaw;

/* Read what follows the name, "" or one of the endings above, which come from outside. The numbers of a
 * part that is sound lie in the tensor, and it has at least one element (a whole tensor may have none). */
PartNameFlaw part_name_read(const char *ending, Shape whole, BoxRange *range, Shape *shape);

#endif
