/* Names are pointers in an activity, which mean nothing to another process, so a board has copies of them:
 * cut off where they are long, since to say what one does must stay cheap. To describe a board, an activity
 * is made from a copy of it. */
#define _GNU_SOURCE /* memfd_create */
#include "base/system/activity_board.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NAME_BYTES = 40, PLACE_BYTES = 48 };

typedef struct {
    char name[NAME_BYTES], place[PLACE_BYTES];
    int64_t number;
    uint64_t n_bytes, since_ns;
    int32_t peers, kind;
} BoardSlot;

typedef struct {
    char name[NAME_BYTES];
    _Atomic int32_t depth;
    BoardSlot slot[ACTIVITY_MAX_DEPTH];
} BoardTrack;

struct ActivityBoard {
    BoardTrack track[ACTIVITY_MAX_TRACKS];
};

/* ---- Open and close */

ActivityBoard *activity_board_open(int *descriptor) {
    *descriptor = memfd_create("pgpt activity", MFD_CLOEXEC);
    if (*descriptor < 0) return NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(*descriptor, sizeof(ActivityBoard)) == 0)
        memory = mmap(NULL, sizeof(ActivityBoard), PROT_READ | PROT_WRITE, MAP_SHARED, *descriptor, 0);
    if (memory != MAP_FAILED) return memory; /* all zero: nothing is being done */
    close(*descriptor);
    *descriptor = -1;
    return NULL;
}

ActivityBoard *activity_board_join(int64_t process, int descriptor) {
    char path[64];
    if (descriptor < 0) return NULL;
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)process, descriptor);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0) return NULL;
    void *memory = MAP_FAILED;
    if (lseek(own, 0, SEEK_END) == (off_t)sizeof(ActivityBoard)) /* beyond a file's end is no memory */
        memory = mmap(NULL, sizeof(ActivityBoard), PROT_READ, MAP_SHARED, own, 0);
    close(own);
    return memory == MAP_FAILED ? NULL : memory;
}

void activity_board_close(ActivityBoard *board) {
    if (board) munmap(board, sizeof *board);
}

/* ---- The one whose board it is */

/* The last byte of a text is never written to, and was 0 from the beginning. */
static void copy_text(char *to, const char *from, size_t n_bytes) {
    size_t n = from ? strnlen(from, n_bytes - 2) : 0;
    if (n) memcpy(to, from, n);
    to[n] = '\0';
}

void activity_board_begin(ActivityBoard *board, int track, const char *track_name, int32_t depth,
                          const ActivityEntry *entry, uint64_t now) {
    if (!board || depth >= ACTIVITY_MAX_DEPTH) return;
    BoardTrack *at = &board->track[track];
    BoardSlot *slot = &at->slot[depth];
    if (!at->name[0]) copy_text(at->name, track_name, sizeof at->name);
    copy_text(slot->name, entry->name, sizeof slot->name);
    copy_text(slot->place, entry->place, sizeof slot->place);
    slot->number = entry->number;
    slot->n_bytes = entry->n_bytes;
    slot->peers = entry->peers;
    slot->kind = (int32_t)entry->kind;
    slot->since_ns = now;
    atomic_store_explicit(&at->depth, depth + 1, memory_order_release);
}

void activity_board_end(ActivityBoard *board, int track, int32_t depth) {
    if (board && depth < ACTIVITY_MAX_DEPTH)
        atomic_store_explicit(&board->track[track].depth, depth, memory_order_release);
}

/* ---- Whoever looks on */

static void show_track(Activity *activity, int number, const BoardTrack *track, int32_t depth) {
    ActivityTrack *at = &activity->track[number];
    atomic_store(&at->name, track->name);
    atomic_store(&at->depth, depth);
    for (int32_t i = 0; i < depth; i++) {
        const BoardSlot *slot = &track->slot[i];
        ActivitySlot *to = &at->slot[i];
        atomic_store(&to->name, slot->name);
        atomic_store(&to->place, slot->place[0] ? slot->place : NULL);
        atomic_store(&to->number, slot->number);
        atomic_store(&to->n_bytes, slot->n_bytes);
        atomic_store(&to->since_ns, slot->since_ns);
        atomic_store(&to->peers, slot->peers);
        atomic_store(&to->kind, slot->kind);
    }
}

const char *activity_board_describe(const ActivityBoard *board, char *text, size_t n_bytes) {
    if (!board) return NULL;
    ActivityBoard copy;
    memcpy(&copy, board, sizeof copy);
    Activity activity;
    activity_open(&activity);
    bool is_empty = true;
    for (int number = 0; number < ACTIVITY_MAX_TRACKS; number++) {
        int32_t depth = atomic_load(&copy.track[number].depth);
        if (depth > ACTIVITY_MAX_DEPTH) depth = ACTIVITY_MAX_DEPTH;
        if (depth <= 0) continue;
        is_empty = false;
        show_track(&activity, number, &copy.track[number], depth);
        atomic_store(&activity.n_tracks, number + 1);
    }
    if (!is_empty) activity_describe(&activity, text, n_bytes);
    activity_close(&activity);
    return is_empty ? NULL : text;
}
