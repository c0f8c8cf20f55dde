/* Where the elements of a checkpoint's tensors lie: whole in one file, or in pieces over several. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_INDEX_H
#define PGPT_CHECKPOINT_CHECKPOINT_INDEX_H

#include "checkpoint/checkpoint_manifest.h"

/* A part of a tensor. Where its elements are consecutive in the tensor it is a range of all of it. */
typedef struct {
    BoxRange range;
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
} CheckpointPiece;

/* The pieces have every element once. In a row, they are ranges of all of the tensor and ascend without a
 * gap. */
struct CheckpointTensor {
    Shape shape;
    const CheckpointPiece *piece;
    int n_pieces;
    bool is_in_row;
};

/* Open the manifest's files, the optimizer's only if they are wanted, and fill in checkpoint->file and
 * ->tensor from them and checkpoint->table. An element that is missing, or there twice, and a tensor that
 * is not the model's, are the user's error: the checkpoint is damaged. */
Status checkpoint_index_open(Checkpoint *checkpoint, const Manifest *manifest, bool with_optimizer,
                             Error *error);

/* A range of a box of one of those tensors, which lies in it. */
Status checkpoint_index_read(const CheckpointTensor *tensor, const BoxRange *range, float *values,
                             Error *error);

#endif
