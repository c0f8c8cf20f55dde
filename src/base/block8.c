/* A group at a time in loops without branches, which compilers make vectors of. Random numbers are most of
 * the work: the rounds of a group's two blocks go side by side. */
#include "base/block8.h"

#include <stddef.h>

enum { GROUPS = BLOCK8_RECORD / BLOCK8_GROUP };

/* ---- reading ---- */

static void read_group(const uint8_t *codes, uint32_t exponent, Block8Kind kind, float *values) {
    float up = block8_up(exponent);
    if (kind == BLOCK8_SIGNED) {
        for (int i = 0; i < BLOCK8_GROUP; i++) values[i] = block8_decode(codes[i], BLOCK8_SIGNED) * up;
    } else {
        for (int i = 0; i < BLOCK8_GROUP; i++) values[i] = block8_decode(codes[i], BLOCK8_POSITIVE) * up;
    }
}

static void read_record(const uint8_t *record, Block8Kind kind, float *values) {
    for (int group = 0; group < GROUPS; group++)
        read_group(record + (ptrdiff_t)group * BLOCK8_GROUP, record[BLOCK8_RECORD + group], kind,
                   values + (ptrdiff_t)group * BLOCK8_GROUP);
}

void block8_read(const void *records, Block8Kind kind, int64_t first, int64_t n, float *values) {
    const uint32_t *words = records;
    while (n > 0) {
        int64_t record = first / BLOCK8_RECORD, skip = first % BLOCK8_RECORD, here = BLOCK8_RECORD - skip;
        const uint8_t *bytes = (const uint8_t *)(words + record * BLOCK8_WORDS);
        if (here > n) here = n;
        if (here == BLOCK8_RECORD) {
            read_record(bytes, kind, values);
        } else {
            float all[BLOCK8_RECORD];
            read_record(bytes, kind, all);
            memcpy(values, all + skip, (size_t)here * sizeof *values);
        }
        values += here, first += here, n -= here;
    }
}

/* ---- writing ---- */

/* The draws of a record: blocks side by side, round by round. */
static void draw_record(const Block8Draws *draws, int64_t first, uint32_t *bits) {
    enum { BLOCKS = BLOCK8_RECORD / 8 };
    uint64_t block = (draws->first + (uint64_t)first) / 8;
    uint32_t word[4][BLOCKS];
    RandomKey key = {{draws->draw, draws->array}};
    for (int b = 0; b < BLOCKS; b++) {
        RandomBlock position = random_position(1, block + (uint64_t)b);
        for (int w = 0; w < 4; w++) word[w][b] = position.word[w];
    }
    for (int round = 0; round < RANDOM_ROUNDS; round++, key = random_next_key(key)) {
        for (int b = 0; b < BLOCKS; b++) {
            uint64_t one = (uint64_t)word[0][b] * 0xD2511F53u, two = (uint64_t)word[2][b] * 0xCD9E8D57u;
            uint32_t second = word[1][b], last = word[3][b];
            word[0][b] = (uint32_t)(two >> 32) ^ second ^ key.word[0];
            word[1][b] = (uint32_t)two;
            word[2][b] = (uint32_t)(one >> 32) ^ last ^ key.word[1];
            word[3][b] = (uint32_t)one;
        }
    }
    for (int b = 0; b < BLOCKS; b++) {
        for (int w = 0; w < 4; w++) {
            bits[8 * b + 2 * w] = word[w][b] & 0xFFFFu;
            bits[8 * b + 2 * w + 1] = word[w][b] >> 16;
        }
    }
}

static uint32_t write_group(uint8_t *codes, Block8Kind kind, const float *values, const uint32_t *draws) {
    uint32_t greatest = 0;
    for (int i = 0; i < BLOCK8_GROUP; i++) {
        uint32_t magnitude = block8_bits(values[i]) & 0x7FFFFFFFu;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    uint32_t exponent = block8_exponent(greatest);
    float down = block8_down(exponent);
    if (down == 0.0f) { /* what is not a number times 0 would not be 0 */
        memset(codes, 0, BLOCK8_GROUP);
    } else if (kind == BLOCK8_SIGNED) {
        for (int i = 0; i < BLOCK8_GROUP; i++)
            codes[i] = (uint8_t)block8_encode(values[i] * down, BLOCK8_SIGNED, draws[i]);
    } else {
        for (int i = 0; i < BLOCK8_GROUP; i++)
            codes[i] = (uint8_t)block8_encode(values[i] * down, BLOCK8_POSITIVE, draws[i]);
    }
    return exponent;
}

void block8_write(void *records, Block8Kind kind, int64_t first, int64_t n, const float *values,
                  const Block8Draws *draws) {
    uint32_t *words = records;
    for (int64_t i = 0; i < n; i += BLOCK8_RECORD) {
        uint8_t *bytes = (uint8_t *)(words + (first + i) / BLOCK8_RECORD * BLOCK8_WORDS);
        const float *from = values + i;
        float part[BLOCK8_RECORD] = {0};
        uint32_t bits[BLOCK8_RECORD];
        if (n - i < BLOCK8_RECORD) {
            memcpy(part, from, (size_t)(n - i) * sizeof *part);
            from = part;
        }
        if (draws) draw_record(draws, first + i, bits);
        else
            for (int k = 0; k < BLOCK8_RECORD; k++) bits[k] = 0x8000u;
        for (int group = 0; group < GROUPS; group++) {
            ptrdiff_t at = (ptrdiff_t)group * BLOCK8_GROUP;
            bytes[BLOCK8_RECORD + group] = (uint8_t)write_group(bytes + at, kind, from + at, bits + at);
        }
    }
}
