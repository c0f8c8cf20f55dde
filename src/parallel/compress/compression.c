/* 0/1 Adam looks at the variance again at intervals that double: in an exact step. Messages come at intervals
 * that double, too, as the learning rate falls: those of an interval are at its multiples behind the warm-up,
 * so that whether a step has one depends on the step and its rate alone. */
#include "parallel/compress/compression.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANK = 256 };

static const char *const names[N_COMPRESS_KINDS] = {"none", "1bit-adam", "0/1-adam", "1bit-lamb", "topk-adam",
                                                    "topk", "int8",      "f16",      "powersgd"};

const char *const compress_across_names[] = {"all", "hosts", NULL};

/* Of those whose name alone is not enough. */
static const char *const examples[N_COMPRESS_KINDS] = {
    [COMPRESS_TOPK_ADAM] = "topk-adam:0.1", [COMPRESS_TOPK] = "topk:0.1", [COMPRESS_POWERSGD] = "powersgd:4"};

const char *compression_example(CompressKind kind) {
    return examples[kind] ? examples[kind] : names[kind];
}

/* "NAME:number". */
static bool take_number(const char *text, const char *name, double *number) {
    size_t n = strlen(name);
    if (strncmp(text, name, n) != 0 || text[n] != ':') return false;
    char *end;
    errno = 0;
    *number = strtod(text + n + 1, &end);
    return !errno && end != text + n + 1 && !*end;
}

Status compression_parse(const char *text, Compression *compression, Error *error) {
    *compression = (Compression){0};
    double number;
    if (take_number(text, names[COMPRESS_ZEROONE_ADAM], &number)) {
        if (!(number == 2.0 || number == 4.0 || number == 8.0 || number == COMPRESS_MOST_LOCAL))
            return error_user(error,
                              "--compress %s: the most steps from one message to the next are 2, 4, 8 or 16; "
                              "0/1-adam alone sends one in each step",
                              text);
        compression->kind = COMPRESS_ZEROONE_ADAM;
        compression->n_local = (int)number;
        return STATUS_OK;
    }
    for (int kind = 0; kind < N_COMPRESS_KINDS; kind++) {
        if (strcmp(text, names[kind]) != 0 || examples[kind]) continue;
        compression->kind = kind;
        return STATUS_OK;
    }
    bool is_of_adam = take_number(text, names[COMPRESS_TOPK_ADAM], &number);
    if (is_of_adam || take_number(text, names[COMPRESS_TOPK], &number)) {
        if (!(number > 0.0 && number <= 0.5))
            return error_user(
                error,
                "--compress %s: the share that is sent lies above 0 and is at most 0.5; %s:0.1 is "
                "usual",
                text, names[is_of_adam ? COMPRESS_TOPK_ADAM : COMPRESS_TOPK]);
        compression->kind = is_of_adam ? COMPRESS_TOPK_ADAM : COMPRESS_TOPK;
        compression->share = number;
        return STATUS_OK;
    }
    if (take_number(text, names[COMPRESS_POWERSGD], &number)) {
        if (!(number >= 1.0 && number <= MOST_RANK && number == floor(number)))
            return error_user(error,
                              "--compress %s: the rank of what is sent is a whole number from 1 to %d; "
                              "powersgd:4 is usual",
                              text, MOST_RANK);
        compression->kind = COMPRESS_POWERSGD;
        compression->rank = (int)number;
        return STATUS_OK;
    }
    return error_user(
        error,
        "--compress %s is none of the ways there are: none, 1bit-adam, 0/1-adam, 0/1-adam:N (every N steps at "
        "most), 1bit-lamb, topk-adam:X (the largest share X of Adam's momentum, as topk-adam:0.1), topk:X (of "
        "the gradient), int8, f16, powersgd:R (matrices in rank R, as powersgd:4)",
        text);
}

const char *compression_name(const Compression *compression, char *text, size_t n_bytes) {
    const char *name = names[compression->kind];
    if (compression->kind == COMPRESS_TOPK || compression->kind == COMPRESS_TOPK_ADAM)
        snprintf(text, n_bytes, "%s:%g", name, compression->share);
    else if (compression->kind == COMPRESS_POWERSGD)
        snprintf(text, n_bytes, "%s:%d", name, compression->rank);
    else if (compression_is_local(compression)) snprintf(text, n_bytes, "%s:%d", name, compression->n_local);
    else snprintf(text, n_bytes, "%s", name);
    return text;
}

Codec compression_codec(const Compression *compression) {
    Codec codec = {.kind = CODEC_SIGN};
    switch (compression->kind) {
    case COMPRESS_INT8: codec.kind = CODEC_INT8; break;
    case COMPRESS_F16: codec.kind = CODEC_F16; break;
    case COMPRESS_TOPK:
    case COMPRESS_TOPK_ADAM:
        codec.kind = CODEC_TOP;
        codec.n_kept = (int)ceil(compression->share * CODEC_BLOCK - 1e-9);
        break;
    default: break;
    }
    return codec;
}

int64_t compression_default_warmup(const Compression *compression, int64_t n_steps) {
    enum { SHARE = 5 };
    bool needs_some = compression_is_adam(compression) || compression->kind == COMPRESS_TOPK ||
                      compression->kind == COMPRESS_POWERSGD;
    return needs_some ? (n_steps + SHARE - 1) / SHARE : 0;
}

bool compression_is_exact(const Compression *compression, int64_t index) {
    enum { FIRST_INTERVAL = 8 };
    if (compression->kind == COMPRESS_NONE || index < compression->n_warmup) return true;
    if (compression->kind != COMPRESS_ZEROONE_ADAM) return false;
    int64_t at = compression->n_warmup - 1;
    for (int64_t interval = FIRST_INTERVAL; at < index; interval *= 2) at += interval;
    return at == index;
}

int compression_interval(const Compression *compression, double rate) {
    const double rounding = 1.0 + 1e-9;
    int interval = 1;
    while (2 * interval <= compression->n_local &&
           2.0 * interval * rate <= compression->highest_rate * rounding)
        interval *= 2;
    return interval;
}

bool compression_joins(const Compression *compression, int64_t index, double rate) {
    int interval = compression_interval(compression, rate);
    return (index + 1 - compression->n_warmup) % interval == 0 ||
           compression_is_exact(compression, index + 1);
}
