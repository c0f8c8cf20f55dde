/* Opening cuBLASLt. It is half a gigabyte of kernels, of which a process that never touches a GPU should not
 * map a page.
 *
 * The number in its file name is that of the interface, and it is the one of the header that this was
 * compiled with. */
#include "backend/cuda/runtime/library_cublas.h"

#include <stddef.h>

extern "C" {
#include "base/library.h"
}

static const LibrarySymbol SYMBOLS[] = {
#define CUBLASLT_SYMBOL(name) LIBRARY_SYMBOL(CublasLt, cublasLt, name),
    CUBLASLT_FUNCTIONS(CUBLASLT_SYMBOL){NULL, 0}};

#define MAJOR LIBRARY_TEXT(CUBLAS_VER_MAJOR)

static const Library CUBLASLT = {"cublas", "libcublasLt.so." MAJOR, library_cuda_folders, SYMBOLS,
                                 "install NVIDIA's cuBLAS " MAJOR " (part of the CUDA toolkit " MAJOR
                                 "), add its folder to LD_LIBRARY_PATH, or use --device cpu"};

Status cuda_load_cublas(CublasLt *lt, Error *error) {
    if (library_is_left_out(&CUBLASLT)) return STATUS_OK;
    TRY(library_load(&CUBLASLT, lt, error));
    size_t version = lt->GetVersion();
    if (version / 10000 == CUBLAS_VER_MAJOR) return STATUS_OK;
    return error_user(error, "%s says that it is version %zu, and pgpt was built for %d: %s", CUBLASLT.file,
                      version, CUBLAS_VERSION, CUBLASLT.advice);
}
