/* Numbers in fewer bits: how the slices of an array that ranks exchange are packed into words, and what is
 * lost.
 *
 *     Codec codec = {.kind = CODEC_SIGN};
 *     uint32_t words[codec_words(&codec, n)];
 *     codec_encode(&codec, &slice, 0, codec_blocks(&codec, n));   // slice.values are what is left over
 *     codec_decode(&codec, &slice, 0, codec_blocks(&codec, n), weight, false);
 *
 * A slice is packed block by block, and each block by itself: blocks may be packed by several threads, and
 * come out the same however a longer array was cut into slices, if it was cut between blocks.
 *
 *     sign    1 bit: the sign; a scale s = |c|/√d, the root of the mean square, a block of 64
 *     int8    8 bits: the nearest of 255 steps up to the block's largest value
 *     f16     16 bits: f16 numbers, in units of the block's largest value
 *     top     of each group of 4096 the few largest values, as they are, with their places
 *
 * A block of zeros comes back as zeros from all of them. With `variance`, each value has a limit, bound·√v:
 * values are cut to it before they are packed and behind it, and what is cut is not left over. So a number
 * that never had a gradient (v = 0) stays 0 and has no sign. */
#ifndef PGPT_OPS_COMPRESS_CODEC_H
#define PGPT_OPS_COMPRESS_CODEC_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { CODEC_SIGN, CODEC_INT8, CODEC_F16, CODEC_TOP, N_CODECS } CodecKind;

enum { CODEC_BLOCK = 64, CODEC_GROUP = 4096, CODEC_SIGN_WORDS = 2, CODEC_INT8_WORDS = 16, CODEC_F16_WORDS = 32 };

typedef struct {
    CodecKind kind;
    int n_kept; /* CODEC_TOP: of a whole group */
} Codec;

/* Elements that are packed together: CODEC_BLOCK or CODEC_GROUP. */
static inline int64_t codec_block(const Codec *codec) {
    return codec->kind == CODEC_TOP ? CODEC_GROUP : CODEC_BLOCK;
}

static inline int64_t codec_blocks(const Codec *codec, int64_t n) {
    return (n + codec_block(codec) - 1) / codec_block(codec);
}

/* Of n values of a group, those that are kept: as many of them, rounded up. */
static inline int64_t codec_n_kept(const Codec *codec, int64_t n) {
    return (codec->n_kept * n + CODEC_GROUP - 1) / CODEC_GROUP;
}

/* 32-bit words of a slice of n elements. */
int64_t codec_words(const Codec *codec, int64_t n);

/* Bits that an element of a long array takes. */
double codec_bits(const Codec *codec);

/* Where the scale of the first block is, behind all codes; not of CODEC_TOP. */
static inline float *codec_scales(const Codec *codec, uint32_t *words, int64_t n) {
    static const int sizes[N_CODECS] = {CODEC_SIGN_WORDS, CODEC_INT8_WORDS, CODEC_F16_WORDS, 0};
    return (float *)(words + sizes[codec->kind] * codec_blocks(codec, n));
}

typedef struct {
    uint32_t *words;
    float *values;         /* (n) */
    const float *variance; /* (n), or NULL: no limits */
    float bound;
    int64_t n;
} CodecSlice;

/* Pack blocks first .. end - 1 of the values; what is not in the words is left over there. */
void codec_encode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end);

/* values = or += weight · what the words say, of blocks first .. end - 1. */
void codec_decode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end, float weight,
                  bool adds);

#endif
