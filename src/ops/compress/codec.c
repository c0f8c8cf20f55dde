/* The plain meaning of every format, a block at a time. */
#include "ops/compress/codec.h"

#include "base/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t codec_words(const Codec *codec, int64_t n) {
    int64_t blocks = codec_blocks(codec, n);
    switch (codec->kind) {
    case CODEC_SIGN: return (CODEC_SIGN_WORDS + 1) * blocks;
    case CODEC_INT8: return (CODEC_INT8_WORDS + 1) * blocks;
    case CODEC_F16: return (CODEC_F16_WORDS + 1) * blocks;
    default: break;
    }
    int64_t whole = codec_n_kept(codec, CODEC_GROUP), rest = codec_n_kept(codec, n % CODEC_GROUP);
    return n / CODEC_GROUP * (whole + (whole + 1) / 2) + rest + (rest + 1) / 2;
}

double codec_bits(const Codec *codec) {
    return 32.0 * (double)codec_words(codec, CODEC_GROUP) / (double)CODEC_GROUP;
}

/* One block of a slice. */
typedef struct {
    float *values;
    const float *variance;
    float bound;
    int n;
} Block;

static Block block_of(const Codec *codec, const CodecSlice *slice, int64_t index) {
    int64_t first = index * codec_block(codec), left = slice->n - first;
    return (Block){.values = slice->values + first,
                   .variance = slice->variance ? slice->variance + first : NULL,
                   .bound = slice->bound,
                   .n = (int)(left < codec_block(codec) ? left : codec_block(codec))};
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
    uint32_t bits[CODEC_SIGN_WORDS] = {0};
    float sum = 0.0f;
    int n_free = 0;
    for (int i = 0; i < block->n; i++) {
        float limit = limit_of(block, i);
        block->values[i] = cut(block->values[i], limit);
        sum += block->values[i] * block->values[i];
        n_free += limit > 0.0f;
    }
    *scale = n_free ? sqrtf(sum / (float)n_free) : 0.0f;
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
        float magnitude = weight * cut(scale, limit_of(block, i));
        float value = words[i / 32] >> i % 32 & 1 ? magnitude : -magnitude;
        block->values[i] = adds ? block->values[i] + value : value;
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
        block->values[i] -= code * *scale;
    }
}

static void encode_f16(const Block *block, uint16_t *codes, float *scale) {
    float most = largest(block);
    *scale = most;
    memset(codes, 0, CODEC_BLOCK * sizeof *codes);
    for (int i = 0; i < block->n; i++) {
        codes[i] = most > 0.0f ? half_f16_from_f32(block->values[i] / most) : 0;
        block->values[i] -= half_f16_to_f32(codes[i]) * *scale;
    }
}

static void decode_codes(const Codec *codec, const Block *block, const void *codes, float scale, float weight,
                         bool adds) {
    for (int i = 0; i < block->n; i++) {
        float code = codec->kind == CODEC_INT8 ? (float)((const int8_t *)codes)[i]
                                               : half_f16_to_f32(((const uint16_t *)codes)[i]);
        float value = weight * (code * scale);
        block->values[i] = adds ? block->values[i] + value : value;
    }
}

/* ---- the largest */

static void swap(float *a, float *b) {
    float kept = *a;
    *a = *b;
    *b = kept;
}

/* The k-th largest of n magnitudes, k from 1; they change places. */
static float kth_largest(float *values, int n, int k) {
    int low = 0, high = n - 1;
    while (low < high) {
        float pivot = values[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (values[i] > pivot) i++;
            while (values[j] < pivot) j--;
            if (i <= j) swap(&values[i++], &values[j--]);
        }
        if (k - 1 <= j) high = j;
        else if (k - 1 >= i) low = i;
        else break;
    }
    return values[k - 1];
}

/* Places, two a word, then values. Of equal ones the first are taken. What is not a number counts as the
 * largest. */
static void encode_top(const Codec *codec, const Block *block, uint32_t *words) {
    float magnitude[CODEC_GROUP];
    int n_kept = (int)codec_n_kept(codec, block->n), n_larger = 0, at = 0;
    uint16_t *places = (uint16_t *)words;
    float *values = (float *)(words + (n_kept + 1) / 2);
    for (int i = 0; i < block->n; i++)
        magnitude[i] = isnan(block->values[i]) ? INFINITY : fabsf(block->values[i]);
    float least = kth_largest(magnitude, block->n, n_kept);
    for (int i = 0; i < n_kept; i++) n_larger += magnitude[i] > least;
    if (n_kept % 2) places[n_kept] = 0;
    for (int i = 0, n_equal = n_kept - n_larger; i < block->n && at < n_kept; i++) {
        float size = isnan(block->values[i]) ? INFINITY : fabsf(block->values[i]);
        if (size < least || (size == least && n_equal-- <= 0)) continue;
        places[at] = (uint16_t)i;
        values[at++] = block->values[i];
        block->values[i] = 0.0f;
    }
}

static void decode_top(const Codec *codec, const Block *block, const uint32_t *words, float weight,
                       bool adds) {
    int n_kept = (int)codec_n_kept(codec, block->n);
    const uint16_t *places = (const uint16_t *)words;
    const float *values = (const float *)(words + (n_kept + 1) / 2);
    if (!adds) memset(block->values, 0, (size_t)block->n * sizeof *block->values);
    for (int i = 0; i < n_kept; i++)
        if (places[i] < block->n) block->values[places[i]] += weight * values[i];
}

/* ---- all of them */

static int64_t top_words(const Codec *codec) {
    int64_t n_kept = codec_n_kept(codec, CODEC_GROUP);
    return n_kept + (n_kept + 1) / 2;
}

void codec_encode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end) {
    float *scales = codec_scales(codec, slice->words, slice->n);
    for (int64_t i = first; i < end; i++) {
        Block block = block_of(codec, slice, i);
        uint32_t *words = slice->words;
        switch (codec->kind) {
        case CODEC_SIGN: encode_signs(&block, words + CODEC_SIGN_WORDS * i, &scales[i]); break;
        case CODEC_INT8: encode_int8(&block, (int8_t *)(words + CODEC_INT8_WORDS * i), &scales[i]); break;
        case CODEC_F16: encode_f16(&block, (uint16_t *)(words + CODEC_F16_WORDS * i), &scales[i]); break;
        default: encode_top(codec, &block, words + top_words(codec) * i);
        }
    }
}

void codec_decode(const Codec *codec, const CodecSlice *slice, int64_t first, int64_t end, float weight,
                  bool adds) {
    const float *scales = codec_scales(codec, slice->words, slice->n);
    for (int64_t i = first; i < end; i++) {
        Block block = block_of(codec, slice, i);
        const uint32_t *words = slice->words;
        switch (codec->kind) {
        case CODEC_SIGN: decode_signs(&block, words + CODEC_SIGN_WORDS * i, scales[i], weight, adds); break;
        case CODEC_INT8:
            decode_codes(codec, &block, words + CODEC_INT8_WORDS * i, scales[i], weight, adds);
            break;
        case CODEC_F16:
            decode_codes(codec, &block, words + CODEC_F16_WORDS * i, scales[i], weight, adds);
            break;
        default: decode_top(codec, &block, words + top_words(codec) * i, weight, adds);
        }
    }
}
