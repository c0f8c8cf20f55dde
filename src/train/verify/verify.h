/* The proof that a layout never changes the result: small models, trained serially and in layouts of the
 * ranks at hand (cases.h), with losses, norms and weights compared after every step.
 *
 *     Verifier verifier = {.options = options};
 *     TRY(verify_run(&verifier, &layout, &result, error));        // for each
 *     verify_close(&verifier); */
#ifndef PGPT_TRAIN_VERIFY_VERIFY_H
#define PGPT_TRAIN_VERIFY_VERIFY_H

#include "train/verify/kept_mesh.h"
#include "train/verify/reference.h"

/* VERIFY_BITS: with offload, something differs from the same layout without it. */
typedef enum { VERIFY_LOSS = -1, VERIFY_NORM = -2, VERIFY_BITS = -3 } VerifyNumber;

typedef struct {
    double loss_deviation;   /* the largest over all steps and ranks, relative */
    double norm_deviation;   /* likewise, of the gradient's norm */
    double weight_deviation; /* likewise, of a tensor's largest value */
    /* The first deviation beyond the tolerance: of the earliest step, there the loss, the norm or the first
     * tensor of the table. */
    bool differs;
    int64_t step;    /* counted from 1 */
    int parameter;   /* its position in the table of the whole model, or a VerifyNumber */
    int64_t element; /* of that parameter */
    int rank;
    double value, wanted;
    double seconds;
    char name[64];         /* of the parameter */
    const char *transport; /* what the sums over ranks went by: "mpi", "nccl", "staged" (through the host) */
} VerifyResult;

typedef struct {
    VerifyOptions options;
    VerifyReferences references;
    Comm group;  /* the first n_group ranks, where those are not all; {0} on the others */
    int n_group; /* 0: there is none */
    int n_ranks; /* of the layout before */
    KeptMesh kept;
} Verifier;

/* Train in this layout, of as many ranks as the launch has or fewer: the others look on. Collective; every
 * rank gets the same result. */
Status verify_run(Verifier *verifier, const VerifyCase *layout, VerifyResult *result, Error *error);
void verify_close(Verifier *verifier);

#endif
