/* Every kernel of every backend against the operation's reference: odd shapes, tails, single elements, nothing at
 * all, and sizes that cross tiles and start all threads; fresh and added outputs, and outputs that take over an
 * input's memory. Outputs are poisoned before and fenced, and the results of different thread counts must be the
 * same bits.
 *
 * Node by node: inputs come from the reference run, so an error is found in the kernel that makes it. A further
 * backend joins by an entry in BACKENDS. */
#include "backend/cpu/cpu.h"
#include "op_cases.h"
#include "ops/attention/sparse_attention.h"
#include "ops/experts/experts.h"
#include "residual_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_VARIANTS = 4 };

typedef struct {
    const char *name;
    Status (*open)(Backend *backend, int n_threads, Error *error);
    int n_variants, n_threads[MAX_VARIANTS];
    bool same_bits;       /* whatever the number of threads */
    bool has_all_kernels; /* none of them is the reference in disguise */
    double tolerance;
} BackendSpec;

static const BackendSpec BACKENDS[] = {
    {"cpu", backend_cpu_open, 4, {1, 2, 3, 7}, true, true, 1e-5},
};

/* ---- one execution of one node ---- */

/* How a node is to be run: how it writes its outputs (a kernel that may have to add can ask for more scratch), and
 * whether one takes over an input. */
typedef struct {
    const char *name;
    unsigned adds;    /* a bit for every output that adds */
    WriteMode others; /* how the others are written */
    int in_place;     /* output that lies on the input its op names, or -1 */
} Mode;

typedef struct {
    void *out[NODE_MAX_OUTPUTS]; /* malloc'ed, NULL where the node has none */
} Outputs;

static void outputs_free(Outputs *outputs) {
    for (int k = 0; k < NODE_MAX_OUTPUTS; k++) free(outputs->out[k]);
}

static WriteMode write_mode(const Mode *mode, int output) {
    return mode->adds >> output & 1 ? WRITE_ADD : mode->others;
}

/* What an output holds before the node runs: NULL for poison. */
static const void *initial(const OpCase *test, const TestMemory *memory, const Node *node, const Mode *mode,
                           int k) {
    const Tensor *output = node->output[k];
    if (case_is_filled(test, output)) return test_memory_at(memory, output);
    return write_mode(mode, k) == WRITE_ADD ? test_memory_at(memory, output)
                                            : NULL; /* any numbers: the first run left some */
}

static void check_unchanged(const OpCase *test, const TestMemory *memory, const Node *node, int input,
                            const TestBuffer *buffer) {
    const Tensor *tensor = node->input[input];
    size_t n_bytes = tensor_bytes(tensor);
    void *after = test_buffer_read(buffer, tensor->name);
    if (n_bytes && memcmp(after, test_memory_at(memory, tensor), n_bytes) != 0) {
        fail_msg("%s: %s changed its input %s", test->spec->label, node->op->name, tensor->name);
    }
    free(after);
}

/* Run `node` by the reference (backend NULL) or a backend's kernel, on copies of what `memory` holds. */
static Outputs run_node(const OpCase *test, const TestMemory *memory, const Node *node, const Mode *mode,
                        const Backend *backend) {
    Node as_asked = *node;
    for (int k = 0; k < NODE_MAX_OUTPUTS; k++) as_asked.write[k] = write_mode(mode, k);
    node = &as_asked;
    TestBuffer in[NODE_MAX_INPUTS] = {0}, out[NODE_MAX_OUTPUTS] = {0}, scratch = {0};
    KernelCall call = {.node = node, .n_threads = backend ? backend->n_threads : 1};
    for (int i = 0; i < node->n_inputs; i++) {
        if (!node->input[i]) continue;
        in[i] =
            test_buffer_open(backend, test_memory_at(memory, node->input[i]), tensor_bytes(node->input[i]));
        call.in[i] = test_buffer_data(&in[i]);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        call.add[k] = node->write[k] == WRITE_ADD;
        out[k] =
            test_buffer_open(backend, initial(test, memory, node, mode, k), tensor_bytes(node->output[k]));
        call.out[k] = test_buffer_data(&out[k]);
    }
    int source = mode->in_place >= 0 ? node->op->in_place(node, mode->in_place) : -1;
    if (source >= 0) call.out[mode->in_place] = test_buffer_data(&in[source]);
    Kernel kernel = backend ? backend->kernel(backend->context, node) : node->op->reference;
    if (!kernel) fail_msg("%s has no kernel for %s", backend->name, node->op->name);
    Error error = {0};
    if (backend) {
        size_t n_bytes = traits_scratch_bytes(&backend->traits, node);
        scratch = test_buffer_open(backend, NULL, n_bytes);
        call.scratch = n_bytes ? test_buffer_data(&scratch) : NULL;
        call.context = backend->context;
    }
    if (kernel(&call, &error) != STATUS_OK)
        fail_msg("%s: %s: %s", test->spec->label, node->op->name, error.text);
    if (backend && backend->synchronize)
        assert_int_equal(backend->synchronize(backend->context, &error), STATUS_OK);

    Outputs outputs = {0};
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        const TestBuffer *from = k == mode->in_place ? &in[source] : &out[k];
        outputs.out[k] = test_buffer_read(from, node->output[k]->name);
    }
    for (int i = 0; i < node->n_inputs; i++) {
        if (in[i].block && i != source) check_unchanged(test, memory, node, i, &in[i]);
        test_buffer_close(&in[i]);
    }
    for (int k = 0; k < NODE_MAX_OUTPUTS; k++) test_buffer_close(&out[k]);
    if (scratch.block) free(test_buffer_read(&scratch, "scratch"));
    test_buffer_close(&scratch);
    return outputs;
}

/* Scores of several thousand are themselves rounded to about 1e-4, and e^score carries that as it is. */
static bool is_steep(const OpCase *test, const Node *node) {
    return (test->spec->flags & CASE_LARGE) &&
           (node->op == &OP_ATTENTION || node->op == &OP_ATTENTION_BACKWARD ||
            node->op == &OP_ATTENTION_PART || node->op == &OP_ATTENTION_PART_BACKWARD ||
            node->op == &OP_SPARSE_ATTENTION || node->op == &OP_SPARSE_ATTENTION_BACKWARD);
}

static void compare(const OpCase *test, const Node *node, const Mode *mode, const Backend *backend,
                    double tolerance, const Outputs *got, const Outputs *want) {
    if (is_steep(test, node)) tolerance *= 30.0;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        if (node->output[k]->dtype == DTYPE_I32) { /* whole numbers are right or wrong */
            if (tensor_bytes(node->output[k]) &&
                memcmp(got->out[k], want->out[k], tensor_bytes(node->output[k])) != 0)
                fail_msg("%s: %s of '%s': %s differs", backend->name, node->op->name, test->spec->label,
                         node->output[k]->name);
            continue;
        }
        test_assert_close(got->out[k], want->out[k], tensor_count(node->output[k]), tolerance, 0.0,
                          "%s, %d threads: %s of '%s'%s: %s", backend->name, backend->n_threads,
                          node->op->name, test->spec->label, mode->name, node->output[k]->name);
    }
}

static void check_same_bits(const OpCase *test, const Node *node, const Mode *mode, const Outputs *a,
                            const Outputs *b, int n_threads) {
    for (int k = 0; k < node->n_outputs; k++) {
        if (node->output[k] && tensor_bytes(node->output[k]) &&
            memcmp(a->out[k], b->out[k], tensor_bytes(node->output[k])) != 0) {
            fail_msg("%s of '%s'%s: %s has other bits with %d threads than with 1", node->op->name,
                     test->spec->label, mode->name, node->output[k]->name, n_threads);
        }
    }
}

static void check_mode(const OpCase *test, const TestMemory *memory, const Node *node, const Mode *mode,
                       const BackendSpec *spec, const Backend *backends) {
    Mode apart = *mode; /* the reference never works in place: it says what the result is */
    apart.in_place = -1;
    Outputs want = run_node(test, memory, node, &apart, NULL), first = {0};
    for (int i = 0; i < spec->n_variants; i++) {
        if (spec->has_all_kernels && backends[i].kernel(backends[i].context, node) == node->op->reference) {
            fail_msg("%s has no kernel of its own for %s", spec->name, node->op->name);
        }
        Outputs got = run_node(test, memory, node, mode, &backends[i]);
        compare(test, node, mode, &backends[i], spec->tolerance, &got, &want);
        if (i == 0) {
            first = got;
            continue;
        }
        if (spec->same_bits) check_same_bits(test, node, mode, &first, &got, backends[i].n_threads);
        outputs_free(&got);
    }
    outputs_free(&first);
    outputs_free(&want);
}

/* Outputs that may be asked to add: gradients and running sums. */
static bool can_add(const Node *node) {
    return node->section == SECTION_BACKWARD || node->op == &OP_SUM || node->op == &OP_SQUARED_NORM ||
           node->op == &OP_ROUTE_REPORT || node->op == &OP_ROUTE_BIAS;
}

static void check_node(const OpCase *test, const TestMemory *memory, const Node *node,
                       const BackendSpec *spec, const Backend *backends) {
    static const Mode modes[] = {
        {"", 0, WRITE_FRESH, -1},
        {" adding", ~0u, WRITE_ADD, -1},
        {" first of several", 0, WRITE_ADD_AFTER_FIRST, -1},
        {" adding to the first", 1, WRITE_ADD_AFTER_FIRST, -1},
        {" adding to the second", 2, WRITE_FRESH, -1},
        {" adding to the third", 4, WRITE_FRESH, -1},
        {" adding to the fourth", 8, WRITE_FRESH, -1},
        {" adding to the fifth", 16, WRITE_FRESH, -1},
    };
    assert_in_range(node->n_outputs, 1, NODE_MAX_OUTPUTS);
    int n_modes = !can_add(node) ? 1 : node->n_outputs == 1 ? 3 : 3 + node->n_outputs;
    for (int i = 0; i < n_modes; i++) check_mode(test, memory, node, &modes[i], spec, backends);
    for (int k = 0; k < node->n_outputs && node->op->in_place; k++) {
        int input = node->op->in_place(node, k);
        if (input < 0 || !node->output[k]) continue;
        assert_int_equal(tensor_bytes(node->input[input]), tensor_bytes(node->output[k]));
        Mode mode = {" in place", 0, WRITE_FRESH, k};
        check_mode(test, memory, node, &mode, spec, backends);
    }
}

/* ---- all of them ---- */

static void check_spec(const OpSpec *op_spec, const BackendSpec *spec, const Backend *backends,
                       int *n_checked) {
    OpCase test;
    case_open(&test, op_spec);
    TestMemory memory = test_memory_open(test.graph);
    case_fill(&test, &memory);
    for (int n = 0; n < test.graph->n_nodes; n++) {
        const Node *node = test.graph->node[n];
        if (node->op == &OP_TEST_LOSS) continue;
        TestMemory before =
            test_memory_open(test.graph); /* in-outs must be seen as they are before the node */
        for (int i = 0; i < test.graph->n_tensors; i++) {
            Tensor *tensor = test.graph->tensor[i];
            memcpy(test_memory_at(&before, tensor), test_memory_at(&memory, tensor), tensor_bytes(tensor));
        }
        KernelCall call = test_memory_call(&memory, node);
        Error error = {0};
        if (node->op->reference(&call, &error) != STATUS_OK) fail_msg("%s: %s", op_spec->label, error.text);
        for (int k = 0; k < node->n_outputs; k++) { /* numbers for outputs to add to */
            Tensor *output = node->output[k];
            if (output && !case_is_filled(&test, output)) {
                memcpy(test_memory_at(&before, output), test_memory_at(&memory, output),
                       tensor_bytes(output));
            }
        }
        check_node(&test, &before, node, spec, backends);
        for (int i = 0; i < N_KERNEL_OPS; i++) n_checked[i] += kernel_ops[i] == node->op;
        test_memory_close(&before);
    }
    test_memory_close(&memory);
    case_close(&test);
}

static void test_backend(void **state) {
    const BackendSpec *spec = *state;
    Backend backends[MAX_VARIANTS] = {0};
    Error error = {0};
    for (int i = 0; i < spec->n_variants; i++) {
        if (spec->open(&backends[i], spec->n_threads[i], &error) != STATUS_OK) fail_msg("%s", error.text);
    }
    int n_checked[N_KERNEL_OPS] = {0};
    for (int i = 0; i < n_kernel_specs; i++) check_spec(&kernel_specs[i], spec, backends, n_checked);
    for (int i = 0; i < N_KERNEL_OPS; i++) {
        if (!n_checked[i]) fail_msg("no case has a node of %s", kernel_ops[i]->name);
    }
    for (int i = 0; i < spec->n_variants; i++) backends[i].close(backends[i].context);
}

static void test_residual_norm_on_cpu(void **unused) {
    (void)unused;
    Backend backend;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&backend, 2, &error), STATUS_OK);
    residual_norm_has_the_bits_of_its_parts(&backend);
    backend.close(backend.context);
}

int main(void) {
    enum { N_BACKENDS = sizeof BACKENDS / sizeof BACKENDS[0] };
    struct CMUnitTest tests[N_BACKENDS + 1] = {[N_BACKENDS] = cmocka_unit_test(test_residual_norm_on_cpu)};
    for (int i = 0; i < N_BACKENDS; i++) {
        tests[i] = (struct CMUnitTest){BACKENDS[i].name, test_backend, NULL, NULL, (void *)&BACKENDS[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
