/* The element types that programs have: a case is recorded in f32, and given them. */
#ifndef PGPT_TESTS_OP_CASE_TYPES_H
#define PGPT_TESTS_OP_CASE_TYPES_H

#include "op_cases.h"

typedef struct {
    const char *name;
    DType activation, gradient; /* gradient: of parameters */
    bool is_pure;               /* parameters and moments of the update have the type of activations */
} CaseTypes;

/* The graph's tensors get the types that such programs have. In a mixed one the update writes a copy in 16 bits. */
void case_retype(Graph *graph, const CaseTypes *types);

bool case_is_update(const Node *node);
float case_rounded(float value, DType dtype);

#endif
