/* What every branch of a block is made of: the way into layers that ranks share and out of them, norms,
 * linear layers, the residual stream.
 *
 * Where the layers are split among ranks, every branch is entered and left by communication: `enter` in front
 * of a layer that is split by columns, `leave` behind one that is split by rows. What is added once to the
 * sum that `leave` makes (a bias, the positions) is the first rank's. With --tp-style row each linear layer
 * is split for itself, by rows (inputs), and its sum makes everything behind it whole on every rank again. */
#include "model/gpt_writer.h"

/* NULL if the model has none, or this rank. */
Tensor *layer_parameter(const GptWriter *r, ParameterRole role, int block) {
    Tensor *tensor = parameter_tensor(&r->parameters, role, block);
    return tensor && tensor_count(tensor) > 0 ? tensor : NULL;
}

bool writer_is_split(const GptWriter *r) {
    return r->split.tp && r->split.tp->size > 1;
}

/* Every linear layer for itself, by its inputs: all else is whole on every rank. */
bool writer_is_split_by_inputs(const GptWriter *r) {
    return writer_is_split(r) && r->split.style == TENSOR_ROW;
}

bool writer_is_shared(const GptWriter *r) {
    return r->split.cp && r->split.cp->size > 1;
}

ContextRows gpt_rows(const GptSplit *split, int64_t T) {
    if (!split->cp || split->cp->size == 1) return (ContextRows){.n = T};
    return context_rows(split->context, T, split->cp->size, split->cp->rank);
}

/* What this rank has of the model, and of the n_positions of its sequences. */
void writer_set_split(GptWriter *r, const GptSplit *split) {
    r->split = *split;
    int n_ranks = writer_is_split(r) ? split->tp->size : 1, rank = writer_is_split(r) ? split->tp->rank : 0;
    bool by_sequence = writer_is_split(r) && split->by_sequence;
    ContextRows here = gpt_rows(split, r->n_positions);
    r->heads =
        writer_is_split_by_inputs(r) ? shard_heads(r->config, 1, 0) : shard_heads(r->config, n_ranks, rank);
    r->T = here.n;
    r->positions = here.positions;
    if (!by_sequence && !writer_is_shared(r)) return;
    int64_t head = here.positions.skip ? here.positions.head : r->T;
    r->rows = (RowSplit){.first = by_sequence ? shard_span(r->B * r->T, n_ranks, rank).first : 0,
                         .length = r->T,
                         .head = head,
                         .start = {here.positions.start, here.positions.start + head + here.positions.skip}};
}

/* In front of layers that the ranks share: all rows of x, on every rank. */
ParallelFlight layer_enter(GptWriter *r, Tensor *x) {
    Graph *graph = r->graph;
    Comm *tp = r->split.tp;
    if (!writer_is_split(r)) return (ParallelFlight){.y = x};
    if (r->split.by_sequence)
        return op_parallel_start_all_gather(graph, tp, x, SHAPE(r->B, r->T, r->config->n_channels), NULL);
    return r->split.n_parts > 1 ? op_parallel_start_copy(graph, tp, x)
                                : (ParallelFlight){.y = op_parallel_copy(graph, tp, x)};
}

/* Behind them: the sum of what the ranks have made of x; all of it, or this rank's rows. */
ParallelFlight layer_leave(GptWriter *r, Tensor *x) {
    if (!writer_is_split(r)) return (ParallelFlight){.y = x};
    return r->split.by_sequence ? op_parallel_start_reduce_scatter(r->graph, r->split.tp, x, NULL)
                                : op_parallel_start_sum(r->graph, r->split.tp, x);
}

Tensor *layer_dropout(GptWriter *r, Tensor *x, int site) {
    if (!r->random) return x;
    DropoutAttributes attributes = {(float)r->config->dropout, site, r->rows};
    return op_dropout_split(r->graph, x, r->random, &attributes);
}

Tensor *layer_norm(GptWriter *r, GptStream *x, ParameterRole weight, ParameterRole bias, int block) {
    bool has_mean = r->config->norm != NORM_RMSNORM;
    Tensor *w = layer_parameter(r, weight, block), *b = has_mean ? layer_parameter(r, bias, block) : NULL;
    if (x->branch) {
        ResidualNormAttributes attributes = {.epsilon = NORM_EPSILON,
                                             .has_mean = has_mean,
                                             .probability = (float)r->config->dropout,
                                             .site = x->site,
                                             .rows = r->rows};
        ResidualNorm both = op_residual_norm(r->graph, x->sum, x->branch, w, b, r->random, &attributes);
        *x = (GptStream){.sum = both.sum};
        return both.normed;
    }
    return has_mean ? op_layernorm(r->graph, x->sum, w, b, NORM_EPSILON)
                    : op_rmsnorm(r->graph, x->sum, w, NORM_EPSILON);
}

/* In front of a branch, and behind it: where layers are split by inputs, each sees to itself. */
ParallelFlight layer_enter_branch(GptWriter *r, Tensor *x) {
    if (writer_is_split_by_inputs(r)) return (ParallelFlight){.y = x};
    return layer_enter(r, x);
}

ParallelFlight layer_leave_branch(GptWriter *r, Tensor *x) {
    if (writer_is_split_by_inputs(r)) return (ParallelFlight){.y = x};
    return layer_leave(r, x);
}

/* This rank's columns of x (B,T,C), which all ranks have whole: (B,T,n). Its gradient is gathered. */
static Tensor *record_columns(GptWriter *r, Tensor *x, ShardSpan *span) {
    Graph *graph = r->graph;
    int n_ranks = r->split.tp->size;
    int64_t columns = shape_columns(x->shape), rows = shape_rows(x->shape), border[PACK_MAX_PARTS + 1];
    if (!graph_check(graph, n_ranks <= PACK_MAX_PARTS, "columns: more than %d ranks", PACK_MAX_PARTS))
        return graph->nothing;
    int64_t *element = ARENA_ARRAY(&graph->arena, int64_t, n_ranks + 1);
    for (int rank = 0; rank <= n_ranks; rank++) {
        border[rank] = rank < n_ranks ? shard_span(columns, n_ranks, rank).first : columns;
        element[rank] = rows * border[rank];
    }
    *span = shard_span(columns, n_ranks, r->split.tp->rank);
    Tensor *packed = op_pack(graph, x, x->shape.n_dims - 1, n_ranks, border);
    Tensor *mine = op_parallel_split(graph, r->split.tp, packed, element);
    const char *name = arena_printf(&graph->arena, "%s.columns", x->name);
    return graph_view(graph, mine, SHAPE(r->B, r->T, span->n), 0, name);
}

/* W · x, split by inputs: the product of this rank's columns of both, summed over the ranks. */
static Tensor *record_input_linear(GptWriter *r, Tensor *x, ParameterRole weight, ParameterRole bias,
                                   Activation activation, int block) {
    Graph *graph = r->graph;
    ShardSpan span = {0};
    int64_t n_outputs = parameter_find(r->parameters.table, weight, block)->whole.dim[0];
    Tensor *columns = record_columns(r, x, &span);
    Tensor *part = span.n ? op_linear(graph, columns, layer_parameter(r, weight, block),
                                      layer_parameter(r, bias, block), NULL, ACTIVATION_NONE)
                          : op_blank(graph, columns, SHAPE(r->B, r->T, n_outputs));
    Tensor *y = op_parallel_sum(graph, r->split.tp, part);
    return activation == ACTIVATION_NONE ? y : op_gelu(graph, y, activation);
}

/* The first layer of a pair, from what this rank has of it. */
Tensor *layer_linear(GptWriter *r, Tensor *x, ParameterRole weight, ParameterRole bias, Activation activation,
                     int block) {
    if (writer_is_split_by_inputs(r)) return record_input_linear(r, x, weight, bias, activation, block);
    return op_linear(r->graph, x, layer_parameter(r, weight, block), layer_parameter(r, bias, block), NULL,
                     activation);
}

/* W · branch, from what this rank has of both; NULL: nothing, of what it has entered. */
Tensor *layer_projection(GptWriter *r, Tensor *branch, Tensor *entered, ParameterRole weight,
                         ParameterRole bias, Tensor *residual, int block) {
    if (writer_is_split_by_inputs(r))
        return record_input_linear(r, branch, weight, bias, ACTIVATION_NONE, block);
    if (!branch) return op_blank(r->graph, entered, SHAPE(r->B, r->T, r->config->n_channels));
    return op_linear(r->graph, branch, layer_parameter(r, weight, block), layer_parameter(r, bias, block),
                     residual, ACTIVATION_NONE);
}

/* Is the residual addition part of the linear layer? */
bool writer_is_fused(const GptWriter *r) {
    return !r->random && !writer_is_split(r);
}

/* x + dropout(y), y being what a branch has made. */
void layer_residual(GptWriter *r, GptStream *x, Tensor *y, int block, int site) {
    if (r->random) {
        x->branch = y;
        x->site = layer_dropout_site(block, site);
    } else if (writer_is_fused(r)) {
        x->sum = y;
    } else {
        x->sum = op_add(r->graph, x->sum, y);
        x->sum->name =
            arena_printf(&r->graph->arena, "h.%d.stream%d", block, site); /* not of all that it sums */
    }
}

/* What is forgotten block by block is made again from what crosses the border between blocks: that is to be
 * one tensor. */
void layer_border(GptWriter *r, GptStream *x) {
    if (!x->branch) return;
    *x = (GptStream){.sum = op_add(r->graph, x->sum, layer_dropout(r, x->branch, x->site))};
}

/* The tokens of the vocabulary that this rank has rows of, in either table. */
ShardSpan writer_token_span(const GptWriter *r) {
    const Parameter *table = parameter_find(r->parameters.table, ROLE_TOKEN_TABLE, NO_BLOCK);
    if (!table) table = parameter_find(r->parameters.table, ROLE_HEAD_WEIGHT, NO_BLOCK);
    if (!table->shard.n_boxes) return (ShardSpan){0};
    return (ShardSpan){table->shard.box[0].box.offset[0], table->shard.box[0].box.shape.dim[0]};
}
