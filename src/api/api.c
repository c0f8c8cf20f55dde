/* Errors, options and numbers at the border between the library and a program. */
#include "api/api.h"

#include "base/version.h"

#include <stdlib.h>
#include <string.h>

const char *pgpt_version(void) {
    return PGPT_VERSION;
}

int pgpt_version_number(void) {
    return PGPT_VERSION_NUMBER;
}

void pgpt_free(void *memory) {
    free(memory);
}

/* ---- Calls. A locale of numbers that cannot be made is done without: most programs have it already. */

void api_enter(ApiCall *call) {
    *call = (ApiCall){0};
    locale_t copy = duplocale(uselocale((locale_t)0));
    if (!copy) return;
    call->ours = newlocale(LC_NUMERIC_MASK, "C", copy);
    if (!call->ours) freelocale(copy);
    else call->before = uselocale(call->ours);
}

pgpt_status api_leave(ApiCall *call, pgpt_error *error) {
    if (call->ours) {
        uselocale(call->before);
        freelocale(call->ours);
    }
    if (error) {
        _Static_assert(sizeof error->text == sizeof call->error.text,
                       "texts of errors are as long on both sides");
        error->status = (pgpt_status)call->error.status;
        memcpy(error->text, call->error.text, sizeof error->text);
    }
    return (pgpt_status)call->error.status;
}

void api_step_out(const ApiCall *call) {
    if (call->ours) uselocale(call->before);
}

void api_step_in(const ApiCall *call) {
    if (call->ours) uselocale(call->ours);
}

/* ---- Options */

char **api_option_words(const char *const *given, Arena *arena, int *n_words, Error *error) {
    enum { MOST = 1 << 16 };
    int n = 0;
    while (given && given[n] && n < MOST) n++;
    char **words = ARENA_ARRAY(arena, char *, n + 1);
    for (int i = 0; i < n; i++) {
        bool is_pair = strchr(given[i], '=') && given[i][0] != '-';
        size_t n_bytes = strlen(given[i]);
        bool is_file = n_bytes > 4 && strcmp(given[i] + n_bytes - 4, ".ini") == 0;
        if (!is_pair && !is_file) {
            error_user(
                error,
                "an option of the library is \"name=value\", not \"%.80s\"; write it so, without dashes",
                given[i]);
            return NULL;
        }
        words[i] = arena_printf(arena, "%s%s", is_pair ? "--" : "", given[i]);
    }
    *n_words = n;
    return words;
}

static bool is_listed(const char *name, const char *const *list) {
    for (; *list; list++) {
        if (strcmp(name, *list) == 0) return true;
    }
    return false;
}

Status api_read_options(Options *options, const OptionCommand *command, void *values,
                        const char *const *given, const char *function, const char *const *allowed,
                        Error *error) {
    int n_words;
    TRY(options_init(options, command, values, error));
    char **words = api_option_words(given, &options->arena, &n_words, error);
    if (!words) return error->status;
    TRY(options_parse(options, n_words, words, error));
    for (int i = 0; i < options->n_options; i++) {
        const char *name = options_spec(command, i, NULL)->name;
        if (options->sources[i] == OPTION_FROM_DEFAULT || is_listed(name, allowed)) continue;
        return error_user(error, "%s takes no option %s; leave it out", function, name);
    }
    return STATUS_OK;
}
