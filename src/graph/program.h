/* The program: a graph made ready for one backend. Every node has a kernel, its working memory and its place;
 * what it costs is counted. It can be printed, costed and run (executor.h). */
#ifndef PGPT_GRAPH_PROGRAM_H
#define PGPT_GRAPH_PROGRAM_H

#include "graph/backend.h"
#include "graph/lanes.h"
#include "graph/plan.h"

#include <stdio.h>

/* Nodes that are run together: those of a chunk in a section. */
typedef struct {
    int first, count;
} ProgramPart;

typedef struct {
    const char *name; /* "train", "evaluate", "decode" */
    Graph *graph;     /* not owned */
    MemoryPlan plan;
    int first[N_SECTIONS], count[N_SECTIONS]; /* the nodes of each section lie together, chunk by chunk */
    ProgramPart *part;                        /* (N_SECTIONS, n_chunks): ask program_part */
    int n_forward_runs;                       /* micro-batches a step */
    int n_updates;                            /* a step: 1, or one behind each of so many micro-batches */
    int n_recomputed;
    int regimes;    /* of the step that is counted; program_build: the compressed one, where there is one */
    LaneStep *lane; /* (n_nodes): what runs beside what; NULL where the backend has one lane */
} Program;

/* Asks the backend for scratch sizes, plans memory, sorts nodes into sections. Fails, naming the operation,
 * when the backend has no kernel for one. */
Status program_build(Program *program, const char *name, Graph *graph, const Backend *backend,
                     int n_micro_batches, Error *error);

/* The same with several chunks, each with memory for several micro-batches in flight (actions.h). */
Status program_build_chunks(Program *program, const char *name, Graph *graph, const Backend *backend,
                            int n_micro_batches, int n_chunks, const int *chunk_frames /* (n_chunks) */,
                            Error *error);

/* What executor_run runs; the update is one part, chunk 0's, whatever chunks its nodes have. */
ProgramPart program_part(const Program *program, Section section, int chunk);

/* How often the node runs in a step. */
int program_node_runs(const Program *program, const Node *node);

/* Counted work of one step: forward, backward and weight once a micro-batch, update once or n_updates
 * times. */
Cost program_cost(const Program *program);
Cost program_section_cost(const Program *program, Section section);

/* The FLOPs of a step without what is only computed again: what utilisation is measured with. */
double program_useful_flops(const Program *program);

/* Every instruction with shapes, places, bytes and FLOPs, then the totals. */
void program_print(const Program *program, FILE *stream);

#endif
