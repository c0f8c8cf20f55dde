/* The bus is measured by the mover that steps use, with copies as large as pieces of optimizer state in
 * flight; the disk as `pgpt train` does when it says what a step takes at least. */
#include "bench/move_rates.h"

#include "base/file/scratch_rate.h"
#include "base/system/timer.h"

#include <math.h>

enum { COPY_BYTES = 16 << 20, N_COPIES = 4, N_TURNS = 8, N_TRIES = 3 };

/* Memory for copies each way, here and there. */
typedef struct {
    void *device[N_MOVE_LANES], *host[N_MOVE_LANES];
} Ends;

static Status start_copy(Mover *mover, const Ends *ends, MoveLane lane, int number, uint64_t *ticket,
                         Error *error) {
    size_t offset = (size_t)(number % N_COPIES) * COPY_BYTES;
    MoveEnd device = {(char *)ends->device[lane] + offset, MEMORY_DEVICE};
    MoveEnd host = {(char *)ends->host[lane] + offset, MEMORY_PINNED};
    return mover_start(mover, lane, lane == MOVE_OUT ? device : host, lane == MOVE_OUT ? host : device,
                       COPY_BYTES, ticket, error);
}

/* Bytes a second of one lane, or of both. */
static Status time_copies(Mover *mover, const Ends *ends, bool out, bool in, double *rate, Error *error) {
    uint64_t ticket[N_MOVE_LANES] = {0}, start = timer_now_ns();
    const bool goes[N_MOVE_LANES] = {[MOVE_OUT] = out, [MOVE_IN] = in};
    int n = 0;
    for (int i = 0; i < N_TURNS * N_COPIES; i++)
        for (int lane = 0; lane < N_MOVE_LANES; lane++) {
            if (!goes[lane]) continue;
            TRY(start_copy(mover, ends, (MoveLane)lane, i, &ticket[lane], error));
            n++;
        }
    for (int lane = 0; lane < N_MOVE_LANES; lane++)
        if (goes[lane]) TRY(mover_wait(mover, ticket[lane], true, error));
    *rate = fmax(*rate, (double)n * COPY_BYTES / timer_seconds_since(start));
    return STATUS_OK;
}

static Status time_bus(const Backend *backend, const Ends *ends, MoveRates *rates, Error *error) {
    Mover *mover;
    double ignored = 0.0;
    TRY(mover_open(&mover, &(MoverOptions){.backend = backend}, error));
    TRY_GOTO(time_copies(mover, ends, true, true, &ignored, error), done);
    for (int i = 0; i < N_TRIES; i++) {
        TRY_GOTO(time_copies(mover, ends, true, false, &rates->out, error), done);
        TRY_GOTO(time_copies(mover, ends, false, true, &rates->in, error), done);
        TRY_GOTO(time_copies(mover, ends, true, true, &rates->both, error), done);
    }
done:
    mover_close(&mover);
    return error->status;
}

Status bench_bus_rates(const Backend *backend, MoveRates *rates, Error *error) {
    const size_t n_bytes = (size_t)N_COPIES * COPY_BYTES;
    Ends ends = {0};
    for (int lane = 0; lane < N_MOVE_LANES && error->status == STATUS_OK; lane++) {
        if (backend->allocate(backend->context, n_bytes, "measuring the bus", &ends.device[lane], error) ==
            STATUS_OK)
            backend->allocate_pinned(backend->context, n_bytes, "measuring the bus", &ends.host[lane], error);
    }
    if (error->status == STATUS_OK) time_bus(backend, &ends, rates, error);
    for (int lane = 0; lane < N_MOVE_LANES; lane++) {
        if (ends.host[lane]) backend->release_pinned(backend->context, ends.host[lane], n_bytes);
        if (ends.device[lane]) backend->release(backend->context, ends.device[lane], n_bytes);
    }
    return error->status;
}

Status bench_disk_rates(const char *folder, FileQueueKind kind, uint64_t n_bytes, MoveRates *rates,
                        Error *error) {
    const double seconds = 1.0;
    ScratchRates disk;
    TRY(scratch_measure(folder, kind, n_bytes, seconds, &disk, error));
    *rates = (MoveRates){.out = fmax(rates->out, disk.write),
                         .in = fmax(rates->in, disk.read),
                         .both = fmax(rates->both, disk.both)};
    return STATUS_OK;
}

double move_seconds(const MoveRates *rates, double n_out, double n_in) {
    double both = fmin(n_out, n_in), seconds = 0.0;
    if (both > 0.0) seconds += 2.0 * both / rates->both;
    if (n_out > both) seconds += (n_out - both) / rates->out;
    if (n_in > both) seconds += (n_in - both) / rates->in;
    return seconds;
}
