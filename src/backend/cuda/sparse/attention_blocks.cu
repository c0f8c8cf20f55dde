/* attention_blocks: the lists of tiles that sparse attention computes.
 *
 * A warp has a row of the matrix of blocks, or a column, and asks for the state of each tile in it; a tile is
 * asked for four times in all, since that costs less than to keep what was found. First they are counted,
 * then counts become beginnings (a block a list), then entries are written in order. For 16,384 positions and
 * `window:1024` it is 17,000 states a time and some microseconds; it is done once for all layers of a
 * pattern. Nothing depends on which warp comes first. */
#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/attention/sparse_attention.h"
}

enum { THREADS = 256, WARPS = THREADS / WARP, SCAN_THREADS = 512, SCAN_WARPS = SCAN_THREADS / WARP };

typedef struct {
    AttentionPattern pattern;
    int64_t n_positions, most;
    int n_blocks; /* of a sequence */
} BlocksShape;

/* Where the parts of a list are, to be written. */
typedef struct {
    int32_t *begin, *entry;
} ListPart;

DEVICE ListPart part_of(int32_t *blocks, const BlocksShape &s, int64_t list, bool is_column) {
    int64_t n = s.n_blocks + 1;
    int32_t *at = blocks + list * attention_block_words(s.n_positions, s.most) + (is_column ? n + s.most : 0);
    ListPart part = {at, at + n};
    return part;
}

/* Row or column `number`: calls for 32 tiles a time, ascending, whose states the lanes have. */
template <bool WRITES>
DEVICE int visit(const BlocksShape &s, const int32_t *starts, int number, bool is_column, int32_t *entry) {
    int lane = (int)threadIdx.x % WARP, first = is_column ? number : 0,
        end = is_column ? s.n_blocks : number + 1, n = 0;
    for (int base = first; base < end; base += WARP) {
        int other = base + lane;
        BlockState state = BLOCK_ABSENT;
        if (other < end)
            state = attention_block_state(&s.pattern, s.n_positions, is_column ? other : number,
                                          is_column ? number : other, starts);
        unsigned there = __ballot_sync(0xFFFFFFFFu, state != BLOCK_ABSENT);
        if (WRITES && state != BLOCK_ABSENT)
            entry[n + __popc(there & ((1u << lane) - 1))] = attention_entry(other, state);
        n += __popc(there);
    }
    return n;
}

/* Counts go to where the next one's beginning will be. A warp has a row or a column of a list: `n_blocks` of
 * each. */
template <bool WRITES>
static __global__ void __launch_bounds__(THREADS)
    blocks_kernel(const int32_t *starts, int32_t *blocks, int n_lists, BlocksShape s) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= (int64_t)n_lists * 2 * s.n_blocks) return;
    int64_t list = n / (2 * s.n_blocks);
    int at = (int)(n % (2 * s.n_blocks)), number = at / 2;
    bool is_column = at % 2;
    ListPart part = part_of(blocks, s, list, is_column);
    const int32_t *own = starts ? starts + list * s.n_positions : NULL;
    if (WRITES) {
        visit<true>(s, own, number, is_column, part.entry + part.begin[number]);
    } else {
        int count = visit<false>(s, own, number, is_column, NULL);
        if (threadIdx.x % WARP == 0) part.begin[number + 1] = count;
    }
}

/* Of each thread: the sum up to and including its own. shared: (SCAN_WARPS). */
DEVICE int block_scan(int x, int *shared) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int before = __shfl_up_sync(0xFFFFFFFFu, x, step);
        if (lane >= step) x += before;
    }
    if (lane == WARP - 1) shared[warp] = x;
    __syncthreads();
    for (int w = 0; w < warp; w++) x += shared[w];
    return x;
}

/* A block has the rows or the columns of a list. What is behind its last entry is 0. */
static __global__ void __launch_bounds__(SCAN_THREADS) begin_kernel(int32_t *blocks, BlocksShape s) {
    __shared__ int shared[2][SCAN_WARPS], total[2];
    ListPart part = part_of(blocks, s, blockIdx.x, blockIdx.y);
    int carry = 0;
    if (threadIdx.x == 0) part.begin[0] = 0;
    for (int base = 0, turn = 0; base < s.n_blocks; base += SCAN_THREADS, turn ^= 1) {
        int i = base + (int)threadIdx.x;
        int sum = carry + block_scan(i < s.n_blocks ? part.begin[i + 1] : 0, shared[turn]);
        if (i < s.n_blocks) part.begin[i + 1] = sum;
        if (threadIdx.x == SCAN_THREADS - 1) total[turn] = sum;
        __syncthreads();
        carry = total[turn];
    }
    for (int64_t i = carry + (int)threadIdx.x; i < s.most; i += SCAN_THREADS) part.entry[i] = 0;
}

extern "C" Status cuda_attention_blocks(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const AttentionBlocksAttributes *a = (const AttentionBlocksAttributes *)node->attributes;
    int n_lists = (int)node->output[0]->shape.dim[0];
    BlocksShape s = {a->pattern, a->n_positions, a->most, (int)attention_n_blocks(a->n_positions)};
    const int32_t *starts = (const int32_t *)call->in[0];
    int32_t *blocks = (int32_t *)call->out[0];
    cudaStream_t stream = cuda_context(call)->stream;
    if (!n_lists) return STATUS_OK;
    unsigned grid = blocks_for((int64_t)n_lists * 2 * s.n_blocks, WARPS);
    if (grid) blocks_kernel<false><<<grid, THREADS, 0, stream>>>(starts, blocks, n_lists, s);
    begin_kernel<<<dim3((unsigned)n_lists, 2), SCAN_THREADS, 0, stream>>>(blocks, s);
    if (grid) blocks_kernel<true><<<grid, THREADS, 0, stream>>>(starts, blocks, n_lists, s);
    return cuda_launched("attention_blocks", error);
}
