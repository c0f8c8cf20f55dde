#include "graph/dtype.h"

static const DTypeInfo table[N_DTYPES] = {
    [DTYPE_F32] = {"f32", 4, true},
    [DTYPE_BF16] = {"bf16", 2, true},
    [DTYPE_F16] = {"f16", 2, true},
    [DTYPE_I32] = {"i32", 4, false},
};

const DTypeInfo *dtype_info(DType dtype) {
    return &table[dtype];
}
