/* compress, combine and expand of the CPU give the bits of the plain functions: every format, whatever the
 * numbers are (equal ones, nearly equal ones, zeros of both signs, what is not finite), with limits and
 * without, several ranks, slices that end within a block, by one thread and by two. */
#include "backend/cpu/kernels.h"
#include "ops/compress/compress.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum { ORDINARY, EQUAL, NEARLY_EQUAL, FEW, ZEROS, NOT_FINITE, N_FILLS } Fill;

enum { N_RANKS = 3 };

static uint32_t state;

static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float number(Fill fill) {
    uint32_t r = draw();
    float sign = r & 1 ? 1.0f : -1.0f;
    switch (fill) {
    case ORDINARY: return sign * (float)(r >> 1) / (float)(1 << 22);
    case EQUAL: return sign * (float)(r >> 1 & 3);
    case NEARLY_EQUAL: return sign * as_float(0x3f800000 + (r >> 1 & 0xff)); /* in the last 8 bits */
    case FEW: return r % 16 ? sign * 0.0f : sign * (float)r;
    case ZEROS: return sign * 0.0f;
    default: return r % 40 == 1 ? sign * INFINITY : r % 50 == 2 ? NAN : sign * (float)r;
    }
}

/* Tensors of a graph in memory of their own. */
typedef struct {
    void *data[32];
} Memory;

static void fill_memory(const Graph *graph, Memory *memory, Fill fill) {
    for (int i = 0; i < graph->n_tensors; i++) {
        const Tensor *tensor = graph->tensor[i];
        int64_t n = tensor_count(tensor);
        float *data = memory->data[i] = test_calloc((size_t)n, sizeof *data);
        for (int64_t k = 0; tensor->dtype == DTYPE_F32 && k < n; k++)
            data[k] = tensor->place == PLACE_OPTIMIZER ? (float)(draw() % 5) : number(fill);
    }
}

static void run(const Graph *graph, const Memory *memory, int n_threads, bool is_plain) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        Error error = {0};
        KernelCall call = {.node = node, .n_threads = n_threads};
        for (int k = 0; k < node->n_inputs; k++)
            if (node->input[k]) call.in[k] = memory->data[node->input[k]->id];
        for (int k = 0; k < node->n_outputs; k++)
            if (node->output[k]) call.out[k] = memory->data[node->output[k]->id];
        Kernel kernel = is_plain ? node->op->reference : cpu_plain_kernel(node->op);
        assert_int_equal(kernel(&call, &error), STATUS_OK);
    }
}

/* What is not a number may have any sign and payload. */
static bool are_alike(const uint32_t *a, const uint32_t *b, int64_t n, int64_t *at) {
    for (*at = 0; *at < n; ++*at)
        if (a[*at] != b[*at] && !(isnan(as_float(a[*at])) && isnan(as_float(b[*at])))) return false;
    return true;
}

static Tensor *floats(Graph *graph, Place place, int64_t n, const char *name) {
    return graph_tensor(graph, place, DTYPE_F32, SHAPE(n), "%s", name);
}

/* A rank's slices; what the owner of the first makes of messages of N_RANKS, all this rank's own (so the
 * slices are as long); what all say. */
static Graph *record(Codec codec, int64_t n, bool is_momentum, const int64_t *border) {
    Graph *graph = graph_new();
    int64_t part = n / N_RANKS;
    CompressAttributes all = {
        .codec = codec, .n_slices = N_RANKS, .border = border, .gain = 0.3f, .keep = 0.9f, .bound = 2.0f};
    CompressAttributes mean = all;
    mean.gain = 1.0f / N_RANKS;
    CompressTensors tensors = {.gradient = floats(graph, PLACE_STATE, n, "gradient"),
                               .momentum = is_momentum ? floats(graph, PLACE_STATE, n, "momentum") : NULL,
                               .variance = is_momentum ? floats(graph, PLACE_OPTIMIZER, n, "variance") : NULL,
                               .error = floats(graph, PLACE_STATE, n, "error")};
    CompressTensors owner = {.variance = is_momentum ? floats(graph, PLACE_OPTIMIZER, part, "slice") : NULL,
                             .error = floats(graph, PLACE_STATE, part, "owner")};
    Tensor *words = op_compress(graph, &tensors, &all);
    Tensor *combined =
        graph_tensor(graph, PLACE_STATE, DTYPE_I32, SHAPE(codec_words(&codec, part)), "combined");
    op_combine(graph, words, &owner, combined, &mean);
    op_expand(graph, words, &(CompressTensors){.variance = tensors.variance},
              floats(graph, PLACE_STATE, n, "numbers"), &all);
    CompressAttributes sum = mean;
    sum.border = NULL;
    op_expand(graph, words, &(CompressTensors){.variance = owner.variance},
              floats(graph, PLACE_STATE, part, "sum"), &sum);
    return graph;
}

static void compare(Codec codec, int64_t n, bool is_momentum, Fill fill, int n_threads) {
    Memory ours, plain;
    Error error = {0};
    int64_t border[N_RANKS + 1], at;
    for (int i = 0; i <= N_RANKS; i++) border[i] = n / N_RANKS * i;
    Graph *graph = record(codec, n, is_momentum, border);
    if (graph_status(graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    state = (uint32_t)n;
    fill_memory(graph, &ours, fill);
    state = (uint32_t)n;
    fill_memory(graph, &plain, fill);
    run(graph, &ours, n_threads, false);
    run(graph, &plain, 1, true);
    for (int i = 0; i < graph->n_tensors; i++) {
        if (!are_alike(ours.data[i], plain.data[i], tensor_count(graph->tensor[i]), &at))
            fail_msg("format %d (%d kept), %lld numbers of fill %d, %d threads: %s differs at %lld",
                     (int)codec.kind, codec.n_kept, (long long)n, (int)fill, n_threads,
                     graph->tensor[i]->name, (long long)at);
        test_free(ours.data[i]);
        test_free(plain.data[i]);
    }
    graph_free(graph);
}

/* A processor without fused multiply-add rounds twice where the plain functions round once. */
static void same_bits(void **unused) {
    (void)unused;
#if !defined(__FMA__)
    skip();
#endif
    static const Codec codecs[] = {{CODEC_SIGN, 0}, {CODEC_INT8, 0}, {CODEC_F16, 0}, {CODEC_TOP, 1},
                                   {CODEC_TOP, 2},  {CODEC_TOP, 3},  {CODEC_TOP, 7}, {CODEC_TOP, 8},
                                   {CODEC_TOP, 13}, {CODEC_TOP, 32}, {CODEC_TOP, 64}};
    static const int64_t lengths[] = {N_RANKS, 64 * N_RANKS, 127 * N_RANKS, 1100 * N_RANKS, 33001 * N_RANKS};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (Fill fill = 0; fill < N_FILLS; fill++)
                for (int way = 0; way < 4 && (lengths[l] < 10000 || fill <= NEARLY_EQUAL); way++)
                    compare(codecs[c], lengths[l], way & 1, fill, 1 + (way >> 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
