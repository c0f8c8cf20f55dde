/* dlopen with a list of places and words for what goes wrong.
 *
 * The plain file name comes first, so that LD_LIBRARY_PATH, the loader's cache and a copy that the process
 * already has all count; the folders are for toolkits that were unpacked without telling the loader. Names
 * are resolved at once: a library that is itself incomplete is refused here and not in the middle of a run.
 *
 * Nothing is ever closed. These libraries start threads and leave handlers for the end of the process, and
 * closing one that another still uses is a crash that nobody finds. */
#include "base/system/library.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PATH = 1024 };

const char *const library_cuda_folders[] = {"/usr/local/cuda/lib64", "$CUDA_HOME/lib64", NULL};

/* Is the name in the list that PGPT_WITHOUT is? */
static bool is_left_out(const char *name) {
    const char *list = getenv("PGPT_WITHOUT");
    size_t length = strlen(name);
    while (list && *list) {
        size_t n = strcspn(list, ",");
        if (n == length && strncmp(list, name, n) == 0) return true;
        list += n;
        if (*list) list++;
    }
    return false;
}

/* folder/file with the folder's variable filled in; false if that is not set, or the path too long. */
static bool make_path(char path[MOST_PATH], const char *folder, const char *file) {
    const char *value = "", *rest = folder;
    char variable[64];
    if (*folder == '$') {
        size_t n = strcspn(folder, "/") - 1;
        if (n >= sizeof variable) return false;
        memcpy(variable, folder + 1, n);
        variable[n] = '\0';
        rest = folder + 1 + n;
        value = getenv(variable);
        if (!value || !*value) return false;
    }
    return snprintf(path, MOST_PATH, "%s%s/%s", value, rest, file) < MOST_PATH;
}

/* The handle, or NULL and the loader's words. A file that is there but cannot be opened says more than one
 * that is not. */
static void *open_somewhere(const Library *library, char *words, size_t n_bytes) {
    void *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    snprintf(words, n_bytes, "%s", dlerror());
    for (const char *const *folder = library->folders; folder && *folder; folder++) {
        char path[MOST_PATH];
        if (!make_path(path, *folder, library->file) || access(path, F_OK) != 0) continue;
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle) return handle;
        snprintf(words, n_bytes, "%s", dlerror());
    }
    return NULL;
}

bool library_is_left_out(const Library *library) {
    return is_left_out(library->name);
}

static Status cannot_open(const Library *library, const char *words, Error *error) {
    char places[256] = "";
    for (const char *const *folder = library->folders; folder && *folder; folder++) {
        size_t used = strlen(places);
        snprintf(places + used, sizeof places - used, "%s%s", folder[1] ? ", " : " and ", *folder);
    }
    return error_user(error, "%s cannot be loaded (%s); it was looked for in the system's folders%s: %s",
                      library->file, words, places, library->advice);
}

Status library_load(const Library *library, void *table, Error *error) {
    char words[384] = "";
    if (library_is_left_out(library))
        return error_user(error, "%s is left out by PGPT_WITHOUT; take %s off that list", library->file,
                          library->name);
    void *handle = open_somewhere(library, words, sizeof words);
    if (!handle) return cannot_open(library, words, error);
    for (const LibrarySymbol *symbol = library->symbols; symbol->name; symbol++) {
        if (!dlsym(handle, symbol->name))
            return error_user(error, "%s has no %s, so it is not the version that pgpt was built for: %s",
                              library->file, symbol->name, library->advice);
    }
    for (const LibrarySymbol *symbol = library->symbols; symbol->name; symbol++) {
        void *function = dlsym(handle, symbol->name);
        memcpy((char *)table + symbol->offset, &function, sizeof function);
    }
    return STATUS_OK;
}
