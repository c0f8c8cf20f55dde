/* How to start ranks of this program: mpirun or its kin, found and asked, with the words that it needs here.
 *
 *     Launcher launcher;
 *     // "": the one of the MPI that pgpt was built with
 *     TRY(launcher_open(&launcher, options->launcher, error));
 *     const char *arguments[] = {"train", "--json", NULL};
 *     // mpirun ... -n 4 /path/to/pgpt train --json
 *     const char *const *words = launcher_words(&launcher, 4, arguments);
 *     TRY(child_run(&(ChildSetup){.words = words}, &result, error));
 *     launcher_close(&launcher); */
#ifndef PGPT_LAB_LAUNCH_LAUNCHER_H
#define PGPT_LAB_LAUNCH_LAUNCHER_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>

typedef struct {
    const char *const *words; /* of the launcher, NULL at the end */
    int n_words;
    const char *program; /* this one */
    Arena arena;
} Launcher;

/* `text` is split at blanks; what stands between quotes ('' or "") is one word. Nothing else has a meaning:
 * there is no shell. A user error if there is no such program. Open MPI is told to run as root, if we do, and
 * to put several ranks on a core if need be, and not to bind them, unless the text says how to map or
 * bind. */
Status launcher_open(Launcher *launcher, const char *text, Error *error);

/* Of one rank only: no launcher is looked for. */
Status launcher_open_alone(Launcher *launcher, Error *error);
void launcher_close(Launcher *launcher); /* safe on {0} */

/* The whole command; of one rank it is the program alone. The launcher keeps it. */
const char *const *launcher_words(Launcher *launcher, int n_ranks, const char *const *arguments);

/* "--no-save" for a run of `pgpt train` whose checkpoints nobody will look at, or NULL where its words (NULL
 * at the end) say themselves when and how to save, since then it is to be measured. */
const char *launcher_no_save(const char *const *arguments);

/* ---- A folder for what runs leave behind, gone afterwards with all that is in it: {0} is none */

typedef struct {
    char *path;
    char *parent;
    size_t n_existing; /* bytes of the parent's name that were there before */
} RunFolder;

/* In `parent`, which is made. */
Status run_folder_make(RunFolder *folder, const char *parent, Error *error);

/* Removes it, and the folders above that were made for it if nothing else is in them. Safe on {0}. */
void run_folder_remove(RunFolder *folder);

#endif
