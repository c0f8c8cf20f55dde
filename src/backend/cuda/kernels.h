/* The kernels of the CUDA backend, one file per operation, and what they share on the host's side.
 *
 * A kernel enqueues its work on context->stream and returns: no allocation, no waiting, nothing that a stream
 * capture would forbid. Working memory comes from its scratch function. Element types are read from the
 * node's tensors:
 *   P  weights and activations (and the gradients of activations): f32, bf16 or f16, one of them for the
 *      whole node;
 *   G  gradients of parameters: f32 or P;
 *   f32 whatever is a statistic (mean, rstd, lse, losses), a scalar or a hyperparameter.
 * Arithmetic is in f32 registers. Sums are taken in an order that depends on shapes and on the GPU's model
 * alone, so the same run twice gives the same bits. */
#ifndef PGPT_BACKEND_CUDA_KERNELS_H
#define PGPT_BACKEND_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cuda/runtime/library_cublas.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernel_list.h"
#include "backend/cuda/plan/plan.h"
#include "graph/lanes.h"
#include "ops/experts/expert_ranks.h"
#include "ops/experts/experts.h"
#include "ops/ops.h"

/* ---- the context ---- */

/* What a kernel found wrong with an index that only the device knows. It lies in host memory that the device
 * can write; synchronize and download report it. The kernel itself goes on as if the row were zero. */
typedef enum { FAULT_NONE, FAULT_TOKEN, FAULT_POSITION, FAULT_ROW, FAULT_TARGET, FAULT_CACHE } CudaFaultKind;
typedef struct CudaFault {
    int kind;
    long long value, limit;
} CudaFault;

enum { CUDA_MOST_LANES = LANES_MOST };
enum { UPLOAD_SEGMENTS = 16, UPLOAD_SEGMENT_BYTES = 512 * 1024, DOWNLOAD_BYTES = 1024 * 1024 };
enum { CUDA_COPIES = 512 };              /* beside what is computed, that may be under way */
enum { UPLOAD_EARLY_BYTES = 32 * 1024 }; /* an upload of so many crosses the bus before its turn */

typedef struct CudaContext {
    int device;
    uint8_t id[BACKEND_ID_BYTES];
    CudaTraits traits;       /* what it is, and what of it is used: everything that programs are planned by */
    cudaStream_t stream;     /* everything is enqueued here: that of the present lane */
    CublasLt lt;             /* the functions of cuBLASLt */
    cublasLtHandle_t cublas; /* NULL: it was left out (gemm_plain.cu) */
    void *workspace;         /* of the GEMMs of this lane, which run one after the other */
    size_t workspace_bytes;
    cudaStream_t lane_stream[CUDA_MOST_LANES]; /* NULL before there are so many (backend_cuda_configure) */
    void *lane_workspace[CUDA_MOST_LANES];
    CudaFault *fault;        /* as the host sees it */
    CudaFault *device_fault; /* the same memory, as kernels see it */
    unsigned *tickets; /* of this lane (N_TICKETS), 0 between kernels, which set them back: what blocks of one
                          grid count together, such as which of them is last */
    unsigned *lane_tickets[CUDA_MOST_LANES];
    /* What blocks of one grid send each other: words (decode_mail.cuh), sums (decode_sums.cuh), counters. */
    void *mail;
    struct CudaGemms *gemms; /* linear.cu's: what it remembers about shapes; NULL until it is used */
    char note[640];          /* for backend_cuda_note */
    const char *decode_way;  /* for backend_cuda_decode_way */
    void *attention;         /* a library's attention: what it remembers; NULL until it is used */
    Watchers watchers;       /* asked while the host waits */
    void (*close_gemms)(struct CudaContext *context);
    void (*close_attention)(struct CudaContext *context);

    /* Small copies go through pinned memory: a ring of segments on the way up, one buffer on the way down. */
    char *upload, *arrival; /* the ring, and the same on the device for what crosses the bus early */
    cudaStream_t upload_stream;
    cudaEvent_t has_arrived;                  /* the last piece that crossed it early */
    cudaEvent_t upload_done[UPLOAD_SEGMENTS]; /* the device has read the segment */
    int upload_segment;
    size_t upload_used; /* bytes of the present segment */
    char *download;
    char (*result)[BACKEND_RESULT_BYTES]; /* (BACKEND_RESULTS), pinned */
    cudaEvent_t result_sent[BACKEND_RESULTS];

    /* Copies beside what is computed (moves.cu): to the GPU, and from it; NULL before they are needed. */
    cudaStream_t copy_stream[2];
    cudaEvent_t copy_begin, copy_done[CUDA_COPIES];
    uint64_t n_copies;
} CudaContext;

/* Does this build have the kernels for compute capability 9.0 alone (files *_sm90.cu)? */
bool cuda_code_is_for_90a(void);

static inline CudaContext *cuda_context(const KernelCall *call) {
    return (CudaContext *)call->context;
}

/* The device is a property of the calling thread, and a checkpoint may be read from another one. */
static inline CudaContext *cuda_enter(void *context) {
    CudaContext *cuda = (CudaContext *)context;
    cudaSetDevice(cuda->device);
    return cuda;
}

/* STATUS_OK, or the error with what was being done: "layernorm: an illegal memory access was encountered
 * (700, ...)". */
Status cuda_check(cudaError_t code, const char *what, Error *error);
Status cuda_check_cublas(const CublasLt *lt, cublasStatus_t code, const char *what, Error *error);
/* The same for the launch just made. */
Status cuda_launched(const char *what, Error *error);
/* One more thing for backend_cuda_note, unless it is there already. */
void cuda_add_note(CudaContext *context, const char *what, const char *why);
/* Until the event has passed (NULL: all that was enqueued), or somebody knows that it never will. Says what
 * kernels found wrong. */
Status cuda_wait_until(CudaContext *context, cudaEvent_t event, Error *error);
/* For an element type or shape that a kernel is not made for. */
Status cuda_unsupported(const KernelCall *call, const Tensor *tensor, Error *error);

/* ---- CUDA graph capture of what is enqueued, and its replay with one call (capture.cu) ----
 * Between begin and end, kernels are captured instead of run; uploads, downloads and synchronize are not
 * allowed there. A capture keeps the addresses and sizes it was made with. If anything fails in between, end
 * (or abandon) must still be called. `context` is backend->context. */
Status cuda_capture_begin(void *context, Error *error);
Status cuda_capture_end(void *context, void **capture, Error *error);
void cuda_capture_abandon(void *context);
Status cuda_replay(void *context, void *capture, Error *error);
void cuda_capture_free(void *context, void *capture);

/* ---- times on the device ----
 * Events in the stream; the milliseconds between two of them, once both have passed (this waits). */
/* Copies beside what is computed: see graph/backend.h. */
Status cuda_allocate_pinned(void *context, size_t n_bytes, const char *what, void **memory, Error *error);
void cuda_release_pinned(void *context, void *memory, size_t n_bytes);
Status cuda_copy_start(void *context, void *to, const void *from, size_t n_bytes, bool is_out, uint64_t after,
                       const BackendSpan *span, uint64_t *ticket, Error *error);
Status cuda_copy_wait(void *context, uint64_t ticket, bool by_host, Error *error);
void cuda_close_copies(CudaContext *context);

Status cuda_event_new(void *context, void **event, Error *error);
Status cuda_event_record(void *context, void *event, Error *error);
Status cuda_elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error);
void cuda_event_free(void *context, void *event);

/* ---- sums of columns (reduce.cu) ----
 * out (columns) = or += Σ over rows of x (rows,columns), of type out_dtype; in a fixed order. */
Status cuda_reduce_columns(const CudaContext *context, const void *x, DType dtype, int64_t rows,
                           int64_t columns, void *out, DType out_dtype, bool add, void *scratch,
                           Error *error);
/* The last step of such sums: partial (n_partials, n_outputs·columns) is summed over its rows; the first
 * `columns` sums go to output[0], the next to output[1], and so on. An output without memory is left out. */
typedef struct {
    void *data;
    DType dtype;
    bool add;
} SumOutput;
Status cuda_reduce_partials(const CudaContext *context, const float *partial, int64_t n_partials,
                            int64_t columns, int n_outputs, const SumOutput *output, Error *error);
/* total = or += scale · Σ x, or Σ x² if squared. */
Status cuda_reduce_all(const CudaContext *context, const void *x, DType dtype, int64_t count, bool squared,
                       float scale, float *total, bool add, void *scratch, Error *error);

/* ---- kernels ---- */

/* The kernels of kernel_list.h. Their working memory: plan/plan.h. */
#define KERNEL(op, kernel) Status kernel(const KernelCall *call, Error *error);
CUDA_KERNELS(KERNEL, KERNEL)
#undef KERNEL

/* y = the node's activation of x, both like this tensor. */
Status cuda_gelu_values(const KernelCall *call, const Tensor *like, const void *x, void *y, Error *error);
/* dx = dy · slope at x of the node's activation, all like its first output; dx may be dy or x. */
Status cuda_gelu_slope(const KernelCall *call, const void *dy, const void *x, void *dx, bool add,
                       Error *error);
/* The same with the sums of dx's columns as cuda_reduce_columns makes them, and with its scratch. Whole rows
 * of vectors in aligned memory only. */
Status cuda_gelu_slope_summed(const KernelCall *call, const void *dy, const void *x, void *dx, bool add,
                              const SumOutput *sums, void *scratch, Error *error);

/* For CudaTraits: the plan of cuDNN that there is, or a new one; `context` is a CudaContext. */
bool cuda_attention_library_scratch(void *context, const AttentionShape *shape, bool backward,
                                    size_t *n_bytes);

#ifdef __cplusplus
}
#endif

#endif
