/* Several operations follow each other between two looks at the clock, so that a rank that comes late is
 * counted once and not each time, and that who waits, wakes and yields is part of what is measured. The
 * middle one of several such rows counts. */
#include "bench/message_samples.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/training.h"
#include "plan/links.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum {
    N_TRIES = 5,
    N_WARM = 1,
    MOST_BYTES = 64 << 20,
    SMALL_BYTES = 64 << 10,
    MEDIUM_BYTES = 1 << 20,
    LEAST_WORK_BYTES = 64 << 10,
    ALL_RANKS_BYTES = 1 << 30 /* the buffers of all ranks together */
};

/* Denser where allocators and libraries change their ways. */
static const int64_t byte_sizes[] = {4,       4 << 10,  64 << 10, 512 << 10, 2 << 20,
                                     6 << 20, 12 << 20, 24 << 20, MOST_BYTES};
enum { N_BYTE_SIZES = sizeof byte_sizes / sizeof byte_sizes[0] };

/* Ranks that are at it, and one of the groups that they are in. */
typedef struct {
    Comm some, group;
    double turns; /* ranks that take turns on a core */
    int64_t most_bytes;
    char *out, *in; /* so many each */
    Arena *arena;
    const char *text;
} Measuring;

typedef Status (*RunOnce)(Measuring *measuring, CommKind kind, int64_t n, const int64_t *border,
                          Error *error);

static CommOperation operation_of(const Measuring *measuring, CommKind kind, int64_t n,
                                  const int64_t *border) {
    CommOperation operation = {.kind = kind, .type = COMM_F32, .data = measuring->out};
    if (kind == COMM_ALL_REDUCE) operation.n = n;
    else operation.border = border;
    if (kind == COMM_ALL_TO_ALL) operation.other = measuring->in, operation.other_border = border;
    return operation;
}

/* As training does: by the thread behind comm_start, where the library keeps what it takes for itself. */
static Status collective(Measuring *measuring, CommKind kind, int64_t n, const int64_t *border,
                         Error *error) {
    CommTicket ticket;
    CommOperation operation = operation_of(measuring, kind, n, border);
    TRY(comm_start(&measuring->group, &operation, &ticket, error));
    return comm_wait(&measuring->group, &ticket, error);
}

/* There and back, in pairs. */
static Status message(Measuring *measuring, CommKind kind, int64_t n, const int64_t *border, Error *error) {
    (void)kind, (void)border;
    enum { TAG = 1 };
    Comm *group = &measuring->group;
    int other = group->rank ^ 1;
    size_t n_bytes = (size_t)n * sizeof(float);
    if (other >= group->size) return STATUS_OK;
    if (group->rank & 1) TRY(comm_receive(group, measuring->in, n_bytes, other, TAG, error));
    TRY(comm_send(group, measuring->out, n_bytes, other, TAG, error));
    if (!(group->rank & 1)) TRY(comm_receive(group, measuring->in, n_bytes, other, TAG, error));
    return STATUS_OK;
}

/* Bytes are those that links_seconds is asked for: of an all-to-all what a rank sends to others. */
static const struct {
    CommKind kind;
    bool is_message, is_sliced, is_of_others;
    RunOnce run;
} ways[] = {{.kind = COMM_ALL_REDUCE, .run = collective},
            {.kind = COMM_REDUCE_SCATTER, .is_sliced = true, .run = collective},
            {.kind = COMM_ALL_GATHER, .is_sliced = true, .run = collective},
            {.kind = COMM_ALL_TO_ALL, .is_sliced = true, .is_of_others = true, .run = collective},
            {.is_message = true, .run = message}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static Status time_way(Measuring *measuring, int way, int64_t n, const int64_t *border, double *seconds,
                       Error *error) {
    double tries[N_TRIES];
    int64_t n_bytes = n * (int64_t)sizeof(float);
    int n_times = n_bytes <= SMALL_BYTES ? 20 : n_bytes <= MEDIUM_BYTES ? 6 : n_bytes < MOST_BYTES ? 2 : 1;
    for (int i = -N_WARM; i < N_TRIES; i++) {
        TRY(comm_barrier(&measuring->some, error));
        uint64_t start = timer_now_ns();
        for (int k = 0; k < n_times; k++) TRY(ways[way].run(measuring, ways[way].kind, n, border, error));
        if (i >= 0) tries[i] = timer_seconds_since(start) / n_times;
    }
    *seconds = bench_median(tries, N_TRIES);
    return STATUS_OK;
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Processor time of a rank, on average, while its owner sleeps, long enough not to be in need of it: so that
 * who waits for others is patient (comm/patience.h), as beside computation. */
static Status time_work(Measuring *measuring, int way, int64_t n, const int64_t *border, double seconds,
                        double *work, Error *error) {
    enum { N_WORKS = 3 };
    double tries[N_WORKS], until = 4.0 * seconds + 4e-3;
    struct timespec sleep = {(time_t)until, (long)(1e9 * fmod(until, 1.0))};
    for (int i = -N_WARM; i < N_WORKS; i++) {
        CommTicket ticket;
        CommOperation operation = operation_of(measuring, ways[way].kind, n, border);
        TRY(comm_barrier(&measuring->some, error));
        double start = cpu_seconds();
        TRY(comm_start(&measuring->group, &operation, &ticket, error));
        nanosleep(&sleep, NULL);
        TRY(comm_wait(&measuring->group, &ticket, error));
        double taken = cpu_seconds() - start;
        TRY(comm_all_reduce(&measuring->some, &taken, 1, COMM_F64, COMM_SUM, error));
        if (i >= 0) tries[i] = taken / measuring->some.size;
    }
    *work = bench_median(tries, N_WORKS);
    return STATUS_OK;
}

static void add_sample(Measuring *measuring, int way, const char *what, double bytes, double seconds) {
    const char *name = ways[way].is_message ? LINK_MESSAGE : comm_kind_name(ways[way].kind);
    SampleKey key = {.name = arena_printf(measuring->arena, "%s%s", name, what),
                     .n_sizes = 3,
                     .size = {measuring->some.size, measuring->group.size, bytes},
                     .work = bytes};
    measuring->text = samples_add(measuring->text, &key, seconds, measuring->arena);
}

static Status measure_way(Measuring *measuring, int way, int64_t n_bytes, Error *error) {
    int size = measuring->group.size;
    int64_t n = n_bytes / (int64_t)sizeof(float);
    int64_t *border = ARENA_ARRAY(measuring->arena, int64_t, size + 1);
    double seconds, work, bytes = (double)n_bytes;
    if (ways[way].is_sliced && n < size) n = size, bytes = size * (double)sizeof(float);
    comm_even_borders(n, size, 1, border);
    TRY(time_way(measuring, way, n, border, &seconds, error));
    if (ways[way].is_message) seconds *= 0.5;
    if (ways[way].is_of_others) bytes *= (size - 1.0) / size;
    add_sample(measuring, way, "", bytes, seconds);
    if (ways[way].is_message || n_bytes < LEAST_WORK_BYTES) return STATUS_OK;
    TRY(time_work(measuring, way, n, border, seconds, &work, error));
    add_sample(measuring, way, LINK_WORK, bytes, fmin(work * measuring->turns, seconds));
    return STATUS_OK;
}

/* All groups of so many ranks at a time. */
static Status measure_groups(Measuring *measuring, int size, Error *error) {
    Comm *some = &measuring->some;
    TRY(comm_split(some, some->rank / size, some->rank, &measuring->group, error));
    for (int way = 0; way < N_WAYS; way++)
        for (int i = N_BYTE_SIZES - 1; i >= 0; i--) /* an allocator gives more away once it had more */
            if (byte_sizes[i] <= measuring->most_bytes)
                TRY_GOTO(measure_way(measuring, way, byte_sizes[i], error), done);
done:
    comm_close(&measuring->group);
    return error->status;
}

/* So many ranks, the others wait. */
static Status measure_ranks(Measuring *measuring, Comm *world, int n_ranks, int n_cores, Error *error) {
    bool takes_part = world->rank < n_ranks;
    measuring->turns = n_ranks > n_cores ? (double)n_ranks / n_cores : 1.0;
    TRY(comm_split(world, takes_part ? 0 : -1, world->rank, &measuring->some, error));
    for (int size = 2; takes_part && size <= n_ranks && error->status == STATUS_OK; size++) {
        bool is_power = (size & (size - 1)) == 0 && n_ranks % size == 0;
        if (is_power || size == n_ranks) measure_groups(measuring, size, error);
    }
    if (takes_part) comm_close(&measuring->some);
    return comm_agree(world, error);
}

Status message_samples_take(Comm *world, int n_cores, Arena *arena, const char **text, Error *error) {
    void *data;
    Measuring measuring = {.arena = arena, .most_bytes = MOST_BYTES, .text = ""};
    while (2 * measuring.most_bytes * world->size > ALL_RANKS_BYTES && measuring.most_bytes > MEDIUM_BYTES)
        measuring.most_bytes /= 2;
    size_t n_bytes = 2 * (size_t)measuring.most_bytes;
    TRY(memory_alloc(&data, n_bytes, "measuring messages", error));
    memset(data, 0, n_bytes);
    measuring.out = data;
    measuring.in = measuring.out + measuring.most_bytes;
    int first = n_cores < world->size ? n_cores : world->size;
    if (first > 1) measure_ranks(&measuring, world, first, n_cores, error);
    if (world->size > first && error->status == STATUS_OK)
        measure_ranks(&measuring, world, world->size, n_cores, error);
    memory_free(data, n_bytes);
    *text = measuring.text;
    return error->status;
}
