/* All of it from /proc, where the system shows its processes as files. What cannot be read there (another
 * user's, a system without it) is taken for a process that goes on. */
#include "base/system/process.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Behind the name, which may hold anything, /proc/ID/stat has the state and the parent: "4711 (na)me) S 4242
 * ...". */
static bool read_state(const char *id, char *state, long *parent) {
    char path[280], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", id);
    FILE *stream = fopen(path, "re");
    if (!stream) return false;
    size_t n = fread(text, 1, sizeof text - 1, stream);
    fclose(stream);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || end[1] != ' ' || !end[2] || end[3] != ' ') return false;
    *state = end[2];
    *parent = strtol(end + 4, NULL, 10);
    return true;
}

static ProcessState state_of_letter(char letter) {
    if (letter == 'Z' || letter == 'X') return PROCESS_GONE; /* its parent has not asked for it yet */
    return letter == 'T' || letter == 't' ? PROCESS_STOPPED : PROCESS_GOES_ON;
}

ProcessState process_state(int64_t id) {
    char number[32], letter;
    long parent;
    if (kill((pid_t)id, 0) != 0 && errno == ESRCH) return PROCESS_GONE;
    snprintf(number, sizeof number, "%lld", (long long)id);
    return read_state(number, &letter, &parent) ? state_of_letter(letter) : PROCESS_GOES_ON;
}

/* All processes with that parent: how many there are, and the first `most` of them. */
static int find_children(long of, bool only_stopped, int64_t *ids, int most) {
    int n = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *item; folder && (item = readdir(folder));) {
        char letter, *end;
        long parent, id = strtol(item->d_name, &end, 10);
        if (id <= 0 || *end || !read_state(item->d_name, &letter, &parent) || parent != of) continue;
        if (only_stopped && state_of_letter(letter) != PROCESS_STOPPED) continue;
        if (n < most) ids[n] = id;
        n++;
    }
    if (folder) closedir(folder);
    return n;
}

int64_t process_stopped_sibling(void) {
    int64_t id;
    return find_children(getppid(), true, &id, 1) ? id : 0;
}

int process_children(int64_t *ids, int most) {
    return find_children(getpid(), false, ids, most);
}

bool process_variable(int64_t id, const char *name, char *value, size_t n_bytes) {
    char path[64], *entry = NULL;
    size_t capacity = 0, n_name = strlen(name);
    bool is_found = false;
    snprintf(path, sizeof path, "/proc/%lld/environ", (long long)id);
    FILE *stream = fopen(path, "re");
    while (stream && !is_found && getdelim(&entry, &capacity, '\0', stream) > 0) {
        is_found = strncmp(entry, name, n_name) == 0 && entry[n_name] == '=';
        if (is_found) snprintf(value, n_bytes, "%s", entry + n_name + 1);
    }
    free(entry);
    if (stream) fclose(stream);
    return is_found;
}
