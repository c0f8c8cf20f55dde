/* The part of a checkpoint that one rank writes. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_PART_H
#define PGPT_CHECKPOINT_CHECKPOINT_PART_H

#include "checkpoint/checkpoint.h"

enum {
    CHECKPOINT_MODEL_FILE,
    CHECKPOINT_OPTIMIZER_FILE,
    CHECKPOINT_OWNER_FILE, /* errors of owners */
    CHECKPOINT_ERROR_FILE, /* and of ranks */
    CHECKPOINT_BASIS_FILE, /* no parameters' elements */
    CHECKPOINT_PART_FILES
};

extern const char *const checkpoint_part_names[CHECKPOINT_PART_FILES]; /* "model": what each is called */

/* What was written of each file, in whole words, so that ranks of one machine type can exchange it as it
 * is. */
typedef struct {
    int64_t n_elements; /* 0: there is no such file */
    uint64_t n_bytes, checksum;
} CheckpointPartFile;

typedef struct {
    CheckpointPartFile file[CHECKPOINT_PART_FILES];
    int64_t has_boxes; /* 1: some tensors are parts that an older reader does not know */
} CheckpointPart;

/* Write the files of one rank, synced; alone (one rank of one) under the names without numbers. */
Status checkpoint_part_write(const char *folder, const CheckpointSource *source, int rank, int n_ranks,
                             CheckpointPart *part, Error *error);

/* When all ranks are done: check that the parts add up, and write the manifest. */
Status checkpoint_parts_seal(const char *folder, const CheckpointSource *source, const CheckpointPart *parts,
                             int n_ranks, Error *error);

#endif
