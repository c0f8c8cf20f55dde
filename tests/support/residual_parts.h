/* residual_norm against dropout, add and the norm on the same backend: the same bits. */
#ifndef PGPT_TESTS_RESIDUAL_PARTS_H
#define PGPT_TESTS_RESIDUAL_PARTS_H

#include "graph/backend.h"

/* Forward and backward in every type, with both norms, with dropout and without; fails the test at the first difference. */
void residual_norm_has_the_bits_of_its_parts(const Backend *backend);

#endif
