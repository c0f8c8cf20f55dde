/* A ring of moves. Whoever starts one looks for earlier ones, not yet done, that touch the same bytes: it
 * begins when the last of these is over, and as they were started earlier, nobody waits in a circle. Beyond
 * that moves keep no order: a file has as many of them in flight as have begun (base/file/file_queue.h), so
 * that what is read ahead and what is written behind keep the disk busy. Copies in memory are made by a
 * thread a lane. */
#include "graph/device/mover.h"

#include "base/file/scratch_file.h"
#include "base/system/timer.h"
#include "graph/plan.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RING = MOVER_MOST_MOVES, RING_WORDS = RING / 64, BOUNCE_BYTES = 1 << 20 };

typedef struct {
    Mover *mover;
    MoveEnd from, to;
    size_t n_bytes;
    MoveLane lane;
    uint64_t before[RING_WORDS]; /* a bit for each place in the ring whose move has to be done first */
    bool is_device;              /* the backend's; others are a file's, or a thread's */
    uint64_t copy;               /* its ticket */
    bool has_begun, is_done;
} Move;

typedef struct {
    Mover *mover;
    pthread_t thread;
    Move *queue[RING]; /* copies that have begun */
    uint64_t n_queued, n_taken;
    bool is_open;
    int track;    /* of the activity that is told */
    int n_moving; /* moves that have begun and not ended */
} Lane;

struct Mover {
    MoverOptions options;
    ScratchFile *file;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Lane lane[N_MOVE_LANES];
    Move ring[RING];
    uint64_t n_started; /* the last one's number */
    bool is_closing;
    Activity *activity; /* NULL: nobody is told */
    Error error;        /* the first one stays */
    MoverCounts counts;
};

/* ---- files */

static uint64_t offset_of(const Mover *mover, const void *address) {
    uint64_t before = 0;
    for (int i = 0; i < mover->options.n_files; i++) {
        const MoverFile *file = &mover->options.file[i];
        const char *base = file->base, *at = address;
        if (at >= base && at < base + file->n_bytes) return before + (uint64_t)(at - base);
        before += file->n_bytes;
    }
    return before; /* behind everything: the file ends too early */
}

static size_t whole_pages(size_t n_bytes) {
    return (n_bytes + SCRATCH_PAGE - 1) / SCRATCH_PAGE * SCRATCH_PAGE;
}

static void when_done(void *context, const Error *error);

/* With the lock. *is_done: it is over. */
static Status begin_transfer(Mover *mover, Move *move, bool *is_done, Error *error) {
    bool is_write = move->to.kind == MEMORY_FILE;
    ScratchTransfer transfer = {
        .is_write = is_write,
        .offset = offset_of(mover, is_write ? move->to.address : move->from.address),
        .memory = is_write ? move->from.address : move->to.address,
        .n_bytes = move->n_bytes,
        .done = when_done,
        .context = move,
    };
    return scratch_start(mover->file, &transfer, is_done, error);
}

/* ---- on a timeline, with the lock: from one end of a move to the next while any is under way */

static const char *const move_names[N_MOVE_LANES] = {"offload", "fetch"};

static void show(Mover *mover, MoveLane which) {
    ActivityEntry entry = {.kind = ACTIVITY_FILE, .name = move_names[which], .number = -1};
    activity_begin(mover->activity, mover->lane[which].track, &entry);
}

static void show_begin(Mover *mover, MoveLane which) {
    if (!mover->lane[which].n_moving++ && mover->activity) show(mover, which);
}

static void show_end(Mover *mover, MoveLane which) {
    int n_left = --mover->lane[which].n_moving;
    if (!mover->activity) return;
    activity_end(mover->activity, mover->lane[which].track);
    if (n_left) show(mover, which);
}

void mover_watch(Mover *mover, Activity *activity) {
    if (!mover) return;
    pthread_mutex_lock(&mover->mutex);
    mover->activity = activity;
    bool is_here = mover->file || !backend_has_own_memory(mover->options.backend); /* not all is a device's */
    mover->lane[MOVE_OUT].track = is_here ? activity_add_track(activity, "moves out") : -1;
    mover->lane[MOVE_IN].track = is_here ? activity_add_track(activity, "moves in") : -1;
    pthread_mutex_unlock(&mover->mutex);
}

/* ---- moves that begin and end, with the lock */

static bool is_done(const Mover *mover, uint64_t number) {
    return !number || number + RING <= mover->n_started || mover->ring[number % RING].is_done;
}

/* The first error stays. The state that was on its way is gone, and what is on disk under a name is not. */
static void keep_error(Mover *mover, const Error *error) {
    if (error->status == STATUS_OK || mover->error.status != STATUS_OK) return;
    mover->error.status = error->status;
    snprintf(mover->error.text, sizeof mover->error.text,
             "%.*s; checkpoints are whole: go on by --resume, with another folder for --offload",
             (int)sizeof mover->error.text - 100, error->text);
}

static void end_move(Mover *mover, Move *move, const Error *error) {
    size_t place = (size_t)(move - mover->ring);
    keep_error(mover, error);
    show_end(mover, move->lane);
    move->is_done = true;
    for (int i = 0; i < RING; i++) mover->ring[i].before[place / 64] &= ~((uint64_t)1 << place % 64);
    pthread_cond_broadcast(&mover->changed);
}

static bool is_of_file(const Move *move) {
    return move->to.kind == MEMORY_FILE || move->from.kind == MEMORY_FILE;
}

/* After an error nothing is moved any more. */
static void begin_move(Mover *mover, Move *move) {
    Error error = {0};
    move->has_begun = true;
    show_begin(mover, move->lane);
    bool is_file = is_of_file(move), is_done = false;
    if (mover->error.status != STATUS_OK ||
        (is_file && begin_transfer(mover, move, &is_done, &error) != STATUS_OK) || is_done)
        end_move(mover, move, &error);
    if (is_file || move->is_done) return;
    Lane *lane = &mover->lane[move->lane];
    lane->queue[lane->n_queued++ % RING] = move;
    pthread_cond_broadcast(&mover->changed);
}

static bool may_begin(const Move *move) {
    uint64_t before = 0;
    for (int i = 0; i < RING_WORDS; i++) before |= move->before[i];
    return move->mover && !move->is_device && !move->has_begun && !before;
}

/* Those that waited for one that is over; again, where beginning was the end of one. */
static void begin_next(Mover *mover) {
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < RING; i++) {
            if (!may_begin(&mover->ring[i])) continue;
            begin_move(mover, &mover->ring[i]);
            again = true;
        }
    }
}

static void when_done(void *context, const Error *error) {
    Move *move = context;
    Mover *mover = move->mover;
    pthread_mutex_lock(&mover->mutex);
    end_move(mover, move, error);
    begin_next(mover);
    pthread_mutex_unlock(&mover->mutex);
}

/* ---- threads */

static void *work(void *context) {
    Lane *lane = context;
    Mover *mover = lane->mover;
    const Error none = {0};
    pthread_mutex_lock(&mover->mutex);
    for (;;) {
        while (lane->n_taken == lane->n_queued && !mover->is_closing)
            pthread_cond_wait(&mover->changed, &mover->mutex);
        if (lane->n_taken == lane->n_queued) break;
        Move *move = lane->queue[lane->n_taken++ % RING];
        pthread_mutex_unlock(&mover->mutex);
        memcpy(move->to.address, move->from.address, move->n_bytes);
        when_done(move, &none);
        pthread_mutex_lock(&mover->mutex);
    }
    pthread_mutex_unlock(&mover->mutex);
    return NULL;
}

Status mover_open(Mover **opened, const MoverOptions *options, Error *error) {
    Mover *mover = calloc(1, sizeof *mover);
    *opened = mover;
    if (!mover) return error_failed(error, "no memory for what moves data between memories");
    mover->options = *options;
    pthread_mutex_init(&mover->mutex, NULL);
    pthread_cond_init(&mover->changed, NULL);
    uint64_t n_bytes = 0;
    for (int i = 0; i < options->n_files; i++) n_bytes += options->file[i].n_bytes;
    if (options->n_files && !options->folder)
        error_failed(error, "no folder was named for what is kept in a file");
    else if (options->n_files &&
             scratch_open(&mover->file, options->folder, n_bytes, options->queue, error) != STATUS_OK)
        error_prefix(error, "--offload: ");
    for (int i = 0; i < N_MOVE_LANES && error->status == STATUS_OK; i++) {
        mover->lane[i] = (Lane){.mover = mover};
        if (pthread_create(&mover->lane[i].thread, NULL, work, &mover->lane[i]))
            error_failed(error, "no thread for what moves data between memories");
        else mover->lane[i].is_open = true;
    }
    if (error->status != STATUS_OK) mover_close(opened);
    return error->status;
}

/* Is anything on its way that is not a device's? */
static bool is_moving(const Mover *mover) {
    for (int i = 0; i < RING; i++) {
        const Move *move = &mover->ring[i];
        if (move->mover && !move->is_device && !move->is_done) return true;
    }
    return false;
}

void mover_close(Mover **opened) {
    Mover *mover = *opened;
    if (!mover) return;
    pthread_mutex_lock(&mover->mutex);
    while (is_moving(mover)) pthread_cond_wait(&mover->changed, &mover->mutex);
    mover->is_closing = true;
    pthread_cond_broadcast(&mover->changed);
    pthread_mutex_unlock(&mover->mutex);
    for (int i = 0; i < N_MOVE_LANES; i++) {
        if (mover->lane[i].is_open) pthread_join(mover->lane[i].thread, NULL);
    }
    scratch_close(&mover->file);
    pthread_cond_destroy(&mover->changed);
    pthread_mutex_destroy(&mover->mutex);
    free(mover);
    *opened = NULL;
}

/* ---- moves */

MoveEnd mover_end(const Mover *mover, const Tensor *tensor, void *address) {
    Place place = tensor_root((Tensor *)tensor)->place;
    return (MoveEnd){address, plan_memory_kind(&mover->options.backend->traits, place)};
}

/* Addresses. */
typedef struct {
    uintptr_t first, end;
} Span;

static Span read_by(const Move *move) {
    uintptr_t first = (uintptr_t)move->from.address;
    return (Span){first, first + move->n_bytes};
}

/* What comes from a file fills the pages of memory that it lies in. */
static Span written_by(const Move *move) {
    uintptr_t first = (uintptr_t)move->to.address, end = first + move->n_bytes;
    if (move->from.kind != MEMORY_FILE) return (Span){first, end};
    return (Span){first / SCRATCH_PAGE * SCRATCH_PAGE,
                  (end + SCRATCH_PAGE - 1) / SCRATCH_PAGE * SCRATCH_PAGE};
}

static bool overlap(Span a, Span b) {
    return a.first < b.end && b.first < a.end;
}

/* Both may read the same bytes. */
static bool collide(const Move *a, const Move *b) {
    Span to = written_by(a), other = written_by(b);
    return overlap(to, other) || overlap(to, read_by(b)) || overlap(read_by(a), other);
}

static Status thread_error(Mover *mover, Error *error) {
    if (mover->error.status != STATUS_OK) *error = mover->error;
    return error->status;
}

/* With the lock. */
static Status await(Mover *mover, uint64_t number, Error *error) {
    uint64_t start = timer_now_ns();
    while (!is_done(mover, number)) pthread_cond_wait(&mover->changed, &mover->mutex);
    mover->counts.wait_seconds += timer_seconds_since(start);
    return thread_error(mover, error);
}

/* A device's copy is done when it was waited for; its place in the ring must not be taken before. */
static Status finish(Mover *mover, uint64_t number, bool by_host, Error *error) {
    const Backend *backend = mover->options.backend;
    Move *move = &mover->ring[number % RING];
    if (is_done(mover, number)) return thread_error(mover, error);
    if (!move->is_device) return await(mover, number, error);
    uint64_t start = timer_now_ns();
    TRY(backend->copy_wait(backend->context, move->copy, by_host, error));
    mover->counts.wait_seconds += timer_seconds_since(start);
    if (by_host) move->is_done = true;
    return STATUS_OK;
}

/* Which moves have to be done before this one. Those of another kind, a thread's before a device's or the
 * other way round, are waited for now; but a device knows what to do behind its own copies. */
static Status find_earlier(Mover *mover, Move *move, uint64_t number, uint64_t *after, Error *error) {
    *after = 0;
    for (uint64_t n = number > RING ? number - RING + 1 : 1; n < number; n++) {
        const Move *earlier = &mover->ring[n % RING];
        if (is_done(mover, n) || !collide(move, earlier)) continue;
        if (earlier->is_device != move->is_device) TRY(finish(mover, n, true, error));
        else if (move->is_device)
            *after = earlier->copy; /* the last one: those before it on the same bytes are over */
    }
    return STATUS_OK;
}

/* With all of them known, and none of another kind left. */
static void mark_earlier(const Mover *mover, Move *move, uint64_t number) {
    for (uint64_t n = number > RING ? number - RING + 1 : 1; n < number; n++)
        if (!is_done(mover, n) && collide(move, &mover->ring[n % RING]))
            move->before[n % RING / 64] |= (uint64_t)1 << n % 64;
}

static Status start_copy(Mover *mover, Move *move, uint64_t after, Error *error) {
    const Backend *backend = mover->options.backend;
    bool is_out = move->lane == MOVE_OUT;
    ActivityEntry entry = {
        .kind = ACTIVITY_FILE, .name = move_names[move->lane], .number = -1, .n_bytes = move->n_bytes};
    const BackendSpan *span =
        device_times_next(mover->options.times, is_out ? DEVICE_TRACK_OUT : DEVICE_TRACK_IN, &entry);
    TRY(backend->copy_start(backend->context, move->to.address, move->from.address, move->n_bytes, is_out,
                            after, span, &move->copy, error));
    device_times_end(mover->options.times, span);
    return STATUS_OK;
}

static Status start_locked(Mover *mover, Move move, uint64_t *ticket, Error *error) {
    uint64_t number = mover->n_started + 1, after;
    if (number > RING) TRY(finish(mover, number - RING, true, error));
    TRY(thread_error(mover, error));
    TRY(find_earlier(mover, &move, number, &after, error));
    if (move.is_device) TRY(start_copy(mover, &move, after, error));
    else mark_earlier(mover, &move, number);
    mover->ring[number % RING] = move;
    mover->n_started = number;
    mover->counts.bytes[move.lane] += move.n_bytes;
    if (move.is_device) mover->counts.bus_bytes[move.lane] += move.n_bytes;
    if (is_of_file(&move)) mover->counts.file_bytes[move.lane] += move.n_bytes;
    *ticket = number;
    begin_next(mover);
    return STATUS_OK;
}

Status mover_start(Mover *mover, MoveLane lane, MoveEnd from, MoveEnd to, size_t n_bytes, uint64_t *ticket,
                   Error *error) {
    Move move = {.mover = mover,
                 .from = from,
                 .to = to,
                 .n_bytes = n_bytes,
                 .lane = lane,
                 .is_device = from.kind == MEMORY_DEVICE || to.kind == MEMORY_DEVICE};
    *ticket = 0;
    if (!n_bytes) return STATUS_OK;
    pthread_mutex_lock(&mover->mutex);
    start_locked(mover, move, ticket, error);
    pthread_mutex_unlock(&mover->mutex);
    return error->status;
}

Status mover_wait(Mover *mover, uint64_t ticket, bool by_host, Error *error) {
    pthread_mutex_lock(&mover->mutex);
    finish(mover, ticket, by_host, error);
    pthread_mutex_unlock(&mover->mutex);
    return error->status;
}

/* ---- from outside of a program */

static Status drain(Mover *mover, Error *error) {
    pthread_mutex_lock(&mover->mutex);
    uint64_t last = mover->n_started;
    for (uint64_t n = last > RING ? last - RING + 1 : 1; n <= last && error->status == STATUS_OK; n++)
        finish(mover, n, true, error);
    pthread_mutex_unlock(&mover->mutex);
    return error->status;
}

/* Whole pages are read into `page`, changed there, and written back. */
static Status copy_pages(Mover *mover, MoveEnd from, MoveEnd to, size_t n_bytes, char *page, Error *error) {
    bool is_written = to.kind == MEMORY_FILE;
    uint64_t at = offset_of(mover, is_written ? to.address : from.address);
    char *memory = is_written ? from.address : to.address;
    for (size_t done = 0, n; done < n_bytes; done += n, at += n) {
        uint64_t first = at / SCRATCH_PAGE * SCRATCH_PAGE;
        size_t skip = (size_t)(at - first);
        n = BOUNCE_BYTES - skip < n_bytes - done ? BOUNCE_BYTES - skip : n_bytes - done;
        bool is_part = skip || (skip + n) % SCRATCH_PAGE;
        if (!is_written || is_part) TRY(scratch_read(mover->file, first, page, whole_pages(skip + n), error));
        if (!is_written) {
            memcpy(memory + done, page + skip, n);
            continue;
        }
        memcpy(page + skip, memory + done, n);
        TRY(scratch_write(mover->file, first, page, whole_pages(skip + n), error));
    }
    return STATUS_OK;
}

Status mover_copy(Mover *mover, MoveEnd from, MoveEnd to, size_t n_bytes, Error *error) {
    if (!n_bytes) return STATUS_OK;
    TRY(drain(mover, error));
    if (from.kind != MEMORY_FILE && to.kind != MEMORY_FILE) {
        memcpy(to.address, from.address, n_bytes);
        return STATUS_OK;
    }
    void *page = NULL;
    if (posix_memalign(&page, SCRATCH_PAGE, BOUNCE_BYTES))
        return error_failed(error, "no memory for a page of a file");
    copy_pages(mover, from, to, n_bytes, page, error);
    free(page);
    return error->status;
}

MoverCounts mover_counts(const Mover *mover) {
    return mover ? mover->counts : (MoverCounts){0};
}

const char *mover_way(const Mover *mover, char *text, size_t n_bytes) {
    return mover && mover->file ? scratch_way(mover->file, text, n_bytes) : "";
}
