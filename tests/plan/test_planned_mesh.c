/* The groups of a planned rank are those that a job's ranks would split off: compared with communicators that
 * learn them from every rank, over meshes of all axes. */
#include "plan/planned_mesh.h"

#include "comm/comm_null.h"
#include "parallel/mesh_hosts.h"
#include "train/model_mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Two ranks on each, where sums go within hosts first; NULL: here they cannot. */
static const int *hosts_of(const MeshShape *shape) {
    static int hosts[32];
    for (int i = 0; i < 32; i++) hosts[i] = i / 2;
    return mesh_check_hosts(shape, hosts, &(Error){0}) == STATUS_OK ? hosts : NULL;
}

typedef struct {
    Mesh mesh;
    Pipeline pipeline;
    Comm world;
} Learned;

static Status open_learned(Learned *learned, NullGroup *world, int rank, const MeshShape *shape,
                           const ModelConfig *config, const PipelineLayout *layout, Error *error) {
    *learned = (Learned){.world = comm_null_rank(world, rank)};
    TRY(model_mesh_open(&learned->mesh, shape, config, &learned->world, error));
    if (hosts_of(shape)) TRY(mesh_open_hosts(&learned->mesh, hosts_of(shape), error));
    return shape->size[AXIS_PP] > 1 ? model_pipeline_open(&learned->pipeline, &learned->mesh, layout, error)
                                    : STATUS_OK;
}

static void close_learned(Learned *learned) {
    model_pipeline_close(&learned->pipeline, NULL);
    model_mesh_close(&learned->mesh, NULL);
    comm_close(&learned->world);
}

static void compare(const Comm *planned, const Comm *learned) {
    const PlannedGroup *group = planned->table ? planned_group(planned) : NULL;
    int size = learned->table ? learned->size : 0;
    assert_int_equal(planned->table ? planned->size : 0, size);
    if (size < 2) return;
    assert_non_null(group);
    assert_int_equal(group->rank, learned->rank);
    for (int i = 0; i < size; i++) assert_int_equal(group->member[i], comm_null_first_rank(learned, i));
}

static void compare_rank(const Learned *learned, const PlannedRank *planned, const PipelineLayout *layout) {
    for (int axis = 0; axis < N_AXES; axis++) compare(&planned->mesh.axis[axis], &learned->mesh.axis[axis]);
    compare(&planned->mesh.sums, &learned->mesh.sums);
    compare(&planned->mesh.expert_sums, &learned->mesh.expert_sums);
    compare(&planned->mesh.heads, &learned->mesh.heads);
    compare(&planned->mesh.ends, &learned->mesh.ends);
    compare(&planned->mesh.hosts.inside, &learned->mesh.hosts.inside);
    compare(&planned->mesh.hosts.across, &learned->mesh.hosts.across);
    for (int i = 0; learned->pipeline.border && i < layout->n_chunks * N_BORDERS; i++) {
        const PipelineBorder *a = &planned->pipeline.border[i / N_BORDERS][i % N_BORDERS],
                             *b = &learned->pipeline.border[i / N_BORDERS][i % N_BORDERS];
        assert_int_equal(a->exists, b->exists);
        assert_int_equal(a->other, b->other);
        for (int way = 0; way < N_PIPELINE_WAYS; way++) compare(&a->comm[way], &b->comm[way]);
    }
}

static void check_shape(const MeshShape *shape, const ModelConfig *config, const PipelineLayout *layout) {
    Error error = {0};
    NullGroup *world;
    int n_ranks = mesh_n_ranks(shape);
    assert_int_equal(comm_null_open(&world, n_ranks, &error), STATUS_OK);
    do {
        for (int rank = 0; rank < n_ranks; rank++) {
            Learned learned;
            open_learned(&learned, world, rank, shape, config, layout, &(Error){0});
            close_learned(&learned);
        }
    } while (comm_null_learn(world));
    PlannedSetup setup = {.shape = shape,
                          .config = config,
                          .layout = shape->size[AXIS_PP] > 1 ? layout : NULL,
                          .hosts = hosts_of(shape)};
    for (int rank = 0; rank < n_ranks; rank++) {
        Learned learned;
        PlannedRank planned;
        assert_int_equal(open_learned(&learned, world, rank, shape, config, layout, &error), STATUS_OK);
        assert_int_equal(planned_rank_open(&planned, &setup, rank, &error), STATUS_OK);
        compare_rank(&learned, &planned, layout);
        planned_rank_close(&planned);
        close_learned(&learned);
    }
    comm_null_close(world);
}

static void groups_are_those_of_a_job(void **state) {
    (void)state;
    static const int shapes[][N_AXES] = {/* pp, dp, cp, ep, tp */
                                         {1, 1, 1, 1, 1}, {1, 5, 1, 1, 1}, {3, 1, 1, 1, 1}, {2, 2, 2, 2, 2},
                                         {1, 2, 3, 1, 1}, {1, 2, 1, 3, 2}, {4, 1, 1, 1, 3}, {2, 3, 1, 1, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        MeshShape shape;
        for (int axis = 0; axis < N_AXES; axis++) shape.size[axis] = shapes[i][axis];
        for (int tied = 0; tied < 2; tied++) {
            ModelConfig config = {.n_heads = 6, .n_kv_heads = 2, .n_channels = 12, .tied = tied};
            PipelineLayout loop = {SCHEDULE_INTERLEAVED, shape.size[AXIS_PP], 2},
                           tip = {SCHEDULE_ZB_V, shape.size[AXIS_PP], 2};
            check_shape(&shape, &config, &loop);
            check_shape(&shape, &config, &tip);
        }
    }
}

/* They are there to be named. */
static void nobody_talks(void **state) {
    (void)state;
    Error error = {0};
    MeshShape shape = {{1, 2, 1, 1, 1}};
    ModelConfig config = {.n_heads = 2, .n_kv_heads = 2, .n_channels = 4};
    PlannedRank planned;
    float number = 1.0F;
    assert_int_equal(
        planned_rank_open(&planned, &(PlannedSetup){.shape = &shape, .config = &config}, 1, &error),
        STATUS_OK);
    assert_int_equal(comm_send(&planned.mesh.axis[AXIS_DP], &number, sizeof number, 0, 0, &error),
                     STATUS_FAILED);
    planned_rank_close(&planned);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_are_those_of_a_job),
                                       cmocka_unit_test(nobody_talks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
