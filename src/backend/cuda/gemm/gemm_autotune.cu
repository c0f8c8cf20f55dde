/* Which of the library's kernels runs a GEMM: those it proposes are timed on the GEMM's own data.
 *
 * Every proposal is run once or a few times, the fastest of them again in turns, and the least time of each
 * counts. All this happens on the first run of a program, a few milliseconds a GEMM. A GEMM that adds to its
 * own result is tried on other memory.
 *
 * Two kernels may take a sum in different order (one splits it along K, say), and the difference in the last
 * bits would make two runs of one program differ. So the result of every fast one is hashed, and only those
 * with the bits of the library's first proposal are eligible, which is a function of shape, GPU and
 * library. */
#include "backend/cuda/gemm/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what there is to choose from ---- */

#define PREFER(name, value)                                                                                  \
    (context->lt.MatmulPreferenceSetAttribute(preference, name, &(value), sizeof(value)) ==                  \
     CUBLAS_STATUS_SUCCESS)

/* Parts of a sum may be added in f32 only: in the type of a 16-bit result they would be rounded in
 * between. */
static bool set_preferences(const CudaContext *context, const GemmDescription *description,
                            cublasLtMatmulPreference_t preference) {
    size_t workspace = context->workspace_bytes;
    uint32_t alignment = description->alignment, schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return PREFER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) &&
           PREFER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes) &&
           PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment) &&
           PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment) &&
           PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment) &&
           PREFER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
}

/* Can it keep the addend apart from the result? */
static bool is_usable(const CudaContext *context, const cublasLtMatmulAlgo_t *algorithm) {
    int out_of_place = 1;
    size_t written;
    context->lt.MatmulAlgoCapGetAttribute(algorithm, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                                          &out_of_place, sizeof out_of_place, &written);
    return out_of_place;
}

static int library_proposals(const CudaContext *context, const GemmDescription *description,
                             cublasLtMatmulHeuristicResult_t *result, int most) {
    cublasLtMatmulPreference_t preference = NULL;
    int n_results = 0, n = 0;
    if (context->lt.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    if (!set_preferences(context, description, preference) ||
        context->lt.MatmulAlgoGetHeuristic(context->cublas, description->operation, description->a,
                                           description->b, description->c, description->c, preference, most,
                                           result, &n_results) != CUBLAS_STATUS_SUCCESS) {
        n_results = 0;
    }
    context->lt.MatmulPreferenceDestroy(preference);
    for (int i = 0; i < n_results; i++) {
        if (result[i].state == CUBLAS_STATUS_SUCCESS && is_usable(context, &result[i].algo))
            result[n++] = result[i];
    }
    return n;
}

static int add_candidate(GemmCandidate *candidate, int n, const cublasLtMatmulAlgo_t *algorithm) {
    for (int i = 0; i < n; i++) {
        if (memcmp(&candidate[i].algorithm, algorithm, sizeof *algorithm) == 0) return n;
    }
    candidate[n].algorithm = *algorithm;
    candidate[n].rank = n;
    candidate[n].microseconds = 0.0f;
    candidate[n].bits = 0;
    return n + 1;
}

extern "C" bool gemm_can_run(const CudaContext *context, const GemmDescription *description,
                             const cublasLtMatmulAlgo_t *algorithm) {
    cublasLtMatmulHeuristicResult_t verdict;
    return context->lt.MatmulAlgoCheck(context->cublas, description->operation, description->a,
                                       description->b, description->c, description->c, algorithm,
                                       &verdict) == CUBLAS_STATUS_SUCCESS &&
           verdict.workspaceSize <= context->workspace_bytes;
}

extern "C" int gemm_candidates(const CudaContext *context, const Gemm *gemm,
                               const GemmDescription *description, GemmCandidate *candidate, int most) {
    cublasLtMatmulHeuristicResult_t result[GEMM_MOST_CANDIDATES];
    if (most > GEMM_MOST_CANDIDATES) most = GEMM_MOST_CANDIDATES;
    int n_results = library_proposals(context, description, result, most), n = 0;
    for (int i = 0; i < n_results; i++) n = add_candidate(candidate, n, &result[i].algo);
    if (!n || n >= most || gemm->epilogue == EPILOGUE_NONE) return n;
    Gemm plain = *gemm;
    GemmDescription plain_description;
    Error reason = {};
    plain.epilogue = EPILOGUE_NONE;
    n_results = 0;
    if (gemm_describe(context, &plain, &plain_description, &reason) == STATUS_OK)
        n_results = library_proposals(context, &plain_description, result, most);
    gemm_description_free(&plain_description);
    for (int i = 0; i < n_results && n < most; i++) {
        if (gemm_can_run(context, description, &result[i].algo))
            n = add_candidate(candidate, n, &result[i].algo);
    }
    return n;
}

static unsigned algorithm_number(const CudaContext *context, const GemmCandidate *candidate,
                                 cublasLtMatmulAlgoConfigAttributes_t name, size_t n_bytes) {
    unsigned value = 0; /* little-endian: two bytes are its low half */
    size_t written;
    context->lt.MatmulAlgoConfigGetAttribute(&candidate->algorithm, name, &value, n_bytes, &written);
    return value;
}

extern "C" const char *gemm_candidate_describe(const CudaContext *context, const GemmCandidate *c, char *text,
                                               size_t n_bytes) {
    snprintf(text, n_bytes, "id %u tile %u stages %u cluster %u split %u swizzle %u option %u",
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_ID, 4),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4),
             algorithm_number(context, c, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4));
    return text;
}

/* ---- bits ---- */

enum { HASH_THREADS = 256 };

/* Integers may be added in any order. */
template <typename Word>
static __global__ void hash_kernel(const Word *x, int64_t rows, int64_t columns, int64_t stride,
                                   unsigned long long *total) {
    unsigned long long sum = 0;
    int64_t count = rows * columns, step = (int64_t)gridDim.x * HASH_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * HASH_THREADS + threadIdx.x; i < count; i += step) {
        int64_t row = i / columns;
        unsigned long long h = (unsigned long long)x[row * stride + i - row * columns] +
                               0x9E3779B97F4A7C15ull * (unsigned long long)(i + 1);
        h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
        sum += h ^ (h >> 27);
    }
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

static void enqueue_hash(const CudaContext *context, const void *x, DType dtype, int64_t rows,
                         int64_t columns, int64_t stride) {
    unsigned long long *total = (unsigned long long *)context->workspace;
    unsigned blocks = (unsigned)(8 * context->traits.n_processors);
    if (dtype == DTYPE_F32)
        hash_kernel<<<blocks, HASH_THREADS, 0, context->stream>>>((const uint32_t *)x, rows, columns, stride,
                                                                  total);
    else
        hash_kernel<<<blocks, HASH_THREADS, 0, context->stream>>>((const uint16_t *)x, rows, columns, stride,
                                                                  total);
}

/* The hash of what the candidate makes of the GEMM. Never 0. */
static Status hash_result(const CudaContext *context, const Gemm *p, const GemmDescription *description,
                          GemmCandidate *candidate, Error *error) {
    int64_t stride = p->c_stride ? p->c_stride : p->columns;
    uint64_t bits = 0;
    if (p->addend == p->c) {
        size_t n_bytes = (size_t)(p->rows * stride) * dtype_info(p->c_type)->n_bytes;
        TRY(cuda_check(cudaMemsetAsync(p->c, 0, n_bytes, context->stream), "GEMM", error));
    }
    TRY(gemm_launch(context, p, description, &candidate->algorithm, error));
    TRY(cuda_check(cudaMemsetAsync(context->workspace, 0, sizeof bits, context->stream), "GEMM", error));
    enqueue_hash(context, p->c, p->c_type, p->rows, p->columns, stride);
    TRY(cuda_launched("comparing GEMMs", error));
    TRY(cuda_check(
        cudaMemcpyAsync(&bits, context->workspace, sizeof bits, cudaMemcpyDeviceToHost, context->stream),
        "comparing GEMMs", error));
    TRY(cuda_check(cudaStreamSynchronize(context->stream), "comparing GEMMs", error));
    candidate->bits = bits ? bits : 1;
    return STATUS_OK;
}

/* ---- times ---- */

typedef struct {
    CudaContext *context;
    const Gemm *gemm;
    const GemmDescription *description;
    cudaEvent_t begin, end;
} Trial;

static Status time_runs(const Trial *trial, const GemmCandidate *candidate, int n_runs, float *microseconds,
                        Error *error) {
    cudaStream_t stream = trial->context->stream;
    float milliseconds = 0.0f;
    TRY(cuda_check(cudaEventRecord(trial->begin, stream), "timing GEMMs", error));
    for (int i = 0; i < n_runs; i++) {
        TRY(gemm_launch(trial->context, trial->gemm, trial->description, &candidate->algorithm, error));
    }
    TRY(cuda_check(cudaEventRecord(trial->end, stream), "timing GEMMs", error));
    TRY(cuda_check(cudaEventSynchronize(trial->end), "timing GEMMs", error));
    TRY(cuda_check(cudaEventElapsedTime(&milliseconds, trial->begin, trial->end), "timing GEMMs", error));
    *microseconds = 1000.0f * milliseconds / (float)n_runs;
    return STATUS_OK;
}

/* Runs that take about that long together, but not more than 20. */
static int runs_within(float microseconds, float each) {
    float n = microseconds / (each > 1.0f ? each : 1.0f);
    return n < 1.0f ? 1 : n > 20.0f ? 20 : (int)n;
}

/* A GPU that was idle takes a while to reach its clock: run until a run is no faster than the one before. */
static Status settle(const Trial *trial, const GemmCandidate *candidate, Error *error) {
    float before = INFINITY, now = 0.0f, total = 0.0f;
    for (int i = 0; i < 100 && total < 100e3f; i++) {
        int n_runs = runs_within(500.0f, before);
        TRY(time_runs(trial, candidate, n_runs, &now, error));
        total += now * (float)n_runs;
        if (i > 1 && now > 0.98f * before) break;
        before = now;
    }
    return STATUS_OK;
}

static int by_time(const void *a, const void *b) {
    const GemmCandidate *x = (const GemmCandidate *)a, *y = (const GemmCandidate *)b;
    return x->microseconds < y->microseconds ? -1 : x->microseconds > y->microseconds ? 1 : x->rank - y->rank;
}

/* All once (a kernel that the library then refuses to launch is out), then the fastest in turns. */
static Status time_candidates(const Trial *trial, GemmCandidate *candidate, int n_candidates, Error *error) {
    enum { FINALISTS = 6, ROUNDS = 3 };
    for (int i = 0; i < n_candidates; i++) {
        Error refused = {};
        float *time = &candidate[i].microseconds;
        if (time_runs(trial, &candidate[i], 1, time, &refused) != STATUS_OK) {
            *time = INFINITY;
            continue;
        }
        TRY(time_runs(trial, &candidate[i], runs_within(100.0f, *time), time, error));
    }
    qsort(candidate, (size_t)n_candidates, sizeof *candidate, by_time);
    int finalists = n_candidates < FINALISTS ? n_candidates : FINALISTS;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < finalists && candidate[i].microseconds < INFINITY; i++) {
            float now;
            TRY(time_runs(trial, &candidate[i], runs_within(600.0f, candidate[i].microseconds), &now, error));
            if (round == 0 || now < candidate[i].microseconds) candidate[i].microseconds = now;
        }
    }
    qsort(candidate, (size_t)finalists, sizeof *candidate, by_time);
    return STATUS_OK;
}

static Status survey(const Trial *trial, GemmCandidate *candidate, int n_candidates, Error *error) {
    TRY(settle(trial, &candidate[0], error));
    TRY(time_candidates(trial, candidate, n_candidates, error));
    for (int i = 0; i < n_candidates && candidate[i].microseconds < INFINITY; i++) {
        TRY(hash_result(trial->context, trial->gemm, trial->description, &candidate[i], error));
        if (candidate[i].rank == 0) break; /* what is slower than the first proposal is of no interest */
    }
    return STATUS_OK;
}

extern "C" Status gemm_survey(CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                              GemmCandidate *candidate, int n_candidates, Error *error) {
    Trial trial = {context, gemm, description, NULL, NULL};
    if (!n_candidates) return STATUS_OK;
    Status status = cuda_check(cudaEventCreate(&trial.begin), "making an event", error);
    if (status == STATUS_OK) status = cuda_check(cudaEventCreate(&trial.end), "making an event", error);
    if (status == STATUS_OK) status = survey(&trial, candidate, n_candidates, error);
    if (trial.begin) cudaEventDestroy(trial.begin);
    if (trial.end) cudaEventDestroy(trial.end);
    return status;
}

/* ---- the choice ---- */

/* Memory to try a GEMM on that adds to its own result. False without memory: then nothing is timed. It is
 * taken and given back in the order of the stream: cudaMalloc and cudaFree wait for the whole device, and so
 * for messages that wait for what is behind this GEMM. */
static bool trial_memory(const CudaContext *context, Gemm *trial, void **memory) {
    *memory = NULL;
    if (!trial->addend || trial->addend != trial->c) return true;
    int64_t stride = trial->c_stride ? trial->c_stride : trial->columns;
    size_t n_bytes = (size_t)(trial->rows * stride) * dtype_info(trial->c_type)->n_bytes;
    if (cudaMallocAsync(memory, n_bytes, context->stream) != cudaSuccess) {
        cudaGetLastError(); /* it is not sticky */
        return false;
    }
    if (cudaMemsetAsync(*memory, 0, n_bytes, context->stream) != cudaSuccess) {
        cudaGetLastError();
        cudaFreeAsync(*memory, context->stream);
        return false;
    }
    trial->c = *memory;
    trial->addend = *memory;
    return true;
}

extern "C" Status gemm_choose(CudaContext *context, const Gemm *gemm, const GemmDescription *description,
                              GemmCandidate *choice, Error *error) {
    GemmCandidate candidate[GEMM_CANDIDATES];
    Gemm trial = *gemm;
    void *memory;
    int n = gemm_candidates(context, gemm, description, candidate, GEMM_CANDIDATES);
    if (n < 2 || !trial_memory(context, &trial, &memory)) return STATUS_OK;
    Status status = gemm_survey(context, &trial, description, candidate, n, error);
    cudaError_t given_back = memory ? cudaFreeAsync(memory, context->stream) : cudaSuccess;
    TRY(status);
    TRY(cuda_check(given_back, "giving memory back", error));
    int first = 0;
    while (first < n && candidate[first].rank != 0) first++;
    if (first == n || !(candidate[first].microseconds < INFINITY)) {
        *choice = candidate[0]; /* the first proposal cannot be run */
        return STATUS_OK;
    }
    int best = 0;
    while (!context->traits.settings.any_order && candidate[best].bits != candidate[first].bits) best++;
    *choice = candidate[best];
    return STATUS_OK;
}
