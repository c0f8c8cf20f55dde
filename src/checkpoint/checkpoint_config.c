/* The model's configuration as JSON. It walks the model's option table, so that an option added there is
 * saved and loaded without a line here. A field that an older checkpoint does not have gets the option's
 * default; a field that the table does not have means that the checkpoint is newer than this program. */
#include "checkpoint/checkpoint.h"

#include "base/text/format.h"

#include <float.h>
#include <string.h>

static json_t *value_json(const OptionSpec *spec, const void *field) {
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return json_boolean(*(const bool *)field);
    case OPTION_TYPE_INT: return json_integer(*(const int64_t *)field);
    case OPTION_TYPE_FLOAT: return json_make_number(*(const double *)field);
    case OPTION_TYPE_STRING: return json_make_text(*(const char *const *)field);
    case OPTION_TYPE_CHOICE: return json_make_text(spec->choices[*(const int *)field]);
    }
    return json_null();
}

json_t *checkpoint_config_json(const ModelConfig *config) {
    json_t *object = json_object();
    for (const OptionSpec *spec = model_option_specs; spec->name; spec++) {
        json_object_set_new(object, spec->name, value_json(spec, (const char *)config + spec->offset));
    }
    return object;
}

static void set_default(const OptionSpec *spec, void *field) {
    switch (spec->type) {
    case OPTION_TYPE_BOOL: *(bool *)field = spec->bool_default; break;
    case OPTION_TYPE_INT: *(int64_t *)field = spec->int_default; break;
    case OPTION_TYPE_FLOAT: *(double *)field = spec->float_default; break;
    case OPTION_TYPE_STRING: *(const char **)field = spec->text_default; break;
    case OPTION_TYPE_CHOICE: *(int *)field = (int)spec->int_default; break;
    }
}

static Status read_choice(const json_t *object, const char *path, const OptionSpec *spec, int *field,
                          Error *error) {
    const char *text;
    TRY(json_field_text(object, path, spec->name, &text, error));
    for (int i = 0; spec->choices[i]; i++) {
        if (strcmp(spec->choices[i], text) != 0) continue;
        *field = i;
        return STATUS_OK;
    }
    return error_user(error, "%s: field '%s' is '%.40s', which is not known here", path, spec->name, text);
}

static Status read_float(const json_t *object, const char *path, const OptionSpec *spec, double *field,
                         Error *error) {
    TRY(json_field_float(object, path, spec->name, spec->float_min, spec->float_max, field, error));
    if (((spec->flags & OPTION_ABOVE_MIN) && *field == spec->float_min) ||
        ((spec->flags & OPTION_BELOW_MAX) && *field == spec->float_max)) {
        return error_user(error, "%s: field '%s' is out of range: %s", path, spec->name,
                          format_double(*field).text);
    }
    return STATUS_OK;
}

static Status read_field(const json_t *object, const char *path, const OptionSpec *spec, void *field,
                         Arena *arena, Error *error) {
    const char *text;
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return json_field_bool(object, path, spec->name, field, error);
    case OPTION_TYPE_INT:
        return json_field_int(object, path, spec->name, spec->int_min, spec->int_max, field, error);
    case OPTION_TYPE_FLOAT: return read_float(object, path, spec, field, error);
    case OPTION_TYPE_CHOICE: return read_choice(object, path, spec, field, error);
    case OPTION_TYPE_STRING:
        TRY(json_field_text(object, path, spec->name, &text, error));
        *(const char **)field = arena_strdup(arena, text);
        return STATUS_OK;
    }
    return STATUS_OK;
}

static bool is_known(const char *name) {
    for (const OptionSpec *spec = model_option_specs; spec->name; spec++) {
        if (strcmp(spec->name, name) == 0) return true;
    }
    return false;
}

Status checkpoint_config_read(const json_t *object, const char *path, ModelConfig *config, Arena *arena,
                              Error *error) {
    *config = (ModelConfig){0};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        if (!is_known(key)) {
            return error_user(error,
                              "%s: the model has '%.40s', which is not known here; is pgpt too old for it?",
                              path, key);
        }
    }
    for (const OptionSpec *spec = model_option_specs; spec->name; spec++) {
        void *field = (char *)config + spec->offset;
        set_default(spec, field);
        if (json_object_get(object, spec->name)) TRY(read_field(object, path, spec, field, arena, error));
    }
    if (config_complete(config, config->vocabulary, error) != STATUS_OK)
        return error_prefix(error, "%s: ", path);
    return STATUS_OK;
}

Status checkpoint_check_config(const ModelConfig *saved, const ModelConfig *wanted, Error *error) {
    Arena arena = {0};
    for (const OptionSpec *spec = model_option_specs; spec->name && error->status == STATUS_OK; spec++) {
        const char *had = option_value_text(spec, (const char *)saved + spec->offset, &arena);
        const char *has = option_value_text(spec, (const char *)wanted + spec->offset, &arena);
        bool is_name = strcmp(spec->name, "model") == 0; /* which says nothing beyond the sizes */
        if (is_name || !(spec->flags & OPTION_FIXED) || strcmp(had, has) == 0) continue;
        error_user(
            error,
            "the checkpoint is of another model, with --%s %s instead of %s; leave out --%s to go on with it, or "
            "begin a new run",
            spec->name, had, has, spec->name);
    }
    arena_free(&arena);
    return error->status;
}
