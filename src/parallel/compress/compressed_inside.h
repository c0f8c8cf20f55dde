/* The compressed sum's own: how a unit's words travel, for compressed_sync.c and those that send Adam's
 * momentum (compressed_momentum.c, compressed_local.c). */
#ifndef PGPT_PARALLEL_COMPRESS_COMPRESSED_INSIDE_H
#define PGPT_PARALLEL_COMPRESS_COMPRESSED_INSIDE_H

#include "parallel/compress/compressed_sync.h"

/* One unit on its way. */
typedef struct {
    CompressAttributes attributes;
    Tensor *error, *variance; /* (n) of the unit; variance or NULL */
    Tensor *arrived, *words;
    int64_t *words_border, *arrived_border;
    const Node *start; /* of what is under way */
} UnitTravel;

/* One for every unit. */
UnitTravel *compressed_travels(const CompressedSync *compressed, Graph *graph);

const PartitionUnit *compressed_unit(const CompressedSync *compressed, int index);

/* Parts of a flat tensor (NULL: none of it): elements; a unit's; those of a unit that this rank packs. */
Tensor *compressed_part_of(Graph *graph, Tensor *flat, int64_t first, int64_t n);
Tensor *compressed_unit_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index);
Tensor *compressed_packed_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index);

/* Of a tensor of one unit: what this rank packs, and its own slice. */
Tensor *compressed_packed_of_unit(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index);
Tensor *compressed_slice_of(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index);

/* Of an array of this rank's slices, and of its errors. */
Tensor *compressed_local_slice(const CompressedSync *compressed, Graph *graph, Tensor *slices, int index);
Tensor *compressed_error_part(const CompressedSync *compressed, Graph *graph, int index);

/* Between this rank's slices and all of a unit on every rank; and back, of its own alone. */
void compressed_gather_slices(const CompressedSync *compressed, Graph *graph, int index, Tensor *slices,
                              Tensor *unit);
void compressed_keep_slice(const CompressedSync *compressed, Graph *graph, int index, Tensor *unit,
                           Tensor *slices);

/* Pack, and send every owner its words. */
void compressed_set_out(const CompressedSync *compressed, Graph *graph, int index,
                        const CompressTensors *tensors, UnitTravel *travel);

/* The owner's part: what the ranks say of its slice, packed again, to everybody. `words` of the unit: where
 * they go; NULL: anywhere. */
void compressed_send_back(const CompressedSync *compressed, Graph *graph, int index, Tensor *factor,
                          Tensor *words, float weight, UnitTravel *travel);

/* The words of all slices have come, of the other ranks of the host too. */
void compressed_arrive_all(const CompressedSync *compressed, Graph *graph, const UnitTravel *travel);

/* What is said of a momentum is never more than so many roots of its variance. */
float compressed_momentum_bound(const CompressedSync *compressed, const CompressedMomentum *momentum);

#endif
