/* Every CUDA kernel against its operation's reference, in every combination of element types that a program
 * can have: f32 within 1e-4, 16 bits within 1e-2 of the reference on the same rounded inputs.
 *
 * Node by node: a case is recorded twice, once as it is, for the reference on the host, and once with its
 * tensors retyped, for the GPU. Inputs come from the reference run, rounded to the type they have on the GPU,
 * so an error is found in the kernel that makes it. Outputs are fresh, added to, in place of an input, and at
 * addresses that no vector fits. What differs is printed; the test fails at the end, with the whole list, and
 * if there is an operation that no case has run. Exit code 77 without a GPU. */
#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/half.h"
#include "large_specs.h"
#include "ops/attention/sparse_attention.h"
#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"
#include "ops/compress/lowrank.h"
#include "ops/experts/experts.h"
#include "ops/update/lamb_coefficient.h"
#include "ops/update/muon.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_LARGE = sizeof LARGE_SPECS / sizeof LARGE_SPECS[0], MOST_FAILURES = 100 };

typedef struct {
    const char *name;
    DType activation, gradient; /* gradient: of parameters */
    bool is_pure;               /* parameters and moments of the update have the type of activations */
    double tolerance;
} Variant;

static const Variant VARIANTS[] = {
    {"f32", DTYPE_F32, DTYPE_F32, true, 1e-4},      {"bf16", DTYPE_BF16, DTYPE_F32, false, 1e-2},
    {"f16", DTYPE_F16, DTYPE_F32, false, 1e-2},     {"pure-bf16", DTYPE_BF16, DTYPE_BF16, true, 1e-2},
    {"pure-f16", DTYPE_F16, DTYPE_F16, true, 1e-2},
};

static Backend gpu;
static const char *only_cases; /* with this in their label; NULL: all */
static int n_failures, n_outputs_compared, n_runs_of[N_KERNEL_OPS];
static double farthest, farthest_steep; /* of what is allowed, the largest part that was needed */

static void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void failed(const char *format, ...) {
    if (n_failures++ >= MOST_FAILURES) return;
    va_list arguments;
    va_start(arguments, format);
    printf("FAILED  ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    fflush(stdout);
}

/* ---- types ---- */

static float rounded(float value, DType dtype) {
    if (dtype == DTYPE_BF16) return half_bf16_to_f32(half_bf16_from_f32(value));
    return dtype == DTYPE_F16 ? half_f16_to_f32(half_f16_from_f32(value)) : value;
}

static bool is_update(const Node *node) {
    return node->op->update != UPDATE_NONE;
}

static bool is_compression(const Node *node) {
    return node->op == &OP_LOCAL_STEP || node->op == &OP_LOCAL_JOIN || node->op == &OP_COMPRESS ||
           node->op == &OP_COMBINE || node->op == &OP_EXPAND || node->op == &OP_LOWRANK_PROJECT ||
           node->op == &OP_LOWRANK_ORTHONORMAL || node->op == &OP_LOWRANK_RETURN ||
           node->op == &OP_LOWRANK_EXPAND || node->op == &OP_RESCALE || node->op == &OP_LAMB_AVERAGE ||
           node->op == &OP_LAMB_FRESHEN || node->op == &OP_LAMB_ADAPT;
}

static bool touches(const Node *node, const Tensor *tensor) {
    for (int i = 0; i < node->n_inputs; i++)
        if (node->input[i] == tensor) return true;
    for (int i = 0; i < node->n_outputs; i++)
        if (node->output[i] == tensor) return true;
    return false;
}

/* Statistics, scalars, hyperparameters and what is compressed are f32 whatever the rest is. */
static bool is_always_f32(const Graph *graph, const Tensor *tensor) {
    static const struct {
        const Op *op;
        bool is_input;
        int slot;
    } SLOTS[] = {
        {&OP_LAYERNORM, false, 1},
        {&OP_LAYERNORM, false, 2},
        {&OP_RMSNORM, false, 1},
        {&OP_RESIDUAL_NORM, false, 2},
        {&OP_RESIDUAL_NORM, false, 3},
        {&OP_ATTENTION, false, 1},
        {&OP_CROSS_ENTROPY, false, 0},
        {&OP_CROSS_ENTROPY, true, 2},
        {&OP_SQUARED_ERROR, false, 0},
        {&OP_SUM, false, 0},
        {&OP_SQUARED_NORM, false, 0},
        {&OP_MUON_NORMALISE, true, 1},
        {&OP_LAMB_MEASURE, false, 0},
        {&OP_LAMB, true, 4},
        {&OP_CLIP, true, 0},
        {&OP_CLIP, true, 1},
        {&OP_CLIP, false, 0},
        {&OP_CLIP, false, 1},
        {&OP_SPLIT_ENTROPY_PART, false, 0},
        {&OP_SPLIT_ENTROPY, false, 0},
        {&OP_SPLIT_ENTROPY, true, 2},
        {&OP_SPLIT_ENTROPY, true, 3},
        {&OP_ATTENTION_PART, false, 0},
        {&OP_ATTENTION_PART, false, 1},
        {&OP_ATTENTION_PART_BACKWARD, false, 0},
        {&OP_ATTENTION_PART_BACKWARD, false, 1},
        {&OP_DEPTH_SCORE, false, 0},
        {&OP_DEPTH_SCORE, false, 1},
        {&OP_DEPTH_SELECT, true, 0},
        {&OP_DEPTH_ADMIT, true, 0},
        {&OP_DEPTH_GATHER, true, 1},
        {&OP_DEPTH_GATHER, false, 1},
        {&OP_DEPTH_SCATTER_BACKWARD, false, 1},
        {&OP_DEPTH_PREDICT, true, 4},
        {&OP_DEPTH_PREDICT, false, 0},
        {&OP_DEPTH_PREDICT, false, 1},
        {&OP_DEPTH_PREDICT, false, 2},
        {&OP_DEPTH_PREDICT, false, 3},
        {&OP_ROUTER_LOGITS, false, 0},
        {&OP_ROUTE, true, 0},
        {&OP_ROUTE, true, 1},
        {&OP_ROUTE, true, 2},
        {&OP_ROUTE, true, 4},
        {&OP_ROUTE, false, 0},
        {&OP_ROUTE_BACKWARD, true, 0},
        {&OP_ROUTE_BACKWARD, false, 0},
        {&OP_ROUTE_BACKWARD, false, 1},
        {&OP_ROUTE_REPORT, false, 0},
        {&OP_ROUTE_BIAS, true, 0},
        {&OP_ROUTE_BIAS, true, 1},
        {&OP_ROUTE_BIAS, false, 0},
        {&OP_ROUTE_SUMMARY, false, 0},
        {&OP_EXPERT_SCATTER, true, 1},
        {&OP_EXPERT_SCATTER_BACKWARD, false, 1},
        {&OP_SEQUENCE_ROWS, true, 0},
        {&OP_SEQUENCE_ROWS, false, 0},
        {&OP_SPARSE_ATTENTION, false, 1},
        {&OP_SPARSE_ATTENTION_PART, false, 0},
        {&OP_SPARSE_ATTENTION_PART, false, 1},
        {&OP_SPARSE_ATTENTION_PART_BACKWARD, false, 0},
        {&OP_SPARSE_ATTENTION_PART_BACKWARD, false, 1},
    };
    for (int n = 0; n < graph->n_nodes; n++) {
        const Node *node = graph->node[n];
        if (is_update(node) && (node->input[1] == tensor || node->input[2] == tensor)) return true;
        if (is_compression(node) && touches(node, tensor)) return true;
        for (size_t i = 0; i < sizeof SLOTS / sizeof SLOTS[0]; i++) {
            if (node->op != SLOTS[i].op) continue;
            if ((SLOTS[i].is_input ? node->input : node->output)[SLOTS[i].slot] == tensor) return true;
        }
    }
    return false;
}

/* Gives the graph the types that the variant's programs have. In a mixed one the update writes a copy in 16
 * bits. */
static void retype(Graph *graph, const Variant *variant) {
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->dtype != DTYPE_F32 || is_always_f32(graph, tensor)) continue;
        tensor->dtype = tensor->place == PLACE_GRADIENT ? variant->gradient : variant->activation;
    }
    for (int n = 0; n < graph->n_nodes; n++) {
        Node *node = graph->node[n];
        if (!is_update(node) || variant->is_pure) continue;
        for (int k = 0; k < node->n_outputs; k++) {
            if (node->output[k]) node->output[k]->dtype = DTYPE_F32;
        }
        if (node->op == &OP_MUON_MOMENTUM || node->op == &OP_LAMB_MEASURE) continue; /* no weights */
        node->output[node->n_outputs - 1] =
            graph_tensor(graph, PLACE_PARAMETER, variant->activation, node->output[0]->shape, "copy");
    }
}

/* ---- one execution of one node ---- */

typedef struct {
    const char *name;
    unsigned adds;    /* a bit for every output that adds */
    WriteMode others; /* how the others are written */
    int in_place;     /* output that lies on the input its op names, or -1 */
    size_t shift;     /* elements that every address is moved by */
} Mode;

/* A tensor's values in its own type in the GPU's memory. */
typedef struct {
    TestBuffer buffer;
    DType dtype;
    int64_t count;
    size_t shift;
} TypedBuffer;

static void *typed_data(const TypedBuffer *typed) {
    return (char *)test_buffer_data(&typed->buffer) + typed->shift;
}

/* values NULL: poison. */
static TypedBuffer typed_open(const Tensor *tensor, const float *values, size_t shift) {
    size_t size = dtype_info(tensor->dtype)->n_bytes;
    TypedBuffer typed = {.dtype = tensor->dtype, .count = tensor_count(tensor), .shift = shift * size};
    size_t n_bytes = (size_t)typed.count * size + typed.shift;
    char *image = values ? calloc(1, n_bytes + 1) : NULL;
    char *at = image + typed.shift;
    for (int64_t i = 0; values && i < typed.count; i++) {
        uint16_t half =
            tensor->dtype == DTYPE_BF16 ? half_bf16_from_f32(values[i]) : half_f16_from_f32(values[i]);
        if (size == 4) memcpy(at + 4 * i, &values[i], 4);
        else memcpy(at + 2 * i, &half, 2);
    }
    typed.buffer = test_buffer_open(&gpu, image, n_bytes);
    free(image);
    return typed;
}

/* The contents in f32 (i32 words as they are); fails the test if a fence was overwritten. */
static float *typed_read(const TypedBuffer *typed, const char *what) {
    char *image = test_buffer_read(&typed->buffer, what), *at = image + typed->shift;
    float *values = calloc((size_t)typed->count + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < typed->count; i++) {
        uint16_t half;
        if (dtype_info(typed->dtype)->n_bytes == 4) memcpy(&values[i], at + 4 * i, 4);
        else {
            memcpy(&half, at + 2 * i, 2);
            values[i] = typed->dtype == DTYPE_BF16 ? half_bf16_to_f32(half) : half_f16_to_f32(half);
        }
    }
    free(image);
    return values;
}

/* What an output holds that is added to. */
static float *initial_values(const Tensor *tensor) {
    float *values = calloc((size_t)tensor_count(tensor) + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        values[i] = rounded(test_value("initial", (uint64_t)i), tensor->dtype);
    return values;
}

typedef struct {
    const OpCase *test;
    const Variant *variant;
    const Node *plain, *typed;             /* the same node, as the reference sees it and as the GPU does */
    const float *input[NODE_MAX_INPUTS];   /* before the node ran; i32 words as they are */
    const float *before[NODE_MAX_OUTPUTS]; /* outputs that are inputs too, before the node ran; else NULL */
    const float *want[NODE_MAX_OUTPUTS];   /* after it */
} Run;

typedef struct {
    float *out[NODE_MAX_OUTPUTS];
} Outputs;

static void call_kernel(const Run *run, const Node *node, KernelCall *call) {
    Kernel kernel = gpu.kernel(gpu.context, node);
    Error error = {0};
    if (!kernel) {
        failed("no kernel for %s", node->op->name);
        return;
    }
    size_t n_bytes = traits_scratch_bytes(&gpu.traits, node);
    TestBuffer scratch = test_buffer_open(&gpu, NULL, n_bytes);
    call->scratch = n_bytes ? test_buffer_data(&scratch) : NULL;
    call->context = gpu.context;
    call->n_threads = 1;
    if (kernel(call, &error) != STATUS_OK || gpu.synchronize(gpu.context, &error) != STATUS_OK) {
        failed("%s, '%s', %s: %s", run->variant->name, run->test->spec->label, node->op->name, error.text);
    }
    char what[200];
    snprintf(what, sizeof what, "scratch of '%s', %s", run->test->spec->label, node->op->name);
    free(test_buffer_read(&scratch, what));
    test_buffer_close(&scratch);
}

static void count_run(const Op *op) {
    for (int i = 0; i < N_KERNEL_OPS; i++) n_runs_of[i] += kernel_ops[i] == op;
}

static Outputs run_on_gpu(const Run *run, const Mode *mode) {
    Node node = *run->typed;
    count_run(node.op);
    TypedBuffer in[NODE_MAX_INPUTS] = {0}, out[NODE_MAX_OUTPUTS] = {0};
    KernelCall call = {.node = &node};
    for (int i = 0; i < node.n_inputs; i++) {
        if (!node.input[i]) continue;
        in[i] = typed_open(node.input[i], run->input[i], node.input[i]->dtype == DTYPE_I32 ? 0 : mode->shift);
        call.in[i] = typed_data(&in[i]);
    }
    for (int k = 0; k < node.n_outputs; k++) {
        if (!node.output[k]) continue;
        bool add = mode->adds >> k & 1;
        node.write[k] = add ? WRITE_ADD : mode->others;
        call.add[k] = add;
        float *initial = add ? initial_values(node.output[k]) : NULL;
        out[k] = typed_open(node.output[k], run->before[k] ? run->before[k] : initial, mode->shift);
        call.out[k] = typed_data(&out[k]);
        free(initial);
    }
    int source = mode->in_place >= 0 ? node.op->in_place(&node, mode->in_place) : -1;
    if (source >= 0) call.out[mode->in_place] = call.in[source];
    call_kernel(run, &node, &call);
    Outputs outputs = {0};
    for (int k = 0; k < node.n_outputs; k++) {
        if (!node.output[k]) continue;
        outputs.out[k] = typed_read(k == mode->in_place ? &in[source] : &out[k], node.output[k]->name);
    }
    for (int i = 0; i < node.n_inputs; i++) {
        if (!node.input[i]) continue;
        float *after = i == source ? NULL : typed_read(&in[i], node.input[i]->name);
        size_t n_bytes = (size_t)in[i].count * sizeof(float);
        if (after && n_bytes && memcmp(after, run->input[i], n_bytes) != 0) {
            failed("%s, '%s', %s%s changed its input %s", run->variant->name, run->test->spec->label,
                   node.op->name, mode->name, node.input[i]->name);
        }
        free(after);
        test_buffer_close(&in[i].buffer);
    }
    for (int k = 0; k < node.n_outputs; k++) test_buffer_close(&out[k].buffer);
    return outputs;
}

/* ---- comparing ---- */

/* Scores of several thousand are themselves rounded, and e^score carries that as it is. */
static const double steep_times = 3.0;

static bool is_steep(const Run *run) {
    return (run->test->spec->flags & CASE_LARGE) &&
           (run->plain->op == &OP_ATTENTION || run->plain->op == &OP_ATTENTION_BACKWARD ||
            run->plain->op == &OP_ATTENTION_PART || run->plain->op == &OP_ATTENTION_PART_BACKWARD ||
            run->plain->op == &OP_SPARSE_ATTENTION || run->plain->op == &OP_SPARSE_ATTENTION_BACKWARD);
}

/* Experts' rows: how many elements of output k are there. Nobody knows what is in the rows behind them. */
static int64_t count_there(const Run *run, int k) {
    static const struct {
        const Op *op;
        int offsets; /* input */
        bool has[2]; /* outputs that are rows */
    } ROWS[] = {
        {&OP_EXPERT_GATHER, 3, {true, false}},
        {&OP_EXPERT_SCATTER_BACKWARD, 5, {true, false}},
        {&OP_GROUPED_LINEAR, 3, {true, true}},
        {&OP_GROUPED_INPUT_GRADIENT, 2, {true, false}},
    };
    const Node *node = run->typed;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        if (node->op != ROWS[i].op || k > 1 || !ROWS[i].has[k]) continue;
        const int32_t *offsets = (const void *)run->input[ROWS[i].offsets];
        int64_t n_rows = offsets[tensor_count(node->input[ROWS[i].offsets]) - 1];
        return n_rows * shape_columns(node->output[k]->shape);
    }
    return tensor_count(node->output[k]);
}

/* Whole numbers are right or wrong. */
static void compare_integers(const Run *run, const Mode *mode, int k, const float *got) {
    const Tensor *output = run->typed->output[k];
    n_outputs_compared++;
    for (int64_t i = 0; i < tensor_count(output); i++) {
        int32_t is, should_be;
        memcpy(&is, &got[i], sizeof is);
        memcpy(&should_be, &run->want[k][i], sizeof should_be);
        if (is == should_be) continue;
        failed("%s, '%s', %s%s: element %lld of %s is %d, not %d", run->variant->name, run->test->spec->label,
               run->plain->op->name, mode->name, (long long)i, output->name, is, should_be);
        return;
    }
}

/* As test_assert_close: the norm of the difference within the tolerance, each element within ten times
 * that. */
static void compare(const Run *run, const Mode *mode, int k, const float *got, const float *base) {
    const Tensor *output = run->typed->output[k];
    int64_t count = count_there(run, k), worst = -1;
    n_outputs_compared++;
    const float *want = run->want[k];
    double tolerance = run->variant->tolerance * (is_steep(run) ? steep_times : 1.0);
    double squares = 0.0, difference_squares = 0.0, worst_excess = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double expected = (double)want[i] + (base ? (double)base[i] : 0.0), d = (double)got[i] - expected;
        squares += expected * expected;
        difference_squares += d * d;
    }
    double mean = count ? sqrt(squares / (double)count) : 0.0;
    double difference = count ? sqrt(difference_squares / (double)count) : 0.0;
    for (int64_t i = 0; i < count; i++) {
        double expected = (double)want[i] + (base ? (double)base[i] : 0.0),
               d = fabs((double)got[i] - expected);
        double excess = d / (10.0 * tolerance * (mean + fabs(expected)) + 1e-30);
        if (excess <= worst_excess) continue;
        if (isnan(worst_excess)) break;
        worst_excess = excess;
        worst = i;
    }
    double *most = is_steep(run) ? &farthest_steep : &farthest;
    *most = fmax(*most, fmax(worst_excess, difference / (tolerance * mean + 1e-30)));
    if (worst_excess <= 1.0 && difference <= tolerance * mean + 1e-30) return;
    failed("%s, '%s', %s%s: %s (%s) differs by %.2g of its norm; element %lld of %lld is %.6g, not %.6g",
           run->variant->name, run->test->spec->label, run->plain->op->name, mode->name, output->name,
           dtype_info(output->dtype)->name, difference / mean, (long long)worst, (long long)count,
           worst >= 0 ? (double)got[worst] : 0.0,
           worst >= 0 ? (double)want[worst] + (base ? (double)base[worst] : 0.0) : 0.0);
}

/* Whose columns output k sums up, or -1. */
static int summed_output(const Node *node, int k) {
    for (int of = 0; of < node->n_outputs && node->op->sums_output; of++) {
        if (node->output[of] && node->op->sums_output(node, of) == k) return of;
    }
    return -1;
}

/* What is there beside what the node makes: what an output that adds held before. NULL: nothing. */
static float *base_values(const Run *run, const Mode *mode, int k) {
    const Node *node = run->typed;
    float *base = mode->adds >> k & 1 ? initial_values(node->output[k]) : NULL;
    int of = summed_output(node, k);
    float *summed = of >= 0 ? base_values(run, mode, of) : NULL;
    if (summed) {
        int64_t count = tensor_count(node->output[of]), columns = tensor_count(node->output[k]);
        if (!base) base = calloc((size_t)columns + 1, sizeof *base);
        assert_non_null(base);
        for (int64_t i = 0; i < count; i++) base[i % columns] += summed[i];
        free(summed);
    }
    if (node->op != &OP_RESIDUAL_NORM_BACKWARD || k != 3 || !(mode->adds & 1)) return base;
    /* The branch's gradient is made of all of the sum's: the mask goes over what was there, too. */
    const ResidualNormAttributes *a = node->attributes;
    DropoutAttributes attributes = {a->probability, a->site, a->rows};
    Node dropout = {.attributes = &attributes, .input = {node->output[0]}};
    float *sum = initial_values(node->output[0]);
    if (!base) base = calloc((size_t)tensor_count(node->output[k]) + 1, sizeof *base);
    assert_non_null(base);
    KernelCall call = {.node = &dropout, .in = {sum, (void *)run->input[5]}, .out = {base}, .add = {true}};
    Error error = {0};
    assert_int_equal(OP_DROPOUT.reference(&call, &error), STATUS_OK);
    free(sum);
    return base;
}

static void check_mode(const Run *run, const Mode *mode) {
    Outputs got = run_on_gpu(run, mode);
    for (int k = 0; k < run->typed->n_outputs; k++) {
        if (!run->typed->output[k] || !run->want[k]) continue;
        if (run->typed->output[k]->dtype == DTYPE_I32) {
            compare_integers(run, mode, k, got.out[k]);
            continue;
        }
        float *base = base_values(run, mode, k);
        compare(run, mode, k, got.out[k], base);
        free(base);
    }
    for (int k = 0; k < NODE_MAX_OUTPUTS; k++) free(got.out[k]);
}

/* Outputs that may be asked to add: gradients and running sums. */
static bool can_add(const Node *node) {
    return node->section == SECTION_BACKWARD || node->op == &OP_SUM || node->op == &OP_SQUARED_NORM ||
           node->op == &OP_ROUTE_REPORT;
}

static bool is_attention(const Node *node) {
    return node->op == &OP_ATTENTION || node->op == &OP_ATTENTION_BACKWARD ||
           node->op == &OP_ATTENTION_CACHED;
}

static void check_node(const Run *run) {
    static const Mode modes[] = {
        {"", 0, WRITE_FRESH, -1, 0},
        {" adding", ~0u, WRITE_ADD, -1, 0},
        {" first of several", 0, WRITE_ADD_AFTER_FIRST, -1, 0},
        {" adding to the first", 1, WRITE_ADD_AFTER_FIRST, -1, 0},
        {" adding to the second", 2, WRITE_FRESH, -1, 0},
        {" adding to the third", 4, WRITE_FRESH, -1, 0},
        {" adding to the fourth", 8, WRITE_FRESH, -1, 0},
        {" adding to the fifth", 16, WRITE_FRESH, -1, 0},
    };
    static const Mode shifted = {" at odd addresses", 0, WRITE_FRESH, -1, 1};
    const Node *node = run->plain;
    bool is_sum =
        run->before[0] && (node->op == &OP_SQUARED_NORM || node->op == &OP_SUM || node->op == &OP_ROUTE_BIAS);
    int n_modes = !can_add(node) || is_sum ? 1 : node->n_outputs == 1 ? 3 : 3 + node->n_outputs;
    if (is_sum && node->write[0] == WRITE_ADD) { /* the total was read: want holds the sum with it */
        Mode mode = {" adding", 1, WRITE_ADD, -1, 0};
        Outputs got = run_on_gpu(run, &mode);
        compare(run, &mode, 0, got.out[0], NULL);
        free(got.out[0]);
        return;
    }
    if (test_is_brief() && n_modes > 2) n_modes = 2;
    for (int i = 0; i < n_modes; i++) check_mode(run, &modes[i]);
    if (!is_attention(node)) check_mode(run, &shifted);
    for (int k = 0; k < node->n_outputs && node->op->in_place && !test_is_brief(); k++) {
        int input = node->op->in_place(run->typed, k); /* which depends on types */
        if (input < 0 || !node->output[k]) continue;
        Mode mode = {" in place", 0, WRITE_FRESH, k, 0};
        check_mode(run, &mode);
    }
}

/* ---- all of them ---- */

static float *copy_of(const TestMemory *memory, const Tensor *tensor) {
    float *values = malloc((size_t)tensor_count(tensor) * 4 + 4);
    assert_non_null(values);
    memcpy(values, test_memory_at(memory, tensor), (size_t)tensor_count(tensor) * 4);
    return values;
}

static void round_tensor(const TestMemory *memory, const Tensor *plain, const Tensor *typed) {
    if (plain->dtype != DTYPE_F32 || typed->dtype == DTYPE_F32) return;
    float *values = test_memory_at(memory, plain);
    for (int64_t i = 0; i < tensor_count(plain); i++) values[i] = rounded(values[i], typed->dtype);
}

/* Experts' rows that are not there are no numbers for the nodes that follow: none may make anything of them. */
static void forget_rows(const Run *run, const TestMemory *memory) {
    for (int k = 0; k < run->typed->n_outputs; k++) {
        if (!run->typed->output[k]) continue;
        float *values = test_memory_at(memory, run->plain->output[k]);
        for (int64_t i = count_there(run, k); i < tensor_count(run->typed->output[k]); i++) values[i] = NAN;
    }
}

static void check_spec(const OpSpec *spec, const Variant *variant) {
    OpCase plain, typed;
    case_open(&plain, spec);
    case_open(&typed, spec);
    retype(typed.graph, variant);
    TestMemory memory = test_memory_open(plain.graph);
    case_fill(&plain, &memory);
    for (int i = 0; i < plain.n_fills; i++) round_tensor(&memory, plain.fill[i].tensor, typed.fill[i].tensor);
    for (int n = 0; n < plain.graph->n_nodes; n++) {
        const Node *node = plain.graph->node[n];
        if (node->op == &OP_TEST_LOSS) continue;
        Run run = {.test = &plain, .variant = variant, .plain = node, .typed = typed.graph->node[n]};
        for (int i = 0; i < node->n_inputs; i++)
            run.input[i] = node->input[i] ? copy_of(&memory, node->input[i]) : NULL;
        for (int k = 0; k < node->n_outputs; k++) {
            if (node->output[k] && case_is_filled(&plain, node->output[k]))
                run.before[k] = copy_of(&memory, node->output[k]);
        }
        KernelCall call = test_memory_call(&memory, node);
        for (int k = 0; k < node->n_outputs;
             k++) { /* gradients that add up in the graph are looked at one by one */
            if (node->section == SECTION_BACKWARD) call.add[k] = false;
        }
        Error error = {0};
        if (node->op->reference(&call, &error) != STATUS_OK) fail_msg("%s: %s", spec->label, error.text);
        for (int k = 0; k < node->n_outputs; k++)
            run.want[k] = node->output[k] ? copy_of(&memory, node->output[k]) : NULL;
        if (is_update(node) && run.typed->output[node->n_outputs - 1]) /* the copy is the parameter */
            run.want[node->n_outputs - 1] = copy_of(&memory, node->output[0]);
        check_node(&run);
        forget_rows(&run, &memory);
        for (int i = 0; i < node->n_inputs; i++) free((void *)run.input[i]);
        for (int k = 0; k < node->n_outputs; k++) {
            free((void *)run.before[k]);
            free((void *)run.want[k]);
            if (node->output[k]) round_tensor(&memory, node->output[k], run.typed->output[k]);
        }
    }
    test_memory_close(&memory);
    case_close(&plain);
    case_close(&typed);
}

static void check_specs(const OpSpec *specs, int n_specs, const Variant *variant) {
    int n_operations = 0;
    n_failures = n_outputs_compared = 0;
    farthest = farthest_steep = 0.0;
    memset(n_runs_of, 0, sizeof n_runs_of);
    for (int i = 0; i < n_specs; i++) {
        if (!only_cases || strstr(specs[i].label, only_cases)) check_spec(&specs[i], variant);
    }
    for (int i = 0; i < N_KERNEL_OPS; i++) {
        n_operations += n_runs_of[i] > 0;
        if (!n_runs_of[i] && specs == kernel_specs && !only_cases)
            failed("no case has run %s", kernel_ops[i]->name);
    }
    printf(
        "compared: %d outputs of %d operations in %s: norms within %g, elements within %g, %.2f of that needed",
        n_outputs_compared, n_operations, variant->name, variant->tolerance, 10.0 * variant->tolerance,
        farthest);
    if (farthest_steep > 0.0)
        printf("; saturated attention %g times that, %.2f needed", steep_times, farthest_steep);
    printf("\n");
    if (n_failures) fail_msg("%d differences with %s", n_failures, variant->name);
}

static void test_variant(void **state) {
    check_specs(kernel_specs, n_kernel_specs, *state);
}

static void test_variant_large(void **state) {
    check_specs(LARGE_SPECS, N_LARGE, *state);
}

/* Whether the sums of columns are worth moving to the node that makes these (graph/passes/sums.h). */
static void test_who_sums(void **state) {
    (void)state;
    static const struct {
        OpSpec spec;
        const Op *op;
        bool sums[2]; /* in 16 bits, in f32 */
    } cases[] = {
        {{"norm", build_residual_norm, {2, 64, 384}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {true, false}},
        {{"norm odd", build_residual_norm, {2, 9, 33}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {false, false}},
        {{"norm wide", build_residual_norm, {2, 9, 1600}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {false, false}},
        {{"mlp erf", build_mlp, {70, 520, 64}, CASE_ERF, 0}, &OP_LINEAR_INPUT_GRADIENT, {true, true}},
        {{"mlp odd", build_mlp, {70, 24, 33}, CASE_ERF, 0}, &OP_LINEAR_INPUT_GRADIENT, {false, false}},
        {{"attention", build_attention, {2, 256, 2, 2, 64}, CASE_LAYER, 0},
         &OP_ATTENTION_BACKWARD,
         {true, false}},
        {{"attention long", build_attention, {1, 300, 2, 2, 64}, CASE_LAYER, 0},
         &OP_ATTENTION_BACKWARD,
         {false, false}},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        OpCase test;
        case_open(&test, &cases[i / 2].spec);
        retype(test.graph, &VARIANTS[i % 2 ? 0 : 1]);
        for (int n = 0; n < test.graph->n_nodes; n++) {
            const Node *node = test.graph->node[n];
            if (node->op != cases[i / 2].op || (node->op == &OP_LINEAR_INPUT_GRADIENT && !node->input[2]))
                continue;
            if (gpu.traits.sums_columns(&gpu.traits, node) != cases[i / 2].sums[i % 2])
                fail_msg("'%s' in %s: not what was expected", cases[i / 2].spec.label,
                         i % 2 ? "f32" : "16 bits");
        }
        case_close(&test);
    }
}

/* What is faster when the order of sums is free must still be the sum. */
static void test_any_order(void **state) {
    (void)state;
    static const OpSpec specs[] = {
        {"embedding gpt2", build_embedding, {4, 512, 768, 5003, 512}, CASE_POSITIONS, 0},
        {"embedding long runs", build_embedding, {64, 400, 8, 385, 400}, CASE_POSITIONS, 0},
        {"embedding odd", build_embedding, {4, 100, 37, 500, 100}, CASE_POSITIONS, 0},
        {"linear qkv", build_linear, {192, 768, 2304}, CASE_BIAS, 0},
        {"attention long", build_attention, {1, 512, 2, 2, 64}, 0, 0},
    };
    Error error = {0};
    assert_int_equal(backend_cuda_configure(&gpu, (CudaSettings){.any_order = true}, &error), STATUS_OK);
    n_failures = n_outputs_compared = 0;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        for (int v = 0; v < 3; v++) check_spec(&specs[i], &VARIANTS[v]);
    }
    assert_int_equal(backend_cuda_configure(&gpu, (CudaSettings){0}, &error), STATUS_OK);
    if (n_failures) fail_msg("%d differences in any order", n_failures);
}

/* An argument names the only variant to test: "bf16", "bf16 large"; a second one is a part of the labels of the
 * only cases. */
int main(int argc, char **argv) {
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
    printf("%s\n", backend_cuda_describe(&gpu, words, sizeof words));
    enum { N_VARIANTS = sizeof VARIANTS / sizeof VARIANTS[0] };
    char large[N_VARIANTS][32];
    struct CMUnitTest tests[2 * N_VARIANTS + 2];
    for (int i = 0; i < N_VARIANTS; i++) {
        void *variant = (void *)&VARIANTS[i];
        snprintf(large[i], sizeof large[i], "%s large", VARIANTS[i].name);
        tests[2 * i] = (struct CMUnitTest){VARIANTS[i].name, test_variant, NULL, NULL, variant};
        tests[2 * i + 1] = (struct CMUnitTest){large[i], test_variant_large, NULL, NULL, variant};
    }
    tests[2 * N_VARIANTS] = (struct CMUnitTest)cmocka_unit_test(test_any_order);
    tests[2 * N_VARIANTS + 1] = (struct CMUnitTest)cmocka_unit_test(test_who_sums);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) only_cases = argv[2];
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    gpu.close(gpu.context);
    return result;
}
