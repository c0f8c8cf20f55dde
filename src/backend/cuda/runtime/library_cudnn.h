/* cuDNN, opened when attention first asks for it (base/system/library.h): its functions, called through a
 * table. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_LIBRARY_CUDNN_H
#define PGPT_BACKEND_CUDA_RUNTIME_LIBRARY_CUDNN_H

#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/error.h"

/* cudnn... */
#define CUDNN_FUNCTIONS(_)                                                                                   \
    _(BackendCreateDescriptor)                                                                               \
    _(BackendDestroyDescriptor)                                                                              \
    _(BackendExecute)                                                                                        \
    _(BackendFinalize)                                                                                       \
    _(BackendGetAttribute)                                                                                   \
    _(BackendSetAttribute)                                                                                   \
    _(Create)                                                                                                \
    _(Destroy)                                                                                               \
    _(GetErrorString)                                                                                        \
    _(GetLastErrorString)                                                                                    \
    _(GetVersion)                                                                                            \
    _(SetStream)

typedef struct {
#define CUDNN_FIELD(name) __typeof__(cudnn##name) *name;
    CUDNN_FUNCTIONS(CUDNN_FIELD)
#undef CUDNN_FIELD
} Cudnn;

/* An error where it is missing or of another major version than pgpt was built with: attention goes on
 * without. */
Status cuda_load_cudnn(Cudnn *cudnn, Error *error);

#ifdef __cplusplus
}
#endif

#endif
