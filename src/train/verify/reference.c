#include "train/verify/reference.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "parallel/mesh_hosts.h"
#include "train/verify/delayed.h"
#include "train/verify/late.h"

#include <stdlib.h>

bool verify_is_compressed(const VerifyOptions *options, const VerifyCase *layout) {
    return options->compression.kind != COMPRESS_NONE && layout->shape.size[AXIS_DP] > 1;
}

static int *hosts_of(const VerifyOptions *options, const VerifyCase *layout, Arena *arena) {
    int n_ranks = mesh_n_ranks(&layout->shape), *hosts = ARENA_ARRAY(arena, int, n_ranks);
    for (int i = 0; i < n_ranks; i++) hosts[i] = i / options->host_ranks;
    return hosts;
}

Status verify_open_hosts(const VerifyOptions *options, const VerifyCase *layout, Mesh *mesh, Error *error) {
    Arena arena = {0};
    if (verify_is_compressed(options, layout) && options->compression.is_across_hosts)
        mesh_open_hosts(mesh, hosts_of(options, layout, &arena), error);
    arena_free(&arena);
    return error->status;
}

int verify_senders(const VerifyOptions *options, const VerifyCase *layout, int *sender) {
    int n = layout->shape.size[AXIS_DP], at[N_AXES] = {0};
    Arena arena = {0};
    for (int i = 0; i < n; i++) sender[i] = i;
    if (options->compression.is_across_hosts) {
        const int *hosts = hosts_of(options, layout, &arena);
        for (at[AXIS_DP] = 0; at[AXIS_DP] < layout->shape.size[AXIS_DP]; at[AXIS_DP]++) {
            HostPlace place = mesh_host_place(&layout->shape, mesh_rank(&layout->shape, at), hosts);
            sender[at[AXIS_DP]] = place.host;
            n = place.n_hosts;
        }
    }
    arena_free(&arena);
    return n;
}

static bool is_delayed(const VerifyCase *layout) {
    return layout->shape.size[AXIS_PP] > 1 && schedule_info(layout->schedule)->is_asynchronous;
}

/* Would both layouts have the same reference? Where ranks compress it says
 * nothing but what the model is. Where weights are late it depends on what is late, and on how
 * the blocks are cut, which may depend on tp. */
static bool is_same(const VerifyOptions *options, const VerifyCase *a, const VerifyCase *b) {
    if (a->model != b->model || a->tied != b->tied || a->n_layers != b->n_layers) return false;
    bool is_simulated = verify_is_compressed(options, a);
    if (is_simulated != verify_is_compressed(options, b)) return false;
    if (is_simulated) return true;
    if (!is_delayed(a) && !is_delayed(b)) return true;
    const int *x = a->shape.size, *y = b->shape.size;
    return is_delayed(a) && is_delayed(b) && a->schedule == b->schedule && x[AXIS_PP] == y[AXIS_PP] &&
           verify_n_shares(a) == verify_n_shares(b) && x[AXIS_TP] == y[AXIS_TP] &&
           a->n_micro_batches == b->n_micro_batches;
}

static Status train_serially(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    VerifyTraining training = {0};
    VerifyCase layout = {.n_micro_batches = 1, .n_chunks = 1};
    BatchSource source = verify_batches(&reference->config);
    int64_t n_elements = reference->table.n_flat_elements;
    verify_training_open(&training, &options->setting, &reference->config, &layout, &(GradientSyncOptions){0},
                         NULL, VERIFY_CLIP, error);
    for (int64_t i = 0; i < options->n_steps && error->status == STATUS_OK; i++) {
        StepResult result;
        if (train_step_run(&training.step, &source, i, verify_rate(&options->setting), &result, error) !=
            STATUS_OK)
            break;
        reference->losses[i] = result.loss;
        reference->norms[i] = result.gradient_norm;
        executor_download_f32(&training.step.executor, training.step.sync.held, 0, n_elements,
                              reference->weights + i * n_elements, error);
    }
    verify_training_close(&training);
    return error->status;
}

static Status train(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    if (verify_is_compressed(options, &reference->layout)) return STATUS_OK; /* simulated beside it */
    if (options->setting.n_prompt) return verify_train_late(reference, options, error);
    return is_delayed(&reference->layout)
               ? verify_train_delayed(reference, options, &reference->layout, error)
               : train_serially(reference, options, error);
}

static Status open_reference(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    int64_t n_steps = options->n_steps;
    Comm *world = &options->launch->world;
    parameters_build(&reference->table, &reference->config, error);
    int64_t n_weights = reference->table.n_flat_elements * n_steps;
    reference->weights_bytes = (size_t)n_weights * sizeof(float);
    void *weights = NULL;
    if (error->status == STATUS_OK)
        memory_alloc(&weights, reference->weights_bytes, "the serial run's weights", error);
    reference->weights = weights;
    uint64_t start = timer_now_ns();
    if (error->status == STATUS_OK) {
        reference->losses = ARENA_ARRAY(&reference->table.arena, double, n_steps);
        reference->norms = ARENA_ARRAY(&reference->table.arena, double, n_steps);
        if (world->rank == 0) train(reference, options, error);
    }
    TRY(launch_agree(options->launch, error));
    TRY(comm_broadcast(world, reference->losses, n_steps, COMM_F64, 0, error));
    TRY(comm_broadcast(world, reference->norms, n_steps, COMM_F64, 0, error));
    TRY(comm_broadcast(world, reference->weights, n_weights, COMM_F32, 0, error));
    reference->seconds = timer_seconds_since(start);
    return STATUS_OK;
}

static void close_reference(VerifyReference *reference) {
    memory_free(reference->weights, reference->weights_bytes);
    parameters_free(&reference->table);
    free(reference);
}

/* Of those with late weights there are many, and layouts that share one come together: one is kept. */
static void forget_delayed(VerifyReferences *references) {
    for (VerifyReference **at = &references->first; *at;) {
        VerifyReference *reference = *at;
        if (!is_delayed(&reference->layout)) {
            at = &reference->next;
            continue;
        }
        *at = reference->next;
        close_reference(reference);
    }
}

Status verify_reference_find(VerifyReferences *references, const VerifyOptions *options,
                             const VerifyCase *layout, const VerifyReference **found, Error *error) {
    for (VerifyReference *at = references->first; at; at = at->next) {
        if (!is_same(options, &at->layout, layout)) continue;
        *found = at;
        return STATUS_OK;
    }
    if (is_delayed(layout)) forget_delayed(references);
    VerifyReference *reference = calloc(1, sizeof *reference);
    if (!reference) return error_failed(error, "no memory for the serial run");
    *reference = (VerifyReference){
        .next = references->first, .layout = *layout, .config = verify_case_config(options->choice, layout)};
    references->first = reference;
    *found = reference;
    return open_reference(reference, options, error);
}

void verify_references_close(VerifyReferences *references) {
    while (references->first) {
        VerifyReference *reference = references->first;
        references->first = reference->next;
        close_reference(reference);
    }
}
