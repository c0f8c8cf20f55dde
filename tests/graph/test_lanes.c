/* Two lanes give the numbers of one. The backend here is the CPU's, but for a second lane whose instructions are as late as they may
 * be: each is run only when somebody waits for its event. What reads their results too early, or writes over what they still
 * have to read, makes other numbers. */
#include "backend/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train_small.h"

enum { MANY = 256 };

/* ---- a device that is late */

typedef struct {
    Kernel kernel;
    KernelCall call;
} Late;

typedef struct {
    Backend cpu;
    int lane;
    Late late[MANY]; /* a ring: of the second lane, n_late came in all, and n_done of them are done */
    int n_late, n_done;
    int most; /* that were late at the same time */
} LateDevice;

/* How many of the late ones come before it. */
typedef struct {
    int n_before;
} LateEvent;

static void catch_up(LateDevice *device, int n) {
    Error error = {0};
    for (; device->n_done < n; device->n_done++) {
        Late *late = &device->late[device->n_done % MANY];
        assert_int_equal(late->kernel(&late->call, &error), STATUS_OK);
    }
}

static Status run_now_or_later(const KernelCall *call, Error *error) {
    LateDevice *device = call->context;
    KernelCall own = *call;
    own.context = device->cpu.context;
    Kernel kernel = backend_kernel(&device->cpu, call->node);
    if (device->lane == 0) return kernel(&own, error);
    assert_true(device->n_late - device->n_done < MANY);
    Late *late = &device->late[device->n_late++ % MANY];
    late->kernel = kernel;
    late->call = own;
    if (device->most < device->n_late - device->n_done) device->most = device->n_late - device->n_done;
    return STATUS_OK;
}

static Kernel late_kernel(void *context, const Node *node) {
    LateDevice *device = context;
    return backend_kernel(&device->cpu, node) ? run_now_or_later : NULL;
}

static Status late_allocate(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    LateDevice *device = context;
    return device->cpu.allocate(device->cpu.context, n_bytes, what, memory, error);
}

static void late_release(void *context, void *memory, size_t n_bytes) {
    LateDevice *device = context;
    device->cpu.release(device->cpu.context, memory, n_bytes);
}

static size_t late_free_bytes(void *context) {
    LateDevice *device = context;
    return device->cpu.free_bytes(device->cpu.context);
}

/* What the host asks for must be there: after a section nothing is late. */
static Status late_copy(void *context, void *to, const void *from, size_t n_bytes, Error *error) {
    LateDevice *device = context;
    (void)error;
    assert_int_equal(device->n_late, device->n_done);
    memcpy(to, from, n_bytes);
    return STATUS_OK;
}

static Status event_new(void *context, void **event, Error *error) {
    (void)context, (void)error;
    *event = calloc(1, sizeof(LateEvent));
    return STATUS_OK;
}

static void event_free(void *context, void *event) {
    (void)context;
    free(event);
}

static Status event_record(void *context, void *event, Error *error) {
    LateDevice *device = context;
    (void)error;
    ((LateEvent *)event)->n_before = device->lane == 1 ? device->n_late : 0;
    return STATUS_OK;
}

static Status event_wait(void *context, void *event, Error *error) {
    LateDevice *device = context;
    (void)error;
    if (device->lane == 0) catch_up(device, ((LateEvent *)event)->n_before);
    return STATUS_OK;
}

static Status elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error) {
    (void)context, (void)first, (void)second, (void)error;
    *milliseconds = 1.0f;
    return STATUS_OK;
}

static void set_lane(void *context, int lane) {
    ((LateDevice *)context)->lane = lane;
}

static Status wait_for_nothing(void *context, Error *error) {
    (void)context, (void)error;
    return STATUS_OK;
}

static Backend late_backend(LateDevice *device) {
    BackendTraits traits = device->cpu.traits;
    traits.n_lanes = 2;
    return (Backend){.name = "late",
                     .traits = traits,
                     .allocate = late_allocate,
                     .release = late_release,
                     .free_bytes = late_free_bytes,
                     .upload = late_copy,
                     .download = late_copy,
                     .kernel = late_kernel,
                     .synchronize = wait_for_nothing,
                     .event_new = event_new,
                     .event_record = event_record,
                     .elapsed_ms = elapsed_ms,
                     .event_free = event_free,
                     .set_lane = set_lane,
                     .event_wait = event_wait,
                     .context = device,
                     .n_threads = 1};
}

/* ---- training on it */

static void two_lanes_have_the_weights_of_one(void **state) {
    (void)state;
    Error error = {0};
    for (int i = 0; i < N_SMALL_TRAININGS; i++) {
        LateDevice device = {0};
        size_t n_one, n_two;
        assert_int_equal(backend_cpu_open(&device.cpu, 1, &error), STATUS_OK);
        Backend late = late_backend(&device);
        void *one = train_small(&device.cpu, i, PRECISION_F32, &n_one);
        void *two = train_small(&late, i, PRECISION_F32, &n_two);
        assert_int_equal(n_one, n_two);
        assert_memory_equal(one, two, n_one);
        assert_true(device.n_late > 3 * SMALL_STEPS && device.n_done == device.n_late);
        assert_true(device.most > 1); /* they were late, and more than one at a time */
        free(one);
        free(two);
        device.cpu.close(device.cpu.context);
    }
}

/* ---- more lanes than two */

static Status do_nothing(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

/* y = f(x) on the op's lane, at given places. */
static Tensor *at(Graph *graph, size_t offset) {
    Tensor *tensor = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(4), "t%zu", offset);
    tensor->offset = offset;
    return tensor;
}

static void test_lanes_wait_for_lanes(void **state) {
    (void)state;
    const Op main_op = {.name = "main", .reference = do_nothing};
    const Op down = {.name = "down", .lane = 1, .reference = do_nothing},
             up = {.name = "up", .lane = 2, .reference = do_nothing};
    Graph *graph = graph_new();
    Tensor *a = at(graph, 0), *b = at(graph, 16), *c = at(graph, 32), *d = at(graph, 48);
    graph_record(graph, &main_op, NULL, 0, 0, NULL, 1, TENSORS(a));       /* 0: a */
    graph_record(graph, &down, NULL, 0, 1, TENSORS(a), 1, TENSORS(b));    /* 1: b <- a, lane 1 */
    graph_record(graph, &up, NULL, 0, 1, TENSORS(b), 1, TENSORS(c));      /* 2: c <- b, lane 2: after 1 */
    graph_record(graph, &up, NULL, 0, 1, TENSORS(b), 1, TENSORS(c));      /* 3: the same: has waited */
    graph_record(graph, &main_op, NULL, 0, 0, NULL, 1, TENSORS(d));       /* 4: nobody's: waits for none */
    graph_record(graph, &main_op, NULL, 0, 1, TENSORS(c), 1, TENSORS(a)); /* 5: a <- c: after 1 and 3 */
    graph_record(graph, &down, NULL, 0, 1, TENSORS(c), 1, TENSORS(b)); /* 6: behind 5, which waited for 3 */
    LaneStep step[7];
    lanes_assign(graph, 0, 7, 3, step);
    static const int lanes[] = {0, 1, 2, 2, 0, 0, 1}, first[] = {-1, -1, 1, -1, -1, 1, -1},
                     second[] = {-1, -1, -1, -1, -1, 3, -1};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(step[i].lane, lanes[i]);
        assert_int_equal(step[i].joins[1], first[i]);
        assert_int_equal(step[i].joins[2], second[i]);
    }
    lanes_assign(graph, 0, 7, 2, step); /* a device with two: the last has them all, in order */
    for (int i = 0; i < 7; i++) assert_int_equal(step[i].lane, lanes[i] > 0);
    assert_int_equal(step[2].joins[1], -1);
    assert_int_equal(step[5].joins[1], 3);
    graph_free(graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lanes_wait_for_lanes),
                                       cmocka_unit_test(two_lanes_have_the_weights_of_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
