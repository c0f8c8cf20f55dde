/* Building is the last pass; printing is for people: one line an instruction, what it writes on the left,
 * what it reads on the right, so that the data flow of a whole training step can be followed with a
 * finger. */
#include "graph/program.h"

#include "base/text/format.h"

#include <string.h>

Kernel backend_kernel(const Backend *backend, const Node *node) {
    if (backend_leaves_to_host(backend, node) && !backend->only_plans)
        return backend->host.kernel(backend->host.context, node);
    return node->op->is_portable ? node->op->reference : backend->kernel(backend->context, node);
}

bool backend_has_own_memory(const Backend *backend) {
    return traits_has_own_memory(&backend->traits);
}

/* The traits of whoever runs the node. */
static const BackendTraits *traits_of(const Backend *backend, const Node *node) {
    return backend_leaves_to_host(backend, node) ? &backend->host.traits : &backend->traits;
}

/* The host runs its own one after the other: one for all of them. */
static void add_host_scratch(Graph *graph, const Backend *backend) {
    size_t most = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        size_t n_bytes = node->is_on_host ? traits_scratch_bytes(traits_of(backend, node), node) : 0;
        if (n_bytes > most) most = n_bytes;
    }
    if (!most) return;
    Tensor *scratch = graph_tensor(graph, PLACE_HOST, DTYPE_I32, SHAPE((int64_t)((most + 3) / 4)), "scratch");
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->is_on_host) graph->node[i]->scratch = scratch;
    }
}

static void add_scratch(Graph *graph, const Backend *backend) {
    add_host_scratch(graph, backend);
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        size_t n_bytes = node->is_on_host ? 0 : traits_scratch_bytes(&backend->traits, node);
        if (!n_bytes) continue;
        int64_t words = (int64_t)((n_bytes + 3) / 4);
        node->scratch = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(words), "scratch");
    }
}

/* The update is one part. */
static ProgramPart *part_of(const Program *program, Section section, int chunk) {
    int at = section_is_of_step(section) ? 0 : chunk;
    return &program->part[(int)section * program->plan.n_chunks + at];
}

ProgramPart program_part(const Program *program, Section section, int chunk) {
    if (section_is_of_step(section) && chunk != 0) return (ProgramPart){program->first[section], 0};
    return *part_of(program, section, chunk);
}

/* A counting sort by section and chunk. Stable: nodes keep their order within a part. */
static void sort_parts(Program *program) {
    Graph *graph = program->graph;
    int n_parts = N_SECTIONS * program->plan.n_chunks;
    program->part = ARENA_ARRAY(&graph->arena, ProgramPart, n_parts);
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        part_of(program, node->section, node->chunk)->count++;
        program->count[node->section]++;
    }
    for (int part = 1; part < n_parts; part++)
        program->part[part].first = program->part[part - 1].first + program->part[part - 1].count;
    for (int section = 0; section < N_SECTIONS; section++)
        program->first[section] = part_of(program, (Section)section, 0)->first;
    Node **sorted = ARENA_ARRAY(&graph->arena, Node *, graph->n_nodes + 1);
    for (int part = 0; part < n_parts; part++) program->part[part].count = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        ProgramPart *part = part_of(program, graph->node[i]->section, graph->node[i]->chunk);
        sorted[part->first + part->count++] = graph->node[i];
    }
    graph->node = sorted;
    graph->node_capacity = graph->n_nodes;
}

static Status check_chunks(const Graph *graph, int n_chunks, Error *error) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (section_is_of_step(node->section) || (node->chunk >= 0 && node->chunk < n_chunks)) continue;
        return error_failed(error, "the instruction '%s' is of chunk %d, and the program has %d",
                            node->op->name, node->chunk, n_chunks);
    }
    return STATUS_OK;
}

static void assign_lanes(Program *program, int n_lanes) {
    Graph *graph = program->graph;
    program->lane = ARENA_ARRAY(&graph->arena, LaneStep, graph->n_nodes + 1);
    for (int i = 0; i < N_SECTIONS * program->plan.n_chunks; i++) {
        ProgramPart part = program->part[i];
        lanes_assign(graph, part.first, part.count, n_lanes, program->lane + part.first);
    }
}

Status program_build(Program *program, const char *name, Graph *graph, const Backend *backend,
                     int n_micro_batches, Error *error) {
    return program_build_chunks(program, name, graph, backend, n_micro_batches, 1, (int[]){1}, error);
}

static Status check_kernels(const Graph *graph, const Backend *backend, Error *error) {
    const Node *missing = NULL;
    const BackendTraits *traits = &backend->traits;
    int n_missing = traits_missing_kernels(traits, graph, &missing);
    const char *reason = n_missing && traits->why_not ? traits->why_not(traits, missing) : NULL;
    if (reason) return error_user(error, "--device %s: %s", backend->name, reason);
    if (n_missing) {
        return error_failed(error,
                            "the %s backend has no kernel for '%s' (%d of %d instructions cannot run on it)",
                            backend->name, missing->op->name, n_missing, graph->n_nodes);
    }
    if (traits->alignment > PLAN_ALIGNMENT)
        return error_failed(error, "the %s backend wants tensors at multiples of %zu bytes; %d are planned",
                            backend->name, traits->alignment, PLAN_ALIGNMENT);
    return STATUS_OK;
}

Status program_build_chunks(Program *program, const char *name, Graph *graph, const Backend *backend,
                            int n_micro_batches, int n_chunks, const int *chunk_frames, Error *error) {
    *program = (Program){.name = name,
                         .graph = graph,
                         .n_forward_runs = n_micro_batches,
                         .n_updates = 1,
                         .regimes = REGIME_COMPRESSED | REGIME_LATER | REGIME_LATE | REGIME_AHEAD};
    program->plan.n_chunks = n_chunks;
    const BackendTraits *traits = &backend->traits;
    int n_lanes = traits_n_lanes(traits) < LANES_MOST ? traits_n_lanes(traits) : LANES_MOST;
    TRY(graph_status(graph, error));
    TRY(check_kernels(graph, backend, error));
    TRY(check_chunks(graph, n_chunks, error));
    add_scratch(graph, backend);
    sort_parts(program);
    for (int i = 0; i < graph->n_nodes; i++) program->n_recomputed += graph->node[i]->is_recomputed;
    TRY(plan_memory(graph, n_lanes > 1, n_chunks, chunk_frames, &program->plan, error));
    for (int place = 0; place < N_PLACES; place++)
        program->plan.kind[place] = plan_memory_kind(traits, (Place)place);
    if (n_lanes > 1) assign_lanes(program, n_lanes);
    return graph_status(graph, error);
}

Cost program_section_cost(const Program *program, Section section) {
    Cost total = {0};
    for (int i = 0; i < program->count[section]; i++) {
        Cost cost = op_cost(program->graph->node[program->first[section] + i]);
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    }
    return total;
}

int program_node_runs(const Program *program, const Node *node) {
    if (node->section == SECTION_REDO || !node_is_of(node, program->regimes)) return 0; /* hardly ever */
    if (section_is_of_step(node->section) || node->is_last_only) return program->n_updates;
    return program->n_forward_runs - node->is_not_last;
}

Cost program_cost(const Program *program) {
    Cost total = {0};
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        Cost cost = op_cost(node);
        double runs = (double)program_node_runs(program, node);
        total.flops += runs * cost.flops;
        total.bytes += runs * cost.bytes;
    }
    return total;
}

double program_useful_flops(const Program *program) {
    double again = 0.0;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        if (program->graph->node[i]->is_recomputed) again += op_cost(program->graph->node[i]).flops;
    }
    return program_cost(program).flops - again * (double)program->n_forward_runs;
}

static void print_tensor(const Tensor *tensor, WriteMode mode, FILE *stream) {
    static const char *const marks[] = {"", "+=", "+=*"};
    static const char *const places[N_PLACES] = {"par",   "grad", "opt",  "state",  "in",    "act",
                                                 "frame", "host", "file", "hostfr", "filefr"};
    char shape[80];
    fprintf(stream, " %s%s%s%s@%s+%zu", tensor->name, shape_format(tensor->shape, shape, sizeof shape),
            tensor->dtype == DTYPE_F32 ? "" : dtype_info(tensor->dtype)->name, marks[mode],
            places[tensor->place], tensor->offset);
}

static void print_node(const Program *program, int index, FILE *stream) {
    const Node *node = program->graph->node[index];
    char description[96] = "";
    if (node->op->describe) node->op->describe(node, description, sizeof description);
    Cost cost = op_cost(node);
    fprintf(stream, "%5d  %-8s  ", index, section_name(node->section));
    if (program->plan.n_chunks > 1) fprintf(stream, "%3d  ", node->chunk);
    fprintf(stream, "%-24s %10s %8sFLOP ", node->op->name, format_bytes((uint64_t)cost.bytes).text,
            format_count(cost.flops).text);
    for (int k = 0; k < node->n_outputs; k++) {
        if (node->output[k]) print_tensor(node->output[k], node->write[k], stream);
    }
    fprintf(stream, "  <- ");
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->input[k]) print_tensor(node->input[k], WRITE_FRESH, stream);
    }
    if (node->scratch) print_tensor(node->scratch, WRITE_FRESH, stream);
    if (node->is_recomputed) fprintf(stream, "  [recomputed]");
    if (node->is_last_only) fprintf(stream, "  [last micro-batch]");
    if (node->is_not_last) fprintf(stream, "  [not last micro-batch]");
    for (int bit = 0; bit < N_REGIMES; bit++)
        if (node->regimes & 1 << bit) fprintf(stream, "  [%s]", regime_name(1 << bit));
    fprintf(stream, "%s%s\n", *description ? "  " : "", description);
}

/* Of each chunk, where a place is there more than once. */
static void print_frames(const MemoryPlan *plan, Place place, FILE *stream) {
    for (int c = 0; c < plan->n_chunks && (plan->n_chunks > 1 || plan->n_frames > 1); c++) {
        const ChunkPlan *chunk = &plan->chunk[c];
        if (!chunk->bytes[place]) continue;
        fprintf(stream, "    ");
        if (plan->n_chunks > 1) fprintf(stream, "chunk %d: ", c);
        fprintf(stream, "%zu bytes a frame x %d frame%s\n", chunk->bytes[place], chunk->n_frames,
                chunk->n_frames == 1 ? "" : "s");
    }
}

/* As a rule. */
static int runs_of(const Program *program, Section section) {
    if (section == SECTION_REDO) return 0;
    return section_is_of_step(section) ? program->n_updates : program->n_forward_runs;
}

/* Of what is not part of the total. */
static const char *place_note(const MemoryPlan *plan, Place place) {
    if (plan->kind[place] == plan->kind[PLACE_PARAMETER]) return "";
    return plan->kind[place] == MEMORY_FILE ? ", on disk" : ", in the host's pinned memory";
}

static void print_totals(const Program *program, FILE *stream) {
    const MemoryPlan *plan = &program->plan;
    fprintf(stream, "\nsection   instructions   runs/step        bytes         FLOPs\n");
    for (int section = 0; section < N_SECTIONS; section++) {
        if (!program->count[section]) continue;
        Cost cost = program_section_cost(program, (Section)section);
        fprintf(stream, "%-9s %12d %11d %12s %12sFLOP\n", section_name((Section)section),
                program->count[section], runs_of(program, (Section)section),
                format_bytes((uint64_t)cost.bytes).text, format_count(cost.flops).text);
    }
    Cost total = program_cost(program);
    fprintf(stream, "one step  %12d %11s %12s %12sFLOP\n", program->graph->n_nodes, "",
            format_bytes((uint64_t)total.bytes).text, format_count(total.flops).text);
    fprintf(stream, "\nmemory of the program '%s'\n", program->name);
    for (int place = 0; place < N_PLACES; place++) {
        if (!plan->bytes[place]) continue;
        size_t n_bytes = plan_place_bytes(plan, (Place)place);
        fprintf(stream, "  %-12s %16zu bytes  (%s)%s\n", place_name((Place)place), n_bytes,
                format_bytes(n_bytes).text, place_note(plan, (Place)place));
        if (place_is_framed((Place)place)) print_frames(plan, (Place)place, stream);
    }
    fprintf(stream, "  %-12s %16zu bytes  (%s)\n", "total", plan_total_bytes(plan),
            format_bytes(plan_total_bytes(plan)).text);
    if (plan->unshared_bytes) {
        fprintf(stream, "  sharing saved %s of %s of activations (%.0f %%); lower bound %s, at '%s'\n",
                format_bytes(plan->unshared_bytes - plan->bytes[PLACE_ACTIVATION]).text,
                format_bytes(plan->unshared_bytes).text,
                100.0 * (1.0 - (double)plan->bytes[PLACE_ACTIVATION] / (double)plan->unshared_bytes),
                format_bytes(plan->live_bytes).text, plan->peak_node->op->name);
    }
    if (program->n_recomputed) fprintf(stream, "  %d instructions run twice\n", program->n_recomputed);
}

void program_print(const Program *program, FILE *stream) {
    fprintf(
        stream,
        "program '%s': index, section, %soperation, bytes, FLOPs, outputs <- inputs, as name(shape)@place+offset\n"
        "(+= adds to what is there; +=* overwrites in the first micro-batch of a step and adds in the others)\n",
        program->name, program->plan.n_chunks > 1 ? "chunk, " : "");
    for (int i = 0; i < program->graph->n_nodes; i++) print_node(program, i, stream);
    print_totals(program, stream);
}
