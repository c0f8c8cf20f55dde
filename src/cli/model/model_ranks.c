/* Phases as of a training run (job/train_run.c): each is a function of one rank, and all agree after it. */
#include "cli/model/model_ranks.h"

#include "ops/ops.h"
#include "run/interrupt.h"
#include "train/model_mesh.h"

Status model_ranks_begin(ModelRanks *ranks, Launch *launch, const Options *options, const MeshOptions *mesh,
                         Error *error) {
    *ranks = (ModelRanks){.launch = launch, .options = mesh};
    TRY(launch_check_options(launch, options, error));
    const char *model = options->n_arguments ? options->arguments[0] : GIVEN_MODEL_DEFAULT;
    TRY(launch_check_same(launch, "model", model, error));
    mesh_options_shape(mesh, launch->world.size, &ranks->shape, error);
    return launch_agree(launch, error);
}

/* What cannot be divided so. */
static Status check_model(const ModelRanks *ranks, const ModelConfig *config, Error *error) {
    int n_stages = ranks->shape.size[AXIS_PP], n_tensor = ranks->shape.size[AXIS_TP];
    TRY(model_mesh_check_experts(&ranks->shape, config, error));
    if (n_stages > config->n_layers) {
        int n_ranks = ranks->launch->world.size / n_tensor, most = (int)config->n_layers;
        while (n_ranks % most) most--;
        return error_user(error,
                          "--pp %d makes more stages than the model's %lld block%s; choose --pp %d, and let "
                          "--tp or --dp take the other ranks",
                          n_stages, (long long)config->n_layers, config->n_layers == 1 ? "" : "s", most);
    }
    int64_t most = config->vocabulary < PACK_MAX_PARTS ? config->vocabulary : PACK_MAX_PARTS;
    if (n_tensor <= most) return STATUS_OK;
    return error_user(
        error,
        "--tp %d divides the vocabulary of %lld tokens into more parts than the %lld that can be; "
        "lower it to that, and let --dp take the other ranks",
        n_tensor, (long long)config->vocabulary, (long long)most);
}

static Status cut_model(ModelRanks *ranks, const ModelConfig *config, Error *error) {
    TRY(check_model(ranks, config, error));
    StagesOptions options = {.schedule = SCHEDULE_1F1B,
                             .shape = {1, ranks->shape.size[AXIS_PP], 1},
                             .n_tp = ranks->shape.size[AXIS_TP],
                             .B = 1,
                             .T = config->context};
    return stages_balance(&ranks->stages, config, &options, &ranks->arena, error);
}

static Status open_mesh(ModelRanks *ranks, const ModelConfig *config, Error *error) {
    Launch *launch = ranks->launch;
    Mesh *mesh = &ranks->mesh;
    if (ranks->options->pin) TRY(launch_pin(launch, error));
    TRY(model_mesh_open(mesh, &ranks->shape, config, &launch->world, error));
    ranks->chunks = stages_part(&ranks->stages, mesh->coordinate[AXIS_PP], mesh->shape.size[AXIS_TP],
                                mesh->coordinate[AXIS_TP]);
    parameter_part_set_rank(&ranks->chunks, mesh);
    TRY(comm_split(&launch->world, mesh->coordinate[AXIS_DP], launch->world.rank, &ranks->group, error));
    if (mesh->shape.size[AXIS_PP] == 1) return STATUS_OK;
    PipelineLayout layout = {SCHEDULE_1F1B, mesh->shape.size[AXIS_PP], 1};
    return model_pipeline_open(&ranks->pipeline, mesh, &layout, error);
}

Status model_ranks_open(ModelRanks *ranks, GivenModel *model, const DeviceOptions *device, Error *error) {
    Launch *launch = ranks->launch;
    const ModelConfig *config = &model->source.config;
    DeviceOptions here = *device;
    here.index = launch->host_rank;
    here.n_threads = launch_threads(launch, device->n_threads);
    cut_model(ranks, config, error);
    TRY(launch_agree(launch, error));
    TRY(open_mesh(ranks, config, error));
    given_model_open(model, &ranks->chunks, &here, error);
    TRY(launch_agree(launch, error));
    device_meet(&model->backend, &launch->world, launch->host_size, error);
    TRY(launch_agree(launch, error));
    model_mesh_open_device(&ranks->mesh, &model->backend, error);
    if (error->status == STATUS_OK) model_pipeline_open_device(&ranks->pipeline, &model->backend, error);
    TRY(launch_agree(launch, error));
    launch_note_segments(launch);
    return STATUS_OK;
}

void model_ranks_close(ModelRanks *ranks, const GivenModel *model) {
    const Backend *backend = model->has_backend ? &model->backend : NULL;
    model_pipeline_close(&ranks->pipeline, backend);
    comm_close(&ranks->group);
    model_mesh_close(&ranks->mesh, backend);
    arena_free(&ranks->arena);
    *ranks = (ModelRanks){0};
}

ModelPart model_ranks_part(const ModelRanks *ranks) {
    return model_part_of(&ranks->mesh, &ranks->pipeline, &ranks->chunks);
}

int model_ranks_n_shares(const ModelRanks *ranks) {
    return ranks->shape.size[AXIS_DP];
}

int model_ranks_share(const ModelRanks *ranks) {
    int coordinate[N_AXES];
    mesh_coordinates(&ranks->shape, ranks->launch->world.rank, coordinate);
    return coordinate[AXIS_DP];
}

bool model_ranks_speaks(const ModelRanks *ranks) {
    return ranks->group.size <= 1 || ranks->group.rank == 0;
}

void model_ranks_say_idle(const ModelRanks *ranks, int64_t n, const char *what, const Log *log) {
    int n_shares = model_ranks_n_shares(ranks);
    if (n >= n_shares) return;
    log_warning(log,
                "there are fewer %s (%lld) than groups of ranks that share them out (--dp %d), and some have "
                "nothing to do; --tp and --pp divide the model instead",
                what, (long long)n, n_shares);
}

Status model_ranks_check_memory(const ModelRanks *ranks, const GivenModel *model, size_t n_bytes,
                                const char *what, const char *advice, Error *error) {
    bool is_host = !backend_has_own_memory(&model->backend);
    size_t n_here = is_host ? (size_t)ranks->launch->host_size : 1;
    return device_check_memory(&model->backend, n_bytes * n_here, what, advice, error);
}

bool model_ranks_interrupted(ModelRanks *ranks, Error *error) {
    enum { EVERY = 16 };
    if (ranks->group.size == 1) return interrupt_was_signalled();
    if (++ranks->n_asked % EVERY) return false;
    int32_t is_told = interrupt_was_signalled();
    comm_all_reduce(&ranks->group, &is_told, 1, COMM_I32, COMM_MAX, error);
    return is_told != 0;
}
