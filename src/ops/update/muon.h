/* The operations of --optimizer muon: momentum, the orthogonalisation of a matrix, the step.
 *
 * muon_momentum: gradient, hyper, [factor] -> direction (f32), moment, which changes in place. Elements.
 * muon_normalise: x, squares (1) -> y = x / (√squares + ε), which may have another type.
 * muon_polynomial: A (n,n), A² (n,n) -> a·I + b·A + c·A².
 * muon: step, hyper, [factor] -> parameter, which changes in place, [copy]. Elements.
 * box: x, a box of y (or, taking, of x) by itself -> y, of which the rest stays as it is. */
#ifndef PGPT_OPS_UPDATE_MUON_H
#define PGPT_OPS_UPDATE_MUON_H

#include "graph/box.h"
#include "ops/update/update.h"

typedef struct {
    UpdateElements elements;
    float momentum, weight_decay;
    float rate_factor; /* of the learning rate that hyper has */
    bool nesterov;
} MuonAttributes;

typedef struct {
    float a, b, c;
} MuonPolynomial;

typedef struct {
    Box box;
    Shape whole;
    bool takes; /* the box out of the whole; else it is put into it */
} BoxAttributes;

extern const Op OP_MUON_MOMENTUM, OP_MUON_NORMALISE, OP_MUON_POLYNOMIAL, OP_MUON, OP_BOX;
void op_muon_momentum(Graph *graph, const UpdateTensors *tensors, Tensor *direction,
                      const MuonAttributes *attributes);
void op_muon(Graph *graph, const UpdateTensors *tensors, Tensor *step, const MuonAttributes *attributes);
void op_muon_normalise(Graph *graph, Tensor *x, Tensor *squares, Tensor *y);
void op_muon_polynomial(Graph *graph, Tensor *matrix, Tensor *square, Tensor *y, MuonPolynomial polynomial);
void op_box(Graph *graph, Tensor *x, Tensor *y, const BoxAttributes *attributes);

/* Where matrices are orthogonalised: x and y have room for the largest matrix, the squares for the square of
 * its smaller side, all of one type; `total` is a scalar. They are overwritten. */
typedef struct {
    Tensor *x, *y, *square1, *square2, *total;
} MuonRoom;

/* Record to = scale · U·Vᵀ, nearly, where from (rows, columns) = U·S·Vᵀ: five steps of Newton and Schulz,
 * whose singular values end between 0.7 and 1.2. `to` may be of the room's type. */
void muon_orthogonalise(Graph *graph, Tensor *from, Tensor *to, int64_t rows, int64_t columns, float scale,
                        const MuonRoom *room);

#endif
