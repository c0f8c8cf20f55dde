/* A few transfers of some MiB are kept in flight, as updates of offloaded state do, until the file has been
 * gone through or the time is over. It is written once before: what was never written takes longer, and is no
 * figure of the steps that follow. */
#include "base/file/scratch_rate.h"

#include "base/system/timer.h"

#include <pthread.h>
#include <stdlib.h>

enum { MOST_SLICE = 8 << 20, MOST_SLOTS = 6 };

typedef enum { WRITE, READ, BOTH } Way;

typedef struct {
    ScratchFile *file;
    size_t slice; /* bytes of a transfer */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    char *slot[MOST_SLOTS];
    bool is_busy[MOST_SLOTS];
    Error error; /* the first */
} Measure;

typedef struct {
    Measure *measure;
    int slot;
} Flight;

static void when_done(void *context, const Error *error) {
    Flight *flight = context;
    Measure *measure = flight->measure;
    pthread_mutex_lock(&measure->mutex);
    measure->is_busy[flight->slot] = false;
    if (measure->error.status == STATUS_OK) measure->error = *error;
    pthread_cond_broadcast(&measure->changed);
    pthread_mutex_unlock(&measure->mutex);
}

/* With the lock: until this slot is free. */
static void wait_for(Measure *measure, int slot) {
    while (measure->is_busy[slot]) pthread_cond_wait(&measure->changed, &measure->mutex);
}

/* Bytes a second over the first n_slices of the file. With BOTH every other slice is read. */
static double go_through(Measure *measure, Way way, int n_slices, double seconds, Error *error) {
    Flight flights[MOST_SLOTS];
    uint64_t start = timer_now_ns();
    int n = 0;
    pthread_mutex_lock(&measure->mutex);
    for (; n < n_slices && timer_seconds_since(start) < seconds; n++) {
        int slot = n % MOST_SLOTS;
        wait_for(measure, slot);
        if (measure->error.status != STATUS_OK) break;
        flights[slot] = (Flight){measure, slot};
        measure->is_busy[slot] = true;
        pthread_mutex_unlock(&measure->mutex);
        ScratchTransfer transfer = {.is_write = way == WRITE || (way == BOTH && n % 2),
                                    .offset = (uint64_t)n * measure->slice,
                                    .memory = measure->slot[slot],
                                    .n_bytes = measure->slice,
                                    .done = when_done,
                                    .context = &flights[slot]};
        bool is_done = false;
        if (scratch_start(measure->file, &transfer, &is_done, error) != STATUS_OK || is_done)
            when_done(&flights[slot], error);
        pthread_mutex_lock(&measure->mutex);
    }
    for (int slot = 0; slot < MOST_SLOTS; slot++) wait_for(measure, slot);
    if (measure->error.status != STATUS_OK) *error = measure->error;
    pthread_mutex_unlock(&measure->mutex);
    return (double)n * (double)measure->slice / timer_seconds_since(start);
}

/* Numbers that no disk packs. */
static Status fill_slots(Measure *measure, Error *error) {
    for (int i = 0; i < MOST_SLOTS; i++) {
        void *memory = NULL;
        if (posix_memalign(&memory, SCRATCH_PAGE, measure->slice))
            return error_failed(error, "no memory to measure a disk with");
        measure->slot[i] = memory;
        uint32_t *words = memory;
        for (uint32_t k = 0; k < measure->slice / sizeof *words; k++)
            words[k] = (k * 2654435761U) ^ ((k >> 7) * 40503U);
    }
    return STATUS_OK;
}

Status scratch_measure(const char *folder, FileQueueKind kind, uint64_t n_bytes, double seconds,
                       ScratchRates *rates, Error *error) {
    uint64_t slice = n_bytes / MOST_SLOTS / SCRATCH_PAGE * SCRATCH_PAGE;
    if (slice > MOST_SLICE) slice = MOST_SLICE;
    if (slice < SCRATCH_PAGE) slice = SCRATCH_PAGE;
    int n_slices = n_bytes < MOST_SLOTS * slice ? MOST_SLOTS : (int)(n_bytes / slice);
    Measure measure = {.slice = (size_t)slice};
    *rates = (ScratchRates){0};
    TRY(scratch_open(&measure.file, folder, (uint64_t)n_slices * slice, kind, error));
    pthread_mutex_init(&measure.mutex, NULL);
    pthread_cond_init(&measure.changed, NULL);
    if (fill_slots(&measure, error) == STATUS_OK) {
        go_through(&measure, WRITE, n_slices, seconds, error);
        if (error->status == STATUS_OK) rates->write = go_through(&measure, WRITE, n_slices, seconds, error);
        if (error->status == STATUS_OK) rates->read = go_through(&measure, READ, n_slices, seconds, error);
        if (error->status == STATUS_OK) rates->both = go_through(&measure, BOTH, n_slices, seconds, error);
    }
    scratch_close(&measure.file);
    for (int i = 0; i < MOST_SLOTS; i++) free(measure.slot[i]);
    pthread_cond_destroy(&measure.changed);
    pthread_mutex_destroy(&measure.mutex);
    return error->status;
}
