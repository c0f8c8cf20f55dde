/* What the functions of the public header (include/pgpt.h) share.
 *
 *     pgpt_status pgpt_something(..., pgpt_error *error) {
 *         ApiCall call;
 *         api_enter(&call);
 *         ... internal functions with &call.error ...
 *         return api_leave(&call, error);
 *     } */
#ifndef PGPT_API_API_H
#define PGPT_API_API_H

#include "base/options/options.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/generator.h"
#include "infer/given_model.h"

#include <locale.h>
#include <pgpt.h>

/* A call under way. Numbers are written and read as C does, whatever the locale of the program: within the
 * call, by this thread, and not while a callback of the program runs. */
typedef struct {
    Error error;
    locale_t ours, before;
} ApiCall;

void api_enter(ApiCall *call);
pgpt_status api_leave(ApiCall *call, pgpt_error *error);

/* Around a callback. */
void api_step_out(const ApiCall *call);
void api_step_in(const ApiCall *call);

/* Read "name=value" options into the values of a command. Only those named in `allowed`, which ends with
 * NULL, may be given; `function` is for the message. Options.arena belongs to the caller also after a
 * failure: options_free. */
Status api_read_options(Options *options, const OptionCommand *command, void *values,
                        const char *const *given, const char *function, const char *const *allowed,
                        Error *error);

/* The words of a command line that say the same, in the arena, and how many there are. */
char **api_option_words(const char *const *given, Arena *arena, int *n_words, Error *error);

struct pgpt_model {
    GivenModel given;
    Generator generator;
    bool has_generator;
    DType dtype;
    pgpt_model_info info;
};

/* Of generation: GenerateOptions in a struct of its own. */
extern const OptionCommand api_generate_command;

#endif
