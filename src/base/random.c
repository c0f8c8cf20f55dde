#include "base/random.h"

#include <math.h>

float random_uniform(RandomKey key, uint64_t index) {
    return random_unit(random_block(key, 0, index / 4).word[index % 4]);
}

/* Box-Muller: each pair of words makes a radius and an angle, and so two numbers. */
static void normal_quad(RandomKey key, uint64_t quad, float out[4]) {
    RandomBlock block = random_block(key, 0, quad);
    for (int pair = 0; pair < 4; pair += 2) {
        float unit = ((float)block.word[pair] + 1.0f) * 0x1p-32f; /* (0,1]: the logarithm is finite */
        float angle = (float)block.word[pair + 1] * (6.2831853f * 0x1p-32f);
        float radius = sqrtf(-2.0f * logf(unit));
        out[pair] = radius * cosf(angle);
        out[pair + 1] = radius * sinf(angle);
    }
}

float random_normal(RandomKey key, uint64_t index) {
    float quad[4];
    normal_quad(key, index / 4, quad);
    return quad[index % 4];
}

void random_normal_fill(RandomKey key, uint64_t first, uint64_t n, float deviation, float *out) {
    float quad[4] = {0};
    for (uint64_t i = 0; i < n; i++) {
        uint64_t index = first + i;
        if (i == 0 || index % 4 == 0) normal_quad(key, index / 4, quad);
        out[i] = deviation * quad[index % 4];
    }
}

uint64_t random_permute(RandomKey key, uint64_t index, uint64_t n) {
    int half_bits = 1;
    while (half_bits < 32 && (1ULL << (2 * half_bits)) < n) half_bits++;
    uint64_t mask = (1ULL << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (random_block(key, round + 1, right).word[0] & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= n);
    return index;
}
