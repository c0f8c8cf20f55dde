#include "train/model_mesh.h"

#include "device/device.h"
#include "model/parameter_shard.h"

Status model_mesh_check_experts(const MeshShape *shape, const ModelConfig *config, Error *error) {
    int n_ranks = shape->size[AXIS_EP], n_both = n_ranks * shape->size[AXIS_DP], nearest;
    if (n_ranks == 1 || n_ranks <= config->n_experts) return STATUS_OK;
    if (!config->n_experts)
        return error_user(
            error,
            "--ep %d divides the experts of a model among ranks, and this one has none (--experts "
            "0); leave it out, and --dp takes these ranks",
            n_ranks);
    for (nearest = (int)config->n_experts; nearest > 1 && n_both % nearest; nearest--) continue;
    return error_user(error,
                      "--ep %d is more ranks than the model has experts (%lld); lower it to %d, and let --dp "
                      "take the other ranks",
                      n_ranks, (long long)config->n_experts, nearest);
}

Status model_mesh_open(Mesh *mesh, const MeshShape *shape, const ModelConfig *config, Comm *world,
                       Error *error) {
    int n_ranks = shape->size[AXIS_TP];
    TRY(mesh_open(mesh, shape, world, error));
    if (config->tied) TRY(mesh_open_ends(mesh, error));
    if (n_ranks <= config->n_kv_heads) return STATUS_OK;
    return mesh_open_heads(mesh, shard_heads_group(config, n_ranks, mesh->coordinate[AXIS_TP]), error);
}

/* Along dp also where it has one rank: its table says what a device's memory is reached by. */
Status model_mesh_open_device(Mesh *mesh, const Backend *backend, Error *error) {
    for (int axis = 0; axis < N_AXES; axis++) {
        if (axis == AXIS_DP || mesh->shape.size[axis] > 1)
            TRY(device_comm_open(&mesh->device[axis], &mesh->axis[axis], COMM_FOR_SUMS, backend, error));
    }
    if (mesh->sums.table)
        TRY(device_comm_open(&mesh->device_sums, &mesh->sums, COMM_FOR_SUMS, backend, error));
    if (mesh->expert_sums.table)
        TRY(device_comm_open(&mesh->device_expert_sums, &mesh->expert_sums, COMM_FOR_SUMS, backend, error));
    MeshHosts *hosts = &mesh->hosts;
    if (hosts->inside.table)
        TRY(device_comm_open(&hosts->device_inside, &hosts->inside, COMM_FOR_SUMS, backend, error));
    if (hosts->across.table)
        TRY(device_comm_open(&hosts->device_across, &hosts->across, COMM_FOR_SUMS, backend, error));
    if (mesh->ends.table)
        TRY(device_comm_open(&mesh->device_ends, &mesh->ends, COMM_FOR_SUMS, backend, error));
    return mesh->heads.table
               ? device_comm_open(&mesh->device_heads, &mesh->heads, COMM_FOR_SUMS, backend, error)
               : STATUS_OK;
}

void model_mesh_close(Mesh *mesh, const Backend *backend) {
    for (int axis = 0; axis < N_AXES && backend; axis++) device_comm_close(&mesh->device[axis], backend);
    if (backend) device_comm_close(&mesh->device_sums, backend);
    if (backend) device_comm_close(&mesh->device_expert_sums, backend);
    if (backend) device_comm_close(&mesh->device_heads, backend);
    if (backend) device_comm_close(&mesh->device_ends, backend);
    if (backend) device_comm_close(&mesh->hosts.device_inside, backend);
    if (backend) device_comm_close(&mesh->hosts.device_across, backend);
    mesh_close(mesh);
}

/* ---- pipelines */

Status model_pipeline_open(Pipeline *pipeline, Mesh *mesh, const PipelineLayout *layout, Error *error) {
    return pipeline_open(pipeline, layout, &mesh->axis[AXIS_PP], error);
}

/* A first message, which finds the way to the other side: a library may wait for that one there. */
static Status greet(Comm *comm, PipelineWay way, int side, const Backend *backend, Error *error) {
    enum { GREETING_BYTES = 256 };
    bool is_sender = (way == PIPELINE_FORWARD) == (side == BORDER_ABOVE);
    void *bytes = NULL;
    CommRequest request = {0};
    if (comm->table->set_one_way) comm->table->set_one_way(comm->context);
    TRY(backend->allocate(backend->context, GREETING_BYTES, "a first message", &bytes, error));
    Status status = is_sender
                        ? comm_post_send(comm, bytes, GREETING_BYTES, 1 - comm->rank, 0, &request, error)
                        : comm_post_receive(comm, bytes, GREETING_BYTES, 1 - comm->rank, 0, &request, error);
    if (status == STATUS_OK) status = comm_wait_posted(comm, &request, 1, error);
    if (status == STATUS_OK && backend->synchronize) status = backend->synchronize(backend->context, error);
    backend->release(backend->context, bytes, GREETING_BYTES);
    return status;
}

/* Where the host waits for each kernel it waits for each message, too, and the stages wait for each other. */
static Status check_waits(const Comm *comm, const Backend *backend, Error *error) {
    if (!comm->table || !comm->table->only_enqueues || !backend->is_blocking) return STATUS_OK;
    return error_user(
        error, "CUDA_LAUNCH_BLOCKING is set, by which the stages of a pipeline over NCCL wait for each "
               "other for ever; unset it, or set PGPT_WITHOUT=nccl, which sends through the host");
}

/* Both sides of a border come to it in the same order: upwards over the virtual stages. */
Status model_pipeline_open_device(Pipeline *pipeline, const Backend *backend, Error *error) {
    for (int i = 0; i < pipeline->layout.n_chunks * N_BORDERS; i++) {
        int side = i % N_BORDERS;
        PipelineBorder *border = &pipeline->border[i / N_BORDERS][side];
        if (!border->exists || border->other == pipeline->stage) continue;
        for (int way = 0; way < N_PIPELINE_WAYS; way++) {
            Comm *device = &border->device[way];
            TRY(device_comm_open(device, &border->comm[way], COMM_FOR_MESSAGES, backend, error));
            TRY(check_waits(device, backend, error));
            if (device->table) TRY(greet(device, (PipelineWay)way, side, backend, error));
        }
    }
    return STATUS_OK;
}

void model_pipeline_close(Pipeline *pipeline, const Backend *backend) {
    for (int i = 0; i < pipeline->layout.n_chunks * N_BORDERS && pipeline->border && backend; i++) {
        PipelineBorder *border = &pipeline->border[i / N_BORDERS][i % N_BORDERS];
        for (int way = 0; way < N_PIPELINE_WAYS; way++) device_comm_close(&border->device[way], backend);
    }
    pipeline_close(pipeline);
}
