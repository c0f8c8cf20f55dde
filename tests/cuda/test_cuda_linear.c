/* The GEMMs of a linear layer on the GPU against the reference, in every element type, at shapes that reach
 * each way of doing them: few rows, the library's own bias, residual and gelu, and the pass over y where the
 * library cannot; and GEMMs of few terms, alone, with gelu or with its slope, in a kernel of ours where the
 * GPU has the instructions for it.
 *
 * Inputs are rounded to the element type first, so what is compared is the arithmetic: with results in f32 it
 * is exact to the order of the sums, with 16-bit results to one rounding. */
#include "backend/cuda/gemm/gemm_fused.h"
#include "base/half.h"
#include "harness.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BIAS = 1, RESIDUAL = 2, TANH = 4, ERF = 8 };

typedef struct {
    int64_t rows, inputs, outputs;
    unsigned flags;
} LinearCase;

static const LinearCase CASES[] = {
    {1, 64, 8, 0},
    {1, 768, 2304, BIAS},
    {1, 3072, 768, BIAS | RESIDUAL},
    {3, 1600, 200, BIAS | TANH},
    {5, 72, 33, BIAS | ERF | RESIDUAL},
    {8, 512, 40, RESIDUAL},
    {9, 520, 65, BIAS | TANH | RESIDUAL},
    {16, 768, 1003, BIAS | TANH},
    {16, 104, 24, ERF},
    {7, 1024, 96, BIAS | RESIDUAL},
    {2, 128, 4300, BIAS | RESIDUAL},
    {11, 200, 4228, BIAS | TANH},
    {4, 33, 17, BIAS | RESIDUAL}, /* no whole vectors: not for the kernel for few rows */
    {17, 64, 64, BIAS},
    {130, 96, 200, BIAS | RESIDUAL},
    {128, 256, 512, BIAS | TANH},
    {128, 256, 512, TANH},
    {128, 256, 512, BIAS | ERF},
    {128, 256, 512, BIAS | TANH | RESIDUAL},
    {200, 120, 77, BIAS | TANH},
    {200, 120, 77, BIAS | RESIDUAL},
    {65, 31, 129, BIAS | ERF | RESIDUAL},
    {384, 400, 1600, BIAS | TANH},
    {2048, 64, 96, BIAS | RESIDUAL}, /* few outputs, many terms in the gradient of the weight */
};
enum { N_CASES = sizeof CASES / sizeof CASES[0] };

static Backend gpu;

static Activation activation_of(const LinearCase *c) {
    return c->flags & TANH ? ACTIVATION_GELU_TANH : c->flags & ERF ? ACTIVATION_GELU_ERF : ACTIVATION_NONE;
}

/* ---- values ---- */

static float rounded(float value, DType dtype) {
    if (dtype == DTYPE_BF16) return half_bf16_to_f32(half_bf16_from_f32(value));
    if (dtype == DTYPE_F16) return half_f16_to_f32(half_f16_from_f32(value));
    return value;
}

static float *values(const char *name, const Tensor *tensor, DType dtype, float scale) {
    int64_t count = tensor_count(tensor);
    float *value = malloc((size_t)count * sizeof *value + 1);
    assert_non_null(value);
    for (int64_t i = 0; i < count; i++) value[i] = rounded(scale * test_value(name, (uint64_t)i), dtype);
    return value;
}

/* The values as elements of the tensor, on the GPU. NULL values: poison. */
static TestBuffer to_gpu(const Tensor *tensor, const float *value) {
    int64_t count = tensor_count(tensor);
    if (!value || tensor->dtype == DTYPE_F32) return test_buffer_open(&gpu, value, tensor_bytes(tensor));
    uint16_t *half = malloc((size_t)count * sizeof *half + 1);
    assert_non_null(half);
    for (int64_t i = 0; i < count; i++)
        half[i] = tensor->dtype == DTYPE_BF16 ? half_bf16_from_f32(value[i]) : half_f16_from_f32(value[i]);
    TestBuffer buffer = test_buffer_open(&gpu, half, tensor_bytes(tensor));
    free(half);
    return buffer;
}

static float *from_gpu(const Tensor *tensor, const TestBuffer *buffer) {
    void *raw = test_buffer_read(buffer, tensor->name);
    if (tensor->dtype == DTYPE_F32) return raw;
    int64_t count = tensor_count(tensor);
    const uint16_t *half = raw;
    float *value = malloc((size_t)count * sizeof *value + 1);
    assert_non_null(value);
    for (int64_t i = 0; i < count; i++)
        value[i] = tensor->dtype == DTYPE_BF16 ? half_bf16_to_f32(half[i]) : half_f16_to_f32(half[i]);
    free(raw);
    return value;
}

/* ---- one node on both sides ---- */

/* inputs: values by input; old: what the outputs hold when they are added to, or NULL. */
typedef struct {
    const float *input[NODE_MAX_INPUTS], *old[NODE_MAX_OUTPUTS];
    bool add;
    int in_place; /* output 0 takes this input's memory; -1: none */
} Run;

static void run_reference(const Node *node, const Run *run, float **result) {
    KernelCall call = {.node = node, .n_threads = 1};
    for (int i = 0; i < node->n_inputs; i++) call.in[i] = (void *)run->input[i];
    for (int i = 0; i < node->n_outputs; i++) {
        if (!node->output[i]) continue;
        size_t n_bytes = (size_t)tensor_count(node->output[i]) * sizeof(float);
        result[i] = malloc(n_bytes + 1);
        assert_non_null(result[i]);
        if (run->add) memcpy(result[i], run->old[i], n_bytes);
        call.out[i] = result[i];
        call.add[i] = run->add;
    }
    Error error = {0};
    if (node->op->reference(&call, &error) != STATUS_OK) fail_msg("%s", error.text);
}

static void run_gpu(const Node *node, const Run *run, float **result) {
    TestBuffer in[NODE_MAX_INPUTS] = {0}, out[NODE_MAX_OUTPUTS] = {0}, scratch = {0};
    KernelCall call = {.node = node, .n_threads = 1, .context = gpu.context};
    for (int i = 0; i < node->n_inputs; i++) {
        if (!node->input[i]) continue;
        in[i] = to_gpu(node->input[i], run->input[i]);
        call.in[i] = test_buffer_data(&in[i]);
    }
    for (int i = 0; i < node->n_outputs; i++) {
        if (!node->output[i]) continue;
        bool shares = i == 0 && run->in_place >= 0;
        out[i] = shares ? in[run->in_place] : to_gpu(node->output[i], run->add ? run->old[i] : NULL);
        call.out[i] = test_buffer_data(&out[i]);
        call.add[i] = run->add;
    }
    size_t n_bytes = traits_scratch_bytes(&gpu.traits, node);
    if (n_bytes) {
        scratch = test_buffer_open(&gpu, NULL, n_bytes);
        call.scratch = test_buffer_data(&scratch);
    }
    Error error = {0};
    Kernel kernel = gpu.kernel(gpu.context, node);
    assert_non_null(kernel);
    if (kernel(&call, &error) != STATUS_OK || gpu.synchronize(gpu.context, &error) != STATUS_OK)
        fail_msg("%s: %s", node->op->name, error.text);
    for (int i = 0; i < node->n_outputs; i++) {
        if (!node->output[i]) continue;
        result[i] = from_gpu(node->output[i], &out[i]);
        if (!(i == 0 && run->in_place >= 0)) test_buffer_close(&out[i]);
    }
    for (int i = 0; i < node->n_inputs; i++) {
        if (node->input[i]) test_buffer_close(&in[i]);
    }
    if (n_bytes) test_buffer_close(&scratch);
}

/* Against the reference, and twice: the second run, whose algorithms are chosen already, must give the same
 * bits. */
static void check(const Node *node, const Node *plain, const Run *run, const char *what) {
    float *want[NODE_MAX_OUTPUTS] = {0}, *got[NODE_MAX_OUTPUTS] = {0}, *again[NODE_MAX_OUTPUTS] = {0};
    run_reference(plain, run, want);
    run_gpu(node, run, got);
    run_gpu(node, run, again);
    for (int i = 0; i < node->n_outputs; i++) {
        if (!node->output[i]) continue;
        DType dtype = node->output[i]->dtype;
        int64_t count = tensor_count(node->output[i]);
        double tolerance = dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_BF16 ? 4e-3 : 5e-4;
        test_assert_close(got[i], want[i], count, tolerance, 0.0, "%s, output %d (%s)", what, i,
                          dtype_info(dtype)->name);
        assert_memory_equal(got[i], again[i], (size_t)count * sizeof(float));
        free(want[i]), free(got[i]), free(again[i]);
    }
}

/* ---- forward ---- */

typedef struct {
    Graph *graph;
    Tensor *x, *weight, *bias, *residual, *dy;
} LinearGraph;

static LinearGraph linear_graph(const LinearCase *c, DType dtype) {
    LinearGraph g = {.graph = graph_new()};
    Shape out = SHAPE(c->rows, c->outputs);
    g.x = graph_tensor(g.graph, PLACE_ACTIVATION, dtype, SHAPE(c->rows, c->inputs), "x");
    g.weight = graph_tensor(g.graph, PLACE_PARAMETER, dtype, SHAPE(c->outputs, c->inputs), "weight");
    g.bias = graph_tensor(g.graph, PLACE_PARAMETER, dtype, SHAPE(c->outputs), "bias");
    g.residual = graph_tensor(g.graph, PLACE_ACTIVATION, dtype, out, "residual");
    g.dy = graph_tensor(g.graph, PLACE_ACTIVATION, dtype, out, "dy");
    return g;
}

static const Node *last_node(const LinearGraph *g) {
    Error error = {0};
    if (graph_status(g->graph, &error) != STATUS_OK) fail_msg("%s", error.text);
    return g->graph->node[g->graph->n_nodes - 1];
}

static const Node *record_forward(const LinearGraph *g, const LinearCase *c) {
    op_linear(g->graph, g->x, g->weight, c->flags & BIAS ? g->bias : NULL,
              c->flags & RESIDUAL ? g->residual : NULL, activation_of(c));
    return last_node(g);
}

static void test_forward(void **state) {
    DType dtype = *(const DType *)*state;
    for (int i = 0; i < N_CASES; i++) {
        const LinearCase *c = &CASES[i];
        char what[120];
        snprintf(what, sizeof what, "linear %lldx%lld by %lld, flags %u", (long long)c->rows,
                 (long long)c->inputs, (long long)c->outputs, c->flags);
        LinearGraph g = linear_graph(c, dtype), plain = linear_graph(c, DTYPE_F32);
        const Node *node = record_forward(&g, c), *reference = record_forward(&plain, c);
        float *x = values("x", g.x, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.1f),
              *bias = values("bias", g.bias, dtype, 1.0f),
              *residual = values("residual", g.residual, dtype, 1.0f);
        Run run = {.input = {x, weight, c->flags & BIAS ? bias : NULL, c->flags & RESIDUAL ? residual : NULL},
                   .in_place = -1};
        check(node, reference, &run, what);
        g.weight->needs_gradient = false; /* weights that nobody changes: a kernel may start early */
        run.in_place = c->flags & RESIDUAL ? 3 : -1;
        check(node, reference, &run, what);
        free(x), free(weight), free(bias), free(residual);
        graph_free(g.graph), graph_free(plain.graph);
    }
}

/* With 16-bit factors, dx is 16 bits wide and dweight either. */
static void test_gradients(void **state) {
    DType dtype = *(const DType *)*state, wide[] = {DTYPE_F32, dtype};
    for (int i = 0; i < 4 * N_CASES; i++) {
        const LinearCase *c = &CASES[i / 4];
        bool add = i % 2;
        DType parameter = wide[i / 2 % 2];
        LinearGraph g = linear_graph(c, dtype), plain = linear_graph(c, DTYPE_F32);
        float *x = values("x", g.x, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.1f),
              *dy = values("dy", g.dy, dtype, 1.0f), *old_x = values("old", g.x, dtype, 1.0f),
              *old_weight = values("old", g.weight, parameter, 1.0f),
              *old_bias = values("old", g.bias, parameter, 1.0f);
        const LinearGraph *both[] = {&g, &plain};
        const Node *input_gradient[2], *weight_gradient[2];
        for (int k = 0; k < 2; k++) {
            Graph *graph = both[k]->graph;
            DType p = k ? DTYPE_F32 : dtype, q = k ? DTYPE_F32 : parameter;
            Tensor *dx = graph_tensor(graph, PLACE_ACTIVATION, p, g.x->shape, "dx"),
                   *dweight = graph_tensor(graph, PLACE_GRADIENT, q, g.weight->shape, "dweight"),
                   *dbias = graph_tensor(graph, PLACE_GRADIENT, q, g.bias->shape, "dbias");
            LinearAttributes plain_gemm = {ACTIVATION_NONE};
            input_gradient[k] = graph_record(graph, &OP_LINEAR_INPUT_GRADIENT, &plain_gemm, sizeof plain_gemm,
                                             3, TENSORS(both[k]->dy, both[k]->weight, NULL), 1, TENSORS(dx));
            weight_gradient[k] = graph_record(graph, &OP_LINEAR_WEIGHT_GRADIENT, NULL, 0, 2,
                                              TENSORS(both[k]->dy, both[k]->x), 2, TENSORS(dweight, dbias));
        }
        Run run = {.input = {dy, weight}, .old = {old_x}, .add = add, .in_place = -1};
        check(input_gradient[0], input_gradient[1], &run, "input gradient");
        run = (Run){.input = {dy, x}, .old = {old_weight, old_bias}, .add = add, .in_place = -1};
        check(weight_gradient[0], weight_gradient[1], &run, "weight gradient");
        free(x), free(weight), free(dy), free(old_x), free(old_weight), free(old_bias);
        graph_free(g.graph), graph_free(plain.graph);
    }
}

/* ---- few terms, many rows (gemm_fused.h) ---- */

/* Rows and columns that are no multiple of anything but 8; two steps of terms, the second with little in
 * it. */
static const LinearCase MANY_ROWS = {3781, 72, 1544, BIAS | TANH};

static void test_many_rows_forward(void **state) {
    DType dtype = *(const DType *)*state;
    const unsigned flags[] = {BIAS | TANH, TANH, BIAS, 0};
    for (int i = 0; i < 4; i++) {
        LinearCase c = MANY_ROWS;
        c.flags = flags[i];
        LinearGraph g = linear_graph(&c, dtype), plain = linear_graph(&c, DTYPE_F32);
        const Node *node = record_forward(&g, &c), *reference = record_forward(&plain, &c);
        float *x = values("x", g.x, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.3f),
              *bias = values("bias", g.bias, dtype, 1.0f);
        Run run = {.input = {x, weight, flags[i] & BIAS ? bias : NULL}, .in_place = -1};
        check(node, reference, &run, "linear of many rows");
        free(x), free(weight), free(bias);
        graph_free(g.graph), graph_free(plain.graph);
    }
}

/* What selective recomputation makes again of the value before the activation is what was made first. */
static void check_again(const LinearCase *c, DType dtype) {
    LinearGraph g = linear_graph(c, dtype);
    float *x = values("x", g.x, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.3f),
          *bias = values("bias", g.bias, dtype, 1.0f), *made[NODE_MAX_OUTPUTS] = {0},
          *again[NODE_MAX_OUTPUTS] = {0};
    Node *node = (Node *)record_forward(&g, c);
    node->is_from_stored = true;
    Run run = {.input = {x, weight, c->flags & BIAS ? bias : NULL}, .in_place = -1};
    run_gpu(node, &run, made);
    op_gelu(g.graph, node->output[1], activation_of(c));
    run_gpu(last_node(&g), &(Run){.input = {made[1]}, .in_place = -1}, again);
    for (int64_t i = 0; i < tensor_count(node->output[0]); i++)
        if (made[0][i] != again[0][i])
            fail_msg("%s: element %lld of %lldx%lld by %lld is %.9g, and %.9g again", dtype_info(dtype)->name,
                     (long long)i, (long long)c->rows, (long long)c->inputs, (long long)c->outputs,
                     (double)made[0][i], (double)again[0][i]);
    free(x), free(weight), free(bias), free(made[0]), free(made[1]), free(again[0]);
    graph_free(g.graph);
}

static void test_made_again(void **state) {
    DType dtype = *(const DType *)*state;
    for (int i = 0; i < N_CASES; i++)
        if (CASES[i].flags & (TANH | ERF) && !(CASES[i].flags & RESIDUAL)) check_again(&CASES[i], dtype);
    check_again(&MANY_ROWS, dtype);
}

/* The gradient may take the place of the values before gelu. */
static void test_many_rows_slope(void **state) {
    DType dtype = *(const DType *)*state;
    LinearCase c = {MANY_ROWS.rows, MANY_ROWS.outputs, MANY_ROWS.inputs, TANH}; /* dx is as wide as y was */
    LinearGraph g = linear_graph(&c, dtype), plain = linear_graph(&c, DTYPE_F32);
    const LinearGraph *both[] = {&g, &plain};
    const Node *node[2];
    LinearAttributes attributes = {ACTIVATION_GELU_TANH};
    for (int k = 0; k < 2; k++) {
        Tensor *dx = graph_tensor(both[k]->graph, PLACE_ACTIVATION, k ? DTYPE_F32 : dtype, g.x->shape, "dx");
        node[k] = graph_record(both[k]->graph, &OP_LINEAR_INPUT_GRADIENT, &attributes, sizeof attributes, 3,
                               TENSORS(both[k]->dy, both[k]->weight, both[k]->x), 1, TENSORS(dx));
    }
    float *dy = values("dy", g.dy, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.3f),
          *before = values("before", g.x, dtype, 3.0f);
    for (int in_place = -1; in_place <= 2; in_place += 3) {
        Run run = {.input = {dy, weight, before}, .in_place = in_place};
        check(node[0], node[1], &run, in_place < 0 ? "slope of many rows" : "slope of many rows, in place");
    }
    free(dy), free(weight), free(before);
    graph_free(g.graph), graph_free(plain.graph);
}

/* With as many terms as it takes. Where the kernel is there, these must be its GEMMs. */
typedef struct {
    LinearCase c;
    LinearGraph g;
    Tensor *full;
    float *a_values, *weight, *before;
    TestBuffer a, b, x, out, wide;
    Gemm plain, ended; /* in f32 by the library, and as the layer wants it */
    bool exists;
} ManyRows;

static void open_many_rows(ManyRows *m, DType dtype, bool is_forward) {
    CudaContext *context = gpu.context;
    LinearCase forward = {MANY_ROWS.rows, FUSED_MOST_INNER, MANY_ROWS.outputs, TANH},
               backward = {MANY_ROWS.rows, MANY_ROWS.outputs, FUSED_MOST_INNER, TANH};
    m->c = is_forward ? forward : backward;
    m->g = linear_graph(&m->c, dtype);
    Tensor *wide = is_forward ? m->g.dy : m->g.x, *narrow = is_forward ? m->g.x : m->g.dy;
    m->full = graph_tensor(m->g.graph, PLACE_ACTIVATION, DTYPE_F32, wide->shape, "product");
    m->a_values = values("a", narrow, dtype, 1.0f), m->weight = values("weight", m->g.weight, dtype, 0.3f);
    m->before = values("before", wide, dtype, 3.0f);
    m->a = to_gpu(narrow, m->a_values), m->b = to_gpu(m->g.weight, m->weight);
    m->x = to_gpu(wide, m->before), m->out = to_gpu(wide, NULL), m->wide = to_gpu(m->full, NULL);
    m->plain = (Gemm){.rows = m->c.rows, .columns = MANY_ROWS.outputs, .inner = FUSED_MOST_INNER};
    m->plain.transpose_b = is_forward;
    m->plain.a_type = m->plain.b_type = dtype, m->plain.c_type = DTYPE_F32;
    m->plain.a = test_buffer_data(&m->a), m->plain.b = test_buffer_data(&m->b);
    m->plain.c = test_buffer_data(&m->wide);
    m->ended = m->plain;
    m->ended.c_type = dtype, m->ended.c = test_buffer_data(&m->out);
    m->ended.epilogue = is_forward ? EPILOGUE_GELU : EPILOGUE_DGELU,
    m->ended.before = test_buffer_data(&m->x);
    m->exists = cuda_gemm_fused_exists(context);
    if (m->exists && context->traits.n_processors <= 132)
        assert_true(cuda_gemm_fused_fits(context, &m->ended));
    m->exists = m->exists && cuda_gemm_fused_fits(context, &m->ended);
}

static void close_many_rows(ManyRows *m) {
    test_buffer_close(&m->a), test_buffer_close(&m->b), test_buffer_close(&m->x);
    test_buffer_close(&m->out), test_buffer_close(&m->wide);
    free(m->a_values), free(m->weight), free(m->before);
    graph_free(m->g.graph);
    if (!m->exists) skip();
}

static void run_many_rows(const ManyRows *m, float *partial) {
    Error error = {0};
    if (cuda_gemm(gpu.context, &m->plain, &error) != STATUS_OK ||
        cuda_gemm_fused(gpu.context, &m->ended, partial, &error) != STATUS_OK ||
        gpu.synchronize(gpu.context, &error) != STATUS_OK)
        fail_msg("%s", error.text);
}

/* Against the library's GEMM in f32, with gelu by the host, and without. */
static void test_many_terms(void **state) {
    DType dtype = *(const DType *)*state;
    double tolerance = dtype == DTYPE_BF16 ? 4e-3 : 5e-4;
    ManyRows m;
    open_many_rows(&m, dtype, true);
    if (m.exists) {
        run_many_rows(&m, NULL);
        float *want = from_gpu(m.full, &m.wide), *y = from_gpu(m.g.dy, &m.out), *x = from_gpu(m.g.dy, &m.x);
        test_assert_close(x, want, m.c.rows * m.c.outputs, tolerance, 0.0, "before gelu");
        m.ended.epilogue = EPILOGUE_NONE, m.ended.before = NULL;
        assert_true(cuda_gemm_fused_fits(gpu.context, &m.ended));
        run_many_rows(&m, NULL);
        float *bare = from_gpu(m.g.dy, &m.out);
        test_assert_close(bare, want, m.c.rows * m.c.outputs, tolerance, 0.0, "nothing behind it");
        free(bare);
        for (int64_t i = 0; i < m.c.rows * m.c.outputs; i++)
            want[i] = gelu_value(want[i], ACTIVATION_GELU_TANH);
        test_assert_close(y, want, m.c.rows * m.c.outputs, tolerance, 0.0, "gelu");
        free(want), free(y), free(x);
    }
    close_many_rows(&m);
}

/* The slope likewise, and the sums of its columns against those of what was stored. */
static void test_many_rows_sums(void **state) {
    DType dtype = *(const DType *)*state;
    ManyRows m;
    open_many_rows(&m, dtype, false);
    Tensor *sums = graph_tensor(m.g.graph, PLACE_GRADIENT, DTYPE_F32, SHAPE(m.c.inputs), "sums");
    TestBuffer total = to_gpu(sums, NULL), partial = {0};
    if (m.exists) {
        int64_t n_partials = cuda_gemm_fused_partials(gpu.context, &m.ended);
        partial = test_buffer_open(&gpu, NULL, (size_t)(n_partials * m.c.inputs) * sizeof(float));
        SumOutput output = {test_buffer_data(&total), DTYPE_F32, false};
        Error error = {0};
        run_many_rows(&m, test_buffer_data(&partial));
        if (cuda_reduce_partials(gpu.context, test_buffer_data(&partial), n_partials, m.c.inputs, 1, &output,
                                 &error) != STATUS_OK)
            fail_msg("%s", error.text);
        float *want = from_gpu(m.full, &m.wide), *got = from_gpu(m.g.x, &m.out);
        float *got_sums = from_gpu(sums, &total);
        float *want_sums = malloc((size_t)m.c.inputs * sizeof *want_sums);
        assert_non_null(want_sums);
        for (int64_t k = 0; k < m.c.inputs; k++) {
            double sum = 0.0;
            for (int64_t n = 0; n < m.c.rows; n++) {
                int64_t i = n * m.c.inputs + k;
                want[i] *= gelu_slope(m.before[i], ACTIVATION_GELU_TANH);
                sum += (double)got[i];
            }
            want_sums[k] = (float)sum;
        }
        test_assert_close(got, want, m.c.rows * m.c.inputs, dtype == DTYPE_BF16 ? 4e-3 : 5e-4, 0.0, "slope");
        test_assert_close(got_sums, want_sums, m.c.inputs, 1e-6, 0.0, "sums of columns");
        free(want), free(got), free(got_sums), free(want_sums);
        test_buffer_close(&partial);
    }
    test_buffer_close(&total);
    close_many_rows(&m);
}

/* A sequence's logits must not depend on who else is decoded beside it. */
static void test_rows_are_independent(void **state) {
    DType dtype = *(const DType *)*state;
    LinearCase many = {16, 768, 2304, BIAS}, one = {1, 768, 2304, BIAS};
    LinearGraph g = linear_graph(&many, dtype), single = linear_graph(&one, dtype);
    const Node *node = record_forward(&g, &many), *node_one = record_forward(&single, &one);
    float *x = values("x", g.x, dtype, 1.0f), *weight = values("weight", g.weight, dtype, 0.1f),
          *bias = values("bias", g.bias, dtype, 1.0f), *all[NODE_MAX_OUTPUTS] = {0},
          *alone[NODE_MAX_OUTPUTS] = {0};
    Run run = {.input = {x, weight, bias}, .in_place = -1};
    run_gpu(node, &run, all);
    run.input[0] = x + 11 * many.inputs;
    run_gpu(node_one, &run, alone);
    assert_memory_equal(alone[0], all[0] + 11 * many.outputs, (size_t)many.outputs * sizeof(float));
    free(x), free(weight), free(bias), free(all[0]), free(alone[0]);
    graph_free(g.graph), graph_free(single.graph);
}

/* A pattern of names may be given: only those tests are run. */
int main(int n_arguments, char **argument) {
    static DType f32 = DTYPE_F32, bf16 = DTYPE_BF16, f16 = DTYPE_F16;
    const struct CMUnitTest tests[] = {
        {"forward f32", test_forward, NULL, NULL, &f32},
        {"forward bf16", test_forward, NULL, NULL, &bf16},
        {"forward f16", test_forward, NULL, NULL, &f16},
        {"made again f32", test_made_again, NULL, NULL, &f32},
        {"made again bf16", test_made_again, NULL, NULL, &bf16},
        {"made again f16", test_made_again, NULL, NULL, &f16},
        {"gradients f32", test_gradients, NULL, NULL, &f32},
        {"gradients bf16", test_gradients, NULL, NULL, &bf16},
        {"gradients f16", test_gradients, NULL, NULL, &f16},
        {"many rows, forward bf16", test_many_rows_forward, NULL, NULL, &bf16},
        {"many rows, forward f16", test_many_rows_forward, NULL, NULL, &f16},
        {"many rows, slope bf16", test_many_rows_slope, NULL, NULL, &bf16},
        {"many rows, slope f16", test_many_rows_slope, NULL, NULL, &f16},
        {"many terms, forward bf16", test_many_terms, NULL, NULL, &bf16},
        {"many terms, forward f16", test_many_terms, NULL, NULL, &f16},
        {"many rows, sums bf16", test_many_rows_sums, NULL, NULL, &bf16},
        {"many rows, sums f16", test_many_rows_sums, NULL, NULL, &f16},
        {"rows are independent bf16", test_rows_are_independent, NULL, NULL, &bf16},
        {"rows are independent f16", test_rows_are_independent, NULL, NULL, &f16},
    };
    char reason[256];
    Error error = {0};
    if (!backend_cuda_devices(reason, sizeof reason)) {
        printf("skipped: %s\n", reason);
        return 77;
    }
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (n_arguments > 1) cmocka_set_test_filter(argument[1]);
    int failed = cmocka_run_group_tests_name("cuda linear", tests, NULL, NULL);
    gpu.close(gpu.context);
    return failed;
}
