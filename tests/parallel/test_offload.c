/* Offload changes no bit. On the CPU state goes to a file or, as a copy, to other memory. And there is a device
 * that is far: the CPU's kernels in memory that is called a device's, whose copies are as late as they may be, or as early.
 * What is read before it came, or written over before it went, makes other numbers. */
#include "backend/cpu/cpu.h"
#include "graph/device/mover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/passes/recompute.h"
#include "ops/move.h"
#include "train_small.h"

enum { MANY = 16384 };

/* ---- a device that is far */

typedef struct {
    void *to;
    const void *from;
    size_t n_bytes;
    bool is_out, is_done;
    uint64_t after;
} Copy;

typedef struct {
    Backend cpu;
    bool is_late;
    Copy copy[MANY];
    uint64_t n_copies;
    int n_pinned;
} FarDevice;

static void carry_out(FarDevice *device, uint64_t number) {
    Copy *copy = &device->copy[number % MANY];
    if (!number || copy->is_done) return;
    carry_out(device, copy->after);
    for (uint64_t n = 1; n < number; n++) /* a lane keeps its order */
        if (device->copy[n % MANY].is_out == copy->is_out && !device->copy[n % MANY].is_done)
            carry_out(device, n);
    memcpy(copy->to, copy->from, copy->n_bytes);
    copy->is_done = true;
}

static Status far_copy_start(void *context, void *to, const void *from, size_t n_bytes, bool is_out,
                             uint64_t after, const BackendSpan *span, uint64_t *ticket, Error *error) {
    FarDevice *device = context;
    (void)span, (void)error;
    *ticket = ++device->n_copies;
    assert_true(device->n_copies < MANY);
    device->copy[*ticket] =
        (Copy){.to = to, .from = from, .n_bytes = n_bytes, .is_out = is_out, .after = after};
    if (!device->is_late) carry_out(device, *ticket);
    return STATUS_OK;
}

static Status far_copy_wait(void *context, uint64_t ticket, bool by_host, Error *error) {
    (void)by_host, (void)error;
    carry_out(context, ticket);
    return STATUS_OK;
}

static Status far_allocate(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    FarDevice *device = context;
    return device->cpu.allocate(device->cpu.context, n_bytes, what, memory, error);
}

static Status far_allocate_pinned(void *context, size_t n_bytes, const char *what, void **memory,
                                  Error *error) {
    FarDevice *device = context;
    (void)what, (void)error;
    device->n_pinned++;
    assert_int_equal(posix_memalign(memory, 4096, n_bytes), 0);
    memset(*memory, 0, n_bytes);
    return STATUS_OK;
}

static void far_release(void *context, void *memory, size_t n_bytes) {
    FarDevice *device = context;
    device->cpu.release(device->cpu.context, memory, n_bytes);
}

static void far_release_pinned(void *context, void *memory, size_t n_bytes) {
    (void)n_bytes;
    ((FarDevice *)context)->n_pinned--;
    free(memory);
}

static size_t far_free_bytes(void *context) {
    FarDevice *device = context;
    return device->cpu.free_bytes(device->cpu.context);
}

static Status far_load(void *context, void *to, const void *from, size_t n_bytes, Error *error) {
    (void)context, (void)error;
    memcpy(to, from, n_bytes);
    return STATUS_OK;
}

static Kernel far_kernel(void *context, const Node *node) {
    FarDevice *device = context;
    return device->cpu.kernel(device->cpu.context, node);
}

static Backend far_backend(FarDevice *device) {
    BackendTraits traits = device->cpu.traits;
    traits.memory = MEMORY_DEVICE;
    return (Backend){.name = "far",
                     .traits = traits,
                     .allocate = far_allocate,
                     .release = far_release,
                     .free_bytes = far_free_bytes,
                     .upload = far_load,
                     .download = far_load,
                     .kernel = far_kernel,
                     .allocate_pinned = far_allocate_pinned,
                     .release_pinned = far_release_pinned,
                     .copy_start = far_copy_start,
                     .copy_wait = far_copy_wait,
                     .host = {device->cpu.traits, device->cpu.kernel, device->cpu.context, 1},
                     .context = device,
                     .n_threads = 1};
}

/* ---- training */

static Offload offload_of(OffloadTo optimizer, OffloadTo activations, double share) {
    Offload offload = {.share = share,
                       .bucket_bytes = 4096,
                       .file_queue = share > 0.0 ? FILE_QUEUE_THREADS : FILE_QUEUE_AUTO};
    offload.to[OFFLOAD_GRADIENTS] = activations == OFFLOAD_HOST ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
    offload.to[OFFLOAD_WEIGHTS] = activations == OFFLOAD_FILE ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
    offload.to[OFFLOAD_OPTIMIZER] = optimizer;
    offload.to[OFFLOAD_ACTIVATIONS] = activations;
    if (optimizer == OFFLOAD_FILE || activations == OFFLOAD_FILE) strcpy(offload.folder, "/tmp");
    return offload;
}

static const PrecisionKind precisions[] = {PRECISION_F32, PRECISION_BF16, PRECISION_F16, PRECISION_PURE_BF16};
enum { N_PRECISIONS_HERE = sizeof precisions / sizeof precisions[0] };

static void compare(const Backend *plain, const Backend *other, int number, PrecisionKind precision,
                    const Offload *offload, SmallUpdate update) {
    size_t n_one, n_two;
    void *one = train_small_offloaded(plain, number, precision, NULL, update, &n_one);
    void *two = train_small_offloaded(other, number, precision, offload, update, &n_two);
    assert_int_equal(n_one, n_two);
    assert_memory_equal(one, two, n_one);
    free(one);
    free(two);
}

static void a_cpu_has_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    Backend cpu;
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    for (int i = 0; i < N_PRECISIONS_HERE * 4; i++) {
        static const OffloadTo activations[] = {OFFLOAD_NOWHERE, OFFLOAD_HOST, OFFLOAD_FILE};
        Offload offload =
            offload_of(i & 1 ? OFFLOAD_FILE : OFFLOAD_HOST, activations[i % 3], i & 2 ? 0.37 : 0.0);
        compare(&cpu, &cpu, i % N_SMALL_TRAININGS, precisions[i / 4], &offload,
                (SmallUpdate){.clip = i & 2 ? CLIP_CHECK : CLIP_WAIT});
    }
}

static void a_far_device_has_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    FarDevice *device = malloc(sizeof *device);
    assert_non_null(device);
    for (int i = 0; i < N_PRECISIONS_HERE * 10; i++) {
        *device = (FarDevice){.is_late = i & 1};
        assert_int_equal(backend_cpu_open(&device->cpu, 1, &error), STATUS_OK);
        Backend far = far_backend(device);
        static const OffloadTo activations[] = {OFFLOAD_HOST, OFFLOAD_NOWHERE, OFFLOAD_FILE};
        Offload offload =
            offload_of(i & 2 ? OFFLOAD_FILE : OFFLOAD_HOST, activations[i % 3], i & 8 ? 0.2 : 0.0);
        offload.host_updates = i % 7 < 2;
        compare(&device->cpu, &far, i % N_SMALL_TRAININGS, precisions[i / 10], &offload,
                (SmallUpdate){.clip = i & 4 ? CLIP_CHECK : CLIP_WAIT});
        assert_true(device->n_copies > 10 * SMALL_STEPS); /* it was used */
        assert_int_equal(device->n_pinned, 0);            /* and given back */
    }
    free(device);
}

/* Every optimizer, with moments of every kind: here, and far away where state streams through the device or is
 * updated by the host, which lamb's sums do not allow. */
static void optimizers_have_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    static const OptimizerKind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_MUON, OPTIMIZER_LAMB};
    static const MomentsKind moments[] = {MOMENTS_8BIT, MOMENTS_BF16, MOMENTS_F32};
    FarDevice *device = malloc(sizeof *device);
    assert_non_null(device);
    for (int i = 0; i < 20; i++) {
        SmallUpdate update = {kinds[i % 3], moments[i / 3 % 3], i % 5 == 4 ? CLIP_CHECK : CLIP_WAIT, 0};
        bool is_lamb = update.optimizer == OPTIMIZER_LAMB, to_file = i >= 10 && !is_lamb;
        *device = (FarDevice){.is_late = i & 1};
        assert_int_equal(backend_cpu_open(&device->cpu, 1, &error), STATUS_OK);
        Backend far = far_backend(device);
        Offload offload =
            offload_of(to_file ? OFFLOAD_FILE : OFFLOAD_HOST, OFFLOAD_NOWHERE, i % 7 == 6 ? 0.3 : 0.0);
        offload.to[OFFLOAD_GRADIENTS] = i % 4 == 3 ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
        offload.to[OFFLOAD_WEIGHTS] = i % 8 == 5 ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
        offload.host_updates = i % 2 && !is_lamb;
        compare(&device->cpu, &far, i % N_SMALL_TRAININGS, precisions[i % N_PRECISIONS_HERE], &offload,
                update);
        offload = offload_of(OFFLOAD_FILE, OFFLOAD_NOWHERE, 0.0);
        compare(&device->cpu, &device->cpu, i % N_SMALL_TRAININGS, precisions[i % N_PRECISIONS_HERE],
                &offload, update);
    }
    free(device);
}

/* Weights and sums of gradients in a file, with or without the rest: from a file into a far device there are two steps. Its norm
 * is taken of all of the gradient at once, which a file does not have. */
static void files_have_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    static const OptimizerKind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_MUON, OPTIMIZER_LAMB};
    static const OffloadTo optimizers[] = {OFFLOAD_NOWHERE, OFFLOAD_HOST, OFFLOAD_FILE};
    FarDevice *device = malloc(sizeof *device);
    assert_non_null(device);
    for (int i = 0; i < 36; i++) {
        SmallUpdate update = {kinds[i / 3 % 3], i % 4 == 3 ? MOMENTS_8BIT : MOMENTS_F32,
                              i % 5 == 4 ? CLIP_CHECK : CLIP_WAIT, 0};
        bool is_lamb = update.optimizer == OPTIMIZER_LAMB;
        *device = (FarDevice){.is_late = i & 1};
        assert_int_equal(backend_cpu_open(&device->cpu, 1, &error), STATUS_OK);
        Backend far = far_backend(device);
        Offload offload = offload_of(optimizers[i % 3], i % 7 == 6 ? OFFLOAD_FILE : OFFLOAD_NOWHERE,
                                     i % 6 == 5 ? 0.3 : 0.0);
        offload.to[OFFLOAD_WEIGHTS] = OFFLOAD_FILE;
        strcpy(offload.folder, "/tmp");
        if (!is_lamb || offload.to[OFFLOAD_OPTIMIZER] != OFFLOAD_FILE) {
            offload.host_updates = i % 2 && !is_lamb;
            offload.to[OFFLOAD_GRADIENTS] = i % 2 ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
            compare(&device->cpu, &far, i % N_SMALL_TRAININGS, precisions[i % N_PRECISIONS_HERE], &offload,
                    update);
            assert_true(device->n_copies > 10 * SMALL_STEPS);
        }
        offload.to[OFFLOAD_GRADIENTS] = OFFLOAD_FILE;
        if (i % 4 == 2) offload.to[OFFLOAD_WEIGHTS] = OFFLOAD_NOWHERE;
        compare(&device->cpu, &device->cpu, i % N_SMALL_TRAININGS, precisions[i / 2 % N_PRECISIONS_HERE],
                &offload, update);
        if (i % 9) continue; /* nothing to take a norm for */
        *device = (FarDevice){.is_late = i & 1, .cpu = device->cpu};
        offload.host_updates = false;
        update = (SmallUpdate){.optimizer = OPTIMIZER_ADAMW};
        compare(&device->cpu, &far, N_SMALL_TRAININGS - 1, PRECISION_BF16, &offload, update);
    }
    free(device);
}

/* Updates that are a step late are the same wherever the state is, and other ones than those that are not. */
static void late_updates_have_the_same_bits(void **state) {
    (void)state;
    Error error = {0};
    static const OptimizerKind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_MUON, OPTIMIZER_LAMB};
    FarDevice *device = malloc(sizeof *device);
    assert_non_null(device);
    for (int i = 0; i < 24; i++) {
        SmallUpdate update = {kinds[i / 4 % 3], i % 5 == 4 ? MOMENTS_8BIT : MOMENTS_F32, CLIP_WAIT,
                              1 + i % 3};
        bool is_lamb = update.optimizer == OPTIMIZER_LAMB;
        *device = (FarDevice){.is_late = i & 1};
        assert_int_equal(backend_cpu_open(&device->cpu, 1, &error), STATUS_OK);
        Backend far = far_backend(device);
        Offload offload = offload_of(i & 2 && !is_lamb ? OFFLOAD_FILE : OFFLOAD_HOST, OFFLOAD_NOWHERE,
                                     i % 6 == 5 ? 0.3 : 0.0);
        offload.to[OFFLOAD_GRADIENTS] = i % 4 == 3 ? OFFLOAD_HOST : OFFLOAD_NOWHERE;
        offload.host_updates = i % 3 == 1 && !is_lamb;
        compare(&device->cpu, &far, i % N_SMALL_TRAININGS, precisions[i % N_PRECISIONS_HERE], &offload,
                update);
        offload = offload_of(OFFLOAD_FILE, OFFLOAD_NOWHERE, 0.0);
        if (i % 3 == 2) offload.to[OFFLOAD_WEIGHTS] = OFFLOAD_FILE;
        compare(&device->cpu, &device->cpu, i % N_SMALL_TRAININGS, precisions[i / 2 % N_PRECISIONS_HERE],
                &offload, update);
    }
    size_t n_bytes;
    void *prompt = train_small_offloaded(&device->cpu, 0, PRECISION_F32, NULL, (SmallUpdate){0}, &n_bytes);
    void *late =
        train_small_offloaded(&device->cpu, 0, PRECISION_F32, NULL, (SmallUpdate){.n_prompt = 2}, &n_bytes);
    void *later = train_small_offloaded(&device->cpu, 0, PRECISION_F32, NULL,
                                        (SmallUpdate){.n_prompt = SMALL_STEPS}, &n_bytes);
    assert_memory_not_equal(prompt, late, n_bytes);
    assert_memory_equal(prompt, later, n_bytes);
    free(prompt), free(late), free(later);
    free(device);
}

/* ---- the mover */

static void moves_wait_for_those_before_them(void **state) {
    (void)state;
    enum { N = 1 << 16, ROUNDS = 600 };
    Error error = {0};
    Backend cpu;
    Mover *mover = NULL;
    char *file = (char *)(uintptr_t)0x100000000000, *a = NULL, *b = NULL;
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    MoverOptions options = {.backend = &cpu, .folder = "/tmp", .file = {{file, 2 * N}}, .n_files = 1};
    assert_int_equal(mover_open(&mover, &options, &error), STATUS_OK);
    assert_int_equal(posix_memalign((void **)&a, 4096, N), 0);
    assert_int_equal(posix_memalign((void **)&b, 4096, N), 0);
    uint64_t ticket = 0;
    for (int i = 0; i < ROUNDS; i++) { /* more than there are places */
        memset(a, i, N);
        MoveEnd from = {a, MEMORY_HOST}, there = {file + N, MEMORY_FILE}, to = {b, MEMORY_HOST};
        assert_int_equal(mover_start(mover, MOVE_OUT, from, there, N, &ticket, &error), STATUS_OK);
        assert_int_equal(mover_start(mover, MOVE_IN, there, to, N, &ticket, &error), STATUS_OK);
        assert_int_equal(mover_wait(mover, ticket, true, &error), STATUS_OK);
        assert_memory_equal(a, b, N);
    }
    char part[777], back[777];
    memset(part, 'x', sizeof part);
    MoveEnd odd = {file + N + 4000, MEMORY_FILE};
    assert_int_equal(mover_copy(mover, (MoveEnd){part, MEMORY_HOST}, odd, sizeof part, &error), STATUS_OK);
    assert_int_equal(mover_copy(mover, odd, (MoveEnd){back, MEMORY_HOST}, sizeof back, &error), STATUS_OK);
    assert_memory_equal(part, back, sizeof part);
    MoveEnd before = {file + N + 3999, MEMORY_FILE};
    assert_int_equal(mover_copy(mover, before, (MoveEnd){back, MEMORY_HOST}, 2, &error), STATUS_OK);
    assert_int_equal((unsigned char)back[0], (ROUNDS - 1) % 256); /* neighbours stay */
    assert_int_equal(back[1], 'x');
    assert_true(mover_counts(mover).bytes[MOVE_OUT] == (uint64_t)N * ROUNDS);
    mover_close(&mover);
    free(a);
    free(b);
}

static void a_folder_that_is_not_there_is_refused(void **state) {
    (void)state;
    Error error = {0};
    Backend cpu;
    Mover *mover = NULL;
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    MoverOptions options = {
        .backend = &cpu, .folder = "/nowhere/at/all", .file = {{(void *)4096, 4096}}, .n_files = 1};
    assert_int_equal(mover_open(&mover, &options, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "/nowhere/at/all"));
    assert_null(mover);
    error = (Error){0};
    options.folder = "/tmp";
    options.file[0].n_bytes = (size_t)1 << 58;
    assert_int_equal(mover_open(&mover, &options, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "free"));
}

/* ---- what the user may say */

static void check_words(const char *words, Status wanted, const char *named) {
    Error error = {0};
    Offload offload;
    OffloadOptions options = {.what = words, .bucket_mb = 1.0};
    assert_int_equal(offload_parse(&options, &offload, &error), wanted);
    if (named) assert_non_null(strstr(error.text, named));
}

static void words_are_read(void **state) {
    (void)state;
    check_words("", STATUS_OK, NULL);
    check_words("optimizer", STATUS_OK, NULL);
    check_words("optimizer:host", STATUS_OK, NULL);
    check_words("optimizer:file=/tmp", STATUS_OK, NULL);
    check_words("optimizer:", STATUS_USER, "does not say where");
    check_words("optimizer:disk", STATUS_USER, "optimizer:file=DIR");
    check_words("optimizer:file=", STATUS_USER, "where");
    check_words("optimiser", STATUS_USER, "optimiser");
    check_words("optimizer,optimizer", STATUS_USER, "twice");
    check_words("optimizer,", STATUS_USER, "comma");
    check_words("gradients,optimizer:file=/tmp", STATUS_OK, NULL);
    check_words("gradients:file=/tmp,weights:file=/tmp", STATUS_OK, NULL);
    check_words("gradients:file=/tmp,weights:file=/", STATUS_USER, "two folders");
    check_words("auto", STATUS_OK, NULL);
    check_words("auto,optimizer", STATUS_USER, "leave out the rest");
}

/* Of the nodes between a move's start and its wait, those that compute. */
static int computes_between(const Graph *graph, int start) {
    int n = 0;
    for (int i = start + 1; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->op == &OP_MOVE_WAIT && node->output[0] == graph->node[start]->output[0]) return n;
        n += !node->op->is_portable;
    }
    fail_msg("nobody waits for node %d", start);
    return n;
}

/* Every move has a block to be hidden behind, the one next to where it is used: with activation checkpointing
 * too, where the input of a segment is used in another block than it is made in. */
static void a_block_hides_its_moves(void **state) {
    (void)state;
    Error error = {0};
    Backend cpu;
    ModelConfig config = {
        .n_layers = 9, .n_heads = 4, .n_channels = 64, .context = 64, .vocabulary = 50, .tied = true};
    OptimizerOptions optimizer = {.rate = 1e-2, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0};
    ParameterTable table;
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    assert_int_equal(config_complete(&config, 50, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    for (int recompute = -1; recompute < 4; recompute++) {
        StepOptions options = {.batch = 8,
                               .micro_batch = 8,
                               .T = 64,
                               .recompute = recompute < 0 ? RECOMPUTE_SELECTIVE : recompute,
                               .offload = offload_of(OFFLOAD_NOWHERE, OFFLOAD_HOST, 0.0)};
        options.offload.to[OFFLOAD_GRADIENTS] = OFFLOAD_NOWHERE;
        TrainStep step;
        int n_out = 0, n_in = 0;
        assert_int_equal(train_step_plan(&step, &config, &table, &options, &optimizer, &cpu, &error),
                         STATUS_OK);
        for (int i = 0; i < step.graph->n_nodes; i++) {
            const Node *node = step.graph->node[i];
            if (node->op != &OP_OFFLOAD && node->op != &OP_FETCH) continue;
            assert_true(computes_between(step.graph, i) >= 5); /* a block has seven in the forward, or more */
            *(node->op == &OP_FETCH ? &n_in : &n_out) += 1;
        }
        assert_int_equal(n_in, n_out);
        assert_true(n_in >=
                    (recompute > 0 ? 9 / recompute - 2 : 8)); /* the last block's stay, and tokens do */
        train_step_close(&step);
    }
    parameters_free(&table);
}

/* Half of the memory and more: what is away is not there. */
static void activations_take_less_memory(void **state) {
    (void)state;
    Error error = {0};
    Backend cpu;
    ModelConfig config = {
        .n_layers = 8, .n_heads = 4, .n_channels = 64, .context = 64, .vocabulary = 50, .tied = true};
    OptimizerOptions optimizer = {.rate = 1e-2, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0};
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    assert_int_equal(config_complete(&config, 50, &error), STATUS_OK);
    ParameterTable table;
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    size_t n_bytes[3], n_host[3], n_out[3][8] = {{0}}; /* of every block */
    for (int i = 0; i < 3; i++) {
        StepOptions options = {.batch = 8, .micro_batch = 8, .T = 64};
        if (i) options.offload = offload_of(OFFLOAD_NOWHERE, OFFLOAD_HOST, i == 2 ? 0.5 : 0.0);
        TrainStep step;
        assert_int_equal(train_step_plan(&step, &config, &table, &options, &optimizer, &cpu, &error),
                         STATUS_OK);
        n_bytes[i] = step.program.plan.bytes[PLACE_ACTIVATION];
        n_host[i] = step.program.plan.bytes[PLACE_HOST_FRAME];
        for (int k = 0; k < step.graph->n_nodes; k++) {
            const Node *node = step.graph->node[k];
            if (node->op == &OP_OFFLOAD && node->block >= 0)
                n_out[i][node->block] += tensor_bytes(node->input[0]);
        }
        train_step_close(&step);
    }
    parameters_free(&table);
    assert_int_equal(n_host[0], 0);
    assert_true(n_bytes[1] < n_bytes[0] / 2);
    assert_true(n_bytes[2] > n_bytes[1] && n_bytes[2] < n_bytes[0]);
    assert_true(n_host[2] > n_host[1] / 3 && n_host[2] < 2 * n_host[1] / 3);
    for (int block = 0; block < 7; block++) /* the same part of each; the last has its own */
        assert_true(n_out[2][block] > n_out[1][block] / 4 && n_out[2][block] < n_out[1][block]);
}

/* Pieces are spread over the backward by what it computes, not taken all at once where they become ready. */
static void updates_keep_pace_with_the_backward(void **state) {
    (void)state;
    Error error = {0};
    Backend cpu;
    ModelConfig config = {
        .n_layers = 6, .n_heads = 4, .n_channels = 64, .context = 64, .vocabulary = 50, .tied = true};
    OptimizerOptions optimizer = {.rate = 1e-2, .adamw = {0.9, 0.99, 1e-8}};
    StepOptions options = {.batch = 4, .micro_batch = 4, .T = 64};
    options.offload = offload_of(OFFLOAD_FILE, OFFLOAD_NOWHERE, 0.0);
    options.offload.bucket_bytes = 4096;
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    assert_int_equal(config_complete(&config, 50, &error), STATUS_OK);
    ParameterTable table;
    TrainStep step;
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    assert_int_equal(train_step_plan(&step, &config, &table, &options, &optimizer, &cpu, &error), STATUS_OK);
    double all = 0.0, done = 0.0;
    int n = 0, n_done = 0, n_last = 0;
    bool has_begun = false;
    for (int i = 0; i < step.graph->n_nodes; i++) {
        const Node *node = step.graph->node[i];
        if (node->section != SECTION_BACKWARD) continue;
        double flops = has_begun && !node->op->update ? op_cost(node).flops : 0.0;
        has_begun |= node->op->update != 0;
        n += node->op->update != 0;
        all += flops;
    }
    has_begun = false;
    assert_true(n > 60); /* of 4 KiB each; a block has about 48 */
    for (int i = 0; i < step.graph->n_nodes; i++) {
        const Node *node = step.graph->node[i];
        if (node->section != SECTION_BACKWARD) continue;
        has_begun |= node->op->update != 0;
        if (has_begun && !node->op->update) done += op_cost(node).flops;
        if (!node->op->update) n_last = n_done;
        n_done += node->op->update != 0;
        /* Not ahead of the pace; what costs bytes alone is the slack. */
        if (node->op->update) assert_true(all * n_done / n - done < 0.02 * all);
    }
    assert_true(n_last > n / 2); /* the rest becomes ready with the last gradient, that of the embedding */
    train_step_close(&step);
    parameters_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read),
        cmocka_unit_test(updates_keep_pace_with_the_backward),
        cmocka_unit_test(moves_wait_for_those_before_them),
        cmocka_unit_test(a_folder_that_is_not_there_is_refused),
        cmocka_unit_test(a_cpu_has_the_same_bits),
        cmocka_unit_test(a_far_device_has_the_same_bits),
        cmocka_unit_test(optimizers_have_the_same_bits),
        cmocka_unit_test(files_have_the_same_bits),
        cmocka_unit_test(late_updates_have_the_same_bits),
        cmocka_unit_test(a_block_hides_its_moves),
        cmocka_unit_test(activations_take_less_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
