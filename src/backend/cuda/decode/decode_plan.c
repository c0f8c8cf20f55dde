/* Which steps decode_step's kernel takes, and how it cuts them up.
 *
 * It takes what GPT-2 and its descendants are, in 16 bits: either norm, learned or rotary positions, gelu or
 * swiglu, shared key/value heads, with biases or without, up to 1792 channels. What it does not take runs
 * operation by operation. */
#include "backend/cuda/decode/decode_call.h"

#include "ops/decode_step.h"

#include <math.h>

static bool is_vector_place(const Tensor *tensor) {
    return !tensor || tensor_root_element(tensor) % VECTOR == 0;
}

/* Do all blocks have their tensors at the same distance, at places that vectors fit? */
static bool is_regular(const DecodeStepAttributes *step, int64_t *block_stride, int64_t *cache_stride) {
    const DecodeBlock *blocks = step->blocks;
    *block_stride = *cache_stride = 0;
    if (step->n_blocks > 1) {
        *block_stride = tensor_root_element(blocks[1].qkv_weight) - tensor_root_element(blocks[0].qkv_weight);
        *cache_stride = tensor_root_element(blocks[1].keys) - tensor_root_element(blocks[0].keys);
    }
    enum { N_TENSORS = sizeof(DecodeBlock) / sizeof(Tensor *), N_CACHES = 2 };
    for (int i = 0; i < step->n_blocks * N_TENSORS; i++) {
        int l = i / N_TENSORS, k = i % N_TENSORS;
        const Tensor *first = ((const Tensor *const *)&blocks[0])[k],
                     *here = ((const Tensor *const *)&blocks[l])[k];
        if (!first != !here) return false;
        if (!first) continue;
        int64_t stride = k < N_TENSORS - N_CACHES ? *block_stride : *cache_stride;
        if (!is_vector_place(here) || !shape_equal(first->shape, here->shape) ||
            tensor_root_element(here) != tensor_root_element(first) + l * stride) {
            return false;
        }
    }
    return is_vector_place(step->token_table) && is_vector_place(step->position_table) &&
           is_vector_place(step->final_weight) && is_vector_place(step->final_bias) &&
           is_vector_place(step->head_weight);
}

static bool is_taken(const CudaTraits *gpu, const Node *node) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)node->attributes;
    const Tensor *parameters = node->input[DECODE_PARAMETERS], *cache = step->blocks[0].keys;
    const AttentionAttributes *attention = &step->attention;
    int64_t channels = step->token_table->shape.dim[1], hidden = step->blocks[0].proj_weight->shape.dim[1];
    int64_t head_size = attention->head_size;
    if (gpu->major < 9 || !gpu->has_code_90) return false;
    if (parameters->dtype != DTYPE_BF16 && parameters->dtype != DTYPE_F16) return false;
    if (cache->dtype != parameters->dtype || cache->shape.dim[0] != 1) return false;
    if (channels % SLICE || hidden % SLICE || attention->n_heads * head_size != channels) return false;
    if (head_size < 2 * VECTOR || head_size > WARP * VECTOR || (head_size & (head_size - 1))) return false;
    if (step->is_gated && step->activation != ACTIVATION_NONE) return false;
    if (step->is_rotary && step->rotary.positions.start) return false;
    return cache->shape.dim[2] <= 1 << 24 && step->head_weight->shape.dim[0] <= 1 << 28 &&
           step->n_blocks < 1 << 16;
}

static void note_sizes(const DecodeStepAttributes *step, DecodeCall *c) {
    c->n_blocks = step->n_blocks;
    c->channels = (int)step->token_table->shape.dim[1];
    c->hidden = (int)step->blocks[0].proj_weight->shape.dim[1];
    c->n_heads = step->attention.n_heads;
    c->n_kv_heads = step->attention.n_kv_heads;
    c->head_size = step->attention.head_size;
    while (1 << c->head_shift < c->head_size) c->head_shift++;
    c->vocabulary = (int)step->token_table->shape.dim[0];
    c->n_places = step->position_table ? (int)step->position_table->shape.dim[0] : 0;
    c->capacity = (int)step->blocks[0].keys->shape.dim[2];
    c->has_mean = step->has_mean;
    c->is_gated = step->is_gated;
    c->is_rotary = step->is_rotary;
    c->activation = step->activation;
    c->epsilon = step->epsilon;
    c->scale = step->attention.scale;
    if (c->is_rotary) c->frequency_step = -2.0 * log2((double)step->rotary.theta) / c->head_size;
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}
static int larger(int a, int b) {
    return a > b ? a : b;
}

/* A GEMV of `rows` rows, dealt out in units. */
static void plan_gemv(DecodeCall *c, int k, int rows, int unit, int n_grid) {
    DecodeGemv *p = &c->gemv[k];
    int inner = k == HIDDEN_OUT ? c->hidden : c->channels, n_ranges = k == HIDDEN_IN && c->is_gated ? 2 : 1;
    Deal deal = {rows / unit / n_grid, rows / unit % n_grid, unit,
                 smaller(is_wide(k) ? WIDE_ROWS : NARROW_ROWS, SLOT_BYTES / (2 * inner))};
    p->deal = deal;
    int most = k == HEAD ? deal.tile : (deal.each + (deal.more > 0)) * unit * n_ranges;
    c->most_rows = larger(c->most_rows, most);
}

static bool deal_out(DecodeCall *c, int n_logits, int n_grid, int64_t block_stride) {
    int width = (c->n_heads + 2 * c->n_kv_heads) * c->head_size, all = c->channels / SLICE;
    c->channel_slices = all > FEW_WARPS ? MOST_SLICES : 1;
    c->n_warps = (all + c->channel_slices - 1) / c->channel_slices;
    c->hidden_slices = (c->hidden / SLICE + c->n_warps - 1) / c->n_warps;
    plan_gemv(c, ATTENTION_IN, width, 2, n_grid);
    plan_gemv(c, ATTENTION_OUT, c->channels, 1, n_grid);
    plan_gemv(c, HIDDEN_IN, c->hidden, 2, n_grid);
    plan_gemv(c, HIDDEN_OUT, c->channels, 1, n_grid);
    plan_gemv(c, HEAD, n_logits, 1, n_grid);
    for (int k = 0; k < HEAD; k++) c->gemv[k].stride = block_stride;
    c->factor_step =
        MOST_SLICES * SLICE / 2 + 8; /* 32 bytes more, so that no two kinds are in the same banks */
    c->factor_words = 3 * c->factor_step + MOST_HIDDEN * SLICE / 2 + 8;
    int each = WARP * VECTOR / c->head_size; /* keys of a warp and round */
    c->tile_keys = smaller(KEY_ROUNDS * c->n_warps * each, KEY_SLOT_BYTES / (4 * c->head_size));
    c->key_slot_bytes = c->tile_keys * c->head_size * 4;
    return c->n_warps <= MANY_WARPS && c->hidden_slices <= MOST_HIDDEN && c->gemv[HIDDEN_OUT].deal.tile > 0 &&
           c->most_rows <= c->n_warps * WARP && c->head_size <= c->n_warps * WARP; /* a thread each */
}

static MailLayout mail_layout(const DecodeCall *c) {
    MailLayout at = {0};
    at.parts = (c->n_heads + 2 * c->n_kv_heads) * c->head_size / 2;
    at.weights = at.parts + MOST_PARTS * c->channels / 2;
    at.middle = at.weights + MOST_PARTS * c->n_heads * 2;
    at.hidden = at.middle + c->channels;
    at.end = at.hidden + c->hidden / 2;
    at.words = at.end + c->channels;
    return at;
}

static SharedLayout shared_layout(const DecodeCall *c, int n_slots) {
    SharedLayout at = {0};
    at.key_slots = n_slots * SLOT_BYTES;
    at.heads = at.key_slots + KEY_SLOTS * c->key_slot_bytes;
    at.factors = at.heads + c->n_warps * c->head_size * (int)sizeof(float);
    at.sums = at.factors + c->n_warps * c->factor_words * (int)sizeof(unsigned);
    at.moments = at.sums + 2 * c->n_warps * c->most_rows * 4 * (int)sizeof(float);
    at.head_weights = at.moments + 2 * c->n_warps * 2 * (int)sizeof(float);
    at.full = at.head_weights + c->n_warps * 2 * (int)sizeof(float);
    at.empty = at.full + n_slots * (int)sizeof(uint64_t);
    at.key_full = at.empty + n_slots * (int)sizeof(uint64_t);
    at.key_empty = at.key_full + KEY_SLOTS * (int)sizeof(uint64_t);
    at.angles = at.key_empty + KEY_SLOTS * (int)sizeof(uint64_t);
    at.end = at.angles + c->head_size * (int)sizeof(float);
    return at;
}

bool cuda_decode_plan(const CudaTraits *gpu, const Node *node, DecodeCall *c, int *n_grid) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)node->attributes;
    int64_t block_stride;
    if (!is_taken(gpu, node) || !is_regular(step, &block_stride, &c->cache_stride)) return false;
    note_sizes(step, c);
    int n_logits = c->n_logits = (int)step->head_weight->shape.dim[0]; /* everybody has a row of everything */
    int pairs = smaller(c->hidden, (c->n_heads + 2 * c->n_kv_heads) * c->head_size) / 2;
    *n_grid = smaller(smaller(gpu->n_processors, c->channels), smaller(pairs, n_logits));
    if (!deal_out(c, n_logits, *n_grid, block_stride)) return false;
    c->at = mail_layout(c);
    c->mail.copy_words = 2 * c->at.words;
    for (c->n_slots = MOST_SLOTS; c->n_slots > 1; c->n_slots--) {
        c->shared = shared_layout(c, c->n_slots);
        if (c->shared.end <= gpu->max_shared_bytes) break;
    }
    c->fetched_rows = (int)(FETCHED_BYTES / (2 * c->channels) / *n_grid / c->n_blocks);
    return c->n_slots > 1 && (size_t)c->mail.copy_words * MAIL_COPIES * sizeof(Word) <= MAIL_BYTES;
}

bool cuda_decode_step_fits(const CudaTraits *gpu, const Node *node) {
    DecodeCall c = {0};
    int n_grid;
    return cuda_decode_plan(gpu, node, &c, &n_grid);
}
