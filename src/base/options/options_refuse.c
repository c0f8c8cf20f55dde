/* One sentence each, so that every command refuses in the same words. */
#include "base/options/options_refuse.h"

Status options_refuse_idle(const Options *options, const OptionCondition *conditions, size_t n_conditions,
                           OptionSource from, Error *error) {
    for (size_t i = 0; i < n_conditions; i++) {
        if (conditions[i].has_effect || options_source(options, conditions[i].name) < from) continue;
        return error_user(error, "--%s means something only with %s; leave it out, or give that too",
                          conditions[i].name, conditions[i].needs);
    }
    return STATUS_OK;
}

Status options_refuse_unused(const Options *options, const OptionUse *uses, size_t n_uses, unsigned action,
                             const char *action_name, OptionSource from, Error *error) {
    for (size_t i = 0; i < n_uses; i++) {
        if (uses[i].mask & action || options_source(options, uses[i].name) < from) continue;
        return error_user(error, "--%s means nothing to %s; leave it out", uses[i].name, action_name);
    }
    return STATUS_OK;
}
