/* The mesh of one rank of a job that is not started: who is in each of its groups is known from the shape
 * alone, so no other rank is asked and a mesh of thousands costs nothing.
 *
 *     PlannedRank rank;
 *     TRY(planned_rank_open(&rank, &setup, 17, error));
 *     ... plan a program with rank.mesh, rank.pipeline and rank.launch ...
 *     const PlannedGroup *group = planned_group(comm);     // of a communication node: who takes part
 *     planned_rank_close(&rank);
 *
 * Communicators move nothing and refuse to be used: they are there to be named by nodes. */
#ifndef PGPT_PLAN_PLANNED_MESH_H
#define PGPT_PLAN_PLANNED_MESH_H

#include "model/config.h"
#include "parallel/launch/launch.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline.h"

/* Of which the most are on one host, and on how many hosts they are, for so many ranks a host; 0: not asked
 * yet. Plans ask for every node, and groups can be large. */
typedef struct {
    int ranks_a_host, a_host, n_hosts;
} PlannedHosts;

typedef struct {
    int size, rank;
    const int *member;   /* (size) ranks of the job, in the order of the group */
    int axes;            /* a bit each: along which of them members differ */
    PlannedHosts *hosts; /* what links_place has found; NULL: it keeps nothing */
} PlannedGroup;

typedef struct {
    const MeshShape *shape;
    const ModelConfig *config;
    const PipelineLayout *layout; /* NULL: no pipeline */
    const CommAlgorithm *all_reduce;
    bool only_enqueues; /* as NCCL's communicators do */
    const int *hosts;   /* of all ranks, where sums go within hosts first (mesh_hosts.h); NULL: nobody asks */
} PlannedSetup;

typedef struct {
    Arena arena;
    Launch launch; /* alone, but for its world */
    Mesh mesh;
    Pipeline pipeline;
    Comm saving;
} PlannedRank;

/* Fails for want of memory only. The setup's shape, config and layout are copied or read here alone. */
Status planned_rank_open(PlannedRank *planned, const PlannedSetup *setup, int rank, Error *error);
void planned_rank_close(PlannedRank *planned); /* safe on {0} */

/* NULL: it is no such communicator, as that of a rank by itself. */
const PlannedGroup *planned_group(const Comm *comm);

#endif
