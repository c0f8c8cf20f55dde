/* Communicators for a device's memory (comm_device.h): collectives, and messages that cross each other. On every machine the one
 * that passes through the host, with memory of the host that is treated as a device's; where there are GPUs, theirs too, by NCCL
 * where it is installed and a rank has a GPU of its own, or pretends to be a host (tests/device/nccl-rank), and else through
 * pinned memory.
 *
 * Ranks: 1 2 3 4 */
#include "comm_support.h"

#include "backend/cuda/cuda.h"
#include "comm/comm_device.h"
#include "device/device.h"

typedef struct {
    Comm comm;
    CommStaging memory; /* how to reach what `allocate` gives */
    Backend backend;    /* of a GPU; {0}: none */
} Device;

/* ---- a device that is the host */

static int n_taken;

static Status copy_up(void *context, void *device, const void *host, size_t n_bytes, Error *error) {
    (void)context, (void)error;
    if (n_bytes) memcpy(device, host, n_bytes);
    return STATUS_OK;
}

static Status copy_down(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    return copy_up(context, host, device, n_bytes, error);
}

static Status take(void *context, size_t n_bytes, void **memory, Error *error) {
    (void)context, (void)error;
    *memory = malloc(n_bytes + 1);
    assert_non_null(*memory);
    n_taken++;
    return STATUS_OK;
}

static void give_back(void *context, void *memory) {
    (void)context;
    free(memory);
    n_taken--;
}

static Device open_pretended(bool has_own_memory) {
    Error error = {0};
    Device d = {.memory = {.upload = copy_up, .download = copy_down}};
    if (has_own_memory) d.memory.take = take, d.memory.give_back = give_back;
    OK(comm_staged_open(&d.comm, &world, &d.memory, &error));
    return d;
}

/* ---- one that is a GPU */

static bool open_gpu(Device *d) {
    char reason[512];
    Error error = {0};
    *d = (Device){0};
    if (!backend_cuda_devices(reason, sizeof reason)) return false;
    DeviceOptions options = {.kind = DEVICE_CUDA, .index = world.rank};
    OK(device_backend_open(&d->backend, &options, &error));
    OK(device_meet(&d->backend, &world, world.size, &error));
    OK(device_comm_open(&d->comm, &world, COMM_FOR_SUMS, &d->backend, &error));
    if (d->comm.table && d->backend.n_sharing > 1 && !getenv("NCCL_HOSTID"))
        assert_string_equal(d->comm.table->name, "staged");
    d->memory = (CommStaging){
        .upload = d->backend.upload, .download = d->backend.download, .context = d->backend.context};
    return true;
}

static void close_device(Device *d) {
    if (!d->backend.close) {
        comm_close(&d->comm);
        return;
    }
    device_comm_close(&d->comm, &d->backend);
    d->backend.close(d->backend.context);
}

/* NCCL reads whole words, beyond the end of an odd number of 16-bit ones. */
static size_t in_words(size_t n_bytes) {
    enum { WORD = 16 };
    return (n_bytes + WORD - 1) / WORD * WORD;
}

static void *allocate(const Device *d, size_t n_bytes) {
    Error error = {0};
    void *memory = NULL;
    if (!d->backend.close) return calloc(1, n_bytes + 1);
    OK(d->backend.allocate(d->backend.context, in_words(n_bytes), "a test", &memory, &error));
    return memory;
}

static void release_memory(const Device *d, void *memory, size_t n_bytes) {
    if (d->backend.close) d->backend.release(d->backend.context, memory, in_words(n_bytes));
    else free(memory);
}

static void put_there(const Device *d, void *device, const void *host, size_t n_bytes) {
    Error error = {0};
    OK(d->memory.upload(d->memory.context, device, host, n_bytes, &error));
}

static void *get_back(const Device *d, const void *device, int64_t n, CommType type) {
    Error error = {0};
    void *host = make(n, type, -1);
    OK(d->memory.download(d->memory.context, host, device, (size_t)n * comm_type_bytes(type), &error));
    return host;
}

/* ---- collectives */

static void check_sum(Device *d, int64_t n, CommType type) {
    Error error = {0};
    size_t n_bytes = (size_t)n * comm_type_bytes(type);
    void *mine = make(n, type, world.rank), *device = allocate(d, n_bytes);
    put_there(d, device, mine, n_bytes);
    CommTicket ticket;
    CommOperation operation = {
        .kind = COMM_ALL_REDUCE, .type = type, .reduction = COMM_SUM, .data = device, .n = n};
    OK(comm_start(&d->comm, &operation, &ticket, &error));
    OK(comm_wait(&d->comm, &ticket, &error));
    void *result = get_back(d, device, n, type);
    for (int64_t i = 0; i < n; i++)
        check_element(result, i, type, reduced(world.size, i, type, COMM_SUM), "all-reduce");
    release_memory(d, device, n_bytes);
    release(mine, n, type), release(result, n, type);
}

/* Rank a has so many for rank b; nothing for some. */
static int64_t n_between(int a, int b) {
    return (a + 2 * b) % 3 ? 100 * a + 7 * b + 1 : 0;
}

static void check_all_to_all(Device *d, CommType type) {
    Error error = {0};
    int64_t out[17] = {0}, in[17] = {0};
    for (int r = 0; r < world.size; r++) {
        out[r + 1] = out[r] + n_between(world.rank, r);
        in[r + 1] = in[r] + n_between(r, world.rank);
    }
    int64_t n_out = out[world.size], n_in = in[world.size];
    size_t out_bytes = (size_t)n_out * comm_type_bytes(type), in_bytes = (size_t)n_in * comm_type_bytes(type);
    void *mine = make(n_out, type, world.rank), *sent = allocate(d, out_bytes + 1);
    void *came = allocate(d, in_bytes + 1);
    put_there(d, sent, mine, out_bytes);
    CommTicket ticket;
    CommOperation operation = {.kind = COMM_ALL_TO_ALL,
                               .type = type,
                               .data = sent,
                               .border = out,
                               .other = came,
                               .other_border = in};
    OK(comm_start(&d->comm, &operation, &ticket, &error));
    OK(comm_wait(&d->comm, &ticket, &error));
    void *result = get_back(d, came, n_in, type);
    for (int r = 0; r < world.size; r++) {
        int64_t place = 0; /* in rank r's vector */
        for (int before = 0; before < world.rank; before++) place += n_between(r, before);
        for (int64_t i = in[r]; i < in[r + 1]; i++)
            check_element(result, i, type, value_of(r, place + i - in[r], type), "all-to-all");
    }
    release_memory(d, sent, out_bytes + 1), release_memory(d, came, in_bytes + 1);
    release(mine, n_out, type), release(result, n_in, type);
}

/* ---- messages */

/* As if it came from another rank for each tag: whoever mixes messages up is found out. */
static int as_from(int rank, int tag) {
    enum { MORE_THAN_RANKS = 9 };
    return rank + MORE_THAN_RANKS * tag;
}

/* Each rank sends to all others before it receives anything, tag 1 before tag 0, and receives in the other order. */
static void check_messages(Device *d, int64_t n) {
    enum { N_TAGS = 2, MOST = 16 };
    Error error = {0};
    size_t n_bytes = (size_t)n * sizeof(float);
    void *out[N_TAGS], *in[MOST][N_TAGS];
    CommRequest request[2 * MOST * N_TAGS];
    int n_requests = 0;
    for (int tag = N_TAGS - 1; tag >= 0; tag--) {
        void *mine = make(n, COMM_F32, as_from(world.rank, tag));
        out[tag] = allocate(d, n_bytes);
        put_there(d, out[tag], mine, n_bytes);
        release(mine, n, COMM_F32);
        for (int r = 0; r < world.size; r++)
            if (r != world.rank)
                OK(comm_post_send(&d->comm, out[tag], n_bytes, r, tag, &request[n_requests++], &error));
    }
    for (int r = 0; r < world.size; r++)
        for (int tag = 0; tag < N_TAGS && r != world.rank; tag++) {
            in[r][tag] = allocate(d, n_bytes);
            OK(comm_post_receive(&d->comm, in[r][tag], n_bytes, r, tag, &request[n_requests++], &error));
        }
    OK(comm_wait_posted(&d->comm, request, n_requests, &error));
    for (int r = 0; r < world.size; r++)
        for (int tag = 0; tag < N_TAGS && r != world.rank; tag++) {
            void *result = get_back(d, in[r][tag], n, COMM_F32);
            for (int64_t i = 0; i < n; i++)
                check_element(result, i, COMM_F32, value_of(as_from(r, tag), i, COMM_F32), "message");
            release(result, n, COMM_F32);
            release_memory(d, in[r][tag], n_bytes);
        }
    for (int tag = 0; tag < N_TAGS; tag++) release_memory(d, out[tag], n_bytes);
}

/* Too long for anything on the way to hold, then short ones, again and again. */
static void check_device(Device *d) {
    check_sum(d, 1000003, COMM_F32);
    check_sum(d, 1001, COMM_BF16);
    check_all_to_all(d, COMM_F32);
    check_all_to_all(d, COMM_BF16);
    check_messages(d, 1000001);
    for (int i = 0; i < 20; i++) check_messages(d, 1 + 37 * i);
    check_sum(d, 7, COMM_I32);
}

static void through_the_host(void **state) {
    (void)state;
    for (int has_own_memory = 0; has_own_memory < 2; has_own_memory++) {
        Device d = open_pretended(has_own_memory);
        check_device(&d);
        if (world.size > 1) assert_int_equal(n_taken > 0, has_own_memory); /* it is used, and comes back */
        close_device(&d);
        assert_int_equal(n_taken, 0);
    }
}

/* A rank that asks for what cannot be is told so, and is none the worse for it. */
static void mistakes(void **state) {
    (void)state;
    Device d = open_pretended(true);
    CommRequest request;
    Error error = {0};
    float number = 0.0f;
    comm_post_send(&d.comm, &number, sizeof number, world.rank, 0, &request, &error);
    check_failed(&error, "cannot exchange messages");
    error = (Error){0};
    int64_t border[17] = {0};
    CommOperation operation = {
        .kind = COMM_SCATTER, .type = COMM_F32, .data = &number, .border = border, .other = &number};
    operation.root = world.size - 1;
    CommTicket ticket;
    if (world.size > 1) {
        comm_start(&d.comm, &operation, &ticket, &error);
        check_failed(&error, "not done through the host");
    }
    close_device(&d);
}

/* Ranks find those that have memory from the same place; all compute on GPUs, or none. */
static void meeting(void **state) {
    (void)state;
    Error error = {0};
    for (int n_gpus = 1; n_gpus <= world.size; n_gpus++) {
        Backend backend = {.traits = {.memory = MEMORY_DEVICE}, .device_id = {7}};
        backend.device_id[BACKEND_ID_BYTES - 1] = (uint8_t)(world.rank % n_gpus);
        int n = 0;
        for (int r = 0; r < world.size; r++) n += r % n_gpus == world.rank % n_gpus;
        OK(device_meet(&backend, &world, 100, &error));
        assert_int_equal(backend.n_sharing, n);
    }
    Backend host = {.traits.memory = MEMORY_HOST};
    OK(device_meet(&host, &world, 100, &error)); /* its host is as full as is said */
    assert_int_equal(host.n_sharing, 100);
    if (world.size == 1) return;
    Backend mixed = {.traits.memory = world.rank > 0 ? MEMORY_HOST : MEMORY_DEVICE};
    device_meet(&mixed, &world, 1, &error);
    check_failed(&error, "rank 1 computes on its CPU and rank 0 on a GPU; use --device");
}

static void of_a_gpu(void **state) {
    (void)state;
    Device d;
    if (!open_gpu(&d)) skip();
    if (d.comm.table) check_device(&d);
    if (d.comm.table && world.rank == 0) printf("the GPU's memory by %s\n", d.comm.table->name);
    close_device(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(through_the_host),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(meeting),
        cmocka_unit_test(of_a_gpu),
    };
    return cmocka_run_group_tests(tests, open_world, close_world);
}
