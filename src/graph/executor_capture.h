/* The executor's own: which nodes of a part are captured (executor_capture.c). */
#ifndef PGPT_GRAPH_EXECUTOR_CAPTURE_H
#define PGPT_GRAPH_EXECUTOR_CAPTURE_H

#include "graph/executor.h"

/* The runs of nodes in a row that are worth a capture each, in all micro-batches but the last, or in the
 * last; in the executor's arena. */
CapturedRuns capture_choose(Executor *executor, ProgramPart nodes, bool is_last);

#endif
