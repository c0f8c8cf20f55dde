/* What is behind a backward as cases: the gradient's norm, its compression, optimizers, parts of tensors. */
#include "op_case_inputs.h"

#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"
#include "ops/compress/lowrank.h"
#include "ops/update/adamw.h"
#include "ops/update/lamb_coefficient.h"
#include "ops/update/muon.h"
#include "ops/update/sgd.h"
#include "optim/optimizer.h"

#include <math.h>

void build_squared_norm(OpCase *test) {
    Tensor *x = case_activation(test, SHAPE(test->spec->size[0]), "x");
    Tensor *total = case_floats(test, PLACE_STATE, SHAPE_SCALAR, "total", 1.0f, 3.0f);
    op_squared_norm(test->graph, x, total, test->spec->flags & CASE_ADD);
}

void build_clip(OpCase *test) {
    Tensor *total = case_floats(test, PLACE_STATE, SHAPE_SCALAR, "total", 1.0f, 3.0f);
    Tensor *factor = case_state(test, SHAPE_SCALAR, "clip_factor"),
           *norm = case_state(test, SHAPE_SCALAR, "norm");
    op_clip(test->graph, total, factor, norm, test->spec->number);
    case_result(test, "factor", factor);
    case_result(test, "norm", norm);
}

/* ---- optimizers: step 3, the first third and the last element decay ---- */

static UpdateElements elements_of(OpCase *test) {
    int64_t count = test->spec->size[0], third = count / 3;
    DecayRun runs[3] = {{third, true}, {count - third - 1, false}, {1, true}};
    return (UpdateElements){.n_runs = 3, .runs = arena_copy(&test->graph->arena, runs, sizeof runs)};
}

static Tensor *hyper_of(OpCase *test) {
    const float hyper[N_HYPER] = {0.02f, (float)(1.0 / (1.0 - pow((double)0.9f, 3.0))),
                                  (float)(1.0 / (1.0 - pow((double)0.95f, 3.0)))};
    return case_literal(test, DTYPE_F32, N_HYPER, "hyper", hyper);
}

static Tensor *factor_of(OpCase *test) {
    const float factor = 0.375f;
    return test->spec->flags & CASE_FACTOR ? case_literal(test, DTYPE_F32, 1, "factor", &factor) : NULL;
}

/* Gradient, parameter, and moments by their names; a second one is positive. */
static UpdateTensors update_of(OpCase *test, Tensor *hyper, int n_moments, const char *const *names) {
    Shape shape = SHAPE(test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    UpdateTensors tensors = {.gradient = case_floats(test, PLACE_GRADIENT, shape, "gradient", 1.0f, 0.0f),
                             .hyper = hyper,
                             .factor = factor_of(test)};
    tensors.parameter = case_floats(test, PLACE_PARAMETER, shape, "parameter", 1.0f, 0.0f);
    for (int i = 0; i < n_moments; i++)
        tensors.moment[i] = case_floats(test, PLACE_OPTIMIZER, shape, names[i], 1.0f, i == 1 ? 1.5f : 0.0f);
    return tensors;
}

static const char *const moment_names[UPDATE_MAX_MOMENTS] = {"moment1", "moment2"};

/* From a gradient through all three operations, for as many ranks as there are slices, all of which send the
 * same of their first slice. */
void build_compress(OpCase *test) {
    Graph *graph = test->graph;
    const int64_t *size = test->spec->size, n = size[0];
    int n_slices = (int)size[2];
    bool is_momentum = size[3];
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, n_slices + 1);
    for (int i = 0; i < n_slices; i++)
        border[i + 1] = i + 1 == n_slices ? n : n / n_slices * (i + 1) / 64 * 64;
    CompressAttributes a = {.codec = {(CodecKind)size[1], 3},
                            .n_slices = n_slices,
                            .border = border,
                            .gain = 0.4f,
                            .keep = is_momentum ? 0.9f : 0.0f,
                            .bound = is_momentum ? 0.7f : 0.0f};
    Tensor *factor = test->spec->flags & CASE_FACTOR
                         ? case_literal(test, DTYPE_F32, 1, "factor", (const float[]){0.5f})
                         : NULL;
    CompressTensors tensors = {.gradient = case_activation(test, SHAPE(n), "gradient"),
                               .momentum = is_momentum ? case_activation(test, SHAPE(n), "momentum") : NULL,
                               .variance =
                                   is_momentum ? case_parameter(test, SHAPE(n), "variance", 4.0f) : NULL,
                               .factor = factor,
                               .error = case_activation(test, SHAPE(n), "error")};
    graph->section = SECTION_UPDATE;
    Tensor *words = op_compress(graph, &tensors, &a);
    CompressAttributes one = a;
    int64_t first = border[1], n_words = codec_words(&a.codec, first);
    one.n_slices = 1;
    one.gain = 0.25f;
    CompressTensors owner = {
        .variance = is_momentum ? graph_view(graph, tensors.variance, SHAPE(first), 0, "variance") : NULL,
        .factor = factor,
        .error = case_activation(test, SHAPE(first), "owner error")};
    Tensor *mine = graph_view(graph, words, SHAPE(n_words), 0, "words");
    Tensor *combined = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(n_words), "combined");
    op_combine(graph, mine, &owner, combined, &one);
    Tensor *numbers = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(n), "numbers");
    op_expand(graph, words, &(CompressTensors){.variance = tensors.variance}, numbers, &a);
}

/* Two matrices, the second of half as many rows, and a few elements between them; then all operations. */
void build_lowrank(OpCase *test) {
    Graph *graph = test->graph;
    const int64_t *size = test->spec->size, rows = size[0], columns = size[1];
    enum { BETWEEN = 5 };
    int rank = (int)size[2];
    LowRankMatrix *matrix = ARENA_ARRAY(&graph->arena, LowRankMatrix, 2);
    LowRankRun *run = ARENA_ARRAY(&graph->arena, LowRankRun, 1);
    int64_t few = rows / 2 + 1, n = (rows + few) * columns + BETWEEN;
    matrix[0] = (LowRankMatrix){.rows = rows, .columns = columns, .seed = 7};
    *run = (LowRankRun){rows * columns, BETWEEN, rank * rows};
    matrix[1] =
        (LowRankMatrix){rows * columns + BETWEEN, few, columns, rank * rows + BETWEEN, rank * columns, 8};
    LowRankAttributes a = {.rank = rank,
                           .n_matrices = 2,
                           .n_runs = 1,
                           .matrix = matrix,
                           .run = run,
                           .n_message = rank * (rows + few) + BETWEEN,
                           .n_basis = 2 * rank * columns,
                           .share = 0.25f};
    LowRankTensors tensors = {.gradient = case_activation(test, SHAPE(n), "gradient"),
                              .error = case_activation(test, SHAPE(n), "error"),
                              .basis = case_activation(test, SHAPE(a.n_basis), "basis")};
    if (test->spec->flags & CASE_FACTOR)
        tensors.factor = case_literal(test, DTYPE_F32, 1, "factor", (const float[]){0.5f});
    graph->section = SECTION_UPDATE;
    Tensor *message = op_lowrank_project(graph, &tensors, &a);
    message = op_lowrank_orthonormal(graph, message, &a);
    Tensor *returned = op_lowrank_return(graph, message, &tensors, &a);
    op_lowrank_expand(graph, message, returned, &tensors, &a);
    if (tensors.factor) op_rescale(graph, tensors.gradient, tensors.factor);
}

/* Two of a rank's own steps, of which the second leaves the weights alone, and one that joins the others. */
void build_local_step(OpCase *test) {
    Graph *graph = test->graph;
    Shape shape = SHAPE(test->spec->size[0]);
    const float numbers[N_LOCAL] = {[LOCAL_STEP] = 0.02f,
                                    [LOCAL_KEEP] = 0.875f,
                                    [LOCAL_DISTANCE] = 0.05f,
                                    [LOCAL_PER_DISTANCE] = 20.0f,
                                    [LOCAL_ROOT] = 1.5f};
    LocalAttributes attributes = {.elements = elements_of(test),
                                  .beta1 = 0.9f,
                                  .gain = 0.4f,
                                  .bound = 0.3f, /* cuts some */
                                  .epsilon = 1e-2f};
    LocalTensors tensors = {.gradient = case_floats(test, PLACE_GRADIENT, shape, "gradient", 1.0f, 0.0f),
                            .variance = case_floats(test, PLACE_OPTIMIZER, shape, "variance", 1.0f, 1.5f),
                            .numbers = case_literal(test, DTYPE_F32, N_LOCAL, "numbers", numbers),
                            .factor = factor_of(test),
                            .momentum = case_floats(test, PLACE_OPTIMIZER, shape, "momentum", 1.0f, 0.0f),
                            .buffer = case_floats(test, PLACE_OPTIMIZER, shape, "buffer", 0.1f, 0.0f),
                            .common = case_floats(test, PLACE_OPTIMIZER, shape, "common", 1.0f, 0.0f),
                            .parameter = case_floats(test, PLACE_PARAMETER, shape, "parameter", 1.0f, 0.0f)};
    graph->section = SECTION_UPDATE;
    op_local_step(graph, &tensors, &attributes);
    LocalTensors quiet = tensors;
    quiet.parameter = NULL;
    op_local_step(graph, &quiet, &attributes);
    op_local_join(graph, &tensors, &attributes);
}

void build_adamw(OpCase *test) {
    AdamwAttributes attributes = {.elements = elements_of(test),
                                  .beta1 = 0.9f,
                                  .beta2 = 0.95f,
                                  .epsilon = 1e-8f,
                                  .weight_decay = 0.25f};
    UpdateTensors tensors = update_of(test, hyper_of(test), 2, moment_names);
    op_adamw(test->graph, &tensors, &attributes);
}

void build_sgd(OpCase *test) {
    bool has_momentum = test->spec->flags & CASE_MOMENTUM;
    SgdAttributes attributes = {.elements = elements_of(test),
                                .momentum = has_momentum ? 0.75f : 0.0f,
                                .weight_decay = 0.25f,
                                .nesterov = test->spec->flags & CASE_NESTEROV};
    UpdateTensors tensors =
        update_of(test, hyper_of(test), has_momentum ? 1 : 0, (const char *const[]){"momentum"});
    op_sgd(test->graph, &tensors, &attributes);
}

/* The first third is two tensors, of which one has a part that somebody else counts; the last element is a
 * third. */
void build_lamb(OpCase *test) {
    int64_t count = test->spec->size[0], third = count / 3, first = 1000;
    TensorSpan spans[] = {{first, first + third / 2, 1, true},
                          {first + third / 2, first + third / 2 + third / 8, 0, true},
                          {first + third / 2 + third / 8, first + third, 0, false},
                          {first + count - 1, first + count, 2, true}};
    LambAttributes attributes = {
        .elements = elements_of(test),
        .spans = {4, arena_copy(&test->graph->arena, spans, sizeof spans)},
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-6f,
        .weight_decay = 0.25f,
        .max_ratio = test->spec->number,
    };
    attributes.elements.first_element = first;
    UpdateTensors tensors = update_of(test, hyper_of(test), 2, moment_names);
    tensors.sums = case_floats(test, PLACE_STATE, SHAPE(3, UPDATE_SUMS), "sums", 0.0f, 0.0f);
    op_lamb_measure(test->graph, &tensors, &attributes);
    op_lamb(test->graph, &tensors, &attributes);
}

/* Two averages, then a change of momentum, by the same tensors as LAMB's, and what is made of it. */
void build_lamb_coefficient(OpCase *test) {
    Graph *graph = test->graph;
    int64_t count = test->spec->size[0], third = count / 3, first = 1000;
    TensorSpan spans[] = {{first - 5, first + third / 2, 1, true}, /* begins in another array */
                          {first + third / 2, first + third, 0, false},
                          {first + count - 1, first + count + 3, 2, true}};
    LambAverageAttributes average = {.beta = 0.75f, .max_ratio = test->spec->number};
    LambFreshenAttributes freshen = {.first_element = first,
                                     .spans = {3, arena_copy(&graph->arena, spans, sizeof spans)},
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-2f};
    LambAdaptAttributes adapt = {.lowest = 0.5f, .highest = 4.0f, .change = 0.25f};
    const float hyper[N_HYPER] = {
        [HYPER_CORRECTION2] = 7.0f, [HYPER_FRESH] = 3.0f, [HYPER_RATE] = 0.1f, [HYPER_CORRECTION1] = 2.0f};
    graph->section = SECTION_UPDATE;
    Shape shape = SHAPE(count);
    Tensor *factor = factor_of(test),
           *sums = case_floats(test, PLACE_STATE, SHAPE(3, UPDATE_SUMS), "sums", 1.0f, 2.0f),
           *coefficients =
               case_floats(test, PLACE_OPTIMIZER, SHAPE(3, N_COEFFICIENTS), "coefficients", 0.2f, 0.5f);
    LambFreshenTensors tensors = {.before = case_floats(test, PLACE_STATE, shape, "before", 1.0f, 0.0f),
                                  .momentum = case_floats(test, PLACE_STATE, shape, "momentum", 1.0f, 0.0f),
                                  .variance =
                                      case_floats(test, PLACE_OPTIMIZER, shape, "variance", 1.0f, 1.5f),
                                  .hyper = case_literal(test, DTYPE_F32, N_HYPER, "hyper", hyper),
                                  .factor = factor,
                                  .ratios = case_floats(test, PLACE_STATE, SHAPE(3), "ratios", 0.0f, 0.0f),
                                  .fresh = case_floats(test, PLACE_OPTIMIZER, shape, "fresh", 1.0f, 1.5f)};
    op_lamb_average(graph, sums, factor, coefficients, &average);
    op_lamb_average(graph, sums, factor, coefficients, &average);
    op_lamb_freshen(graph, &tensors, &freshen);
    op_lamb_adapt(graph, tensors.ratios, factor, coefficients, sums, &adapt);
}

static MuonAttributes muon_of(OpCase *test) {
    return (MuonAttributes){.elements = elements_of(test),
                            .momentum = 0.75f,
                            .weight_decay = 0.25f,
                            .rate_factor = 0.5f,
                            .nesterov = test->spec->flags & CASE_NESTEROV};
}

void build_muon_elements(OpCase *test) {
    MuonAttributes attributes = muon_of(test);
    Shape shape = SHAPE(test->spec->size[0]);
    UpdateTensors tensors = update_of(test, hyper_of(test), 1, (const char *const[]){"momentum"});
    Tensor *direction = case_state(test, shape, "direction"),
           *step = case_floats(test, PLACE_STATE, shape, "step", 1.0f, 0.0f);
    op_muon_momentum(test->graph, &tensors, direction, &attributes);
    op_muon(test->graph, &tensors, step, &attributes);
    case_result(test, "direction", direction);
}

/* All of it: momentum, five steps of Newton and Schulz, the step. */
void build_muon(OpCase *test) {
    MuonAttributes attributes = muon_of(test);
    int64_t rows = test->spec->size[1], columns = test->spec->size[2], side = rows < columns ? rows : columns;
    UpdateTensors tensors = update_of(test, hyper_of(test), 1, (const char *const[]){"momentum"});
    Tensor *direction = case_state(test, SHAPE(rows * columns), "direction"),
           *step = case_state(test, SHAPE(rows * columns), "step");
    MuonRoom room = {.x = case_state(test, SHAPE(rows * columns), "x"),
                     .y = case_state(test, SHAPE(rows * columns), "y"),
                     .square1 = case_state(test, SHAPE(side * side), "square1"),
                     .square2 = case_state(test, SHAPE(side * side), "square2"),
                     .total = case_state(test, SHAPE_SCALAR, "total")};
    op_muon_momentum(test->graph, &tensors, direction, &attributes);
    muon_orthogonalise(test->graph, direction, step, rows, columns, test->spec->number, &room);
    op_muon(test->graph, &tensors, step, &attributes);
    case_result(test, "step", step);
}

void build_muon_polynomial(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0], test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    Tensor *y = case_state(test, shape, "y");
    op_muon_polynomial(test->graph, case_floats(test, PLACE_STATE, shape, "matrix", 1.0f, 0.0f),
                       case_floats(test, PLACE_STATE, shape, "square", 1.0f, 0.0f), y,
                       (MuonPolynomial){3.0f, -4.0f, 2.0f});
    case_result(test, "y", y);
}

void build_muon_normalise(OpCase *test) {
    Shape shape = SHAPE(test->spec->size[0]);
    test->graph->section = SECTION_UPDATE;
    Tensor *y = case_state(test, shape, "y");
    op_muon_normalise(test->graph, case_floats(test, PLACE_STATE, shape, "x", 1.0f, 0.0f),
                      case_floats(test, PLACE_STATE, SHAPE_SCALAR, "squares", 1.0f, 3.0f), y);
    case_result(test, "y", y);
}

/* The middle of every dim but the first, whose end is left out. */
void build_box(OpCase *test) {
    const int64_t *size = test->spec->size;
    BoxAttributes attributes = {
        .whole = SHAPE(size[0], size[1], size[2]),
        .box = {SHAPE(size[0] - 1, (size[1] + 1) / 2, (size[2] + 1) / 2), {0, size[1] / 4, size[2] / 4}},
        .takes = test->spec->flags & CASE_TAKES};
    test->graph->section = SECTION_UPDATE;
    Shape part = attributes.box.shape;
    Tensor *x = case_floats(test, PLACE_STATE, attributes.takes ? attributes.whole : part, "x", 1.0f, 0.0f);
    Tensor *y = case_floats(test, PLACE_STATE, attributes.takes ? part : attributes.whole, "y", 1.0f, 0.0f);
    op_box(test->graph, x, y, &attributes);
    case_result(test, "y", y);
}

void build_optimizer(OpCase *test) {
    enum { STEP = 2, SEED = 1 };
    OptimizerOptions options = optimizer_defaults((OptimizerKind)test->spec->size[1]);
    UpdateElements elements = elements_of(test);
    float numbers[N_HYPER];
    options.weight_decay = 0.25;
    optimizer_hyper(&options, 0.02, STEP, SEED, numbers);
    UpdateTensors tensors = update_of(test, case_literal(test, DTYPE_F32, N_HYPER, "hyper", numbers),
                                      optimizer_n_moments(&options), moment_names);
    optimizer_record_alone(optimizer_of(&options), &options, &tensors, &elements, test->graph);
}
