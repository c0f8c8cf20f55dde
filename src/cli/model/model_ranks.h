/* A model on several ranks: what pgpt generate and pgpt eval have in common under mpirun. With one process it
 * is the same with nobody to wait for.
 *
 *     TRY(model_ranks_begin(&ranks, launch, &options, &mesh, error));     before anything else is read
 *     ... find the model and what to do with it: given_model_find(..., &launch->world, ...) ...
 *     TRY(model_ranks_open(&ranks, &model, &device, error));              the mesh, and this rank's part
 *     ... plan with model_ranks_part(&ranks), load, run ...
 *     model_ranks_close(&ranks, &model);                                  also after a failure, before the
 *                                                                         model
 *
 * All of it is collective, and what goes wrong on one rank is known to all when these return. */
#ifndef PGPT_CLI_MODEL_MODEL_RANKS_H
#define PGPT_CLI_MODEL_MODEL_RANKS_H

#include "infer/given_model.h"
#include "infer/model_part.h"
#include "model/stages.h"
#include "parallel/launch/launch.h"
#include "parallel/options.h"

typedef struct {
    Launch *launch;
    const MeshOptions *options;
    MeshShape shape;
    Mesh mesh;
    Stages stages;        /* which blocks each has */
    Pipeline pipeline;    /* of pp, if that is more than 1 */
    ParameterPart chunks; /* what this rank has */
    Comm group;           /* the ranks that have this one's model together, for numbers of the host */
    int64_t n_asked;      /* of model_ranks_interrupted */
    Arena arena;
} ModelRanks;

/* Do all ranks want the same, and is there a mesh for it? */
Status model_ranks_begin(ModelRanks *ranks, Launch *launch, const Options *options, const MeshOptions *mesh,
                         Error *error);

/* Divides the model that was found, and opens the device of every rank. `device` is what the user wishes. */
Status model_ranks_open(ModelRanks *ranks, GivenModel *model, const DeviceOptions *device, Error *error);
void model_ranks_close(ModelRanks *ranks, const GivenModel *model); /* safe on {0} */

ModelPart model_ranks_part(const ModelRanks *ranks);

/* Groups of dp, and this one's number: texts are shared out among them. */
int model_ranks_n_shares(const ModelRanks *ranks);
int model_ranks_share(const ModelRanks *ranks);

/* Ranks of a group find the same: is this the one that speaks for it? */
bool model_ranks_speaks(const ModelRanks *ranks);

/* Say so where some of the groups will have nothing to do. `what`: "samples". */
void model_ranks_say_idle(const ModelRanks *ranks, int64_t n, const char *what, const Log *log);

/* As device_check_memory, with room for the other ranks of the host. */
Status model_ranks_check_memory(const ModelRanks *ranks, const GivenModel *model, size_t n_bytes,
                                const char *what, const char *advice, Error *error);

/* Was the command told to stop? All ranks that have a model together get the same answer, as they ask equally
 * often; so that it costs little, they ask each other only every few times. */
bool model_ranks_interrupted(ModelRanks *ranks, Error *error);

#endif
