/* What a decoding step is to its kernel: addresses, sizes, and how the work is cut up. decode_plan.c fills
 * it in from the node; decode_step.cu computes. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CALL_H
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CALL_H

#include "backend/cuda/plan/plan.h"

#ifdef __CUDACC__
#    define HOST_AND_DEVICE __host__ __device__
#else
#    define HOST_AND_DEVICE
#endif

typedef unsigned long long Word; /* of mail (decode_mail.cuh): low: payload, high: tag */

enum { MAIL_COPIES = 4 };
enum { MAIL_BYTES = 2 << 20, MAIL_SUM_BYTES = 32 << 10, MAIL_COUNTERS = 3 };

typedef struct {
    Word *words; /* (MAIL_COPIES, copy_words) */
    int copy_words;
} Mail;

enum {
    SLICE = 64,         /* channels that a warp has at a time */
    MOST_SLICES = 2,    /* that a warp has of x */
    MOST_HIDDEN = 8,    /* that a warp has of the hidden layer */
    WIDE_ROWS = 24,     /* of a tile of a GEMV over the channels with many rows */
    NARROW_ROWS = 8,    /* of a tile of a GEMV with few rows */
    SLOT_BYTES = 36864, /* of a tile: 24 rows of 768 weights, or 6 of 3072 */
    MOST_SLOTS = 8,
    MOST_PARTS = 8,    /* of the keys of a head */
    PARTS_AT_ONCE = 4, /* that are received together */
    KEY_ROUNDS = 3,    /* keys that a group of threads has of a tile of them */
    KEY_SLOTS = 2,
    KEY_SLOT_BYTES = 18432, /* of a tile of keys and values, at most */
};

/* Of the head, in the time that blocks leave: it must stay in the L2 cache until it is needed. */
enum { FETCHED_BYTES = 20 << 20 };

/* How many warps compute, at most. Two more issue copies: 8 in all leave 255 registers to a thread, 16 leave
 * 128. */
enum { FEW_WARPS = 6, MANY_WARPS = 14 };

/* How the rows of a matrix are dealt out: thread block i has `each` units, one more if i < more. A tile has
 * `tile` rows. */
typedef struct {
    int each, more, unit, tile;
} Deal;

/* The GEMVs of a step, in order: four of every block, and the head. */
enum { ATTENTION_IN, ATTENTION_OUT, HIDDEN_IN, HIDDEN_OUT, HEAD, N_GEMVS };

/* Addresses are those of block 0; block l has them l · stride elements further on. NULL: the model has
 * none. */
typedef struct {
    const void *weight, *bias;
    const void *norm_weight, *norm_bias; /* of the norm that x goes through before */
    int64_t stride;
    Deal deal;
    int inner;  /* terms of a sum */
    int slices; /* of them that a warp has; the last ones may have fewer */
} DecodeGemv;

/* Which have WIDE_ROWS, over the channels of a norm of x; the others have few rows, which are added to x. */
static inline HOST_AND_DEVICE bool is_wide(int k) {
    return k != ATTENTION_OUT && k != HIDDEN_OUT;
}

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
    int key_slots;                        /* behind the slots of the weights */
    int heads;                            /* f32 (n_warps, HS): outputs of a head, by warp */
    int factors;                          /* words (n_warps, factor_words): what a tile is multiplied with */
    int sums;                             /* float4 (2, n_warps, most_rows): of GEMVs, in turns */
    int moments;                          /* float2 (2, n_warps): sums of x and of its squares, in turns */
    int head_weights;                     /* float2 (n_warps): greatest score and sum of exponentials */
    int full, empty, key_full, key_empty; /* barriers of the two rings */
    int angles;                           /* f32 (2, HS/2): cosines, sines */
    int end;
} SharedLayout;

typedef struct {
    DecodeGemv gemv[N_GEMVS];
    const void *token_table, *position_table;
    void *keys, *values;  /* of block 0 */
    int64_t cache_stride; /* elements from a block's to the next one's */
    const int32_t *tokens, *start;
    float *logits;
    unsigned *tag; /* the last one that was used */
    /* decode_cluster.cu's: sums of x, and how many tiles of the head and how many blocks there have been */
    Word *sums;
    unsigned *tiles, *turn;
    struct CudaFault *fault;
    Mail mail;
    MailLayout at;
    SharedLayout shared;
    int n_blocks, channels, hidden, n_heads, n_kv_heads, head_size;
    int head_shift; /* head_size is 2^head_shift */
    int vocabulary, n_logits, n_places, capacity;
    int n_warps, n_slots;              /* n_warps: that compute */
    int channel_slices, hidden_slices; /* of a warp */
    int factor_words, factor_step;     /* of a warp; from one kind to the next */
    int most_rows;                     /* of a GEMV in one thread block */
    int tile_keys, key_slot_bytes;     /* of a tile of the cache */
    int fetched_rows;                  /* of the head, with every block, to the L2 cache */
    bool has_mean, is_gated, is_rotary;
    Activation activation;
    float epsilon, scale;
    double frequency_step; /* frequency i is 2^(step·i) */
} DecodeCall;

#ifdef __cplusplus
extern "C" {
#endif

/* Everything but the addresses, and the number of thread blocks. False: the step is none for this kernel. */
bool cuda_decode_plan(const CudaTraits *gpu, const Node *node, DecodeCall *call, int *n_grid);

#ifdef __cplusplus
}
#endif

#endif
