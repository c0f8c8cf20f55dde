/* Whether a step goes over the bus, to a disk or has its update on the host is read from its program. The
 * host's memory is measured by as many threads as its update runs on, which beside a GPU are not the
 * backend's own. */
#include "bench/step_bound.h"

#include "bench/limits.h"
#include "graph/op.h"
#include "ops/move.h"

#include <math.h>

enum { DISK_BYTES = 256 << 20 };

static bool is_move(const Node *node) {
    return node->op == &OP_OFFLOAD || node->op == &OP_FETCH || node->op == &OP_MOVE_WAIT;
}

static bool is_in_file(Tensor *tensor) {
    return tensor && place_is_file(tensor_root(tensor)->place);
}

/* A start of a move between a device and anything else. */
static bool crosses_bus(const BenchTraining *training, const Node *node) {
    return (node->op == &OP_OFFLOAD || node->op == &OP_FETCH) && backend_has_own_memory(&training->backend) &&
           !is_in_file(node->input[0]) && !is_in_file(node->output[0]);
}

static bool is_of_host(const BenchTraining *training, const Node *node) {
    return backend_leaves_to_host(&training->backend, node) && !is_move(node);
}

Status bench_bound_rates(const BenchTraining *training, BenchBound *bound, Error *error) {
    const Graph *graph = training->step.graph;
    const MemoryPlan *plan = &training->step.program.plan;
    bool has_bus = false;
    double host_bytes = 0.0;
    for (int i = 0; i < graph->n_nodes; i++) {
        has_bus |= crosses_bus(training, graph->node[i]);
        if (is_of_host(training, graph->node[i])) host_bytes += op_cost(graph->node[i]).bytes;
    }
    bound->host_bytes = host_bytes;
    if (has_bus && bound->bus.both <= 0.0) TRY(bench_bus_rates(&training->backend, &bound->bus, error));
    if (host_bytes > 0.0) {
        double rate = 0.0;
        TRY(bench_memory_bandwidth(backend_host_threads(&training->backend), &rate, error));
        bound->copy_rate = fmax(bound->copy_rate, rate);
    }
    uint64_t n_file = plan_bytes_of(plan, MEMORY_FILE);
    if (!n_file) return STATUS_OK;
    return bench_disk_rates(plan->folder, plan->file_queue, n_file < DISK_BYTES ? n_file : DISK_BYTES,
                            &bound->disk, error);
}

/* Seconds of a step's instructions that neither move nor are the host's beside a device. */
static double compute_seconds(const BenchTraining *training, int64_t n_timed) {
    const Executor *executor = &training->step.executor;
    double sum = 0.0;
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        const Node *node = executor->program->graph->node[i];
        if (!is_move(node) && !is_of_host(training, node))
            sum += 1e-9 * (double)executor->instruction[i].elapsed_ns;
    }
    return sum / (double)n_timed;
}

void bench_bound_make(const BenchTraining *training, const MoverCounts *first, const MoverCounts *last,
                      int64_t n_moved, int64_t n_timed, BenchBound *bound) {
    double n = (double)n_moved;
    for (int lane = 0; lane < N_MOVE_LANES; lane++) {
        bound->bus_bytes[lane] = (double)(last->bus_bytes[lane] - first->bus_bytes[lane]) / n;
        bound->file_bytes[lane] = (double)(last->file_bytes[lane] - first->file_bytes[lane]) / n;
    }
    bound->wait_ms = 1e3 * (last->wait_seconds - first->wait_seconds) / n;
    bound->bus_ms = 1e3 * move_seconds(&bound->bus, bound->bus_bytes[MOVE_OUT], bound->bus_bytes[MOVE_IN]);
    bound->disk_ms =
        1e3 * move_seconds(&bound->disk, bound->file_bytes[MOVE_OUT], bound->file_bytes[MOVE_IN]);
    bound->host_ms = bound->host_bytes > 0.0 ? 1e3 * bound->host_bytes / bound->copy_rate : 0.0;
    bound->compute_ms = 1e3 * compute_seconds(training, n_timed);
    bound->bound_ms = fmax(fmax(bound->bus_ms, bound->disk_ms), fmax(bound->host_ms, bound->compute_ms));
}
