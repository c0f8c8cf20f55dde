/* Where tensors are for a micro-batch, and the calls of kernels that come of it: made once, when the executor
 * is opened, but for what lies elsewhere from run to run. */
#include "graph/executor_calls.h"

#include "graph/executor_capture.h"

void *executor_address_in(const Executor *executor, const Tensor *tensor, int frame) {
    if (!tensor) return NULL;
    const Tensor *root = tensor_root((Tensor *)tensor);
    char *base = executor->memory->base[root->place];
    if (!base) return NULL;
    if (root->twin && executor->are_swapped)
        return base + root->twin->offset + (tensor->offset - root->offset);
    if (!place_is_framed(root->place)) return base + tensor->offset;
    const ChunkPlan *chunk = &executor->program->plan.chunk[root->chunk];
    return base + chunk->base[root->place] + (size_t)frame * chunk->bytes[root->place] + tensor->offset;
}

/* Is the tensor in a frame of another chunk than this? */
static bool is_of_another(const Tensor *tensor, int chunk) {
    if (!tensor) return false;
    const Tensor *root = tensor_root((Tensor *)tensor);
    return place_is_framed(root->place) && root->chunk != chunk;
}

void executor_swap_twins(Executor *executor) {
    executor->are_swapped = !executor->are_swapped;
}

static bool has_twin(const Tensor *tensor) {
    return tensor && tensor_root((Tensor *)tensor)->twin;
}

/* Where it is for a micro-batch of this chunk. */
void *executor_address_for(const Executor *executor, const Tensor *tensor, int chunk, MicroBatch micro) {
    if (tensor && micro.version && tensor_root((Tensor *)tensor)->place == PLACE_PARAMETER) {
        char *first = executor_address_in(executor, tensor, 0);
        return first ? first + (size_t)micro.version * executor->program->plan.bytes[PLACE_PARAMETER] : NULL;
    }
    bool is_elsewhere = is_of_another(tensor, chunk) && micro.frames;
    int frame = is_elsewhere ? micro.frames[tensor_root((Tensor *)tensor)->chunk] : micro.frame;
    return executor_address_in(executor, tensor, frame);
}

KernelCall executor_make_call(const Executor *executor, const Node *node, MicroBatch micro) {
    const Backend *backend = executor->memory->backend;
    bool is_left = backend_leaves_to_host(backend, node) && !backend->only_plans;
    KernelCall call = {.node = node,
                       .n_threads = is_left ? backend->host.n_threads : backend->n_threads,
                       .context = is_left ? backend->host.context : backend->context,
                       .mover = executor->memory->mover};
    int chunk = node->chunk, n_versions = executor->program->plan.n_versions;
    MicroBatch read = micro;
    if (node->is_of_last_version) read.version = (micro.version + n_versions - 1) % n_versions;
    for (int i = 0; i < node->n_inputs; i++)
        call.in[i] = executor_address_for(executor, node->input[i], chunk, read);
    for (int i = 0; i < node->n_outputs; i++) {
        call.out[i] = executor_address_for(executor, node->output[i], chunk, micro);
        call.add[i] =
            node->write[i] == WRITE_ADD || (node->write[i] == WRITE_ADD_AFTER_FIRST && !micro.is_first);
    }
    call.scratch = executor_address_for(executor, node->scratch, chunk, micro);
    return call;
}

ExecutorPart *executor_part_of(const Executor *executor, Section section, int chunk) {
    int at = section_is_of_step(section) ? 0 : chunk;
    return &executor->part[(int)section * executor->program->plan.n_chunks + at];
}

KernelCall *executor_prepared_call(const ExecutorPart *part, int number, MicroBatch micro) {
    int way = (micro.version * part->n_frames + micro.frame) * 2 + micro.is_first;
    return &part->calls[(size_t)way * (size_t)part->nodes.count + (size_t)(number - part->nodes.first)];
}

bool executor_runs_in(const Node *node, MicroBatch micro) {
    if (!node_is_of(node, micro.regimes)) return false;
    return node_runs_in(node, micro.is_last) || (node->is_not_last && micro.goes_on);
}

/* Of node `number` as this micro-batch runs it. */
const KernelCall *executor_call_of(Executor *executor, const ExecutorPart *part, int number,
                                   MicroBatch micro) {
    if (!executor->is_made_late || !executor->is_made_late[number])
        return executor_prepared_call(part, number, micro);
    executor->late_call = executor_make_call(executor, executor->program->graph->node[number], micro);
    return &executor->late_call;
}

SectionCapture *executor_capture_of(const ExecutorPart *part, MicroBatch micro) {
    return &part->capture[(micro.version * part->n_frames + micro.frame) * 4 + micro.is_first +
                          2 * micro.is_last];
}

/* Does the node touch what is another chunk's? */
static bool is_across(const Node *node) {
    bool is = false;
    if (section_is_of_step(node->section)) return false;
    for (int k = 0; k < node->n_inputs; k++) is |= is_of_another(node->input[k], node->chunk);
    for (int k = 0; k < node->n_outputs; k++) is |= is_of_another(node->output[k], node->chunk);
    return is;
}

static bool touches_twin(const Node *node) {
    bool does = false;
    for (int k = 0; k < node->n_inputs; k++) does |= has_twin(node->input[k]);
    for (int k = 0; k < node->n_outputs; k++) does |= has_twin(node->output[k]);
    return does;
}

static void find_made_late(Executor *executor) {
    const Graph *graph = executor->program->graph;
    bool *is_made_late = ARENA_ARRAY(&executor->arena, bool, graph->n_nodes + 1);
    for (int i = 0; i < graph->n_nodes; i++) {
        is_made_late[i] = is_across(graph->node[i]) || touches_twin(graph->node[i]);
        if (is_made_late[i]) executor->is_made_late = is_made_late;
    }
}

static void make_part(Executor *executor, Section section, int chunk) {
    const Program *program = executor->program;
    ExecutorPart *part = executor_part_of(executor, section, chunk);
    part->nodes = program_part(program, section, chunk);
    part->n_frames = section_is_of_step(section) ? 1 : program->plan.chunk[chunk].n_frames;
    part->n_versions = program->plan.n_versions > 1 ? program->plan.n_versions : 1;
    int64_t n_ways = (int64_t)part->n_versions * part->n_frames;
    part->calls = ARENA_ARRAY(&executor->arena, KernelCall, n_ways * 2 * part->nodes.count + 1);
    part->capture = ARENA_ARRAY(&executor->arena, SectionCapture, n_ways * 4);
    for (int i = part->nodes.first; i < part->nodes.first + part->nodes.count; i++) {
        const Node *node = program->graph->node[i];
        executor->instruction[i].kernel = backend_kernel(executor->memory->backend, node);
        part->is_across |= is_across(node);
        for (int64_t k = 0; k < n_ways * 2; k++) {
            MicroBatch micro = {.is_first = k % 2,
                                .frame = (int)(k / 2 % part->n_frames),
                                .version = (int)(k / 2 / part->n_frames)};
            *executor_prepared_call(part, i, micro) = executor_make_call(executor, node, micro);
        }
    }
    for (int is_last = 0; is_last < 2 && executor->memory->backend->capture_begin; is_last++)
        part->captured[is_last] = capture_choose(executor, part->nodes, is_last);
    for (int64_t i = 0; i < n_ways * 4; i++) /* see capture_of */
        part->capture[i].run = ARENA_ARRAY(&executor->arena, void *, part->captured[i / 2 % 2].n + 1);
}

void executor_make_parts(Executor *executor) {
    const Program *program = executor->program;
    int n_chunks = program->plan.n_chunks;
    executor->instruction = ARENA_ARRAY(&executor->arena, Instruction, program->graph->n_nodes + 1);
    executor->part = ARENA_ARRAY(&executor->arena, ExecutorPart, N_SECTIONS * n_chunks);
    find_made_late(executor);
    for (int section = 0; section < N_SECTIONS; section++) {
        for (int chunk = 0; chunk < (section_is_of_step((Section)section) ? 1 : n_chunks); chunk++)
            make_part(executor, (Section)section, chunk);
    }
}
