/* One row of layernorm and of rmsnorm, forward and backward: what layernorm.c and rmsnorm.c do with all rows,
 * for kernels that do more with each. The same functions, so the same bits. */
#ifndef PGPT_BACKEND_CPU_NORM_ROWS_H
#define PGPT_BACKEND_CPU_NORM_ROWS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    float mean, rstd; /* rmsnorm: mean 0 */
} NormStatistics;

/* y (C) = or += the norm of x (C); y may be x. */
NormStatistics cpu_layernorm_row(const float *x, const float *weight, const float *bias /* or NULL */,
                                 float epsilon, int64_t C, float *y, bool add);
NormStatistics cpu_rmsnorm_row(const float *x, const float *weight, float epsilon, int64_t C, float *y,
                               bool add);

typedef struct {
    const float *dy, *x, *weight; /* at the row: (C) */
    NormStatistics statistics;
    float *dx;              /* (C) or NULL */
    float *dweight, *dbias; /* sums over rows (C), which are added to, or NULL; rmsnorm has no bias */
    bool add;               /* to dx */
} NormBackwardRow;

void cpu_layernorm_backward_row(const NormBackwardRow *shared, int64_t C);
void cpu_rmsnorm_backward_row(const NormBackwardRow *shared, int64_t C);

#endif
