/* Several operations follow each other between two looks at the clock, so that a rank that comes late is
 * counted once and not each time, and that who waits, wakes and yields is part of what is measured. The middle
 * one of several such rows counts. */
#include "bench/message_samples.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/training.h"
#include "plan/links.h"

#include <string.h>

enum { N_TRIES = 7, N_WARM = 1, MOST_BYTES = 16 << 20, SMALL_BYTES = 64 << 10, MEDIUM_BYTES = 1 << 20 };

static const int64_t byte_sizes[] = {4, 4 << 10, 64 << 10, 512 << 10, 4 << 20, MOST_BYTES};

/* Ranks that are at it, and one of the groups that they are in. */
typedef struct {
    Comm some, group;
    char *out, *in;
    Arena *arena;
    const char *text;
} Measuring;

typedef Status (*RunOnce)(Measuring *measuring, int64_t n, const int64_t *border, Error *error);

static Status all_reduce(Measuring *measuring, int64_t n, const int64_t *border, Error *error) {
    (void)border;
    return comm_all_reduce(&measuring->group, measuring->out, n, COMM_F32, COMM_SUM, error);
}

static Status reduce_scatter(Measuring *measuring, int64_t n, const int64_t *border, Error *error) {
    (void)n;
    return comm_reduce_scatter(&measuring->group, measuring->out, border, COMM_F32, COMM_SUM, error);
}

static Status all_gather(Measuring *measuring, int64_t n, const int64_t *border, Error *error) {
    (void)n;
    return comm_all_gather(&measuring->group, measuring->out, border, COMM_F32, error);
}

static Status all_to_all(Measuring *measuring, int64_t n, const int64_t *border, Error *error) {
    (void)n;
    return comm_all_to_all(&measuring->group, measuring->out, border, measuring->in, border, COMM_F32, error);
}

/* There and back, in pairs. */
static Status message(Measuring *measuring, int64_t n, const int64_t *border, Error *error) {
    (void)border;
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
} ways[] = {{.kind = COMM_ALL_REDUCE, .run = all_reduce},
            {.kind = COMM_REDUCE_SCATTER, .is_sliced = true, .run = reduce_scatter},
            {.kind = COMM_ALL_GATHER, .is_sliced = true, .run = all_gather},
            {.kind = COMM_ALL_TO_ALL, .is_sliced = true, .is_of_others = true, .run = all_to_all},
            {.is_message = true, .run = message}};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static Status time_way(Measuring *measuring, RunOnce run, int64_t n, const int64_t *border, double *seconds,
                       Error *error) {
    double tries[N_TRIES];
    int64_t n_bytes = n * (int64_t)sizeof(float);
    int n_times = n_bytes <= SMALL_BYTES ? 20 : n_bytes <= MEDIUM_BYTES ? 6 : 2;
    for (int i = -N_WARM; i < N_TRIES; i++) {
        TRY(comm_barrier(&measuring->some, error));
        uint64_t start = timer_now_ns();
        for (int k = 0; k < n_times; k++) TRY(run(measuring, n, border, error));
        if (i >= 0) tries[i] = timer_seconds_since(start) / n_times;
    }
    *seconds = bench_median(tries, N_TRIES);
    return STATUS_OK;
}

static Status measure_way(Measuring *measuring, int way, int64_t n_bytes, Error *error) {
    int size = measuring->group.size;
    int64_t n = n_bytes / (int64_t)sizeof(float);
    int64_t *border = ARENA_ARRAY(measuring->arena, int64_t, size + 1);
    double seconds, bytes = (double)n_bytes;
    if (ways[way].is_sliced && n < size) n = size, bytes = size * (double)sizeof(float);
    comm_even_borders(n, size, 1, border);
    TRY(time_way(measuring, ways[way].run, n, border, &seconds, error));
    if (ways[way].is_message) seconds *= 0.5;
    if (ways[way].is_of_others) bytes *= (size - 1.0) / size;
    SampleKey key = {.name = ways[way].is_message ? LINK_MESSAGE : comm_kind_name(ways[way].kind),
                     .n_sizes = 3,
                     .size = {measuring->some.size, size, bytes},
                     .work = bytes};
    measuring->text = samples_add(measuring->text, &key, seconds, measuring->arena);
    return STATUS_OK;
}

/* All groups of so many ranks at a time. */
static Status measure_groups(Measuring *measuring, int size, Error *error) {
    Comm *some = &measuring->some;
    TRY(comm_split(some, some->rank / size, some->rank, &measuring->group, error));
    for (int way = 0; way < N_WAYS; way++)
        for (size_t i = 0; i < sizeof byte_sizes / sizeof byte_sizes[0]; i++)
            TRY_GOTO(measure_way(measuring, way, byte_sizes[i], error), done);
done:
    comm_close(&measuring->group);
    return error->status;
}

/* So many ranks, the others wait. */
static Status measure_ranks(Measuring *measuring, Comm *world, int n_ranks, Error *error) {
    bool takes_part = world->rank < n_ranks;
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
    size_t n_bytes = 2 * (size_t)MOST_BYTES;
    Measuring measuring = {.arena = arena, .text = ""};
    TRY(memory_alloc(&data, n_bytes, "measuring messages", error));
    memset(data, 0, n_bytes);
    measuring.out = data;
    measuring.in = measuring.out + MOST_BYTES;
    int first = n_cores < world->size ? n_cores : world->size;
    if (first > 1) measure_ranks(&measuring, world, first, error);
    if (world->size > first && error->status == STATUS_OK)
        measure_ranks(&measuring, world, world->size, error);
    memory_free(data, n_bytes);
    *text = measuring.text;
    return error->status;
}
