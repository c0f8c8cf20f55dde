/* GEMMs on the GPU: cuBLASLt's, with the algorithm chosen by timing (autotuned) and remembered.
 *
 * cuBLASLt offers several kernels for every shape, and its first proposal is at times half as fast as its
 * best. The first time a GEMM is run outside of a capture, the proposals are timed on its own data; from then
 * on the choice is looked up. What is timed must give the very bits of the library's first proposal. So
 * results depend on the shape, the GPU and the library alone, never on which kernel happened to be faster
 * that day (settings any_order lifts that, default_gemm does without timing).
 *
 * Sums are in f32. The library may cut a long sum into parts (split-K: few rows and columns, many terms). The
 * parts are then added in f32 in a fixed order. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_H
#define PGPT_BACKEND_CUDA_GEMM_GEMM_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The epilogue: what happens to a tile of the result before it is stored. */
typedef enum {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,      /* + vector (columns) */
    EPILOGUE_GELU,      /* stored in `before` if there is one, then gelu by tanh */
    EPILOGUE_BIAS_GELU, /* + vector (columns), then the same */
    EPILOGUE_DGELU,     /* times the slope of gelu by tanh at `before`, which is read */
} GemmEpilogue;

/* c (rows,columns) = epilogue(op(a) · op(b) + addend), all row-major: a is (rows,inner) or, transposed,
 * (inner,rows), and b (inner,columns) or (columns,inner). A stride is the elements from one row to the next;
 * 0: the rows touch. */
typedef struct {
    int64_t rows, columns, inner;
    bool transpose_a, transpose_b;
    DType a_type, b_type, c_type, vector_type;
    GemmEpilogue epilogue;
    int64_t a_stride, b_stride, c_stride;
    const void *a, *b;
    const void *addend; /* like c, and may be c itself; NULL: none */
    void *c;
    const void *vector;
    void *before; /* see epilogue; before has c's type and stride */
} Gemm;

/* Does the library have a kernel for it? One with EPILOGUE_NONE always exists. */
bool cuda_gemm_exists(CudaContext *context, const Gemm *gemm);

/* Enqueues it. */
Status cuda_gemm(CudaContext *context, const Gemm *gemm, Error *error);

/* The same without the library (gemm_plain.cu), where it was left out: with EPILOGUE_NONE, and slow. */
Status cuda_gemm_plain(const CudaContext *context, const Gemm *gemm, Error *error);

/* ---- how the choice is made (gemm_autotune.cu), also for benchmarks ---- */

/* cuBLASLt's view of a GEMM without its addresses. */
typedef struct {
    const CublasLt *lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    uint32_t alignment; /* of all matrices, in bytes, at least */
} GemmDescription;

Status gemm_describe(const CudaContext *context, const Gemm *gemm, GemmDescription *description,
                     Error *error);
void gemm_description_free(GemmDescription *description);
Status gemm_launch(const CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                   const cublasLtMatmulAlgo_t *algorithm, Error *error);

enum { GEMM_MOST_CANDIDATES = 64, GEMM_CANDIDATES = 24 };

typedef struct {
    cublasLtMatmulAlgo_t algorithm;
    int rank;           /* in the library's order */
    float microseconds; /* 0 until it was timed */
    uint64_t bits;      /* a hash of its result; 0 until it was timed */
} GemmCandidate;

/* The library's proposals, best guess first, and for a GEMM with an epilogue those for the same GEMM without
 * one as far as they can do it: it proposes more of them there, and often better ones. Returns how many;
 * `most` 1 is quick. */
int gemm_candidates(const CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                    GemmCandidate *candidate, int most);

/* Will the library run the GEMM by this algorithm, in the memory there is for it? */
bool gemm_can_run(const CudaContext *context, const GemmDescription *description,
                  const cublasLtMatmulAlgo_t *algorithm);

/* Times all of them on the GEMM's own addresses, then the fastest again, and sorts by time. With an addend
 * that is c itself, c must be memory whose contents do not matter. */
Status gemm_survey(CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                   GemmCandidate *candidate, int n_candidates, Error *error);

/* The fastest candidate by these rules. Leaves the first proposal where nothing can be timed. */
Status gemm_choose(CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                   GemmCandidate *choice, Error *error);

/* A candidate in words: "tile 128x256, cluster 2x1, split 1". */
const char *gemm_candidate_describe(const CudaContext *context, const GemmCandidate *candidate, char *text,
                                    size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
