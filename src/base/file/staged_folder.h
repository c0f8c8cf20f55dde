/* A folder that appears whole or not at all: everything is written beside its final name and renamed at the
 * end.
 *
 *     StagedFolder folder;
 *     TRY(staged_folder_open(&folder, "models/gpt2", error));
 *     TRY_GOTO(write_files_in(folder.temporary, error), done);
 *     TRY_GOTO(staged_folder_commit(&folder, error), done);
 * done:
 *     staged_folder_abort(&folder);   // removes what was not committed
 *     return error->status; */
#ifndef PGPT_BASE_FILE_STAGED_FOLDER_H
#define PGPT_BASE_FILE_STAGED_FOLDER_H

#include "base/file/folder.h"

typedef struct {
    char *path;        /* the final name */
    char *temporary;   /* what is being written; NULL before that, and once committed */
    size_t n_existing; /* so many bytes of the path name folders that were there before */
    Folder parent;     /* where both lie, */
    const char *name;  /* by these names */
    const char *temporary_name;
    Folder lock; /* the folder that is written, locked: nobody takes it for abandoned */
    Arena arena;
} StagedFolder;

/* May this folder be made? It must not be there yet, or be empty. Changes nothing. */
Status staged_folder_check(const char *path, Error *error);

/* What processes that were killed have left beside it is removed. */
Status staged_folder_open(StagedFolder *folder, const char *path, Error *error);
/* The same for one name in a folder, or, in a folder that holds nothing else, for all (NULL). */
void staged_folder_clear(const char *parent, const char *name);

Status staged_folder_commit(StagedFolder *folder, Error *error);

/* Remove what was not committed, with the folders above it that open had to make. Safe after commit, after a
 * failed open, and twice. */
void staged_folder_abort(StagedFolder *folder);

#endif
