/* A folder whose files are those of fuzz_file, for readers that want one. */
#ifndef PGPT_TESTS_FUZZ_FUZZ_FOLDER_H
#define PGPT_TESTS_FUZZ_FUZZ_FOLDER_H

#include "fuzz.h"

static char fuzz_folder_path[256], fuzz_folder_link[3][320];

static void fuzz_remove_folder(void) {
    for (int i = 0; i < 3; i++) unlink(fuzz_folder_link[i]);
    rmdir(fuzz_folder_path);
}

/* Let `name` in the folder lead to file `which`. The folder is the same every time, and gone when the process ends. */
static inline const char *fuzz_folder(const char *name, int which) {
    if (!fuzz_folder_path[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%.200s/pgpt-fuzz-XXXXXX",
                 parent ? parent : "/tmp");
        FUZZ_CHECK(mkdtemp(fuzz_folder_path));
        atexit(fuzz_remove_folder);
    }
    snprintf(fuzz_folder_link[which], sizeof fuzz_folder_link[which], "%s/%s", fuzz_folder_path, name);
    FUZZ_CHECK(symlink(fuzz_file(which, "", 0), fuzz_folder_link[which]) == 0);
    return fuzz_folder_path;
}

#endif
