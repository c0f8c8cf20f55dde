/* Which elements of the flat array are of which matrix, for optimizers that go by tensors (LAMB).
 *
 * Matrices have numbers, those that all processes share first and those of experts that ep divides behind
 * them, so that either can be summed over the processes which hold them (UpdateSlices.record_tensor_sums).
 * Every expert is a tensor of its own, though a block's lie in one array. What does not decay, biases and
 * weights of norms, has no number. */
#ifndef PGPT_OPTIM_TENSOR_SPANS_H
#define PGPT_OPTIM_TENSOR_SPANS_H

#include "model/parameters.h"
#include "ops/update/update.h"

typedef struct {
    int n_tensors, n_shared; /* of all, the first n_shared are no divided experts */
    int *first;              /* (n_parameters): the number of its first tensor, where it decays */
} TensorNumbers;

TensorNumbers tensor_numbers(const ParameterTable *table, Arena *arena);

/* The matrices of elements flat_first .. flat_first + n - 1, counted from first_element on. A part that
 * several ranks of tp hold is counted by one of them. */
TensorSpans tensor_spans(const ParameterTable *table, const TensorNumbers *numbers, int64_t flat_first,
                         int64_t n, int64_t first_element, Arena *arena);

#endif
