/* Folders by handle. What is removed, replaced or walked is reached from an open folder, name by name, and no
 * symbolic link is followed on the way: a link is a thing of its own, which can be listed and removed, never
 * gone through.
 *
 *     Folder run, checkpoints;
 *     // the user's path: links in it are his
 *     TRY(folder_open(&run, "runs/first", error));
 *     TRY(folder_open_inside(&checkpoints, &run, "checkpoints", error)); // from here on there are none
 *     folder_remove(&checkpoints, "step-00000120", is_checkpoint_file, error);
 *     folder_close(&checkpoints);
 *     folder_close(&run);
 *
 * Names are single components: no '/', not "." and not "..". */
#ifndef PGPT_BASE_FILE_FOLDER_H
#define PGPT_BASE_FILE_FOLDER_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int descriptor;
    char *path; /* for messages, from malloc; NULL when closed, so {0} is a closed one */
} Folder;

Status folder_open(Folder *folder, const char *path, Error *error);
Status folder_open_inside(Folder *folder, const Folder *parent, const char *name, Error *error);
void folder_close(Folder *folder); /* safe twice and after a failed open */

typedef enum { ENTRY_NONE, ENTRY_FILE, ENTRY_FOLDER, ENTRY_LINK, ENTRY_OTHER } EntryKind;

/* What a name is; a link is a link, wherever it leads. */
EntryKind folder_look(const Folder *folder, const char *name);

typedef struct {
    const char *name;
    EntryKind kind;
} FolderEntry;

/* All there is in it, by name; from the arena. */
Status folder_list(const Folder *folder, Arena *arena, FolderEntry **entries, size_t *n_entries,
                   Error *error);

/* Make a folder in it that was not there before. */
Status folder_make(const Folder *folder, const char *name, Error *error);

/* May a file of this name be removed? */
typedef bool (*FolderKnows)(const char *name);

/* Remove the folder `name` with the files in it, all of which must be known; links count as files. Where
 * there is something else, or another folder, nothing at all is removed, and the error names it. A link
 * instead of the folder is removed itself; what is not there is fine. */
Status folder_remove(const Folder *folder, const char *name, FolderKnows knows, Error *error);

/* Would it be removed? Changes nothing. */
Status folder_check(const Folder *folder, const char *name, FolderKnows knows, Error *error);

/* Remove the folder `name` with everything in it, as deep as it goes: only for a folder that this program has
 * made by exclusive creation and nobody else was told of. What cannot be removed stays. */
void folder_remove_all(const Folder *folder, const char *name);

/* Remove a file, or a link itself; what is not there is fine. */
Status folder_remove_file(const Folder *folder, const char *name, Error *error);

/* So that what was renamed in it outlives a crash. File systems that cannot are forgiven. */
Status folder_sync(const Folder *folder, Error *error);

/* Which folder it is, whatever it is called: a name may come to mean another one. */
typedef struct {
    uint64_t device, inode; /* both 0: none */
} FolderIdentity;

FolderIdentity folder_identity(const char *path);

/* Is the name still this folder's? Always where the identity is none. */
bool folder_is_same(const char *path, FolderIdentity identity);

/* ---- Paths */

/* The folder part of a path and its last name, both from the arena: "." for a bare name. Slashes at the end
 * are cut. */
void path_split(const char *path, Arena *arena, const char **folder, const char **name);

/* How many bytes of the path name what is there already, before folders are made for the rest; 0: nothing of
 * it. */
size_t path_n_existing(const char *path, Arena *arena);

/* Those folders were made for nothing: remove them, from the innermost on, as far as they are empty. */
void path_remove_made(const char *path, size_t n_existing, Arena *arena);

/* Is `name` the text `stem` followed by ".tmp." and a number, as temporaries are called? */
bool path_is_temporary(const char *name, const char *stem);

#endif
