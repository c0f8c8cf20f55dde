/* Options that would do nothing are refused: whoever gives one expects something of it.
 *
 *     const OptionCondition conditions[] = {{"momentum", "--optimizer sgd", is_sgd}};
 *     TRY(options_refuse_idle(&options, conditions, 1, OPTION_FROM_COMMAND, error));
 *     // "--momentum means something only with --optimizer sgd; leave it out, or give that too"
 *
 *     static const OptionUse uses[] = {{"samples", FOR_GENERATE}};       // what is not here is for all
 *     TRY(options_refuse_unused(&options, uses, 1, FOR_STEP, "'bench step'", OPTION_FROM_COMMAND, error));
 *     // "--samples means nothing to 'bench step'; leave it out"
 *
 * `from`: given here or by a source of higher rank. Usually that is the command line: a config file may have
 * been written for something else. */
#ifndef PGPT_BASE_OPTIONS_OPTIONS_REFUSE_H
#define PGPT_BASE_OPTIONS_OPTIONS_REFUSE_H

#include "base/options/options.h"

/* An option that has an effect together with others only. */
typedef struct {
    const char *name;
    const char *needs; /* "--optimizer sgd" */
    bool has_effect;
} OptionCondition;

Status options_refuse_idle(const Options *options, const OptionCondition *conditions, size_t n_conditions,
                           OptionSource from, Error *error);

/* An option that some of a command's actions obey: one bit for each of them. */
typedef struct {
    const char *name;
    unsigned mask;
} OptionUse;

Status options_refuse_unused(const Options *options, const OptionUse *uses, size_t n_uses, unsigned action,
                             const char *action_name, OptionSource from, Error *error);

#endif
