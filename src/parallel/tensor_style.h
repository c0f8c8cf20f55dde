/* How tensor parallelism divides the two linear layers of a pair (model/gpt.c). */
#ifndef PGPT_PARALLEL_TENSOR_STYLE_H
#define PGPT_PARALLEL_TENSOR_STYLE_H

typedef enum {
    /* Megatron's: the first by its outputs, the second by its inputs. What lies between stays divided, and
     * one sum over the ranks ends the pair. */
    TENSOR_COLUMN,
    /* Naive: each by its inputs. Every layer ends with a sum, so that all ranks have all of its output, of
     * which each takes its part again. */
    TENSOR_ROW,
    N_TENSOR_STYLES,
} TensorStyle;

/* The most parts of a micro-batch of which one is computed while messages of another travel. */
enum { MOST_TENSOR_CHUNKS = 64 };

extern const char *const tensor_style_names[]; /* NULL-terminated: column row (options.c) */

#endif
