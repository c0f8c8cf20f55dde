/* Opening cuDNN, which opens more of itself as it is used. Its own attention is the faster one for long
 * sequences, and the only thing that it is there for: whoever asks must be able to go on without. */
#include "backend/cuda/runtime/library_cudnn.h"

#include <stddef.h>

extern "C" {
#include "base/library.h"
}

static const LibrarySymbol SYMBOLS[] = {
#define CUDNN_SYMBOL(name) LIBRARY_SYMBOL(Cudnn, cudnn, name),
    CUDNN_FUNCTIONS(CUDNN_SYMBOL){NULL, 0}};

#define MAJOR LIBRARY_TEXT(CUDNN_MAJOR)

static const Library CUDNN = {"cudnn", "libcudnn.so." MAJOR, library_cuda_folders, SYMBOLS,
                              "install NVIDIA's cuDNN " MAJOR ", or add its folder to LD_LIBRARY_PATH"};

Status cuda_load_cudnn(Cudnn *cudnn, Error *error) {
    TRY(library_load(&CUDNN, cudnn, error));
    size_t version = cudnn->GetVersion();
    if (version / 10000 == CUDNN_MAJOR) return STATUS_OK; /* so counted from version 9 on */
    return error_user(error, "%s says that it is version %zu, and pgpt was built for %d: %s", CUDNN.file,
                      version, CUDNN_VERSION, CUDNN.advice);
}
