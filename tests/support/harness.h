/* Running recorded nodes in tests, without a plan or a program: every tensor has memory of its own, filled with
 * poison (NaN) and fenced, so that a kernel that reads what nobody wrote or writes where it must not is caught. */
#ifndef PGPT_TESTS_HARNESS_H
#define PGPT_TESTS_HARNESS_H

#include "graph/backend.h"

/* Element `index` of the test data called `name`: hashed 32 bits, and a float in [-1,1) that is exact in 24 bits.
 * tests/golden/ops.py computes the same, so only results are recorded there. */
uint32_t test_hash(const char *name, uint64_t index);
float test_value(const char *name, uint64_t index);

/* PGPT_TEST_BRIEF is set: as little as has every kernel in it. racecheck takes milliseconds a kernel. */
bool test_is_brief(void);

/* A fenced buffer in a backend's memory (or the host's, when backend is NULL) with a copy of `host`; NULL is poison. */
typedef struct {
    const Backend *backend;
    char *block;
    size_t n_bytes;
} TestBuffer;

TestBuffer test_buffer_open(const Backend *backend, const void *host, size_t n_bytes);
void *test_buffer_data(const TestBuffer *buffer);
/* A malloc'ed copy of the contents; fails the test if a fence was overwritten. `what` names the buffer. */
void *test_buffer_read(const TestBuffer *buffer, const char *what);
void test_buffer_close(TestBuffer *buffer);

/* Host memory of every tensor of a graph, by tensor id. */
typedef struct {
    const Graph *graph;
    TestBuffer *buffer;
} TestMemory;

TestMemory test_memory_open(const Graph *graph);
void test_memory_close(TestMemory *memory);
void *test_memory_at(const TestMemory *memory, const Tensor *tensor); /* NULL for NULL */

/* Run the reference kernels of one section in order; fails the test if a kernel does, or wrote outside its tensors. */
void test_memory_run(TestMemory *memory, Section section);
KernelCall test_memory_call(const TestMemory *memory, const Node *node);

/* Fails the test unless got is want: the norm of the difference within `tolerance` of the norm, each element within
 * ten times that. `floor` is a magnitude below which differences do not count (0: none). */
void test_assert_close(const float *got, const float *want, int64_t count, double tolerance, double floor_,
                       const char *format, ...) __attribute__((format(printf, 6, 7)));

#endif
