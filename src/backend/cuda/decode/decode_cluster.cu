/* decode_step for the smallest GPT-2, by thread-block clusters: what decode_step.cu does with five exchanges
 * between all multiprocessors in every block takes two here.
 *
 * Floor: 58 us for the weights, as there; 1.1 us for an exchange between all, 0.3 us within a cluster, by
 * themselves on an H200. That GPU has room for 15 clusters of 8, so there is one for each of the 12 heads.
 *
 * A cluster of 8 thread blocks has a head of attention, from the rows of its queries, keys and values to its
 * columns of the output's matrix, and as much of the hidden layer, from its rows to its columns. What leaves
 * a cluster is a summand of every channel of x. They are added up in the L2 cache; rank r of every cluster
 * takes the sums of the r-th part of the channels, which are the same for all, and passes them on in its
 * cluster.
 *
 * The GEMVs. Over all channels a warp has four whole rows, so that no sums are left to be joined over warps.
 * The tensor cores multiply 16 rows by 16 terms by 8 columns of factors: here the rows are 4, four times,
 * each with another quarter of 64 terms, and the columns the factors for each quarter, rounded to 16 bits and
 * what rounding took off. Where row and column belong to the same quarter, what comes out is a part of the
 * sum; the rest is not looked at.
 *
 * x goes through a norm first, and W·norm(x) is a sum of matrix-vector products with W:
 *
 *     W·((x - mean) · rstd · g + b) = rstd · (W·(g·x) - mean · W·g) + W·b
 *
 * W·g and W·b are known before x comes; g·x is what the ranks send, and mean and rstd may come later.
 *
 * A thread block has one block's weights in shared memory. Each matrix's next is loaded as soon as the warps
 * have taken theirs into registers, which they do while they wait for what it is to be multiplied with. */
#include "backend/cuda/decode/decode_cluster.h"

#include "backend/cuda/decode/decode_cluster_attend.cuh"
#include "backend/cuda/decode/decode_cluster_producer.cuh"
#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/runtime/tma_descriptor.h"

#if __CUDA_ARCH__ >= 900

/* ---- computing ---- */

/* The rows of the head: x goes through the last norm as it is, then tile by tile. */
template <typename T, int HEADS> DEVICE void run_head(const DecodeCall &c, Self &me) {
    typedef ClusterSizes<HEADS> S;
    ClusterShared<HEADS> &shared = shared_of<HEADS>();
    uint4 w[S::STEPS];
    uint2 x[S::STEPS];
    mbarrier_wait(&shared.final_full, 0);
    mbarrier_wait(&shared.arrived[X_BEFORE_ATTENTION], c.n_blocks & 1);
    float2 norm = receive_moments(c, shared, me, 0, c.n_blocks & 1);
    if (me.thread < S::C / 4) end_norm<T>(shared, me.thread, norm);
    computing_barrier();
    const char *factors = quads_of(me, shared.y);
#    pragma unroll
    for (int i = 0; i < S::STEPS; i++) x[i] = *(const uint2 *)(factors + 256 * i);
#    pragma unroll 1
    for (int n = 0;; n++) {
        int slot = n % HEAD_SLOTS, row = me.warp * WARP_ROWS + me.group % WARP_ROWS;
        mbarrier_wait(&shared.head_full[slot], n / HEAD_SLOTS & 1);
        int tile = shared.head_tile[slot], at = tile * HEAD_ROWS + row;
        if (tile < 0) break;
        take_wide(me, head_slot(shared, slot) + row * S::C, w);
        mbarrier_arrive(&shared.head_empty[slot]);
        float sum = one_sum(me, multiply_wide<T>(w, x));
        if (me.group < WARP_ROWS && me.member == 2 * (me.group & 1) && at < c.n_logits) c.logits[at] = sum;
    }
}

template <typename T, int HEADS> DEVICE void run_blocks(const DecodeCall &c, Self &me) {
    typedef ClusterSizes<HEADS> S;
    ClusterShared<HEADS> &shared = shared_of<HEADS>();
    bool has_rows = me.warp < S::ROW_WARPS;
    Wide<S::STEPS> wide;
    prepare_wide<T>(shared, me, ATTENTION_IN, shared.qkv, HEAD_SIZE / RANKS, 0, wide);
    unsigned norm = wait_and_embed<T, HEADS>(c, me);
    if (has_rows) send_x<T>(shared, me, 0, norm);
#    pragma unroll 1
    for (int l = 0; l < c.n_blocks; l++) {
        int turn = l & 1;
        Narrow<HEAD_SIZE> out;
        Narrow<CLUSTER_HIDDEN> proj;
        send_new(shared, me, multiply_norm<T>(c, shared, me, 0, turn, wide));
        expect_next(shared, me, X_BEFORE_ATTENTION);
        expect_next(shared, me, MOMENTS);
        attend<T>(c, shared, me, l);
        if (has_rows) {
            take_narrow(shared, me, ATTENTION_OUT, shared.out, shared.out_vectors, turn, out);
            receive_head<T>(shared, me, turn);
            send_rows<HEADS>(me, 0, l, multiply_head<T>(me, out, shared.joined[me.warp][0]));
            expect_next(shared, me, PARTS);
        } else {
            clear_rows<HEADS>(c, me, 0, l);
        }
        prepare_wide<T>(shared, me, HIDDEN_IN, shared.fc, 1, turn, wide);
        if (has_rows) {
            receive_rows<T, HEADS>(me, 0, l, out.bias);
            send_x<T>(shared, me, 1, out.next_norm);
        }
        send_hidden<T>(c, shared, me, multiply_norm<T>(c, shared, me, 1, turn, wide));
        expect_next(shared, me, X_BEFORE_HIDDEN);
        expect_next(shared, me, MOMENTS + 1);
        if (has_rows) {
            take_narrow(shared, me, HIDDEN_OUT, shared.proj, shared.proj_vectors, turn, proj);
            mbarrier_wait(&shared.arrived[HIDDEN], turn);
            send_rows<HEADS>(me, 1, l, multiply_hidden<T>(me, proj, shared.hidden));
            expect_next(shared, me, HIDDEN);
        } else {
            clear_rows<HEADS>(c, me, 1, l);
        }
        if (l + 1 < c.n_blocks)
            prepare_wide<T>(shared, me, ATTENTION_IN, shared.qkv, HEAD_SIZE / RANKS, turn ^ 1, wide);
        if (has_rows) {
            receive_rows<T, HEADS>(me, 1, l, proj.bias);
            send_x<T>(shared, me, 0, proj.next_norm);
        }
    }
    run_head<T, HEADS>(c, me);
    if (blockIdx.x == 0 && me.thread == 0)
        *c.turn = me.turn + (unsigned)c.n_blocks; /* all others have read it: they have sent since */
}

#endif

template <typename T, int HEADS>
static __global__ void __launch_bounds__(CLUSTER_THREADS, 1)
    decode_cluster_kernel(const __grid_constant__ ClusterCall call) {
#if __CUDA_ARCH__ >= 900
    const DecodeCall &c = call.call;
    Self me = {};
    me.thread = (int)threadIdx.x;
    me.lane = me.thread % WARP, me.warp = me.thread / WARP;
    me.group = me.lane / 4, me.member = me.lane % 4;
    me.rank = cluster_rank(), me.cluster = (int)blockIdx.x / RANKS;
    find_sums<HEADS>(c, me);
    let_successor_start();
    clear_missing<HEADS>(c);
    if (me.thread == 0) init_barriers<HEADS>();
    __syncthreads();
    cluster_barrier();
    if (me.warp < COMPUTING_WARPS) run_blocks<T, HEADS>(c, me);
    else if (me.lane == 0) produce_all<T, HEADS>(call, me);
#endif
}

/* ---- on the host's side ---- */

enum { GPT2_HEADS = 12 };
static_assert(sizeof(ClusterShared<GPT2_HEADS>) <= 227 * 1024, "what a block may have");
static_assert(SUM_SETS * ClusterSizes<GPT2_HEADS>::C * sizeof(Word) <= MAIL_SUM_BYTES, "see find_sums");
static_assert((int)GPT2_HEADS <= (int)SUM_COUNT, "they are counted");

typedef void ClusterKernel(const ClusterCall);

static ClusterKernel *kernel_of(bool is_bf16) {
    return is_bf16 ? decode_cluster_kernel<bf16, GPT2_HEADS> : decode_cluster_kernel<f16, GPT2_HEADS>;
}

static void configure(cudaLaunchConfig_t *config, cudaLaunchAttribute attributes[2], cudaStream_t stream) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = RANKS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    config->gridDim = dim3(GPT2_HEADS * RANKS);
    config->blockDim = dim3(CLUSTER_THREADS);
    config->dynamicSmemBytes = sizeof(ClusterShared<GPT2_HEADS>);
    config->stream = stream;
    config->attrs = attributes;
    config->numAttrs = 1;
}

static cudaError_t allow_shared_memory(bool is_bf16) {
    return cudaFuncSetAttribute(kernel_of(is_bf16), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)sizeof(ClusterShared<GPT2_HEADS>));
}

/* All clusters must be there at the same time. */
extern "C" bool cuda_decode_cluster_fits(const DecodeCall *c, bool is_bf16) {
    typedef ClusterSizes<GPT2_HEADS> S;
    if (c->channels != S::C || c->hidden != S::F || c->n_heads != GPT2_HEADS || c->n_kv_heads != GPT2_HEADS)
        return false;
    if (c->is_gated || c->is_rotary || !c->has_mean || !c->position_table) return false;
    if (c->n_blocks < 2 || c->capacity > RANKS * RANK_KEYS || c->n_logits < GPT2_HEADS * RANKS) return false;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    int n_clusters = 0;
    configure(&config, attributes, NULL);
    if (allow_shared_memory(is_bf16) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&n_clusters, kernel_of(is_bf16), &config) != cudaSuccess) {
        cudaGetLastError(); /* it has been noticed */
        return false;
    }
    return n_clusters >= GPT2_HEADS;
}

/* A GEMV's matrices in all blocks, in boxes of this kernel's shape. */
static bool map_gemv(const DecodeCall *c, int k, CUtensorMap *map) {
    typedef ClusterSizes<GPT2_HEADS> S;
    const DecodeGemv *p = &c->gemv[k];
    uint64_t inner = (uint64_t)(k == HIDDEN_OUT ? c->hidden : c->channels);
    uint64_t size[3] = {inner, (uint64_t)c->channels, (uint64_t)c->n_blocks};
    uint64_t stride[2] = {inner * 2,
                          (uint64_t)(c->n_blocks > 1 ? p->stride : (int64_t)inner * c->channels) * 2};
    uint32_t box[3] = {BOX_TERMS, S::RANK_ROWS / BOXES_OF_RANK, 1};
    return cuda_tma_descriptor(map, p->weight, 3, size, stride, box);
}

extern "C" cudaError_t cuda_decode_cluster(const DecodeCall *c, bool is_bf16, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2];
    ClusterCall call = {};
    call.call = *c;
    if (!map_gemv(c, ATTENTION_OUT, &call.out) || !map_gemv(c, HIDDEN_OUT, &call.proj))
        return cudaErrorNotSupported;
    configure(&config, attributes, stream);
    config.numAttrs += pdl_attribute(&attributes[1], stream);
    cudaError_t code = allow_shared_memory(is_bf16);
    return code == cudaSuccess ? cudaLaunchKernelEx(&config, kernel_of(is_bf16), call) : code;
}
