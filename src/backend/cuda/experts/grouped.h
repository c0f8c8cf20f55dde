/* Grouped GEMMs: rows that lie expert by expert, each expert's by its own weight.
 *
 *     GroupedGemm g = {.kind = GROUPED_FORWARD, .offsets = offsets, ...};
 *     if (cuda_grouped_warpgroup_fits(context, &g)) TRY(cuda_grouped_warpgroup(context, &g, error));
 *     else TRY(cuda_grouped_tiles(context, &g, error));
 *
 * How many rows an expert has is in `offsets`, on the device: no host looks at it. A launch has room for the
 * worst case, and thread blocks find out for themselves which expert's tile they have. Rows from
 * offsets[n_experts] on are not there: nothing is made of them.
 *
 * A tile has one block and its sums one order, so the bits depend on the shapes and the GPU's model alone. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_GROUPED_H
#define PGPT_BACKEND_CUDA_EXPERTS_GROUPED_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    GROUPED_FORWARD, /* c (rows,outputs) = activation(a (rows,inputs) · b[e]ᵀ + bias[e]) */
    GROUPED_INPUT,   /* c (rows,inputs) = a (rows,outputs) · b[e], times the slope at `before` */
    GROUPED_WEIGHT, /* c[e] (outputs,inputs) = a_eᵀ (outputs,n) · b_e (n,inputs), of the expert's n rows */
} GroupedKind;

typedef struct {
    GroupedKind kind;
    int n_experts;
    int64_t rows; /* that there is room for */
    int64_t inputs, outputs;
    DType dtype;  /* of a, b, before and c, */
    DType c_type; /* but for gradients of weights */
    DType bias_type;
    const int32_t *offsets; /* (n_experts+1) */
    const void *a, *b, *bias;
    void *before; /* forward: written, or NULL; input: read, or NULL */
    void *c;
    bool add; /* to what c has; not forward */
    Activation activation;
} GroupedGemm;

/* By warpgroups and TMA (grouped_sm90.cu): compute capability 9.0, 16 bits, whole vectors in aligned
 * memory. */
bool cuda_grouped_warpgroup_fits(const CudaContext *context, const GroupedGemm *gemm);
Status cuda_grouped_warpgroup(CudaContext *context, const GroupedGemm *gemm, Error *error);

/* By warps, for all types and shapes (grouped_tiles.cu). */
Status cuda_grouped_tiles(CudaContext *context, const GroupedGemm *gemm, Error *error);

#ifdef __cplusplus
}
#endif

#endif
