/* The CUDA backend beside its kernels: copies, memory that runs out, indices that only the device sees,
 * captures, the same bits twice, the CPU's draws in stochastic rounding, residual_norm with the bits of
 * its parts. Exit code 77 without a GPU. */
#include "backend/cpu/cpu.h"
#include "backend/cuda/kernels.h"
#include "op_cases.h"
#include "ops/update/update.h"
#include "residual_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Backend gpu;

static void assert_ok(Status status, const Error *error) {
    if (status != STATUS_OK) fail_msg("%s", error->text);
}

static char *pattern(size_t n_bytes, uint64_t seed) {
    char *bytes = malloc(n_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = (char)test_hash("bytes", seed * 1000003u + i);
    return bytes;
}

static void test_copies(void **state) {
    (void)state;
    static const size_t sizes[] = {
        0,      1, 2, 63, 64, 65, 4097, 512 * 1024, 512 * 1024 + 1, 1 << 20, 1500007, 2 << 20, (2 << 20) + 3,
        9000001};
    Error error = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n_bytes = sizes[i];
        void *memory = NULL;
        assert_ok(gpu.allocate(gpu.context, n_bytes + 1, "test", &memory, &error), &error);
        char *sent = pattern(n_bytes, i), *got = calloc(1, n_bytes + 1);
        assert_ok(gpu.download(gpu.context, got, memory, n_bytes, &error), &error);
        for (size_t k = 0; k < n_bytes; k++) assert_int_equal(got[k], 0); /* memory is zeroed */
        assert_ok(gpu.upload(gpu.context, memory, sent, n_bytes, &error), &error);
        assert_ok(gpu.download(gpu.context, got, memory, n_bytes, &error), &error);
        assert_memory_equal(sent, got, n_bytes + 0);
        gpu.release(gpu.context, memory, n_bytes + 1);
        free(sent);
        free(got);
    }
}

/* Many small uploads, with the host's memory overwritten at once: round the ring of pinned memory, and on. */
static void test_small_uploads(void **state) {
    (void)state;
    enum { N = 300, EACH = 40000 };
    Error error = {0};
    char *memory = NULL, *got = malloc((size_t)N * EACH);
    assert_ok(gpu.allocate(gpu.context, (size_t)N * EACH, "test", (void **)&memory, &error), &error);
    for (int i = 0; i < N; i++) {
        char *sent = pattern(EACH, (uint64_t)i);
        assert_ok(gpu.upload(gpu.context, memory + (size_t)i * EACH, sent, EACH, &error), &error);
        memset(sent, 0, EACH);
        free(sent);
    }
    assert_ok(gpu.download(gpu.context, got, memory, (size_t)N * EACH, &error), &error);
    for (int i = 0; i < N; i++) {
        char *sent = pattern(EACH, (uint64_t)i);
        assert_memory_equal(sent, got + (size_t)i * EACH, EACH);
        free(sent);
    }
    gpu.release(gpu.context, memory, (size_t)N * EACH);
    free(got);
}

/* What was enqueued before an upload still sees the bytes of before, whether they cross the bus early or in
 * their turn; the device is busy, so that nothing is in time by chance. */
static void test_uploads_keep_their_turn(void **state) {
    (void)state;
    enum { N = 120, SIZE = 100000, BUSY = 256 << 20 };
    static const size_t sizes[] = {16, UPLOAD_EARLY_BYTES - 1, UPLOAD_EARLY_BYTES, 4, 90000};
    Error error = {0};
    CudaContext *cuda = gpu.context;
    char *tensor, *seen, *busy, *expected = calloc(1, SIZE), *got = malloc((size_t)N * SIZE);
    assert_ok(gpu.allocate(gpu.context, SIZE, "test", (void **)&tensor, &error), &error);
    assert_ok(gpu.allocate(gpu.context, (size_t)N * SIZE, "test", (void **)&seen, &error), &error);
    assert_ok(gpu.allocate(gpu.context, BUSY, "test", (void **)&busy, &error), &error);
    for (int i = 0; i < 100; i++) assert_int_equal(cudaMemsetAsync(busy, i, BUSY, cuda->stream), cudaSuccess);
    for (int i = 0; i < N; i++) {
        size_t n_bytes = sizes[i % 5];
        char *sent = pattern(n_bytes, (uint64_t)i);
        assert_ok(gpu.upload(gpu.context, tensor + i, sent, n_bytes, &error), &error);
        assert_int_equal(
            cudaMemcpyAsync(seen + (size_t)i * SIZE, tensor, SIZE, cudaMemcpyDeviceToDevice, cuda->stream),
            cudaSuccess);
        free(sent);
    }
    assert_ok(gpu.download(gpu.context, got, seen, (size_t)N * SIZE, &error), &error);
    for (int i = 0; i < N; i++) {
        char *sent = pattern(sizes[i % 5], (uint64_t)i);
        memcpy(expected + i, sent, sizes[i % 5]);
        assert_memory_equal(expected, got + (size_t)i * SIZE, SIZE);
        free(sent);
    }
    gpu.release(gpu.context, tensor, SIZE);
    gpu.release(gpu.context, seen, (size_t)N * SIZE);
    gpu.release(gpu.context, busy, BUSY);
    free(expected);
    free(got);
}

static void test_too_much(void **state) {
    (void)state;
    Error error = {0};
    void *memory = NULL;
    assert_int_equal(gpu.allocate(gpu.context, (size_t)1 << 50, "activations", &memory, &error),
                     STATUS_FAILED);
    assert_non_null(strstr(error.text, "activations"));
    assert_non_null(strstr(error.text, "free"));
    assert_true(gpu.free_bytes(gpu.context) > 0);
    test_copies(NULL); /* the device goes on working */
    Backend other;
    error = (Error){0};
    assert_int_equal(backend_cuda_open(&other, 1000, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "no GPU 1000"));
}

/* ---- running a case's nodes on the GPU ---- */

/* Every tensor of the graph in the GPU's memory, filled as the case says; scratch of each node beside it. */
typedef struct {
    OpCase test;
    TestBuffer *buffer; /* by tensor id */
} GpuCase;

static void *gpu_at(const GpuCase *c, const Tensor *tensor) {
    return tensor ? test_buffer_data(&c->buffer[tensor->id]) : NULL;
}

static GpuCase gpu_case_open(const OpSpec *spec) {
    GpuCase c = {0};
    case_open(&c.test, spec);
    Graph *graph = c.test.graph;
    TestMemory memory = test_memory_open(graph);
    case_fill(&c.test, &memory);
    c.buffer = calloc((size_t)graph->n_tensors + 1, sizeof *c.buffer);
    assert_non_null(c.buffer);
    for (int i = 0; i < graph->n_tensors; i++) {
        const Tensor *tensor = graph->tensor[i];
        c.buffer[i] = test_buffer_open(&gpu, test_memory_at(&memory, tensor), tensor_bytes(tensor));
    }
    test_memory_close(&memory);
    return c;
}

static void gpu_case_close(GpuCase *c) {
    for (int i = 0; i < c->test.graph->n_tensors; i++) test_buffer_close(&c->buffer[i]);
    free(c->buffer);
    case_close(&c->test);
}

static Status gpu_case_run(GpuCase *c, Error *error) {
    for (int n = 0; n < c->test.graph->n_nodes; n++) {
        const Node *node = c->test.graph->node[n];
        if (node->op == &OP_TEST_LOSS) continue;
        KernelCall call = {.node = node, .context = gpu.context, .n_threads = 1};
        for (int i = 0; i < node->n_inputs; i++) call.in[i] = gpu_at(c, node->input[i]);
        for (int k = 0; k < node->n_outputs; k++) call.out[k] = gpu_at(c, node->output[k]);
        size_t n_bytes = traits_scratch_bytes(&gpu.traits, node);
        TestBuffer scratch = test_buffer_open(&gpu, NULL, n_bytes);
        call.scratch = n_bytes ? test_buffer_data(&scratch) : NULL;
        Status status = gpu.kernel(gpu.context, node)(&call, error);
        if (status == STATUS_OK) status = gpu.synchronize(gpu.context, error);
        test_buffer_close(&scratch);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static void set_word(const GpuCase *c, const char *name, size_t index, int32_t value) {
    Error error = {0};
    char *at = gpu_at(c, case_find(&c->test, name));
    assert_ok(gpu.upload(gpu.context, at + index * sizeof value, &value, sizeof value, &error), &error);
}

static void check_fault(const OpSpec *spec, const char *name, size_t index, int32_t value,
                        const char *words) {
    GpuCase c = gpu_case_open(spec);
    set_word(&c, name, index, value);
    Error error = {0};
    assert_int_equal(gpu_case_run(&c, &error), STATUS_FAILED);
    if (!strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
    error = (Error){0};
    assert_ok(gpu.synchronize(gpu.context, &error), &error); /* it is said once */
    gpu_case_close(&c);
}

static void test_wrong_indices(void **state) {
    (void)state;
    const OpSpec embedding = {"e", build_embedding, {2, 5, 16, 40, 9}, CASE_POSITIONS | CASE_START, 0};
    check_fault(&embedding, "tokens", 3, 40, "token 40 is not one of the table's 40 rows");
    check_fault(&embedding, "tokens", 0, -1, "token -1");
    check_fault(&embedding, "start", 1, 5, "position 9 is not one of the table's 9 rows");
    const OpSpec gather = {"g", build_gather, {9, 13, 5}, 0, 0};
    check_fault(&gather, "rows", 2, 9, "row 9 of a tensor of 9 rows");
    const OpSpec entropy = {"c", build_cross_entropy, {7, 37}, 0, 0};
    check_fault(&entropy, "targets", 6, 37, "target 37 of a vocabulary of 37");
    const OpSpec cached = {"a", build_attention_cached, {2, 3, 2, 2, 8, 16}, 0, 0};
    check_fault(&cached, "start", 0, 14, "position 16 of a cache of 16");
}

/* ---- captures ---- */

static void test_capture(void **state) {
    (void)state;
    const OpSpec spec = {"copy", build_copy, {30, 37}, CASE_FIXED_X, 0};
    GpuCase c = gpu_case_open(&spec);
    const Node *node = c.test.graph->node[0];
    KernelCall call = {.node = node,
                       .in = {gpu_at(&c, node->input[0])},
                       .out = {gpu_at(&c, node->output[0])},
                       .add = {true}};
    call.context = gpu.context;
    Error error = {0};
    float zeros[30 * 37] = {0}, got[30 * 37], x[30 * 37], milliseconds = -1.0f;
    void *capture = NULL, *events[2] = {0};
    assert_ok(gpu.upload(gpu.context, call.out[0], zeros, sizeof zeros, &error), &error);
    assert_ok(cuda_capture_begin(gpu.context, &error), &error);
    assert_ok(cuda_copy(&call, &error), &error);
    assert_ok(cuda_copy(&call, &error), &error);
    assert_ok(cuda_capture_end(gpu.context, &capture, &error), &error);
    for (int i = 0; i < 2; i++) assert_ok(cuda_event_new(gpu.context, &events[i], &error), &error);
    assert_ok(cuda_event_record(gpu.context, events[0], &error), &error);
    for (int i = 0; i < 3; i++) assert_ok(cuda_replay(gpu.context, capture, &error), &error);
    assert_ok(cuda_event_record(gpu.context, events[1], &error), &error);
    assert_ok(cuda_elapsed_ms(gpu.context, events[0], events[1], &milliseconds, &error), &error);
    assert_true(milliseconds >= 0.0f);
    assert_ok(gpu.download(gpu.context, got, call.out[0], sizeof got, &error), &error);
    assert_ok(gpu.download(gpu.context, x, call.in[0], sizeof x, &error), &error);
    for (int i = 0; i < 30 * 37; i++) assert_float_equal(got[i], 6.0f * x[i], 1e-5);
    for (int i = 0; i < 2; i++) cuda_event_free(gpu.context, events[i]);
    cuda_capture_free(gpu.context, capture);

    assert_ok(cuda_capture_begin(gpu.context, &error), &error);
    cuda_capture_abandon(gpu.context);
    assert_ok(gpu.synchronize(gpu.context, &error), &error);
    gpu_case_close(&c);
}

/* ---- the same bits ---- */

static void test_same_bits(void **state) {
    (void)state;
    static const OpSpec specs[] = {
        {"embedding", build_embedding, {16, 256, 96, 65, 256}, CASE_POSITIONS, 0},
        {"layernorm", build_layernorm, {5000, 384}, CASE_BIAS, 0},
        {"linear", build_linear, {700, 256, 300}, CASE_BIAS | CASE_TANH | CASE_RESIDUAL, 0},
        {"attention", build_attention, {2, 150, 4, 2, 64}, 0, 0.1f},
        {"sparse attention", build_sparse_attention, {2, 300, 4, 2, 64, 4}, CASE_DOCUMENTS, 0.1f},
        {"embedding documents", build_embedding, {4, 300, 96, 65, 300}, CASE_POSITIONS | CASE_DOCUMENTS, 0},
        {"cross_entropy", build_cross_entropy, {300, 16403}, CASE_IGNORE, 0},
        {"squared_norm", build_squared_norm, {3000001}, 0, 0},
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        GpuCase first = gpu_case_open(&specs[i]), second = gpu_case_open(&specs[i]);
        Error error = {0};
        assert_ok(gpu_case_run(&first, &error), &error);
        assert_ok(gpu_case_run(&second, &error), &error);
        for (int t = 0; t < first.test.graph->n_tensors; t++) {
            const Tensor *tensor = first.test.graph->tensor[t];
            void *a = test_buffer_read(&first.buffer[t], tensor->name);
            void *b = test_buffer_read(&second.buffer[t], tensor->name);
            if (tensor_bytes(tensor) && memcmp(a, b, tensor_bytes(tensor)) != 0)
                fail_msg("%s of %s has other bits the second time", tensor->name, specs[i].label);
            free(a);
            free(b);
        }
        gpu_case_close(&first);
        gpu_case_close(&second);
    }
}

/* ---- stochastic rounding ---- */

/* An update in 16 bits on one backend; the words of outputs 0..2. */
static uint16_t *update_words(const Backend *backend, DType dtype, int k, int64_t *count) {
    const OpSpec spec = {"adamw", build_adamw, {20011}, CASE_FACTOR, 0};
    OpCase test;
    case_open(&test, &spec);
    Node node = *test.graph->node[0];
    ((UpdateElements *)node.attributes)->first_element =
        1000003; /* begins in the middle of a block of draws */
    KernelCall call = {.node = &node, .context = backend->context, .n_threads = backend->n_threads};
    TestBuffer in[3] = {0}, out[3] = {0};
    *count = spec.size[0];
    uint16_t *words = malloc((size_t)*count * sizeof *words);
    for (int i = 0; i < 3; i++) {
        bool is_half = i == 0;
        for (int64_t e = 0; e < *count; e++)
            words[e] = (uint16_t)(0x3C00u + test_hash("gradient", (uint64_t)e) % 1024u);
        const float hyper[N_HYPER] = {0.02f, 3.0f, 2.0f, 1e-3f}, factor = 0.375f;
        if (is_half) node.input[0]->dtype = dtype;
        in[i] = test_buffer_open(backend,
                                 is_half  ? (const void *)words
                                 : i == 1 ? (const void *)hyper
                                          : &factor,
                                 tensor_bytes(node.input[i]));
        node.output[i]->dtype = dtype;
        out[i] = test_buffer_open(backend, words, tensor_bytes(node.output[i]));
        call.in[i] = test_buffer_data(&in[i]);
        call.out[i] = test_buffer_data(&out[i]);
    }
    size_t n_bytes = traits_scratch_bytes(&backend->traits, &node);
    TestBuffer scratch = test_buffer_open(backend, NULL, n_bytes);
    call.scratch = test_buffer_data(&scratch);
    Error error = {0};
    assert_ok(backend->kernel(backend->context, &node)(&call, &error), &error);
    free(words);
    words = test_buffer_read(&out[k], "output");
    for (int i = 0; i < 3; i++) test_buffer_close(&in[i]), test_buffer_close(&out[i]);
    test_buffer_close(&scratch);
    case_close(&test);
    return words;
}

/* The same draws fall on values that differ in their last bits of f32 at most: nearly all words are the
 * same. */
static void test_stochastic_rounding(void **state) {
    (void)state;
    Backend cpu;
    Error error = {0};
    assert_ok(backend_cpu_open(&cpu, 1, &error), &error);
    for (int k = 0; k < 6; k++) {
        int64_t count;
        DType dtype = k < 3 ? DTYPE_BF16 : DTYPE_F16;
        uint16_t *ours = update_words(&gpu, dtype, k % 3, &count),
                 *theirs = update_words(&cpu, dtype, k % 3, &count);
        int64_t n_same = 0;
        for (int64_t i = 0; i < count; i++) n_same += ours[i] == theirs[i];
        if (n_same < count * 99 / 100) {
            fail_msg("output %d in %s: %lld of %lld words are the CPU's", k % 3, dtype_info(dtype)->name,
                     (long long)n_same, (long long)count);
        }
        free(ours);
        free(theirs);
    }
    cpu.close(cpu.context);
}

static void test_residual_norm(void **state) {
    (void)state;
    residual_norm_has_the_bits_of_its_parts(&gpu);
}

int main(void) {
    char words[256];
    Error error = {0};
    if (!backend_cuda_devices(words, sizeof words)) {
        printf("skipped: %s\n", words);
        return 77;
    }
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_small_uploads),
        cmocka_unit_test(test_uploads_keep_their_turn),
        cmocka_unit_test(test_too_much),
        cmocka_unit_test(test_wrong_indices),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_stochastic_rounding),
        cmocka_unit_test(test_residual_norm),
    };
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    gpu.close(gpu.context);
    return result;
}
