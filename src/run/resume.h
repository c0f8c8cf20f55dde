/* Which run is meant by --resume. */
#ifndef PGPT_RUN_RESUME_H
#define PGPT_RUN_RESUME_H

#include "base/arena.h"
#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"

/* The folder itself where `path` is a link to it: runs/latest moves on when another run begins, and what was
 * resumed through it must not. From the arena. */
const char *resume_folder(const char *path, Arena *arena);

/* The run that is meant by the path of its folder, of its checkpoints/ or of its newest checkpoint; another
 * checkpoint, or what is no run, is a user's error that says what to give. From the arena. */
Status resume_named(const char *path, Arena *arena, const char **run, Error *error);

/* The newest manifest of the run that can be read: what the run is, whatever its config.ini says by now. */
Status resume_manifest(const char *run, Arena *arena, Manifest *manifest, bool *found, Error *error);

/* For "auto": the run in `out`, or of runs/latest if that is empty, if it has a checkpoint; else NULL. */
Status resume_find(const char *out, Arena *arena, const char **folder, Error *error);

/* Make `path`, whose run was killed before its first checkpoint, ready for the same run from its
 * beginning. */
Status resume_restart(const char *path, Error *error);

#endif
