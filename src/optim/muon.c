/* Muon: the matrices of blocks move by their momentum made orthogonal (ops/update/muon.c); everything else,
 * tables of tokens and positions, the head, norms, biases and routers, by AdamW. */
#include "ops/update/muon.h"
#include "ops/update/adamw.h"
#include "optim/optimizer.h"

#include <math.h>

const char *const muon_scale_names[] = {"adamw", "spectral", NULL};

/* The second is AdamW's. */
static int n_moments(const OptimizerOptions *options) {
    (void)options;
    return 2;
}

static Status check(const OptimizerOptions *options, Error *error) {
    if (options->eager)
        return error_user(error,
                          "--eager-update updates a parameter where its gradient is made, and --optimizer "
                          "muon would make every matrix orthogonal there; leave it out");
    return STATUS_OK;
}

static void hyper(const OptimizerOptions *options, int64_t step, float *numbers) {
    double t = (double)step + 1.0;
    numbers[HYPER_CORRECTION1] = (float)(1.0 / (1.0 - pow(options->muon.beta1, t)));
    numbers[HYPER_CORRECTION2] = (float)(1.0 / (1.0 - pow(options->muon.beta2, t)));
}

static void record(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Graph *graph) {
    AdamwAttributes attributes = {.elements = *elements,
                                  .beta1 = (float)options->muon.beta1,
                                  .beta2 = (float)options->muon.beta2,
                                  .epsilon = (float)options->muon.epsilon,
                                  .weight_decay = (float)options->weight_decay};
    op_adamw(graph, tensors, &attributes);
}

static MuonAttributes attributes_of(const OptimizerOptions *options, const UpdateElements *elements) {
    double factor =
        options->muon.rate > 0.0 && options->rate > 0.0 ? options->muon.rate / options->rate : 1.0;
    return (MuonAttributes){.elements = *elements,
                            .momentum = (float)options->muon.momentum,
                            .weight_decay = (float)options->weight_decay,
                            .rate_factor = (float)factor,
                            .nesterov = options->muon.nesterov};
}

static void direct(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Tensor *direction, Graph *graph) {
    MuonAttributes attributes = attributes_of(options, elements);
    op_muon_momentum(graph, tensors, direction, &attributes);
}

static void transform(const OptimizerOptions *options, Tensor *from, Tensor *to, int64_t rows,
                      int64_t columns, const MuonRoom *room, Graph *graph) {
    double longer = (double)(rows > columns ? rows : columns), ratio = (double)rows / (double)columns;
    double scale = options->muon.scale == MUON_SCALE_ADAMW ? 0.2 * sqrt(longer) : sqrt(fmax(1.0, ratio));
    muon_orthogonalise(graph, from, to, rows, columns, (float)scale, room);
}

static void move(const OptimizerOptions *options, const UpdateTensors *tensors,
                 const UpdateElements *elements, Tensor *step, Graph *graph) {
    MuonAttributes attributes = attributes_of(options, elements);
    op_muon(graph, tensors, step, &attributes);
}

static bool suspect(const OptimizerOptions *options, OptimizerSuspect *found) {
    *found = (OptimizerSuspect){.option = "muon-epsilon", .value = options->muon.epsilon, .usual = "1e-8"};
    return options->muon.epsilon < 1e-12;
}

static const MatrixUpdate matrices = {.direct = direct, .transform = transform, .move = move};

const Optimizer optimizer_muon = {
    .op = &OP_ADAMW,
    .n_moments = n_moments,
    .check = check,
    .hyper = hyper,
    .record = record,
    .matrices = &matrices,
    .suspect = suspect,
};
