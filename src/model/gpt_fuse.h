/* GPT's step of decoding recognised in a graph, and put into one operation.
 *
 *     GptDecode decode = gpt_record_decode(...);          // with B = T = 1
 *     gpt_fuse_decode(graph, backend);     // nothing changes where the backend has no kernel for the whole
 *
 * What the operation is: ops/decode_step.h. It knows no model; the shape of GPT is known here, beside gpt.c,
 * which records it. */
#ifndef PGPT_MODEL_GPT_FUSE_H
#define PGPT_MODEL_GPT_FUSE_H

#include "graph/backend.h"

/* Put one decode_step in the place of the recorded step, if it is one and the backend has a kernel for it.
 * What follows the logits stays. Says whether. */
bool gpt_fuse_decode(Graph *graph, const Backend *backend);

#endif
