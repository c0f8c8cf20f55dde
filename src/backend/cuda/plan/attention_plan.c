/* Which of the ways of attention (attention.h) takes a shape, and their working memory.
 *
 * cuDNN's plans have a workspace that the library alone knows. On a GPU it is asked (library_scratch).
 * Where there is none, its size is the one that was found on an H200 with cuDNN 9: a few bytes,
 * and backward, if sums come in a fixed order, dscores: a 16-bit number for each pair of positions of a
 * head. */
#include "backend/cuda/plan/plan.h"

#include "backend/cuda/sparse/sparse_split.h"
#include "base/random.h"
#include "base/system/library.h"
#include "ops/attention/sparse_attention.h"

#include <string.h>

AttentionShape cuda_attention_shape(const Node *node, const Tensor *qkv) {
    const AttentionAttributes *a = node->attributes;
    AttentionShape s;
    memset(&s, 0, sizeof s); /* compared byte by byte */
    s.dtype = qkv->dtype;
    s.n_sequences = qkv->shape.dim[0];
    s.n_positions = qkv->shape.dim[1];
    s.width = qkv->shape.dim[2];
    s.y_width = (int64_t)a->n_heads * a->head_size;
    s.n_heads = a->n_heads;
    s.n_kv_heads = a->n_kv_heads;
    s.head_size = a->head_size;
    s.scale = a->scale;
    s.threshold = random_dropout_threshold(a->dropout);
    s.site = a->site;
    s.first_head = a->first_head;
    return s;
}

/* ---- the ways that are pgpt's own ---- */

bool attention_plain_takes(const AttentionShape *shape) {
    return shape->head_size <= ATTENTION_MOST_CHANNELS;
}

/* Attributes of every kind of attention begin with those. */
bool cuda_attention_fits(const Node *node) {
    AttentionShape shape = {.head_size = ((const AttentionAttributes *)node->attributes)->head_size};
    return attention_plain_takes(&shape);
}

bool attention_short_takes(const AttentionShape *s, bool backward, int max_shared_bytes) {
    int64_t blocks = (s->n_positions + 7) / 8;
    if (s->dtype == DTYPE_F32 || s->head_size % 8 || s->head_size > 64 || s->n_positions > 256) return false;
    if (s->scale <= 0.0f || s->n_sequences * s->n_heads > INT32_MAX) return false;
    if ((s->first_head + (int64_t)s->n_heads) * s->n_positions * blocks > UINT32_MAX) return false;
    if (backward && s->n_heads != s->n_kv_heads) return false;
    int size = s->head_size <= 32 ? 32 : 64, rows = s->n_positions <= 128 ? 128 : 256;
    int bytes =
        backward ? ATTENTION_SHORT_BACKWARD_BYTES(size, rows) : ATTENTION_SHORT_FORWARD_BYTES(size, rows);
    return bytes <= max_shared_bytes;
}

bool cuda_attention_by_items(const CudaTraits *gpu, const AttentionShape *s) {
    return gpu->attention_way == ATTENTION_AUTO && gpu->has_code_90a && s->dtype != DTYPE_F32 &&
           (s->head_size == 64 || s->head_size == 128) && s->scale > 0.0f;
}

/* Where cuDNN would be slower. The forward wants an item for every multiprocessor: its last bits depend on
 * how many sequences and heads there are. Of heads of 128 it is cuDNN's, and the backward of long sequences,
 * or with sums in any order. */
static bool items_are_faster(const CudaTraits *gpu, const AttentionShape *s, bool backward) {
    enum { ITEM_ROWS = 128, LONG = 8192 };
    int64_t n_items = (s->n_positions + ITEM_ROWS - 1) / ITEM_ROWS * s->n_sequences * s->n_heads;
    if (!cuda_attention_by_items(gpu, s)) return false;
    if (s->head_size != 64) return backward && s->n_positions <= LONG && !gpu->settings.any_order;
    return backward || n_items >= gpu->n_processors;
}

/* ---- cuDNN's ---- */

bool cuda_attention_by_library(const CudaTraits *gpu, const AttentionShape *shape, bool backward) {
    static const size_t MOST_SCRATCH = (size_t)2 << 30; /* bytes of dscores */
    enum { LEAST_POSITIONS = 512 };
    bool forced = gpu->attention_way == ATTENTION_LIBRARY;
    if (gpu->attention_way != ATTENTION_AUTO && !forced) return false;
    int64_t pairs = shape->n_sequences * shape->n_heads * shape->n_positions * shape->n_positions;
    bool too_much = backward && !gpu->settings.any_order && (size_t)pairs * 2 > MOST_SCRATCH;
    return forced ||
           (!too_much && shape->n_positions >= LEAST_POSITIONS && !items_are_faster(gpu, shape, backward));
}

/* Elsewhere cuDNN either refuses, or is known to need care that our own kernels do not: before 9.16 its
 * backward goes wrong at the end of sequences that are no multiple of 128. */
bool attention_library_may_take(const AttentionShape *s, bool backward) {
    return (s->dtype == DTYPE_BF16 || s->dtype == DTYPE_F16) && !s->threshold && s->head_size % 8 == 0 &&
           s->head_size <= 128 && s->n_positions % (backward ? 128 : 64) == 0 && s->n_sequences > 0 &&
           s->n_positions > 0;
}

static size_t aligned_bytes(int64_t count) {
    return ((size_t)count * sizeof(float) + 255) / 256 * 256;
}

size_t attention_row_sum_bytes(const AttentionShape *s, bool backward) {
    return backward ? aligned_bytes(s->n_sequences * s->n_heads * s->n_positions) : 0;
}

size_t attention_dq_sum_bytes(const AttentionShape *s, bool backward, bool any_order) {
    return backward && any_order ? aligned_bytes(s->n_sequences * s->n_positions * s->y_width) : 0;
}

/* As found on an H200; the few bytes are 256 at most, and memory is planned in steps of that. */
static size_t known_workspace(const AttentionShape *s, bool backward, bool any_order) {
    enum { MORE = 256 };
    if (!backward || any_order) return MORE;
    return (size_t)(s->n_sequences * s->n_heads * s->n_positions * s->n_positions) * 2 + MORE;
}

static size_t library_scratch(const CudaTraits *gpu, const AttentionShape *s, bool backward) {
    bool any_order = gpu->settings.any_order;
    size_t n_bytes = 0;
    if (!cuda_attention_by_library(gpu, s, backward)) return 0;
    if (gpu->library_scratch) return gpu->library_scratch(gpu->context, s, backward, &n_bytes) ? n_bytes : 0;
    if (!gpu->has_cudnn || library_is_left_out(&(Library){.name = "cudnn"})) return 0;
    if (!attention_library_may_take(s, backward)) return 0;
    return attention_row_sum_bytes(s, backward) + attention_dq_sum_bytes(s, backward, any_order) +
           known_workspace(s, backward, any_order);
}

/* ---- working memory ---- */

static size_t scratch_for(const CudaTraits *gpu, const Node *node, const Tensor *qkv, bool backward) {
    AttentionShape shape = cuda_attention_shape(node, qkv);
    size_t of_plan = library_scratch(gpu, &shape, backward),
           of_tiles = backward ? attention_tiled_backward_scratch(&shape) : 0;
    return of_plan > of_tiles ? of_plan : of_tiles;
}

size_t cuda_attention_scratch(const CudaTraits *gpu, const Node *node) {
    return scratch_for(gpu, node, node->input[0], false);
}

/* Sums of dqkv's columns, if they are wanted: made on the way, sequence by sequence, or by a pass over it. */
static size_t sums_scratch(const CudaTraits *gpu, const Node *node) {
    if (!node->output[1]) return 0;
    Shape shape = node->output[0]->shape;
    size_t partials = (size_t)(shape.dim[0] * shape.dim[2]) * sizeof(float),
           pass = cuda_reduce_columns_scratch(gpu, shape_rows(shape), shape_columns(shape));
    return partials > pass ? partials : pass;
}

/* They may lie in the same memory: who needs scratch for the gradient makes no sums, and the pass comes
 * behind. */
size_t cuda_attention_backward_scratch(const CudaTraits *gpu, const Node *node) {
    size_t gradient = scratch_for(gpu, node, node->input[1], true), sums = sums_scratch(gpu, node);
    return gradient > sums ? gradient : sums;
}

bool cuda_attention_sums(const CudaTraits *gpu, const Node *node) {
    AttentionShape shape = cuda_attention_shape(node, node->input[1]);
    return gpu->attention_way == ATTENTION_AUTO && attention_short_takes(&shape, true, gpu->max_shared_bytes);
}

/* Two numbers a row of weights, and pieces of long columns; the sums come behind. */
size_t cuda_sparse_attention_backward_scratch(const CudaTraits *gpu, const Node *node) {
    const SparseAttentionAttributes *a = node->attributes;
    AttentionShape shape = cuda_attention_shape(node, node->input[SPARSE_BACK_QKV]);
    SparseSplit split = sparse_split(&a->pattern, shape.n_positions);
    size_t gradient = attention_tiled_backward_scratch(&shape), sums = sums_scratch(gpu, node);
    if (split.n_columns)
        gradient = sparse_split_begin(&shape) + (size_t)sparse_split_floats(&split, &shape) * sizeof(float);
    return gradient > sums ? gradient : sums;
}

/* ---- of some of the keys ---- */

/* Two numbers a row of weights. */
size_t cuda_attention_part_backward_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    return 2 * (size_t)tensor_count(node->input[4]) * sizeof(float);
}

size_t cuda_sparse_attention_part_backward_scratch(const CudaTraits *gpu, const Node *node) {
    return cuda_attention_part_backward_scratch(gpu, node);
}

/* ---- with a cache ---- */

int64_t cuda_attention_cached_queries(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    return node->input[0]->shape.dim[0] * node->input[0]->shape.dim[1] * a->n_heads;
}

/* 16 blocks a multiprocessor, as far as the context can be split. */
int cuda_attention_cached_parts(const CudaTraits *gpu, const Node *node) {
    enum { LEAST_KEYS = 32 }; /* of a part, in a full cache */
    int64_t queries = cuda_attention_cached_queries(node),
            most = (node->output[1]->shape.dim[2] + LEAST_KEYS - 1) / LEAST_KEYS;
    if (!queries || queries > N_TICKETS) return 1;
    int64_t wanted = (16 * gpu->n_processors + queries - 1) / queries;
    wanted = wanted < most ? wanted : most;
    wanted = wanted < CACHED_MOST_PARTS ? wanted : (int64_t)CACHED_MOST_PARTS;
    return (int)(wanted > 1 ? wanted : 1);
}

size_t cuda_attention_cached_scratch(const CudaTraits *gpu, const Node *node) {
    const AttentionAttributes *a = node->attributes;
    int n_parts = cuda_attention_cached_parts(gpu, node);
    int64_t queries = cuda_attention_cached_queries(node);
    return n_parts > 1 ? (size_t)(queries * n_parts * (a->head_size + 2)) * sizeof(float) : 0;
}

/* Attributes begin with those of the other kind. */
size_t cuda_sparse_attention_cached_scratch(const CudaTraits *gpu, const Node *node) {
    return cuda_attention_cached_scratch(gpu, node);
}
