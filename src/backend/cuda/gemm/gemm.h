/* Matrix products on the GPU: cuBLASLt's, with the algorithm chosen by timing and remembered.
 *
 * cuBLASLt offers several kernels for every shape, and its first proposal is at times half as fast as its best. The
 * first time a product is run outside of a recording, the proposals are timed on the product's own data; from then on
 * the choice is looked up. What is timed must give the very bits of the library's first proposal, so that results
 * depend on the shape, the GPU and the library alone, never on which kernel happened to be faster that day (settings
 * any_order lifts that, default_product does without timing).
 *
 * Sums are in f32. A long sum may be cut into parts by the library (few rows and columns, many terms); the parts are
 * then added in f32 in a fixed order. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_H
#define PGPT_BACKEND_CUDA_GEMM_GEMM_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What happens to the product before it is stored. */
typedef enum {
    FINISH_NONE,
    FINISH_BIAS,      /* + vector (columns) */
    FINISH_GELU,      /* stored in `before` if there is one, then gelu by tanh */
    FINISH_BIAS_GELU, /* + vector (columns), then the same */
    FINISH_SLOPE,     /* times the slope of gelu by tanh at `before`, which is read */
} ProductFinish;

/* c (rows,columns) = finish(op(a) · op(b) + addend), all row-major: a is (rows,inner) or, transposed, (inner,rows), and
 * b (inner,columns) or (columns,inner). A stride is the elements from one row to the next; 0: the rows touch. */
typedef struct {
    int64_t rows, columns, inner;
    bool transpose_a, transpose_b;
    DType a_type, b_type, c_type, vector_type;
    ProductFinish finish;
    int64_t a_stride, b_stride, c_stride;
    const void *a, *b;
    const void *addend; /* like c, and may be c itself; NULL: none */
    void *c;
    const void *vector;
    void *before; /* see finish; before has c's type and stride */
} Product;

/* Does the library have a kernel for it? One with FINISH_NONE always exists. */
bool cuda_product_exists(CudaContext *context, const Product *product);

/* Enqueues it. */
Status cuda_product(CudaContext *context, const Product *product, Error *error);

/* The same without the library (gemm_plain.cu), where it was left out: with FINISH_NONE, and slow. */
Status cuda_product_plain(const CudaContext *context, const Product *product, Error *error);

/* ---- how the choice is made (gemm_autotune.cu), also for benchmarks ---- */

/* cuBLASLt's view of a product without its addresses. */
typedef struct {
    const CublasLt *lt;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    uint32_t alignment; /* of all matrices, in bytes, at least */
} ProductDescription;

Status product_describe(const CudaContext *context, const Product *product, ProductDescription *description,
                        Error *error);
void product_description_free(ProductDescription *description);
Status product_launch(const CudaContext *context, const Product *product,
                      const ProductDescription *description, const cublasLtMatmulAlgo_t *algorithm,
                      Error *error);

enum { PRODUCT_MOST_CANDIDATES = 64, PRODUCT_CANDIDATES = 24 };

typedef struct {
    cublasLtMatmulAlgo_t algorithm;
    int rank;           /* in the library's order */
    float microseconds; /* 0 until it was timed */
    uint64_t bits;      /* a hash of its result; 0 until it was timed */
} ProductCandidate;

/* The library's proposals, best guess first, and for a product with a finish those for the same product without one as
 * far as they can do it: it proposes more of them there, and often better ones. Returns how many; `most` 1 is quick. */
int product_candidates(const CudaContext *context, const Product *product,
                       const ProductDescription *description, ProductCandidate *candidate, int most);

/* Will the library run the product by this algorithm, in the memory there is for it? */
bool product_can_run(const CudaContext *context, const ProductDescription *description,
                     const cublasLtMatmulAlgo_t *algorithm);

/* Times all of them on the product's own addresses, then the fastest again, and sorts by time. With an addend that is
 * c itself, c must be memory whose contents do not matter. */
Status product_survey(CudaContext *context, const Product *product, const ProductDescription *description,
                      ProductCandidate *candidate, int n_candidates, Error *error);

/* The fastest candidate by these rules. Leaves the first proposal where nothing can be timed. */
Status product_choose(CudaContext *context, const Product *product, const ProductDescription *description,
                      ProductCandidate *choice, Error *error);

/* A candidate in words: "tile 128x256, cluster 2x1, split 1". */
const char *product_candidate_describe(const CudaContext *context, const ProductCandidate *candidate,
                                       char *text, size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
