/* Numbers in fewer bits: how the slices of an array that ranks exchange are packed into words, and what is
 * lost.
 *
 *     Codec codec = {.kind = CODEC_SIGN};
 *     uint32_t words[codec_words(&codec, n)];
 *     codec_encode(&codec, &slice, 0, codec_blocks(n));   // slice.values are what is left over
 *     codec_decode(&codec, &slice, 0, codec_blocks(&codec, n), weight, false);
 *
 * A slice is packed block by block, and each block by itself: blocks may be packed by several threads, and
 * come out the same however a longer array was cut into slices, if it was cut between blocks.
 *
 *     sign    1 bit: the sign; a scale s = |c|/√d, the root of the mean square, a block of 64
 *     int8    8 bits: the nearest of 255 steps up to the block's largest value
 *     f16     16 bits: f16 numbers, in units of the block's largest value
 *     top     of each block the few largest values, as they are, with their places
 *
 * A block of zeros comes back as zeros from all of them. With `variance`, each value has a limit, bound·√v:
 * values are cut to it before they are packed and behind it, and what is cut is not left over. So a number
 * that never had a gradient (v = 0) stays 0 and has no sign. */
#ifndef PGPT_OPS_COMPRESS_CODEC_H
#define PGPT_OPS_COMPRESS_CODEC_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { CODEC_SIGN, CODEC_INT8, CODEC_F16, CODEC_TOP, N_CODECS } CodecKind;

enum { CODEC_BLOCK = 64, CODEC_SIGN_WORDS = 2, CODEC_INT8_WORDS = 16, CODEC_F16_WORDS = 32 };

typedef struct {
    CodecKind kind;
    int n_kept; /* CODEC_TOP: of a block, at most CODEC_BLOCK */
} Codec;

static inline int64_t codec_blocks(int64_t n) {
    return (n + CODEC_BLOCK - 1) / CODEC_BLOCK;
}

/* Words of a block's codes, without its scale: bits; bytes; halves; values, then four places a word. */
static inline int codec_code_words(const Codec *codec) {
    switch (codec->kind) {
    case CODEC_SIGN: return CODEC_SIGN_WORDS;
    case CODEC_INT8: return CODEC_INT8_WORDS;
    case CODEC_F16: return CODEC_F16_WORDS;
    default: return codec->n_kept + (codec->n_kept + 3) / 4;
    }
}

/* 32-bit words of a slice of n elements. */
int64_t codec_words(const Codec *codec, int64_t n);

/* Bits that an element of a long array takes. */
double codec_bits(const Codec *codec);

/* Where the scale of the first block is, behind all codes; not of CODEC_TOP. */
static inline float *codec_scales(const Codec *codec, uint32_t *words, int64_t n) {
    return (float *)(words + codec_code_words(codec) * codec_blocks(n));
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
