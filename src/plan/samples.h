/* Rates of instructions as they were measured, and what lies between the measurements.
 *
 *     Samples samples;
 *     TRY(samples_read("linear:2048,768,768=91.2 layernorm:3145728=11.3", arena, &samples, error));
 *     if (samples_seconds(&samples, node, false, &seconds)) ...      // else none of its kind was measured
 *
 * A sample is an operation, its size, and its rate in 10^9 units of work a second. Of a GEMM the size is
 * rows, columns and terms, the work FLOPs; of attention FLOPs, bytes and the head size, likewise; of all else
 * bytes are both. Between samples of an operation the logarithm of the rate is their mean, weighted by the
 * inverse fourth power of the distance in logarithms of sizes (of attention, in FLOPs a byte, half as much in
 * bytes, and the head size): at a sample it is that sample, and far from all of them nothing runs away. */
#ifndef PGPT_PLAN_SAMPLES_H
#define PGPT_PLAN_SAMPLES_H

#include "base/arena.h"
#include "graph/op.h"

enum { SAMPLE_MOST_SIZES = 3 };

/* What an instruction is measured by. Weights' gradients that are added to those of micro-batches before have
 * samples of their own ("linear_weight_gradient+add"): with few terms the sum is most of their work. A sample
 * is the mean over a step's micro-batches, of which the first is written. */
typedef struct {
    const char *name; /* of the operation */
    int n_sizes;
    double size[SAMPLE_MOST_SIZES];
    double work; /* 0: it does nothing that is worth a sample */
} SampleKey;

SampleKey sample_key(const Node *node, bool adds);

/* The names that are no operation's but of one with something besides; NULL-terminated. */
extern const char *const sample_variants[];

/* Is it added to what is there: behind the first micro-batch of several, or always? */
bool node_adds(const Node *node, bool is_behind_first);

typedef struct {
    double size[SAMPLE_MOST_SIZES], rate; /* logarithms */
} Sample;

typedef struct {
    const char *name;
    int n_sizes, n;
    Sample *sample;
} SampleGroup;

typedef struct {
    SampleGroup *group; /* by name */
    int n_groups;
} Samples;

/* From the arena. An empty text has none. */
Status samples_read(const char *text, Arena *arena, Samples *samples, Error *error);

/* Are all of them of operations that programs have, by as many sizes? `key` is where they were written. */
Status samples_check_operations(const Samples *samples, const char *key, Error *error);

/* Those of a name; NULL: there are none. */
const SampleGroup *samples_group(const Samples *samples, const char *name);

/* Seconds of an instruction; false: none of its operation was measured. */
bool samples_seconds(const Samples *samples, const Node *node, bool adds, double *seconds);

/* The text of one, as samples_read takes it, behind those that the text has; every rate of a text times a
 * factor. */
const char *samples_add(const char *text, const SampleKey *key, double seconds, Arena *arena);
const char *samples_scale(const char *text, double factor, Arena *arena);

/* The dimensions of a GEMM: rows, columns and terms of its result. False: the node is none. */
bool node_gemm(const Node *node, double *M, double *N, double *K);

#endif
