/* What the user may say, and what it comes to. */
#include "parallel/offload/offload.h"

#include <stdio.h>
#include <string.h>

static const char *const names[N_OFFLOADED] = {"optimizer", "gradients", "weights", "activations"};

static const char *const updaters[] = {"device", "host", NULL};

const OptionSpec offload_option_specs[] = {
    OPTION_STRING(
        "offload", OffloadOptions, what, "", "WHAT[:host|:file=DIR],...",
        "keep part of the training state out of the device's memory: optimizer (moments and "
        "master weights), gradients (their sums), weights, activations (of blocks, between forward and backward); "
        "in the host's memory or in a file in a folder (default: host). The same bits, at the speed of the bus or the disk. auto (or "
        "auto:file=DIR): as little as fits",
        .flags = OPTION_MAY_BE_EMPTY),
    OPTION_FLOAT("offload-share", OffloadOptions, share, 0.0, 0.0, 1.0,
                 "part of what is offloaded that stays on the device all the same"),
    OPTION_CHOICE(
        "offload-update", OffloadOptions, updater, OFFLOAD_UPDATE_DEVICE, updaters,
        "who updates optimizer state in the host's memory: the device, through which it streams, or the host's "
        "cores, which get the gradients; the same bits"),
    OPTION_FLOAT("offload-bucket-mb", OffloadOptions, bucket_mb, 16.0, 0.0001, 4096.0,
                 "size of the pieces that optimizer state is moved and updated in, in MiB of f32"),
    OPTION_CHOICE("offload-io", OffloadOptions, file_queue, FILE_QUEUE_AUTO, file_queue_kinds,
                  "how files are read and written, with many requests in flight: by io_uring, by threads, or "
                  "by io_uring where the system allows it"),
    OPTION_END,
};

/* Where to: what stands behind the n letters of the word. */
static Status parse_place(const char *text, size_t n, size_t length, Offload *offload, OffloadTo *to,
                          Error *error) {
    static const char file[] = ":file=";
    const size_t n_file = sizeof file - 1, left = length - n;
    const char *where = text + n;
    if (*to) return error_user(error, "--offload names %.*s twice; leave one out", (int)n, text);
    if (!left || (left == 5 && strncmp(where, ":host", left) == 0)) {
        *to = OFFLOAD_HOST;
        return STATUS_OK;
    }
    if (left <= n_file || strncmp(where, file, n_file) != 0)
        return error_user(error, "--offload: '%.*s' does not say where to; give %.*s:host or %.*s:file=DIR",
                          (int)length, text, (int)n, text, (int)n, text);
    char folder[OFFLOAD_FOLDER_BYTES];
    snprintf(folder, sizeof folder, "%.*s", (int)(left - n_file), where + n_file);
    if (left - n_file >= sizeof folder) return error_user(error, "--offload: the folder's name is too long");
    if (*offload->folder && strcmp(folder, offload->folder) != 0)
        return error_user(error, "--offload names two folders, %s and %s; a run has one", offload->folder,
                          folder);
    memcpy(offload->folder, folder, sizeof folder);
    *to = OFFLOAD_FILE;
    return STATUS_OK;
}

/* One of the list: "optimizer:file=DIR". */
static Status parse_one(const char *text, size_t length, Offload *offload, Error *error) {
    size_t n = strcspn(text, ":,");
    int kind = 0;
    if (n > length) n = length;
    if (n == 4 && strncmp(text, "auto", n) == 0)
        return parse_place(text, n, length, offload, &offload->automatic, error);
    while (kind < N_OFFLOADED && (strlen(names[kind]) != n || strncmp(text, names[kind], n) != 0)) kind++;
    if (kind == N_OFFLOADED)
        return error_user(
            error,
            "--offload: '%.*s' is nothing that can be offloaded; give optimizer, gradients, weights or activations, or auto",
            (int)n, text);
    return parse_place(text, n, length, offload, &offload->to[kind], error);
}

Status offload_parse(const OffloadOptions *options, Offload *offload, Error *error) {
    *offload = (Offload){.share = options->share,
                         .bucket_bytes = (int64_t)(options->bucket_mb * 1048576.0),
                         .host_updates = options->updater == OFFLOAD_UPDATE_HOST,
                         .file_queue = (FileQueueKind)options->file_queue};
    for (const char *at = options->what ? options->what : ""; *at;) {
        size_t n = strcspn(at, ",");
        TRY(parse_one(at, n, offload, error));
        at += n;
        if (*at && !*++at) return error_user(error, "--offload ends with a comma; leave it out");
    }
    bool names_some = false;
    for (int i = 0; i < N_OFFLOADED; i++) names_some |= offload->to[i] != OFFLOAD_NOWHERE;
    if (offload->automatic && (names_some || options->share > 0.0))
        return error_user(error, "--offload auto chooses what and how much; leave out the rest");
    return STATUS_OK;
}

bool offload_is_on(const Offload *offload) {
    for (int i = 0; i < N_OFFLOADED; i++)
        if (offload->to[i]) return true;
    return offload->automatic != OFFLOAD_NOWHERE;
}

Status offload_check(const Offload *offload, const BackendTraits *traits, bool copies_are_fine,
                     Error *error) {
    if (offload->automatic == OFFLOAD_HOST && !traits_has_own_memory(traits))
        return error_user(error, "--offload auto: on a CPU everything is in the host's memory already; give "
                                 "auto:file=DIR");
    for (int i = 0; i < N_OFFLOADED; i++) {
        if (offload->to[i] != OFFLOAD_HOST || traits_has_own_memory(traits) || copies_are_fine) continue;
        return error_user(error,
                          "--offload %s:host: on a CPU everything is in the host's memory already; give "
                          "%s:file=DIR, or leave it out",
                          names[i], names[i]);
    }
    return STATUS_OK;
}

const char *offload_text(const Offload *offload, char *text, size_t n_bytes) {
    size_t n = 0;
    *text = 0;
    for (int i = 0; i < N_OFFLOADED && n < n_bytes; i++) {
        if (!offload->to[i]) continue;
        n += (size_t)snprintf(text + n, n_bytes - n, "%s%s to %s%s", n ? ", " : "", names[i],
                              offload->to[i] == OFFLOAD_FILE ? "a file in " : "the host's memory",
                              offload->to[i] == OFFLOAD_FILE ? offload->folder : "");
    }
    return text;
}
