/* What the ranks of a layout talk by, kept for the next layout that needs the same. Layouts come mesh by
 * mesh, and to open the communicators of ranks that outnumber the cores takes longer than to train a small
 * model. (Those of a device are kept by it: device_keep_comms.)
 *
 *     TRY(kept_mesh_open(&kept, &needs, error));
 *     ... train by kept.mesh and kept.pipeline ...
 *     kept_mesh_rest(&kept);
 *     ...
 *     kept_mesh_close(&kept);      // before what it was opened on */
#ifndef PGPT_TRAIN_VERIFY_KEPT_MESH_H
#define PGPT_TRAIN_VERIFY_KEPT_MESH_H

#include "train/model_mesh.h"
#include "train/verify/reference.h"

/* What it depends on. */
typedef struct {
    Comm *group; /* the ranks of the layout; this one is among them */
    const VerifyOptions *options;
    const VerifyCase *layout;
    const ModelConfig *config;
} MeshNeeds;

typedef struct {
    Mesh mesh;
    Pipeline pipeline; /* {0} with one stage */
    const Backend *backend;
    bool is_open, is_tied;
    int64_t n_heads, n_kv_heads;
    PipelineLayout stages;
} KeptMesh;

/* Collective over the group, with the same needs. If it fails, kept_mesh_close cleans up. */
Status kept_mesh_open(KeptMesh *kept, const MeshNeeds *needs, Error *error);

/* The layout is done: what cannot be used again is closed. */
void kept_mesh_rest(KeptMesh *kept);

void kept_mesh_close(KeptMesh *kept); /* safe on {0} */

#endif
