/* What one process makes of a model: what every layout is compared with. The root trains; the others are
 * told. Trainings that several layouts are compared with are kept.
 *
 *     TRY(verify_reference_find(&references, &options, &layout, &reference, error));    // collective
 *     ... reference->losses[i], reference->weights ...
 *     verify_references_close(&references); */
#ifndef PGPT_TRAIN_VERIFY_REFERENCE_H
#define PGPT_TRAIN_VERIFY_REFERENCE_H

#include "parallel/launch/launch.h"
#include "train/verify/training.h"

typedef struct {
    VerifySetting setting;
    const VerifyChoice *choice;
    Launch *launch;
    int64_t n_steps;
    double tolerance;        /* of losses and norms, relative */
    double weight_tolerance; /* of weights, of the largest of each tensor */
    int left_out;            /* see GradientSyncOptions */
    Offload offload;         /* of layouts: bit by bit what the same layout makes without it; {0}: of none */
    Compression compression; /* likewise */
    int host_ranks;          /* with is_across_hosts: so many ranks after each other are a host */
} VerifyOptions;

/* Who has something of its own to say where ranks compress, of each rank of dp (1 .. dp ranks, or hosts). */
int verify_senders(const VerifyOptions *options, const VerifyCase *layout, int *sender /* (dp) */);

/* Opens the layout's hosts, if sums are exact within them. */
Status verify_open_hosts(const VerifyOptions *options, const VerifyCase *layout, Mesh *mesh, Error *error);

/* Does a layout compress anything? It is then compared step by step (compressed.h). */
bool verify_is_compressed(const VerifyOptions *options, const VerifyCase *layout);

typedef struct VerifyReference VerifyReference;
struct VerifyReference {
    VerifyReference *next;
    VerifyCase layout; /* the first one that it was wanted for */
    ModelConfig config;
    ParameterTable table; /* of the whole model */
    double *losses;       /* (n_steps) */
    double *norms;        /* (n_steps) of the gradient, before clipping */
    float *weights;       /* (n_steps, n_flat_elements) after each step */
    size_t weights_bytes;
    double seconds; /* that it took */
};

typedef struct {
    VerifyReference *first;
} VerifyReferences;

/* Collective over all ranks of the launch. */
Status verify_reference_find(VerifyReferences *references, const VerifyOptions *options,
                             const VerifyCase *layout, const VerifyReference **found, Error *error);
void verify_references_close(VerifyReferences *references);

#endif
