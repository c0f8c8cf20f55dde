/* What a rank has of a model that several ranks compute together: a shard of every layer (tensor
 * parallelism), some of the experts (expert parallelism), the blocks of a stage (a pipeline), or all of
 * these. {0}: all of it.
 *
 *     ModelPart part = {.split = {.tp = tp}, .pipeline = &pipeline, .chunks = &chunks, .stages = pp};
 *
 * Ranks that share a model all make the same calls, in the same order, and get the same numbers. */
#ifndef PGPT_INFER_MODEL_PART_H
#define PGPT_INFER_MODEL_PART_H

#include "model/gpt.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline.h"

typedef struct {
    GptSplit split;              /* along tp, in the style of its parameters, and along ep */
    const Pipeline *pipeline;    /* this rank's place in one; NULL: it has all blocks */
    const ParameterPart *chunks; /* with a pipeline: the blocks that it has */
    Comm *stages; /* with a pipeline: its ranks, by what reaches the memory that tensors are in */
} ModelPart;

/* Of a rank of the mesh; what is passed must outlive it. `pipeline` and `chunks` may be NULL. */
ModelPart model_part_of(const Mesh *mesh, const Pipeline *pipeline, const ParameterPart *chunks);

/* Do other ranks have the rest of the model? */
bool model_part_is_shared(const ModelPart *part);

int model_part_n_chunks(const ModelPart *part);
GptStage model_part_stage(const ModelPart *part, const ModelConfig *config, int chunk);

#endif
