/* The compressed sum over ranks, as operations between which the communicator works:
 *
 *     rank      compress      c = e + gain·factor·g + keep·m, packed slice by slice; what is left over is e
 *               all-to-all    the words of every rank's slice to that rank
 *     owner     combine       c = e' + weight·Σ of what the ranks say of its slice, packed; the rest is e'
 *               all-gather    the words of all slices
 *     rank      expand        the numbers that they say
 *
 * e is a rank's own error, e' an owner's: nothing that the words cannot say is lost, it is said later. Errors
 * change in place. A factor that is no finite number leaves errors and results as they are. */
#ifndef PGPT_OPS_COMPRESS_COMPRESS_H
#define PGPT_OPS_COMPRESS_COMPRESS_H

#include "graph/op.h"
#include "ops/compress/codec.h"

typedef struct {
    Codec codec;
    int n_slices;
    const int64_t *border; /* (n_slices+1) of the elements; lives as long as the graph */
    float gain, keep;      /* of compress; gain of the others: what the words are multiplied by */
    float bound;           /* limits by the variance */
} CompressAttributes;

/* Inputs gradient, [momentum], [variance], [factor]; outputs words (I32), error. */
extern const Op OP_COMPRESS;
/* Inputs words of n_slices ranks for one slice, [variance] of it, [factor]; outputs words, error of it. */
extern const Op OP_COMBINE;
/* Inputs words of n_slices slices, [variance], [factor]; output numbers. With border NULL: words of n_slices
 * ranks for one slice, summed. */
extern const Op OP_EXPAND;

/* Words of all slices together. */
int64_t compress_words(const CompressAttributes *attributes);

typedef struct {
    Tensor *gradient, *momentum, *variance, *factor; /* the last three or NULL */
    Tensor *error;
} CompressTensors;

/* Returns the words. */
Tensor *op_compress(Graph *graph, const CompressTensors *tensors, const CompressAttributes *attributes);
/* Into `combined`. */
void op_combine(Graph *graph, Tensor *words, const CompressTensors *tensors, Tensor *combined,
                const CompressAttributes *attributes);
/* Into `numbers`. */
void op_expand(Graph *graph, Tensor *words, const CompressTensors *tensors, Tensor *numbers,
               const CompressAttributes *attributes);

#endif
