/* A model that a run begins with decides the run's model: its options are taken from it, and one that the
 * user gave himself must not say anything else. */
#include "huggingface/model_source.h"

#include <stdlib.h>
#include <string.h>

/* Has the user (or a file, or a preset that he named) asked for something else? 0 in a whole number asks for
 * nothing. */
static bool is_contradicted(const Options *options, const OptionSpec *spec, const char *text, Arena *arena,
                            const char **asked) {
    int index = options_find(options->command, spec->name);
    const void *field = options_value(options, index);
    if (options_source(options, spec->name) == OPTION_FROM_DEFAULT) return false;
    if (spec->type == OPTION_TYPE_INT && *(const int64_t *)field == 0) return false;
    *asked = option_value_text(spec, field, arena);
    return strcmp(*asked, text) != 0;
}

/* A name that can be part of a folder's. */
static bool is_plain(const char *name) {
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(name);
}

Status model_source_set_options(const ModelSource *source, Options *options, Error *error) {
    Arena arena = {0};
    for (const OptionSpec *spec = model_option_specs; spec->name && error->status == STATUS_OK; spec++) {
        const char *text = option_value_text(spec, (const char *)&source->config + spec->offset, &arena),
                   *asked;
        bool is_name = strcmp(spec->name, "model") == 0;
        if (is_name && !is_plain(text)) continue;
        /* The name says nothing beyond the sizes; dropout, capacity and the losses of routers, which a run
         * may change too, are a matter of the training. */
        bool is_free = is_name || !(spec->flags & OPTION_FIXED);
        if (!is_free && is_contradicted(options, spec, text, &arena, &asked)) {
            error_user(error, "%s has --%s %s, not %s; leave out --%s%s", source->path, spec->name, text,
                       asked, spec->name,
                       options_source(options, spec->name) == OPTION_FROM_PRESET ? " and --model" : "");
        } else {
            options_set(options, spec->name, text, OPTION_FROM_PRESET, error);
        }
    }
    arena_free(&arena);
    return error->status;
}

Status model_source_keep_origin(const ModelSource *source, const char *folder, Error *error) {
    enum { LIMIT_BYTES = 1 << 20 };
    if (!source->origin) return STATUS_OK;
    Arena arena = {0};
    FileWriter writer = {.descriptor = -1};
    char *bytes;
    size_t n_bytes;
    TRY(file_read_regular(source->origin, LIMIT_BYTES, &bytes, &n_bytes, error));
    TRY_GOTO(file_writer_open(&writer, arena_printf(&arena, "%s/%s", folder, MODEL_SOURCE_ORIGIN), error),
             done);
    TRY_GOTO(file_writer_write(&writer, bytes, n_bytes, error), done);
    file_writer_commit(&writer, error);
done:
    file_writer_abort(&writer);
    free(bytes);
    arena_free(&arena);
    return error->status;
}
