/* What each operation on numbers computes, and its share of the chain rule: the one table behind the fixed
 * graph (scalar.c) and the one that is allocated node by node (objects.c).
 *
 *     double y = scalar_rule_value(SCALAR_EXP, x, x);
 *     ScalarSlopes slopes = scalar_rule_slopes(SCALAR_EXP, x, x, y, dy);          // slopes.left: dy · exp(x)
 *
 * An operation of one operand has it on both sides, and the slope of the right one is zero. */
#ifndef PGPT_LAB_LINEAR_SCALAR_RULES_H
#define PGPT_LAB_LINEAR_SCALAR_RULES_H

#include "lab/linear/scalar.h"

#include <math.h>

static inline double scalar_rule_value(ScalarOperation operation, double left, double right) {
    switch (operation) {
    case SCALAR_ADD: return left + right;
    case SCALAR_SUBTRACT: return left - right;
    case SCALAR_MULTIPLY: return left * right;
    case SCALAR_DIVIDE: return left / right;
    case SCALAR_POWER: return pow(left, right);
    case SCALAR_EXP: return exp(left);
    case SCALAR_LOG: return log(left);
    case SCALAR_TANH: return tanh(left);
    case SCALAR_RELU: return left > 0.0 || isnan(left) ? left : 0.0;
    }
    return 0.0;
}

typedef struct {
    double left, right;
} ScalarSlopes;

/* d(b^e)/de is b^e log b, which a base below zero does not have: nobody may ask for the slope of such an
 * exponent, and it is NAN. A base of zero has a limit, 0, for every exponent above 0. */
static inline ScalarSlopes scalar_rule_power(double base, double exponent, double result, double slope) {
    double of_exponent = base == 0.0 && exponent > 0.0 ? 0.0 : result * log(base);
    return (ScalarSlopes){slope * exponent * pow(base, exponent - 1.0), slope * of_exponent};
}

/* `slope` is that of the result. */
static inline ScalarSlopes scalar_rule_slopes(ScalarOperation operation, double left, double right,
                                              double result, double slope) {
    switch (operation) {
    case SCALAR_ADD: return (ScalarSlopes){slope, slope};
    case SCALAR_SUBTRACT: return (ScalarSlopes){slope, -slope};
    case SCALAR_MULTIPLY: return (ScalarSlopes){slope * right, slope * left};
    case SCALAR_DIVIDE: return (ScalarSlopes){slope / right, -(slope / right) * result};
    case SCALAR_POWER: return scalar_rule_power(left, right, result, slope);
    case SCALAR_EXP: return (ScalarSlopes){slope * result, 0.0};
    case SCALAR_LOG: return (ScalarSlopes){slope / left, 0.0};
    case SCALAR_TANH: return (ScalarSlopes){slope * (1.0 - result * result), 0.0};
    case SCALAR_RELU: return (ScalarSlopes){left > 0.0 ? slope : 0.0, 0.0};
    }
    return (ScalarSlopes){0.0, 0.0};
}

#endif
