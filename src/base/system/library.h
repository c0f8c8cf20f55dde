/* Shared libraries that are opened when they are first used: a process that does without one neither needs it
 * installed nor pays for it in memory.
 *
 * What is wanted of a library is a table of pointers to its functions, and a list of their names and places
 * in it:
 *
 *     typedef struct {
 *         __typeof__(ncclGetVersion) *GetVersion;
 *     } Nccl;
 *
 *     static const LibrarySymbol symbols[] = {LIBRARY_SYMBOL(Nccl, nccl, GetVersion), {NULL, 0}};
 *     static const Library library = {.name = "nccl", .file = "libnccl.so.2",
 *                                     .folders = library_cuda_folders, .symbols = symbols,
 *                                     .advice = "install libnccl2"};
 *     Nccl nccl;
 *     TRY(library_load(&library, &nccl, error));
 *     nccl.GetVersion(&version);
 *
 * The environment variable PGPT_WITHOUT=nccl,cudnn,cublas leaves libraries of these names out, to find out
 * whether one of them is to blame. */
#ifndef PGPT_BASE_SYSTEM_LIBRARY_H
#define PGPT_BASE_SYSTEM_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct {
    const char *name;
    size_t offset; /* of its pointer in the table */
} LibrarySymbol;

/* The function prefix##name, in a table that calls it name; and a number, such as that of a version, as
 * text. */
#define LIBRARY_SYMBOL(Table, prefix, name)                                                                  \
    { #prefix #name, offsetof(Table, name) }
#define LIBRARY_TEXT_OF(words) #words
#define LIBRARY_TEXT(number)   LIBRARY_TEXT_OF(number)

typedef struct {
    const char *name;             /* "nccl" */
    const char *file;             /* "libnccl.so.2": with the version whose interface is meant */
    const char *const *folders;   /* where to look after the loader's own places; NULL at the end, or none */
    const LibrarySymbol *symbols; /* a name of NULL ends them */
    const char *advice;           /* how to get it */
} Library;

/* Where NVIDIA's packages put their libraries. "$NAME/..." begins with the value of an environment
 * variable. */
extern const char *const library_cuda_folders[];

/* By PGPT_WITHOUT: then library_load fails. */
bool library_is_left_out(const Library *library);

/* Opens the library and fills the table; all of it or nothing. The library stays open until the process ends.
 * A library that is missing, or lacks a function, is a user's error that says where it was looked for and how
 * to get it. */
Status library_load(const Library *library, void *table, Error *error);

#endif
