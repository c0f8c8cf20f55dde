/* What the builders of cases (op_cases*.c) make inputs with, and how they end. */
#ifndef PGPT_TESTS_OP_CASE_INPUTS_H
#define PGPT_TESTS_OP_CASE_INPUTS_H

#include "op_cases.h"

/* offset + scale · a value that the name decides. */
Tensor *case_floats(OpCase *test, Place place, Shape shape, const char *name, float scale, float offset);
/* An activation that comes from elsewhere, in need of a gradient unless the case says not. */
Tensor *case_activation(OpCase *test, Shape shape, const char *name);
Tensor *case_parameter(OpCase *test, Shape shape, const char *name, float offset);
Tensor *case_integers(OpCase *test, Shape shape, const char *name, int64_t below);
/* `count` numbers of 4 bytes. */
Tensor *case_literal(OpCase *test, DType dtype, int64_t count, const char *name, const void *values);
/* Words for chance, always the same. */
Tensor *case_random(OpCase *test);
/* A tensor that the caller says what to fill with. */
CaseFill *case_add_fill(OpCase *test, Place place, DType dtype, Shape shape, const char *name);
/* What comes into an operation: given, or made of something given by a layer whose bias needs a gradient. */
Tensor *case_incoming(OpCase *test, Shape shape, const char *name);
/* From 0 or CASE_FIRST_POSITION on, or two runs. */
RowPositions case_positions(const OpCase *test, int64_t n_rows);
const Node *case_last_node(const OpCase *test);
Tensor *case_state(OpCase *test, Shape shape, const char *name);
void case_result(OpCase *test, const char *name, Tensor *tensor);
/* y is a result, and the loss weighs it. */
void case_finish(OpCase *test, Tensor *y);

#endif
