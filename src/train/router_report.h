/* What a step's routers did, of all blocks with experts and all ranks: the numbers that tell whether a
 * mixture of experts is one. They are never off. */
#ifndef PGPT_TRAIN_ROUTER_REPORT_H
#define PGPT_TRAIN_ROUTER_REPORT_H

#include "model/gpt.h"
#include "ops/experts/experts.h"
#include "parallel/mesh.h"

typedef struct {
    bool is_there;       /* else the model has no experts, and the rest says nothing */
    double balance_loss; /* as they are added to the loss in the gradient, with their weights: */
    double z_loss;
    double dropped; /* share of wishes that found no room; of expert-choice, of tokens that no expert took */
    double busiest; /* choices of the busiest expert of any block, in units of the mean of its block */
    double entropy; /* of a token's probabilities over experts, in nats: log E at first, 0 where it is sure */
    int64_t n_empty;  /* experts that got nothing, */
    int64_t n_all;    /* of so many: all blocks' */
    int64_t n_tokens; /* routed: of all blocks */
} RouterReport;

typedef struct {
    Tensor *totals;  /* (blocks with experts here, E + N_ROUTE_COUNTS): reports, summed over all ranks */
    Tensor *summary; /* (N_ROUTE_SUMMARY) of them: what the host reads after every step */
} RouterTensors;

/* At the end of a step's program: sums over the ranks that have other tokens (`sums`, NULL: none), biases
 * moved by load, and the summary. {0}: there are no experts. `factor`: see op_route_bias. */
RouterTensors router_report_record(const ModelConfig *config, const GptLoss *loss, Comm *sums, Tensor *factor,
                                   Graph *graph);

/* From the summaries of all stages along pp, of a step of `batch` sequences; `summary` (N_ROUTE_SUMMARY) is 0
 * where a stage has no experts. Collective along pp where there are several. */
Status router_report_read(const ModelConfig *config, const Mesh *mesh, int64_t batch, const double *summary,
                          RouterReport *report, Error *error);

/* Has the router collapsed: do a few experts do all the work? Says in `text` what is the matter and what may
 * help. */
bool router_report_is_bad(const ModelConfig *config, const RouterReport *report, char *text, size_t n_bytes);

#endif
