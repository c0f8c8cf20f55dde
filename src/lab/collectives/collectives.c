/* The ways take turns, so that whatever else the machine does hits all of them. How many rounds are made is
 * decided from times that all ranks have agreed upon, so that all make the same number. What links cost is
 * found by a ping-pong (ping_pong.c). */
#include "lab/collectives/collectives.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "comm/algo/transfer.h"
#include "comm/combine.h"
#include "comm/comm_mpi.h"
#include "lab/collectives/collective_case.h"
#include "lab/collectives/ping_pong.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const int collectives_kinds[COLLECTIVES_N_KINDS] = {
    COLLECTIVE_SEND_RECEIVE, COMM_BROADCAST,      COMM_REDUCE,     COMM_SCATTER,    COMM_GATHER,
    COMM_ALL_GATHER,         COMM_REDUCE_SCATTER, COMM_ALL_TO_ALL, COMM_ALL_REDUCE,
};

int collectives_n_algorithms(int kind) {
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    return collective_algorithms(kind, algorithms);
}

int collectives_n_ways(int kind) {
    return collectives_n_algorithms(kind) + (kind != COLLECTIVE_SEND_RECEIVE) + (kind == COMM_ALL_REDUCE);
}

const char *collectives_name(int kind, int way) {
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    int n_algorithms = collective_algorithms(kind, algorithms);
    if (way < n_algorithms) return algorithms[way]->name;
    return way == n_algorithms ? "library" : "MPI_Allreduce";
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts them. */
static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* ---- Addition */

/* A piece that is in the cache, added to another one that is: as it happens to what has just arrived. */
static Status probe_addition(Comm *world, double *gamma, Error *error) {
    enum { N_TRIALS = 100 };
    double least = INFINITY;
    void *pieces = NULL;
    TRY(memory_alloc(&pieces, 2 * TRANSFER_PIECE_BYTES, "two pieces", error));
    char *a = pieces, *b = a + TRANSFER_PIECE_BYTES;
    for (int i = 0; i < N_TRIALS; i++) {
        uint64_t start = timer_now_ns();
        comm_combine(a, b, TRANSFER_PIECE_BYTES / 4, COMM_F32, COMM_SUM);
        double seconds = timer_seconds_since(start);
        if (seconds < least) least = seconds;
    }
    *gamma = least / TRANSFER_PIECE_BYTES;
    memory_free(pieces, 2 * TRANSFER_PIECE_BYTES);
    TRY(comm_barrier(world, error));
    return comm_broadcast(world, gamma, 1, COMM_F64, 0, error);
}

/* What it costs more to add to memory than to the cache, when all ranks do it at once. */
static Status probe_memory(Comm *world, double gamma, double *delta, Error *error) {
    enum { N_TRIALS = 5, LONG_BYTES = 64 << 20 };
    double least = INFINITY;
    void *piece = NULL, *long_vector = NULL;
    TRY(memory_alloc(&piece, TRANSFER_PIECE_BYTES, "a piece", error));
    if (memory_alloc(&long_vector, LONG_BYTES, "a long vector", error) == STATUS_OK)
        memset(long_vector, 0, LONG_BYTES);
    for (int trial = 0; trial < N_TRIALS && error->status == STATUS_OK; trial++) {
        if (comm_barrier(world, error) != STATUS_OK) break;
        uint64_t start = timer_now_ns();
        for (size_t at = 0; at < LONG_BYTES; at += TRANSFER_PIECE_BYTES)
            comm_combine((char *)long_vector + at, piece, TRANSFER_PIECE_BYTES / 4, COMM_F32, COMM_SUM);
        double seconds = timer_seconds_since(start);
        if (comm_all_reduce(world, &seconds, 1, COMM_F64, COMM_MAX, error) != STATUS_OK) break;
        if (seconds < least) least = seconds;
    }
    memory_free(piece, TRANSFER_PIECE_BYTES);
    memory_free(long_vector, LONG_BYTES);
    *delta = least / LONG_BYTES > gamma ? least / LONG_BYTES - gamma : 0;
    return error->status;
}

/* ---- Who is where */

enum { HOST_BYTES = sizeof((Launch *)NULL)->host };

/* Hosts get numbers in the order in which ranks name them. */
static Status find_hosts(Launch *launch, Machine *machine, Error *error) {
    Comm *world = &launch->world;
    size_t n = (size_t)world->size;
    char *names = calloc(n, HOST_BYTES);
    int64_t *border = malloc((n + 1) * sizeof *border);
    int *host = calloc(n, sizeof *host);
    machine->host = host;
    if (!names || !border || !host) {
        error_failed(error, "no memory for the hosts of %d ranks", world->size);
        goto done;
    }
    for (size_t i = 0; i <= n; i++) border[i] = (int64_t)i * HOST_BYTES;
    memcpy(names + border[world->rank], launch->host, HOST_BYTES);
    TRY_GOTO(comm_all_gather(world, names, border, COMM_U8, error), done);
    machine->n_hosts = 0;
    for (size_t i = 0; i < n; i++) {
        size_t first = 0;
        while (memcmp(names + first * HOST_BYTES, names + i * HOST_BYTES, HOST_BYTES) != 0) first++;
        host[i] = first == i ? machine->n_hosts++ : host[first];
    }
done:
    free(names);
    free(border);
    return error->status;
}

/* Two ranks, on one host or on two; false: there are none. */
static bool find_pair(const Machine *machine, bool is_within, int *first, int *second) {
    for (int i = 0; i < machine->n_ranks; i++) {
        for (int k = i + 1; k < machine->n_ranks; k++) {
            if ((machine->host[i] == machine->host[k]) != is_within) continue;
            *first = i;
            *second = k;
            return true;
        }
    }
    return false;
}

/* What a rank has for itself: its core's second level, or its share of a third that all cores of the host
 * have. */
static double cache_bytes(int n_host_ranks) {
    double second = (double)sysconf(_SC_LEVEL2_CACHE_SIZE),
           third = (double)sysconf(_SC_LEVEL3_CACHE_SIZE) / n_host_ranks;
    double most = second > third ? second : third;
    return most > 0 ? most : 1 << 20; /* it does not say */
}

Status collectives_probe(Launch *launch, Machine *machine, Error *error) {
    enum { ACROSS_BYTES = 1 << 20 };
    *machine = (Machine){.n_ranks = launch->world.size};
    int64_t n_cores = launch->n_host_cores;
    int first, second;
    TRY(find_hosts(launch, machine, error));
    TRY(comm_all_reduce(&launch->world, &n_cores, 1, COMM_I64, COMM_MIN, error));
    machine->n_cores = n_cores > 0 ? (int)n_cores : 1;
    bool has_within = find_pair(machine, true, &first, &second);
    if (has_within)
        TRY(ping_pong_fit(&launch->world, first, second, TRANSFER_PIECE_BYTES, &machine->within, error));
    bool has_across = find_pair(machine, false, &first, &second);
    if (has_across) TRY(ping_pong_fit(&launch->world, first, second, ACROSS_BYTES, &machine->across, error));
    TRY(probe_addition(&launch->world, &machine->gamma, error));
    machine->cache_bytes = cache_bytes(launch->host_size);
    return probe_memory(&launch->world, machine->gamma, &machine->delta, error);
}

void collectives_forget(Machine *machine) {
    free((void *)(uintptr_t)machine->host);
    *machine = (Machine){0};
}

/* ---- Collectives */

/* The time of the slowest rank. */
static Status run_once(const CommonStart *start, int way, CollectiveCase *one, double *seconds,
                       Error *error) {
    Comm *world = start->world;
    const CommAlgorithm *before = world->all_reduce;
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    int n_algorithms = collective_algorithms(one->kind, algorithms);
    CommOperation operation = collective_case_operation(one, world->rank);
    collective_case_fill(one, world->rank);
    uint64_t begin_ns;
    TRY(common_start_wait(start, &begin_ns, error));
    if (way < n_algorithms) {
        collective_algorithm_run(world, algorithms[way], &operation, error);
    } else if (way == n_algorithms) {
        world->all_reduce = NULL;
        comm_run(world, &operation, error);
        world->all_reduce = before;
    } else comm_mpi_sum(world, one->data, one->n, error);
    *seconds = timer_seconds_since(begin_ns);
    if (error->status == STATUS_OK)
        collective_case_check(one, world->rank, collectives_name(one->kind, way), error);
    if (error->status != STATUS_OK) return error->status;
    return comm_all_reduce(world, seconds, 1, COMM_F64, COMM_MAX, error);
}

Status collectives_measure(Launch *launch, int kind, int64_t n_bytes, const CollectivesOptions *options,
                           CollectivesRow *row, Error *error) {
    enum { WARM_UP = 1, LEAST_ROUNDS = 2 };
    int most = options->n_rounds > LEAST_ROUNDS ? options->n_rounds : LEAST_ROUNDS;
    int n_ways = collectives_n_ways(kind);
    double *seconds = calloc((size_t)most * COLLECTIVES_MAX_WAYS, sizeof *seconds), spent = 0;
    CollectiveCase one = {.kind = kind};
    *row = (CollectivesRow){.kind = kind, .n_bytes = n_bytes};
    if (!seconds) error_failed(error, "no memory for %d rounds", most);
    else collective_case_open(&one, kind, n_bytes, launch->world.size, error);
    if (launch_agree(launch, error) != STATUS_OK || !seconds) goto done; /* nobody begins alone */
    for (int round = -WARM_UP; round < most; round++) {
        if (round >= LEAST_ROUNDS && spent > options->budget_s) break;
        for (int way = 0; way < n_ways; way++) {
            double once = 0;
            TRY_GOTO(run_once(options->start, way, &one, &once, error), done);
            spent += once;
            if (round >= 0) seconds[way * most + round] = once;
        }
        if (round >= 0) row->n_rounds++;
    }
    for (int way = 0; way < n_ways; way++) {
        row->median[way] = median(seconds + way * most, row->n_rounds);
        row->seconds[way] = seconds[way * most]; /* sorted now */
        row->model[way] = NAN;
    }
done:
    collective_case_close(&one);
    free(seconds);
    return error->status;
}

/* ---- What the model expects */

typedef struct {
    const CollectiveAlgorithm *algorithm;
    CollectiveCase *one;
} Expected;

static Status run_rank(Comm *comm, void *argument, Error *error) {
    const Expected *expected = argument;
    CommOperation operation = collective_case_operation(expected->one, comm->rank);
    return collective_algorithm_run(comm, expected->algorithm, &operation, error);
}

Status collectives_predict(const Machine *machine, CollectivesRow *row, Error *error) {
    const CollectiveAlgorithm *algorithms[COLLECTIVE_MAX_ALGORITHMS];
    int n_algorithms = collective_algorithms(row->kind, algorithms);
    CollectiveCase one;
    for (int way = 0; way < COLLECTIVES_MAX_WAYS; way++) row->model[way] = NAN;
    TRY(collective_case_open(&one, row->kind, row->n_bytes, machine->n_ranks, error));
    for (int way = 0; way < n_algorithms && error->status == STATUS_OK; way++) {
        Expected expected = {algorithms[way], &one};
        replay_run(machine, run_rank, &expected, row->n_bytes, &row->model[way], error);
    }
    collective_case_close(&one);
    return error->status;
}
