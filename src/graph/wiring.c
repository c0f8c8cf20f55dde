/* Training, evaluation, generation, scoring, studies and benchmarks differ in what they record and in who has
 * the memory. What lies between is here. */
#include "graph/wiring.h"

Status wiring_plan(Program *program, Graph *graph, const Backend *backend, const WiringOptions *options,
                   DeviceMemory *memory, Error *error) {
    int n_micro_batches = options->n_micro_batches ? options->n_micro_batches : 1;
    int n_chunks = options->n_chunks ? options->n_chunks : 1;
    int *frames = ARENA_ARRAY(&graph->arena, int, n_chunks);
    for (int c = 0; c < n_chunks; c++) {
        frames[c] = options->chunk_frames ? options->chunk_frames[c] : options->n_frames;
        if (!frames[c]) frames[c] = 1;
    }
    TRY(program_build_chunks(program, options->name, graph, backend, n_micro_batches, n_chunks, frames,
                             error));
    program->plan.n_versions = options->n_versions;
    if (options->n_updates) program->n_updates = options->n_updates;
    if (options->folder && *options->folder)
        program->plan.folder = arena_strdup(&graph->arena, options->folder);
    program->plan.file_queue = options->file_queue;
    if (memory) device_require(memory, &program->plan);
    return STATUS_OK;
}

Status wiring_open_memory(DeviceMemory *memory, const Backend *backend, const DeviceMemory *weights,
                          Error *error) {
    if (weights) TRY(device_borrow(memory, PLACE_PARAMETER, weights, error));
    return device_open(memory, backend, error);
}

size_t wiring_bytes_beside_weights(const DeviceMemory *memory) {
    size_t parameters = memory->is_borrowed[PLACE_PARAMETER] ? 0 : memory->bytes[PLACE_PARAMETER];
    return device_required_bytes(memory) - parameters;
}

void wiring_close(Graph **graph, Executor *executor) {
    executor_close(executor);
    graph_free(*graph);
    *graph = NULL;
}

Status wiring_plan_alone(Wiring *wiring, const char *name, const Backend *backend, Error *error) {
    return wiring_plan(&wiring->program, wiring->graph, backend, &(WiringOptions){.name = name},
                       &wiring->memory, error);
}

Status wiring_open_alone(Wiring *wiring, const Backend *backend, Error *error) {
    TRY(wiring_open_memory(&wiring->memory, backend, NULL, error));
    return executor_open(&wiring->executor, &wiring->program, &wiring->memory, error);
}

void wiring_release_alone(Wiring *wiring) {
    executor_close(&wiring->executor);
    device_close(&wiring->memory);
}

void wiring_close_alone(Wiring *wiring) {
    wiring_release_alone(wiring);
    graph_free(wiring->graph);
    *wiring = (Wiring){0};
}
