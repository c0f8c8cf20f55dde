/* The mesh of a model: its axes, the ranks that share key/value heads, the ends of a pipeline that share a
 * tied token table, and what reaches a device's memory along each.
 *
 *     TRY(model_mesh_open(&mesh, &shape, config, world, error));
 *     ... open the device ...
 *     TRY(model_mesh_open_device(&mesh, backend, error));
 *     ...
 *     model_mesh_close(&mesh, backend); */
#ifndef PGPT_TRAIN_MODEL_MESH_H
#define PGPT_TRAIN_MODEL_MESH_H

#include "graph/backend.h"
#include "model/config.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline.h"

/* Has every rank of ep some of the model's experts? If not, the message says what could be. */
Status model_mesh_check_experts(const MeshShape *shape, const ModelConfig *config, Error *error);

/* Both are collective over the world; the config is complete. */
Status model_mesh_open(Mesh *mesh, const MeshShape *shape, const ModelConfig *config, Comm *world,
                       Error *error);
Status model_mesh_open_device(Mesh *mesh, const Backend *backend, Error *error);
void model_mesh_close(Mesh *mesh, const Backend *backend /* NULL: none was opened */); /* safe on {0} */

/* ---- Pipelines: the communicators of their borders */

/* Collective over the ranks of pp; the mesh is open. */
Status model_pipeline_open(Pipeline *pipeline, Mesh *mesh, const PipelineLayout *layout, Error *error);
Status model_pipeline_open_device(Pipeline *pipeline, const Backend *backend, Error *error);
void model_pipeline_close(Pipeline *pipeline, const Backend *backend /* NULL: none was opened */);

#endif
