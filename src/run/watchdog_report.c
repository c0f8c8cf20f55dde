/* The report of a job that is being ended. It is made in memory and written at once: a progress bar may be
 * up, and other ranks may be writing at the same time. Names and places are what the ranks have told of
 * themselves: by message at the start, by their notices and boards since. */
#include "run/watchdog_inside.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "run/resume.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_place(const Watchdog *watchdog, const Peer *peer, int rank, FILE *stream) {
    fprintf(stream, "  rank %d (%s, process %lld): ", rank, peer->identity.host,
            (long long)peer->identity.process);
    if (rank == watchdog->rank) {
        char text[1024];
        fprintf(stream, "%s\n", watchdog_describe(watchdog, text, sizeof text));
    } else if (peer->is_ended && watchdog_is_stopped(watchdog, rank)) {
        fprintf(stream, "stopped at the end of the run\n");
    } else if (peer->is_ended && !peer->notice.has_failed) {
        fprintf(stream, "has finished\n");
    } else if (!peer->has_notice) {
        fprintf(stream, "has left no notice\n");
    } else {
        fprintf(stream, "%s\n", peer->notice.where);
    }
}

static void write_places(const Watchdog *watchdog, FILE *stream) {
    enum { MOST_LINES = 64 };
    fprintf(stream, "pgpt: where each rank is:\n");
    for (int rank = 0; rank < watchdog->size && rank < MOST_LINES; rank++)
        write_place(watchdog, &watchdog->peer[rank], rank, stream);
    if (watchdog->size > MOST_LINES)
        fprintf(stream, "  and %d more ranks: see %s/ranks\n", watchdog->size - MOST_LINES,
                watchdog->options.run);
}

static void write_gone(const Watchdog *watchdog, int gone, FILE *stream) {
    char name[256];
    const Peer *peer = &watchdog->peer[gone];
    fprintf(stream, "pgpt: %s is gone; ", notice_name(&peer->notice, name, sizeof name));
    if (!peer->is_exact) {
        double age = timer_wall_seconds() - peer->notice.time;
        fprintf(stream, "when last heard of, %s earlier, ", format_duration(age > 0.0 ? age : 0.0).text);
    }
    fprintf(stream, "it was in: %s\n", peer->notice.where);
}

/* Those that have fallen silent, or else those that are not waiting for others. */
static void write_suspects(const Watchdog *watchdog, FILE *stream) {
    fprintf(stream, "pgpt: nothing has moved for %s on rank %d (--hang-timeout %g)\n",
            format_duration(timer_seconds_since(watchdog->moved_ns)).text, watchdog->rank,
            watchdog->options.timeout_seconds);
    int n_silent = 0, n_busy = 0;
    for (int rank = 0; rank < watchdog->size; rank++) {
        const Peer *peer = &watchdog->peer[rank];
        if (!peer->is_ended || !watchdog_is_stopped(watchdog, rank)) continue;
        n_silent++;
        fprintf(stream, "pgpt: rank %d (%s, process %lld) is stopped\n", rank, peer->identity.host,
                (long long)peer->identity.process);
    }
    for (int rank = 0; rank < watchdog->size; rank++) {
        if (!watchdog_is_silent(watchdog, rank)) continue;
        n_silent++;
        fprintf(stream,
                "pgpt: rank %d (%s, process %lld) has not been heard of for %s: stopped, or its host is\n",
                rank, watchdog->peer[rank].identity.host, (long long)watchdog->peer[rank].identity.process,
                format_duration(timer_seconds_since(watchdog->peer[rank].changed_ns)).text);
    }
    for (int rank = 0; watchdog->size > 1 && rank < watchdog->size && !n_silent; rank++) {
        const Peer *peer = &watchdog->peer[rank];
        bool waits =
            rank == watchdog->rank ? watchdog_waits(watchdog) : !peer->has_notice || peer->notice.waits;
        if (waits) continue;
        n_busy++;
        fprintf(stream, "pgpt: rank %d is the one that the others wait for\n", rank);
    }
    if (watchdog->size > 1 && !n_silent && !n_busy)
        fprintf(stream, "pgpt: every rank waits for others: they have lost step with each other\n");
}

static void write_whole(const char *text, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = write(STDERR_FILENO, text + done, n_bytes - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
}

void watchdog_report(const Watchdog *watchdog, int gone) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return;
    fputc('\n', stream); /* a progress bar may be up */
    if (gone >= 0) write_gone(watchdog, gone, stream);
    else write_suspects(watchdog, stream);
    write_places(watchdog, stream);
    fclose(stream);
    char *shown = plain_copy(text, n_bytes, true); /* names of hosts and folders are not ours */
    if (shown) write_whole(shown, strlen(shown));
    free(shown);
    free(text);
}

void watchdog_advise(const Watchdog *watchdog) {
    Arena arena = {0};
    Error ignored = {0};
    const char *run = watchdog->options.run, *found = NULL;
    bool is_known = resume_find(run, &arena, &found, &ignored) == STATUS_OK;
    const char *text =
        found ? arena_printf(
                    &arena,
                    "pgpt: ending the job; go on from its last checkpoint with: pgpt train --resume %s\n",
                    shell_path(run).text)
        : is_known
            ? arena_printf(
                  &arena,
                  "pgpt: ending the job; nothing had been saved yet, so begin again: with --save-minutes "
                  "or --save-every there is something to go on from\n")
            : arena_printf(
                  &arena,
                  "pgpt: ending the job; whether there is a checkpoint to go on from cannot be told: %s\n",
                  ignored.text);
    write_whole(text, strlen(text));
    arena_free(&arena);
}
