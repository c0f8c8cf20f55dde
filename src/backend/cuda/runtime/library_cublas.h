/* cuBLASLt, opened with the backend rather than with the process (base/system/library.h): its functions,
 * called through a table that every context has, as context->lt.Matmul(...). */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_LIBRARY_CUBLAS_H
#define PGPT_BACKEND_CUDA_RUNTIME_LIBRARY_CUBLAS_H

#include <cublasLt.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/error.h"

/* cublasLt... */
#define CUBLASLT_FUNCTIONS(_)                                                                                \
    _(Create)                                                                                                \
    _(Destroy)                                                                                               \
    _(GetStatusName)                                                                                         \
    _(GetVersion)                                                                                            \
    _(Matmul)                                                                                                \
    _(MatmulAlgoCapGetAttribute)                                                                             \
    _(MatmulAlgoCheck)                                                                                       \
    _(MatmulAlgoConfigGetAttribute)                                                                          \
    _(MatmulAlgoGetHeuristic)                                                                                \
    _(MatmulDescCreate)                                                                                      \
    _(MatmulDescDestroy)                                                                                     \
    _(MatmulDescSetAttribute)                                                                                \
    _(MatmulPreferenceCreate)                                                                                \
    _(MatmulPreferenceDestroy)                                                                               \
    _(MatmulPreferenceSetAttribute)                                                                          \
    _(MatrixLayoutCreate)                                                                                    \
    _(MatrixLayoutDestroy)

typedef struct {
#define CUBLASLT_FIELD(name) __typeof__(cublasLt##name) *name;
    CUBLASLT_FUNCTIONS(CUBLASLT_FIELD)
#undef CUBLASLT_FIELD
} CublasLt;

/* A user's error that says how to get it where it is missing or of another major version than pgpt was built
 * with. Where PGPT_WITHOUT leaves it out, the table stays empty (gemm_plain.cu). */
Status cuda_load_cublas(CublasLt *lt, Error *error);

#ifdef __cplusplus
}
#endif

#endif
