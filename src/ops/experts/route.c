/* route: which experts a token goes to, and how much of each. What each router does is in route_rules.c.
 *
 * Choices are whole numbers and have no gradient; the gates have. The backward works out a token's wishes
 * once more rather than keeping them, and adds the gradients of the two losses that only routers have: so
 * they cost nothing but this, and are nowhere in the program as numbers (op_route_report says how large they
 * are). */
#include "ops/experts/experts.h"

#include "ops/experts/route_rules.h"
#include "ops/reference.h"

#include <stdio.h>

int route_n_slots(const RouteAttributes *attributes) {
    return attributes->kind == ROUTER_EXPERT_CHOICE ? attributes->n_experts : attributes->n_chosen;
}

int64_t route_n_rows(const RouteAttributes *attributes, int64_t n_tokens) {
    int64_t all = n_tokens * route_n_slots(attributes);
    int64_t bounded = attributes->n_groups * attributes->n_experts * attributes->capacity;
    return attributes->capacity && bounded < all ? bounded : all;
}

static bool check_route(Graph *graph, const Tensor *logits, const Tensor *noise, const Tensor *bias,
                        const Tensor *random, const RouteAttributes *a) {
    int64_t N = shape_rows(logits->shape), E = a->n_experts;
    return graph_check(graph,
                       E >= 1 && E <= ROUTE_MAX_EXPERTS && a->n_chosen >= 1 && a->n_chosen <= E &&
                           a->n_chosen <= ROUTE_MAX_CHOSEN,
                       "route: %d of %lld experts for %s cannot be", a->n_chosen, (long long)E,
                       logits->name) &&
           graph_check(graph, logits->dtype == DTYPE_F32 && shape_columns(logits->shape) == E,
                       "route: %s must be f32, one a token and expert", logits->name) &&
           graph_check(graph,
                       !noise || (noise->dtype == DTYPE_F32 && shape_equal(noise->shape, logits->shape)),
                       "route: the noise of %s has another shape", logits->name) &&
           graph_check(graph, a->kind != ROUTER_NOISY_TOPK || noise, "route: %s has no noise",
                       logits->name) &&
           graph_check(graph,
                       (a->kind != ROUTER_BALANCE_FREE || bias) &&
                           (!bias || (bias->dtype == DTYPE_F32 && tensor_count(bias) == E)),
                       "route: %s wants a bias of one f32 number an expert", logits->name) &&
           graph_check(graph,
                       !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                       "route: random input of %s must be %d i32 words", logits->name, N_RANDOM_WORDS) &&
           graph_check(graph, a->n_groups >= 0 && (a->n_groups ? N % a->n_groups == 0 : N == 0),
                       "route: %lld tokens of %s are not %lld whole sequences", (long long)N, logits->name,
                       (long long)a->n_groups) &&
           graph_check(graph, a->capacity > 0 || a->kind != ROUTER_EXPERT_CHOICE,
                       "route: experts that choose from %s want a capacity", logits->name);
}

Routes op_route(Graph *graph, Tensor *logits, Tensor *noise, Tensor *bias, Tensor *random, Tensor *scale,
                const RouteAttributes *attributes) {
    if (!check_route(graph, logits, noise, bias, random, attributes))
        return (Routes){graph->nothing, graph->nothing};
    Shape shape = SHAPE(shape_rows(logits->shape), route_n_slots(attributes));
    const char *name = tensor_layer_name(graph, logits);
    Routes routes = {
        .gates = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, shape, "%s.gates", name),
        .choice = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, shape, "%s.choice", name),
    };
    graph_record(graph, &OP_ROUTE, attributes, sizeof *attributes, 5,
                 TENSORS(logits, noise, bias, random, scale), 2, TENSORS(routes.gates, routes.choice));
    routes.choice->needs_gradient = false;
    return routes;
}

/* Also where nothing flows into the gates, as on a rank that has no channels of the experts: all ranks have a
 * gradient of the logits, be it 0, and sum it up. */
static void route_gradient(Autograd *autograd, const Node *node) {
    Tensor *const *in = node->input;
    autograd_record(autograd, &OP_ROUTE_BACKWARD, node->attributes, sizeof(RouteAttributes), 7,
                    TENSORS(autograd_gradient(autograd, node->output[0]), in[0], in[1], in[2],
                            node->output[1], in[3], in[4]),
                    2, TENSORS(in[0], in[1]));
}

/* A logit: as a softmax of all takes, and for each wish one comparison. */
static double route_flops(const Node *node) {
    const RouteAttributes *a = node->attributes;
    return (4.0 + (double)a->n_chosen) * (double)tensor_count(node->input[0]);
}

static double backward_flops(const Node *node) {
    const RouteAttributes *a = node->attributes;
    return (12.0 + (double)a->n_chosen) * (double)tensor_count(node->input[1]);
}

static void route_describe(const Node *node, char *text, size_t n_bytes) {
    static const char *const names[N_ROUTERS] = {
        "top %d", "switch, %d", "gshard, %d", "noisy top %d", "balance-free, %d", "expert choice, mean %d"};
    const RouteAttributes *a = node->attributes;
    int n = snprintf(text, n_bytes, names[a->kind], a->n_chosen);
    if (n < 0 || (size_t)n >= n_bytes) return;
    int more = snprintf(text + n, n_bytes - (size_t)n, " of %d experts", a->n_experts);
    if (more > 0 && (size_t)(n += more) < n_bytes && a->capacity)
        snprintf(text + n, n_bytes - (size_t)n, ", at most %lld tokens of a sequence",
                 (long long)a->capacity);
}

static RouteInputs inputs_of(const KernelCall *call, int first, int random) {
    const Node *node = call->node;
    return route_inputs(node->attributes, shape_rows(node->input[first]->shape), call->in[first],
                        call->in[first + 1], call->in[first + 2], call->in[random]);
}

static Status route_reference(const KernelCall *call, Error *error) {
    (void)error;
    RouteInputs in = inputs_of(call, 0, 3);
    const RouteAttributes *a = in.a;
    float *gates = call->out[0];    /* (N,S) */
    int32_t *choice = call->out[1]; /* (N,S) */
    int32_t counts[ROUTE_MAX_EXPERTS];
    int S = route_n_slots(a);
    for (int64_t n = 0; n < in.n_tokens; n++) route_token(&in, n, gates + n * S, choice + n * S);
    for (int64_t group = 0; group < a->n_groups; group++) {
        if (a->kind == ROUTER_EXPERT_CHOICE) {
            for (int e = 0; e < a->n_experts; e++) route_take(&in, group, e, gates, choice);
        } else if (a->capacity) {
            route_fill(&in, group, gates, choice, counts);
        }
    }
    return STATUS_OK;
}

const Op OP_ROUTE = {
    .name = "route",
    .gradient = route_gradient,
    .flops = route_flops,
    .describe = route_describe,
    .reference = route_reference,
};

static Status backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    RouteInputs in = inputs_of(call, 1, 5);
    const float *dgates = call->in[0] /* [(N,S)] */, *scale = call->in[6];
    const int32_t *choice = call->in[4]; /* (N,S) */
    float *dlogits = call->out[0] /* (N,E) */, *dnoise = call->out[1];
    float shares[ROUTE_MAX_EXPERTS], row[ROUTE_MAX_EXPERTS], noise_row[ROUTE_MAX_EXPERTS];
    int S = route_n_slots(in.a), E = in.a->n_experts;
    for (int64_t n = 0; n < in.n_tokens; n++) {
        bool is_balanced = in.a->balance_scale != 0.0f;
        if (is_balanced && n % in.T == 0 && n < in.n_there) route_shares(&in, n / in.T, choice, shares);
        route_token_backward(&in, n, dgates ? dgates + n * S : NULL, choice + n * S,
                             is_balanced ? shares : NULL, scale ? *scale : 1.0f, row,
                             dnoise ? noise_row : NULL);
        for (int e = 0; e < E && dlogits; e++) reference_write(&dlogits[n * E + e], row[e], call->add[0]);
        for (int e = 0; e < E && dnoise; e++) reference_write(&dnoise[n * E + e], noise_row[e], call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_ROUTE_BACKWARD = {
    .name = "route_backward",
    .flops = backward_flops,
    .describe = route_describe,
    .reference = backward_reference,
};

/* ---- the report ---- */

void op_route_report(Graph *graph, Tensor *logits, Tensor *noise, Tensor *bias, Tensor *random,
                     const Routes *routes, Tensor *report, bool is_first, const RouteAttributes *attributes) {
    if (!graph_check(
            graph,
            report->dtype == DTYPE_F32 && tensor_count(report) == attributes->n_experts + N_ROUTE_COUNTS,
            "route_report: %s must be f32, one an expert and %d more", report->name, N_ROUTE_COUNTS) ||
        !check_route(graph, logits, noise, bias, random, attributes))
        return;
    Node *node = graph_record(graph, &OP_ROUTE_REPORT, attributes, sizeof *attributes, 5,
                              TENSORS(logits, noise, bias, routes->choice, random), 1, TENSORS(report));
    if (node) node->write[0] = is_first ? WRITE_ADD_AFTER_FIRST : WRITE_ADD;
    report->needs_gradient = false;
}

static double report_flops(const Node *node) {
    return 10.0 * (double)tensor_count(node->input[0]);
}

static Status report_reference(const KernelCall *call, Error *error) {
    RouteInputs in = inputs_of(call, 0, 4);
    const int32_t *choice = call->in[3]; /* (N,S) */
    float *report = call->out[0];        /* (E + N_ROUTE_COUNTS) */
    float shares[ROUTE_MAX_EXPERTS];
    double of_group[ROUTE_MAX_EXPERTS + N_ROUTE_COUNTS];
    int n = in.a->n_experts + N_ROUTE_COUNTS;
    double *sums = reference_sums(n, error);
    if (!sums) return error->status;
    for (int64_t group = 0; group < in.a->n_groups; group++) {
        route_count_group(&in, group, choice, shares, of_group);
        for (int i = 0; i < n; i++) sums[i] += of_group[i];
    }
    for (int i = 0; i < n; i++) reference_write(&report[i], (float)sums[i], call->add[0]);
    free(sums);
    return STATUS_OK;
}

const Op OP_ROUTE_REPORT = {
    .name = "route_report",
    .flops = report_flops,
    .reference = report_reference,
};
