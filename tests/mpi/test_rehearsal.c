/* A pipeline on a device that only enqueues is rehearsed before its first message: that changes no bit of what it
 * computes, and later steps run nothing for the first time but updates. The device is the CPU, whose kernels go onto a
 * tape while they are captured; messages are MPI's, by a table that says of itself that it only enqueues.
 *
 * Ranks: 3 */
#include "comm_support.h"

#include "backend/cpu/cpu.h"
#include "model/stages.h"
#include "train/loop/unflushed.h"
#include "train/model_mesh.h"
#include "train/step/step.h"

enum { LAYERS = 7, HEADS = 2, CHANNELS = 16, V = 29, T = 8, MICRO_BATCHES = 6, STEPS = 3, EVALUATED = 5 };

/* ---- a device that captures */

typedef struct {
    KernelCall *call;
    int n, capacity;
} Tape;

static Backend cpu;
static Tape *recording; /* NULL: kernels run */
static int n_kernels;   /* that were run, not replayed */

static Status run_or_record(const KernelCall *call, Error *error) {
    if (!recording) {
        n_kernels++;
        return cpu.kernel(cpu.context, call->node)(call, error);
    }
    if (recording->n == recording->capacity) {
        recording->capacity = 2 * recording->capacity + 16;
        recording->call = realloc(recording->call, (size_t)recording->capacity * sizeof *recording->call);
        assert_non_null(recording->call);
    }
    recording->call[recording->n++] = *call;
    return STATUS_OK;
}

static Kernel taped_kernel(void *context, const Node *node) {
    return cpu.kernel(context, node) ? run_or_record : NULL;
}

static Status capture_begin(void *context, Error *error) {
    (void)context, (void)error;
    recording = calloc(1, sizeof *recording);
    assert_non_null(recording);
    return STATUS_OK;
}

static Status capture_end(void *context, void **capture, Error *error) {
    (void)context, (void)error;
    *capture = recording;
    recording = NULL;
    return STATUS_OK;
}

static void capture_free(void *context, void *capture) {
    (void)context;
    if (capture) free(((Tape *)capture)->call);
    free(capture);
}

static void capture_abandon(void *context) {
    capture_free(context, recording);
    recording = NULL;
}

static Status replay(void *context, void *capture, Error *error) {
    const Tape *tape = capture;
    for (int i = 0; i < tape->n; i++) TRY(cpu.kernel(context, tape->call[i].node)(&tape->call[i], error));
    return STATUS_OK;
}

static Status event_new(void *context, void **event, Error *error) {
    (void)context, (void)error;
    *event = &n_kernels;
    return STATUS_OK;
}

static Status event_record(void *context, void *event, Error *error) {
    (void)context, (void)event, (void)error;
    return STATUS_OK;
}

static Status elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error) {
    (void)context, (void)first, (void)second, (void)error;
    *milliseconds = 0.0F;
    return STATUS_OK;
}

static void event_free(void *context, void *event) {
    (void)context, (void)event;
}

static Backend taped(void) {
    Backend backend = cpu;
    backend.kernel = taped_kernel;
    backend.capture_begin = capture_begin;
    backend.capture_end = capture_end;
    backend.capture_abandon = capture_abandon;
    backend.replay = replay;
    backend.capture_free = capture_free;
    backend.event_new = event_new;
    backend.event_record = event_record;
    backend.elapsed_ms = elapsed_ms;
    backend.event_free = event_free;
    return backend;
}

/* ---- a run */

typedef struct {
    ModelConfig config;
    Backend backend;
    Mesh mesh;
    Pipeline pipeline;
    ParameterPart part;
    ParameterTable table;
    TrainStep step, evaluation;
    DeviceMemory memory;
    CommTable table_of_messages;
} Run;

typedef struct {
    double loss[STEPS], norm[STEPS], evaluated[2];
    float *weights;
    int64_t n_weights;
} Outcome;

static void fill(void *context, uint64_t first_sequence, int64_t B, int64_t n, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < B * n; i++) {
        tokens[i] = (int32_t)(((uint64_t)i * 7 + first_sequence) % V);
        targets[i] = (int32_t)(((uint64_t)i * 5 + first_sequence) % V);
    }
}

static const BatchSource source = {fill, NULL};

/* Messages between stages as a device's that only enqueue. */
static void pretend(Run *run, bool pretends) {
    for (int i = 0; i < run->pipeline.layout.n_chunks * N_BORDERS * N_PIPELINE_WAYS; i++) {
        int way = i % N_PIPELINE_WAYS, side = i / N_PIPELINE_WAYS % N_BORDERS;
        PipelineBorder *border = &run->pipeline.border[i / N_PIPELINE_WAYS / N_BORDERS][side];
        if (!border->comm[way].table) continue;
        run->table_of_messages = *border->comm[way].table;
        run->table_of_messages.only_enqueues = true;
        border->device[way] = (Comm){0};
        if (!pretends) continue;
        border->device[way] = border->comm[way];
        border->device[way].table = &run->table_of_messages;
    }
}

static void open_run(Run *run, const PipelineLayout *layout, bool pretends) {
    Error error = {0};
    Arena arena = {0};
    Stages stages;
    MeshShape shape = {.size = {layout->n_stages, 1, 1, 1, 1}};
    StagesOptions balance = {.schedule = layout->kind,
                             .shape = {MICRO_BATCHES, layout->n_stages, layout->n_chunks},
                             .n_tp = 1,
                             .B = 1,
                             .T = T};
    OptimizerOptions optimizer = {.rate = 1e-2, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0};
    *run = (Run){.config = {.n_layers = LAYERS,
                            .n_heads = HEADS,
                            .n_channels = CHANNELS,
                            .context = T,
                            .tied = true,
                            .bias = true,
                            .dropout = 0.1},
                 .backend = pretends ? taped() : cpu};
    OK(config_complete(&run->config, V, &error));
    OK(model_mesh_open(&run->mesh, &shape, &run->config, &world, &error));
    OK(model_pipeline_open(&run->pipeline, &run->mesh, layout, &error));
    pretend(run, pretends);
    OK(stages_balance(&stages, &run->config, &balance, &arena, &error));
    run->part = stages_part(&stages, run->pipeline.stage, 1, 0);
    arena_free(&arena);
    OK(parameters_build_part(&run->table, &run->config, &run->part, &error));
    StepOptions options = {.batch = MICRO_BATCHES,
                           .micro_batch = 1,
                           .T = T,
                           .seed = 1,
                           .sync = {.mesh = &run->mesh, .bucket_bytes = 1 << 20, .overlaps = true},
                           .pipeline = &run->pipeline,
                           .part = &run->part,
                           .precision = precision_of(PRECISION_F32)};
    OK(train_step_plan(&run->step, &run->config, &run->table, &options, &optimizer, &run->backend, &error));
    OK(train_step_plan(&run->evaluation, &run->config, &run->table, &options, NULL, &run->backend, &error));
    device_require(&run->memory, &run->step.program.plan);
    device_require(&run->memory, &run->evaluation.program.plan);
    OK(device_open(&run->memory, &run->backend, &error));
    OK(train_step_open(&run->step, &run->memory, &error));
    OK(train_step_open(&run->evaluation, &run->memory, &error));
    OK(train_step_initialise(&run->step, &run->table, 1, 1, &error));
}

static void close_run(Run *run) {
    train_step_close(&run->step);
    train_step_close(&run->evaluation);
    device_close(&run->memory);
    parameters_free(&run->table);
    pretend(run, false);
    model_pipeline_close(&run->pipeline, NULL);
    model_mesh_close(&run->mesh, NULL);
}

static void train(Run *run, int64_t first, int n, Outcome *outcome) {
    Error error = {0};
    const double rates[STEPS] = {1e-2, 1e-2, 1e-2};
    StepResult result[STEPS];
    StretchSteps steps = {.source = &source, .index = first, .n_steps = n, .rates = rates};
    if (step_is_unflushed(&run->step)) OK(unflushed_run(&run->step, &steps, result, &error));
    for (int i = 0; i < n; i++) {
        if (!step_is_unflushed(&run->step))
            OK(train_step_run(&run->step, &source, first + i, rates[i], &result[i], &error));
        outcome->loss[first + i] = result[i].loss;
        outcome->norm[first + i] = result[i].gradient_norm;
    }
}

/* Ways to run a part that were prepared, of all that communicate in a step; all of them captured. */
static int n_prepared(const TrainStep *step) {
    static const Section sections[] = {SECTION_FORWARD, SECTION_BACKWARD, SECTION_WEIGHT};
    int n = 0;
    for (int i = 0; i < 3 * step->n_chunks; i++) {
        int at = (int)sections[i / step->n_chunks] * step->n_chunks + i % step->n_chunks;
        const ExecutorPart *part = &step->executor.part[at];
        for (int k = 0; k < part->n_versions * part->n_frames * 4; k++) {
            n += part->capture[k].was_run;
            for (int r = 0; r < part->captured[k / 2 % 2].n && part->capture[k].was_run; r++)
                assert_non_null(part->capture[k].run[r]);
        }
    }
    return n;
}

static Outcome run_all(const PipelineLayout *layout, bool pretends) {
    Error error = {0};
    Run run;
    Outcome outcome = {0};
    open_run(&run, layout, pretends);
    OK(evaluate_step_run(&run.evaluation, &source, 100, 1, &outcome.evaluated[0], &error));
    int n_evaluating = pretends ? n_prepared(&run.evaluation) : 0;
    train(&run, 0, 1, &outcome);
    int n = pretends ? n_prepared(&run.step) : 0;
    train(&run, 1, STEPS - 1, &outcome);
    OK(evaluate_step_run(&run.evaluation, &source, 100, EVALUATED, &outcome.evaluated[1], &error));
    if (pretends) {
        assert_true(n > 0 && n_evaluating == 2 * layout->n_chunks);
        assert_int_equal(n_prepared(&run.evaluation), n_evaluating);
        if (!step_is_unflushed(&run.step)) assert_int_equal(n_prepared(&run.step), n);
    }
    const Tensor *weights = train_step_weights(&run.step);
    outcome.n_weights = tensor_count(weights);
    outcome.weights = malloc((size_t)outcome.n_weights * sizeof(float));
    assert_non_null(outcome.weights);
    OK(executor_download_f32(&run.step.executor, weights, 0, outcome.n_weights, outcome.weights, &error));
    close_run(&run);
    return outcome;
}

static void check_layout(ScheduleKind kind, int n_chunks) {
    PipelineLayout layout = {kind, world.size, n_chunks};
    Outcome plain = run_all(&layout, false), rehearsed = run_all(&layout, true);
    assert_memory_equal(plain.loss, rehearsed.loss, sizeof plain.loss);
    assert_memory_equal(plain.norm, rehearsed.norm, sizeof plain.norm);
    assert_memory_equal(plain.evaluated, rehearsed.evaluated, sizeof plain.evaluated);
    assert_int_equal(plain.n_weights, rehearsed.n_weights);
    assert_memory_equal(plain.weights, rehearsed.weights, (size_t)plain.n_weights * sizeof(float));
    assert_true(plain.loss[0] > 1.0 && plain.norm[0] > 0.0 && plain.norm[1] != plain.norm[0]);
    free(plain.weights);
    free(rehearsed.weights);
}

static void test_flushed(void **state) {
    (void)state;
    check_layout(SCHEDULE_1F1B, 1);
    check_layout(SCHEDULE_INTERLEAVED, 2);
    check_layout(SCHEDULE_ZB_H2, 1);
    check_layout(SCHEDULE_ZB_V, 2);
}

static void test_unflushed(void **state) {
    (void)state;
    check_layout(SCHEDULE_PIPEDREAM, 1);
    check_layout(SCHEDULE_PIPEDREAM_2BW, 1);
}

static int open_all(void **state) {
    Error error = {0};
    if (open_world(state)) return -1;
    return backend_cpu_open(&cpu, 1, &error) == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    cpu.close(cpu.context);
    return close_world(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flushed), cmocka_unit_test(test_unflushed)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
