/* A repeated GEMM tells a block that is made again from one of which only what is cheap is. */
#include "plan/repeat.h"

#include <math.h>

static double seconds_of(const StepSimulator *simulator, const Node *node) {
    if (node->phase == PHASE_COMMUNICATION) return simulate_comm_seconds(simulator->links, node);
    return node->op->is_portable ? 0.0 : rank_node_time(simulator->speed, node).seconds;
}

static double sum(const StepSimulator *simulator, const Program *program, Section section, int chunk,
                  bool recomputed, bool *has_gemms) {
    ProgramPart part = program_part(program, section, chunk);
    double seconds = 0.0, M, N, K;
    for (int i = part.first; i < part.first + part.count; i++) {
        const Node *node = program->graph->node[i];
        if (node->block == NO_BLOCK || node->is_recomputed != recomputed) continue;
        *has_gemms = *has_gemms || node_gemm(node, &M, &N, &K);
        seconds += seconds_of(simulator, node);
    }
    return seconds;
}

double repeat_whole_seconds(const StepSimulator *simulator, const Program *program, int chunk) {
    bool repeats = false, computes = false;
    double again = sum(simulator, program, SECTION_BACKWARD, chunk, true, &repeats);
    if (!repeats) return 0.0;
    return fmax(sum(simulator, program, SECTION_FORWARD, chunk, false, &computes) - again, 0.0);
}
