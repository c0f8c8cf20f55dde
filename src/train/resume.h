/* Which run is meant by --resume. */
#ifndef PGPT_TRAIN_RESUME_H
#define PGPT_TRAIN_RESUME_H

#include "base/arena.h"
#include "base/error.h"

/* The folder itself where `path` is a link to it: runs/latest moves on when another run begins, and what was resumed
 * through it must not. From the arena. */
const char *resume_folder(const char *path, Arena *arena);

/* For "auto": the run in `out`, or of runs/latest if that is empty, if it has a checkpoint; else NULL. */
Status resume_find(const char *out, Arena *arena, const char **folder, Error *error);

/* Make `folder`, whose run was killed before its first checkpoint, ready for the same run from its beginning. */
Status resume_restart(const char *folder, Error *error);

#endif
