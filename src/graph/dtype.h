/* Element types. The table is the only place that knows their sizes. */
#ifndef PGPT_GRAPH_DTYPE_H
#define PGPT_GRAPH_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, N_DTYPES } DType;

typedef struct {
    const char *name;
    size_t n_bytes;
    bool is_float;
} DTypeInfo;

const DTypeInfo *dtype_info(DType dtype);

#endif
