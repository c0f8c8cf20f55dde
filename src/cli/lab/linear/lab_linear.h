/* pgpt lab linear's own: its options, what it knows, and its parts. */
#ifndef PGPT_CLI_LAB_LINEAR_LAB_LINEAR_H
#define PGPT_CLI_LAB_LINEAR_LAB_LINEAR_H

#include "cli/lab/lab.h"
#include "lab/linear/linear.h"

typedef struct {
    const char *weights, *ranks, *sweep, *processes, *launcher;
    int64_t n_points, n_epochs, seed, n_rounds, n_threads, chunk;
    double lr, noise, timeout;
    int problem, engine, graph, device, schedule, all_reduce;
    bool strong, scaling, schedules, quick, draws;
} LinearOptions;

typedef struct {
    LinearOptions linear;
    LabOptions lab;
} LinearCommand;

/* Weights are found again if none is further off than this. */
#define LINEAR_RECOVERED_WITHIN 1e-2

/* Two figures that should be one are told apart from here on: whole rounds and the best case. */
#define LINEAR_DISTURBED_BY 0.10

typedef struct {
    Launch *launch;
    Options options;
    LinearCommand values;
    double *truth; /* (LINEAR_MAX_WEIGHTS): W, or where an attention block begins */
    LinearProblem problem;
    LinearEngineKind kind[N_LINEAR_ENGINES]; /* those that were asked for */
    LinearResult result[N_LINEAR_ENGINES];   /* of each */
    double accuracy[N_LINEAR_ENGINES];       /* of attention, on sequences that nobody trained with */
    int n_engines;
} Linear;

extern const char *const lab_linear_engine_names[], *const lab_linear_problem_names[],
                                                        *const lab_linear_schedule_names[],
                                                            *const lab_linear_all_reduce_names[];
enum { LAB_LINEAR_BOTH = 2, LAB_LINEAR_AUTO = 0 }; /* among the engines; among the all-reduces */

/* The algorithm of --allreduce on so many ranks; NULL: the library's. */
const CommAlgorithm *lab_linear_algorithm(int choice, int n_ranks);

/* One launch: tables, pictures, JSON, on the root (lab_linear_show.c, lab_linear_draw.c). */
Status lab_linear_show(Linear *study, const LabOutput *output, Error *error);
Status lab_linear_draw(const Linear *study, const LabOutput *output, Error *error);

/* --graph allocate and --schedules, in this process (lab_linear_threads.c). */
Status lab_linear_graphs(Linear *study, const LabOutput *output, Error *error);
Status lab_linear_schedules(Linear *study, const LabOutput *output, Error *error);

/* --ranks and --sweep: in processes that it starts (lab_linear_ranks.c, lab_linear_sweep.c). */
Status lab_linear_ranks(Linear *linear, const LabOutput *output, Error *error);
Status lab_linear_sweep(Linear *linear, const LabOutput *output, Error *error);

#endif
