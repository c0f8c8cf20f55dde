/* Limits of the machine, each measured by the smallest loop that can reach it.
 *
 * Every figure is the best of several short runs: a limit is what the machine can do, and whatever disturbs a
 * run only makes it slower. The bandwidths take the size of the working set, because a kernel whose tensors
 * fit into the caches is limited by those and not by the memory behind them. */
#include "bench/limits.h"

#include "backend/cpu/simd.h"
#include "base/system/memory.h"
#include "base/system/timer.h"

#include <string.h>
#include <unistd.h>

/* Enough independent sums to hide the latency of the multiply-add units (4 cycles, 2 units), and few enough
 * that they and the two factors stay in 16 registers. */
enum { N_SUMS = 12, N_TRIES = 24 };

/* Sums that run towards 1, so that no number is ever slow. */
static float fma_loop(int64_t n_rounds, float factor, float term) {
    vec sum[N_SUMS], a = vec_set(factor), b = vec_set(term);
    for (int k = 0; k < N_SUMS; k++) sum[k] = vec_set((float)k);
    for (int64_t i = 0; i < n_rounds; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < N_SUMS; k++) sum[k] = vec_fma(sum[k], a, b);
    }
    for (int k = 1; k < N_SUMS; k++) sum[0] += sum[k];
    return vec_sum(sum[0]);
}

/* Seconds that n_rounds take when all threads run them at the same time. */
static double time_fma(int64_t n_rounds, int n_threads, volatile float *sink) {
    uint64_t start = timer_now_ns();
#pragma omp parallel for num_threads(n_threads) schedule(static, 1)
    for (int thread = 0; thread < n_threads; thread++) {
        float result = fma_loop(n_rounds, 0.999f, 0.001f);
        if (result == 0.0f) *sink = result; /* never: keeps the loop alive without a race */
    }
    return timer_seconds_since(start);
}

double bench_peak_flops(int n_threads) {
    volatile float sink = 0.0f;
    double best = 0.0;
    int64_t n_rounds = 1 << 18;
    for (int i = 0; i <= N_TRIES; i++) {
        double seconds = time_fma(n_rounds, n_threads, &sink);
        double rate =
            2.0 * VEC_LANES * N_SUMS * (double)n_rounds * (double)n_threads / (seconds > 0.0 ? seconds : 1.0);
        if (i > 0 && rate > best) best = rate; /* the first run starts the threads */
        if (i == 0 && seconds > 0.0) n_rounds = 1 + (int64_t)((double)n_rounds * 5e-3 / seconds);
    }
    return best;
}

/* ---- memory */

typedef void (*MemoryLoop)(char *bytes, size_t n_bytes, volatile float *sink);

static void clear_bytes(char *bytes, size_t n_bytes, volatile float *sink) {
    (void)sink;
    memset(bytes, 0, n_bytes);
}

static void copy_half(char *bytes, size_t n_bytes, volatile float *sink) {
    (void)sink;
    memcpy(bytes, bytes + n_bytes / 2, n_bytes / 2);
}

static void add_up(char *bytes, size_t n_bytes, volatile float *sink) {
    enum { N_STREAMS = 8 };
    const float *x = (const float *)(void *)bytes;
    vec sum[N_STREAMS] = {{0}};
    for (size_t i = 0; i + N_STREAMS * VEC_LANES <= n_bytes / sizeof(float); i += N_STREAMS * VEC_LANES) {
#pragma GCC unroll 8
        for (int k = 0; k < N_STREAMS; k++) sum[k] += vec_load(x + i + (size_t)k * VEC_LANES);
    }
    for (int k = 1; k < N_STREAMS; k++) sum[0] += sum[k];
    float total = vec_sum(sum[0]);
    if (total != 0.0f) *sink = total; /* never: all of them are 0 */
}

/* Every thread works on a part of its own, which it has also touched first. */
static void run_parts(MemoryLoop loop, char *bytes, size_t part_bytes, int n_threads, volatile float *sink) {
#pragma omp parallel for num_threads(n_threads) schedule(static, 1)
    for (int thread = 0; thread < n_threads; thread++) {
        loop(bytes + (size_t)thread * part_bytes, part_bytes, sink);
    }
}

static Status time_memory(MemoryLoop loop, size_t n_bytes, int n_threads, double *bytes_per_s, Error *error) {
    const size_t line_bytes = 4096;
    size_t part_bytes = (n_bytes / (size_t)n_threads / line_bytes + 1) * line_bytes;
    size_t total_bytes = part_bytes * (size_t)n_threads;
    volatile float sink = 0.0f;
    void *memory;
    TRY(memory_alloc(&memory, total_bytes, "measuring the memory's speed", error));
    run_parts(clear_bytes, memory, part_bytes, n_threads, &sink);
    *bytes_per_s = 0.0;
    int n_passes = 1; /* so many that a try lasts a few milliseconds */
    for (int i = 0; i <= N_TRIES; i++) {
        uint64_t start = timer_now_ns();
        for (int pass = 0; pass < n_passes; pass++) run_parts(loop, memory, part_bytes, n_threads, &sink);
        double seconds = timer_seconds_since(start);
        double rate = (double)n_passes * (double)total_bytes / (seconds > 0.0 ? seconds : 1.0);
        if (i > 0 && rate > *bytes_per_s) *bytes_per_s = rate;
        if (i == 0 && seconds > 0.0 && seconds < 5e-3) n_passes = 1 + (int)(5e-3 / seconds);
    }
    memory_free(memory, total_bytes);
    return STATUS_OK;
}

Status bench_copy_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error) {
    return time_memory(copy_half, n_bytes, n_threads, bytes_per_s, error);
}

/* Servers have last caches of hundreds of MiB. What one does not say (0) is taken for such a one. */
Status bench_memory_bandwidth(int n_threads, double *bytes_per_s, Error *error) {
    const size_t least = (size_t)512 << 20, unknown = (size_t)256 << 20, times = 8;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t n_bytes = times * (cache > 0 ? (size_t)cache : unknown);
    uint64_t most = memory_available_bytes() / 4;
    if (n_bytes < least) n_bytes = least;
    if (n_bytes > most) n_bytes = (size_t)most;
    return bench_copy_bandwidth(n_bytes, n_threads, bytes_per_s, error);
}

Status bench_read_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error) {
    return time_memory(add_up, n_bytes, n_threads, bytes_per_s, error);
}
