/* A name that exists goes before a list, and a name that exists with its colon before a weight: nobody has to
 * rename a file for us. */
#include "data/names.h"

#include "base/file/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_name(const char *text) {
    return strcmp(text, "-") == 0 || strcmp(text, "builtin") == 0 || file_exists(text);
}

/* The text of the name is taken over. */
static Status add(DataNames *names, DataName name, const char *what, Error *error) {
    DataName *larger = name.name ? realloc(names->names, (names->n + 1) * sizeof *larger) : NULL;
    if (!larger) {
        free(name.name);
        return error_failed(error, "out of memory: no room for %zu names", names->n + 1);
    }
    names->names = larger;
    for (size_t i = 0; strcmp(name.name, "-") == 0 && i < names->n; i++) {
        if (strcmp(larger[i].name, "-") != 0) continue;
        free(name.name);
        return error_user(error, "%s names standard input (-) twice; it can be read once only", what);
    }
    larger[names->n++] = name;
    return STATUS_OK;
}

/* NAME or NAME:WEIGHT. */
static Status add_item(DataNames *names, const char *item, size_t n_bytes, const char *what, Error *error) {
    DataName name = {.name = strndup(item, n_bytes), .weight = 1};
    char *colon = name.name ? strrchr(name.name, ':') : NULL, *end = NULL;
    if (colon && !is_name(name.name)) {
        double number = strtod(colon + 1, &end);
        name.has_weight = end > colon + 1 && !*end;
        if (name.has_weight) name.weight = number;
        if (name.has_weight) *colon = 0;
    }
    if (name.name && !*name.name)
        error_user(error, "%s has an empty name in its list; write NAME:WEIGHT,NAME:WEIGHT", what);
    else if (!isfinite(name.weight) || name.weight <= 0)
        error_user(error, "%s: the weight of '%s' is %g, but must be above 0", what, name.name, name.weight);
    if (error->status == STATUS_OK) return add(names, name, what, error);
    free(name.name);
    return error->status;
}

Status data_names_add(DataNames *names, const char *text, const char *what, Error *error) {
    if (is_name(text) || !strpbrk(text, ":,"))
        return add(names, (DataName){.name = strdup(text), .weight = 1}, what, error);
    for (const char *item = text;; item++) {
        size_t n = strcspn(item, ",");
        TRY(add_item(names, item, n, what, error));
        item += n;
        if (!*item) return STATUS_OK;
    }
}

Status data_names_add_plain(DataNames *names, const char *text, const char *what, Error *error) {
    size_t n_before = names->n;
    TRY(data_names_add(names, text, what, error));
    for (size_t i = n_before; i < names->n; i++) {
        if (!names->names[i].has_weight) continue;
        return error_user(error,
                          "%s takes everything once, so the weight of '%s' means nothing; leave it out", what,
                          names->names[i].name);
    }
    return STATUS_OK;
}

void data_names_free(DataNames *names) {
    for (size_t i = 0; i < names->n; i++) free(names->names[i].name);
    free(names->names);
    *names = (DataNames){0};
}
