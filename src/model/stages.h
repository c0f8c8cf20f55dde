/* Which blocks the stages of a pipeline have: cut so that the slowest stage is as fast as can be, or as the
 * user says (--stages).
 *
 *     StagesOptions options = {.schedule = SCHEDULE_1F1B, .shape = {16, 4, 1}, .n_tp = 2, .B = 4, .T = 1024};
 *     TRY(stages_balance(&stages, config, &options, arena, error));
 *     ParameterPart part = stages_part(&stages, stage, n_tp, tp);     // what a rank of it holds
 *     TRY(parameters_build_part(&table, config, &part, error));
 *
 * All of it is a function of its arguments, so every rank finds the same. */
#ifndef PGPT_MODEL_STAGES_H
#define PGPT_MODEL_STAGES_H

#include "model/parameters.h"
#include "parallel/pipeline/schedule.h"

typedef struct {
    ScheduleKind schedule; /* says how chunks are placed, and how many micro-batches a stage holds */
    ScheduleShape shape;
    int n_tp;           /* ranks of tensor parallelism */
    int n_ranks;        /* that stages may be of, so that a number which divides it is named; 0: any number */
    int64_t B, T;       /* of a micro-batch */
    double state_bytes; /* of a parameter on a rank: weight, gradient, optimizer; 0: 16 */
} StagesOptions;

/* A virtual stage: chunk `chunk` of stage `stage`. */
typedef struct {
    int stage, chunk;
    ParameterChunk part;
    double flops; /* of a token, forward and backward, on a rank (model_flops_parts) */
    double bytes; /* state of its parameters, and activations of all micro-batches that the stage holds */
} VirtualStage;

typedef struct {
    ScheduleShape shape;
    StagePlacement placement;
    int n_virtual;
    VirtualStage *virtual_stage; /* in the order of the model, in the arena */
} Stages;

/* Every chunk gets at least one block, the first one the embedding, the last one the head. Of all cuts, the
 * one whose slowest stage (with all of its chunks) has the fewest FLOPs; of those, one whose largest stage
 * takes the least memory; of those, one whose stages, and chunks of a stage, are as equal as can be. Fails
 * where there are fewer blocks than chunks, naming what can be. */
Status stages_balance(Stages *stages, const ModelConfig *config, const StagesOptions *options, Arena *arena,
                      Error *error);

/* What --stages takes: the number of blocks of every virtual stage, in the order of the model: "3,3,4,2". */
Status stages_parse(Stages *stages, const char *text, const ModelConfig *config, const StagesOptions *options,
                    Arena *arena, Error *error);

/* What rank `tp` of n_tp of a stage holds. */
ParameterPart stages_part(const Stages *stages, int stage, int n_tp, int tp);

/* The chunk of a stage; of the whole model it is virtual stage `index`. */
const VirtualStage *stages_chunk(const Stages *stages, int stage, int chunk);

/* The FLOPs of the slowest stage over the mean: 1 is balanced. */
double stages_imbalance(const Stages *stages);

/* As --stages takes it, in the arena. */
const char *stages_text(const Stages *stages, Arena *arena);

#endif
