#include "infer/model_part.h"

ModelPart model_part_of(const Mesh *mesh, const Pipeline *pipeline, const ParameterPart *chunks) {
    ModelPart part = {0};
    if (mesh->shape.size[AXIS_TP] > 1) part.split.tp = mesh_comm(mesh, AXIS_TP);
    if (chunks) part.split.style = chunks->style;
    if (mesh->shape.size[AXIS_EP] > 1) part.split.ep = mesh_comm(mesh, AXIS_EP);
    part.split.has_same_rows = true;
    if (mesh->shape.size[AXIS_PP] == 1) return part;
    part.pipeline = pipeline;
    part.chunks = chunks;
    part.stages = mesh_comm(mesh, AXIS_PP);
    return part;
}

bool model_part_is_shared(const ModelPart *part) {
    return part->split.tp || part->split.ep || part->pipeline;
}

int model_part_n_chunks(const ModelPart *part) {
    return part->pipeline ? part->chunks->n_chunks : 1;
}

GptStage model_part_stage(const ModelPart *part, const ModelConfig *config, int chunk) {
    if (!part->pipeline) return gpt_whole(config);
    const ParameterChunk *blocks = &part->chunks->chunk[chunk];
    return (GptStage){.first_block = blocks->first_block,
                      .end_block = blocks->end_block,
                      .has_embedding = blocks->has_embedding,
                      .has_head = blocks->has_head};
}
