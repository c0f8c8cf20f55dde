/* document_starts and document_starts_cached: where the document of each token begins. A block a sequence:
 * the last end of a document before a token is a running maximum, found chunk by chunk. Floor over the copy
 * bandwidth: 12 bytes a token; for a batch of 32,768 it is the launch that takes the time. */
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/attention/sparse_attention.h"
}

enum { THREADS = 1024, WARPS = THREADS / WARP };

/* Of each thread: the maximum of those before it, and in *last of all. shared: (WARPS). */
DEVICE int max_before(int x, int *shared, int *last) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, before = 0;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int other = __shfl_up_sync(0xFFFFFFFFu, x, step);
        if (lane >= step) x = max(x, other);
    }
    if (lane == WARP - 1) shared[warp] = x;
    int previous = __shfl_up_sync(0xFFFFFFFFu, x, 1);
    __syncthreads();
    *last = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) before = *last;
        *last = max(*last, shared[w]);
    }
    return lane ? max(before, previous) : before;
}

/* Starts are of the positions that rows have, in sequences of n_tokens. */
static __global__ void __launch_bounds__(THREADS)
    starts_kernel(const int32_t *tokens, int32_t *starts, int32_t *positions, int64_t n_tokens,
                  int64_t n_rows, DocumentAttributes a) {
    __shared__ int shared[2][WARPS];
    const int32_t *own = tokens + blockIdx.x * n_tokens;
    int64_t to = blockIdx.x * n_rows;
    int carry = 0;
    for (int64_t base = 0, turn = 0; base < n_tokens; base += THREADS, turn ^= 1) {
        int64_t t = base + threadIdx.x, row = t - a.rows.start;
        bool is_end = t < n_tokens && own[t] == a.end_token;
        int last, start = max(carry, max_before(is_end ? (int)t + 1 : 0, shared[turn], &last));
        carry = max(carry, last);
        if (row >= a.rows.head) row -= a.rows.skip;
        if (t >= n_tokens || row < 0 || row >= n_rows || place_of(a.rows, row) != t) continue;
        starts[to + row] = start;
        positions[to + row] = (int)t - start;
    }
}

/* New tokens stand at start[b] on; `next` (B,capacity) has, of each token, where the document of the one
 * behind it begins. */
static __global__ void __launch_bounds__(THREADS)
    cached_starts_kernel(const int32_t *tokens, const int32_t *start_of, int32_t *starts, int32_t *positions,
                         int32_t *next, int64_t n_tokens, int64_t capacity, int32_t end_token,
                         CudaFault *fault) {
    __shared__ int shared[2][WARPS];
    int64_t b = blockIdx.x, first = start_of[b];
    if (first < 0 || first + n_tokens > capacity) {
        if (threadIdx.x == 0) report(fault, FAULT_CACHE, first + n_tokens - 1, capacity);
        return;
    }
    int32_t *known = next + b * capacity;
    int carry = first ? known[first - 1] : 0;
    for (int64_t base = 0, turn = 0; base < n_tokens; base += THREADS, turn ^= 1) {
        int64_t i = base + threadIdx.x, t = first + i;
        bool is_end = i < n_tokens && tokens[b * n_tokens + i] == end_token;
        int last, start = max(carry, max_before(is_end ? (int)t + 1 : 0, shared[turn], &last));
        carry = max(carry, last);
        if (i >= n_tokens) continue;
        starts[b * n_tokens + i] = start;
        positions[b * n_tokens + i] = (int)t - start;
        known[t] = is_end ? (int)t + 1 : start;
    }
}

extern "C" Status cuda_document_starts(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const DocumentAttributes *a = (const DocumentAttributes *)node->attributes;
    const Tensor *tokens = node->input[0];
    unsigned n_sequences = (unsigned)tokens->shape.dim[0];
    if (!n_sequences) return STATUS_OK;
    starts_kernel<<<n_sequences, THREADS, 0, cuda_context(call)->stream>>>(
        (const int32_t *)call->in[0], (int32_t *)call->out[0], (int32_t *)call->out[1], tokens->shape.dim[1],
        node->output[0]->shape.dim[1], *a);
    return cuda_launched("document_starts", error);
}

extern "C" Status cuda_document_starts_cached(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const DocumentAttributes *a = (const DocumentAttributes *)node->attributes;
    const Tensor *tokens = node->input[0], *next = node->output[2];
    const CudaContext *context = cuda_context(call);
    unsigned n_sequences = (unsigned)tokens->shape.dim[0];
    if (!n_sequences) return STATUS_OK;
    cached_starts_kernel<<<n_sequences, THREADS, 0, context->stream>>>(
        (const int32_t *)call->in[0], (const int32_t *)call->in[1], (int32_t *)call->out[0],
        (int32_t *)call->out[1], (int32_t *)call->out[2], tokens->shape.dim[1], next->shape.dim[1],
        a->end_token, context->device_fault);
    return cuda_launched("document_starts_cached", error);
}
