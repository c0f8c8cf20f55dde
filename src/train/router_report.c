#include "train/router_report.h"

#include "parallel/comm_ops.h"

#include <math.h>
#include <stdio.h>

/* The reports are summed in a copy: a rank adds up those of its micro-batches. */
RouterTensors router_report_record(const ModelConfig *config, const GptLoss *loss, Comm *sums, Tensor *factor,
                                   Graph *graph) {
    if (!loss->reports) return (RouterTensors){0};
    Section section = graph->section; /* an update that is checked later ends in another one */
    graph->section = SECTION_UPDATE;
    Tensor *total = loss->reports;
    if (sums && sums->size > 1) {
        total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, total->shape, "router reports, all ranks'");
        op_copy_into(graph, loss->reports, total, WRITE_FRESH);
        op_comm_wait(graph, op_all_reduce(graph, sums, total));
    }
    if (loss->parameters.router_bias && config->bias_rate > 0.0)
        op_route_bias(graph, total, factor, loss->parameters.router_bias, (float)config->bias_rate);
    Tensor *summary = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(N_ROUTE_SUMMARY), "router summary");
    op_route_summary(graph, total, summary, (int)config->n_experts);
    graph->section = section;
    return (RouterTensors){total, summary};
}

/* All ranks of a stage have the same; the busiest is of one stage. */
static Status over_stages(const Mesh *mesh, double *numbers, Error *error) {
    if (!mesh || mesh->shape.size[AXIS_PP] == 1) return STATUS_OK;
    Comm *stages = (Comm *)&mesh->axis[AXIS_PP];
    double busiest = numbers[SUMMARY_BUSIEST];
    TRY(comm_all_reduce(stages, &busiest, 1, COMM_F64, COMM_MAX, error));
    TRY(comm_all_reduce(stages, numbers, N_ROUTE_SUMMARY, COMM_F64, COMM_SUM, error));
    numbers[SUMMARY_BUSIEST] = busiest;
    return STATUS_OK;
}

Status router_report_read(const ModelConfig *config, const Mesh *mesh, int64_t batch, const double *summary,
                          RouterReport *report, Error *error) {
    double numbers[N_ROUTE_SUMMARY];
    for (int i = 0; i < N_ROUTE_SUMMARY; i++) numbers[i] = summary[i];
    TRY(over_stages(mesh, numbers, error));
    double n_tokens = fmax(numbers[ROUTE_TOKENS], 1.0), n_blocks = fmax(numbers[SUMMARY_BLOCKS], 1.0);
    double n_wishes = config->router == ROUTER_EXPERT_CHOICE ? n_tokens : n_tokens * (double)config->n_chosen;
    double n_mean = n_tokens / n_blocks; /* tokens of the batch */
    *report = (RouterReport){.is_there = true,
                             .z_loss = config->z_loss * numbers[ROUTE_Z] / n_mean,
                             .dropped = numbers[ROUTE_DROPPED] / n_wishes,
                             .busiest = numbers[SUMMARY_BUSIEST],
                             .entropy = numbers[ROUTE_ENTROPY] / n_tokens,
                             .n_empty = (int64_t)numbers[SUMMARY_EMPTY],
                             .n_all = (int64_t)n_blocks * config->n_experts,
                             .n_tokens = (int64_t)numbers[ROUTE_TOKENS]};
    report->balance_loss = config->balance_loss * numbers[ROUTE_BALANCE] / (double)batch;
    return STATUS_OK;
}

/* Does one expert get nearly everything? Where a token has several of few experts, one that all of them have
 * is no trouble, and of a single token it says nothing. */
static bool is_one(const ModelConfig *config, const RouterReport *report) {
    double most = (double)config->n_experts / (double)config->n_chosen; /* where every token wants the same */
    if (report->n_tokens * config->n_experts < 2 * report->n_all) return false;
    if (most > 2.0) return report->busiest > 0.8 * most;
    return config->n_chosen == 1 && config->n_experts > 1 && report->busiest > 0.95 * most;
}

/* Does half of the experts get nothing, of those that could: a step with fewer choices than experts leaves
 * some without, however well it chooses? */
static bool are_few(const ModelConfig *config, const RouterReport *report) {
    int64_t n_choices = report->n_tokens * config->n_chosen; /* of all blocks, as n_all */
    int64_t n_possible = n_choices < report->n_all ? n_choices : report->n_all;
    return config->n_experts > 2 && 2 * (report->n_all - report->n_empty) <= n_possible;
}

static const char *advice_for(const ModelConfig *config) {
    switch (config->router) {
    case ROUTER_BALANCE_FREE: return "raise --bias-rate, lower --lr, or take --router expert-choice";
    case ROUTER_EXPERT_CHOICE: return "raise --expert-capacity, lower --lr, or take --router balance-free";
    default: break;
    }
    return config->balance_loss > 0.0 ? "raise --balance-loss or --z-loss, lower --lr, or take --router "
                                        "balance-free or expert-choice"
                                      : "give --balance-loss 0.01, lower --lr, or take --router balance-free "
                                        "or expert-choice";
}

bool router_report_is_bad(const ModelConfig *config, const RouterReport *report, char *text, size_t n_bytes) {
    if (!report->is_there || !(is_one(config, report) || are_few(config, report) || report->dropped > 0.5))
        return false;
    snprintf(
        text, n_bytes,
        "the router has collapsed: the busiest expert has %.1f times its share, %lld of %lld experts got "
        "nothing, %.0f %% of the choices were dropped; %s%s",
        report->busiest, (long long)report->n_empty, (long long)report->n_all, 100.0 * report->dropped,
        config->expert_capacity > 0.0 && config->router != ROUTER_EXPERT_CHOICE ? "raise --expert-capacity, "
                                                                                : "",
        advice_for(config));
    return true;
}
