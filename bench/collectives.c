/* All-reduce by every algorithm against the library's own, in one run.
 *
 *     mpirun -n 2 bench_collectives [--repeats N] [BYTES ...]      default: 15 repeats of 16 KiB, 1 MiB and 43 MB of f32
 *
 * 43 MB are the gradients of `mini`. The ways take turns, so that whatever else the machine does hits all of them; every
 * result is checked; a measurement is the time of the slowest rank, and the median counts. The reference is the library's
 * blocking MPI_Allreduce; "library" is what pgpt makes of the library: MPI_Iallreduce, watched by a loop that gives way.
 * GB/s are bytes of the vector by the time: what the caller sees, not what travels. */
#include "base/memory.h"
#include "base/timer.h"
#include "comm/algo/algo.h"
#include "comm/comm_mpi.h"

#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WAYS = 16, MAX_REPEATS = 1000, MAX_SIZES = 16, REFERENCE = 0 };

typedef struct {
    int n_repeats, n_sizes;
    int64_t n_bytes[MAX_SIZES];
} Arguments;

/* The blocking call, then all of comm_algorithm_names. */
static const char *way_name(int way) {
    return way == REFERENCE ? "MPI_Allreduce" : comm_algorithm_names[way - 1];
}

static int count_ways(void) {
    int n_ways = 1;
    while (comm_algorithm_names[n_ways - 1]) n_ways++;
    return n_ways;
}

/* Whole numbers, different on every rank and all around the vector, whose sums are exact. */
static float term(int64_t i, int factor) {
    return (float)((i % 1021 + 1) * factor);
}

static void fill(float *data, int64_t n, int rank) {
    for (int64_t i = 0; i < n; i++) data[i] = term(i, rank + 1);
}

static Status check(const float *data, int64_t n, const Comm *world, int way, Error *error) {
    int factor = world->size * (world->size + 1) / 2;
    for (int64_t i = 0; i < n; i++)
        if (data[i] != term(i, factor))
            return error_failed(error, "%s: element %lld is %g on rank %d, not %g", way_name(way),
                                (long long)i, (double)data[i], world->rank, (double)term(i, factor));
    return STATUS_OK;
}

static Status run_once(Comm *world, int way, float *data, int64_t n, double *seconds, Error *error) {
    world->all_reduce = way == REFERENCE ? NULL : comm_algorithm(way - 1);
    fill(data, n, world->rank);
    TRY(comm_barrier(world, error));
    uint64_t start_ns = timer_now_ns();
    if (way != REFERENCE) {
        TRY(comm_all_reduce(world, data, n, COMM_F32, COMM_SUM, error));
    } else if (MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
        return error_failed(error, "MPI_Allreduce failed");
    }
    *seconds = timer_seconds_since(start_ns);
    world->all_reduce = NULL;
    TRY(check(data, n, world, way, error));
    return comm_all_reduce(world, seconds, 1, COMM_F64, COMM_MAX, error);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_size(const Comm *world, int64_t n_bytes, double (*seconds)[MAX_REPEATS], int n_repeats) {
    double reference = 0;
    printf("\n%lld bytes, %d ranks\n%-14s %12s %12s %8s %8s\n", (long long)n_bytes, world->size, "",
           "median ms", "least ms", "GB/s", "ratio");
    for (int way = 0; way < count_ways(); way++) {
        qsort(seconds[way], (size_t)n_repeats, sizeof seconds[way][0], compare_doubles);
        double median = seconds[way][n_repeats / 2];
        if (way == REFERENCE) reference = median;
        printf("%-14s %12.4f %12.4f %8.2f %8.2f\n", way_name(way), median * 1e3, seconds[way][0] * 1e3,
               (double)n_bytes * 1e-9 / median, reference / median);
    }
}

static Status measure(Comm *world, int64_t n_bytes, int n_repeats, Error *error) {
    static double seconds[MAX_WAYS][MAX_REPEATS];
    void *data;
    int64_t n = n_bytes / 4;
    TRY(memory_alloc(&data, (size_t)n * 4, "the vector", error));
    for (int repeat = -1; repeat < n_repeats; repeat++) {
        for (int way = 0; way < count_ways(); way++) {
            double once = 0; /* the first round is not counted */
            TRY_GOTO(run_once(world, way, data, n, &once, error), done);
            if (repeat >= 0) seconds[way][repeat] = once;
        }
    }
    if (world->rank == 0) print_size(world, n * 4, seconds, n_repeats);
done:
    memory_free(data, (size_t)n * 4);
    return error->status;
}

static Status read_number(const char *text, int64_t most, int64_t *number, Error *error) {
    char *end;
    errno = 0;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (!text || end == text || *end || errno || value < 1 || value > most)
        return error_user(error, "'%s' is not a number from 1 to %lld", text ? text : "", (long long)most);
    *number = value;
    return STATUS_OK;
}

static Status read_arguments(Arguments *arguments, int argc, char **argv, Error *error) {
    *arguments = (Arguments){.n_repeats = 15};
    for (int i = 1; i < argc; i++) {
        int64_t number = 0;
        if (strcmp(argv[i], "--repeats") == 0) {
            TRY(read_number(argv[++i], MAX_REPEATS, &number, error));
            arguments->n_repeats = (int)number;
            continue;
        }
        if (arguments->n_sizes == MAX_SIZES) return error_user(error, "at most %d sizes", MAX_SIZES);
        TRY(read_number(argv[i], (int64_t)4 << 30, &number, error)); /* MPI counts elements with int */
        arguments->n_bytes[arguments->n_sizes++] = number;
    }
    if (arguments->n_sizes == 0) {
        const int64_t usual[] = {16 << 10, 1 << 20, 43000000};
        memcpy(arguments->n_bytes, usual, sizeof usual);
        arguments->n_sizes = 3;
    }
    return STATUS_OK;
}

int main(int argc, char **argv) {
    Error error = {0};
    Comm world = {0};
    Arguments arguments;
    TRY_GOTO(read_arguments(&arguments, argc, argv, &error), done);
    TRY_GOTO(comm_mpi_open(&world, &error), done);
    if (world.rank == 0) printf("%s\n", comm_mpi_library());
    for (int i = 0; i < arguments.n_sizes; i++)
        TRY_GOTO(measure(&world, arguments.n_bytes[i], arguments.n_repeats, &error), done);
done:
    if (error.status != STATUS_OK) {
        fprintf(stderr, "bench_collectives: %s\n", error.text);
        comm_abort(&world, (int)error.status);
    }
    comm_close(&world);
    return (int)error.status;
}
