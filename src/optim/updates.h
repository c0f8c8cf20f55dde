/* What the files that record updates share: what an update of this process goes over, and the update of one
 * run of elements. */
#ifndef PGPT_OPTIM_UPDATES_H
#define PGPT_OPTIM_UPDATES_H

#include "optim/optimizer.h"
#include "optim/tensor_spans.h"

/* Where matrices are made: memory for the largest, which all of them use in turn. */
typedef struct {
    MuonRoom inner;
    Tensor *direction, *whole, *step, *local; /* this rank's part, all of the matrix; likewise of the step */
} MatrixRoom;

/* What the update of this process goes over. */
typedef struct {
    const Optimizer *optimizer;
    const OptimizerOptions *options;
    OptimizerTensors *tensors;
    const ParameterTable *table;
    const UpdateSlices *slices;
    Tensor *loss_scale; /* or NULL */
    Graph *graph;
    TensorNumbers numbers; /* of an update in two passes, */
    Tensor *sums;          /* and the sums between them; NULL: there is one */
    MatrixRoom room;       /* of one that takes whole matrices */
} Updates;

/* The passes of an update: one, or two of which the first measures (Optimizer.measure); of matrices, which
 * way they go, and the step (MatrixUpdate). */
typedef enum { PASS_MEASURE, PASS_UPDATE, PASS_DIRECT, PASS_MOVE } UpdatePass;

/* Of the elements of a slice, drawn for from first_draw on; `array` is their direction or their step. */
void updates_record_slice(const Updates *updates, UpdatePass pass, Tensor *factor, const UpdateSlice *slice,
                          int64_t first_draw, Tensor *array);

/* ---- draws.c */

/* Of elements first .. end - 1 of the flat array, which a slice has and which are of one parameter; `array`,
 * or NULL, is the whole parameter's. They are drawn for by their place in the whole model. */
void updates_record_elements(const Updates *updates, UpdatePass pass, Tensor *factor,
                             const UpdateSlice *slice, const Parameter *parameter, int64_t first, int64_t end,
                             Tensor *array);

/* ---- matrices.c: parameters that are updated as matrices (Optimizer.matrices) ---- */

bool matrices_include(const Optimizer *optimizer, const Parameter *parameter);
MatrixRoom matrices_room(const ParameterTable *table, const Optimizer *optimizer, Precision precision,
                         bool is_joined, Graph *graph);
void matrices_record(const Updates *updates, Tensor *factor);

#endif
