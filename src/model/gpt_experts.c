/* A mixture of experts in the place of a block's MLP.
 *
 *     logits = W_router · h                                                (B·T,E), f32
 *     gates, choice = route(logits)                                        K experts of each token
 *     y = Σ over a token's experts of gate · W_proj[e] · gelu(W_fc[e] · h)  + the experts that all tokens pass
 *
 * Rows are sorted by expert, so that each expert's are one GEMM (ops/experts/experts.h).
 *
 * Tensor parallelism: every rank has all rows, chooses alike, and has some hidden channels of every expert. What
 * its experts make is a part of a sum, and so is all that flows back: of the gates and so of the router's
 * logits, of its weights (SHARD_ALIKE), of h. What is to be counted once, the router's own losses, is the first
 * rank's.
 *
 * Context parallelism: what a token gets depends on its whole sequence, for room in an expert and for the balance
 * loss. So the logits of all positions are put together on every rank, which routes whole sequences and takes
 * its own rows of it. They are E numbers a token, where the token itself is C. */
#include "model/gpt_writer.h"
#include "ops/experts/experts.h"

/* The router's losses and its report are of one rank of those that compute the same. */
static bool is_first_of_split(const GptWriter *r) {
    return !writer_is_split(r) || r->split.tp->rank == 0;
}

static bool is_first_of_sequence(const GptWriter *r) {
    return !writer_is_shared(r) || r->split.cp->rank == 0;
}

static RouteAttributes attributes_of(const GptWriter *r, int block) {
    const ModelConfig *config = r->config;
    RouteAttributes attributes = {.kind = config->router,
                                  .gate = config->router_gate,
                                  .n_experts = (int)config->n_experts,
                                  .n_chosen = (int)config->n_chosen,
                                  .n_groups = r->B,
                                  .is_training = r->is_training,
                                  .site = block};
    /* A text that is written token by token has no later tokens to compete with: nothing is dropped. */
    if (!r->start) attributes.capacity = config_capacity(config, r->n_positions);
    if (r->is_training && is_first_of_split(r) && is_first_of_sequence(r)) {
        attributes.balance_scale = (float)(config->balance_loss * r->loss_scale * (double)r->n_positions);
        attributes.z_scale = (float)(config->z_loss * r->loss_scale);
    }
    return attributes;
}

/* W · h of all positions, on every rank that has some of them. */
static Tensor *record_logits(GptWriter *r, Tensor *h, ParameterRole role, int block) {
    Graph *graph = r->graph;
    Tensor *logits = op_router_logits(graph, h, layer_parameter(r, role, block));
    if (!writer_is_shared(r)) return logits;
    Tensor *placed = op_place_rows(graph, logits, r->B, r->n_positions, r->positions);
    return op_parallel_copy(graph, r->split.cp, op_parallel_sum(graph, r->split.cp, placed));
}

/* On ranks that others report for, nothing. */
static void record_report(GptWriter *r, Tensor *logits, Tensor *noise, Tensor *bias, const Routes *routes,
                          int block, const RouteAttributes *attributes) {
    int64_t n = attributes->n_experts + N_ROUTE_COUNTS;
    if (!r->reports) return;
    Tensor *report =
        graph_view(r->graph, r->reports, SHAPE(n), parameter_router_row(r->parameters.table, block) * n,
                   arena_printf(&r->graph->arena, "h.%d.moe.report", block));
    if (is_first_of_sequence(r))
        op_route_report(r->graph, logits, noise, bias, r->words, routes, report, r->first_sequence == 0,
                        attributes);
}

/* Which experts this rank's tokens go to. */
static Routes record_routes(GptWriter *r, Tensor *h, int block, const RouteAttributes *attributes) {
    Graph *graph = r->graph;
    const ModelConfig *config = r->config;
    Tensor *logits = record_logits(r, h, ROLE_ROUTER_WEIGHT, block), *noise = NULL, *bias = NULL;
    if (config->router == ROUTER_NOISY_TOPK) noise = record_logits(r, h, ROLE_ROUTER_NOISE, block);
    if (config->router == ROUTER_BALANCE_FREE) bias = parameter_router_bias(&r->parameters, graph, block);
    Routes routes = op_route(graph, logits, noise, bias, r->words, r->scale, attributes);
    record_report(r, logits, noise, bias, &routes, block, attributes);
    if (!writer_is_shared(r)) return routes;
    return (Routes){.gates = op_take_rows(graph, routes.gates, r->B, r->T, r->positions),
                    .choice = op_take_rows(graph, routes.choice, r->B, r->T, r->positions)};
}

/* All of a block's experts as one tensor (E,outputs,inputs), whatever halves its rows have. */
static Tensor *expert_weight(GptWriter *r, ParameterRole role, int block) {
    Tensor *weight = layer_parameter(r, role, block);
    if (!weight || weight->shape.n_dims == 3) return weight;
    const int64_t *dim = weight->shape.dim;
    return graph_view(r->graph, weight, SHAPE(dim[0], dim[1] * dim[2], dim[3]), 0, weight->name);
}

/* What this rank's channels of the experts make of h (B,T,C): (B·T,C). */
static Tensor *record_experts(GptWriter *r, Tensor *h, const Routes *routes, int block,
                              const RouteAttributes *attributes) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    Graph *graph = r->graph;
    ExpertOrder order =
        op_expert_sort(graph, routes->choice, attributes->n_experts, route_n_rows(attributes, r->B * r->T));
    Tensor *rows = op_expert_gather(graph, h, &order);
    Tensor *hidden = op_grouped_linear(graph, rows, expert_weight(r, ROLE_EXPERT_FC_WEIGHT, block),
                                       layer_parameter(r, ROLE_EXPERT_FC_BIAS, block), order.offsets,
                                       activations[r->config->mlp]);
    if (r->config->mlp == MLP_SWIGLU) hidden = op_swiglu(graph, hidden);
    Tensor *made =
        op_grouped_linear(graph, hidden, expert_weight(r, ROLE_EXPERT_PROJ_WEIGHT, block),
                          layer_parameter(r, ROLE_EXPERT_PROJ_BIAS, block), order.offsets, ACTIVATION_NONE);
    return op_expert_scatter(graph, made, routes->gates, &order);
}

Tensor *layer_experts(GptWriter *r, Tensor *h, int block) {
    Graph *graph = r->graph;
    const ModelConfig *config = r->config;
    Shape shape = SHAPE(r->B, r->T, config->n_channels);
    RouteAttributes attributes = attributes_of(r, block);
    Routes routes = record_routes(r, h, block, &attributes);
    Tensor *y = layer_parameter(r, ROLE_EXPERT_FC_WEIGHT, block)
                    ? record_experts(r, h, &routes, block, &attributes)
                    : op_blank(graph, h, SHAPE(r->B * r->T, config->n_channels));
    y = graph_view(graph, y, shape, 0, arena_printf(&graph->arena, "h.%d.moe.out", block));
    Tensor *shared = config->n_shared_experts ? layer_mlp(r, h, block) : NULL;
    return shared ? layer_projection(r, shared, h, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, y, block) : y;
}

Tensor *gpt_record_reports(const ModelConfig *config, const ParameterTable *table, Graph *graph) {
    int64_t n_blocks = parameter_router_row(table, (int)config->n_layers);
    if (!n_blocks) return NULL;
    return graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n_blocks, config->n_experts + N_ROUTE_COUNTS),
                        "router reports");
}
