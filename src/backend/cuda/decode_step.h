/* What a decoding step is to its kernel: addresses, sizes, and how the work is cut up. decode_plan.cu fills it in from the
 * node; decode_step.cu computes. */
#ifndef PGPT_BACKEND_CUDA_DECODE_STEP_H
#define PGPT_BACKEND_CUDA_DECODE_STEP_H

#include "backend/cuda/decode_mail.cuh"

enum {
    SLICE = 64,         /* channels that a warp has at a time */
    MOST_PARTS = 8,     /* of the keys of a head */
    PARTS_AT_ONCE = 4,  /* that are received together */
    SLOT_BYTES = 36864, /* of a tile: 24 rows of 768 weights */
    MOST_SLOTS = 8,
    KEY_SLOT_BYTES = 32768, /* of a tile of keys and values */
};

/* The sizes that kernels are compiled for: the slices of the channels that a warp has, and how many warps there may be that
 * compute. Two more order copies: 8 in all leave 255 registers to each thread, 16 leave 128. */
template <int SLICES, int WARPS> struct Size {
    enum {
        CHANNELS = SLICES,
        HIDDEN = 4 * SLICES, /* slices of the hidden layer, at most */
        EIGHTS_IN = 3,       /* times 8 rows in a tile of qkv, fc and head */
        EIGHTS_OUT = 1,      /* and of the two products that are added to x */
        MOST_WARPS = WARPS,
        ROUNDS = WARPS > 6 ? 3 : 6, /* keys that a group of threads has of a tile, at most */
    };
};
typedef Size<2, 6> FewWarps;
typedef Size<1, 14> ManyWarps;
typedef Size<2, 14> ManyWideWarps;
typedef enum { FEW_WARPS, MANY_WARPS, MANY_WIDE_WARPS } DecodeSize;

/* How the rows of a matrix are dealt out: thread block i has `each` units, one more if i < more. A tile has `tile` rows. */
typedef struct {
    int each, more, unit, tile;
} Deal;

/* Of block 0; block l has them l · block_stride elements further on. NULL: the model has none. */
typedef struct {
    const void *norm1_weight, *norm1_bias, *qkv_weight, *qkv_bias, *out_weight, *out_bias;
    const void *norm2_weight, *norm2_bias, *fc_weight, *fc_bias, *proj_weight, *proj_bias;
} BlockWeights;

/* Where each kind of word lies in a set of mail; a set is `words` long. */
typedef struct {
    int qkv;     /* ((NH+2·NKV)·HS/2) pairs */
    int parts;   /* (MOST_PARTS, C/2) pairs: outputs of the parts of each head */
    int weights; /* (MOST_PARTS, NH, 2): their greatest score and sum of exponentials */
    int middle;  /* (C) values: x behind attention */
    int hidden;  /* (F/2) pairs */
    int end;     /* (C) values: x behind the block */
    int words;
} MailLayout;

/* Bytes from the beginning of a thread block's shared memory. */
typedef struct {
    int key_slot;     /* behind the slots of the weights */
    int full, empty, key_full, key_empty; /* barriers (n_slots), and one each for the keys */
    int heads;        /* f32 (n_warps, HS): outputs of a head, by warp */
    int head_weights; /* float2 (n_warps): their greatest score and sum of exponentials */
    int moments;      /* float2 (2, n_warps): mean and squares around it, in turns */
    int factors;      /* words (n_warps, factor_words): what a product's weights are multiplied with */
    int sums;         /* f32 (2, n_warps, most_rows): of products, in turns */
    int angles;       /* f32 (2, HS/2): cosines, sines */
    int end;
} SharedLayout;

typedef struct {
    BlockWeights block;
    const void *token_table, *position_table, *final_weight, *final_bias, *head;
    void *keys, *values; /* of block 0 */
    const int32_t *tokens, *start;
    float *logits;
    unsigned *tag; /* the last one that was used */
    CudaFault *fault;
    Mail mail;
    MailLayout at;
    SharedLayout shared;
    DecodeSize size;
    Deal qkv, out, fc, proj, logit;     /* out and proj deal alike but for the tile */
    int64_t block_stride, cache_stride; /* elements */
    int n_blocks, channels, hidden, n_heads, n_kv_heads, head_size;
    int head_shift; /* head_size is 2^head_shift */
    int vocabulary, n_places, capacity;
    int n_warps, n_slots;              /* n_warps: that compute */
    int channel_slices, hidden_slices; /* of a warp; the last ones may have fewer */
    int factor_words;                  /* of a warp */
    int most_rows;                     /* of a product in one thread block */
    int tile_keys;                     /* of a tile of the cache */
    int kept_rows;                     /* of the head, a thread block: those that stay in the second-level cache */
    bool has_mean, is_gated, is_rotary;
    Activation activation;
    float epsilon, scale;
    double frequency_step; /* frequency i is 2^(step·i) */
} DecodeCall;

#ifdef __cplusplus
extern "C" {
#endif

/* Everything but the addresses, and the number of thread blocks. False: the step is none for this kernel. */
bool cuda_decode_plan(const CudaContext *context, const Node *node, DecodeCall *call, int *n_grid);

#ifdef __cplusplus
}
#endif

#endif
