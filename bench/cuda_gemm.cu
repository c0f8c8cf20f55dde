/* GEMMs on the GPU: every GEMM of a training step of three GPT-2 sizes and of `mini` (64 x 256 tokens), and
 * those of decoding.
 *
 *   cuda_gemm            everything below
 *   cuda_gemm train [M]  forward, input gradient and weight gradient of each layer; what the library does
 *                        beside; of all models or of M (124M, 350M, 1558M, mini)
 *   cuda_gemm head       the last layer: a vocabulary that is no multiple of 8, and how many rows at a time
 *   cuda_gemm decode     few rows: our kernels and the library's best, alone and as a whole stack of layers
 *   cuda_gemm start      how long it takes to choose the kernels of a whole program
 *
 * A line of train and head says the rate of the library's first proposal, of the fastest proposal, and of the
 * fastest with the same bits as the first, which is the one that pgpt takes; and which proposal that is.
 * Results are checked elsewhere (tests/cuda). Data are random: GEMMs of zeros are faster. */
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/gemm/gemm_skinny.h"
#include "backend/cuda/runtime/device.cuh"
#include "base/system/timer.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int64_t tokens, channels, vocabulary;
    int layers;
} Model;

enum { N_MODELS = 4, VOCABULARY = 50257, PADDED = 50304, CHARACTERS = 72, HEAD_ROWS = 16384 };
static const Model MODELS[N_MODELS] = {{"124M", 65536, 768, PADDED, 12},
                                       {"350M", 32768, 1024, PADDED, 24},
                                       {"1558M", 16384, 1600, PADDED, 48},
                                       {"mini", 16384, 384, CHARACTERS, 6}};

typedef struct {
    CudaContext *context;
    char *x, *y, *z, *weight, *bias; /* random bf16, large enough for everything */
    char *gradient, *sums;           /* for f32 */
    size_t x_bytes, y_bytes, weight_bytes;
} Bench;

static void must(Status status, const Error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "cuda_gemm: %s\n", error->text);
    exit(1);
}

static void must_cuda(cudaError_t code, const char *what) {
    Error error = {};
    must(cuda_check(code, what, &error), &error);
}

/* Pairs of bf16 of about one sixteenth, which are harmless as f32 too. */
static __global__ void fill_kernel(unsigned *words, int64_t count) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned long long h = (unsigned long long)(i + 1) * 0x9E3779B97F4A7C15ull;
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
        float low = (float)(int)(h & 0xFFFF) / 524288.0f - 0.0625f,
              high = (float)(int)((h >> 20) & 0xFFFF) / 524288.0f - 0.0625f;
        words[i] = pair_of_floats(low, high, bf16());
    }
}

static char *random_memory(const Bench *bench, size_t n_bytes) {
    char *memory = NULL;
    must_cuda(cudaMalloc((void **)&memory, n_bytes), "memory for the benchmark");
    fill_kernel<<<1024, 256, 0, bench->context->stream>>>((unsigned *)memory, (int64_t)(n_bytes / 4));
    must_cuda(cudaGetLastError(), "filling memory");
    return memory;
}

/* ---- surveys ---- */

static double rate(const Gemm *p, float microseconds) {
    return 2.0 * (double)p->rows * (double)p->columns * (double)p->inner / (double)microseconds * 1e-6;
}

static double print_line(const Bench *bench, const char *model, const char *layer, const char *which,
                         const Gemm *p, const GemmCandidate *candidate, int n) {
    char text[160];
    int first = 0, same = 0;
    while (first < n - 1 && candidate[first].rank) first++;
    while (same < first && candidate[same].bits != candidate[first].bits) same++;
    printf("%-6s %-6s %-28s %5.0f %5.0f %5.0f  %8.1f us  of %2d: %2d, same %2d  %s\n", model, layer, which,
           rate(p, candidate[first].microseconds), rate(p, candidate[0].microseconds),
           rate(p, candidate[same].microseconds), (double)candidate[same].microseconds, n, candidate[0].rank,
           candidate[same].rank,
           gemm_candidate_describe(bench->context, &candidate[same], text, sizeof text));
    fflush(stdout);
    return (double)candidate[same].microseconds;
}

/* Prints a line; returns the microseconds of the choice. */
static double line(const Bench *bench, const char *model, const char *layer, const char *which,
                   const Gemm *p) {
    GemmDescription description;
    GemmCandidate candidate[GEMM_MOST_CANDIDATES];
    Error error = {};
    double microseconds = 0.0;
    must(gemm_describe(bench->context, p, &description, &error), &error);
    int n = gemm_candidates(bench->context, p, &description, candidate, GEMM_MOST_CANDIDATES);
    must(gemm_survey(bench->context, p, &description, candidate, n, &error), &error);
    if (n) microseconds = print_line(bench, model, layer, which, p, candidate, n);
    else printf("%-6s %-6s %-28s there is none\n", model, layer, which);
    gemm_description_free(&description);
    return microseconds;
}

static Gemm forward_of(const Bench *bench, int64_t rows, int64_t inner, int64_t columns) {
    Gemm p = {};
    p.rows = rows;
    p.columns = columns;
    p.inner = inner;
    p.transpose_b = true;
    p.a_type = p.b_type = p.c_type = p.vector_type = DTYPE_BF16;
    p.a = bench->x;
    p.b = bench->weight;
    p.c = bench->y;
    return p;
}

static Gemm input_gradient_of(const Bench *bench, int64_t rows, int64_t inputs, int64_t outputs) {
    Gemm p = forward_of(bench, rows, outputs, inputs);
    p.transpose_b = false;
    p.a = bench->y;
    p.c = bench->x;
    return p;
}

static Gemm weight_gradient_of(const Bench *bench, int64_t rows, int64_t inputs, int64_t outputs) {
    Gemm p = forward_of(bench, outputs, rows, inputs);
    p.transpose_a = true;
    p.transpose_b = false;
    p.c_type = p.vector_type = DTYPE_F32;
    p.a = bench->y;
    p.b = bench->x;
    p.c = bench->gradient;
    return p;
}

/* How long a sum of columns takes, the other way to the gradient of a bias. */
static void column_sums(const Bench *bench, const char *model, const char *layer, int64_t rows,
                        int64_t columns) {
    Error error = {};
    CudaContext *context = bench->context;
    void *begin, *end;
    float milliseconds = 0.0f;
    enum { RUNS = 10 };
    must(cuda_event_new(context, &begin, &error), &error);
    must(cuda_event_new(context, &end, &error), &error);
    for (int i = -2; i < RUNS; i++) {
        if (i == 0) must(cuda_event_record(context, begin, &error), &error);
        must(cuda_reduce_columns(context, bench->y, DTYPE_BF16, rows, columns, bench->gradient, DTYPE_F32,
                                 false, bench->sums, &error),
             &error);
    }
    must(cuda_event_record(context, end, &error), &error);
    must(cuda_elapsed_ms(context, begin, end, &milliseconds, &error), &error);
    double us = 1000.0 * (double)milliseconds / RUNS;
    printf("%-6s %-6s %-26s %8.1f us  %.2f TB/s\n", model, layer, "sums of columns", us,
           2.0 * (double)rows * (double)columns / us * 1e-6);
    cuda_event_free(context, begin);
    cuda_event_free(context, end);
}

static double layer_lines(const Bench *bench, const Model *m, const char *layer, int64_t inputs,
                          int64_t outputs, GemmEpilogue epilogue, bool has_residual) {
    int64_t N = m->tokens;
    Gemm p = forward_of(bench, N, inputs, outputs);
    line(bench, m->name, layer, "forward", &p);
    p.epilogue = epilogue;
    p.vector = bench->bias;
    p.before = epilogue == EPILOGUE_BIAS_GELU ? bench->z : NULL;
    if (has_residual) p.addend = bench->z;
    double total =
        line(bench, m->name, layer, has_residual ? "forward, bias, residual" : "forward, bias", &p);
    p = input_gradient_of(bench, N, inputs, outputs);
    total += line(bench, m->name, layer, "input gradient", &p);
    if (inputs > outputs) { /* what gelu comes before */
        p.before = bench->z;
        p.epilogue = EPILOGUE_DGELU;
        line(bench, m->name, layer, "input gradient, slope", &p);
    }
    p = weight_gradient_of(bench, N, inputs, outputs);
    line(bench, m->name, layer, "weight gradient", &p);
    p.addend = p.c;
    total += line(bench, m->name, layer, "weight gradient, added", &p);
    column_sums(bench, m->name, layer, N, outputs);
    return total;
}

static double head_lines(const Bench *bench, const Model *m, const char *layer, int64_t rows,
                         int64_t vocabulary, int64_t stride) {
    Gemm p = forward_of(bench, rows, m->channels, vocabulary);
    p.c_stride = stride;
    double total = line(bench, m->name, layer, "forward", &p);
    p = input_gradient_of(bench, rows, m->channels, vocabulary);
    p.a_stride = stride;
    total += line(bench, m->name, layer, "input gradient", &p);
    p = weight_gradient_of(bench, rows, m->channels, vocabulary);
    p.a_stride = stride;
    p.addend = p.c;
    total += line(bench, m->name, layer, "weight gradient, added", &p);
    printf("%-6s %-6s rows %lld, vocabulary %lld, stride %lld: %.2f ms a 65536 rows\n", m->name, layer,
           (long long)rows, (long long)vocabulary, (long long)stride, total * 65536.0 / (double)rows * 1e-3);
    return total;
}

static void run_train(const Bench *bench, const char *model) {
    printf("TFLOP/s of the first proposal, the fastest, the fastest with the same bits\n");
    for (int i = 0; i < N_MODELS; i++) {
        const Model *m = &MODELS[i];
        int64_t C = m->channels;
        if (model && strcmp(model, m->name) != 0) continue;
        double total = layer_lines(bench, m, "qkv", C, 3 * C, EPILOGUE_BIAS, false);
        total += layer_lines(bench, m, "out", C, C, EPILOGUE_BIAS, true);
        total += layer_lines(bench, m, "fc", C, 4 * C, EPILOGUE_BIAS_GELU, false);
        total += layer_lines(bench, m, "proj", 4 * C, C, EPILOGUE_BIAS, true);
        double head = head_lines(bench, m, "head", HEAD_ROWS, m->vocabulary, 0);
        printf("%-6s layers %.1f ms, head %.1f ms a step\n\n", m->name, total * m->layers * 1e-3,
               head * (double)m->tokens / HEAD_ROWS * 1e-3);
    }
}

static void run_head(const Bench *bench) {
    const Model *m = &MODELS[0];
    for (int64_t rows = 1024; rows <= 32768; rows *= 2) head_lines(bench, m, "whole", rows, PADDED, 0);
    head_lines(bench, m, "odd", 4096, VOCABULARY, 0);
    head_lines(bench, m, "stride", 4096, VOCABULARY, PADDED);
    head_lines(bench, m, "even", 4096, VOCABULARY - 1, PADDED);
}

/* ---- choosing ---- */

static void choose(const Bench *bench, Gemm p) {
    Error error = {};
    must(cuda_gemm(bench->context, &p, &error), &error);
}

static void choose_layer(const Bench *bench, int64_t rows, int64_t inputs, int64_t outputs,
                         GemmEpilogue epilogue, bool has_residual) {
    Gemm p = forward_of(bench, rows, inputs, outputs);
    p.epilogue = epilogue;
    p.vector = bench->bias;
    p.before = bench->z;
    if (has_residual) p.addend = bench->z;
    choose(bench, p);
    choose(bench, input_gradient_of(bench, rows, inputs, outputs));
    p = weight_gradient_of(bench, rows, inputs, outputs);
    p.addend = p.c;
    choose(bench, p);
}

static void run_start(const Bench *bench) {
    for (int i = N_MODELS - 1; i >= 0; i--) {
        const Model *m = &MODELS[i];
        int64_t C = m->channels, N = m->tokens;
        Error error = {};
        uint64_t before = timer_now_ns();
        choose_layer(bench, N, C, 3 * C, EPILOGUE_BIAS, false);
        choose_layer(bench, N, C, C, EPILOGUE_BIAS, true);
        choose_layer(bench, N, C, 4 * C, EPILOGUE_BIAS_GELU, false);
        choose_layer(bench, N, 4 * C, C, EPILOGUE_BIAS, true);
        choose_layer(bench, m->vocabulary == PADDED ? 8192 : N, C, m->vocabulary, EPILOGUE_NONE, false);
        must(cuda_check(cudaStreamSynchronize(bench->context->stream), "waiting", &error), &error);
        printf("%-6s choosing takes %.0f ms\n", m->name, (double)(timer_now_ns() - before) * 1e-6);
    }
}

/* ---- decoding ---- */

typedef Status (*Enqueue)(const Bench *bench, const GemmSkinny *gemm, Error *error);

static Status enqueue_ours(const Bench *bench, const GemmSkinny *gemm, Error *error) {
    return cuda_gemm_skinny(bench->context, gemm, error);
}

static Status enqueue_library(const Bench *bench, const GemmSkinny *f, Error *error) {
    Gemm p = forward_of(bench, f->rows, f->inner, f->columns);
    p.a = f->x;
    p.b = f->weight;
    p.c = f->y;
    p.epilogue = EPILOGUE_BIAS;
    p.vector = f->bias;
    return cuda_gemm(bench->context, &p, error);
}

static GemmSkinny gemm_skinny_of(const Bench *bench, int64_t rows, int64_t inner, int64_t columns) {
    GemmSkinny f = {};
    f.x = bench->x;
    f.weight = bench->weight;
    f.bias = bench->bias;
    f.y = bench->y;
    f.dtype = f.bias_type = DTYPE_BF16;
    f.rows = rows;
    f.inner = inner;
    f.columns = columns;
    return f;
}

/* The GEMMs one after the other through all of the weights' memory, recorded; microseconds of one replay. */
static double replay(const Bench *bench, const GemmSkinny *gemm, int n_gemvs, int n_repeats,
                     Enqueue enqueue) {
    CudaContext *context = bench->context;
    Error error = {};
    void *capture = NULL, *begin, *end;
    size_t at = 0;
    for (int i = 0; i < n_gemvs; i++) must(enqueue(bench, &gemm[i], &error), &error);
    must(cuda_capture_begin(context, &error), &error);
    for (int i = 0; i < n_gemvs * n_repeats; i++) {
        GemmSkinny f = gemm[i % n_gemvs];
        size_t n_bytes = (size_t)(f.columns * f.inner * 2 + 255) / 256 * 256;
        if (at + n_bytes > bench->weight_bytes) at = 0;
        f.weight = bench->weight + at;
        at += n_bytes;
        must(enqueue(bench, &f, &error), &error);
    }
    must(cuda_capture_end(context, &capture, &error), &error);
    must(cuda_event_new(context, &begin, &error), &error);
    must(cuda_event_new(context, &end, &error), &error);
    float best = 1e30f;
    for (int i = 0; i < 6; i++) {
        float milliseconds;
        must(cuda_event_record(context, begin, &error), &error);
        must(cuda_replay(context, capture, &error), &error);
        must(cuda_event_record(context, end, &error), &error);
        must(cuda_elapsed_ms(context, begin, end, &milliseconds, &error), &error);
        if (milliseconds < best) best = milliseconds;
    }
    cuda_event_free(context, begin);
    cuda_event_free(context, end);
    cuda_capture_free(context, capture);
    return 1000.0 * (double)best / n_repeats;
}

/* One line: ours after its predecessor and early, and the library's. */
static void decode_times(const Bench *bench, const Model *m, const char *layer, GemmSkinny *gemm, int n,
                         int n_repeats) {
    static const Enqueue ways[] = {enqueue_ours, enqueue_ours, enqueue_library};
    static const char *const names[] = {"ours", "PDL", "library"};
    double n_bytes = 0.0;
    for (int i = 0; i < n; i++) n_bytes += 2.0 * (double)gemm[i].inner * (double)gemm[i].columns;
    printf("%-6s %-6s rows %2lld ", m->name, layer, (long long)gemm->rows);
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < n; i++) gemm[i].may_use_pdl = way == 1;
        double us = replay(bench, gemm, n, n_repeats, ways[way]);
        printf(" %s %.2f us %.2f TB/s%s", names[way], us, n_bytes / us * 1e-6, way < 2 ? "," : "\n");
    }
    fflush(stdout);
}

static void decode_line(const Bench *bench, const Model *m, const char *layer, int64_t rows, int64_t inner,
                        int64_t columns) {
    GemmSkinny f = gemm_skinny_of(bench, rows, inner, columns);
    decode_times(bench, m, layer, &f, 1, 64);
}

/* All GEMMs of a token in their order. */
static void decode_stack(const Bench *bench, const Model *m, int64_t rows) {
    GemmSkinny stack[4 * 48 + 1];
    int64_t C = m->channels;
    int n = 0;
    for (int layer = 0; layer < m->layers; layer++) {
        stack[n++] = gemm_skinny_of(bench, rows, C, 3 * C);
        stack[n++] = gemm_skinny_of(bench, rows, C, C);
        stack[n++] = gemm_skinny_of(bench, rows, C, 4 * C);
        stack[n++] = gemm_skinny_of(bench, rows, 4 * C, C);
    }
    stack[n++] = gemm_skinny_of(bench, rows, C, VOCABULARY);
    decode_times(bench, m, "stack", stack, n, 4);
}

static void run_decode(const Bench *bench) {
    for (int i = 0; i < N_MODELS; i += 2) {
        const Model *m = &MODELS[i];
        int64_t C = m->channels;
        for (int64_t rows = 1; rows <= SKINNY_ROWS; rows *= 4) {
            decode_line(bench, m, "qkv", rows, C, 3 * C);
            decode_line(bench, m, "out", rows, C, C);
            decode_line(bench, m, "fc", rows, C, 4 * C);
            decode_line(bench, m, "proj", rows, 4 * C, C);
            decode_line(bench, m, "head", rows, C, VOCABULARY);
        }
        for (int64_t rows = 1; rows <= SKINNY_ROWS; rows *= 4) decode_stack(bench, m, rows);
    }
}

static bool is_known(const char *what, const char *model) {
    static const char *const parts[] = {"all", "train", "head", "decode", "start"};
    bool is_part = false, is_model = !model;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) is_part |= !strcmp(what, parts[i]);
    for (int i = 0; model && i < N_MODELS; i++) is_model |= !strcmp(model, MODELS[i].name);
    return is_part && is_model && (!model || !strcmp(what, "train"));
}

int main(int n_arguments, char **argument) {
    const char *what = n_arguments > 1 ? argument[1] : "all", *model = n_arguments > 2 ? argument[2] : NULL;
    if (!is_known(what, model)) {
        fprintf(stderr, "usage: cuda_gemm [train [124M | 350M | 1558M | mini] | head | decode | start]\n");
        return 2;
    }
    Error error = {};
    Backend backend;
    char text[200];
    must(backend_cuda_open(&backend, 0, &error), &error);
    Bench bench = {};
    bench.context = (CudaContext *)backend.context;
    bench.x_bytes = (size_t)65536 * 3072 * 2; /* 4C of 124M, the widest */
    bench.y_bytes = (size_t)32768 * PADDED * 2;
    bench.weight_bytes = (size_t)1 << 30;
    bench.x = random_memory(&bench, bench.x_bytes);
    bench.y = random_memory(&bench, bench.y_bytes);
    bench.z = random_memory(&bench, bench.x_bytes);
    bench.weight = random_memory(&bench, bench.weight_bytes);
    bench.bias = random_memory(&bench, 1 << 20);
    bench.gradient = random_memory(&bench, (size_t)PADDED * 1600 * 4);
    bench.sums = random_memory(&bench, 64 << 20);
    if (!bench.context->cublas) {
        fprintf(stderr,
                "cuda_gemm: there is nothing to compare without cuBLASLt: take cublas off PGPT_WITHOUT\n");
        return 2;
    }
    printf("%s, cuBLASLt %zu\n", backend_cuda_describe(&backend, text, sizeof text),
           bench.context->lt.GetVersion());
    bool all = strcmp(what, "all") == 0;
    if (all || strcmp(what, "start") == 0) run_start(&bench);
    if (all || strcmp(what, "decode") == 0) run_decode(&bench);
    if (all || strcmp(what, "train") == 0) run_train(&bench, model);
    if (all || strcmp(what, "head") == 0) run_head(&bench);
    cudaFree(bench.x);
    cudaFree(bench.y);
    cudaFree(bench.z);
    cudaFree(bench.weight);
    cudaFree(bench.bias);
    cudaFree(bench.gradient);
    cudaFree(bench.sums);
    backend.close(backend.context);
    return 0;
}
