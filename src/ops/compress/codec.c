/* The plain meaning of every format, a block at a time. All arithmetic is written so that it can be rounded
 * in one way only, so that every backend gives the same words: products that are added to something are
 * fused, and squares are summed by 16 columns first. */
#include "ops/compress/codec.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

int64_t codec_words(const Codec *codec, int64_t n) {
    return (codec_code_words(codec) + (codec->kind != CODEC_TOP)) * codec_blocks(n);
}

double codec_bits(const Codec *codec) {
    return 32.0 * (double)codec_words(codec, CODEC_BLOCK) / CODEC_BLOCK;
}

/* One block of a slice. */
typedef struct {
    float *values;
    const float *variance;
    float bound;
    int n;
} Block;

static Block block_of(const CodecSlice *slice, int64_t index) {
    int64_t first = index * CODEC_BLOCK, left = slice->n - first;
    return (Block){.values = slice->values + first,
                   .variance = slice->variance ? slice->variance + first : NULL,
                   .bound = slice->bound,
                   .n = (int)(left < CODEC_BLOCK ? left : CODEC_BLOCK)};
}

static float limit_of(const Block *block, int i) {
    return block->variance ? block->bound * sqrtf(block->variance[i]) : INFINITY;
}

/* What is not a number stays so, to be seen. */
static float cut(float value, float limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

/* ---- signs */

static void encode_signs(const Block *block, uint32_t *words, float *scale) {
    enum { COLUMNS = 16 };
    uint32_t bits[CODEC_SIGN_WORDS] = {0};
    float sum[COLUMNS] = {0};
    int n_free = 0;
    for (int i = 0; i < block->n; i++) {
        float limit = limit_of(block, i);
        block->values[i] = cut(block->values[i], limit);
        sum[i % COLUMNS] = fmaf(block->values[i], block->values[i], sum[i % COLUMNS]);
        n_free += limit > 0.0f;
    }
    for (int width = COLUMNS / 2; width; width /= 2)
        for (int i = 0; i < width; i++) sum[i] += sum[i + width];
    *scale = n_free ? sqrtf(sum[0] / (float)n_free) : 0.0f;
    for (int i = 0; i < block->n; i++) {
        bool is_positive = !(block->values[i] < 0.0f);
        float magnitude = cut(*scale, limit_of(block, i));
        bits[i / 32] |= (uint32_t)is_positive << i % 32;
        block->values[i] -= is_positive ? magnitude : -magnitude;
    }
    memcpy(words, bits, sizeof bits);
}

static void decode_signs(const Block *block, const uint32_t *words, float scale, float weight, bool adds) {
    for (int i = 0; i < block->n; i++) {
        float magnitude = cut(scale, limit_of(block, i));
        float value = words[i / 32] >> i % 32 & 1 ? magnitude : -magnitude;
        block->values[i] = adds ? fmaf(weight, value, block->values[i]) : weight * value;
    }
}

/* ---- 8 and 16 bits */

/* Not a number if one of the values is none. */
static float largest(const Block *block) {
    float most = 0.0f, sum = 0.0f;
    for (int i = 0; i < block->n; i++) {
        float magnitude = fabsf(block->values[i]);
        most = magnitude > most ? magnitude : most;
        sum += magnitude;
    }
    return isnan(sum) ? sum : most;
}

static void encode_int8(const Block *block, int8_t *codes, float *scale) {
    float most = largest(block), step = most > 0.0f ? 127.0f / most : 0.0f;
    *scale = most / 127.0f;
    memset(codes, 0, CODEC_BLOCK);
    for (int i = 0; i < block->n; i++) {
        float code = isfinite(most) ? rintf(block->values[i] * step) : 0.0f;
        codes[i] = (int8_t)code;
        block->values[i] = fmaf(-code, *scale, block->values[i]);
    }
}

static void encode_f16(const Block *block, uint16_t *codes, float *scale) {
    float most = largest(block);
    *scale = most;
    memset(codes, 0, CODEC_BLOCK * sizeof *codes);
    for (int i = 0; i < block->n; i++) {
        codes[i] = most > 0.0f ? half_f16_from_f32(block->values[i] / most) : 0;
        block->values[i] = fmaf(-half_f16_to_f32(codes[i]), *scale, block->values[i]);
    }
}

static void decode_codes(const Codec *codec, const Block *block, const void *codes, float scale, float weight,
                         bool adds) {
    for (int i = 0; i < block->n; i++) {
        float code = codec->kind == CODEC_INT8 ? (float)((const int8_t *)codes)[i]
                                               : half_f16_to_f32(((const uint16_t *)codes)[i]);
        float value = code * scale;
        block->values[i] = adds ? fmaf(weight, value, block->values[i]) : weight * value;
    }
}

/* ---- the largest */

/* What is not a number counts as the largest, to be seen. Of equal ones the first are taken. */
static bool is_larger(float a, float b) {
    return isnan(a) ? !isnan(b) : fabsf(a) > fabsf(b);
}

/* Values, then places, four a word. */
static void encode_top(const Codec *codec, const Block *block, uint32_t *words) {
    float *values = (float *)words;
    uint8_t *places = (uint8_t *)(words + codec->n_kept);
    memset(words, 0, (size_t)codec_code_words(codec) * sizeof *words);
    for (int i = 0; i < block->n; i++) block->values[i] = cut(block->values[i], limit_of(block, i));
    for (int k = 0; k < codec->n_kept && k < block->n; k++) {
        int at = 0;
        for (int i = 1; i < block->n; i++)
            if (is_larger(block->values[i], block->values[at])) at = i;
        values[k] = block->values[at];
        places[k] = (uint8_t)at;
        block->values[at] = 0.0f;
    }
}

static void decode_top(const Codec *codec, const Block *block, const uint32_t *words, float weight,
                       bool adds) {
    const float *values = (const float *)words;
    const uint8_t *places = (const uint8_t *)(words + codec->n_kept);
    if (!adds) memset(block->values, 0, (size_t)block->n * sizeof *block->values);
    for (int k = 0; k < codec->n_kept; k++)
        if (places[k] < block->n)
            block->values[places[k]] = fmaf(weight, values[k], block->values[places[k]]);
}

/* ---- all of them */

void codec_encode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end) {
    float *scales = codec_scales(codec, slice->words, slice->n);
    for (int64_t i = first; i < end; i++) {
        Block block = block_of(slice, i);
        uint32_t *words = slice->words;
        switch (codec->kind) {
        case CODEC_SIGN: encode_signs(&block, words + CODEC_SIGN_WORDS * i, &scales[i]); break;
        case CODEC_INT8: encode_int8(&block, (int8_t *)(words + CODEC_INT8_WORDS * i), &scales[i]); break;
        case CODEC_F16: encode_f16(&block, (uint16_t *)(words + CODEC_F16_WORDS * i), &scales[i]); break;
        default: encode_top(codec, &block, words + codec_code_words(codec) * i);
        }
    }
}

void codec_decode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end, float weight,
                  bool adds) {
    const float *scales = codec_scales(codec, slice->words, slice->n);
    for (int64_t i = first; i < end; i++) {
        Block block = block_of(slice, i);
        const uint32_t *words = slice->words;
        switch (codec->kind) {
        case CODEC_SIGN: decode_signs(&block, words + CODEC_SIGN_WORDS * i, scales[i], weight, adds); break;
        case CODEC_INT8:
            decode_codes(codec, &block, words + CODEC_INT8_WORDS * i, scales[i], weight, adds);
            break;
        case CODEC_F16:
            decode_codes(codec, &block, words + CODEC_F16_WORDS * i, scales[i], weight, adds);
            break;
        default: decode_top(codec, &block, words + codec_code_words(codec) * i, weight, adds);
        }
    }
}
