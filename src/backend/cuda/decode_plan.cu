/* Which steps decode_step's kernel takes, and how it cuts them up.
 *
 * It takes what GPT-2 and its descendants are, in 16 bits: either norm, learned or rotary positions, gelu or swiglu, shared
 * key/value heads, with biases or without, up to 1792 channels. What it does not take runs operation by operation. */
#include "backend/cuda/decode_step.h"

extern "C" {
#include "ops/decode_step.h"
}

#include <math.h>
#include <stdlib.h>

static bool is_vector_place(const Tensor *tensor) {
    return !tensor || tensor_root_element(tensor) % VECTOR == 0;
}

/* Do all blocks have their tensors at the same distance, at places that vectors fit? */
static bool is_regular(const DecodeStepAttributes *step, DecodeCall *c) {
    const DecodeBlock *blocks = step->blocks;
    if (step->n_blocks > 1) {
        c->block_stride = tensor_root_element(blocks[1].qkv_weight) - tensor_root_element(blocks[0].qkv_weight);
        c->cache_stride = tensor_root_element(blocks[1].keys) - tensor_root_element(blocks[0].keys);
    }
    enum { N_TENSORS = sizeof(DecodeBlock) / sizeof(Tensor *), N_CACHES = 2 };
    for (int i = 0; i < step->n_blocks * N_TENSORS; i++) {
        int l = i / N_TENSORS, k = i % N_TENSORS;
        const Tensor *first = ((const Tensor *const *)&blocks[0])[k], *here = ((const Tensor *const *)&blocks[l])[k];
        if (!first != !here) return false;
        if (!first) continue;
        int64_t stride = k < N_TENSORS - N_CACHES ? c->block_stride : c->cache_stride;
        if (!is_vector_place(here) || !shape_equal(first->shape, here->shape) ||
            tensor_root_element(here) != tensor_root_element(first) + l * stride) {
            return false;
        }
    }
    return is_vector_place(step->token_table) && is_vector_place(step->position_table) &&
           is_vector_place(step->final_weight) && is_vector_place(step->final_bias) &&
           is_vector_place(step->head_weight);
}

static bool is_taken(const CudaContext *context, const Node *node) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)node->attributes;
    const Tensor *parameters = node->input[DECODE_PARAMETERS], *cache = step->blocks[0].keys;
    const AttentionAttributes *attention = &step->attention;
    int64_t channels = step->token_table->shape.dim[1], hidden = step->blocks[0].proj_weight->shape.dim[1];
    int64_t head_size = attention->head_size;
    if (context->properties.major < 9) return false;
    if (parameters->dtype != DTYPE_BF16 && parameters->dtype != DTYPE_F16) return false;
    if (cache->dtype != parameters->dtype || cache->shape.dim[0] != 1) return false;
    if (channels % SLICE || hidden % SLICE || attention->n_heads * head_size != channels) return false;
    if (head_size < 2 * VECTOR || head_size > WARP * VECTOR || (head_size & (head_size - 1))) return false;
    if (step->is_gated && step->activation != ACTIVATION_NONE) return false;
    if (step->is_rotary && step->rotary.first_position) return false;
    return cache->shape.dim[2] <= 1 << 24 && step->head_weight->shape.dim[0] <= 1 << 28 && step->n_blocks < 1 << 16;
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

/* Rows of `inner` weights, at most `eighths` times 8 of them in a tile. */
static Deal deal(int rows, int unit, int n_grid, int eighths, int inner) {
    Deal d = {rows / unit / n_grid, rows / unit % n_grid, unit,
              smaller(8 * eighths, SLOT_BYTES / (2 * inner))};
    return d;
}

static int most_rows(Deal d) {
    return (d.each + (d.more > 0)) * d.unit;
}

template <typename Size> static bool deal_out(DecodeCall *c, DecodeSize size, int n_logits, int n_grid) {
    c->size = size;
    int width = (c->n_heads + 2 * c->n_kv_heads) * c->head_size, slices = c->channels / SLICE;
    c->n_warps = (slices + Size::CHANNELS - 1) / Size::CHANNELS;
    c->channel_slices = Size::CHANNELS;
    c->hidden_slices = (c->hidden / SLICE + c->n_warps - 1) / c->n_warps;
    c->factor_words = larger(2 * Size::CHANNELS, Size::HIDDEN) * SLICE / 2;
    c->qkv = deal(width, 2, n_grid, Size::EIGHTS_IN, c->channels);
    c->out = deal(c->channels, 1, n_grid, Size::EIGHTS_OUT, c->channels);
    c->fc = deal(c->hidden, 2, n_grid, Size::EIGHTS_IN, c->channels);
    c->proj = deal(c->channels, 1, n_grid, Size::EIGHTS_OUT, c->hidden);
    c->logit = deal(n_logits, 1, n_grid, Size::EIGHTS_IN, c->channels);
    c->most_rows = larger(most_rows(c->qkv), most_rows(c->fc) * (c->is_gated ? 2 : 1));
    c->most_rows = larger(larger(c->most_rows, most_rows(c->out)), c->logit.tile);
    int each = WARP * VECTOR / c->head_size; /* keys of a warp and round */
    c->tile_keys = smaller(Size::ROUNDS * c->n_warps * each, KEY_SLOT_BYTES / (4 * c->head_size));
    return c->n_warps <= Size::MOST_WARPS && c->hidden_slices <= Size::HIDDEN && c->proj.tile > 0 &&
           c->most_rows <= c->n_warps * WARP;
}

static MailLayout mail_layout(const DecodeCall *c) {
    MailLayout at = {};
    at.parts = (c->n_heads + 2 * c->n_kv_heads) * c->head_size / 2;
    at.weights = at.parts + MOST_PARTS * c->channels / 2;
    at.middle = at.weights + MOST_PARTS * c->n_heads * 2;
    at.hidden = at.middle + c->channels;
    at.end = at.hidden + c->hidden / 2;
    at.words = at.end + c->channels;
    return at;
}

static SharedLayout shared_layout(const DecodeCall *c, int n_slots) {
    SharedLayout at = {};
    at.key_slot = n_slots * SLOT_BYTES;
    at.heads = at.key_slot + KEY_SLOT_BYTES;
    at.factors = at.heads + c->n_warps * c->head_size * (int)sizeof(float);
    at.full = at.factors + c->n_warps * c->factor_words * (int)sizeof(unsigned);
    at.empty = at.full + n_slots * (int)sizeof(uint64_t);
    at.key_full = at.empty + n_slots * (int)sizeof(uint64_t);
    at.key_empty = at.key_full + (int)sizeof(uint64_t);
    at.head_weights = at.key_empty + (int)sizeof(uint64_t);
    at.moments = at.head_weights + c->n_warps * (int)sizeof(float2);
    at.sums = at.moments + 2 * c->n_warps * (int)sizeof(float2);
    at.angles = at.sums + 2 * c->n_warps * c->most_rows * (int)sizeof(float);
    at.end = at.angles + c->head_size * (int)sizeof(float);
    return at;
}

extern "C" bool cuda_decode_plan(const CudaContext *context, const Node *node, DecodeCall *c, int *n_grid) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)node->attributes;
    if (!is_taken(context, node) || !is_regular(step, c)) return false;
    note_sizes(step, c);
    int n_logits = (int)step->head_weight->shape.dim[0];
    *n_grid = smaller(smaller(context->n_processors, c->channels), smaller(c->hidden / 2, n_logits));
    const char *many = getenv("DECODE_MANY");
    if ((!many && !deal_out<FewWarps>(c, FEW_WARPS, n_logits, *n_grid)) || (many && !deal_out<ManyWarps>(c, MANY_WARPS, n_logits, *n_grid))) {
        if (!deal_out<ManyWideWarps>(c, MANY_WIDE_WARPS, n_logits, *n_grid)) return false;
    }
    c->at = mail_layout(c);
    c->mail.copy_words = 2 * c->at.words;
    for (c->n_slots = MOST_SLOTS; c->n_slots > 1; c->n_slots--) {
        c->shared = shared_layout(c, c->n_slots);
        if (c->shared.end <= context->max_shared_bytes) break;
    }
    const char *kept = getenv("DECODE_KEPT");
    c->kept_rows = c->logit.tile * (kept ? atoi(kept) : 0);
    return c->n_slots > 1 && (size_t)c->mail.copy_words * MAIL_COPIES * sizeof(Word) <= MAIL_BYTES;
}

extern "C" bool cuda_decode_step_fits(const CudaContext *context, const Node *node) {
    DecodeCall c = {};
    int n_grid;
    return cuda_decode_plan(context, node, &c, &n_grid);
}
