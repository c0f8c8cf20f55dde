/* The kernel is the one that an older study of OpenMP used: the gradient of sum((x w - y)^2) over rows of a
 * few weights. A row is a handful of multiplications for some 50 bytes from memory, so it is memory that
 * decides, and how rows are dealt out costs more than the rows themselves if they are dealt one by one: that
 * is what OpenMP's dynamic schedule does unless told otherwise.
 *
 * Memory is new for every measurement, so that its pages have no home before the first touch. Rows are filled
 * from the random numbers of their index: whoever fills them, they are the same.
 *
 * In the uneven variant a row is gone over again, up to eight times for the last ones: work that static
 * shares are bad at. */
#include "lab/linear/schedules.h"

#include "base/system/memory.h"
#include "base/system/timer.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
#    include <omp.h>
#endif

enum { MAX_WEIGHTS = 64, UNEVEN = 8 };

const char *const schedules_names[] = {"static", "dynamic", "guided", NULL};
const char *const schedules_touch_names[] = {"one thread", "all threads", NULL};

bool schedules_are_there(void) {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
}

int schedules_memory_nodes(void) {
    DIR *folder = opendir("/sys/devices/system/node");
    int n = 0, number;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += sscanf(entry->d_name, "node%d", &number) == 1;
    if (folder) closedir(folder);
    return n;
}

/* (rows, weights + 1): the inputs of a row and what should come out. */
typedef struct {
    double *values;
    int64_t n_rows, n_weights;
    bool is_uneven;
} Rows;

/* A number in -1 .. 1 that depends on its place alone. */
static double number_at(int64_t index) {
    uint64_t x = (uint64_t)index * 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

static void fill(const Rows *rows, int n_threads) {
    int64_t width = rows->n_weights + 1, n = rows->n_rows;
    double *values = rows->values;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < width; i++) values[row * width + i] = number_at(row * width + i);
}

static int64_t repeats_of(const Rows *rows, int64_t row) {
    return rows->is_uneven ? 1 + row * UNEVEN / rows->n_rows : 1;
}

/* gradient += the row's share. */
static inline void add_row(const Rows *rows, int64_t row, const double *weights, double *gradient) {
    int64_t n = rows->n_weights;
    const double *x = rows->values + row * (n + 1);
    for (int64_t k = repeats_of(rows, row); k > 0; k--) {
        double error = -x[n];
        for (int64_t i = 0; i < n; i++) error += x[i] * weights[i];
        for (int64_t i = 0; i < n; i++) gradient[i] += error * x[i];
    }
}

static void gradient_of(const Rows *rows, const double *weights, int n_threads, double *sum) {
    int64_t n_rows = rows->n_rows, n_weights = rows->n_weights;
    memset(sum, 0, (size_t)n_weights * sizeof *sum);
#pragma omp parallel num_threads(n_threads)
    {
        double own[MAX_WEIGHTS] = {0};
#pragma omp for schedule(runtime)
        for (int64_t row = 0; row < n_rows; row++) add_row(rows, row, weights, own);
#pragma omp critical
        for (int64_t i = 0; i < n_weights; i++) sum[i] += own[i];
    }
}

static void set_schedule(LoopScheduleKind schedule, int64_t chunk) {
#ifdef _OPENMP
    static const omp_sched_t kinds[] = {omp_sched_static, omp_sched_dynamic, omp_sched_guided};
    omp_set_schedule(kinds[schedule], (int)chunk);
#else
    (void)schedule, (void)chunk;
#endif
}

Status schedules_measure(const SchedulesOptions *options, SchedulesCell *cell, Error *error) {
    Rows rows = {.n_rows = options->n_rows, .n_weights = options->n_weights, .is_uneven = cell->is_uneven};
    if (rows.n_weights < 1 || rows.n_weights > MAX_WEIGHTS)
        return error_user(error, "rows have 1 to %d weights, not %lld", MAX_WEIGHTS,
                          (long long)rows.n_weights);
    size_t n_bytes = (size_t)rows.n_rows * (size_t)(rows.n_weights + 1) * sizeof(double);
    double weights[MAX_WEIGHTS], gradient[MAX_WEIGHTS] = {0};
    void *memory = NULL;
    TRY(memory_check(n_bytes, "the rows", "lower --rows", error));
    TRY(memory_alloc(&memory, n_bytes, "the rows", error));
    rows.values = memory;
    fill(&rows, cell->touch == SCHEDULES_BY_ALL ? cell->n_threads : 1);
    for (int64_t i = 0; i < rows.n_weights; i++) weights[i] = number_at(-1 - i);
    set_schedule(cell->schedule, options->chunk);
    cell->seconds = INFINITY;
    for (int round = -1; round < options->n_rounds; round++) { /* the first is not counted */
        uint64_t start = timer_now_ns();
        gradient_of(&rows, weights, cell->n_threads, gradient);
        double seconds = timer_seconds_since(start);
        if (round >= 0 && seconds < cell->seconds) cell->seconds = seconds;
    }
    cell->checksum = 0;
    for (int64_t i = 0; i < rows.n_weights; i++) cell->checksum += gradient[i];
    memory_free(memory, n_bytes);
    return STATUS_OK;
}
