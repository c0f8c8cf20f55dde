/* An optimizer's moments as floats, however they are stored: for the kernels of updates.
 *
 * Those in f32 are where they are. Of those in 8 bits (base/block8.h) a record of 64 at a time is read into
 * the first-level cache, worked upon there and written back: one pass over memory. */
#ifndef PGPT_BACKEND_CPU_UPDATE_MOMENTS_H
#define PGPT_BACKEND_CPU_UPDATE_MOMENTS_H

#include "backend/cpu/kernels.h"
#include "ops/update/update.h"

/* The moments of a call. */
typedef struct {
    void *data[UPDATE_MAX_MOMENTS]; /* NULL: there is none */
    bool is_packed, is_written;
    int64_t count; /* elements */
} CpuMoments;

/* Works on elements first .. end - 1, of which the moments given are; NULL where there is none. */
typedef void (*CpuMomentsBody)(const KernelCall *call, const void *constants, int64_t first, int64_t end,
                               float *moment1, float *moment2);

/* Call `body` for elements first .. end - 1, in parts. Two threads may not have elements of one record, 64
 * from the first. */
void cpu_with_moments(const KernelCall *call, const CpuMoments *moments, int64_t first, int64_t end,
                      CpuMomentsBody body, const void *constants);

/* The same a few thousand elements at a time: what `body` makes of the weights it has written, a copy in 16
 * bits, it makes of what is still in the nearest cache. */
void cpu_update_moments(const KernelCall *call, const CpuMoments *moments, int64_t first, int64_t end,
                        CpuMomentsBody body, const void *constants);

#endif
