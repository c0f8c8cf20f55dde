/* grouped_linear: the GEMMs of the experts by gemm.h. What one expert has for itself is a dense layer of
 * fewer rows, so it runs at that speed, and a single expert gives its bits. How many rows each has is known
 * when it runs; the scratch is for as many as there may be.
 *
 * Threads that compute an expert together meet three times. Experts are a thread's each where that shares out
 * the work as well: the largest first, whoever is free takes the next, and nobody waits before the end. Those
 * that are too large for it come before, each by all threads. The bits are the same either way. */
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/reduce.h"
#include "ops/experts/experts.h"

#include <stdlib.h>

#ifdef _OPENMP
#    include <omp.h>
#else
static int omp_get_thread_num(void) {
    return 0;
}
#endif

static GemmActivation activation_of(Activation activation) {
    switch (activation) {
    case ACTIVATION_GELU_TANH: return GEMM_GELU_TANH;
    case ACTIVATION_GELU_ERF: return GEMM_GELU_ERF;
    case ACTIVATION_NONE: break;
    }
    return GEMM_IDENTITY;
}

/* ---- who computes which expert ---- */

enum {
    LARGE_PART = 2, /* an expert with more than this part of a thread's share of all rows is everybody's; */
    SMALL_PART = 8, /* one with less than this part of it is always one thread's; */
    WAIT_PART = 16, /* and what threads wait for the last one at the end may be this part of it */
    MOST_THREADS = 256
};

/* The most rows that an expert has which is one thread's. */
static int64_t small_rows(int64_t n_rows, int n_threads) {
    return n_threads > 1 && n_threads <= MOST_THREADS ? n_rows / ((int64_t)LARGE_PART * n_threads) : 0;
}

/* Offsets (E+1), and what each thread needs for an expert of its own. */
typedef struct {
    const int32_t *offsets;
    int64_t n_experts;
    size_t small_bytes;
} ExpertWork;

static int64_t rows_of(const ExpertWork *work, int64_t expert) {
    return work->offsets[expert + 1] - work->offsets[expert];
}

/* An expert in the order of who has most rows; of equal ones the first. */
typedef struct {
    int32_t rows, expert;
} SortedExpert;

static int by_rows(const void *a, const void *b) {
    const SortedExpert *x = a, *y = b;
    return x->rows != y->rows ? (x->rows < y->rows) - (x->rows > y->rows) : x->expert - y->expert;
}

/* Rows of the thread that ends last, if each that is free takes the next of these. */
static int64_t longest_share(const SortedExpert *sorted, int64_t n, int n_threads) {
    int64_t share[MOST_THREADS] = {0}, longest = 0;
    for (int64_t i = 0; i < n && sorted[i].rows; i++) {
        int least = 0;
        for (int thread = 1; thread < n_threads; thread++)
            if (share[thread] < share[least]) least = thread;
        share[least] += sorted[i].rows;
        if (share[least] > longest) longest = share[least];
    }
    return longest;
}

/* How many of the largest experts are computed by all threads together: as few as let the rest be shared out
 * evenly. A few numbers are tried. */
static int64_t n_together(const SortedExpert *sorted, int64_t n_experts, int64_t n_rows, int n_threads) {
    int64_t most = small_rows(n_rows, n_threads), n = 0, n_most, rows_left = n_rows;
    int64_t wait = n_rows / ((int64_t)WAIT_PART * n_threads), tried = 0;
    if (!most) return n_experts;
    while (n < n_experts && sorted[n].rows > most) rows_left -= sorted[n++].rows;
    for (n_most = n; n_most < n_experts; n_most++)
        if (sorted[n_most].rows <= n_rows / ((int64_t)SMALL_PART * n_threads)) break;
    while (n < n_most) {
        if (longest_share(sorted + n, n_experts - n, n_threads) - rows_left / n_threads <= wait) break;
        int64_t next = n + 1 + tried++ / 2 * 2;
        while (n < n_most && n < next) rows_left -= sorted[n++].rows;
    }
    return n;
}

/* The kernel of one expert, by so many threads, in scratch of theirs. `next` is the expert that comes behind
 * it, as far as is known; -1: none. */
typedef void (*ExpertKernel)(const KernelCall *call, int64_t expert, int64_t next, void *scratch,
                             int n_threads);

static int64_t expert_at(const SortedExpert *sorted, int64_t n_experts, int64_t i) {
    return i < n_experts ? sorted[i].expert : -1;
}

static void for_experts(const KernelCall *call, const ExpertWork *work, ExpertKernel kernel) {
    SortedExpert sorted[ROUTE_MAX_EXPERTS];
    for (int64_t e = 0; e < work->n_experts; e++)
        sorted[e] = (SortedExpert){(int32_t)rows_of(work, e), (int32_t)e};
    if (call->n_threads > 1) qsort(sorted, (size_t)work->n_experts, sizeof *sorted, by_rows);
    int64_t first = n_together(sorted, work->n_experts, work->offsets[work->n_experts], call->n_threads);
    for (int64_t i = 0; i < first; i++)
        kernel(call, sorted[i].expert, expert_at(sorted, first, i + 1), call->scratch, call->n_threads);
    if (first == work->n_experts) return;
#pragma omp parallel for schedule(dynamic) num_threads(call->n_threads)
    for (int64_t i = first; i < work->n_experts; i++)
        kernel(call, sorted[i].expert, expert_at(sorted, work->n_experts, i + call->n_threads),
               (char *)call->scratch + work->small_bytes * (size_t)omp_get_thread_num(), 1);
}

/* Scratch of a GEMM whose rows are divided among experts: `whole` is for all of them at one, `small` for an
 * expert that is one thread's. */
static size_t scratch_for(size_t whole, size_t small, int n_threads) {
    size_t all = n_threads > 1 ? small * (size_t)n_threads : 0;
    return whole > all ? whole : all;
}

/* ---- y (M,Co) = x (M,Ci) · W[e]ᵀ (Ci,Co), and what follows a layer ---- */

/* Of so many rows. */
static Gemm forward_shape(const Node *node, int64_t n_rows) {
    int64_t Co = node->input[1]->shape.dim[1], Ci = node->input[1]->shape.dim[2];
    return (Gemm){.transpose_b = true, .m = n_rows, .n = Co, .k = Ci, .lda = Ci, .ldb = Ci, .ldc = Co};
}

static size_t forward_small(const Node *node, int n_threads) {
    Gemm shape = forward_shape(node, small_rows(shape_rows(node->input[0]->shape), n_threads));
    return gemm_scratch_bytes_up_to(&shape, 1);
}

size_t cpu_grouped_linear_scratch(const Node *node, int n_threads) {
    Gemm shape = forward_shape(node, shape_rows(node->input[0]->shape));
    return scratch_for(gemm_scratch_bytes_up_to(&shape, n_threads), forward_small(node, n_threads),
                       n_threads);
}

static void forward_expert(const KernelCall *call, int64_t e, int64_t next, void *scratch, int n_threads) {
    const LinearAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    const int32_t *offsets = call->in[3];
    float *y = call->out[0], *before = call->out[1];
    int64_t first = offsets[e];
    Gemm gemm = forward_shape(call->node, offsets[e + 1] - first);
    GemmEpilogue epilogue = {.bias = bias ? bias + e * gemm.n : NULL,
                             .preactivation = before ? before + first * gemm.n : NULL,
                             .activation = activation_of(a->activation)};
    gemm.a = x + first * gemm.k;
    gemm.b = weight + e * gemm.n * gemm.k;
    gemm.c = y + first * gemm.n;
    gemm.epilogue = &epilogue;
    if (next >= 0) {
        gemm.next_a = x + offsets[next] * gemm.k;
        gemm.next_b = weight + next * gemm.n * gemm.k;
        gemm.next_rows = offsets[next + 1] - offsets[next];
    }
    gemm_run(&gemm, scratch, n_threads);
}

Status cpu_grouped_linear(const KernelCall *call, Error *error) {
    (void)error;
    ExpertWork work = {call->in[3], call->node->input[1]->shape.dim[0],
                       forward_small(call->node, call->n_threads)};
    for_experts(call, &work, forward_expert);
    if (call->out[1])
        cpu_gelu_of_stored(call, work.offsets[work.n_experts] * call->node->input[1]->shape.dim[1],
                           call->out[1], call->out[0]);
    return STATUS_OK;
}

/* ---- dx (M,Ci) = dy (M,Co) · W[e] (Co,Ci), times the slope of an activation ---- */

static Gemm input_shape(const Node *node, int64_t n_rows) {
    int64_t Co = node->input[1]->shape.dim[1], Ci = node->input[1]->shape.dim[2];
    return (Gemm){.m = n_rows, .n = Ci, .k = Co, .lda = Co, .ldb = Ci, .ldc = Ci};
}

static size_t input_small(const Node *node, int n_threads) {
    Gemm shape = input_shape(node, small_rows(shape_rows(node->input[0]->shape), n_threads));
    return gemm_scratch_bytes_up_to(&shape, 1);
}

static size_t input_gemm_scratch(const Node *node, int n_threads) {
    Gemm shape = input_shape(node, shape_rows(node->input[0]->shape));
    return scratch_for(gemm_scratch_bytes_up_to(&shape, n_threads), input_small(node, n_threads), n_threads);
}

/* What is multiplied by a slope and then added to something is made apart, behind the GEMMs' own scratch. */
static bool is_made_apart(const Node *node) {
    return node->input[3] && node->write[0] != WRITE_FRESH;
}

size_t cpu_grouped_input_gradient_scratch(const Node *node, int n_threads) {
    size_t apart = is_made_apart(node) ? (size_t)tensor_count(node->output[0]) * sizeof(float) : 0;
    return input_gemm_scratch(node, n_threads) + apart;
}

/* Where the GEMMs write. */
static float *input_made(const KernelCall *call) {
    if (!call->in[3] || !call->add[0]) return call->out[0];
    return (float *)(void *)((char *)call->scratch + input_gemm_scratch(call->node, call->n_threads));
}

static void input_expert(const KernelCall *call, int64_t e, int64_t next, void *scratch, int n_threads) {
    const float *dy = call->in[0], *weight = call->in[1];
    const int32_t *offsets = call->in[2];
    int64_t first = offsets[e];
    Gemm gemm = input_shape(call->node, offsets[e + 1] - first);
    gemm.accumulate = call->add[0] && !call->in[3];
    gemm.a = dy + first * gemm.k;
    gemm.b = weight + e * gemm.k * gemm.n;
    gemm.c = input_made(call) + first * gemm.n;
    if (next >= 0) {
        gemm.next_a = dy + offsets[next] * gemm.k;
        gemm.next_b = weight + next * gemm.k * gemm.n;
        gemm.next_rows = offsets[next + 1] - offsets[next];
    }
    gemm_run(&gemm, scratch, n_threads);
}

Status cpu_grouped_input_gradient(const KernelCall *call, Error *error) {
    (void)error;
    Shape weight = call->node->input[1]->shape; /* (E,Co,Ci) */
    ExpertWork work = {call->in[2], weight.dim[0], input_small(call->node, call->n_threads)};
    for_experts(call, &work, input_expert);
    if (call->in[3])
        cpu_gelu_slope(call, work.offsets[weight.dim[0]] * weight.dim[2], input_made(call), call->in[3],
                       call->out[0], call->add[0]);
    return STATUS_OK;
}

/* ---- dW[e] (Co,Ci) = dyᵀ (Co,·) · x (·,Ci), db[e] (Co) = Σ dy, over the expert's rows ---- */

static Gemm weight_shape(const Node *node, int64_t n_rows) {
    int64_t Co = shape_columns(node->input[0]->shape), Ci = shape_columns(node->input[1]->shape);
    return (Gemm){.transpose_a = true, .m = Co, .n = Ci, .k = n_rows, .lda = Co, .ldb = Ci, .ldc = Ci};
}

/* The sums of the bias come first, in the same memory. */
static size_t weight_scratch(const Node *node, int64_t n_rows, int n_threads) {
    Gemm shape = weight_shape(node, n_rows);
    size_t gemm = gemm_scratch_bytes_up_to(&shape, n_threads);
    size_t sums = (size_t)(REDUCE_MAX_BLOCKS * shape.m) * sizeof(float);
    return ((gemm > sums ? gemm : sums) + 63) / 64 * 64;
}

static size_t weight_small(const Node *node, int n_threads) {
    return weight_scratch(node, small_rows(shape_rows(node->input[0]->shape), n_threads), 1);
}

size_t cpu_grouped_weight_gradient_scratch(const Node *node, int n_threads) {
    return scratch_for(weight_scratch(node, shape_rows(node->input[0]->shape), n_threads),
                       weight_small(node, n_threads), n_threads);
}

static void weight_expert(const KernelCall *call, int64_t e, int64_t next, void *scratch, int n_threads) {
    const float *dy = call->in[0], *x = call->in[1];
    const int32_t *offsets = call->in[2];
    float *dweight = call->out[0], *dbias = call->out[1];
    int64_t first = offsets[e];
    Gemm gemm = weight_shape(call->node, offsets[e + 1] - first);
    gemm.accumulate = call->add[0];
    gemm.a = dy + first * gemm.m;
    gemm.b = x + first * gemm.n;
    if (dbias) reduce_columns(gemm.a, gemm.k, gemm.m, dbias + e * gemm.m, call->add[1], scratch, n_threads);
    if (!dweight) return;
    gemm.c = dweight + e * gemm.m * gemm.n;
    if (next >= 0) {
        gemm.next_a = dy + offsets[next] * gemm.m;
        gemm.next_b = x + offsets[next] * gemm.n;
        gemm.next_rows = offsets[next + 1] - offsets[next];
    }
    gemm_run(&gemm, scratch, n_threads);
}

Status cpu_grouped_weight_gradient(const KernelCall *call, Error *error) {
    (void)error;
    ExpertWork work = {call->in[2], tensor_count(call->node->input[2]) - 1,
                       weight_small(call->node, call->n_threads)};
    for_experts(call, &work, weight_expert);
    return STATUS_OK;
}
