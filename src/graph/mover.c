/* A ring of moves and a thread a lane. Whoever starts a move looks for earlier ones, not yet done, that touch
 * the same bytes. Lanes keep their order, so of each lane the last such move is enough to wait for, and as it
 * was started earlier, nobody waits in a circle. */
#include "graph/mover.h"

#include "base/file/scratch_file.h"
#include "base/system/timer.h"
#include "graph/plan.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 256, BOUNCE_BYTES = 1 << 20 };

typedef struct {
    MoveEnd from, to;
    size_t n_bytes;
    MoveLane lane;
    uint64_t after[N_MOVE_LANES]; /* the last move of each lane that has to be done first; 0: none */
    bool is_device;               /* the backend's; others are a thread's */
    uint64_t copy;                /* its ticket */
    bool is_done;
} Move;

typedef struct {
    Mover *mover;
    MoveLane lane;
    pthread_t thread;
    uint64_t queue[RING]; /* numbers of moves, in order */
    uint64_t n_queued, n_taken;
    bool is_open;
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
    Error error; /* of a thread: the first one stays */
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

static Status carry_out(Mover *mover, const Move *move, Error *error) {
    if (move->to.kind == MEMORY_FILE)
        return scratch_write(mover->file, offset_of(mover, move->to.address), move->from.address,
                             whole_pages(move->n_bytes), error);
    if (move->from.kind == MEMORY_FILE)
        return scratch_read(mover->file, offset_of(mover, move->from.address), move->to.address,
                            whole_pages(move->n_bytes), error);
    memcpy(move->to.address, move->from.address, move->n_bytes);
    return STATUS_OK;
}

/* ---- threads */

static bool is_done(const Mover *mover, uint64_t number) {
    return !number || number + RING <= mover->n_started || mover->ring[number % RING].is_done;
}

static bool may_begin(const Mover *mover, const Move *move) {
    for (int lane = 0; lane < N_MOVE_LANES; lane++)
        if (!is_done(mover, move->after[lane])) return false;
    return true;
}

static void *work(void *context) {
    Lane *lane = context;
    Mover *mover = lane->mover;
    pthread_mutex_lock(&mover->mutex);
    for (;;) {
        while (lane->n_taken == lane->n_queued && !mover->is_closing)
            pthread_cond_wait(&mover->changed, &mover->mutex);
        if (lane->n_taken == lane->n_queued) break;
        Move *move = &mover->ring[lane->queue[lane->n_taken % RING] % RING];
        while (!may_begin(mover, move)) pthread_cond_wait(&mover->changed, &mover->mutex);
        bool has_failed = mover->error.status != STATUS_OK;
        pthread_mutex_unlock(&mover->mutex);
        Error error = {0};
        if (!has_failed) carry_out(mover, move, &error);
        pthread_mutex_lock(&mover->mutex);
        if (error.status != STATUS_OK && mover->error.status == STATUS_OK) mover->error = error;
        move->is_done = true;
        lane->n_taken++;
        pthread_cond_broadcast(&mover->changed);
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
    else if (options->n_files && scratch_open(&mover->file, options->folder, n_bytes, error) != STATUS_OK)
        error_prefix(error, "--offload: ");
    for (int i = 0; i < N_MOVE_LANES && error->status == STATUS_OK; i++) {
        mover->lane[i] = (Lane){.mover = mover, .lane = (MoveLane)i};
        if (pthread_create(&mover->lane[i].thread, NULL, work, &mover->lane[i]))
            error_failed(error, "no thread for what moves data between memories");
        else mover->lane[i].is_open = true;
    }
    if (error->status != STATUS_OK) mover_close(opened);
    return error->status;
}

void mover_close(Mover **opened) {
    Mover *mover = *opened;
    if (!mover) return;
    pthread_mutex_lock(&mover->mutex);
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

static bool overlap(MoveEnd a, size_t n_a, MoveEnd b, size_t n_b) {
    const char *first = a.address, *second = b.address;
    return first < second + n_b && second < first + n_a;
}

/* Both may read the same bytes. */
static bool collide(const Move *a, const Move *b) {
    return overlap(a->to, a->n_bytes, b->to, b->n_bytes) || overlap(a->to, a->n_bytes, b->from, b->n_bytes) ||
           overlap(a->from, a->n_bytes, b->to, b->n_bytes);
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
        else move->after[earlier->lane] = n;
    }
    return STATUS_OK;
}

static Status start_locked(Mover *mover, Move move, uint64_t *ticket, Error *error) {
    const Backend *backend = mover->options.backend;
    uint64_t number = mover->n_started + 1, after;
    if (number > RING) TRY(finish(mover, number - RING, true, error));
    TRY(thread_error(mover, error));
    TRY(find_earlier(mover, &move, number, &after, error));
    if (move.is_device)
        TRY(backend->copy_start(backend->context, move.to.address, move.from.address, move.n_bytes,
                                move.lane == MOVE_OUT, after, &move.copy, error));
    mover->ring[number % RING] = move;
    mover->n_started = number;
    mover->counts.bytes[move.lane] += move.n_bytes;
    *ticket = number;
    if (move.is_device) return STATUS_OK;
    Lane *lane = &mover->lane[move.lane];
    lane->queue[lane->n_queued++ % RING] = number;
    pthread_cond_broadcast(&mover->changed);
    return STATUS_OK;
}

Status mover_start(Mover *mover, MoveLane lane, MoveEnd from, MoveEnd to, size_t n_bytes, uint64_t *ticket,
                   Error *error) {
    Move move = {.from = from,
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

const char *mover_way(const Mover *mover) {
    return mover && mover->file ? scratch_way(mover->file) : "";
}
