/* Least squares with the engine that GPTs are trained with: the same graph, passes, memory plan, kernels and
 * executor.
 *
 *     predictions (N,1) = linear(x (N,W), weight (1,W))        losses (N) = squared_error(predictions, y)
 *
 * and autograd adds what is missing. It computes in f32, so the loss stops falling when it reaches the
 * rounding of y. The device is the CPU or a GPU; a GPU is waited for after each half of the gradient, so that
 * the clock sees what each half took, and what an epoch of so little work costs there is mostly to start it.
 *
 * The sum over the ranks is not a node of this graph, though it could be (parallel/comm_ops.h): that is made
 * to hide behind a computation, and here there is none left when the gradient is known. A blocking call
 * between the sections is faster, and can add in f64. */
#include "lab/linear/linear_engine.h"

#include "base/system/timer.h"
#include "device/device.h"
#include "graph/wiring.h"
#include "ops/ops.h"
#include "ops/update/sgd.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    int n_weights;
    Backend backend;
    Wiring wiring;
    Tensor *x, *y, *weight, *loss, *hyper;
    DecayRun run;
    float *numbers; /* (n_weights) on their way */
    bool has_backend;
} TensorEngine;

static void tensor_engine_close(void *opaque) {
    TensorEngine *engine = opaque;
    if (!engine) return;
    wiring_close_alone(&engine->wiring);
    if (engine->has_backend) engine->backend.close(engine->backend.context);
    free(engine->numbers);
    free(engine);
}

/* ---- Recording */

static Status record(TensorEngine *engine, const LinearPoints *points, Error *error) {
    Graph *graph = engine->wiring.graph;
    int64_t n = points->n_points, n_weights = points->n_weights;
    float scale = (float)(1.0 / (double)points->n_all);
    engine->x = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(n, n_weights), "x");
    engine->y = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(n, 1), "y");
    engine->hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    engine->weight = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(1, n_weights), "linear.weight");
    engine->weight->needs_gradient = true;
    engine->loss = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE_SCALAR, "loss");
    Tensor *predictions = op_linear(graph, engine->x, engine->weight, NULL, NULL, ACTIVATION_NONE);
    op_sum(graph, op_squared_error(graph, predictions, engine->y, scale), engine->loss, scale);
    TRY(graph_status(graph, error));
    AutogradOptions options = {
        .copy = &OP_COPY, .gradient_place = PLACE_GRADIENT, .parameter_dtype = DTYPE_F32};
    TRY(autograd_run(graph, &options, error));
    graph->section = SECTION_UPDATE;
    engine->run = (DecayRun){n_weights, false};
    UpdateTensors tensors = {
        .gradient = engine->weight->gradient, .hyper = engine->hyper, .parameter = engine->weight};
    SgdAttributes attributes = {.elements = {.n_runs = 1, .runs = &engine->run}};
    op_sgd(graph, &tensors, &attributes);
    return graph_status(graph, error);
}

static Status upload_floats(TensorEngine *engine, const Tensor *tensor, const double *values, Error *error) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    int64_t count = tensor_count(tensor);
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t n = count - first < PIECE ? count - first : PIECE;
        for (int64_t i = 0; i < n; i++) piece[i] = (float)values[first + i];
        TRY(executor_upload_f32(&engine->wiring.executor, tensor, first, n, piece, error));
    }
    return STATUS_OK;
}

static Status prepare(TensorEngine *engine, const LinearProblem *problem, const LinearPoints *points,
                      Error *error) {
    float hyper[N_HYPER] = {[HYPER_RATE] = (float)problem->lr};
    DeviceOptions device = {.kind = problem->device, .n_threads = problem->n_threads};
    TRY(device_backend_open(&engine->backend, &device, error));
    engine->has_backend = true;
    TRY(record(engine, points, error));
    TRY(wiring_plan_alone(&engine->wiring, "linear", &engine->backend, error));
    TRY(device_check_memory(&engine->backend, device_required_bytes(&engine->wiring.memory),
                            "the points as tensors", "lower --points", error));
    TRY(wiring_open_alone(&engine->wiring, &engine->backend, error));
    TRY(upload_floats(engine, engine->x, points->x, error));
    TRY(upload_floats(engine, engine->y, points->y, error));
    return executor_upload(&engine->wiring.executor, engine->hyper, hyper, error);
}

static Status tensor_engine_open(const LinearProblem *problem, const LinearPoints *points, void **opaque,
                                 Error *error) {
    *opaque = NULL;
    TensorEngine *engine = calloc(1, sizeof *engine);
    if (!engine) return error_failed(error, "no memory for the tensor engine");
    engine->n_weights = points->n_weights;
    engine->wiring.graph = graph_new();
    engine->numbers = calloc((size_t)points->n_weights, sizeof *engine->numbers);
    if (!engine->numbers) error_failed(error, "no memory for the tensor engine");
    else prepare(engine, problem, points, error);
    if (error->status == STATUS_OK) *opaque = engine;
    else tensor_engine_close(engine);
    return error->status;
}

/* ---- Running */

static Status run_section(TensorEngine *engine, Section section, Error *error) {
    TRY(executor_run(&engine->wiring.executor, section, MICRO_BATCH_ONLY, error));
    return engine->backend.synchronize ? engine->backend.synchronize(engine->backend.context, error)
                                       : STATUS_OK;
}

static Status tensor_engine_gradient(void *opaque, double *sums, double *forward, Error *error) {
    TensorEngine *engine = opaque;
    float loss;
    uint64_t start = timer_now_ns();
    TRY(run_section(engine, SECTION_FORWARD, error));
    uint64_t middle = timer_now_ns();
    TRY(run_section(engine, SECTION_BACKWARD, error));
    TRY(executor_download(&engine->wiring.executor, engine->weight->gradient, engine->numbers, error));
    TRY(executor_download(&engine->wiring.executor, engine->loss, &loss, error));
    for (int k = 0; k < engine->n_weights; k++) sums[k] = (double)engine->numbers[k];
    sums[engine->n_weights] = (double)loss;
    double forward_ns = (double)(middle - start), both_ns = (double)(timer_now_ns() - start);
    *forward = both_ns > 0.0 ? forward_ns / both_ns : 0.5;
    return STATUS_OK;
}

static Status tensor_engine_update(void *opaque, const double *gradient, Error *error) {
    TensorEngine *engine = opaque;
    TRY(upload_floats(engine, engine->weight->gradient, gradient, error));
    return run_section(engine, SECTION_UPDATE, error);
}

static Status tensor_engine_set_weights(void *opaque, const double *weights, Error *error) {
    TensorEngine *engine = opaque;
    return upload_floats(engine, engine->weight, weights, error);
}

static Status tensor_engine_get_weights(void *opaque, double *weights, Error *error) {
    TensorEngine *engine = opaque;
    TRY(executor_download(&engine->wiring.executor, engine->weight, engine->numbers, error));
    for (int k = 0; k < engine->n_weights; k++) weights[k] = (double)engine->numbers[k];
    return STATUS_OK;
}

/* A node of this graph is an operation on arrays: there are four, and their number says nothing. */
static double tensor_engine_evaluations(const void *opaque) {
    (void)opaque;
    return (double)NAN;
}

static double tensor_engine_flops(const void *opaque) {
    const TensorEngine *engine = opaque;
    return program_section_cost(&engine->wiring.program, SECTION_FORWARD).flops +
           program_section_cost(&engine->wiring.program, SECTION_BACKWARD).flops;
}

const LinearEngine linear_tensor_engine = {
    .name = "tensor",
    .open = tensor_engine_open,
    .close = tensor_engine_close,
    .set_weights = tensor_engine_set_weights,
    .get_weights = tensor_engine_get_weights,
    .gradient = tensor_engine_gradient,
    .update = tensor_engine_update,
    .evaluations = tensor_engine_evaluations,
    .flops = tensor_engine_flops,
};
