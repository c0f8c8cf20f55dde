/* The folder RUN/checkpoints: giving a finished checkpoint its name, and taking old ones away. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_FOLDER_H
#define PGPT_CHECKPOINT_CHECKPOINT_FOLDER_H

#include "base/file/folder.h"

#include <stdint.h>

/* "step-00000120", and what it is called until it is complete: "step-00000120.tmp.4711". From the arena. */
const char *checkpoint_name(int64_t step, Arena *arena);
const char *checkpoint_temporary_name(int64_t step, int64_t process, Arena *arena);

/* The step of a checkpoint's name, -1 for any other. */
int64_t checkpoint_name_step(const char *name);

/* Make the empty folder that a save writes to; one that a process of the same number has left is removed
 * first. */
Status checkpoint_begin(const char *folder, const char *temporary, Error *error);

/* The finished folder takes its name; one that has it already is exchanged for it and removed. */
Status checkpoint_publish(const char *folder, const char *temporary, const char *name, Error *error);

/* Away with what was begun and did not succeed. */
void checkpoint_abandon(const char *folder, const char *temporary);

#endif
