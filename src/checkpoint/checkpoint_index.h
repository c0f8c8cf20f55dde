/* Where the elements of a checkpoint's tensors lie: whole in one file, or in pieces over several. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_INDEX_H
#define PGPT_CHECKPOINT_CHECKPOINT_INDEX_H

#include "checkpoint/checkpoint_manifest.h"

/* Elements first .. first + n - 1 of the whole tensor. */
typedef struct {
    int64_t first, n;
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
} CheckpointPiece;

/* The pieces ascend, without a gap, from the first element to the last. */
struct CheckpointTensor {
    const CheckpointPiece *piece;
    int n_pieces;
};

/* Open the manifest's files, the optimizer's only if they are wanted, and fill in checkpoint->file and ->tensor from them
 * and checkpoint->table. An element that is missing, or there twice, and a tensor that is not the model's, are the
 * user's error: the checkpoint is damaged. */
Status checkpoint_index_open(Checkpoint *checkpoint, const Manifest *manifest, bool with_optimizer,
                             Error *error);

/* Elements first .. first + n - 1 of one of those tensors. */
Status checkpoint_index_read(const CheckpointTensor *tensor, int64_t first, int64_t n, float *values,
                             Error *error);

#endif
