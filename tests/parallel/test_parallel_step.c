/* A training step spread over ranks, as a program: recorded by all of them in one process, planned, looked at instruction
 * by instruction, and run on a device that computes nothing with messages that are only counted.
 *
 * Putting all ranks' messages together (comm_null_count) shows that every rank communicates the same things in the same
 * order; walking the program shows that nobody touches memory that is under way. That the numbers are right is shown by
 * pgpt verify. */
#include "backend/null/null.h"
#include "comm/comm_null.h"
#include "mesh_support.h"
#include "parallel/comm_ops.h"
#include "train/step/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 24 };

/* ---- ranks ---- */

typedef struct {
    int n_ranks, zero;
    int64_t bucket_bytes;
    bool overlaps;
    int64_t n_micro_batches, recompute;
    int left_out;
    ModelConfig config;
    OptimizerOptions optimizer;
    Precision precision;
    bool is_evaluation;
} Setup;

typedef struct {
    const Setup *setup;
    Backend backend;
    ParameterTable table;
    NullGroup *data_group, *control_group;
    Comm data[MOST_RANKS], control[MOST_RANKS];
    Mesh mesh[MOST_RANKS];
    TrainStep step[MOST_RANKS];
    DeviceMemory memory[MOST_RANKS];
} Ranks;

static ModelConfig small_config(void) {
    return (ModelConfig){.n_layers = 3,
                         .n_heads = 2,
                         .n_channels = 20,
                         .context = 8,
                         .vocabulary = 31,
                         .tied = true,
                         .bias = true,
                         .dropout = 0.1,
                         .rotary_theta = 10000.0};
}

/* Of the strategies, those of ZeRO are here: it is known of each what it moves and holds. */
enum { LAST_STAGE = 3 };

static Setup small_setup(int n_ranks, int zero) {
    return (Setup){
        .n_ranks = n_ranks,
        .zero = zero,
        .bucket_bytes = 8192,
        .overlaps = true,
        .n_micro_batches = 1,
        .config = small_config(),
        .optimizer = {.kind = OPTIMIZER_ADAMW, .rate = 1e-3, .clip = 1.0, .adamw = {.epsilon = 1e-8}}};
}

static void fill_zeros(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                       int32_t *targets) {
    (void)context, (void)first_sequence;
    memset(tokens, 0, (size_t)(B * T) * sizeof *tokens);
    memset(targets, 0, (size_t)(B * T) * sizeof *targets);
}

#define OK(call)                                                                                             \
    do {                                                                                                     \
        Error ok_error = {0}, *error = &ok_error;                                                            \
        if ((call) != STATUS_OK) fail_msg("%s", ok_error.text);                                              \
    } while (0)

static void plan_rank(Ranks *ranks, int rank) {
    const Setup *setup = ranks->setup;
    int64_t share = 5, batch = share * setup->n_ranks - setup->n_ranks / 2; /* some have one less */
    StepOptions options = {.batch = batch,
                           .micro_batch = (share + setup->n_micro_batches - 1) / setup->n_micro_batches,
                           .T = setup->config.context,
                           .recompute = setup->recompute,
                           .precision = setup->precision,
                           .sync = {.mesh = &ranks->mesh[rank],
                                    .zero = setup->zero,
                                    .bucket_bytes = setup->bucket_bytes,
                                    .overlaps = setup->overlaps,
                                    .left_out = setup->left_out}};
    OK(train_step_plan(&ranks->step[rank], &setup->config, &ranks->table, &options,
                       setup->is_evaluation ? NULL : &setup->optimizer, &ranks->backend, error));
}

static Ranks *open_ranks(Setup *setup) {
    Ranks *ranks = calloc(1, sizeof *ranks);
    assert_non_null(ranks);
    ranks->setup = setup;
    OK(config_complete(&setup->config, setup->config.vocabulary, error));
    OK(backend_null_open(&ranks->backend, error));
    OK(parameters_build(&ranks->table, &setup->config, error));
    OK(comm_null_open(&ranks->data_group, setup->n_ranks, error));
    OK(comm_null_open(&ranks->control_group, setup->n_ranks, error));
    for (int rank = 0; rank < setup->n_ranks; rank++) {
        ranks->data[rank] = comm_null_rank(ranks->data_group, rank);
        ranks->data[rank].all_reduce = &ALGORITHM_RING;
        ranks->mesh[rank] = mesh_of(&ranks->data[rank], &ranks->control[rank]);
        ranks->control[rank] = comm_null_rank(ranks->control_group, rank);
        plan_rank(ranks, rank);
    }
    return ranks;
}

static void close_ranks(Ranks *ranks) {
    for (int rank = 0; rank < ranks->setup->n_ranks; rank++) {
        train_step_close(&ranks->step[rank]);
        device_close(&ranks->memory[rank]);
        comm_close(&ranks->data[rank]);
        comm_close(&ranks->control[rank]);
    }
    comm_null_close(ranks->data_group);
    comm_null_close(ranks->control_group);
    parameters_free(&ranks->table);
    ranks->backend.close(ranks->backend.context);
    free(ranks);
}

/* One step on every rank; what it sent. */
static CommCost run_ranks(Ranks *ranks) {
    BatchSource source = {fill_zeros, NULL};
    for (int rank = 0; rank < ranks->setup->n_ranks; rank++) {
        TrainStep *step = &ranks->step[rank];
        double loss;
        StepResult result;
        device_require(&ranks->memory[rank], &step->program.plan);
        OK(device_open(&ranks->memory[rank], &ranks->backend, error));
        OK(train_step_open(step, &ranks->memory[rank], error));
        if (ranks->setup->is_evaluation) OK(evaluate_step_run(step, &source, 0, 7, &loss, error));
        else OK(train_step_run(step, &source, 0, 1e-3, &result, error));
    }
    CommCost cost;
    OK(comm_null_count(ranks->control_group, &cost, error));
    OK(comm_null_count(ranks->data_group, &cost, error));
    return cost;
}

/* ---- instructions ---- */

static bool is_start(const Node *node) {
    return node->op == &OP_ALL_REDUCE || node->op == &OP_REDUCE_SCATTER || node->op == &OP_ALL_GATHER;
}

static int count_op(const TrainStep *step, const Op *op) {
    int n = 0;
    for (int i = 0; i < step->graph->n_nodes; i++) n += step->graph->node[i]->op == op;
    return n;
}

static bool overlap(Tensor *a, Tensor *b) {
    if (!a || !b || tensor_root(a)->place != tensor_root(b)->place) return false;
    return a->offset < b->offset + tensor_bytes(b) && b->offset < a->offset + tensor_bytes(a);
}

/* Does the node read or write any byte of the tensor, whatever lies there? */
static bool touches_bytes(const Node *node, Tensor *tensor) {
    bool touches = overlap(node->scratch, tensor);
    for (int k = 0; k < node->n_inputs; k++) touches |= overlap(node->input[k], tensor);
    for (int k = 0; k < node->n_outputs; k++) touches |= overlap(node->output[k], tensor);
    return touches;
}

static bool reads_root(const Node *node, const Tensor *root) {
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->input[k] && tensor_root(node->input[k]) == root) return true;
    }
    return false;
}

static int find_wait(const Graph *graph, int start) {
    Tensor *data = graph->node[start]->output[0];
    for (int i = start + 1; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->op == &OP_COMM_WAIT && node->output[0] == data) return i;
        if (touches_bytes(node, data))
            fail_msg("instruction %d (%s) touches %s, which has been under way since %d", i, node->op->name,
                     data->name, start);
    }
    fail_msg("%s, instruction %d, is never waited for", graph->node[start]->op->name, start);
    return -1;
}

/* What is started in a loop is waited for in it: once for each micro-batch, or both once. */
static void check_loops(const Node *start, const Node *wait) {
    bool starts_once = start->section == SECTION_UPDATE || start->is_last_only;
    bool waits_once = wait->section == SECTION_UPDATE || wait->is_last_only;
    assert_int_equal(starts_once, waits_once);
    assert_int_equal(start->phase, PHASE_COMMUNICATION);
    assert_int_equal(wait->phase, PHASE_COMMUNICATION);
}

/* Gradients are complete when they leave, and what comes back is read only afterwards. */
static void check_use(const Graph *graph, int start, int wait) {
    Tensor *data = graph->node[start]->output[0];
    const Tensor *root = tensor_root(data);
    bool is_gradient = graph->node[start]->op != &OP_ALL_GATHER;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (i == start || i == wait) continue;
        if (is_gradient && root->place == PLACE_GRADIENT && i > start && node->section != SECTION_UPDATE)
            assert_false(touches_bytes(node, data));
        if (is_gradient && root->place == PLACE_ACTIVATION && i > start)
            assert_false(node_writes_root(node, root));
        if (!is_gradient && root->place == PLACE_ACTIVATION && reads_root(node, root)) assert_true(i > wait);
    }
}

/* Returns how many operations run beside something else. */
static int check_program(const TrainStep *step) {
    const Graph *graph = step->graph;
    int n_starts = 0, n_waits = 0, n_beside = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        n_waits += node->op == &OP_COMM_WAIT;
        if (!is_start(node)) continue;
        int wait = find_wait(graph, i);
        check_loops(node, graph->node[wait]);
        check_use(graph, i, wait);
        n_starts++;
        n_beside += wait > i + 1;
        if (!step->options.sync.overlaps) assert_int_equal(wait, i + 1);
    }
    assert_int_equal(n_starts, n_waits);
    return n_beside;
}

/* ---- counted bytes ---- */

/* Elements of everything that is communicated by this op in a step. */
static int64_t moved(const TrainStep *step, const Op *op) {
    int64_t n = 0;
    for (int i = 0; i < step->graph->n_nodes; i++) {
        const Node *node = step->graph->node[i];
        bool runs_once = node->section == SECTION_UPDATE || node->is_last_only;
        if (node->op == op) n += tensor_count(node->output[0]) * (runs_once ? 1 : step->n_micro_batches);
    }
    return n;
}

static void check_moved(const Ranks *ranks, int64_t total_bytes) {
    const Setup *setup = ranks->setup;
    const TrainStep *step = &ranks->step[0];
    int64_t n_flat = ranks->table.n_flat_elements, n_hops = setup->n_ranks - 1;
    int64_t n_micro = step->n_micro_batches, n_left_out = 0;
    if (setup->left_out) n_left_out = step->sync.partition.unit[setup->left_out - 1].n;
    int64_t reduced = n_flat - n_left_out, gathered = moved(step, &OP_ALL_GATHER);
    assert_true(moved(step, &OP_ALL_REDUCE) == (setup->zero == 0 ? reduced : 0));
    int64_t scattered = setup->zero == 0 ? 0 : setup->zero == 1 ? reduced : n_micro * reduced;
    assert_true(moved(step, &OP_REDUCE_SCATTER) == scattered);
    if (setup->zero < 3) assert_true(gathered == (setup->zero == 0 ? 0 : n_flat));
    else
        assert_true(gathered >= n_micro * n_flat && gathered <= 2 * n_micro * n_flat); /* forward, backward */
    int64_t scalars = moved(step, &OP_SCALAR_SUM);
    assert_true(scalars == (setup->zero && setup->optimizer.clip > 0.0));
    int64_t whole = setup->zero == 0 ? reduced : 0;
    assert_true(total_bytes == 4 * n_hops * (2 * whole + scattered + gathered + 2 * scalars));
}

/* What the instructions say that they cost is what was counted: both sides of every message. */
static void check_costs(const Ranks *ranks, int64_t total_bytes) {
    double n_bytes = 0.0;
    for (int rank = 0; rank < ranks->setup->n_ranks; rank++) {
        const TrainStep *step = &ranks->step[rank];
        Cost all = {0};
        for (int i = 0; i < step->graph->n_nodes; i++) {
            const Node *node = step->graph->node[i];
            double n_runs = (double)step->executor.instruction[i].n_runs;
            Cost cost = op_cost(node);
            all.bytes += n_runs * cost.bytes;
            all.flops += n_runs * cost.flops;
            if (node->op->is_portable) n_bytes += n_runs * cost.bytes;
        }
        Cost told = program_cost(&step->program);
        assert_true(fabs(told.bytes - all.bytes) <= 1e-9 * all.bytes);
        assert_true(fabs(told.flops - all.flops) <= 1e-9 * all.flops);
    }
    assert_true(fabs(n_bytes - 2.0 * (double)total_bytes) <= 1e-9 * n_bytes);
}

/* ---- planned memory ---- */

static size_t aligned(int64_t n_elements, DType dtype) {
    size_t n_bytes = (size_t)n_elements * dtype_info(dtype)->n_bytes;
    return (n_bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

static size_t state_bytes(const TrainStep *step) {
    const size_t *bytes = step->program.plan.bytes;
    return bytes[PLACE_PARAMETER] + bytes[PLACE_GRADIENT] + bytes[PLACE_OPTIMIZER];
}

/* Each kind is whole or cut up by its stage; the sums over all ranks are the whole, and the formula is as far away as
 * the padding of parameters and the grain of slices. */
static void check_memory(const Ranks *ranks) {
    const Setup *setup = ranks->setup;
    int64_t n_flat = ranks->table.n_flat_elements, n_sum = 0;
    int n_moments = optimizer_n_moments(&setup->optimizer);
    for (int rank = 0; rank < setup->n_ranks; rank++) {
        const TrainStep *step = &ranks->step[rank];
        const size_t *bytes = step->program.plan.bytes;
        int64_t n_local = step->sync.partition.n_local;
        n_sum += n_local;
        Precision precision = setup->precision;
        int64_t n_update = setup->zero ? n_local : n_flat;
        size_t optimizer_bytes = (size_t)n_moments * aligned(n_update, precision.moment);
        if (precision.has_master) optimizer_bytes += aligned(n_update, DTYPE_F32);
        assert_int_equal(bytes[PLACE_PARAMETER],
                         aligned(setup->zero == 3 ? n_local : n_flat, precision.weight));
        assert_int_equal(bytes[PLACE_GRADIENT],
                         aligned(setup->zero >= 2 ? n_local : n_flat, precision.gradient));
        assert_int_equal(bytes[PLACE_OPTIMIZER], optimizer_bytes);
        double formula = sync_state_bytes(&step->options.sync, precision,
                                          parameters_count_groups(&ranks->table), n_moments);
        double padding = (double)(n_flat - ranks->table.n_elements);
        double grains = (double)step->sync.partition.n_units * 2.0 * PARTITION_GRAIN;
        double allowed = 4.0 * (3 + n_moments) * (padding + grains) + 5.0 * PLAN_ALIGNMENT;
        assert_true(fabs((double)state_bytes(step) - formula) <= allowed);
    }
    assert_true(n_sum == n_flat);
}

/* ---- all layouts ---- */

static void check_setup(Setup setup) {
    Ranks *ranks = open_ranks(&setup);
    int n_beside = 0;
    for (int rank = 0; rank < setup.n_ranks; rank++) n_beside += check_program(&ranks->step[rank]);
    if (ranks->step[0].sync.partition.n_units > 1) assert_int_equal(n_beside > 0, setup.overlaps);
    check_memory(ranks);
    CommCost cost = run_ranks(ranks);
    check_moved(ranks, cost.total_bytes);
    check_costs(ranks, cost.total_bytes);
    close_ranks(ranks);
}

static void test_layouts(void **state) {
    (void)state;
    static const int n_ranks[] = {2, 3, 4, 7};
    for (int i = 0; i < 16; i++) {
        for (int zero = 0; zero <= LAST_STAGE; zero++) {
            Setup setup = small_setup(n_ranks[i % 4], zero);
            setup.overlaps = i % 3 != 1;
            setup.n_micro_batches = 1 + i / 4 % 3;
            setup.recompute = i % 5 == 2;
            if (i % 4 == 3) setup.bucket_bytes = 0; /* each parameter for itself */
            if (i == 5) setup.bucket_bytes = 1 << 30;
            check_setup(setup);
        }
    }
}

static void test_models(void **state) {
    (void)state;
    for (int zero = 0; zero <= LAST_STAGE; zero++) {
        Setup setup = small_setup(3, zero);
        setup.config.tied = setup.config.bias = false;
        setup.config.norm = NORM_RMSNORM;
        setup.config.mlp = MLP_SWIGLU;
        setup.config.position = POSITION_ROTARY;
        setup.config.n_heads = 5; /* of size 4 */
        setup.recompute = 1;
        check_setup(setup);
        setup = small_setup(4, zero);
        setup.optimizer =
            (OptimizerOptions){.kind = OPTIMIZER_SGD, .rate = 0.1}; /* neither clipped nor moments */
        setup.n_micro_batches = 2;
        check_setup(setup);
        setup.optimizer.sgd.momentum = 0.9;
        check_setup(setup);
    }
}

/* With 16-bit numbers the same instructions on shorter tensors; sums of them travel in 32 bits. */
static void test_precisions(void **state) {
    (void)state;
    for (int i = 0; i < N_PRECISIONS * (LAST_STAGE + 1); i++) {
        Setup setup = small_setup(3, i % (LAST_STAGE + 1));
        setup.precision = precision_of((PrecisionKind)(i / (LAST_STAGE + 1)));
        setup.n_micro_batches = 2;
        Ranks *ranks = open_ranks(&setup);
        for (int rank = 0; rank < setup.n_ranks; rank++) check_program(&ranks->step[rank]);
        check_memory(ranks);
        int64_t reduced = 2 * moved(&ranks->step[0], &OP_ALL_REDUCE) +
                          moved(&ranks->step[0], &OP_REDUCE_SCATTER) +
                          2 * moved(&ranks->step[0], &OP_SCALAR_SUM);
        int64_t gathered = moved(&ranks->step[0], &OP_ALL_GATHER);
        int64_t weight_bytes = (int64_t)dtype_info(setup.precision.weight)->n_bytes;
        assert_true(run_ranks(ranks).total_bytes == 2 * (4 * reduced + weight_bytes * gathered));
        close_ranks(ranks);
    }
}

/* Some ranks have no part of most parameters; all still take part. */
static void test_many_ranks(void **state) {
    (void)state;
    for (int zero = 0; zero <= LAST_STAGE; zero++) {
        Setup setup = small_setup(MOST_RANKS, zero);
        setup.config.n_channels = 4;
        setup.config.vocabulary = 3;
        setup.config.n_layers = 1;
        setup.bucket_bytes = 0;
        check_setup(setup);
    }
}

/* A sum that is left out is left out alone, on purpose. */
static void test_left_out(void **state) {
    (void)state;
    for (int zero = 0; zero <= LAST_STAGE; zero++) {
        Setup setup = small_setup(2, zero);
        Ranks *whole = open_ranks(&setup);
        const Op *op = zero ? &OP_REDUCE_SCATTER : &OP_ALL_REDUCE;
        int n_units = whole->step[0].sync.partition.n_units, n_sums = count_op(&whole->step[0], op);
        close_ranks(whole);
        assert_int_equal(n_sums, n_units);
        assert_true(n_units > 2);
        for (setup.left_out = 1; setup.left_out <= n_units; setup.left_out++) {
            Ranks *ranks = open_ranks(&setup);
            assert_int_equal(count_op(&ranks->step[0], op), n_sums - 1);
            close_ranks(ranks);
            check_setup(setup);
        }
    }
}

/* Evaluation communicates where weights are cut up, and only then. */
static void test_evaluation(void **state) {
    (void)state;
    for (int zero = 0; zero <= LAST_STAGE; zero++) {
        Setup setup = small_setup(3, zero);
        setup.is_evaluation = true;
        Ranks *ranks = open_ranks(&setup);
        for (int rank = 0; rank < 3; rank++) {
            check_program(&ranks->step[rank]);
            int64_t n = zero == 3 ? ranks->step[rank].sync.partition.n_local : ranks->table.n_flat_elements;
            assert_int_equal(ranks->step[rank].program.plan.bytes[PLACE_PARAMETER], aligned(n, DTYPE_F32));
        }
        int64_t gathered = moved(&ranks->step[0], &OP_ALL_GATHER);
        assert_int_equal(gathered > 0, zero == 3);
        assert_int_equal(run_ranks(ranks).total_bytes > 0, zero == 3);
        close_ranks(ranks);
    }
}

/* Alone, whatever the options say, the step is the serial one. */
static void test_alone(void **state) {
    (void)state;
    Setup setup = small_setup(1, 3);
    Ranks *ranks = open_ranks(&setup);
    assert_int_equal(ranks->step[0].sync.zero, 0);
    for (int i = 0; i < ranks->step[0].graph->n_nodes; i++)
        assert_false(ranks->step[0].graph->node[i]->op->is_portable);
    assert_int_equal(run_ranks(ranks).total_bytes, 0);
    close_ranks(ranks);
}

/* A step of a real size: 10.8 million parameters on four ranks. */
static void test_mini(void **state) {
    (void)state;
    size_t activations[LAST_STAGE + 1];
    for (int zero = 0; zero <= LAST_STAGE; zero++) {
        Setup setup = small_setup(4, zero);
        setup.config = (ModelConfig){.n_layers = 6,
                                     .n_heads = 6,
                                     .n_channels = 384,
                                     .context = 256,
                                     .vocabulary = 65,
                                     .tied = true,
                                     .bias = true};
        setup.bucket_bytes = 4 << 20;
        Ranks *ranks = open_ranks(&setup);
        check_memory(ranks);
        for (int rank = 0; rank < 4; rank++) {
            const TrainStep *step = &ranks->step[rank];
            double formula = sync_state_bytes(&step->options.sync, (Precision){0},
                                              parameters_count_groups(&ranks->table), 2);
            assert_true(fabs((double)state_bytes(step) - formula) <= 0.01 * formula);
            check_program(step);
        }
        activations[zero] = ranks->step[0].program.plan.bytes[PLACE_ACTIVATION];
        /* Whole only for a while: the weights of a few blocks, the gradients of two. */
        size_t block = (size_t)(ranks->table.n_flat_elements / 6) * sizeof(float);
        assert_true(activations[zero] <= activations[0] + 4 * block);
        close_ranks(ranks);
    }
}

/* ---- times ---- */

static Status start_nothing(void *context, const CommOperation *operation, CommTicket *ticket, Error *error) {
    (void)context, (void)operation, (void)ticket, (void)error;
    return STATUS_OK;
}

/* Of communication on a device the host knows nothing, along whichever axis it is. */
static void test_times(void **state) {
    (void)state;
    static const CommTable of_device = {.name = "device", .only_enqueues = true, .start = start_nothing};
    const Comm device = {.table = &of_device, .size = 2};
    StepClock before = {0}, after = {.busy_ns = 5000000, .stage_ns = 2000000};
    Comm data = {.size = 1}, world = {.size = 2};
    for (int axis = -1; axis < N_AXES; axis++) { /* -1: none */
        Mesh mesh = mesh_of(&data, &world);
        TrainStep step = {.options.sync.mesh = &mesh};
        StepResult result;
        if (axis >= 0) mesh.device[axis] = device;
        train_step_times(&step, &before, &after, 1, &result);
        assert_int_equal(isnan(result.comm_ms), axis >= 0);
        assert_int_equal(isnan(result.stage_wait_ms), axis >= 0);
        assert_int_equal(isnan(result.comm_wait_ms), axis >= 0);
        if (axis < 0) assert_float_equal(result.comm_ms, 5.0, 1e-9);
    }
    PipelineBorder border[1][N_BORDERS] = {{{.exists = true, .other = 1}}};
    Pipeline pipeline = {.layout = {SCHEDULE_1F1B, 2, 1}, .border = border};
    Mesh mesh = mesh_of(&data, &world);
    TrainStep step = {.options = {.sync.mesh = &mesh, .pipeline = &pipeline}};
    StepResult result;
    for (int is_device = 0; is_device < 2; is_device++) {
        if (is_device) border[0][BORDER_BELOW].device[PIPELINE_FORWARD] = device;
        train_step_times(&step, &before, &after, 1, &result);
        assert_int_equal(isnan(result.stage_wait_ms), is_device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),      cmocka_unit_test(test_layouts),    cmocka_unit_test(test_models),
        cmocka_unit_test(test_precisions), cmocka_unit_test(test_many_ranks), cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_evaluation), cmocka_unit_test(test_alone),      cmocka_unit_test(test_mini),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
