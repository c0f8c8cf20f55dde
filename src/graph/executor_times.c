/* Where the time of a program went, by operation. */
#include "graph/executor.h"

#include "base/text/format.h"

#include <stdlib.h>
#include <string.h>

void executor_reset_times(Executor *executor) {
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        executor->instruction[i].n_runs = executor->instruction[i].elapsed_ns = 0;
    }
    memset(executor->phase_ns, 0, sizeof executor->phase_ns);
}

typedef struct {
    const Op *op;
    uint64_t n_runs, elapsed_ns;
    Cost cost;
} OpTime;

static int by_time(const void *a, const void *b) {
    const OpTime *x = a, *y = b;
    return x->elapsed_ns < y->elapsed_ns ? 1 : x->elapsed_ns > y->elapsed_ns ? -1 : 0;
}

static int collect_times(const Executor *executor, OpTime *times, uint64_t *total_ns) {
    int n_ops = 0;
    for (int i = 0; i < executor->program->graph->n_nodes; i++) {
        const Instruction *instruction = &executor->instruction[i];
        const Node *node = executor->program->graph->node[i];
        int k = 0;
        while (k < n_ops && times[k].op != node->op) k++;
        if (k == n_ops) times[n_ops++] = (OpTime){.op = node->op};
        Cost cost = op_cost(node);
        times[k].n_runs += instruction->n_runs;
        times[k].elapsed_ns += instruction->elapsed_ns;
        times[k].cost.flops += cost.flops * (double)instruction->n_runs;
        times[k].cost.bytes += cost.bytes * (double)instruction->n_runs;
        *total_ns += instruction->elapsed_ns;
    }
    qsort(times, (size_t)n_ops, sizeof *times, by_time);
    return n_ops;
}

void executor_print_times(const Executor *executor, FILE *stream) {
    Arena scratch = {0};
    OpTime *times = ARENA_ARRAY(&scratch, OpTime, executor->program->graph->n_nodes + 1);
    uint64_t total_ns = 0;
    int n_ops = collect_times(executor, times, &total_ns);
    fprintf(stream, "%-28s %8s %10s %7s %14s %12s\n", "operation", "runs", "time", "share", "arithmetic",
            "traffic");
    for (int i = 0; i < n_ops; i++) {
        double seconds = (double)times[i].elapsed_ns * 1e-9;
        if (!times[i].n_runs) continue;
        fprintf(stream, "%-28s %8llu %10s %5.1f %% %14s %12s\n", times[i].op->name,
                (unsigned long long)times[i].n_runs, format_duration(seconds).text,
                100.0 * (double)times[i].elapsed_ns / (double)(total_ns ? total_ns : 1),
                format_rate(times[i].cost.flops / seconds, "FLOP/s").text,
                format_rate(times[i].cost.bytes / seconds, "B/s").text);
    }
    arena_free(&scratch);
}
