/* GEMMs described to cuBLASLt, and the table of those that were run before.
 *
 * cuBLASLt thinks in columns, and a row-major matrix is its own transpose there: c = op(a)·op(b) is asked for
 * as cᵀ = op(b)ᵀ·op(a)ᵀ, so our b is the library's A and our a its B.
 *
 * A program has a few dozen different GEMMs, so the table is a list that is searched from its start. An entry
 * keeps the library's descriptors: a GEMM that was run before costs a search, two pointers and the launch.
 * Addresses are not part of an entry but for their alignment, nor is it whether there is an addend: the
 * kernels are the same. */
#include "backend/cuda/gemm/gemm.h"

#include <stdlib.h>
#include <string.h>

#define TRY_CUBLAS(call) TRY(cuda_check_cublas(description->lt, call, "GEMM", error))

/* ---- descriptions ---- */

static cudaDataType_t library_type(DType dtype) {
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static bool is_matrix_type(DType dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static bool has_vector(GemmEpilogue epilogue) {
    return epilogue == EPILOGUE_BIAS || epilogue == EPILOGUE_BIAS_GELU;
}

static bool may_have_before(GemmEpilogue epilogue) {
    return epilogue == EPILOGUE_GELU || epilogue == EPILOGUE_BIAS_GELU || epilogue == EPILOGUE_DGELU;
}

static cublasLtEpilogue_t library_epilogue(const Gemm *p) {
    switch (p->epilogue) {
    case EPILOGUE_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case EPILOGUE_GELU: return p->before ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    case EPILOGUE_BIAS_GELU: return p->before ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case EPILOGUE_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case EPILOGUE_NONE: break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

static int64_t stride_of(int64_t stride, int64_t columns) {
    return stride ? stride : columns;
}

/* The power of 2 that all addresses are multiples of, up to what a kernel may want. */
static uint32_t common_alignment(const Gemm *p) {
    uintptr_t all = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c | (uintptr_t)p->addend;
    uint32_t alignment = 16;
    while (all % alignment) alignment /= 2;
    return alignment;
}

static cublasComputeType_t compute_type(const CudaContext *context, const Gemm *p) {
    bool tf32 = context->traits.settings.tf32 && p->a_type == DTYPE_F32 && p->b_type == DTYPE_F32;
    return tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* A row-major (rows,columns) matrix, stored transposed or not, as the library's column-major one. */
static cublasStatus_t layout(const CublasLt *lt, cublasLtMatrixLayout_t *out, DType dtype, int64_t rows,
                             int64_t columns, bool is_transposed, int64_t stride) {
    int64_t stored_rows = is_transposed ? columns : rows, stored_columns = is_transposed ? rows : columns;
    return lt->MatrixLayoutCreate(out, library_type(dtype), (uint64_t)stored_columns, (uint64_t)stored_rows,
                                  stride_of(stride, stored_columns));
}

#define SET(name, value)                                                                                     \
    TRY_CUBLAS(description->lt->MatmulDescSetAttribute(description->operation, name, &(value), sizeof(value)))

static Status set_addresses(const Gemm *p, const GemmDescription *description, Error *error) {
    if (has_vector(p->epilogue)) SET(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->vector);
    if (may_have_before(p->epilogue) && p->before) SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->before);
    return STATUS_OK;
}

static Status describe_epilogue(const Gemm *p, const GemmDescription *description, Error *error) {
    cublasLtEpilogue_t epilogue = library_epilogue(p);
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (has_vector(p->epilogue) && p->vector_type != p->c_type) {
        int32_t type = (int32_t)library_type(p->vector_type);
        SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
    if (may_have_before(p->epilogue) && p->before) {
        int64_t stride = stride_of(p->c_stride, p->columns);
        SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
    }
    return set_addresses(p, description, error);
}

extern "C" Status gemm_describe(const CudaContext *context, const Gemm *p, GemmDescription *description,
                                Error *error) {
    memset(description, 0, sizeof *description);
    description->lt = &context->lt;
    description->alignment = common_alignment(p);
    cublasOperation_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY_CUBLAS(context->lt.MatmulDescCreate(&description->operation, compute_type(context, p), CUDA_R_32F));
    SET(CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET(CUBLASLT_MATMUL_DESC_TRANSB, second);
    TRY_CUBLAS(
        layout(&context->lt, &description->a, p->b_type, p->inner, p->columns, p->transpose_b, p->b_stride));
    TRY_CUBLAS(
        layout(&context->lt, &description->b, p->a_type, p->rows, p->inner, p->transpose_a, p->a_stride));
    TRY_CUBLAS(layout(&context->lt, &description->c, p->c_type, p->rows, p->columns, false, p->c_stride));
    return describe_epilogue(p, description, error);
}

extern "C" void gemm_description_free(GemmDescription *description) {
    if (description->a) description->lt->MatrixLayoutDestroy(description->a);
    if (description->b) description->lt->MatrixLayoutDestroy(description->b);
    if (description->c) description->lt->MatrixLayoutDestroy(description->c);
    if (description->operation) description->lt->MatmulDescDestroy(description->operation);
    memset(description, 0, sizeof *description);
}

extern "C" Status gemm_launch(const CudaContext *context, const Gemm *p, const GemmDescription *description,
                              const cublasLtMatmulAlgo_t *algorithm, Error *error) {
    float one = 1.0f, keep = p->addend ? 1.0f : 0.0f;
    TRY(set_addresses(p, description, error));
    TRY_CUBLAS(context->lt.Matmul(context->cublas, description->operation, &one, p->b, description->a, p->a,
                                  description->b, &keep, p->addend ? p->addend : p->c, description->c, p->c,
                                  description->c, algorithm, context->workspace, context->workspace_bytes,
                                  context->stream));
    return STATUS_OK;
}

/* ---- the table ---- */

/* What makes two GEMMs the same; compared byte by byte. */
typedef struct {
    int64_t rows, columns, inner, a_stride, b_stride, c_stride;
    uint32_t alignment;
    uint8_t transpose_a, transpose_b, epilogue, has_before;
    uint8_t a_type, b_type, c_type, vector_type;
    uint32_t compute;
} GemmKey;

typedef struct {
    GemmKey key;
    GemmDescription description;
    GemmCandidate choice;
    bool exists;    /* the library has a kernel for it */
    bool is_chosen; /* by timing, or for want of a choice */
} GemmEntry;

struct CudaGemms {
    GemmEntry *entry;
    int n_entries, capacity;
};

static GemmKey key_of(const CudaContext *context, const Gemm *p) {
    GemmKey key;
    memset(&key, 0, sizeof key);
    key.rows = p->rows;
    key.columns = p->columns;
    key.inner = p->inner;
    key.a_stride = p->a_stride;
    key.b_stride = p->b_stride;
    key.c_stride = p->c_stride;
    key.alignment = common_alignment(p);
    key.transpose_a = p->transpose_a;
    key.transpose_b = p->transpose_b;
    key.epilogue = (uint8_t)p->epilogue;
    key.has_before = may_have_before(p->epilogue) && p->before;
    key.a_type = (uint8_t)p->a_type;
    key.b_type = (uint8_t)p->b_type;
    key.c_type = (uint8_t)p->c_type;
    key.vector_type = has_vector(p->epilogue) ? (uint8_t)p->vector_type : 0;
    key.compute = (uint32_t)compute_type(context, p);
    return key;
}

static void gemms_close(CudaContext *context) {
    struct CudaGemms *gemms = context->gemms;
    for (int i = 0; i < gemms->n_entries; i++) gemm_description_free(&gemms->entry[i].description);
    free(gemms->entry);
    free(gemms);
    context->gemms = NULL;
    context->close_gemms = NULL;
}

/* A place for one more entry, or NULL without memory. */
static GemmEntry *gemms_add(CudaContext *context) {
    if (!context->gemms) {
        context->gemms = (struct CudaGemms *)calloc(1, sizeof *context->gemms);
        if (!context->gemms) return NULL;
        context->close_gemms = gemms_close;
    }
    struct CudaGemms *gemms = context->gemms;
    if (gemms->n_entries == gemms->capacity) {
        int capacity = gemms->capacity ? 2 * gemms->capacity : 64;
        GemmEntry *entry = (GemmEntry *)realloc(gemms->entry, (size_t)capacity * sizeof *gemms->entry);
        if (!entry) return NULL;
        gemms->entry = entry;
        gemms->capacity = capacity;
    }
    GemmEntry *added = &gemms->entry[gemms->n_entries++];
    memset(added, 0, sizeof *added);
    return added;
}

/* What the library's epilogues ask for beyond its own checks: 16-byte rows of the values before gelu. */
static bool is_sound(const Gemm *p) {
    if (!is_matrix_type(p->a_type) || !is_matrix_type(p->b_type) || !is_matrix_type(p->c_type)) return false;
    if (!may_have_before(p->epilogue) || !p->before) return p->epilogue != EPILOGUE_DGELU;
    return stride_of(p->c_stride, p->columns) % 8 == 0 && (uintptr_t)p->before % 16 == 0;
}

static Status find_entry(CudaContext *context, const Gemm *p, GemmEntry **found, Error *error) {
    GemmKey key = key_of(context, p);
    struct CudaGemms *gemms = context->gemms;
    for (int i = 0; gemms && i < gemms->n_entries; i++) {
        *found = &gemms->entry[i];
        if (memcmp(&gemms->entry[i].key, &key, sizeof key) == 0) return STATUS_OK;
    }
    GemmEntry *entry = gemms_add(context);
    if (!entry) return error_failed(error, "no memory for the table of GEMMs");
    entry->key = key;
    *found = entry;
    /* A description that is refused is one more kind of "there is no kernel for it". */
    Error reason = {};
    entry->exists = is_sound(p) && gemm_describe(context, p, &entry->description, &reason) == STATUS_OK &&
                    gemm_candidates(context, p, &entry->description, &entry->choice, 1) > 0;
    return STATUS_OK;
}

extern "C" bool cuda_gemm_exists(CudaContext *context, const Gemm *p) {
    GemmEntry *entry;
    Error reason = {};
    if (!p->rows || !p->columns || !p->inner) return p->epilogue == EPILOGUE_NONE;
    if (!context->cublas) return p->epilogue == EPILOGUE_NONE && is_sound(p);
    return find_entry(context, p, &entry, &reason) == STATUS_OK && entry->exists;
}

static bool is_capturing(const CudaContext *context) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(context->stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
}

/* A sum of no terms. */
static Status empty_gemm(const CudaContext *context, const Gemm *p, Error *error) {
    if (p->addend == p->c && p->c) return STATUS_OK;
    size_t size = dtype_info(p->c_type)->n_bytes, row = (size_t)p->columns * size,
           pitch = (size_t)stride_of(p->c_stride, p->columns) * size;
    cudaError_t code = p->addend ? cudaMemcpy2DAsync(p->c, pitch, p->addend, pitch, row, (size_t)p->rows,
                                                     cudaMemcpyDeviceToDevice, context->stream)
                                 : cudaMemset2DAsync(p->c, pitch, 0, row, (size_t)p->rows, context->stream);
    return cuda_check(code, "GEMM", error);
}

extern "C" Status cuda_gemm(CudaContext *context, const Gemm *p, Error *error) {
    if (!p->rows || !p->columns) return STATUS_OK;
    if (!p->inner && p->epilogue == EPILOGUE_NONE) return empty_gemm(context, p, error);
    if (!context->cublas && is_sound(p)) return cuda_gemm_plain(context, p, error);
    GemmEntry *entry;
    TRY(find_entry(context, p, &entry, error));
    if (!entry->exists) {
        return error_failed(error, "there is no GEMM of %lldx%lld and %lldx%lld", (long long)p->rows,
                            (long long)p->inner, (long long)p->inner, (long long)p->columns);
    }
    if (!entry->is_chosen && !is_capturing(context)) {
        Error refused = {}; /* the library may refuse to launch what it has proposed: then it is not taken */
        entry->is_chosen = true;
        if (context->traits.settings.default_gemm &&
            gemm_launch(context, p, &entry->description, &entry->choice.algorithm, &refused) == STATUS_OK)
            return STATUS_OK;
        TRY(gemm_choose(context, p, &entry->description, &entry->choice, error));
    }
    return gemm_launch(context, p, &entry->description, &entry->choice.algorithm, error);
}
