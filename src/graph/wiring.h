/* The way from a recorded graph to a program that runs, for everybody who takes it.
 *
 * A program by itself, with memory of its own:
 *
 *     Wiring wiring = {.graph = graph_new()};
 *     ... record into wiring.graph ...
 *     TRY(wiring_plan_alone(&wiring, "linear", backend, error));
 *     ... device_required_bytes(&wiring.memory): is there so much? ...
 *     TRY(wiring_open_alone(&wiring, backend, error));
 *     TRY(executor_run(&wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error));
 *     wiring_close_alone(&wiring);                      // also after a failure, and twice
 *
 * Several that share a memory are planned first, which allocates nothing, and opened when all are announced:
 *
 *     TRY(wiring_plan(&prefill.program, prefill.graph, backend, &(WiringOptions){.name = "prefill"}, &memory,
 *                     error));
 *     TRY(wiring_plan(&decode.program, ...));
 *     TRY(wiring_open_memory(&memory, backend, weights_of_another, error));
 *     TRY(executor_open(&prefill.executor, &prefill.program, &memory, error));
 *     wiring_close(&prefill.graph, &prefill.executor);
 *     device_close(&memory);
 *
 * Which device it is does not matter: the null backend plans what another would run. */
#ifndef PGPT_GRAPH_WIRING_H
#define PGPT_GRAPH_WIRING_H

#include "graph/executor.h"

typedef struct {
    const char *name;         /* of the program: "train" */
    int n_micro_batches;      /* a step; 0 is 1 */
    int n_updates;            /* a step, each with micro-batches of its own; 0 is 1 */
    int n_frames;             /* micro-batches in flight (actions.h); 0 is 1 */
    int n_chunks;             /* parts of the model that take turns; 0 is 1 */
    int n_versions;           /* of the parameters that are in use at once; 0 is 1 */
    const char *folder;       /* of what is kept in a file; NULL or "": nothing is */
    FileQueueKind file_queue; /* and how it is read and written */
    const int *chunk_frames;  /* (n_chunks) micro-batches of each in flight; NULL: n_frames of each */
} WiringOptions;

/* Asks whether the recording is sound, builds the program and announces its plan to the memory; NULL: whoever
 * has the memory does that himself. The graph stays the caller's and must outlive the program. */
Status wiring_plan(Program *program, Graph *graph, const Backend *backend, const WiringOptions *options,
                   DeviceMemory *memory, Error *error);

/* Takes the memory. The parameters are those of `weights`, which must be open and stay so; NULL: its own. */
Status wiring_open_memory(DeviceMemory *memory, const Backend *backend, const DeviceMemory *weights,
                          Error *error);

/* Bytes that opening takes besides the parameters. */
size_t wiring_bytes_beside_weights(const DeviceMemory *memory);

/* The executor and the graph of a program that was planned or opened, or neither; twice is allowed. Before
 * the memory is closed. */
void wiring_close(Graph **graph, Executor *executor);

/* ---- A program by itself. */

typedef struct {
    Graph *graph;
    Program program;
    DeviceMemory memory;
    Executor executor;
} Wiring;

Status wiring_plan_alone(Wiring *wiring, const char *name, const Backend *backend, Error *error);
Status wiring_open_alone(Wiring *wiring, const Backend *backend, Error *error);
void wiring_release_alone(Wiring *wiring); /* the memory; graph and program stay */
void wiring_close_alone(Wiring *wiring);

#endif
