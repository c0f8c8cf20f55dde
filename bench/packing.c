/* Packing and unpacking for --compress against the memory's copy rate: compress, combine and expand of every
 * format, and the steps between messages.
 *
 *     bench_packing [ELEMENTS [THREADS]]      default: 16777216 and 2
 *
 * Each operation's bytes, by its own rule, over its best time of several, by what a copy of as many bytes
 * reaches in the same run. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/kernels.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/limits.h"
#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"

enum { N_TRIES = 9, N_RANKS = 4 };

/* Memory for all tensors that a node names, as a run takes it (large pages where there are any), filled with
 * numbers of both signs and sizes; words are those that the first node made. */
static void *memory_of(const Tensor *tensor, bool is_positive) {
    size_t n = (size_t)tensor_count(tensor);
    void *memory;
    Error error = {0};
    if (memory_alloc(&memory, (size_t)tensor_bytes(tensor), tensor->name, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    float *data = memory;
    uint32_t state = 12345u + (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) / (float)(1 << 24) + 1e-3f;
        data[i] = tensor->dtype != DTYPE_F32 ? 0.0f : is_positive || state & 1 ? value : -value;
    }
    return data;
}

typedef struct {
    void *data[64]; /* by the tensor's number */
    double copy;    /* bytes/s */
    int n_threads;
} Bench;

static void run(Bench *bench, const Node *node, const char *format) {
    KernelCall call = {.node = node, .n_threads = bench->n_threads};
    double best = INFINITY;
    for (int i = 0; i < node->n_inputs; i++)
        if (node->input[i]) call.in[i] = bench->data[node->input[i]->id];
    for (int i = 0; i < node->n_outputs; i++)
        if (node->output[i]) call.out[i] = bench->data[node->output[i]->id];
    for (int i = 0; i < N_TRIES; i++) {
        Error error = {0};
        uint64_t start = timer_now_ns();
        if (cpu_plain_kernel(node->op)(&call, &error) != STATUS_OK) exit(1);
        best = fmin(best, timer_seconds_since(start));
    }
    double rate = op_cost(node).bytes / best;
    printf("%-10s %-12s %8.2f ms %7.2f GB/s %7.0f %%\n", format, node->op->name, 1e3 * best, 1e-9 * rate,
           100.0 * rate / bench->copy);
}

static void run_all(Bench *bench, Graph *graph, const char *format) {
    Error error = {0};
    if (graph_status(graph, &error) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", format, error.text);
        exit(1);
    }
    for (int i = 0; i < graph->n_tensors; i++)
        bench->data[i] = memory_of(graph->tensor[i], graph->tensor[i]->place == PLACE_OPTIMIZER);
    for (int i = 0; i < graph->n_nodes; i++) run(bench, graph->node[i], format);
    for (int i = 0; i < graph->n_tensors; i++)
        memory_free(bench->data[i], (size_t)tensor_bytes(graph->tensor[i]));
    graph_free(graph);
}

static Tensor *numbers(Graph *graph, Place place, int64_t n, const char *name) {
    return graph_tensor(graph, place, DTYPE_F32, SHAPE(n), "%s", name);
}

/* A rank's slices, one of N_RANKS as its owner has it, and what all say; a momentum where it is Adam's. */
static void bench_format(Bench *bench, const char *format, Codec codec, bool is_momentum, int64_t n) {
    Graph *graph = graph_new();
    int64_t border[N_RANKS + 1], part = n / N_RANKS;
    for (int i = 0; i <= N_RANKS; i++) border[i] = i * part;
    CompressAttributes all = {
        .codec = codec, .n_slices = N_RANKS, .border = border, .gain = 0.1f, .keep = 0.9f, .bound = 2.0f};
    Tensor *variance = is_momentum ? numbers(graph, PLACE_OPTIMIZER, n, "variance") : NULL;
    CompressTensors tensors = {.gradient = numbers(graph, PLACE_STATE, n, "gradient"),
                               .momentum = is_momentum ? numbers(graph, PLACE_STATE, n, "momentum") : NULL,
                               .variance = variance,
                               .error = numbers(graph, PLACE_STATE, n, "error")};
    CompressTensors owner = {.variance = is_momentum ? numbers(graph, PLACE_OPTIMIZER, part, "slice") : NULL,
                             .error = numbers(graph, PLACE_STATE, part, "owner")};
    CompressAttributes mean = all;
    mean.gain = 1.0f / N_RANKS;
    Tensor *words = op_compress(graph, &tensors, &all);
    op_combine(graph, words, &owner,
               graph_tensor(graph, PLACE_STATE, DTYPE_I32, SHAPE(codec_words(&codec, part)), "combined"),
               &mean);
    op_expand(graph, words, &(CompressTensors){.variance = variance},
              numbers(graph, PLACE_STATE, n, "numbers"), &all);
    run_all(bench, graph, format);
}

static void bench_local(Bench *bench, int64_t n) {
    Graph *graph = graph_new();
    const DecayRun runs[] = {{n / 2, true}, {n - n / 2, false}};
    LocalAttributes attributes = {.elements = {.n_runs = 2, .runs = runs},
                                  .beta1 = 0.9f,
                                  .gain = 0.1f,
                                  .bound = 2.0f,
                                  .epsilon = 1e-8f};
    LocalTensors tensors = {.gradient = numbers(graph, PLACE_GRADIENT, n, "gradient"),
                            .variance = numbers(graph, PLACE_OPTIMIZER, n, "variance"),
                            .numbers = numbers(graph, PLACE_OPTIMIZER, N_LOCAL, "numbers"),
                            .momentum = numbers(graph, PLACE_STATE, n, "momentum"),
                            .buffer = numbers(graph, PLACE_STATE, n, "buffer"),
                            .common = numbers(graph, PLACE_STATE, n, "common"),
                            .parameter = numbers(graph, PLACE_PARAMETER, n, "parameter")};
    op_local_step(graph, &tensors, &attributes);
    op_local_join(graph, &tensors, &attributes);
    run_all(bench, graph, "steps");
}

int main(int n_words, char **words) {
    int64_t n = n_words > 1 ? strtoll(words[1], NULL, 10) : 1 << 24;
    Bench bench = {.n_threads = n_words > 2 ? atoi(words[2]) : 2};
    Error error = {0};
    if (n < 64 * N_RANKS || n > INT32_MAX || n % (64 * N_RANKS) || bench.n_threads < 1) {
        fprintf(stderr, "usage: bench_packing [ELEMENTS, a multiple of %d [THREADS]]\n", 64 * N_RANKS);
        return 2;
    }
    if (bench_copy_bandwidth((size_t)n * 4 * sizeof(float), bench.n_threads, &bench.copy, &error) !=
        STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("%" PRId64 " numbers, %d threads; a copy: %.2f GB/s\n", n, bench.n_threads, 1e-9 * bench.copy);
    bench_format(&bench, "signs", (Codec){.kind = CODEC_SIGN}, true, n);
    bench_format(&bench, "int8", (Codec){.kind = CODEC_INT8}, false, n);
    bench_format(&bench, "f16", (Codec){.kind = CODEC_F16}, false, n);
    bench_format(&bench, "top 7", (Codec){.kind = CODEC_TOP, .n_kept = 7}, true, n);
    bench_format(&bench, "top 1", (Codec){.kind = CODEC_TOP, .n_kept = 1}, false, n);
    bench_local(&bench, n);
    return 0;
}
