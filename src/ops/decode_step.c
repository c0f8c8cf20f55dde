/* A node has few inputs, a model many weights. They are all parts of one flat tensor, and so are the caches;
 * the node names those two, and its attributes say where in them each part lies. */
#include "ops/decode_step.h"

#include "ops/reference.h"

#include <stdio.h>

static const DecodeStepAttributes *step_of(const Node *node) {
    return node->attributes;
}

static double step_flops(const Node *node) {
    double flops = 0.0;
    for (int i = 0; i < step_of(node)->n_parts; i++) flops += op_cost(step_of(node)->parts[i]).flops;
    return flops;
}

/* Weights that are read whole, the rows of the tables, the caches at their fullest, and the logits. */
static double step_bytes(const Node *node) {
    double bytes = (double)tensor_bytes(node->output[DECODE_LOGITS]);
    const Tensor *parameters = node->input[DECODE_PARAMETERS];
    for (int i = 0; i < step_of(node)->n_parts; i++) {
        const Node *part = step_of(node)->parts[i];
        if (part->op == &OP_EMBEDDING) bytes += (double)tensor_bytes(part->output[0]);
        if (part->op == &OP_ATTENTION_CACHED)
            bytes += (double)tensor_bytes(part->output[1]) + (double)tensor_bytes(part->output[2]);
        for (int k = 0; k < part->n_inputs && part->op != &OP_EMBEDDING; k++) {
            Tensor *input = part->input[k];
            if (input && tensor_root(input) == parameters) bytes += (double)tensor_bytes(input);
        }
    }
    return bytes;
}

static void step_describe(const Node *node, char *text, size_t n_bytes) {
    const DecodeStepAttributes *step = step_of(node);
    snprintf(text, n_bytes, "%d instructions as one: %d blocks of %d heads", step->n_parts, step->n_blocks,
             step->attention.n_heads);
}

/* ---- the reference: its parts, with memory for what is between them */

typedef struct {
    const KernelCall *call;
    float **memory; /* by tensor id: of the roots that are between */
} Parts;

static void *address(const Parts *parts, Tensor *tensor) {
    if (!tensor) return NULL;
    const Node *node = parts->call->node;
    Tensor *root = tensor_root(tensor);
    size_t offset =
        (size_t)tensor_root_element(tensor) * sizeof(float); /* of 4 bytes all, in a reference kernel */
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->input[i] == root) return (char *)parts->call->in[i] + offset;
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (node->output[i] == root) return (char *)parts->call->out[i] + offset;
    }
    return (char *)parts->memory[root->id] + offset;
}

static Status run_part(const Parts *parts, const Node *node, Error *error) {
    KernelCall call = {.node = node, .n_threads = 1};
    for (int i = 0; i < node->n_inputs; i++) call.in[i] = address(parts, node->input[i]);
    for (int i = 0; i < node->n_outputs; i++) call.out[i] = address(parts, node->output[i]);
    return node->op->reference(&call, error);
}

static int most_ids(const DecodeStepAttributes *step) {
    int most = 0;
    for (int i = 0; i < step->n_parts; i++) {
        for (int k = 0; k < step->parts[i]->n_outputs; k++) {
            const Tensor *output = step->parts[i]->output[k];
            if (output && output->id > most) most = output->id;
        }
    }
    return most + 1;
}

static Status step_reference(const KernelCall *call, Error *error) {
    const DecodeStepAttributes *step = step_of(call->node);
    Arena arena = {0}; /* one token's activations are small */
    Parts parts = {call, ARENA_ARRAY(&arena, float *, most_ids(step))};
    for (int i = 0; i < step->n_parts && error->status == STATUS_OK; i++) {
        const Node *node = step->parts[i];
        for (int k = 0; k < node->n_outputs; k++) {
            Tensor *output = node->output[k];
            if (!output || tensor_root(output)->place != PLACE_ACTIVATION || parts.memory[output->id])
                continue;
            parts.memory[output->id] = ARENA_ARRAY(&arena, float, tensor_count(output) + 1);
        }
        run_part(&parts, node, error);
    }
    arena_free(&arena);
    return error->status;
}

const Op OP_DECODE_STEP = {
    .name = "decode_step",
    .flops = step_flops,
    .bytes = step_bytes,
    .describe = step_describe,
    .reference = step_reference,
    .is_shortcut = true,
};
