/* Where ranks are: told each other by name, or as --ranks-per-host says. */
#include "job/train_run.h"

#include <string.h>

enum { HOST_BYTES = sizeof((Launch *)NULL)->host };

Status train_host_names(TrainRun *run, const char *const **names, Error *error) {
    Comm *world = &run->launch->world;
    Arena *arena = &run->options.arena;
    int n_ranks = mesh_n_ranks(&run->shape), on_host = (int)run->values.call.host_ranks;
    const char **hosts = ARENA_ARRAY(arena, const char *, n_ranks);
    *names = on_host || n_ranks == world->size ? hosts : NULL;
    for (int i = 0; on_host && i < n_ranks; i++) hosts[i] = arena_printf(arena, "host %d", i / on_host);
    if (on_host || n_ranks != world->size) return STATUS_OK;
    int64_t *border = ARENA_ARRAY(arena, int64_t, n_ranks + 1);
    for (int i = 0; i <= n_ranks; i++) border[i] = (int64_t)i * HOST_BYTES;
    char *all = ARENA_ARRAY(arena, char, n_ranks *HOST_BYTES);
    memcpy(all + border[world->rank], run->launch->host, HOST_BYTES);
    TRY(comm_all_gather(world, all, border, COMM_U8, error));
    for (int i = 0; i < n_ranks; i++) hosts[i] = all + border[i];
    return STATUS_OK;
}

Status train_hosts_find(TrainRun *run, Error *error) {
    const ParallelOptions *parallel = &run->values.parallel;
    if (parallel->compress_across != COMPRESS_ACROSS_HOSTS || strcmp(parallel->compress, "none") == 0)
        return STATUS_OK;
    TRY(train_host_names(run, &run->host_names, error));
    if (run->host_names) return STATUS_OK;
    return error_user(error, "--compress-across hosts goes by where ranks are, and these are not there; say "
                             "how many a host has with --ranks-per-host");
}

/* A host's number is that of its first rank. */
void train_hosts_number(TrainRun *run) {
    int n_ranks = mesh_n_ranks(&run->shape), on_host = (int)run->values.call.host_ranks;
    run->hosts = ARENA_ARRAY(&run->options.arena, int, n_ranks);
    for (int i = 0; i < n_ranks; i++) {
        int first = 0;
        while (!on_host && strcmp(run->host_names[first], run->host_names[i]) != 0) first++;
        run->hosts[i] = on_host ? i / on_host : first;
    }
}
