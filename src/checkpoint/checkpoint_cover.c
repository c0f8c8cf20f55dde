/* Ranges are split into boxes without a rest, and a plane sweeps over the first dim: a box is compared
 * with those that have begun before it and not ended yet. If no two have anything in common, counting
 * tells whether all is there.
 *
 * Shards of t ranks have t boxes side by side, or a few more where slices of ZeRO end in the middle of a
 * row. The parts come from outside, though, and a file of a million of them side by side would take hours:
 * there is a limit. */
#include "checkpoint/checkpoint_cover.h"

#include <stdlib.h>

enum { MOST_SIDE_BY_SIDE = 1024 };

typedef struct {
    Box box;
    int range; /* that it is of */
} Tile;

static int compare_tiles(const void *a, const void *b) {
    const Tile *x = a, *y = b;
    for (int i = 0; i < x->box.shape.n_dims; i++) {
        if (x->box.offset[i] != y->box.offset[i]) return x->box.offset[i] < y->box.offset[i] ? -1 : 1;
    }
    return x->range < y->range ? -1 : x->range > y->range;
}

static Cover sweep(const Tile *tiles, size_t n_tiles) {
    const Tile *beside[MOST_SIDE_BY_SIDE];
    int n_beside = 0;
    for (size_t i = 0; i < n_tiles; i++) {
        const Tile *tile = &tiles[i];
        int n_left = 0;
        for (int k = 0; k < n_beside; k++) {
            const Box *other = &beside[k]->box;
            Box common;
            if (other->offset[0] + other->shape.dim[0] <= tile->box.offset[0]) continue; /* it has ended */
            if (box_intersect(other, &tile->box, &common))
                return (Cover){.flaw = COVER_OVERLAP, .first = beside[k]->range, .second = tile->range};
            beside[n_left++] = beside[k];
        }
        if (n_left == MOST_SIDE_BY_SIDE) return (Cover){.flaw = COVER_CROWDED};
        n_beside = n_left;
        beside[n_beside++] = tile;
    }
    return (Cover){.flaw = COVER_EXACT};
}

Cover checkpoint_cover(const BoxRange *const *ranges, int n_ranges, Shape whole, Arena *arena) {
    Box boxes[BOX_RANGE_MAX_BOXES];
    size_t n_tiles = 0, n_wanted = 0;
    for (int i = 0; i < n_ranges; i++) n_wanted += (size_t)box_range_split(ranges[i], boxes);
    Tile *tiles = ARENA_ARRAY(arena, Tile, n_wanted + 1);
    for (int i = 0; i < n_ranges; i++) {
        int n_boxes = box_range_split(ranges[i], boxes);
        for (int k = 0; k < n_boxes; k++) tiles[n_tiles++] = (Tile){boxes[k], i};
    }
    qsort(tiles, n_tiles, sizeof *tiles, compare_tiles);
    Cover cover = sweep(tiles, n_tiles);
    if (cover.flaw != COVER_EXACT) return cover;
    int64_t n_missing = shape_count(whole);
    for (int i = 0; i < n_ranges; i++) n_missing -= ranges[i]->n; /* nothing is there twice: it stays >= 0 */
    return (Cover){.flaw = n_missing ? COVER_GAP : COVER_EXACT, .n_missing = n_missing};
}
