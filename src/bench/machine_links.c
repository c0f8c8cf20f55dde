/* Every way is tried several times, after one that does not count; the middle one is taken of what training
 * will do again and again, the best of what only others can slow down. */
#include "bench/machine_links.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/limits.h"
#include "bench/move_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Ranks */

enum {
    N_TRIES = 15,
    N_SMALL = 1,
    N_LARGE = 1 << 20 /* floats: a bucket of gradients */,
    GPU_LARGE = 64 << 20
};

typedef struct {
    Comm *world, *comm;
    const Backend *backend; /* NULL: the host's memory */
    void *data;
} LinkCall;

static Status time_all_reduce(const LinkCall *call, int64_t n, double *seconds, Error *error) {
    double tries[N_TRIES];
    for (int i = -2; i < N_TRIES; i++) {
        TRY(comm_barrier(call->world, error));
        uint64_t start = timer_now_ns();
        TRY(comm_all_reduce(call->comm, call->data, n, COMM_F32, COMM_SUM, error));
        if (call->backend && call->backend->synchronize)
            TRY(call->backend->synchronize(call->backend->context, error));
        if (i >= 0) tries[i] = timer_seconds_since(start);
    }
    *seconds = bench_median(tries, N_TRIES);
    return STATUS_OK;
}

static Status time_links(MachineHost *host, const LinkCall *call, int64_t n_large, Error *error) {
    double small, large, N = call->world->size;
    TRY(time_all_reduce(call, N_SMALL, &small, error));
    TRY(time_all_reduce(call, n_large, &large, error));
    double n_bytes = (double)n_large * sizeof(float);
    double of_a_rank = 2.0 * (N - 1.0) / N * n_bytes / fmax(large - small, 1e-9);
    host->inside_is_shared = !call->backend;
    host->inside_gbs = of_a_rank * (host->inside_is_shared ? N : 1.0) * 1e-9;
    host->inside_us = small / (2.0 * (N - 1.0)) * 1e6;
    return STATUS_OK;
}

static Status links_of_host(MachineHost *host, Comm *world, Error *error) {
    size_t n_bytes = N_LARGE * sizeof(float);
    LinkCall call = {.world = world, .comm = world};
    TRY(memory_alloc(&call.data, n_bytes, "measuring messages", error));
    memset(call.data, 0, n_bytes);
    time_links(host, &call, N_LARGE, error);
    memory_free(call.data, n_bytes);
    return error->status;
}

static Status links_of_gpus(MachineHost *host, const BenchSetup *setup, Comm *world, const char **how,
                            Error *error) {
    size_t n_bytes = GPU_LARGE * sizeof(float);
    Backend backend;
    Comm comm = {0};
    DeviceOptions options = {.kind = setup->bench.device,
                             .index = world->rank,
                             .precision = (PrecisionKind)setup->bench.precision};
    TRY(device_backend_open(&backend, &options, error));
    LinkCall call = {.world = world, .comm = &comm, .backend = &backend};
    TRY_GOTO(device_meet(&backend, world, world->size, error), done);
    TRY_GOTO(device_comm_open(&comm, world, COMM_FOR_SUMS, &backend, error), done);
    TRY_GOTO(backend.allocate(backend.context, n_bytes, "measuring messages", &call.data, error), done);
    *how = comm_is_nccl(&comm) ? "NCCL" : "the host's memory";
    time_links(host, &call, GPU_LARGE, error);
    backend.release(backend.context, call.data, n_bytes);
done:
    device_comm_close(&comm, &backend);
    backend.close(backend.context);
    return error->status;
}

Status machine_measure_links(MachineHost *host, const BenchSetup *setup, bool is_gpu, Comm *world,
                             const char **how, Error *error) {
    *how = "MPI";
    return is_gpu ? links_of_gpus(host, setup, world, how, error) : links_of_host(host, world, error);
}

/* A message goes into a buffer and out of it, and is added. */
Status machine_guess_links(MachineHost *host, bool is_gpu, Error *error) {
    double bytes_per_s;
    TRY(bench_copy_bandwidth((size_t)64 << 20, 1, &bytes_per_s, error));
    host->inside_gbs = bytes_per_s * 0.25e-9;
    host->inside_us = 10.0;
    host->inside_is_shared = !is_gpu;
    return STATUS_OK;
}

/* ---- Bus */

/* Each way, while both are taken: what moves goes both ways in most of a step. */
Status machine_measure_bus(MachineHost *machine, const Backend *backend, Error *error) {
    MoveRates bus = {0};
    if (!backend->copy_start) return STATUS_OK;
    TRY(bench_bus_rates(backend, &bus, error));
    machine->bus_gbs = 0.5 * bus.both * 1e-9;
    return STATUS_OK;
}

/* ---- Disk */

void machine_measure_disk(MachineHost *host, const char *folder) {
    enum { N_BYTES = 64 << 20 };
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/.pgpt-disk-XXXXXX", *folder ? folder : ".");
    int file = n > 0 && (size_t)n < sizeof path ? mkstemp(path) : -1;
    char *bytes = file >= 0 ? malloc(N_BYTES) : NULL;
    if (bytes) {
        for (int i = 0; i < N_BYTES; i++)
            bytes[i] = (char)((uint32_t)i * 2654435761u >> 24); /* nothing to compress */
        uint64_t start = timer_now_ns();
        bool is_written = write(file, bytes, N_BYTES) == N_BYTES && fsync(file) == 0;
        if (is_written) host->disk_gbs = N_BYTES / timer_seconds_since(start) * 1e-9;
    }
    free(bytes);
    if (file >= 0) {
        close(file);
        unlink(path);
    }
}
