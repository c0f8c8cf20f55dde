/* What a program for a GPU is planned by: which nodes there are kernels for, how much working memory they
 * want, how their work is cut up. All of it is a function of the node and of CudaTraits, so it needs no GPU,
 * no driver and no nvcc: these files are plain C and part of every build. Kernels ask the same functions when
 * they run.
 *
 * One answer is not pgpt's own: the workspace of cuDNN's attention. Where there is a GPU the library says
 * it; without one it is what was found on an H200 (attention_plan.c). */
#ifndef PGPT_BACKEND_CUDA_PLAN_PLAN_H
#define PGPT_BACKEND_CUDA_PLAN_PLAN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernel_list.h"
#include "ops/ops.h"

enum { VECTOR = 8, WARP = 32 }; /* elements that a thread has at a time; threads */

/* How attention is computed (attention.h): tests force a way, and what it does not take fails. */
typedef enum { ATTENTION_AUTO, ATTENTION_PLAIN, ATTENTION_TILED, ATTENTION_LIBRARY } AttentionWay;

typedef struct {
    DType dtype;
    int64_t n_sequences, n_positions; /* B, T */
    int64_t width, y_width;           /* elements of a row of qkv and of y */
    int n_heads, n_kv_heads, head_size;
    float scale;
    /* dropout */
    uint32_t threshold; /* 0: none */
    int site, first_head;
} AttentionShape;

/* A kind of GPU, and what of pgpt and of NVIDIA's libraries there is for it. */
typedef struct {
    char name[64];        /* "NVIDIA H200" */
    int major, minor;     /* compute capability */
    int n_processors;     /* streaming multiprocessors */
    int max_shared_bytes; /* of a block, once a kernel has asked for it */
    uint64_t memory_bytes;
    bool has_code_90;  /* this pgpt's kernels are compiled for compute capability 9.0 */
    bool has_code_90a; /* and those are there that 9.0 alone can run; it is that */
    bool has_cudnn;    /* it is assumed to be there, of a version whose workspaces are known */
    CudaSettings settings;
    AttentionWay attention_way; /* ATTENTION_AUTO, but for tests */
    /* Asks cuDNN itself for a plan and the bytes that it wants; false: it has none for the shape. NULL:
     * there is no GPU to ask on. */
    bool (*library_scratch)(void *context, const AttentionShape *shape, bool backward, size_t *n_bytes);
    void *context;
} CudaTraits;

static inline int cuda_capability(const CudaTraits *gpu) {
    return gpu->major * 10 + gpu->minor;
}

/* The traits of a backend for this GPU; `gpu` must live as long. */
BackendTraits cuda_traits(const CudaTraits *gpu);

/* A kind that is known by name: "h200", "h100", "a100", with the libraries that are usual there. False:
 * none. */
bool cuda_traits_named(const char *word, CudaSettings settings, CudaTraits *gpu);

/* GPU number `device` of those that are visible, without opening it. False: there is none. */
bool cuda_traits_of_device(int device, CudaSettings settings, CudaTraits *gpu);

/* ---- operations and their working memory, by kernel_list.h ---- */

#define PLAIN(op, kernel) extern const Op op;
#define WITH_SCRATCH(op, kernel)                                                                             \
    extern const Op op;                                                                                      \
    size_t kernel##_scratch(const CudaTraits *gpu, const Node *node);
CUDA_KERNELS(PLAIN, WITH_SCRATCH)
#undef PLAIN
#undef WITH_SCRATCH

/* Do they sum the columns of what they make on the way, as far as shape and type tell? */
bool cuda_residual_norm_sums(const CudaTraits *gpu, const Node *node);
bool cuda_linear_input_gradient_sums(const CudaTraits *gpu, const Node *node);
bool cuda_attention_sums(const CudaTraits *gpu, const Node *node);

/* Is the node one that its kernel is made for? */
bool cuda_decode_step_fits(const CudaTraits *gpu,
                           const Node *node); /* of those that a program can do without */
bool cuda_attention_fits(const Node *node);   /* of attention_cached too: are its heads narrow enough? */

/* ---- sums of columns, and of everything (reduce.cu) ---- */

enum { COLUMNS = WARP * VECTOR }; /* of a block */
/* How many parts the rows are cut into, and of whose sums the scratch has room for. */
int64_t cuda_reduce_columns_parts(const CudaTraits *gpu, int64_t rows, int64_t columns);
size_t cuda_reduce_columns_scratch(const CudaTraits *gpu, int64_t rows, int64_t columns);
enum { REDUCE_THREADS = 512, REDUCE_AT_ONCE = REDUCE_THREADS * VECTOR };
int64_t cuda_lowrank_parts(int64_t rows); /* of sums over the rows of a matrix (lowrank.cu) */

enum { LAMB_TILE = 256 * VECTOR }; /* elements that a block has of one tensor (lamb.cu) */
int64_t cuda_reduce_all_parts(const CudaTraits *gpu, int64_t count); /* 1: without a second step */
size_t cuda_reduce_all_scratch(const CudaTraits *gpu, int64_t count);
enum { MOST_SUMS = 3 }; /* outputs of the last step of such sums */

/* ---- the gradient of the token table (embedding_token.cu) ---- */

enum { FEW_TOKENS = 384 }; /* 48 kB of sums for one warp */
bool cuda_has_few_tokens(const Node *node);
int64_t cuda_few_tokens_parts(const CudaTraits *gpu, const Node *node);
bool cuda_tokens_take_any_order(const CudaTraits *gpu, const Node *node);
enum { SORTED_CHUNK = 32 }; /* sorted places of a block */
typedef struct {
    int64_t n, n_chunks;   /* tokens; chunks of them */
    int64_t padded, kinds; /* elements of the arrays that are as long as the tokens, and as the vocabulary */
    size_t n_bytes;        /* two of kinds and three of padded integers, (n_chunks, 2, C) floats */
} SortedSizes;
SortedSizes cuda_sorted_sizes(const Node *node);

/* ---- norms (norm_rows.cuh) ---- */

enum {
    NORM_SMALL = 256, /* threads of a block at most, */
    NORM_LARGE = 512, /* and for long rows, and for those that no vector fits */
    NORM_MOST_CHANNELS = NORM_LARGE * 4 * VECTOR,
    /* Threads of a block: of teams that wait for each other, and of those that do not. */
    NORM_WAITING_THREADS = 128,
    NORM_FORWARD_THREADS = 128,
    NORM_BACKWARD_THREADS = 256, /* more of them, fewer partial sums */
    /* Threads that a multiprocessor has registers for. */
    NORM_FORWARD_RESIDENT = 768,
    NORM_BRANCH_RESIDENT = 512,
    NORM_BACKWARD_RESIDENT = 512,
};

/* How rows are shared out: vectors of a thread, threads of a team, teams of a block, blocks. */
typedef struct {
    int vectors, lanes /* see channel_of */, threads, teams;
    unsigned blocks;
    bool is_large; /* blocks may have NORM_LARGE threads */
} NormTeams;

/* `threads` of a block, `resident` ones of a multiprocessor. */
NormTeams cuda_norm_teams(const CudaTraits *gpu, DType dtype, int64_t rows, int64_t channels, bool aligned,
                          int threads, int resident);

/* ---- linear (linear.cu) ---- */

/* A GEMM that is multiplied by a slope and then added to something is made apart, before what the sums of
 * its columns need: bytes. */
size_t cuda_linear_bytes_apart(const Node *node);
/* Is the library's slope the faster way? */
bool cuda_linear_slope_by_library(const CudaTraits *gpu, const Node *node);

/* ---- experts ---- */

enum { ROUTER_EXPERTS = 8 }; /* that a warp sums for at a time */
/* How many parts of the rows, of the choices, and of an expert's rows there are sums of. */
int64_t cuda_router_parts(const CudaTraits *gpu, int64_t rows, int64_t n_experts, int64_t channels);
int cuda_expert_sort_parts(int64_t n_choices);
/* The report of a router: how many blocks leave sums, and where its counts are, in bytes, behind them. */
typedef struct {
    int64_t n_parts;
    size_t counts, shares, n_bytes;
} RouteReportSizes;
RouteReportSizes cuda_route_report_sizes(const CudaTraits *gpu, const Node *node);
int64_t cuda_grouped_bias_parts(const CudaTraits *gpu, int64_t n_experts, int64_t outputs);

/* ---- attention (attention.cu) ---- */

enum { ATTENTION_MOST_CHANNELS = WARP * VECTOR }; /* of a head */
AttentionShape cuda_attention_shape(const Node *node, const Tensor *qkv);
/* Is cuDNN the way to take, where it has a plan? */
bool cuda_attention_by_library(const CudaTraits *gpu, const AttentionShape *shape, bool backward);
/* Does it take the shape, as far as is known without asking it? */
bool attention_library_may_take(const AttentionShape *shape, bool backward);
/* The backward's own tensors, which lie before the workspace: row sums, and sums of dq if they come in any
 * order. */
size_t attention_row_sum_bytes(const AttentionShape *shape, bool backward);
size_t attention_dq_sum_bytes(const AttentionShape *shape, bool backward, bool any_order);
static inline size_t attention_tiled_backward_scratch(const AttentionShape *s) {
    return (size_t)(s->n_sequences * s->n_heads * s->n_positions) * 2 * sizeof(float);
}
bool attention_plain_takes(const AttentionShape *shape);
/* By warpgroups (attention_items/attention_items.h), of aligned memory: heads of 64 or 128 in 16 bits. */
bool cuda_attention_by_items(const CudaTraits *gpu, const AttentionShape *shape);
/* A head at a time in a block's shared memory, of which there are so many bytes: see attention.h. */
bool attention_short_takes(const AttentionShape *shape, bool backward, int max_shared_bytes);
/* Bytes of it for heads of up to `size` channels of 16 bits and up to `rows` positions. */
#define ATTENTION_SHORT_FORWARD_BYTES(size, rows) (3 * (rows) * ((size) + 8) * 2)
#define ATTENTION_SHORT_BACKWARD_BYTES(size, rows)                                                           \
    (6 * (rows) * ((size) + 8) * 2 + (rows)*8 + 2 * ((rows) / 16 * ((rows) / 16 + 1) / 2 * 32) + 16)

/* Of attention_cached: queries, and the parts that the keys of each are cut into. */
enum { N_TICKETS = 8192, CACHED_MOST_PARTS = 128 };
int64_t cuda_attention_cached_queries(const Node *node);
int cuda_attention_cached_parts(const CudaTraits *gpu, const Node *node);

#ifdef __cplusplus
}
#endif

#endif
