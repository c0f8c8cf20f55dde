/* How ranks send less than their gradients (--compress): which way, and when.
 *
 *     Compression compression;
 *     TRY(compression_parse("topk:0.01", &compression, error));
 *
 * Some ways compress the gradient, and any optimizer follows. The others are Adam's own: what ranks agree on
 * is the momentum, while the variance is frozen. */
#ifndef PGPT_PARALLEL_COMPRESS_COMPRESSION_H
#define PGPT_PARALLEL_COMPRESS_COMPRESSION_H

#include "base/error.h"
#include "ops/compress/codec.h"

#include <stddef.h>

typedef enum {
    COMPRESS_NONE,
    COMPRESS_ONEBIT_ADAM,
    COMPRESS_ZEROONE_ADAM,
    COMPRESS_ONEBIT_LAMB,
    COMPRESS_TOPK_ADAM,
    COMPRESS_TOPK,
    COMPRESS_INT8,
    COMPRESS_F16,
    COMPRESS_POWERSGD,
    N_COMPRESS_KINDS
} CompressKind;

/* Between whom ranks send less: all of them, or hosts (--compress-across). */
typedef enum { COMPRESS_ACROSS_ALL, COMPRESS_ACROSS_HOSTS } CompressAcross;
extern const char *const compress_across_names[]; /* NULL-terminated */

typedef struct {
    int kind;             /* CompressKind */
    double share;         /* of COMPRESS_TOPK and COMPRESS_TOPK_ADAM */
    int rank;             /* of COMPRESS_POWERSGD: columns that matrices are sent by */
    int64_t n_warmup;     /* exact steps before the first compressed one */
    bool is_auto;         /* the run finds them itself, until when they are COMPRESS_UNDECIDED: */
    int64_t n_interval;   /* steps between two looks at the variance, */
    int64_t n_before;     /* of which the first is no earlier than behind so many steps */
    bool is_across_hosts; /* exact within a host */
    /* Of COMPRESS_ZEROONE_ADAM: the most steps from one message to the next (0 or 1: each step has one), and
     * the highest learning rate, by which a step's tells how many they are. */
    int n_local;
    double highest_rate;
} Compression;

/* What --compress says; {0} for "none". The warm-up is left to the caller. */
Status compression_parse(const char *text, Compression *compression, Error *error);

const char *compression_name(const Compression *compression, char *text, size_t n_bytes); /* "topk:0.01" */

/* A way of this kind as --compress takes it, for whoever tries them all: "topk:0.1". */
const char *compression_example(CompressKind kind);

#define COMPRESS_UNDECIDED INT64_MAX

enum { COMPRESS_MOST_LOCAL = 16 };

/* How much of itself a variance is left with, or has been, between two looks at it that find it steady. */
#define COMPRESS_STEADY 0.96

/* Has a run that finds its warm-up itself found it? */
static inline bool compression_is_decided(const Compression *compression) {
    return compression->is_auto && compression->n_warmup < COMPRESS_UNDECIDED;
}

/* Does it look at the variance behind step `index`? */
static inline bool compression_looks(const Compression *compression, int64_t index) {
    return compression->is_auto && compression->n_warmup == COMPRESS_UNDECIDED &&
           (index + 1) % compression->n_interval == 0 && index >= compression->n_before;
}

/* May there be steps in which ranks send nothing? */
static inline bool compression_is_local(const Compression *compression) {
    return compression->n_local > 1;
}

/* LAMB, which is Adam with a step by the tensor? */
static inline bool compression_is_lamb(const Compression *compression) {
    return compression->kind == COMPRESS_ONEBIT_LAMB;
}

/* Is it the momentum that is compressed, with a frozen variance? */
static inline bool compression_is_adam(const Compression *compression) {
    return compression->kind == COMPRESS_ONEBIT_ADAM || compression->kind == COMPRESS_ZEROONE_ADAM ||
           compression->kind == COMPRESS_TOPK_ADAM || compression_is_lamb(compression);
}

/* Do ranks with a part of a matrix less to say of it (ops/compress/lowrank.h)? Else numbers are packed. */
static inline bool compression_is_lowrank(const Compression *compression) {
    return compression->kind == COMPRESS_POWERSGD;
}

/* How numbers are packed. */
Codec compression_codec(const Compression *compression);

/* The steps that are exact where nobody says: Adam's variance needs some; int8 and f16 need none. */
int64_t compression_default_warmup(const Compression *compression, int64_t n_steps);

/* Is step `index` (from 0) exact? */
bool compression_is_exact(const Compression *compression, int64_t index);

/* The steps from one message to the next at this learning rate: 1, and twice as many each time that the rate
 * has halved, up to n_local; so that between two messages ranks never go farther apart than in a step at the
 * highest rate. */
int compression_interval(const Compression *compression, double rate);

/* Do the ranks agree behind step `index`, whatever else may want them to? Before an exact step they do. */
bool compression_joins(const Compression *compression, int64_t index, double rate);

#endif
