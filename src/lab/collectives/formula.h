/* The value of a formula as comm/algo/catalog.h writes them: collective_formula("2(n - n/N)", 320, 8) is
 * 560. log2 N is rounded up. NAN if the text is no such formula. */
#ifndef PGPT_LAB_COLLECTIVES_FORMULA_H
#define PGPT_LAB_COLLECTIVES_FORMULA_H

double collective_formula(const char *text, double n, int n_ranks);

#endif
