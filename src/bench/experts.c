/* A program of single nodes, dense and grouped, on the same inputs. Where experts begin is an input that is
 * uploaded between two timings, as it would change from step to step: the program is the same. */
#include "bench/experts.h"

#include "ops/experts/experts.h"

const char *const bench_gemm_names[BENCH_N_GEMMS] = {"forward", "input gradient", "weight gradient"};
const char *const bench_load_names[BENCH_N_LOADS] = {"dense", "even", "half at one"};

static const LinearAttributes plain = {ACTIVATION_NONE};

typedef struct {
    Tensor *x, *dy, *weight, *experts, *offsets;
    DType gradient;
} BenchTensors;

static Tensor *input(Graph *graph, DType dtype, Shape shape, const char *name) {
    return graph_tensor(graph, PLACE_INPUT, dtype, shape, "%s", name);
}

static BenchTensors record_inputs(Graph *graph, const BenchExperts *e, Precision precision) {
    return (BenchTensors){
        .x = input(graph, precision.weight, SHAPE(e->rows, e->inputs), "x"),
        .dy = input(graph, precision.weight, SHAPE(e->rows, e->outputs), "dy"),
        .weight = input(graph, precision.weight, SHAPE(e->outputs, e->inputs), "weight"),
        .experts = input(graph, precision.weight, SHAPE(e->n_experts, e->outputs, e->inputs), "experts"),
        .offsets = input(graph, DTYPE_I32, SHAPE(e->n_experts + 1), "offsets"),
        .gradient = precision.gradient,
    };
}

/* In the order of the names: of each GEMM the dense one, then the grouped one. */
static void record_gemms(Graph *graph, const BenchTensors *t) {
    Tensor *const of[2] = {t->weight, t->experts};
    for (int i = 0; i < 2; i++) {
        if (i) op_grouped_linear(graph, t->x, of[i], NULL, t->offsets, ACTIVATION_NONE);
        else op_linear(graph, t->x, of[i], NULL, NULL, ACTIVATION_NONE);
    }
    for (int i = 0; i < 2; i++) {
        Tensor *dx = graph_tensor(graph, PLACE_ACTIVATION, t->x->dtype, t->x->shape, "dx");
        graph_record(graph, i ? &OP_GROUPED_INPUT_GRADIENT : &OP_LINEAR_INPUT_GRADIENT, &plain, sizeof plain,
                     i ? 4 : 3, i ? TENSORS(t->dy, of[i], t->offsets, NULL) : TENSORS(t->dy, of[i], NULL),
                     i ? 1 : 2, TENSORS(dx, NULL));
    }
    for (int i = 0; i < 2; i++) {
        Tensor *dweight = graph_tensor(graph, PLACE_ACTIVATION, t->gradient, of[i]->shape, "dweight");
        graph_record(graph, i ? &OP_GROUPED_WEIGHT_GRADIENT : &OP_LINEAR_WEIGHT_GRADIENT, NULL, 0, i ? 3 : 2,
                     i ? TENSORS(t->dy, t->x, t->offsets) : TENSORS(t->dy, t->x), 2, TENSORS(dweight, NULL));
    }
}

/* Where experts begin if the first has half of the rows, or all have the same. */
static Status upload_offsets(Wiring *program, const BenchExperts *e, const Tensor *offsets, int load,
                             Error *error) {
    int32_t begin[ROUTE_MAX_EXPERTS + 1] = {0};
    for (int64_t i = 1; i <= e->n_experts; i++) {
        bool is_half = load == BENCH_HALF && e->n_experts > 1;
        int64_t first = is_half ? e->rows / 2 : 0, rest = e->rows - first, others = e->n_experts - is_half;
        begin[i] = (int32_t)(first + rest * (i - is_half) / others);
    }
    return executor_upload_part(&program->executor, offsets, 0, tensor_bytes(offsets), begin, error);
}

static Status time_node(Wiring *program, const Backend *backend, int index, double *seconds, Error *error) {
    BenchTime time;
    const Instruction *instruction = &program->executor.instruction[index];
    TRY(bench_time_kernel(backend, instruction->kernel, executor_call(&program->executor, index), &time,
                          error));
    *seconds = time.seconds;
    return STATUS_OK;
}

static Status time_all(BenchExperts *e, Wiring *program, const Backend *backend, const Tensor *offsets,
                       Error *error) {
    for (int gemm = 0; gemm < BENCH_N_GEMMS; gemm++) {
        for (int load = 0; load < BENCH_N_LOADS; load++) {
            TRY(upload_offsets(program, e, offsets, load, error));
            TRY(time_node(program, backend, 2 * gemm + (load != BENCH_DENSE), &e->seconds[gemm][load],
                          error));
        }
    }
    return STATUS_OK;
}

Status bench_experts_measure(BenchExperts *experts, const Backend *backend, const BenchSetup *setup,
                             Error *error) {
    const ModelConfig *model = &setup->model;
    int64_t sequence = setup->bench.sequence ? setup->bench.sequence : model->context;
    if (!model->n_experts)
        return error_user(error, "a dense model has no experts to measure; name some with --experts 8");
    *experts = (BenchExperts){.rows = setup->bench.batch * sequence * model->n_chosen,
                              .inputs = model->n_channels,
                              .outputs = model->expert_hidden,
                              .n_experts = model->n_experts};
    if (experts->rows > INT32_MAX)
        return error_user(error, "%lld rows are more than can be sorted; use a smaller --batch",
                          (long long)experts->rows);
    experts->flops = 2.0 * (double)experts->rows * (double)experts->inputs * (double)experts->outputs;
    Wiring program = {.graph = graph_new()};
    BenchTensors tensors =
        record_inputs(program.graph, experts, precision_of((PrecisionKind)setup->bench.precision));
    record_gemms(program.graph, &tensors);
    TRY_GOTO(bench_program_open(&program, backend, error), done);
    time_all(experts, &program, backend, tensors.offsets, error);
done:
    wiring_close_alone(&program);
    return error->status;
}
