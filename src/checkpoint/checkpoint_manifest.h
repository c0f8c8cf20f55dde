/* A checkpoint's manifest.json, and the folder that checkpoints lie in: what saving and loading share. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_MANIFEST_H
#define PGPT_CHECKPOINT_CHECKPOINT_MANIFEST_H

#include "checkpoint/checkpoint.h"

typedef struct {
    const char *name; /* in the checkpoint's folder */
    bool is_optimizer;
    bool is_basis; /* of the optimizer, too, but not of parameters */
    uint64_t n_bytes, checksum;
} ManifestFile;

typedef struct {
    CheckpointState state;
    ModelConfig config;
    const char *version; /* of the pgpt that wrote it */
    ManifestFile *file;
    int n_files;
    bool has_parts;    /* tensors may lie in several files, as NAME[first:end], */
    bool has_boxes;    /* and as boxes: see part_name.h */
    uint64_t checksum; /* of the text that was read */
} Manifest;

/* The tensor that has it: "basis.0123456789abcdef". */
const char *checkpoint_basis_name(uint64_t identity, Arena *arena);

/* The last line of the file is a checksum of all lines before it. */
Status manifest_write(const char *path, const Manifest *manifest, Error *error);

/* Everything in it is checked; texts and arrays go to the arena. */
Status manifest_read(const char *path, Manifest *manifest, Arena *arena, Error *error);

/* A folder in RUN/checkpoints with a checkpoint's name. */
typedef struct {
    int64_t step;
    const char *name, *path;
    bool is_complete;       /* after checkpoint_inspect: sound, and its files are there in their sizes */
    double validation_loss; /* likewise; NAN when it was not measured */
} CheckpointEntry;

/* Those of a folder, newest first; what has another name is left out. A folder that is not there has none. */
Status checkpoint_list(const char *folder, Arena *arena, CheckpointEntry **entries, int *n_entries,
                       Error *error);
void checkpoint_inspect(CheckpointEntry *entry);

/* The one with the lowest validation loss among those inspected, -1 if there is none. */
int checkpoint_best(const CheckpointEntry *entries, int n_entries);

#endif
