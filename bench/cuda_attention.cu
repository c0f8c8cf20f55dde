/* Attention on the GPU: every way to compute it against a reference in double precision, and against the
 * clock.
 *
 *     cuda_attention check [WAY]  errors ‖out - reference‖ / ‖reference‖ of y, lse and dqkv; fails if one
 *                                 is too large
 *     cuda_attention time [NAME]  TFLOP/s of forward and backward (4·HS and 10·HS a visible pair), and
 *                                 scratch memory
 *
 * WAY: this way only ("short"; "groups" is the same by other instructions); NAME: only cases whose names
 * contain it. PGPT_TEST_BRIEF in the environment, for racecheck: with a WAY, many heads only where a block
 * takes several of them, and then two or three.
 *
 * Outputs are filled with NaNs before every check, inputs are normal random numbers. Backward passes are run
 * twice: an ordered one must give the same bits. Exit code 77 without a GPU. */
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/runtime/device.cuh"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    DType dtype;
    int n_sequences, n_positions, n_heads, n_kv_heads, head_size;
    float dropout;
} Case;

typedef struct {
    AttentionShape shape;
    AttentionMemory memory;
    int64_t n_qkv, n_y, n_lse;
    size_t element_bytes;
    double *y, *lse, *dqkv; /* the reference's */
} Problem;

enum { WAY_PLAIN, WAY_TILED, WAY_SHORT, WAY_WARPGROUP, WAY_LIBRARY, WAY_LIBRARY_ANY, N_WAYS };
static const char *const WAY_NAME[N_WAYS] = {"plain",  "tiled", "short",
                                             "groups", "cuDNN", "cuDNN, any order"};

static void must(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "cuda_attention: %s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

static void *device_memory(size_t n_bytes) {
    void *memory = NULL;
    must(cudaMalloc(&memory, n_bytes ? n_bytes : 1), "memory");
    return memory;
}

/* ---- the reference ---- */

DEVICE double element(const void *p, int64_t i, DType dtype) {
    if (dtype == DTYPE_F32) return (double)((const float *)p)[i];
    return (double)(dtype == DTYPE_BF16 ? as_float(((const bf16 *)p)[i]) : as_float(((const f16 *)p)[i]));
}

static __global__ void fill(void *p, int64_t count, DType dtype, unsigned seed) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    RandomKey key = {{seed, 1}};
    RandomBlock r = random_block(key, 0, (uint64_t)i);
    float x = sqrtf(-2.0f * logf(random_unit(r.word[0]) + 1e-7f)) * cospif(2.0f * random_unit(r.word[1]));
    if (dtype == DTYPE_F32) set_element((float *)p + i, x);
    else if (dtype == DTYPE_BF16) set_element((bf16 *)p + i, x);
    else set_element((f16 *)p + i, x);
}

DEVICE double drop_factor(const AttentionShape &s, const int32_t *random, int b, int h, int q, int k) {
    if (!s.threshold) return 1.0;
    uint64_t t = (uint64_t)s.n_positions, row = (uint64_t)(s.first_head + h) * t + (uint64_t)q;
    bool stays = random_keep(dropout_key(random, s.site), first_sequence(random) + (uint64_t)b,
                             row * ((t + 7) / 8 * 8) + (uint64_t)k, s.threshold);
    return stays ? (double)random_dropout_scale(s.threshold) : 0.0;
}

/* A block a query; a thread a key, then a channel. Sums of dkey and dvalue go through atomics: in double,
 * their order does not show. */
static __global__ void reference(AttentionShape s, AttentionMemory m, double *y, double *lse, double *dqkv) {
    extern __shared__ double weight[]; /* (T), then dweight (T), then factor (T) */
    __shared__ double whole, row_sum;
    int t = (int)s.n_positions, size = s.head_size, q = (int)blockIdx.x % t,
        h = (int)blockIdx.x / t % s.n_heads, b = (int)blockIdx.x / t / s.n_heads,
        kv = h / (s.n_heads / s.n_kv_heads);
    double *dweight = weight + t, *factor = dweight + t;
    int64_t at_q = ((int64_t)b * t + q) * s.width + h * size,
            at_y = ((int64_t)b * t + q) * s.y_width + h * size,
            first_k = (int64_t)b * t * s.width + (s.n_heads + kv) * size, to_v = (int64_t)s.n_kv_heads * size;
    for (int k = (int)threadIdx.x; k <= q; k += (int)blockDim.x) {
        double score = 0.0, slope = 0.0;
        for (int i = 0; i < size; i++) {
            int64_t at_k = first_k + k * s.width + i;
            score += element(m.qkv, at_q + i, s.dtype) * element(m.qkv, at_k, s.dtype);
            slope += element(m.dy, at_y + i, s.dtype) * element(m.qkv, at_k + to_v, s.dtype);
        }
        weight[k] = score * (double)s.scale;
        factor[k] = drop_factor(s, m.random, b, h, q, k);
        dweight[k] = slope * factor[k];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double max = weight[0], sum = 0.0, products = 0.0;
        for (int k = 1; k <= q; k++) max = fmax(max, weight[k]);
        for (int k = 0; k <= q; k++) sum += exp(weight[k] - max);
        whole = max + log(sum);
        for (int k = 0; k <= q; k++) products += exp(weight[k] - whole) * dweight[k];
        row_sum = products;
        lse[((int64_t)b * s.n_heads + h) * t + q] = whole;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < size; i += (int)blockDim.x) {
        double out = 0.0, dquery = 0.0, query = element(m.qkv, at_q + i, s.dtype),
               dy = element(m.dy, at_y + i, s.dtype);
        for (int k = 0; k <= q; k++) {
            int64_t at_k = first_k + k * s.width + i;
            double p = exp(weight[k] - whole), dscore = p * (dweight[k] - row_sum) * (double)s.scale;
            out += p * factor[k] * element(m.qkv, at_k + to_v, s.dtype);
            dquery += dscore * element(m.qkv, at_k, s.dtype);
            atomicAdd(&dqkv[at_k], dscore * query);
            atomicAdd(&dqkv[at_k + to_v], p * factor[k] * dy);
        }
        y[at_y + i] = out;
        dqkv[at_q + i] = dquery;
    }
}

static __global__ void differences(const void *p, const double *wanted, int64_t count, DType dtype,
                                   double *sums) {
    double apart = 0.0, all = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        double d = element(p, i, dtype) - wanted[i];
        apart += d == d ? d * d : INFINITY;
        all += wanted[i] * wanted[i];
    }
    atomicAdd(&sums[0], apart);
    atomicAdd(&sums[1], all);
}

static double error_of(const void *p, const double *wanted, int64_t count, DType dtype) {
    double *sums = (double *)device_memory(2 * sizeof *sums), host[2];
    must(cudaMemset(sums, 0, 2 * sizeof *sums), "comparing");
    differences<<<256, 256>>>(p, wanted, count, dtype, sums);
    must(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost), "comparing");
    cudaFree(sums);
    return sqrt(host[0] / host[1]);
}

/* ---- problems ---- */

static Problem problem_new(Case c, bool with_reference) {
    Problem p;
    memset(&p, 0, sizeof p);
    AttentionShape *s = &p.shape;
    AttentionMemory *m = &p.memory;
    s->dtype = c.dtype;
    s->n_sequences = c.n_sequences;
    s->n_positions = c.n_positions;
    s->n_heads = c.n_heads;
    s->n_kv_heads = c.n_kv_heads;
    s->head_size = c.head_size;
    s->width = (int64_t)(c.n_heads + 2 * c.n_kv_heads) * c.head_size;
    s->y_width = (int64_t)c.n_heads * c.head_size;
    s->scale = 1.0f / sqrtf((float)c.head_size);
    s->threshold = random_dropout_threshold(c.dropout);
    s->site = 3;
    s->first_head = 2;
    int64_t rows = (int64_t)c.n_sequences * c.n_positions;
    p.n_qkv = rows * s->width;
    p.n_y = rows * s->y_width;
    p.n_lse = rows * c.n_heads;
    p.element_bytes = c.dtype == DTYPE_F32 ? 4 : 2;
    m->qkv = device_memory((size_t)p.n_qkv * p.element_bytes);
    m->dy = device_memory((size_t)p.n_y * p.element_bytes);
    m->y = device_memory((size_t)p.n_y * p.element_bytes);
    m->lse = (float *)device_memory((size_t)p.n_lse * sizeof(float));
    m->dqkv = device_memory((size_t)p.n_qkv * p.element_bytes);
    const int32_t words[N_RANDOM_WORDS] = {12345, 678, 9, 100};
    void *random = device_memory(sizeof words);
    must(cudaMemcpy(random, words, sizeof words, cudaMemcpyHostToDevice), "random words");
    m->random = (const int32_t *)random;
    fill<<<blocks_for(p.n_qkv, 256), 256>>>((void *)m->qkv, p.n_qkv, c.dtype, 1);
    fill<<<blocks_for(p.n_y, 256), 256>>>((void *)m->dy, p.n_y, c.dtype, 2);
    if (with_reference) {
        p.y = (double *)device_memory((size_t)p.n_y * sizeof(double));
        p.lse = (double *)device_memory((size_t)p.n_lse * sizeof(double));
        p.dqkv = (double *)device_memory((size_t)p.n_qkv * sizeof(double));
        must(cudaMemset(p.dqkv, 0, (size_t)p.n_qkv * sizeof(double)), "the reference");
        int bytes = 3 * c.n_positions * (int)sizeof(double);
        must(cudaFuncSetAttribute(reference, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "the reference");
        reference<<<(unsigned)(rows * c.n_heads), 64, (size_t)bytes>>>(*s, *m, p.y, p.lse, p.dqkv);
    }
    must(cudaDeviceSynchronize(), "the reference");
    return p;
}

static void problem_free(Problem *p) {
    AttentionMemory *m = &p->memory;
    void *const all[] = {(void *)m->qkv,    (void *)m->dy, m->y, m->lse, m->dqkv,
                         (void *)m->random, m->scratch,    p->y, p->lse, p->dqkv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) cudaFree(all[i]);
}

/* ---- running ---- */

static int max_shared_bytes(void) {
    int device = 0, bytes = 0;
    must(cudaGetDevice(&device), "the device");
    must(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "the device");
    return bytes;
}

static bool warpgroup_takes(const AttentionShape *s, bool backward) {
    int device = 0, major = 0, minor = 0;
    must(cudaGetDevice(&device), "the device");
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "the device");
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "the device");
    return attention_short_takes(s, backward, max_shared_bytes()) &&
           attention_warpgroup_takes(s, false, major * 10 + minor);
}

/* Does this way take the shape? If so, with scratch memory. */
static bool prepare(Problem *p, int way, bool backward, AttentionLibrary **library,
                    const AttentionPlan **plan) {
    const AttentionShape *s = &p->shape;
    size_t bytes = 0;
    *plan = NULL;
    if (way == WAY_PLAIN && !attention_plain_takes(s)) return false;
    if (way == WAY_TILED && !attention_tiled_takes(s)) return false;
    if (way == WAY_TILED && backward) bytes = attention_tiled_backward_scratch(s);
    if (way == WAY_SHORT && !attention_short_takes(s, backward, max_shared_bytes())) return false;
    if (way == WAY_WARPGROUP && !warpgroup_takes(s, backward)) return false;
#ifdef PGPT_HAVE_CUDNN
    if (way >= WAY_LIBRARY) {
        *plan = attention_library_plan(library, s, backward, way == WAY_LIBRARY_ANY);
        if (!*plan) return false;
        bytes = attention_plan_scratch(*plan);
    }
#else
    (void)library;
    if (way >= WAY_LIBRARY) return false;
#endif
    cudaFree(p->memory.scratch);
    p->memory.scratch = device_memory(bytes);
    return true;
}

static Status run(const Problem *p, int way, bool backward, const AttentionPlan *plan, cudaStream_t stream,
                  Error *error) {
    const AttentionShape *s = &p->shape;
    const AttentionMemory *m = &p->memory;
#ifdef PGPT_HAVE_CUDNN
    if (way >= WAY_LIBRARY) return attention_plan_run(plan, m, stream, error);
#else
    (void)plan;
#endif
    if (way == WAY_PLAIN) {
        return backward ? attention_plain_backward(s, m, stream, error)
                        : attention_plain_forward(s, m, stream, error);
    }
    if (way == WAY_WARPGROUP) {
        return backward ? attention_warpgroup_backward(s, m, stream, error)
                        : attention_warpgroup_forward(s, m, stream, error);
    }
    if (way == WAY_SHORT) {
        return backward ? attention_short_backward(s, m, stream, error)
                        : attention_short_forward(s, m, stream, error);
    }
    if (!backward) return attention_tiled_forward(s, m, stream, error);
    TRY(attention_tiled_queries(s, m, stream, error));
    return attention_tiled_keys(s, m, stream, error);
}

static void run_or_die(const Problem *p, int way, bool backward, const AttentionPlan *plan,
                       cudaStream_t stream) {
    Error error = {};
    if (run(p, way, backward, plan, stream, &error) == STATUS_OK) return;
    fprintf(stderr, "cuda_attention: %s\n", error.text);
    exit(1);
}

/* ---- checking ---- */

static void print_case(const Case *c, const char *way) {
    printf("%-5s B %-3d T %-4d NH %d/%d HS %-3d p %.1f  %-17s", dtype_info(c->dtype)->name, c->n_sequences,
           c->n_positions, c->n_heads, c->n_kv_heads, c->head_size, (double)c->dropout, way);
}

/* A second run must give the same bits; the third, added to the second, twice the sum. */
static bool check_again(const Problem *p, int way, const AttentionPlan *plan) {
    size_t bytes = (size_t)p->n_qkv * p->element_bytes;
    char *first = (char *)malloc(bytes), *second = (char *)malloc(bytes);
    must(first && second ? cudaSuccess : cudaErrorMemoryAllocation, "host memory");
    must(cudaMemcpy(first, p->memory.dqkv, bytes, cudaMemcpyDeviceToHost), "comparing");
    run_or_die(p, way, true, plan, 0);
    must(cudaMemcpy(second, p->memory.dqkv, bytes, cudaMemcpyDeviceToHost), "comparing");
    bool same = !memcmp(first, second, bytes);
    free(first);
    free(second);
    return same;
}

/* A block a sequence: the sums of its rows of dqkv as they are stored, a thread a column. */
static __global__ void sum_rows(const void *dqkv, AttentionShape s, double *sums) {
    int64_t first = blockIdx.x * s.n_positions * s.width;
    for (int64_t i = threadIdx.x; i < s.width; i += blockDim.x) {
        double sum = 0.0;
        for (int64_t t = 0; t < s.n_positions; t++) sum += element(dqkv, first + t * s.width + i, s.dtype);
        sums[blockIdx.x * s.width + i] = sum;
    }
}

/* How far the sums that a backward makes are from those of what it stores. */
static double check_sums(Problem *p, int way, const AttentionPlan *plan) {
    int64_t count = p->shape.n_sequences * p->shape.width;
    double *wanted = (double *)device_memory((size_t)count * sizeof(double));
    p->memory.sums = (float *)device_memory((size_t)count * sizeof(float));
    must(cudaMemset(p->memory.sums, 0xFF, (size_t)count * sizeof(float)), "clearing");
    run_or_die(p, way, true, plan, 0);
    sum_rows<<<(unsigned)p->shape.n_sequences, 256>>>(p->memory.dqkv, p->shape, wanted);
    double apart = error_of(p->memory.sums, wanted, count, DTYPE_F32);
    cudaFree(p->memory.sums);
    cudaFree(wanted);
    p->memory.sums = NULL;
    return apart;
}

static bool check(Case c, const char *only, AttentionLibrary **library) {
    Problem p = problem_new(c, true);
    double bound = c.dtype == DTYPE_F32 ? 1e-5 : c.dtype == DTYPE_F16 ? 1e-3 : 1e-2;
    bool all_good = true;
    for (int way = 0; way < N_WAYS; way++) {
        const AttentionPlan *plan;
        if (only && strcmp(only, WAY_NAME[way])) continue;
        if (!prepare(&p, way, false, library, &plan)) continue;
        must(cudaMemset(p.memory.y, 0xFF, (size_t)p.n_y * p.element_bytes), "clearing");
        must(cudaMemset(p.memory.lse, 0xFF, (size_t)p.n_lse * sizeof(float)), "clearing");
        must(cudaMemset(p.memory.dqkv, 0xFF, (size_t)p.n_qkv * p.element_bytes), "clearing");
        run_or_die(&p, way, false, plan, 0);
        double of_y = error_of(p.memory.y, p.y, p.n_y, c.dtype),
               of_lse = error_of(p.memory.lse, p.lse, p.n_lse, DTYPE_F32);
        print_case(&c, WAY_NAME[way]);
        printf("y %.1e  lse %.1e", of_y, of_lse);
        bool good = of_y < bound && of_lse < 1e-5;
        if (prepare(&p, way, true, library, &plan)) {
            run_or_die(&p, way, true, plan, 0);
            double of_gradient = error_of(p.memory.dqkv, p.dqkv, p.n_qkv, c.dtype);
            bool same = check_again(&p, way, plan);
            printf("  dqkv %.1e%s", of_gradient, same ? "" : "  varies");
            good = good && of_gradient < bound && (same || way == WAY_LIBRARY_ANY);
            if (way == WAY_SHORT || way == WAY_WARPGROUP) {
                double of_sums = check_sums(&p, way, plan);
                printf("  sums %.1e", of_sums);
                good = good && of_sums < 1e-5;
            }
            if (way < WAY_LIBRARY && way != WAY_WARPGROUP) {
                p.memory.add = true;
                run_or_die(&p, way, true, plan, 0);
                p.memory.add = false;
                must(cudaDeviceSynchronize(), "adding");
                double half =
                    error_of(p.memory.dqkv, p.dqkv, p.n_qkv, c.dtype); /* twice as much: an error of 1 */
                good = good && fabs(half - 1.0) < bound;
            }
        }
        printf("%s\n", good ? "" : "  WRONG");
        all_good = all_good && good;
    }
    problem_free(&p);
    return all_good;
}

/* ---- timing ---- */

enum { LAUNCHES = 10, ROUNDS = 5 };

/* Milliseconds of one, the best of some rounds of a recorded graph of several. */
static float time_of(const Problem *p, int way, bool backward, const AttentionPlan *plan) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t capture;
    cudaEvent_t first, last;
    must(cudaStreamCreate(&stream), "a stream");
    must(cudaEventCreate(&first), "an event");
    must(cudaEventCreate(&last), "an event");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    for (int i = 0; i < LAUNCHES; i++) run_or_die(p, way, backward, plan, stream);
    must(cudaStreamEndCapture(stream, &graph), "capturing");
    must(cudaGraphInstantiate(&capture, graph, 0), "capturing");
    must(cudaGraphLaunch(capture, stream), "replaying");
    float best = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        float ms = 0.0f;
        must(cudaEventRecord(first, stream), "timing");
        must(cudaGraphLaunch(capture, stream), "replaying");
        must(cudaEventRecord(last, stream), "timing");
        must(cudaEventSynchronize(last), "replaying");
        must(cudaEventElapsedTime(&ms, first, last), "timing");
        best = fminf(best, ms / LAUNCHES);
    }
    cudaGraphExecDestroy(capture);
    cudaGraphDestroy(graph);
    cudaEventDestroy(first);
    cudaEventDestroy(last);
    cudaStreamDestroy(stream);
    return best;
}

static void time_case(const char *name, Case c, AttentionLibrary **library) {
    Problem p = problem_new(c, false);
    double pairs = (double)c.n_sequences * c.n_heads * c.n_positions * (c.n_positions + 1.0) / 2.0;
    printf("%s:\n", name);
    for (int way = c.n_positions > 512 ? WAY_TILED : WAY_PLAIN; way < N_WAYS; way++) {
        const AttentionPlan *plan;
        if (!prepare(&p, way, false, library, &plan)) continue;
        float forward = time_of(&p, way, false, plan);
        print_case(&c, WAY_NAME[way]);
        printf("forward %.4f ms %4.0f TFLOP/s", (double)forward,
               pairs * 4.0 * c.head_size / (double)forward * 1e-9);
        if (prepare(&p, way, true, library, &plan)) {
            float backward = time_of(&p, way, true, plan);
            size_t scratch = way < WAY_LIBRARY ? attention_tiled_backward_scratch(&p.shape) : 0;
#ifdef PGPT_HAVE_CUDNN
            if (plan) scratch = attention_plan_scratch(plan);
#endif
            printf("  backward %.4f ms %4.0f TFLOP/s, %.0f MiB", (double)backward,
                   pairs * 10.0 * c.head_size / (double)backward * 1e-9, (double)scratch / 0x1p20);
        }
        printf("\n");
        fflush(stdout);
    }
    problem_free(&p);
}

int main(int argc, char **argv) {
    bool checks = argc < 2 || !strcmp(argv[1], "check"), times = argc < 2 || !strcmp(argv[1], "time"),
         good = true;
    const char *only = argc > 2 ? argv[2] : NULL;
    bool is_known = (checks || times) && argc < 4, is_way = !only || !checks;
    for (int way = 0; way < N_WAYS && !is_way; way++) is_way = !strcmp(only, WAY_NAME[way]);
    if (!is_known || !is_way) {
        fprintf(stderr, "usage: cuda_attention [check [WAY] | time [NAME]]; WAY is one of");
        for (int way = 0; way < N_WAYS; way++) fprintf(stderr, "%s '%s'", way ? "," : "", WAY_NAME[way]);
        fprintf(stderr, "\n");
        return 2;
    }
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || !n_devices) {
        printf("cuda_attention: skipped, no GPU is visible\n");
        return 77;
    }
    AttentionLibrary *library = NULL;
    static const Case CHECKS[] = {
        {DTYPE_BF16, 2, 256, 4, 4, 64, 0.0f},   {DTYPE_BF16, 2, 333, 4, 2, 64, 0.0f},
        {DTYPE_BF16, 2, 200, 4, 2, 64, 0.2f},   {DTYPE_BF16, 1, 1024, 2, 2, 64, 0.0f},
        {DTYPE_BF16, 3, 1, 2, 1, 64, 0.0f},     {DTYPE_BF16, 2, 65, 3, 3, 64, 0.5f},
        {DTYPE_F16, 2, 130, 3, 3, 32, 0.0f},    {DTYPE_F16, 2, 128, 3, 3, 32, 0.1f},
        {DTYPE_F16, 2, 128, 4, 4, 80, 0.0f},    {DTYPE_F16, 2, 130, 4, 1, 96, 0.1f},
        {DTYPE_F16, 2, 256, 4, 2, 128, 0.0f},   {DTYPE_F16, 2, 70, 2, 2, 120, 0.3f},
        {DTYPE_BF16, 2, 77, 2, 2, 24, 0.0f},    {DTYPE_BF16, 2, 77, 2, 2, 20, 0.1f},
        {DTYPE_F32, 2, 333, 4, 2, 64, 0.0f},    {DTYPE_F32, 2, 130, 2, 2, 32, 0.2f},
        {DTYPE_F32, 2, 130, 2, 2, 96, 0.0f},    {DTYPE_F32, 2, 200, 2, 1, 128, 0.2f},
        {DTYPE_F32, 2, 33, 3, 3, 17, 0.1f},     {DTYPE_F32, 1, 64, 1, 1, 8, 0.0f},
        {DTYPE_BF16, 2, 256, 6, 6, 64, 0.2f},   {DTYPE_BF16, 1, 255, 3, 3, 64, 0.2f},
        {DTYPE_BF16, 2, 100, 2, 2, 64, 0.1f},   {DTYPE_BF16, 1, 64, 2, 2, 64, 0.2f},
        {DTYPE_BF16, 3, 7, 2, 2, 64, 0.5f},     {DTYPE_BF16, 3, 1, 2, 2, 64, 0.5f},
        {DTYPE_F16, 1, 129, 2, 2, 56, 0.2f},    {DTYPE_F16, 1, 255, 2, 2, 32, 0.0f},
        {DTYPE_F16, 2, 256, 4, 2, 64, 0.2f},    {DTYPE_F16, 2, 250, 2, 2, 8, 0.3f},
        {DTYPE_F16, 1, 193, 2, 2, 64, 0.2f},    {DTYPE_F16, 27, 190, 5, 5, 64, 0.0f},
        {DTYPE_BF16, 45, 256, 6, 6, 64, 0.2f},  {DTYPE_BF16, 200, 64, 4, 4, 64, 0.2f}, /* several heads a */
        {DTYPE_BF16, 180, 100, 4, 4, 64, 0.0f}, {DTYPE_F16, 170, 200, 4, 2, 64, 0.1f}, /* multiprocessor */
    };
    static const struct {
        const char *name;
        Case c;
    } TIMES[] = {
        {"GPT-2 124M", {DTYPE_BF16, 64, 1024, 12, 12, 64, 0.0f}},
        {"GPT-2 1558M", {DTYPE_BF16, 16, 1024, 25, 25, 64, 0.0f}},
        {"head size 128", {DTYPE_BF16, 8, 2048, 16, 16, 128, 0.0f}},
        {"mini", {DTYPE_BF16, 16, 256, 6, 6, 64, 0.0f}},
        {"characters", {DTYPE_BF16, 64, 256, 6, 6, 64, 0.0f}},
        {"characters, dropout", {DTYPE_BF16, 64, 256, 6, 6, 64, 0.2f}},
        {"124M, dropout", {DTYPE_BF16, 64, 1024, 12, 12, 64, 0.1f}},
        {"f32", {DTYPE_F32, 16, 1024, 12, 12, 64, 0.0f}},
    };
    /* 27 sequences: just more heads than an H200 has multiprocessors. 300 heads: two or three for each. */
    int most_sequences = INT_MAX, most_heads = INT_MAX;
    if (getenv("PGPT_TEST_BRIEF") && only) {
        most_sequences = !strcmp(only, "groups") ? INT_MAX : !strcmp(only, "short") ? 27 : 3;
        most_heads = 300;
    }
    for (size_t i = 0; checks && i < sizeof CHECKS / sizeof CHECKS[0]; i++) {
        Case c = CHECKS[i];
        if (c.n_sequences > most_sequences) continue;
        if (c.n_sequences > most_heads / c.n_heads) c.n_sequences = most_heads / c.n_heads;
        good = check(c, only, &library) && good;
    }
    for (size_t i = 0; times && i < sizeof TIMES / sizeof TIMES[0]; i++) {
        if (!only || strstr(TIMES[i].name, only)) time_case(TIMES[i].name, TIMES[i].c, &library);
    }
#ifdef PGPT_HAVE_CUDNN
    if (library && attention_library_reason(library)[0]) printf("%s\n", attention_library_reason(library));
    attention_library_close(library);
#endif
    printf("%s\n", good ? "ok" : "FAILED");
    return good ? 0 : 1;
}
