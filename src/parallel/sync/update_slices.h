/* What one process updates of the parameters where others update the rest: what a gradient strategy tells the
 * optimizer. */
#ifndef PGPT_PARALLEL_SYNC_UPDATE_SLICES_H
#define PGPT_PARALLEL_SYNC_UPDATE_SLICES_H

#include "graph/graph.h"

/* A run of elements that one node updates: n of the flat array from flat_first on, whose moments begin at
 * local_first of this process's. */
typedef struct {
    Tensor *gradient, *parameter; /* (n) */
    int64_t flat_first, n, local_first;
} UpdateSlice;

typedef struct {
    int n_slices;
    const UpdateSlice *slice; /* NULL: everything, n_slices and n_local say nothing */
    int64_t n_local;          /* elements of a moment here */
    /* For the norm: what is no expert is counted by another process, which has the same of it. */
    bool only_experts_count;
    /* Record the sum of a scalar over all processes that have other elements, for the norm. NULL: none. */
    void (*record_sum)(void *context, Graph *graph, Tensor *scalar);
    /* The same in three: over those that are in step with this one anyway; over the others, begun; and waited
     * for, in another section. Optional. */
    void (*record_near_sum)(void *context, Graph *graph, Tensor *scalar);
    const Node *(*record_far_sum)(void *context, Graph *graph, Tensor *scalar);
    void (*record_far_wait)(void *context, Graph *graph, const Node *sum, Tensor *scalar);
    /* Record the sum of numbers (n_tensors, any) over all processes that have other elements of the same
     * tensors: of the first n_shared, and of experts that ep divides. NULL: none. */
    void (*record_tensor_sums)(void *context, Graph *graph, Tensor *sums, int64_t n_shared);
    /* For whole matrices. Record the gathering of an array of the n elements of the flat array from
     * flat_first on, all of one parameter, of which this process has its slice; and the sum over tp of a
     * whole tensor, of which each has the parts that it holds, and 0 elsewhere. NULL: there is nobody
     * else. */
    void (*record_gather)(void *context, Graph *graph, Tensor *array, int64_t flat_first);
    void (*record_join)(void *context, Graph *graph, Tensor *whole);
    /* The update of slice `index` has been recorded, or of all of them, of which there is another one to
     * come. Optional. */
    void (*record_updated)(void *context, Graph *graph, int index);
    void (*record_end)(void *context, Graph *graph);
    void *context;
} UpdateSlices;

#endif
