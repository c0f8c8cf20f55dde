/* A table: what each --dtype means for weights, gradients and moments. */
#include "graph/precision.h"

#include <stddef.h>

const char *const precision_names[] = {"f32", "tf32", "bf16", "f16", "pure-bf16", "pure-f16", NULL};

Precision precision_of(PrecisionKind kind) {
    static const Precision precisions[N_PRECISIONS] = {
        [PRECISION_BF16] = {.weight = DTYPE_BF16, .has_master = true},
        [PRECISION_F16] = {.weight = DTYPE_F16, .has_master = true, .scales_loss = true},
        [PRECISION_PURE_BF16] = {.weight = DTYPE_BF16, .gradient = DTYPE_BF16, .moment = DTYPE_BF16},
        [PRECISION_PURE_F16] = {.weight = DTYPE_F16,
                                .gradient = DTYPE_F16,
                                .moment = DTYPE_BF16, /* squares of gradients would vanish in f16 */
                                .scales_loss = true},
    };
    return precisions[kind];
}
