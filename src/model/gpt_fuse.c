/* Recognising the step: the list of nodes is read from its beginning as a sentence whose grammar is that of
 * the model, with the options that the model has. Whatever does not fit (several sequences, a part that
 * another option brought) leaves the program as it was: both ways compute the same, so nobody has to know
 * which one runs. */
#include "model/gpt_fuse.h"

#include "ops/decode_step.h"

#include <string.h>

typedef struct {
    const Graph *graph;
    int next; /* node to be read */
    bool failed;
    DecodeStepAttributes *step;
    Tensor *parameters, *caches; /* the roots; NULL before one was seen */
    const Tensor *x;             /* the activation that the next node must begin with */
} Reader;

static void require(Reader *reader, bool condition) {
    reader->failed |= !condition;
}

static bool is_next(const Reader *reader, const Op *op) {
    return !reader->failed && reader->next < reader->graph->n_nodes &&
           reader->graph->node[reader->next]->op == op;
}

/* The next node, which must be this operation on x; a harmless one after a failure. */
static const Node *read_node(Reader *reader, const Op *op) {
    static const Node nothing = {0};
    require(reader, is_next(reader, op));
    if (reader->failed) return &nothing;
    const Node *node = reader->graph->node[reader->next++];
    require(reader, !reader->x || node->input[0] == reader->x);
    reader->x = node->output[0];
    return node;
}

static const Tensor *note_root(Reader *reader, Tensor *tensor, Tensor **root, Place place) {
    if (!tensor) return NULL;
    if (!*root) *root = tensor_root(tensor);
    require(reader, tensor_root(tensor) == *root && (*root)->place == place);
    return tensor;
}

static const Tensor *parameter(Reader *reader, Tensor *tensor) {
    return note_root(reader, tensor, &reader->parameters, PLACE_PARAMETER);
}

static void read_norm(Reader *reader, const Tensor **weight, const Tensor **bias) {
    DecodeStepAttributes *step = reader->step;
    bool has_mean = is_next(reader, &OP_LAYERNORM);
    const Node *node = read_node(reader, has_mean ? &OP_LAYERNORM : &OP_RMSNORM);
    if (reader->failed) return;
    float epsilon = ((const NormAttributes *)node->attributes)->epsilon;
    require(reader, step->epsilon == 0.0f || (step->epsilon == epsilon && step->has_mean == has_mean));
    step->has_mean = has_mean;
    step->epsilon = epsilon;
    *weight = parameter(reader, node->input[1]);
    *bias = has_mean ? parameter(reader, node->input[2]) : NULL;
}

/* Returns the activation. `residual` NULL: there must be none. */
static Activation read_linear(Reader *reader, const Tensor *residual, const Tensor **weight,
                              const Tensor **bias) {
    const Node *node = read_node(reader, &OP_LINEAR);
    if (reader->failed) return ACTIVATION_NONE;
    require(reader, node->input[3] == residual);
    *weight = parameter(reader, node->input[1]);
    if (bias) *bias = parameter(reader, node->input[2]);
    else require(reader, !node->input[2]);
    return ((const LinearAttributes *)node->attributes)->activation;
}

static void read_attention(Reader *reader, DecodeBlock *block, const Tensor *start) {
    DecodeStepAttributes *step = reader->step;
    const Tensor *x = reader->x;
    read_norm(reader, &block->norm1_weight, &block->norm1_bias);
    require(reader, read_linear(reader, NULL, &block->qkv_weight, &block->qkv_bias) == ACTIVATION_NONE);
    step->is_rotary = is_next(reader, &OP_ROTARY);
    if (step->is_rotary) {
        const Node *node = read_node(reader, &OP_ROTARY);
        if (reader->failed) return;
        step->rotary = *(const RotaryAttributes *)node->attributes;
        require(reader, node->input[1] == start && !step->rotary.inverse);
    }
    const Node *node = read_node(reader, &OP_ATTENTION_CACHED);
    if (reader->failed) return;
    step->attention = *(const AttentionAttributes *)node->attributes;
    require(reader, node->input[1] == start);
    block->keys = note_root(reader, node->output[1], &reader->caches, PLACE_STATE);
    block->values = note_root(reader, node->output[2], &reader->caches, PLACE_STATE);
    require(reader, read_linear(reader, x, &block->out_weight, &block->out_bias) == ACTIVATION_NONE);
}

static void read_mlp(Reader *reader, DecodeBlock *block) {
    DecodeStepAttributes *step = reader->step;
    const Tensor *x = reader->x;
    read_norm(reader, &block->norm2_weight, &block->norm2_bias);
    step->activation = read_linear(reader, NULL, &block->fc_weight, &block->fc_bias);
    step->is_gated = is_next(reader, &OP_SWIGLU);
    if (step->is_gated) read_node(reader, &OP_SWIGLU);
    require(reader, read_linear(reader, x, &block->proj_weight, &block->proj_bias) == ACTIVATION_NONE);
}

/* Is it followed by another block, or by the norm before the head? A block goes on with attention. */
static bool has_block(const Reader *reader) {
    for (int i = reader->next; !reader->failed && i < reader->graph->n_nodes; i++) {
        if (reader->graph->node[i]->op == &OP_ATTENTION_CACHED) return true;
    }
    return false;
}

static void read_head(Reader *reader) {
    read_norm(reader, &reader->step->final_weight, &reader->step->final_bias);
    const Tensor *x = reader->x;
    reader->x = NULL; /* the head reads a view of x */
    require(reader, read_linear(reader, NULL, &reader->step->head_weight, NULL) == ACTIVATION_NONE);
    if (reader->failed) return;
    Tensor *last = reader->graph->node[reader->next - 1]->input[0];
    require(reader, last == x || last->base == x);
    if (is_next(reader, &OP_COPY)) read_node(reader, &OP_COPY);
}

/* Reads a whole step; the node of its embedding has tokens and start. */
static bool read_step(Reader *reader, Arena *arena) {
    const Node *node = read_node(reader, &OP_EMBEDDING);
    if (reader->failed) return false;
    const Tensor *tokens = node->input[0], *start = node->input[3];
    require(reader, start && tensor_count(tokens) == 1);
    require(reader, ((const EmbeddingAttributes *)node->attributes)->positions.start == 0);
    reader->step->token_table = parameter(reader, node->input[1]);
    reader->step->position_table = parameter(reader, node->input[2]);
    DecodeBlock *blocks = ARENA_ARRAY(arena, DecodeBlock, reader->graph->n_nodes);
    while (has_block(reader)) {
        DecodeBlock *block = &blocks[reader->step->n_blocks++];
        read_attention(reader, block, start);
        read_mlp(reader, block);
    }
    reader->step->blocks = blocks;
    read_head(reader);
    return !reader->failed && reader->caches && reader->x->dtype == DTYPE_F32;
}

bool gpt_fuse_decode(Graph *graph, const Backend *backend) {
    DecodeStepAttributes step = {0};
    Reader reader = {.graph = graph, .step = &step};
    if (graph->error.status != STATUS_OK || !read_step(&reader, &graph->arena)) return false;
    const Node *embedding = graph->node[0];
    int n_behind = graph->n_nodes - reader.next; /* what goes on with the logits */
    step.n_parts = reader.next;
    step.parts = arena_copy(&graph->arena, graph->node, sizeof *graph->node * (size_t)reader.next);
    Tensor *logits = graph->node[reader.next - 1]->output[0];
    Node *node = graph_record(graph, &OP_DECODE_STEP, &step, sizeof step, N_DECODE_INPUTS,
                              TENSORS(embedding->input[0], embedding->input[3], reader.parameters),
                              N_DECODE_OUTPUTS, TENSORS(logits, reader.caches));
    graph->n_nodes--; /* it goes to the front, or nowhere */
    if (!traits_has_kernel(&backend->traits, node)) return false;
    logits->producer = node;
    memmove(graph->node + 1, graph->node + reader.next, sizeof *graph->node * (size_t)n_behind);
    graph->node[0] = node;
    graph->n_nodes = 1 + n_behind;
    return true;
}
