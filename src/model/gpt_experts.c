/* A mixture of experts in the place of a block's MLP.
 *
 *     logits = W_router · h                                                (B·T,E), f32
 *     gates, choice = route(logits)                                        K experts of each token
 *     y = Σ over a token's experts of gate · W_proj[e] · gelu(W_fc[e] · h)  + the experts that all tokens
 *                                                                           pass
 *
 * Rows are sorted by expert, so that each expert's are one GEMM (ops/experts/experts.h).
 *
 * Tensor parallelism: every rank has all rows, chooses alike, and has some hidden channels of every expert.
 * What its experts make is a part of a sum, and so is all that flows back: of the gates and so of the
 * router's logits, of its weights (SHARD_ALIKE), of h. What is to be counted once, the router's own losses,
 * is the first rank's.
 *
 * Context parallelism: what a token gets depends on its whole sequence, for room in an expert and for the
 * balance loss. So the logits of all positions are put together on every rank, which routes whole sequences
 * and takes its own rows of it. They are E numbers a token, where the token itself is C.
 *
 * Expert parallelism: a rank has some of the experts. Its tokens' rows go to the ranks that have theirs, and
 * come back to be weighed (parallel/expert_exchange.h); the experts that all tokens pass are computed
 * meanwhile. Where all ranks have the same rows (generation), nothing travels but the sum of what their
 * experts make. */
#include "model/gpt_writer.h"
#include "ops/experts/expert_ranks.h"

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
    bool is_whole = r->is_training || !r->places; /* not: rows that go by are among them */
    if (!r->start && is_whole) attributes.capacity = config_capacity(config, r->n_positions);
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

/* On ranks that others report for, zeros, in every step: an evaluation has the same memory for what it
 * keeps. */
static void record_report(GptWriter *r, Tensor *logits, Tensor *noise, Tensor *bias, const Routes *routes,
                          int block, const RouteAttributes *attributes) {
    int64_t n = attributes->n_experts + N_ROUTE_COUNTS;
    if (!r->reports) return;
    Tensor *report =
        graph_view(r->graph, r->reports, SHAPE(n), parameter_router_row(r->parameters.table, block) * n,
                   arena_printf(&r->graph->arena, "h.%d.moe.report", block));
    if (!is_first_of_sequence(r)) op_zero(r->graph, report);
    else
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

/* What the experts here make of rows that are sorted by them. */
static Tensor *record_rows(GptWriter *r, Tensor *rows, Tensor *offsets, int block) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    Graph *graph = r->graph;
    Tensor *hidden = op_grouped_linear(graph, rows, layer_parameter(r, ROLE_EXPERT_FC_WEIGHT, block),
                                       layer_parameter(r, ROLE_EXPERT_FC_BIAS, block), offsets,
                                       activations[r->config->mlp]);
    if (r->config->mlp == MLP_SWIGLU) hidden = op_swiglu(graph, hidden);
    return op_grouped_linear(graph, hidden, layer_parameter(r, ROLE_EXPERT_PROJ_WEIGHT, block),
                             layer_parameter(r, ROLE_EXPERT_PROJ_BIAS, block), offsets, ACTIVATION_NONE);
}

/* Are the experts divided among ranks, which send each other rows? */
static bool exchanges_rows(const GptWriter *r) {
    return r->split.ep && r->split.ep->size > 1 && !r->split.has_same_rows;
}

/* What this rank's channels of the experts make of h (B,T,C). Of experts that are divided among
 * ranks with the same rows, each makes those that it has. */
static Tensor *record_experts(GptWriter *r, Tensor *h, const Routes *routes, int block,
                              const RouteAttributes *attributes) {
    Graph *graph = r->graph;
    Comm *ep = r->split.ep;
    ExpertSpan span = expert_span(attributes->n_experts, ep ? ep->size : 1, ep ? ep->rank : 0);
    Tensor *choice = ep ? op_experts_here(graph, routes->choice, span.first, span.n) : routes->choice;
    ExpertOrder order = op_expert_sort(graph, choice, span.n, route_n_rows(attributes, r->B * r->T));
    Tensor *made = record_rows(r, op_expert_gather(graph, h, &order), order.offsets, block);
    return op_parallel_sum(graph, ep, op_expert_scatter(graph, made, routes->gates, &order, h->shape));
}

/* ---- where rows go to their experts and come back */

bool layer_exchanges_experts(const GptWriter *r, int block) {
    return config_has_experts(r->config, block) && exchanges_rows(r) &&
           layer_parameter(r, ROLE_EXPERT_FC_WEIGHT, block);
}

/* Where other layers are split by their inputs, what lies between them is whole on every rank: experts see to
 * their own way in and out. */
static Tensor *enter_experts(GptWriter *r, Tensor *h) {
    return writer_is_split_by_inputs(r) ? op_parallel_copy(r->graph, r->split.tp, h) : h;
}

/* How many rows come is asked for while those that go are gathered. */
void layer_experts_begin(GptWriter *r, GptExperts *experts, Tensor *h, int block) {
    Graph *graph = r->graph;
    RouteAttributes attributes = attributes_of(r, block);
    int64_t n_tokens = r->B * r->T, n_wishes = n_tokens * attributes.n_chosen;
    ExpertRows sizes = {.n_tokens = n_tokens, .n_slots = route_n_slots(&attributes)};
    sizes.n_rows = route_n_rows(&attributes, n_tokens);
    sizes.n_expected = n_wishes < sizes.n_rows ? n_wishes : sizes.n_rows;
    *experts = (GptExperts){.is_under_way = true, .entered = h};
    Tensor *own = enter_experts(r, h);
    experts->routes = record_routes(r, own, block, &attributes);
    experts->order = op_expert_sort(graph, experts->routes.choice, attributes.n_experts, sizes.n_rows);
    experts->exchange =
        op_expert_start_meeting(graph, r->split.ep, experts->order.offsets, attributes.n_experts, &sizes);
    Tensor *rows = op_expert_gather(graph, own, &experts->order);
    op_expert_finish_meeting(graph, &experts->exchange);
    experts->going = op_expert_start_dispatch(graph, &experts->exchange, rows);
}

/* The experts that all tokens pass are computed while rows travel, but for their last layer: that adds what
 * comes back, as it does on one rank, so that the numbers are the same to the bit. */
static void make_experts(GptWriter *r, GptExperts *experts, int block) {
    Graph *graph = r->graph;
    bool has_shared = r->config->n_shared_experts > 0 && !writer_is_split_by_inputs(r);
    experts->shared = has_shared ? layer_mlp(r, experts->entered, block) : NULL;
    Tensor *here = op_parallel_finish(graph, &experts->going);
    Tensor *made = record_rows(r, here, experts->exchange.here, block);
    experts->coming = op_expert_start_combine(graph, &experts->exchange, made);
}

/* y, and what the experts make that all tokens pass: `shared` so far, or NULL. */
static Tensor *leave_experts(GptWriter *r, Tensor *h, Tensor *shared, Tensor *y, int block) {
    if (!writer_is_split_by_inputs(r))
        return shared ? layer_projection(r, shared, h, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, y, block) : y;
    y = op_parallel_sum(r->graph, r->split.tp, y);
    if (!r->config->n_shared_experts) return y;
    shared = layer_mlp(r, h, block);
    return op_add(r->graph, y, layer_projection(r, shared, h, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, NULL, block));
}

Tensor *layer_experts_end(GptWriter *r, GptExperts *experts, int block) {
    Tensor *back = op_parallel_finish(r->graph, &experts->coming), *h = experts->entered;
    Tensor *y = op_expert_scatter(r->graph, back, experts->routes.gates, &experts->order, h->shape);
    experts->is_under_way = false;
    return leave_experts(r, h, experts->shared, y, block);
}

/* ---- and where they do not */

Tensor *layer_experts(GptWriter *r, GptExperts *experts, Tensor *h, int block) {
    if (layer_exchanges_experts(r, block)) {
        if (!experts->is_under_way) layer_experts_begin(r, experts, h, block);
        make_experts(r, experts, block);
        return NULL;
    }
    Tensor *own = enter_experts(r, h), *y;
    RouteAttributes attributes = attributes_of(r, block);
    Routes routes = record_routes(r, own, block, &attributes);
    if (!layer_parameter(r, ROLE_EXPERT_FC_WEIGHT, block)) y = op_blank(r->graph, own, own->shape);
    else y = record_experts(r, own, &routes, block, &attributes);
    bool adds_shared = r->config->n_shared_experts > 0 && !writer_is_split_by_inputs(r);
    return leave_experts(r, h, adds_shared ? layer_mlp(r, h, block) : NULL, y, block);
}

Tensor *gpt_record_reports(const ModelConfig *config, const ParameterTable *table, Graph *graph) {
    int64_t n_blocks = parameter_router_row(table, (int)config->n_layers);
    if (!n_blocks) return NULL;
    return graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n_blocks, config->n_experts + N_ROUTE_COUNTS),
                        "router reports");
}
