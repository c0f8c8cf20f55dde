/* How fast a disk is, as a scratch file (base/file/scratch_file.h) gets to it: direct I/O, many in flight.
 *
 *     ScratchRates rates;
 *     TRY(scratch_measure("/fast/disk", FILE_QUEUE_AUTO, 256 << 20, 1.0, &rates, error));
 *     printf("%.1f GB/s both ways at once\n", rates.both * 1e-9); */
#ifndef PGPT_BASE_FILE_SCRATCH_RATE_H
#define PGPT_BASE_FILE_SCRATCH_RATE_H

#include "base/file/scratch_file.h"

/* Bytes a second. */
typedef struct {
    double write, read;
    double both; /* those read and those written together, as many of each at once */
} ScratchRates;

/* With up to n_bytes of a file, for about `seconds` at most each of the three: less of a file is enough for a
 * slow disk. */
Status scratch_measure(const char *folder, FileQueueKind kind, uint64_t n_bytes, double seconds,
                       ScratchRates *rates, Error *error);

#endif
