/* A mesh is the same if its shape is, and if the same ranks share key/value heads and a tied token table; a
 * pipeline if its schedule puts the same chunks on the same stages. */
#include "train/verify/kept_mesh.h"

#include "comm/algo/algo.h"

#include <string.h>

static PipelineLayout stages_of(const VerifyCase *layout) {
    return (PipelineLayout){layout->schedule, layout->shape.size[AXIS_PP], layout->n_chunks};
}

static bool is_same_mesh(const KeptMesh *kept, const MeshNeeds *needs) {
    return kept->is_open && kept->mesh.world == needs->group &&
           memcmp(&kept->mesh.shape, &needs->layout->shape, sizeof kept->mesh.shape) == 0 &&
           kept->is_tied == needs->config->tied && kept->n_heads == needs->config->n_heads &&
           kept->n_kv_heads == needs->config->n_kv_heads;
}

static bool is_same_pipeline(const KeptMesh *kept, const MeshNeeds *needs) {
    PipelineLayout stages = stages_of(needs->layout);
    return stages.n_stages == 1 ||
           (kept->stages.kind == stages.kind && kept->stages.n_stages == stages.n_stages &&
            kept->stages.n_chunks == stages.n_chunks);
}

static void close_pipeline(KeptMesh *kept) {
    model_pipeline_close(&kept->pipeline, kept->backend);
    kept->pipeline = (Pipeline){0};
    kept->stages = (PipelineLayout){0};
}

void kept_mesh_close(KeptMesh *kept) {
    close_pipeline(kept);
    model_mesh_close(&kept->mesh, kept->backend);
    *kept = (KeptMesh){0};
}

static Status open_mesh(KeptMesh *kept, const MeshNeeds *needs, Error *error) {
    kept_mesh_close(kept);
    kept->backend = needs->options->setting.backend;
    kept->is_tied = needs->config->tied;
    kept->n_heads = needs->config->n_heads;
    kept->n_kv_heads = needs->config->n_kv_heads;
    TRY(model_mesh_open(&kept->mesh, &needs->layout->shape, needs->config, needs->group, error));
    TRY(verify_open_hosts(needs->options, needs->layout, &kept->mesh, error));
    TRY(model_mesh_open_device(&kept->mesh, kept->backend, error));
    kept->is_open = true;
    return STATUS_OK;
}

static Status open_pipeline(KeptMesh *kept, const MeshNeeds *needs, Error *error) {
    PipelineLayout stages = stages_of(needs->layout);
    close_pipeline(kept);
    if (stages.n_stages == 1) return STATUS_OK;
    TRY(model_pipeline_open(&kept->pipeline, &kept->mesh, &stages, error));
    TRY(model_pipeline_open_device(&kept->pipeline, kept->backend, error));
    kept->stages = stages;
    return STATUS_OK;
}

Status kept_mesh_open(KeptMesh *kept, const MeshNeeds *needs, Error *error) {
    if (!is_same_mesh(kept, needs)) TRY(open_mesh(kept, needs, error));
    if (!is_same_pipeline(kept, needs)) TRY(open_pipeline(kept, needs, error));
    const CommAlgorithm *all_reduce = needs->group->all_reduce;
    if (needs->layout->all_reduce >= 0) all_reduce = comm_algorithm(needs->layout->all_reduce);
    mesh_host_sums(&kept->mesh)->all_reduce = all_reduce;
    mesh_host_expert_sums(&kept->mesh)->all_reduce = all_reduce;
    return STATUS_OK;
}

/* Groups within hosts are one layout's. */
void kept_mesh_rest(KeptMesh *kept) {
    bool has_device = kept->mesh.device[AXIS_DP].table != NULL;
    if (!kept->is_open || has_device || kept->mesh.hosts.inside.table || kept->mesh.hosts.across.table)
        kept_mesh_close(kept);
}
