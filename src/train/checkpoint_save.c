/* Saving and removing checkpoints, so that a crash between any two system calls leaves only complete ones under
 * final names.
 *
 * A save writes its folder under "step-00000120.tmp.<pid>": each file is synced as it is finished, the manifest comes
 * last, then one rename makes the folder a checkpoint. Where the step was saved before, the two folders are exchanged
 * in one system call. Removal goes the other way: a folder first loses its name, then its files. Whatever carries
 * ".tmp." in its name is rubbish for the next prune. */
#define _GNU_SOURCE /* renameat2 */
#include "train/checkpoint_manifest.h"

#include "base/format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- folders */

static Status sync_folder(const char *path, Error *error) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return STATUS_OK; /* may be written but not read: nothing to be done */
    int result = fsync(descriptor);
    int code = errno;
    close(descriptor);
    if (result == 0 || code == EINVAL || code == ENOTSUP || code == EROFS) return STATUS_OK;
    return error_failed(error, "cannot sync %s: %s", path, strerror(code));
}

/* Remove a folder and the files in it; there are no folders in a checkpoint. */
static Status remove_folder(const char *path, Error *error) {
    Arena arena = {0};
    DIR *stream = opendir(path);
    for (struct dirent *item; stream && (item = readdir(stream));) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        unlink(arena_printf(&arena, "%s/%s", path, item->d_name));
    }
    if (stream) closedir(stream);
    arena_free(&arena);
    if (rmdir(path) == 0 || errno == ENOENT) return STATUS_OK;
    return error_user(error, "cannot remove the old checkpoint %s: %s", path, strerror(errno));
}

/* Take a checkpoint's name away, then remove it. */
static Status remove_checkpoint(const char *path, Error *error) {
    Arena arena = {0};
    char *temporary = arena_printf(&arena, "%s.old.tmp.%ld", path, (long)getpid());
    if (rename(path, temporary) == 0) remove_folder(temporary, error);
    else error_user(error, "cannot remove the old checkpoint %s: %s", path, strerror(errno));
    arena_free(&arena);
    return error->status;
}

/* Give a finished folder its name. */
static Status publish(const char *temporary, const char *path, Error *error) {
    if (rename(temporary, path) == 0) return STATUS_OK;
    if (errno != EEXIST && errno != ENOTEMPTY) {
        return error_failed(error, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
    }
    /* The same step again. Where folders cannot be exchanged, there is a moment without either. */
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return remove_folder(temporary, error);
    TRY(remove_checkpoint(path, error));
    if (rename(temporary, path) == 0) return STATUS_OK;
    return error_failed(error, "cannot rename %s to %s: %s", temporary, path, strerror(errno));
}

/* ---- files */

/* The tensors of one flat array, in the order of the table. */
static void describe_tensors(const ParameterTable *table, const char *prefix, SafetensorsTensor *tensors,
                             Arena *arena) {
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        tensors[i] = (SafetensorsTensor){.name = arena_printf(arena, "%s%s", prefix, parameter->name),
                                         .type = SAFETENSORS_F32,
                                         .n_dims = parameter->shape.n_dims};
        memcpy(tensors[i].dim, parameter->shape.dim, sizeof parameter->shape.dim);
    }
}

/* Elements of array 0, the parameters, or 1 + i, moment i. */
static Status write_elements(SafetensorsWriter *writer, const CheckpointSource *source, int array,
                             int64_t first, int64_t n, Error *error) {
    enum { PIECE = 16384 };
    if (!source->read) {
        const float *flat = array == 0 ? source->parameters : source->moment[array - 1];
        return safetensors_writer_write(writer, flat + first, sizeof(float) * (size_t)n, error);
    }
    float piece[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        TRY(source->read(source->context, array, first + done, count, piece, error));
        TRY(safetensors_writer_write(writer, piece, sizeof(float) * (size_t)count, error));
    }
    return STATUS_OK;
}

static Status write_flat(SafetensorsWriter *writer, const CheckpointSource *source, int array, Error *error) {
    for (int i = 0; i < source->table->n_parameters; i++) {
        const Parameter *parameter = &source->table->parameter[i];
        TRY(write_elements(writer, source, array, parameter->flat_offset, shape_count(parameter->shape),
                           error));
    }
    return STATUS_OK;
}

/* Flat arrays, from the first one on, into one file, each with its own prefix before the names. */
static Status write_arrays(const char *folder, ManifestFile *file, const CheckpointSource *source, int first,
                           int n_arrays, const char *const *prefixes, Error *error) {
    const ParameterTable *table = source->table;
    static const char *const metadata[] = {"format", "pgpt", "layout", "matrices are (out,in)", NULL};
    Arena arena = {0};
    SafetensorsWriter writer;
    SafetensorsTensor *tensors = ARENA_ARRAY(&arena, SafetensorsTensor, n_arrays * table->n_parameters + 1);
    for (int i = 0; i < n_arrays; i++) {
        describe_tensors(table, prefixes[i], tensors + i * table->n_parameters, &arena);
    }
    const char *path = arena_printf(&arena, "%s/%s", folder, file->name);
    TRY_GOTO(safetensors_writer_open(&writer, path, tensors, n_arrays * table->n_parameters, metadata, error),
             failed);
    for (int i = 0; i < n_arrays; i++) TRY_GOTO(write_flat(&writer, source, first + i, error), done);
    file->n_bytes = writer.checksum.n_bytes;
    file->checksum = checksum_value(&writer.checksum);
    safetensors_writer_commit(&writer, error);
done:
    safetensors_writer_abort(&writer);
failed:
    arena_free(&arena);
    return error->status;
}

static Status write_files(const char *folder, const CheckpointSource *source, Error *error) {
    static const char *const no_prefix[] = {""};
    static const char *const prefixes[CHECKPOINT_MAX_MOMENTS] = {"moment1.", "moment2.", "moment3.",
                                                                 "moment4."};
    ManifestFile files[] = {{.name = "model.safetensors"},
                            {.name = "optimizer.safetensors", .is_optimizer = true}};
    int n_moments = source->state->n_moments;
    TRY(write_arrays(folder, &files[0], source, 0, 1, no_prefix, error));
    if (n_moments > 0) {
        TRY(write_arrays(folder, &files[1], source, 1, n_moments, prefixes, error));
    }
    Manifest manifest = {
        .state = *source->state, .config = *source->config, .file = files, .n_files = n_moments > 0 ? 2 : 1};
    Arena arena = {0};
    manifest_write(arena_printf(&arena, "%s/manifest.json", folder), &manifest, error);
    arena_free(&arena);
    return error->status;
}

uint64_t checkpoint_bytes(const ParameterTable *table, int n_moments) {
    enum { HEADER_BYTES_A_TENSOR = 160, OTHER_BYTES = 16384 };
    uint64_t n_arrays = 1 + (uint64_t)n_moments;
    return n_arrays *
               (4 * (uint64_t)table->n_elements + HEADER_BYTES_A_TENSOR * (uint64_t)table->n_parameters) +
           OTHER_BYTES;
}

static Status check_source(const char *run, const CheckpointSource *source, Error *error) {
    const CheckpointState *state = source->state;
    if (state->step < 0 || state->n_moments < 0 || state->n_moments > CHECKPOINT_MAX_MOMENTS) {
        return error_failed(error, "a checkpoint of step %lld with %d moments cannot be saved",
                            (long long)state->step, state->n_moments);
    }
    uint64_t needed = checkpoint_bytes(source->table, state->n_moments), room = file_free_bytes(run);
    if (needed <= room) return STATUS_OK;
    return error_user(
        error,
        "no room for a checkpoint in %s: it needs %s and %s are free; make room or choose another disk", run,
        format_bytes(needed).text, format_bytes(room).text);
}

Status checkpoint_save(const char *run, const CheckpointSource *source, Error *error) {
    TRY(check_source(run, source, error));
    Arena arena = {0};
    const char *folder = arena_printf(&arena, "%s/checkpoints", run);
    const char *path = arena_printf(&arena, "%s/step-%08lld", folder, (long long)source->state->step);
    const char *temporary = arena_printf(&arena, "%s.tmp.%ld", path, (long)getpid());
    TRY_GOTO(file_make_folders(folder, error), done);
    TRY_GOTO(remove_folder(temporary, error), done); /* left by a process that died with our number */
    TRY_GOTO(file_make_folders(temporary, error), done);
    if (write_files(temporary, source, error) == STATUS_OK && publish(temporary, path, error) == STATUS_OK) {
        sync_folder(folder, error);
    } else {
        Error ignored = {0};
        remove_folder(temporary, &ignored);
    }
done:
    arena_free(&arena);
    return error->status;
}

/* ---- removing */

static Status remove_temporaries(const char *folder, Error *error) {
    Arena arena = {0};
    DIR *stream = opendir(folder);
    for (struct dirent *item; stream && error->status == STATUS_OK && (item = readdir(stream));) {
        if (strncmp(item->d_name, "step-", 5) != 0 || !strstr(item->d_name, ".tmp.")) continue;
        remove_folder(arena_printf(&arena, "%s/%s", folder, item->d_name), error);
    }
    if (stream) closedir(stream);
    arena_free(&arena);
    return error->status;
}

Status checkpoint_prune(const char *run, int64_t written, int64_t keep_last, bool keep_best, Error *error) {
    Arena arena = {0};
    const char *folder = arena_printf(&arena, "%s/checkpoints", run);
    CheckpointEntry *entries;
    int n_entries;
    TRY_GOTO(remove_temporaries(folder, error), done);
    if (keep_last <= 0) goto done;
    TRY_GOTO(checkpoint_list(folder, &arena, &entries, &n_entries, error), done);
    for (int i = 0; i < n_entries; i++) checkpoint_inspect(&entries[i]);
    int best = keep_best ? checkpoint_best(entries, n_entries) : -1;
    for (int i = 0, n_kept = 0; i < n_entries; i++) {
        bool is_kept =
            entries[i].step >= written || i == best || (entries[i].is_complete && n_kept < keep_last);
        /* The best does not count unless it is among the last anyway. */
        n_kept += entries[i].step <= written && entries[i].is_complete;
        if (!is_kept) TRY_GOTO(remove_checkpoint(entries[i].path, error), done);
    }
    sync_folder(folder, error);
done:
    arena_free(&arena);
    return error->status;
}
