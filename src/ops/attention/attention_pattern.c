/* Patterns in words, and how many pairs they leave: for the count of FLOPs. */
#include "ops/attention/attention_pattern.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *form;
    int n_numbers;
} kinds[N_PATTERN_KINDS] = {
    [PATTERN_DENSE] = {"dense", "dense", 0},
    [PATTERN_WINDOW] = {"window", "window:W", 1},
    [PATTERN_STRIDED] = {"strided", "strided:L", 1},
    [PATTERN_FIXED] = {"fixed", "fixed:L:C", 2},
    [PATTERN_BIGBIRD] = {"bigbird", "bigbird:BLOCK:WINDOW:GLOBAL:RANDOM", 4},
};

/* One number from *text on, which is left behind it; one that is too large is PATTERN_MAX_NUMBER + 1. -1:
 * there is none. */
static int64_t read_number(const char **text, const char *end) {
    const char *first = *text;
    int64_t number = 0;
    for (; *text < end && **text >= '0' && **text <= '9'; (*text)++)
        if (number <= PATTERN_MAX_NUMBER) number = 10 * number + (**text - '0');
    if (*text == first) return -1;
    return number <= PATTERN_MAX_NUMBER ? number : PATTERN_MAX_NUMBER + 1;
}

static Status check_numbers(const AttentionPattern *pattern, const char *text, int n, Error *error) {
    const int32_t *number = pattern->number;
    for (int i = 0; i < kinds[pattern->kind].n_numbers; i++) {
        bool may_be_none = pattern->kind == PATTERN_BIGBIRD && i >= 2;
        if (number[i] > (may_be_none ? -1 : 0) && number[i] <= PATTERN_MAX_NUMBER) continue;
        return error_user(error, "attention pattern '%.*s': choose its number %d from %d to %d", n, text,
                          i + 1, may_be_none ? 0 : 1, PATTERN_MAX_NUMBER);
    }
    if (pattern->kind == PATTERN_FIXED && number[1] > number[0])
        return error_user(error,
                          "attention pattern '%.*s': a block of %d has no %d last positions; choose C "
                          "from 1 to L",
                          n, text, number[0], number[1]);
    if (pattern->kind == PATTERN_BIGBIRD && number[0] < PATTERN_LEAST_BLOCK)
        return error_user(error,
                          "attention pattern '%.*s': blocks of %d are too small; choose at least %d "
                          "(64 is fastest)",
                          n, text, number[0], PATTERN_LEAST_BLOCK);
    return STATUS_OK;
}

Status pattern_parse(const char *text, size_t n, AttentionPattern *pattern, Error *error) {
    const char *end = text + n, *colon = memchr(text, ':', n), *at = colon ? colon : end;
    *pattern = (AttentionPattern){.kind = -1};
    for (int kind = 0; kind < N_PATTERN_KINDS; kind++) {
        if (strlen(kinds[kind].name) == (size_t)(at - text) &&
            memcmp(text, kinds[kind].name, (size_t)(at - text)) == 0)
            pattern->kind = kind;
    }
    if (pattern->kind < 0)
        return error_user(error, "attention pattern '%.*s' is not known; choose one of %s, %s, %s, %s or %s",
                          (int)n, text, kinds[0].form, kinds[1].form, kinds[2].form, kinds[3].form,
                          kinds[4].form);
    int n_read = 0, n_numbers = kinds[pattern->kind].n_numbers;
    while (at < end && *at == ':' && n_read < n_numbers) {
        at++;
        int64_t number = read_number(&at, end);
        if (number < 0) break;
        pattern->number[n_read++] = (int32_t)number;
    }
    if (n_read < n_numbers || at < end)
        return error_user(error, "attention pattern '%.*s' is not of the form %s%s", (int)n, text,
                          kinds[pattern->kind].form, n_numbers ? ", all of them whole numbers" : "");
    return check_numbers(pattern, text, (int)n, error);
}

void pattern_print(const AttentionPattern *pattern, char *text, size_t n_bytes) {
    int used = snprintf(text, n_bytes, "%s", kinds[pattern->kind].name);
    for (int i = 0; i < kinds[pattern->kind].n_numbers && used > 0 && (size_t)used < n_bytes; i++)
        used += snprintf(text + used, n_bytes - (size_t)used, ":%d", pattern->number[i]);
}

bool pattern_equal(const AttentionPattern *a, const AttentionPattern *b) {
    return a->kind == b->kind && memcmp(a->number, b->number, sizeof a->number) == 0;
}

/* Keys that queries of one of BigBird's blocks see before their own block. */
static int64_t blocks_before(const AttentionPattern *pattern, int32_t q_block) {
    int64_t n = 0;
    for (int32_t k_block = 0; k_block < q_block; k_block++)
        n += pattern_sees_block(pattern, q_block, k_block);
    return n;
}

double pattern_pairs(const AttentionPattern *pattern, int64_t n_positions) {
    int64_t length = pattern->number[0], before = 0;
    double pairs = 0.0;
    for (int64_t q = 0; q < n_positions; q++) {
        int64_t n = q + 1;
        if (pattern->kind == PATTERN_WINDOW) n = n < length ? n : length;
        if (pattern->kind == PATTERN_STRIDED) n = (n < length ? n : length) + q / length;
        if (pattern->kind == PATTERN_FIXED) n = q % length + 1 + q / length * pattern->number[1];
        if (pattern->kind == PATTERN_BIGBIRD) {
            if (q % length == 0) before = blocks_before(pattern, (int32_t)(q / length));
            n = before * length + q % length + 1;
        }
        pairs += (double)n;
    }
    return pairs;
}
