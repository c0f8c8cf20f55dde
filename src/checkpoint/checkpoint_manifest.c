/* The manifest says what the other files must be, so nothing else can vouch for the manifest itself: its
 * last line is a checksum of the bytes before it, taken from the text as it lies on the disk. The check
 * therefore finds any change, also one that JSON would not mind.
 *
 * Version 2 is version 1 with tensors in parts, version 3 with parts that are boxes, so that a program
 * that does not know them says that it is too old. A file has the lowest version that it can.
 *
 * 64-bit hashes are written as hexadecimal texts, since many readers of JSON keep numbers in doubles. */
#include "checkpoint/checkpoint_manifest.h"

#include "checkpoint/checkpoint_folder.h"

#include "base/version.h"

#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MANIFEST_FORMAT "pgpt checkpoint"
enum {
    WHOLE_VERSION = 1,
    PARTS_VERSION = 2,
    BOXES_VERSION = 3,
    MANIFEST_LIMIT_BYTES = 16 << 20,
    N_HASH_DIGITS = 16,
    MAX_FILES = 1 << 16
};

/* What follows the text that the checksum covers. */
#define CHECKSUM_FORMAT ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n"
enum { N_CHECKSUM_BYTES = sizeof ",\n  \"checksum\": \"0123456789abcdef\"\n}\n" - 1 };

static json_t *hash_json(uint64_t hash) {
    char text[N_HASH_DIGITS + 1];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_make_text(text);
}

const char *checkpoint_basis_name(uint64_t identity, Arena *arena) {
    return arena_printf(arena, "basis.%016" PRIx64, identity);
}

static int version_of(const Manifest *manifest) {
    if (manifest->has_boxes) return BOXES_VERSION;
    return manifest->has_parts ? PARTS_VERSION : WHOLE_VERSION;
}

static json_t *numbers_json(const float *numbers, int64_t n) {
    json_t *array = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(array, json_make_number((double)numbers[i]));
    return array;
}

static json_t *compression_json(const CheckpointState *state) {
    json_t *object = json_object();
    if (state->n_exact_steps) json_object_set_new(object, "exact_steps", json_integer(state->n_exact_steps));
    if (state->n_frozen_steps)
        json_object_set_new(object, "frozen_steps", json_integer(state->n_frozen_steps));
    if (state->variance_norm > 0.0)
        json_object_set_new(object, "variance_norm", json_make_number(state->variance_norm));
    if (state->coefficients)
        json_object_set_new(object, "coefficients", numbers_json(state->coefficients, state->n_coefficients));
    return object;
}

static json_t *manifest_json(const Manifest *manifest) {
    const CheckpointState *state = &manifest->state;
    json_t *files = json_array();
    for (int i = 0; i < manifest->n_files; i++) {
        const ManifestFile *file = &manifest->file[i];
        json_array_append_new(files, json_pack("{s:s, s:s, s:I, s:o}", "name", file->name, "holds",
                                               file->is_basis       ? "basis"
                                               : file->is_optimizer ? "optimizer"
                                                                    : "model",
                                               "bytes", (json_int_t)file->n_bytes, "checksum",
                                               hash_json(file->checksum)));
    }
    json_t *object =
        json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:{s:s, s:i}, s:o, s:o}", "format",
                  MANIFEST_FORMAT, "version", version_of(manifest), "pgpt", PGPT_VERSION, "step",
                  (json_int_t)state->step, "sequences", (json_int_t)state->n_sequences, "tokens",
                  (json_int_t)state->n_tokens, "seed", (json_int_t)state->seed, "data_hash",
                  hash_json(state->data_hash), "tokenizer_hash", hash_json(state->tokenizer_hash), "val_loss",
                  json_make_number(state->validation_loss), "optimizer", "name", state->optimizer, "moments",
                  state->n_moments, "model", checkpoint_config_json(&manifest->config), "files", files);
    if (object && state->loss_scale > 0.0) {
        json_object_set_new(object, "loss_scale", json_make_number(state->loss_scale));
        json_object_set_new(object, "good_steps", json_integer(state->n_good_steps));
        json_object_set_new(object, "skipped_steps", json_integer(state->n_skipped_steps));
    }
    if (object && state->has_late)
        json_object_set_new(object, "late_update",
                            json_pack("{s:o, s:o}", "factor", json_make_number(state->late_factor), "lr",
                                      json_make_number(state->late_rate)));
    if (object && state->n_errors)
        json_object_set_new(object, "errors",
                            json_pack("{s:i, s:b, s:I, s:b}", "ranks", state->n_errors, "owners",
                                      state->has_owner_error, "variance_updates",
                                      (json_int_t)state->n_variance_updates, "frozen", state->is_frozen));
    if (object &&
        (state->n_exact_steps || state->n_frozen_steps || state->variance_norm > 0.0 || state->coefficients))
        json_object_set_new(object, "compression", compression_json(state));
    if (object && state->router_bias)
        json_object_set_new(object, "router_bias", numbers_json(state->router_bias, state->n_router_biases));
    return object;
}

Status manifest_write(const char *path, const Manifest *manifest, Error *error) {
    json_t *object = manifest_json(manifest);
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(JSON_DIGITS_DOUBLE)) : NULL;
    json_decref(object);
    if (!text) return error_failed(error, "cannot write %s: its values make no JSON", path);
    size_t n_bytes = strlen(text) - 2; /* without the closing "\n}" */
    Checksum checksum = checksum_start();
    checksum_add(&checksum, text, n_bytes);
    FileWriter writer;
    TRY_GOTO(file_writer_open(&writer, path, error), failed);
    TRY_GOTO(file_writer_write(&writer, text, n_bytes, error), done);
    TRY_GOTO(file_writer_printf(&writer, error, CHECKSUM_FORMAT, checksum_value(&checksum)), done);
    file_writer_commit(&writer, error);
done:
    file_writer_abort(&writer);
failed:
    free(text);
    return error->status;
}

/* ---- reading */

static Status check_text(const char *path, const char *text, size_t n_bytes, uint64_t *value, Error *error) {
    char wanted[N_CHECKSUM_BYTES + 1];
    if (n_bytes > N_CHECKSUM_BYTES) {
        size_t n_covered = n_bytes - N_CHECKSUM_BYTES;
        Checksum checksum = checksum_start();
        checksum_add(&checksum, text, n_covered);
        *value = checksum_value(&checksum);
        snprintf(wanted, sizeof wanted, CHECKSUM_FORMAT, *value);
        if (memcmp(text + n_covered, wanted, N_CHECKSUM_BYTES) == 0) return STATUS_OK;
    }
    return error_user(error, "%s does not have the checksum that its last line states: it is damaged", path);
}

static Status read_hash(const json_t *object, const char *path, const char *field, uint64_t *hash,
                        Error *error) {
    const char *text;
    TRY(json_field_text(object, path, field, &text, error));
    if (strlen(text) != N_HASH_DIGITS || strspn(text, "0123456789abcdef") != N_HASH_DIGITS) {
        return error_user(error, "%s: field '%s' wants %d hexadecimal digits", path, field, N_HASH_DIGITS);
    }
    *hash = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static Status read_file_entry(const json_t *entry, const char *path, ManifestFile *file, Arena *arena,
                              Error *error) {
    const char *name, *holds;
    int64_t n_bytes;
    TRY(json_field_text(entry, path, "name", &name, error));
    if (!*name || name[0] == '.' || strchr(name, '/')) {
        return error_user(error, "%s: '%.80s' is not the name of a file beside it", path, name);
    }
    TRY(json_field_text(entry, path, "holds", &holds, error));
    file->is_basis = strcmp(holds, "basis") == 0;
    file->is_optimizer = file->is_basis || strcmp(holds, "optimizer") == 0;
    if (!file->is_optimizer && strcmp(holds, "model") != 0) {
        return error_user(error, "%s: a file holds '%.40s', which is not known here", path, holds);
    }
    TRY(json_field_int(entry, path, "bytes", 0, INT64_MAX, &n_bytes, error));
    file->n_bytes = (uint64_t)n_bytes;
    file->name = arena_strdup(arena, name);
    return read_hash(entry, path, "checksum", &file->checksum, error);
}

static Status read_errors(const json_t *object, const char *path, CheckpointState *state, Error *error) {
    if (!json_object_get(object, "errors")) return STATUS_OK;
    json_t *errors;
    int64_t n_errors;
    TRY(json_field_object(object, path, "errors", &errors, error));
    TRY(json_field_int(errors, path, "ranks", 1, CHECKPOINT_MAX_ERRORS, &n_errors, error));
    TRY(json_field_int(errors, path, "variance_updates", 0, INT64_MAX, &state->n_variance_updates, error));
    state->n_errors = (int)n_errors;
    state->has_owner_error = json_is_true(json_object_get(errors, "owners"));
    state->is_frozen = json_is_true(json_object_get(errors, "frozen"));
    return STATUS_OK;
}

static Status read_numbers(const json_t *array, const char *path, const char *field, float *values,
                           Error *error) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *number = json_array_get(array, i);
        if (!json_is_number(number) || !(fabs(json_number_value(number)) <= FLT_MAX))
            return error_user(error, "%s: '%s' wants numbers", path, field);
        values[i] = (float)json_number_value(number);
    }
    return STATUS_OK;
}

/* How many coefficients there should be is for those to say who know what they are of. */
static Status read_compression(const json_t *object, const char *path, CheckpointState *state, Arena *arena,
                               Error *error) {
    if (!json_object_get(object, "compression")) return STATUS_OK;
    json_t *compression, *coefficients;
    TRY(json_field_object(object, path, "compression", &compression, error));
    if (json_object_get(compression, "exact_steps"))
        TRY(json_field_int(compression, path, "exact_steps", 0, INT64_MAX / 2, &state->n_exact_steps, error));
    if (json_object_get(compression, "frozen_steps"))
        TRY(json_field_int(compression, path, "frozen_steps", 0, INT64_MAX / 2, &state->n_frozen_steps,
                           error));
    if (json_object_get(compression, "variance_norm"))
        TRY(json_field_float(compression, path, "variance_norm", 0.0, DBL_MAX, &state->variance_norm, error));
    if (!json_object_get(compression, "coefficients")) return STATUS_OK;
    TRY(json_field_array(compression, path, "coefficients", &coefficients, error));
    float *values = ARENA_ARRAY(arena, float, json_array_size(coefficients) + 1);
    state->coefficients = values;
    state->n_coefficients = (int64_t)json_array_size(coefficients);
    return read_numbers(coefficients, path, "coefficients", values, error);
}

/* A factor that is no number is written as null: the update will change nothing. */
static Status read_late(const json_t *object, const char *path, CheckpointState *state, Error *error) {
    json_t *late;
    if (!json_object_get(object, "late_update")) return STATUS_OK;
    TRY(json_field_object(object, path, "late_update", &late, error));
    state->has_late = true;
    state->late_factor = NAN;
    if (!json_is_null(json_object_get(late, "factor")))
        TRY(json_field_float(late, path, "factor", 0.0, DBL_MAX, &state->late_factor, error));
    return json_field_float(late, path, "lr", 0.0, DBL_MAX, &state->late_rate, error);
}

static Status read_state(const json_t *object, const char *path, CheckpointState *state, Arena *arena,
                         Error *error) {
    TRY(json_field_int(object, path, "step", 0, INT64_MAX, &state->step, error));
    TRY(json_field_int(object, path, "sequences", 0, INT64_MAX, &state->n_sequences, error));
    TRY(json_field_int(object, path, "tokens", 0, INT64_MAX, &state->n_tokens, error));
    TRY(json_field_int(object, path, "seed", INT64_MIN, INT64_MAX, &state->seed, error));
    TRY(read_hash(object, path, "data_hash", &state->data_hash, error));
    TRY(read_hash(object, path, "tokenizer_hash", &state->tokenizer_hash, error));
    state->validation_loss = NAN;
    if (!json_is_null(json_object_get(object, "val_loss"))) {
        TRY(json_field_float(object, path, "val_loss", -DBL_MAX, DBL_MAX, &state->validation_loss, error));
    }
    if (json_object_get(object, "loss_scale")) {
        TRY(json_field_float(object, path, "loss_scale", 0.0, DBL_MAX, &state->loss_scale, error));
        TRY(json_field_int(object, path, "good_steps", 0, INT64_MAX, &state->n_good_steps, error));
        TRY(json_field_int(object, path, "skipped_steps", 0, INT64_MAX, &state->n_skipped_steps, error));
    }
    json_t *optimizer;
    const char *name;
    int64_t n_moments;
    TRY(read_late(object, path, state, error));
    TRY(json_field_object(object, path, "optimizer", &optimizer, error));
    TRY(json_field_text(optimizer, path, "name", &name, error));
    TRY(json_field_int(optimizer, path, "moments", 0, CHECKPOINT_MAX_MOMENTS, &n_moments, error));
    state->optimizer = arena_strdup(arena, name);
    state->n_moments = (int)n_moments;
    TRY(read_errors(object, path, state, error));
    return read_compression(object, path, state, arena, error);
}

/* One an expert of every block that has them. */
static Status read_router_bias(const json_t *object, const char *path, const ModelConfig *config,
                               CheckpointState *state, Arena *arena, Error *error) {
    if (!json_object_get(object, "router_bias")) return STATUS_OK;
    json_t *biases;
    TRY(json_field_array(object, path, "router_bias", &biases, error));
    int64_t n = config_n_expert_blocks(config) * config->n_experts;
    if ((int64_t)json_array_size(biases) != n)
        return error_user(error, "%s: 'router_bias' has %zu numbers, not one of each of %lld experts", path,
                          json_array_size(biases), (long long)n);
    float *values = ARENA_ARRAY(arena, float, n + 1);
    state->router_bias = values;
    state->n_router_biases = n;
    return read_numbers(biases, path, "router_bias", values, error);
}

static Status read_manifest(const json_t *object, const char *path, Manifest *manifest, Arena *arena,
                            Error *error) {
    const char *format, *version;
    int64_t format_version;
    TRY(json_field_text(object, path, "format", &format, error));
    if (strcmp(format, MANIFEST_FORMAT) != 0)
        return error_user(error, "%s is not a checkpoint's manifest", path);
    TRY(json_field_int(object, path, "version", 1, INT32_MAX, &format_version, error));
    TRY(json_field_text(object, path, "pgpt", &version, error));
    if (format_version > BOXES_VERSION) {
        return error_user(error,
                          "%s was written by pgpt %.40s in a format that this one does not know; update pgpt",
                          path, version);
    }
    manifest->version = arena_strdup(arena, version);
    manifest->has_parts = format_version >= PARTS_VERSION;
    manifest->has_boxes = format_version >= BOXES_VERSION;
    TRY(read_state(object, path, &manifest->state, arena, error));
    json_t *model, *files;
    TRY(json_field_object(object, path, "model", &model, error));
    TRY(checkpoint_config_read(model, path, &manifest->config, arena, error));
    TRY(read_router_bias(object, path, &manifest->config, &manifest->state, arena, error));
    TRY(json_field_array(object, path, "files", &files, error));
    if (json_array_size(files) > MAX_FILES) return error_user(error, "%s names too many files", path);
    manifest->file = ARENA_ARRAY(arena, ManifestFile, json_array_size(files) + 1);
    for (; manifest->n_files < (int)json_array_size(files); manifest->n_files++) {
        TRY(read_file_entry(json_array_get(files, (size_t)manifest->n_files), path,
                            &manifest->file[manifest->n_files], arena, error));
    }
    return STATUS_OK;
}

Status manifest_read(const char *path, Manifest *manifest, Arena *arena, Error *error) {
    *manifest = (Manifest){0};
    char *text;
    size_t n_bytes;
    json_t *object = NULL;
    TRY(file_read_regular(path, MANIFEST_LIMIT_BYTES, &text, &n_bytes, error));
    if (check_text(path, text, n_bytes, &manifest->checksum, error) == STATUS_OK &&
        json_parse(text, n_bytes, path, &object, error) == STATUS_OK) {
        read_manifest(object, path, manifest, arena, error);
    }
    free(text);
    json_decref(object);
    return error->status;
}

/* ---- the folder */

static int newest_first(const void *a, const void *b) {
    const CheckpointEntry *x = a, *y = b;
    return x->step < y->step ? 1 : x->step > y->step ? -1 : 0;
}

Status checkpoint_list(const char *folder, Arena *arena, CheckpointEntry **entries, int *n_entries,
                       Error *error) {
    *entries = NULL;
    *n_entries = 0;
    int capacity = 0;
    struct stat facts;
    DIR *stream = opendir(folder);
    /* A link to a disk that is not mounted is not nothing: who takes it so begins anew, and cannot save. */
    if (!stream && (errno == ENOENT || errno == ENOTDIR)) {
        if (lstat(folder, &facts) != 0) return STATUS_OK;
        return error_user(error, "%s is not a folder, nor a link to one; set it right, or move it away",
                          folder);
    }
    if (!stream) return error_user(error, "cannot read the folder %s: %s", folder, strerror(errno));
    for (struct dirent *item; (item = readdir(stream));) {
        int64_t step = checkpoint_name_step(item->d_name);
        if (step < 0) continue;
        if (*n_entries == capacity) {
            CheckpointEntry *smaller = *entries;
            capacity = capacity ? 2 * capacity : 64;
            *entries = ARENA_ARRAY(arena, CheckpointEntry, capacity);
            if (smaller) memcpy(*entries, smaller, sizeof *smaller * (size_t)*n_entries);
        }
        (*entries)[(*n_entries)++] =
            (CheckpointEntry){.step = step,
                              .name = arena_strdup(arena, item->d_name),
                              .path = arena_printf(arena, "%s/%s", folder, item->d_name),
                              .validation_loss = NAN};
    }
    closedir(stream);
    if (*n_entries) qsort(*entries, (size_t)*n_entries, sizeof **entries, newest_first);
    return STATUS_OK;
}

void checkpoint_inspect(CheckpointEntry *entry) {
    Arena arena = {0};
    Error error = {0};
    Manifest manifest;
    char *path = arena_printf(&arena, "%s/manifest.json", entry->path);
    entry->is_complete = manifest_read(path, &manifest, &arena, &error) == STATUS_OK;
    for (int i = 0; i < manifest.n_files && entry->is_complete; i++) {
        struct stat facts;
        path = arena_printf(&arena, "%s/%s", entry->path, manifest.file[i].name);
        entry->is_complete = stat(path, &facts) == 0 && (uint64_t)facts.st_size == manifest.file[i].n_bytes;
    }
    if (entry->is_complete) entry->validation_loss = manifest.state.validation_loss;
    arena_free(&arena);
}

int checkpoint_best(const CheckpointEntry *entries, int n_entries) {
    int best = -1;
    for (int i = 0; i < n_entries; i++) {
        if (!entries[i].is_complete || isnan(entries[i].validation_loss)) continue;
        if (best < 0 || entries[i].validation_loss < entries[best].validation_loss) best = i;
    }
    return best;
}
