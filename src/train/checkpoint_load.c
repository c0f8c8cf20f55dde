/* Loading: find, verify, then read.
 *
 * A checkpoint is verified whole before anything of it is used: the manifest by its own checksum, then size and
 * checksum of every file that it names, then each file's inner order by safetensors_open. What fails any of that
 * is damaged; in a run's folder the one before it is tried, and the caller is told in a warning, never silently. */
#include "train/checkpoint_manifest.h"

#include "graph/shape.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* ---- one checkpoint */

static Status verify_file(const char *path, const ManifestFile *file, Error *error) {
    struct stat facts;
    if (stat(path, &facts) != 0) return error_user(error, "%s cannot be read: %s", path, strerror(errno));
    if ((uint64_t)facts.st_size != file->n_bytes) { /* known before reading gigabytes of it */
        return error_user(error, "%s has %lld bytes where the manifest states %llu: it is damaged", path,
                          (long long)facts.st_size, (unsigned long long)file->n_bytes);
    }
    uint64_t checksum, n_bytes;
    TRY(checksum_file(path, &checksum, &n_bytes, error));
    if (checksum == file->checksum && n_bytes == file->n_bytes) return STATUS_OK;
    return error_user(error, "%s does not have the checksum that the manifest states: it is damaged", path);
}

static Status open_files(Checkpoint *checkpoint, const Manifest *manifest, bool with_optimizer,
                         Error *error) {
    checkpoint->file = ARENA_ARRAY(&checkpoint->arena, SafetensorsFile, manifest->n_files + 1);
    for (int i = 0; i < manifest->n_files; i++) {
        const ManifestFile *file = &manifest->file[i];
        if (file->is_optimizer && !with_optimizer) continue;
        const char *path = arena_printf(&checkpoint->arena, "%s/%s", checkpoint->path, file->name);
        TRY(verify_file(path, file, error));
        TRY(safetensors_open(&checkpoint->file[checkpoint->n_files++], path, error));
    }
    return STATUS_OK;
}

void checkpoint_close(Checkpoint *checkpoint) {
    for (int i = 0; i < checkpoint->n_files; i++) safetensors_close(&checkpoint->file[i]);
    arena_free(&checkpoint->arena);
    *checkpoint = (Checkpoint){0};
}

/* Fills in all but run and warning; after an error everything is given back. */
static Status open_one(Checkpoint *checkpoint, const char *path, bool with_optimizer, Error *error) {
    *checkpoint = (Checkpoint){0};
    checkpoint->path = arena_strdup(&checkpoint->arena, path);
    Manifest manifest;
    const char *name = arena_printf(&checkpoint->arena, "%s/manifest.json", path);
    if (manifest_read(name, &manifest, &checkpoint->arena, error) == STATUS_OK) {
        checkpoint->state = manifest.state;
        checkpoint->config = manifest.config;
        checkpoint->version = manifest.version;
        open_files(checkpoint, &manifest, with_optimizer, error);
    }
    if (error->status != STATUS_OK) checkpoint_close(checkpoint);
    return error->status;
}

/* ---- one of a run */

/* Put the best in front of the others. */
static void prefer_best(CheckpointEntry *entries, int n_entries) {
    for (int i = 0; i < n_entries; i++) checkpoint_inspect(&entries[i]);
    int best = checkpoint_best(entries, n_entries);
    if (best <= 0) return;
    CheckpointEntry kept = entries[best];
    memmove(entries + 1, entries, sizeof *entries * (size_t)best);
    entries[0] = kept;
}

static Status open_newest(Checkpoint *checkpoint, const char *folder, CheckpointChoice choice,
                          bool with_optimizer, Error *error) {
    Arena arena = {0};
    CheckpointEntry *entries;
    int n_entries, n_damaged = 0;
    Error first = {0};
    if (checkpoint_list(folder, &arena, &entries, &n_entries, error) != STATUS_OK) goto done;
    if (n_entries == 0) {
        error_user(error, "there is no checkpoint in %s yet; train first (pgpt train), or name another run",
                   folder);
    }
    if (choice == CHECKPOINT_BEST) prefer_best(entries, n_entries);
    for (int i = 0; i < n_entries; i++, n_damaged++) {
        Error damage = {0};
        if (open_one(checkpoint, entries[i].path, with_optimizer, &damage) == STATUS_OK) {
            if (n_damaged > 0) {
                snprintf(checkpoint->warning, sizeof checkpoint->warning,
                         "%.700s; using %s instead, %d checkpoint%s passed over", first.text, entries[i].name,
                         n_damaged, n_damaged == 1 ? " was" : "s were");
            }
            goto done;
        }
        if (i == 0) first = damage;
    }
    if (n_entries > 0) {
        error_user(error, "no checkpoint in %s can be used; the newest: %.700s", folder, first.text);
    }
done:
    arena_free(&arena);
    return error->status;
}

/* The folder `levels` above a path, which must exist; from the arena. */
static char *folder_above(const char *path, int levels, Arena *arena) {
    char *real = realpath(path, NULL);
    char *above = arena_strdup(arena, real ? real : path);
    free(real);
    for (; levels > 0; levels--) {
        char *slash = strrchr(above, '/');
        if (slash) slash[slash == above] = 0;
    }
    return above;
}

Status checkpoint_open(Checkpoint *checkpoint, const char *path, CheckpointChoice choice, bool with_optimizer,
                       Error *error) {
    *checkpoint = (Checkpoint){0};
    if (!is_folder(path)) {
        return file_exists(path)
                   ? error_user(error, "%s is a file; name a run's folder or one of its checkpoints", path)
                   : error_user(error, "there is no folder %s; train first (pgpt train), or name a run",
                                path);
    }
    Arena arena = {0};
    const char *inner = arena_printf(&arena, "%s/checkpoints", path);
    if (file_exists(arena_printf(&arena, "%s/manifest.json", path))) {
        open_one(checkpoint, path, with_optimizer, error);
        if (error->status == STATUS_OK) checkpoint->run = folder_above(path, 2, &checkpoint->arena);
    } else if (is_folder(inner)) {
        open_newest(checkpoint, inner, choice, with_optimizer, error);
        if (error->status == STATUS_OK) checkpoint->run = arena_strdup(&checkpoint->arena, path);
    } else {
        open_newest(checkpoint, path, choice, with_optimizer, error);
        if (error->status == STATUS_OK) checkpoint->run = folder_above(path, 1, &checkpoint->arena);
    }
    arena_free(&arena);
    return error->status;
}

/* ---- tensors */

enum { NAME_BYTES = 256, SHAPE_BYTES = 160 };

static const char *tensor_name(const Parameter *parameter, int moment, char name[NAME_BYTES]) {
    if (moment < 0) snprintf(name, NAME_BYTES, "%s", parameter->name);
    else snprintf(name, NAME_BYTES, "moment%d.%s", moment + 1, parameter->name);
    return name;
}

static bool has_shape(const SafetensorsTensor *tensor, const Parameter *parameter) {
    size_t n_bytes = sizeof(int64_t) * (size_t)parameter->shape.n_dims;
    return tensor->n_dims == parameter->shape.n_dims &&
           memcmp(tensor->dim, parameter->shape.dim, n_bytes) == 0;
}

/* The tensor of a parameter, in its shape. */
static Status find_tensor(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                          const SafetensorsFile **file, const SafetensorsTensor **tensor, Error *error) {
    char name[NAME_BYTES], has[SHAPE_BYTES], wants[SHAPE_BYTES];
    tensor_name(parameter, moment, name);
    *tensor = NULL;
    for (int i = 0; i < checkpoint->n_files && !*tensor; i++) {
        *file = &checkpoint->file[i];
        *tensor = safetensors_find(*file, name);
    }
    if (!*tensor) {
        return error_user(error,
                          "%s has no tensor '%s', which this model wants; the checkpoint is of another model",
                          checkpoint->path, name);
    }
    if (has_shape(*tensor, parameter)) return STATUS_OK;
    return error_user(error,
                      "%s: tensor '%s' has shape %s, this model wants %s; the checkpoint is of another model",
                      (*file)->path, name, safetensors_shape(*tensor, has, sizeof has),
                      shape_format(parameter->shape, wants, sizeof wants));
}

static bool is_in_table(const ParameterTable *table, const char *name) {
    if (strncmp(name, "moment", 6) == 0 && strchr(name, '.')) name = strchr(name, '.') + 1;
    for (int i = 0; i < table->n_parameters; i++) {
        if (strcmp(table->parameter[i].name, name) == 0) return true;
    }
    return false;
}

Status checkpoint_check(const Checkpoint *checkpoint, const ParameterTable *table, Error *error) {
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
    for (int i = 0; i < table->n_parameters; i++) {
        TRY(find_tensor(checkpoint, &table->parameter[i], -1, &file, &tensor, error));
    }
    for (int i = 0; i < checkpoint->n_files; i++) {
        for (int k = 0; k < checkpoint->file[i].n_tensors; k++) {
            const char *name = checkpoint->file[i].tensor[k].name;
            if (is_in_table(table, name)) continue;
            return error_user(
                error, "%s: tensor '%.200s' is not part of this model; the checkpoint is of another one",
                checkpoint->file[i].path, name);
        }
    }
    return STATUS_OK;
}

Status checkpoint_read_part(const Checkpoint *checkpoint, const Parameter *parameter, int moment,
                            int64_t first, int64_t n, float *values, Error *error) {
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
    TRY(find_tensor(checkpoint, parameter, moment, &file, &tensor, error));
    return safetensors_read_f32(file, tensor, first, n, values, error);
}

static Status read_flat(const Checkpoint *checkpoint, const ParameterTable *table, int moment, float *flat,
                        Error *error) {
    TRY(checkpoint_check(checkpoint, table, error));
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        TRY(checkpoint_read_part(checkpoint, parameter, moment, 0, shape_count(parameter->shape),
                                 flat + parameter->flat_offset, error));
    }
    return STATUS_OK;
}

Status checkpoint_read_parameters(const Checkpoint *checkpoint, const ParameterTable *table, float *flat,
                                  Error *error) {
    return read_flat(checkpoint, table, -1, flat, error);
}

Status checkpoint_read_moment(const Checkpoint *checkpoint, const ParameterTable *table, int moment,
                              float *flat, Error *error) {
    if (moment < 0 || moment >= checkpoint->state.n_moments) {
        return error_user(error, "%s has %d moments of %s; number %d was asked for", checkpoint->path,
                          checkpoint->state.n_moments, checkpoint->state.optimizer, moment + 1);
    }
    return read_flat(checkpoint, table, moment, flat, error);
}
