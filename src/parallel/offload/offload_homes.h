/* Optimizer state in pieces: flat arrays that are kept elsewhere, and where each of their pieces lies. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_HOMES_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_HOMES_H

#include "parallel/offload/offload.h"

enum { OFFLOAD_MOST_ARRAYS = 8 };

typedef struct {
    Tensor *root;
    TensorHome *homes; /* in order of the array */
    int n_homes, capacity;
    int kept_as; /* the number of the array that holds what it was before; -1: none does */
} OffloadArray;

typedef struct {
    Graph *graph;
    Place away; /* where pieces go */
    OffloadArray array[OFFLOAD_MOST_ARRAYS];
    int n;
} OffloadArrays;

/* Is it state of an optimizer, or a part of it? */
bool offload_is_state(const Tensor *tensor);

/* Numbers of a flat array's tensor that n elements of an update are, and where element n begins: of moments
 * in 8 bits words, and n a multiple of 64. */
int64_t offload_units(const Tensor *tensor, int64_t n);

/* All that updates of the graph touch, and what it is copied to. */
OffloadArrays offload_arrays_find(Graph *graph, Place away);
int offload_array_of(const OffloadArrays *arrays, const Tensor *root); /* -1: none */

/* A home for elements first .. first + n - 1 of a part of the state, and of what it is copied to; there or
 * away. One that is there already stays. */
void offload_make_home(OffloadArrays *arrays, const Tensor *state, int64_t first, int64_t n, bool stays);
Tensor *offload_home_of(const OffloadArrays *arrays, const Tensor *state, int64_t first);

/* Homes for what no update touches: only the host reads and writes it. Then the arrays are their homes. */
void offload_fill_gaps(OffloadArrays *arrays, bool stays);
void offload_give_homes(const OffloadArrays *arrays);

#endif
