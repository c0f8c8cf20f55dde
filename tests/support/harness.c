/* Fences are 256 bytes of a pattern on both sides of the data, written and read back through the backend's own
 * copies, so the same check works for memory that the host cannot reach. */
#include "harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FENCE_BYTES = 256, FENCE_PATTERN = 0xA5 };
static const uint32_t POISON = 0x7FC0DEADu; /* a NaN; as an integer, no valid token or row */

uint32_t test_hash(const char *name, uint64_t index) {
    uint32_t x = 2166136261u;
    for (const char *c = name; *c; c++) x = (x ^ (unsigned char)*c) * 16777619u;
    x += (uint32_t)index * 2654435761u;
    x = (x ^ (x >> 15)) * 2246822519u;
    x = (x ^ (x >> 13)) * 3266489917u;
    return x ^ (x >> 16);
}

float test_value(const char *name, uint64_t index) {
    return (float)(test_hash(name, index) >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

bool test_is_brief(void) {
    return getenv("PGPT_TEST_BRIEF") != NULL;
}

TestBuffer test_buffer_open(const Backend *backend, const void *host, size_t n_bytes) {
    TestBuffer buffer = {.backend = backend, .n_bytes = n_bytes};
    size_t total = (n_bytes + 2 * FENCE_BYTES + 255) / 256 * 256;
    char *image = aligned_alloc(256, total);
    assert_non_null(image);
    memset(image, FENCE_PATTERN, total);
    if (host) memcpy(image + FENCE_BYTES, host, n_bytes);
    for (size_t i = 0; !host && i + 4 <= n_bytes; i += 4) memcpy(image + FENCE_BYTES + i, &POISON, 4);
    if (!backend) {
        buffer.block = image;
        return buffer;
    }
    Error error = {0};
    void *block = NULL;
    if (backend->allocate(backend->context, total, "test buffer", &block, &error) != STATUS_OK ||
        backend->upload(backend->context, block, image, total, &error) != STATUS_OK) {
        fail_msg("%s: %s", backend->name, error.text);
    }
    free(image);
    buffer.block = block;
    return buffer;
}

void *test_buffer_data(const TestBuffer *buffer) {
    return buffer->block + FENCE_BYTES;
}

static void check_fence(const char *fence, const char *side, const char *what) {
    for (int i = 0; i < FENCE_BYTES; i++) {
        if ((unsigned char)fence[i] != FENCE_PATTERN) fail_msg("%s: written %s its memory", what, side);
    }
}

void *test_buffer_read(const TestBuffer *buffer, const char *what) {
    size_t total = buffer->n_bytes + 2 * FENCE_BYTES;
    char *image = malloc(total);
    assert_non_null(image);
    Error error = {0};
    if (!buffer->backend) memcpy(image, buffer->block, total);
    else if (buffer->backend->download(buffer->backend->context, image, buffer->block, total, &error) !=
             STATUS_OK) {
        fail_msg("%s: %s", buffer->backend->name, error.text);
    }
    check_fence(image, "before", what);
    check_fence(image + FENCE_BYTES + buffer->n_bytes, "behind", what);
    memmove(image, image + FENCE_BYTES, buffer->n_bytes);
    return image;
}

void test_buffer_close(TestBuffer *buffer) {
    size_t total = (buffer->n_bytes + 2 * FENCE_BYTES + 255) / 256 * 256;
    if (!buffer->backend) free(buffer->block);
    else if (buffer->block) buffer->backend->release(buffer->backend->context, buffer->block, total);
    buffer->block = NULL;
}

TestMemory test_memory_open(const Graph *graph) {
    TestMemory memory = {graph, calloc((size_t)graph->n_tensors + 1, sizeof(TestBuffer))};
    assert_non_null(memory.buffer);
    for (int i = 0; i < graph->n_tensors; i++) {
        if (!graph->tensor[i]->base) {
            memory.buffer[i] = test_buffer_open(NULL, NULL, tensor_bytes(graph->tensor[i]));
        }
    }
    return memory;
}

void test_memory_close(TestMemory *memory) {
    for (int i = 0; i < memory->graph->n_tensors; i++) test_buffer_close(&memory->buffer[i]);
    free(memory->buffer);
}

void *test_memory_at(const TestMemory *memory, const Tensor *tensor) {
    if (!tensor) return NULL;
    size_t offset = 0;
    for (; tensor->base; tensor = tensor->base) offset += tensor->base_offset;
    return (char *)test_buffer_data(&memory->buffer[tensor->id]) + offset;
}

KernelCall test_memory_call(const TestMemory *memory, const Node *node) {
    KernelCall call = {.node = node, .n_threads = 1};
    for (int i = 0; i < node->n_inputs; i++) call.in[i] = test_memory_at(memory, node->input[i]);
    for (int i = 0; i < node->n_outputs; i++) {
        call.out[i] = test_memory_at(memory, node->output[i]);
        call.add[i] = node->write[i] == WRITE_ADD;
    }
    return call;
}

void test_memory_run(TestMemory *memory, Section section) {
    Error error = {0};
    for (int i = 0; i < memory->graph->n_nodes; i++) {
        const Node *node = memory->graph->node[i];
        if (node->section != section) continue;
        KernelCall call = test_memory_call(memory, node);
        if (node->op->reference(&call, &error) != STATUS_OK) fail_msg("%s: %s", node->op->name, error.text);
    }
    for (int i = 0; i < memory->graph->n_tensors; i++) {
        if (memory->buffer[i].block)
            free(test_buffer_read(&memory->buffer[i], memory->graph->tensor[i]->name));
    }
}

void test_assert_close(const float *got, const float *want, int64_t count, double tolerance, double floor_,
                       const char *format, ...) {
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    double want_squares = 0.0, difference_squares = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double difference = (double)got[i] - (double)want[i];
        want_squares += (double)want[i] * (double)want[i];
        difference_squares += difference * difference;
    }
    double mean = count ? sqrt(want_squares / (double)count) : 0.0; /* root mean square of an element */
    double allowed = tolerance * (mean > floor_ ? mean : floor_);
    double difference_mean = count ? sqrt(difference_squares / (double)count) : 0.0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        if (!(difference <= 10.0 * (allowed + tolerance * fabs((double)want[i])))) {
            fail_msg("%s: element %lld of %lld is %.9g, not %.9g (a typical one is %.3g)", what, (long long)i,
                     (long long)count, (double)got[i], (double)want[i], mean);
        }
    }
    if (!(difference_mean <= allowed)) {
        fail_msg("%s: differs by %.3g of its norm, more than %.3g", what, difference_mean / mean, tolerance);
    }
}
