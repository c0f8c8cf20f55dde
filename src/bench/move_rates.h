/* How fast what is offloaded can be moved, measured as a step moves it: the bus between a device and pinned
 * memory, and a disk. And the time that bytes take at that.
 *
 *     MoveRates bus;
 *     TRY(bench_bus_rates(&backend, &bus, error));
 *     seconds = move_seconds(&bus, n_bytes_out, n_bytes_in); */
#ifndef PGPT_BENCH_MOVE_RATES_H
#define PGPT_BENCH_MOVE_RATES_H

#include "graph/device/mover.h"

/* Bytes a second, each the better of two measurements where it is measured again. */
typedef struct {
    double out, in, both; /* both: those out and those in together, as many of each at once */
} MoveRates;

/* Of a device with memory of its own; takes 128 MiB of it for a moment, and as much of the host's. */
Status bench_bus_rates(const Backend *backend, MoveRates *rates, Error *error);

/* Of the disk below the folder, as offloaded state is written and read (out and in), with n_bytes of a
 * file. */
Status bench_disk_rates(const char *folder, FileQueueKind kind, uint64_t n_bytes, MoveRates *rates,
                        Error *error);

/* The least time for so many bytes: both ways at once while there are bytes of both, the rest of one way
 * alone. */
double move_seconds(const MoveRates *rates, double n_out, double n_in);

#endif
