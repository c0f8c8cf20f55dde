/* Are all ranks about to do the same? Rank 0's text goes to everybody, everybody compares it with their own,
 * and the lowest rank that finds a difference says so to all: one message, which all ranks return.
 *
 * The program comes first, by a hash of its file: where builds differ, nothing else that they send each other
 * can be trusted to mean the same. */
#include "parallel/launch/launch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Said by one, known to all */

/* `found` is what this rank has to complain about, if anything. */
static Status settle(Launch *launch, const Error *found, Error *error) {
    Comm *world = &launch->world;
    int64_t first = found->status == STATUS_OK ? world->size : world->rank;
    TRY(comm_all_reduce(world, &first, 1, COMM_I64, COMM_MIN, error));
    if (first == world->size) return STATUS_OK;
    Error said = *found;
    TRY(comm_broadcast(world, &said, sizeof said, COMM_U8, (int)first, error));
    *error = said;
    launch->is_agreed = true;
    return error->status;
}

Status launch_agree_with_root(Launch *launch, Error *error) {
    if (launch->world.size == 1) return error->status;
    Error said = *error;
    TRY(comm_broadcast(&launch->world, &said, sizeof said, COMM_U8, 0, error));
    *error = said;
    launch->is_agreed = said.status != STATUS_OK;
    return error->status;
}

/* Rank 0's text, from malloc. */
static Status fetch_first(Launch *launch, const char *mine, char **text, Error *error) {
    Comm *world = &launch->world;
    int64_t n_bytes = (int64_t)strlen(mine) + 1;
    TRY(comm_broadcast(world, &n_bytes, 1, COMM_I64, 0, error));
    *text = malloc((size_t)n_bytes);
    if (!*text) return error_failed(error, "no memory for %lld bytes of rank 0", (long long)n_bytes);
    if (world->rank == 0) memcpy(*text, mine, (size_t)n_bytes);
    Status status = comm_broadcast(world, *text, n_bytes, COMM_U8, 0, error);
    if (status != STATUS_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

/* ---- Values in a message */

enum { SHOWN_BYTES = 160, SHOWN_BEFORE = 40 };

typedef struct {
    char text[SHOWN_BYTES + 8];
} Shown;

static bool is_inside_character(char byte) {
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* A value on one line; of a long one the part around the byte where it begins to differ. */
static Shown show(const char *value, size_t n_bytes, size_t difference) {
    Shown shown;
    size_t begin = 0, end = n_bytes;
    if (n_bytes > SHOWN_BYTES) {
        if (difference > SHOWN_BEFORE) begin = difference - SHOWN_BEFORE;
        if (begin > n_bytes - SHOWN_BYTES) begin = n_bytes - SHOWN_BYTES;
        end = begin + SHOWN_BYTES;
        while (begin < end && is_inside_character(value[begin])) begin++;
        while (end < n_bytes && end > begin && is_inside_character(value[end])) end--;
    }
    snprintf(shown.text, sizeof shown.text, "%s%.*s%s", begin ? "..." : "", (int)(end - begin), value + begin,
             end < n_bytes ? "..." : "");
    for (char *next = shown.text; *next; next++) {
        if ((unsigned char)*next < ' ') *next = ' ';
    }
    return shown;
}

static size_t first_difference(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i]) i++;
    return i;
}

/* ---- Lines */

typedef struct {
    const char *key, *value;
    size_t n_key, n_value;
} Entry;

static bool is_blank(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static const char *skip_blanks(const char *text) {
    while (is_blank(*text)) text++;
    return text;
}

static size_t trimmed(const char *begin, const char *end) {
    while (end > begin && (is_blank(end[-1]) || end[-1] == '\n')) end--;
    return (size_t)(end - begin);
}

static const char *line_end(const char *line) {
    const char *newline = strchr(line, '\n');
    return newline ? newline + 1 : line + strlen(line);
}

/* The next entry, with the indented lines of quoted text that go on with its value. False at the end. */
static bool next_entry(const char **next, Entry *entry) {
    while (**next) {
        const char *line = skip_blanks(*next), *end = line_end(line);
        *next = end;
        if (!*line || strchr("\n#;[", *line)) continue;
        while (is_blank(**next) && *skip_blanks(*next) == '"') *next = line_end(*next);
        const char *equals = memchr(line, '=', (size_t)(end - line));
        entry->key = line;
        entry->n_key = trimmed(line, equals ? equals : end);
        entry->value = equals ? skip_blanks(equals + 1) : end;
        entry->n_value = entry->value < *next ? trimmed(entry->value, *next) : 0;
        return true;
    }
    return false;
}

static bool find_entry(const char *text, const Entry *wanted, Entry *entry) {
    while (next_entry(&text, entry)) {
        if (entry->n_key == wanted->n_key && memcmp(entry->key, wanted->key, wanted->n_key) == 0) return true;
    }
    return false;
}

static bool same_value(const Entry *a, const Entry *b) {
    return a->n_value == b->n_value && memcmp(a->value, b->value, a->n_value) == 0;
}

/* "lr = 0.001", or "no lr" where there is no entry. */
static void describe_entry(const Entry *key, const Entry *entry, const Entry *other, char *text,
                           size_t n_bytes) {
    int n_key = key->n_key < 80 ? (int)key->n_key : 80;
    if (!entry) {
        snprintf(text, n_bytes, "no %.*s", n_key, key->key);
        return;
    }
    size_t at = other ? first_difference(entry->value, entry->n_value, other->value, other->n_value) : 0;
    snprintf(text, n_bytes, "%.*s = %s", n_key, key->key, show(entry->value, entry->n_value, at).text);
}

/* `mine` or `first` is NULL where that side lacks the key. */
static void complain(const Launch *launch, const char *what, const Entry *key, const Entry *mine,
                     const Entry *first, Error *found) {
    char here[SHOWN_BYTES + 128], there[SHOWN_BYTES + 128];
    describe_entry(key, mine, first, here, sizeof here);
    describe_entry(key, first, mine, there, sizeof there);
    error_user(found, "rank %d on %s has %s where rank 0 has %s; start every rank with the same %s",
               launch->world.rank, launch->host, here, there, what);
}

static void compare_lines(const Launch *launch, const char *what, const char *mine, const char *first,
                          Error *found) {
    Entry ours, theirs;
    for (const char *next = first; next_entry(&next, &theirs);) {
        bool is_there = find_entry(mine, &theirs, &ours);
        if (is_there && same_value(&ours, &theirs)) continue;
        complain(launch, what, &theirs, is_there ? &ours : NULL, &theirs, found);
        return;
    }
    for (const char *next = mine; next_entry(&next, &ours);) {
        if (find_entry(first, &ours, &theirs)) continue;
        complain(launch, what, &ours, &ours, NULL, found);
        return;
    }
}

Status launch_check_lines(Launch *launch, const char *what, const char *text, Error *error) {
    if (launch->world.size == 1) return STATUS_OK;
    char *first;
    TRY(fetch_first(launch, text, &first, error));
    Error found = {0};
    compare_lines(launch, what, text, first, &found);
    free(first);
    return settle(launch, &found, error);
}

Status launch_check_same(Launch *launch, const char *name, const char *value, Error *error) {
    if (launch->world.size == 1) return STATUS_OK;
    char *first;
    TRY(fetch_first(launch, value, &first, error));
    Error found = {0};
    if (strcmp(value, first) != 0) {
        Entry ours = {name, value, strlen(name), strlen(value)};
        Entry theirs = {name, first, strlen(name), strlen(first)};
        complain(launch, name, &ours, &ours, &theirs, &found);
    }
    free(first);
    return settle(launch, &found, error);
}

/* ---- The program */

/* Four independent tracks, so that the multiplications overlap. */
static uint64_t hash_file_bytes(const unsigned char *bytes, size_t n_bytes) {
    uint64_t tracks[4] = {n_bytes, 1, 2, 3};
    const uint64_t factor = 0x9E3779B97F4A7C15u;
    size_t i = 0;
    for (; i + 32 <= n_bytes; i += 32) {
        for (int track = 0; track < 4; track++) {
            uint64_t word;
            memcpy(&word, bytes + i + 8 * track, 8);
            tracks[track] = (tracks[track] ^ word) * factor;
            tracks[track] ^= tracks[track] >> 29;
        }
    }
    for (; i < n_bytes; i++) tracks[0] = (tracks[0] ^ bytes[i]) * factor;
    uint64_t hash = 0;
    for (int track = 0; track < 4; track++) {
        hash = (hash ^ tracks[track]) * factor;
        hash ^= hash >> 31;
    }
    return hash ? hash : 1;
}

uint64_t launch_program_hash(void) {
    uint64_t hash = 0;
    struct stat about;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (fstat(file, &about) == 0 && about.st_size > 0) {
        size_t n_bytes = (size_t)about.st_size;
        void *bytes = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes != MAP_FAILED) {
            hash = hash_file_bytes(bytes, n_bytes);
            munmap(bytes, n_bytes);
        }
    }
    close(file);
    return hash;
}

Status launch_check_program(Launch *launch, Error *error) {
    if (launch->world.size == 1) return STATUS_OK;
    int64_t mine = (int64_t)launch_program_hash(), first = mine;
    TRY(comm_broadcast(&launch->world, &first, 1, COMM_I64, 0, error));
    Error found = {0};
    if (mine && first && mine != first) {
        error_user(&found,
                   "rank %d on %s runs another build of pgpt than rank 0; install the same one on every host",
                   launch->world.rank, launch->host);
    }
    return settle(launch, &found, error);
}

Status launch_check_options(Launch *launch, const Options *options, Error *error) {
    if (launch->world.size == 1) return STATUS_OK;
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return error_failed(error, "no memory to compare options");
    options_write_values(stream, options);
    fclose(stream);
    launch_check_lines(launch, "options", text, error);
    free(text);
    return error->status;
}
