/* Autograd as a pass: reads the forward nodes backwards and records the backward half.
 *
 * Each op's gradient rule asks for the gradient of its outputs, records nodes, and says which input's
 * gradient each new node's output is. Autograd decides where that gradient lives and whether it is the first
 * contribution (written) or a further one (added). The walk starts at ops that make gradients themselves, as
 * the loss does.
 *
 *     static void gelu_gradient(Autograd *autograd, const Node *node) {
 *         Tensor *dy = autograd_gradient(autograd, node->output[0]);
 *         Tensor *x = node->input[0];
 *         if (!dy || !x->needs_gradient) return;
 *         autograd_record(autograd, &OP_GELU_BACKWARD, attributes, bytes, 2, TENSORS(dy, x), 1, TENSORS(x));
 *     }
 *
 * **Chunks.** Where a graph ends in something else than a loss, as a stage of a pipeline does, the gradients
 * of what comes out are given as seeds, and the walk starts there, too. Backward nodes are of the chunk of
 * the forward node whose rule records them. The walk goes backwards through the chunks, as a pipeline does:
 * so if chunks are recorded in the order of the model, the first that writes the gradient of a parameter
 * which several of them use is the first in every order in which they may run. */
#ifndef PGPT_GRAPH_PASSES_AUTOGRAD_H
#define PGPT_GRAPH_PASSES_AUTOGRAD_H

#include "graph/op.h"

/* dL/dtensor comes from elsewhere: somebody writes `gradient`, of the same shape and type, before the
 * backward of the tensor's chunk reads it. It may be added to, if others read the tensor, too. */
typedef struct {
    Tensor *tensor, *gradient;
} AutogradSeed;

typedef struct {
    const Op *
        /* duplicates a tensor: needed when a gradient that two tensors share is to change for one of them */
        copy;
    /* PLACE_GRADIENT: parameters' gradients persist and are summed over micro-batches. PLACE_ACTIVATION: each
     * lives only until its last reader, for steps that update every parameter as soon as its gradient is
     * known. */
    Place gradient_place;
    DType parameter_dtype; /* of the gradients of parameters, whatever these are */
    const AutogradSeed *seeds;
    int n_seeds;
} AutogradOptions;

/* Add the backward half to a graph that holds only forward nodes, besides those that bring the seeds'
 * gradients. Afterwards tensor->gradient is dL/dtensor. */
Status autograd_run(Graph *graph, const AutogradOptions *options, Error *error);

/* --- for gradient rules --- */

Graph *autograd_graph(const Autograd *autograd);

/* dL/dtensor, complete when the rule of its producer runs; NULL if nothing flows into it. */
Tensor *autograd_gradient(Autograd *autograd, Tensor *tensor);

/* Of all forward nodes, does only this one read the tensor, and no node any part of it through a view? */
bool autograd_is_only_reader(const Autograd *autograd, const Node *node, Tensor *tensor);

/* Record a node whose outputs are the gradients of `targets`; a NULL target, or one that needs no gradient,
 * becomes a NULL output that the kernel skips. Returns the node, NULL when no target was left. */
Node *autograd_record(Autograd *autograd, const Op *op, const void *attributes, size_t attributes_bytes,
                      int n_inputs, Tensor *const *inputs, int n_targets, Tensor *const *targets);

/* dL/dtensor is exactly `gradient`, an existing tensor: no node needed (residual additions, fused losses). */
void autograd_share(Autograd *autograd, Tensor *tensor, Tensor *gradient);

#endif
