/* The executor's own: calls of kernels, and where a part of the program has them (executor_calls.c). */
#ifndef PGPT_GRAPH_EXECUTOR_CALLS_H
#define PGPT_GRAPH_EXECUTOR_CALLS_H

#include "graph/executor.h"

/* The parts of the program, with every call that is the same in every run. */
void executor_make_parts(Executor *executor);
ExecutorPart *executor_part_of(const Executor *executor, Section section, int chunk);

/* Is the node run in this micro-batch of this step? */
bool executor_runs_in(const Node *node, MicroBatch micro);

/* Node `number` of the part, as this micro-batch runs it; a call that was made when the executor was opened;
 * and one that is made now. */
const KernelCall *executor_call_of(Executor *executor, const ExecutorPart *part, int number,
                                   MicroBatch micro);
KernelCall *executor_prepared_call(const ExecutorPart *part, int number, MicroBatch micro);
KernelCall executor_make_call(const Executor *executor, const Node *node, MicroBatch micro);

/* Where a tensor is for a micro-batch of this chunk. */
void *executor_address_for(const Executor *executor, const Tensor *tensor, int chunk, MicroBatch micro);

/* What was captured of the part for micro-batches like this one. */
SectionCapture *executor_capture_of(const ExecutorPart *part, MicroBatch micro);

#endif
