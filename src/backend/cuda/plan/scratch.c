/* Working memory of everything but attention and decoding, and how work is cut up, which it depends on. */
#include "backend/cuda/plan/plan.h"

#include "ops/compress/lowrank.h"
#include "ops/update/lamb.h"

static int64_t divide_up(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

/* ---- sums ---- */

/* Enough blocks for the GPU, none with fewer than 64 rows if it can be helped. */
int64_t cuda_reduce_columns_parts(const CudaTraits *gpu, int64_t rows, int64_t columns) {
    int64_t strips = divide_up(columns, COLUMNS);
    int64_t parts = (4 * gpu->n_processors + strips - 1) / (strips ? strips : 1), most = (rows + 63) / 64;
    parts = parts < most ? parts : most;
    return parts > 0 ? parts : 1;
}

size_t cuda_reduce_columns_scratch(const CudaTraits *gpu, int64_t rows, int64_t columns) {
    return (size_t)(cuda_reduce_columns_parts(gpu, rows, columns) * columns) * sizeof(float);
}

/* Few elements are summed by one block, without a second step. */
int64_t cuda_reduce_all_parts(const CudaTraits *gpu, int64_t count) {
    if (count <= 4 * REDUCE_AT_ONCE) return 1;
    int64_t most = 2 * gpu->n_processors, parts = divide_up(count, 2 * REDUCE_AT_ONCE);
    return parts < most ? parts : most;
}

size_t cuda_reduce_all_scratch(const CudaTraits *gpu, int64_t count) {
    int64_t parts = cuda_reduce_all_parts(gpu, count);
    return parts > 1 ? (size_t)parts * sizeof(double) : 0;
}

size_t cuda_sum_scratch(const CudaTraits *gpu, const Node *node) {
    return cuda_reduce_all_scratch(gpu, tensor_count(node->input[0]));
}

size_t cuda_squared_norm_scratch(const CudaTraits *gpu, const Node *node) {
    return cuda_reduce_all_scratch(gpu, tensor_count(node->input[0]));
}

/* Two sums of every tile, each of which lies within a run and a tensor, or between two. */
size_t cuda_lamb_measure_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    const LambAttributes *a = node->attributes;
    int64_t n = tensor_count(node->input[0]);
    int64_t n_tiles = n / LAMB_TILE + n / LAMB_RUN + 2 * a->spans.n_spans + 2;
    return (size_t)n_tiles * UPDATE_SUMS * sizeof(float);
}

/* ---- matrices in low rank: sums over rows, part by part ---- */

int64_t cuda_lowrank_parts(int64_t rows) {
    enum { FEWEST_ROWS = 64, MOST_PARTS = 128 };
    int64_t parts = divide_up(rows, FEWEST_ROWS);
    return parts < MOST_PARTS ? parts : MOST_PARTS;
}

size_t cuda_lowrank_return_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    const LowRankAttributes *a = node->attributes;
    int64_t most = 0;
    for (int i = 0; i < a->n_matrices; i++) {
        int64_t n = cuda_lowrank_parts(a->matrix[i].rows) * a->rank * a->matrix[i].columns;
        most = n > most ? n : most;
    }
    return (size_t)most * sizeof(float);
}

/* ---- depths: sums of columns, and three numbers beside them ---- */

size_t cuda_depth_router_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    Shape shape = node->input[1]->shape;
    return cuda_reduce_columns_scratch(gpu, shape_rows(shape), shape_columns(shape));
}

size_t cuda_depth_predict_scratch(const CudaTraits *gpu, const Node *node) {
    Shape shape = node->input[1]->shape;
    int64_t n_parts = cuda_reduce_columns_parts(gpu, shape_rows(shape), shape_columns(shape));
    return (size_t)(n_parts * (shape_columns(shape) + 3)) * sizeof(float);
}

/* ---- the gradient of the token table ---- */

bool cuda_has_few_tokens(const Node *node) {
    return node->output[0]->shape.dim[0] <= FEW_TOKENS;
}

/* Parts of the rows: 4 blocks a multiprocessor, but no more sums than half the elements of dy. */
int64_t cuda_few_tokens_parts(const CudaTraits *gpu, const Node *node) {
    int64_t n = tensor_count(node->input[1]), vocabulary = node->output[0]->shape.dim[0];
    int64_t strips = divide_up(node->output[0]->shape.dim[1], WARP);
    int64_t parts = (4 * gpu->n_processors + strips - 1) / (strips ? strips : 1);
    int64_t most = n / (2 * (vocabulary ? vocabulary : 1));
    parts = parts < most ? parts : most;
    return parts > 1 ? parts : 1;
}

/* By atomics. Sums of 16-bit numbers would be rounded at every step, so those are sorted still. */
bool cuda_tokens_take_any_order(const CudaTraits *gpu, const Node *node) {
    return gpu->settings.any_order && node->output[0]->dtype == DTYPE_F32 && !cuda_has_few_tokens(node);
}

SortedSizes cuda_sorted_sizes(const Node *node) {
    int64_t n = tensor_count(node->input[1]), channels = shape_columns(node->output[0]->shape);
    SortedSizes s = {.n = n,
                     .n_chunks = divide_up(n, SORTED_CHUNK),
                     .padded = divide_up(n, 16) * 16,
                     .kinds = divide_up(node->output[0]->shape.dim[0] + 2, 16) * 16};
    s.n_bytes = (size_t)(2 * s.kinds + 3 * s.padded) * sizeof(int32_t) +
                (size_t)(s.n_chunks * 2 * channels) * sizeof(float);
    return s;
}

size_t cuda_embedding_token_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    if (cuda_tokens_take_any_order(gpu, node)) return 0;
    if (!cuda_has_few_tokens(node)) return cuda_sorted_sizes(node).n_bytes;
    return (size_t)cuda_few_tokens_parts(gpu, node) * (size_t)tensor_count(node->output[0]) * sizeof(float);
}

/* ---- norms ---- */

NormTeams cuda_norm_teams(const CudaTraits *gpu, DType dtype, int64_t rows, int64_t channels, bool aligned,
                          int threads, int resident) {
    NormTeams t = {4, 0, 0, 1, 1, true};
    if (aligned && dtype == DTYPE_F32 && channels <= 2048) t.vectors = 2, t.is_large = false;
    if (aligned && dtype != DTYPE_F32 && channels <= 4096) {
        t.vectors = channels <= 384 ? 3 : channels <= 512 ? 2 : channels <= 768 ? 3 : 4;
        t.lanes = channels <= 384 ? WARP / 2 : channels <= 768 ? WARP : 0;
        t.is_large = false;
    }
    int64_t warps = divide_up(channels, WARP * VECTOR * t.vectors);
    t.threads = t.lanes ? t.lanes : (int)(warps > 0 ? warps : 1) * WARP;
    int64_t most = gpu->n_processors;
    if (!t.is_large) {
        int block = t.lanes ? threads : (int)NORM_WAITING_THREADS;
        t.teams = block / t.threads;
        most *= resident / block;
    }
    int64_t wanted = divide_up(rows, t.teams);
    t.blocks = (unsigned)(wanted < most ? wanted > 0 ? wanted : 1 : most);
    return t;
}

static NormTeams backward_teams(const CudaTraits *gpu, const Tensor *x, bool aligned) {
    return cuda_norm_teams(gpu, x->dtype, shape_rows(x->shape), shape_columns(x->shape), aligned,
                           NORM_BACKWARD_THREADS, NORM_BACKWARD_RESIDENT);
}

/* Room for rows of n_sums partial sums. Rows may turn out not to be aligned: for either way. */
static size_t norm_scratch(const CudaTraits *gpu, const Node *node, int n_sums) {
    const Tensor *x = node->input[1];
    unsigned blocks = backward_teams(gpu, x, false).blocks, others = backward_teams(gpu, x, true).blocks;
    return (blocks > others ? blocks : others) * (size_t)n_sums * (size_t)shape_columns(x->shape) *
           sizeof(float);
}

size_t cuda_layernorm_backward_scratch(const CudaTraits *gpu, const Node *node) {
    return norm_scratch(gpu, node, 2);
}

size_t cuda_rmsnorm_backward_scratch(const CudaTraits *gpu, const Node *node) {
    return norm_scratch(gpu, node, 1);
}

size_t cuda_residual_norm_backward_scratch(const CudaTraits *gpu, const Node *node) {
    Shape shape = node->input[1]->shape;
    size_t partials = norm_scratch(gpu, node, MOST_SUMS), sums = 0;
    if (node->output[4]) sums = cuda_reduce_columns_scratch(gpu, shape_rows(shape), shape_columns(shape));
    return partials > sums ? partials : sums; /* one after the other, if at all */
}

bool cuda_residual_norm_sums(const CudaTraits *gpu, const Node *node) {
    const Tensor *x = node->input[1];
    return backward_teams(gpu, x, shape_columns(x->shape) % VECTOR == 0).lanes != 0;
}

/* ---- linear ---- */

/* Only if the residual may lie where y goes and there is no other place for the GEMM meanwhile. */
size_t cuda_linear_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    const LinearAttributes *a = node->attributes;
    bool is_homeless = a->activation != ACTIVATION_NONE && node->input[3] && !node->output[1];
    return is_homeless ? tensor_bytes(node->output[0]) : 0;
}

size_t cuda_linear_bytes_apart(const Node *node) {
    if (!node->input[2] || node->write[0] == WRITE_FRESH) return 0;
    return (tensor_bytes(node->output[0]) + 63) / 64 * 64;
}

size_t cuda_linear_input_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    Shape dx = node->output[0]->shape;
    size_t sums = node->output[1] ? cuda_reduce_columns_scratch(gpu, shape_rows(dx), shape_columns(dx)) : 0;
    return cuda_linear_bytes_apart(node) + sums;
}

bool cuda_linear_slope_by_library(const CudaTraits *gpu, const Node *node) {
    enum { LEAST_INNER = 512 }; /* terms of a sum from which on it is */
    const LinearAttributes *a = node->attributes;
    return a->activation == ACTIVATION_GELU_TANH && node->output[0]->dtype != DTYPE_F32 && gpu->major >= 9 &&
           node->input[1]->shape.dim[0] >= LEAST_INNER;
}

bool cuda_linear_input_gradient_sums(const CudaTraits *gpu, const Node *node) {
    return node->input[2] && shape_columns(node->output[0]->shape) % VECTOR == 0 &&
           !cuda_linear_slope_by_library(gpu, node);
}

size_t cuda_linear_weight_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    const Tensor *dy = node->input[0];
    if (!node->output[1]) return 0;
    return cuda_reduce_columns_scratch(gpu, shape_rows(dy->shape), shape_columns(dy->shape));
}
