/* Messages between ranks of arrays that lie elsewhere: they are of what was fetched, so that it has to stay
 * until they are over. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_MESSAGES_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_MESSAGES_H

#include "graph/op.h"

/* Is it a node of communication, that starts something or waits for it? */
bool offload_is_message(const Node *node);

/* What is started on a part of this array is waited for in the same part of the program, behind the start of
 * the one after the next: so two of them are under way, and no more of the array is here. */
void offload_shorten_messages(Graph *graph, const Tensor *root);

/* Of an array in a file: elements of its page that lie before element `first`. */
int64_t offload_page_skip(const Tensor *root, int64_t first);

#endif
