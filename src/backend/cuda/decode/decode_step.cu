/* decode_step: a persistent kernel, one grid for the whole step, a thread block on every multiprocessor.
 *
 * Floor: the bytes of the weights over the read bandwidth, 58 us for 124M parameters in 16 bits on an H200.
 * Every GEMV needs all results of the one before, so a step takes at least five times a block the time that
 * numbers need from every multiprocessor to every other; as kernels of their own they would pay for an end
 * and a start each time as well.
 *
 * Rows of every matrix are dealt out to the thread blocks. One warp issues the copies of the weights, block
 * after block, as far ahead as shared memory holds (decode_ring.cuh): reading never waits for computing.
 * Another issues those of cached keys and values. The others take a tile into registers, then look for the
 * numbers that it is to be multiplied with (decode_mail.cuh), so that only arithmetic is left when those
 * come. A thread a row finishes what comes out (bias, activation, residual) and sends it to all thread
 * blocks.
 *
 * x is in f32, in the registers of the threads that finish its rows.
 *
 * The smallest GPT-2 has a kernel of its own, decode_cluster.cu, where the GPU has clusters enough. */
#include "backend/cuda/decode/decode_attend.cuh"
#include "backend/cuda/decode/decode_cluster.h"
#include "backend/cuda/ops/gelu.cuh"
#include "backend/cuda/runtime/pdl.cuh"

extern "C" {
#include "ops/decode_step.h"
}

#if __CUDA_ARCH__ >= 900

/* ---- issuing copies: one thread each ---- */

/* What will be read shortly after, into the L2 cache. */
DEVICE void prefetch(const void *p, int64_t n_elements) {
    if (p && n_elements > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"((unsigned)n_elements * 2u)
                     : "memory");
}

template <typename T, typename Call>
DEVICE void produce_gemv(const Call &c, Ring &ring, int k, int block, uint64_t policy) {
    const DecodeGemv &p = c.gemv[k];
    Share rows = share_of(p.deal);
    int inner = inner_of(c, k), n_ranges = k == HIDDEN_IN && c.is_gated ? 2 : 1;
    const T *weight = of_block<T>(p.weight, block, p.stride) + (int64_t)rows.first * inner;
#    pragma unroll 1
    for (int range = 0; range < n_ranges; range++, weight += (int64_t)c.hidden * inner) {
#    pragma unroll 1
        for (int row = 0; row < rows.count; row += p.deal.tile) {
            unsigned n_bytes = (unsigned)(least(rows.count - row, p.deal.tile) * inner) * 2u;
            ring_expect(ring, n_bytes);
            ring_copy(ring, 0, weight + (int64_t)row * inner, n_bytes, policy);
            ring_advance(ring);
        }
    }
}

/* Vectors that all thread blocks will read, and a share of the head for when there is time. */
template <typename T, typename Call> DEVICE void prefetch_block(const Call &c, int block) {
    const DecodeGemv &head = c.gemv[HEAD];
    Share rows = share_of(head.deal);
    int first = least(block * c.fetched_rows, rows.count), end = least(first + c.fetched_rows, rows.count);
    prefetch((const T *)head.weight + (int64_t)(rows.first + first) * c.channels,
             (int64_t)(end - first) * c.channels);
    if (blockIdx.x) return;
#    pragma unroll 1
    for (int k = 0; k < HEAD; k++) {
        const DecodeGemv &p = c.gemv[k];
        int count = k == ATTENTION_IN ? (c.n_heads + 2 * c.n_kv_heads) * c.head_size
                    : k == HIDDEN_IN  ? c.hidden * (c.is_gated ? 2 : 1)
                                      : c.channels;
        prefetch(of_block<T>(p.norm_weight, block, p.stride), c.channels);
        prefetch(of_block<T>(p.norm_bias, block, p.stride), c.channels);
        prefetch(of_block<T>(p.bias, block, p.stride), count);
    }
}

/* In the order in which they are taken. */
template <typename T, typename Call> DEVICE void produce_weights(const Call &c, Ring &ring) {
    uint64_t policy = keep_policy(KEEP_SHORT);
#    pragma unroll 1
    for (int l = 0; l < c.n_blocks; l++) {
#    pragma unroll 1
        for (int k = 0; k < HEAD; k++) produce_gemv<T>(c, ring, k, l, policy);
        prefetch_block<T>(c, l + 1 < c.n_blocks ? l + 1 : l);
    }
    produce_gemv<T>(c, ring, HEAD, 0, policy);
}

/* How the keys up to the new one are cut. */
template <typename Call> DEVICE void cut_keys(const Call &c, Me &me, int position) {
    if (position < 0 || position >= c.capacity) { /* reported; the cache's last place is as good as any */
        if (blockIdx.x == 0 && me.thread == 0) report(c.fault, FAULT_CACHE, position, c.capacity);
        position = c.capacity - 1;
    }
    me.position = position;
    me.n_parts = least((position + c.tile_keys) / c.tile_keys, MOST_PARTS);
    me.part_keys = (position + me.n_parts) / me.n_parts;
}

template <typename T, typename Call> DEVICE void produce_keys(const Call &c, Me &me, Ring &ring) {
    uint64_t policy = keep_policy(KEEP_NORMAL);
    cut_keys(c, me, *(const volatile int32_t *)c.start);
#    pragma unroll 1
    for (int l = 0; l < c.n_blocks; l++) {
#    pragma unroll 1
        for (int unit = (int)blockIdx.x; unit < c.n_heads * me.n_parts; unit += (int)gridDim.x) {
            int head = unit % c.n_heads, first = unit / c.n_heads * me.part_keys;
            int end = least(first + me.part_keys, me.position), kv = head / (c.n_heads / c.n_kv_heads);
            int64_t at = l * c.cache_stride + (int64_t)kv * c.capacity * c.head_size;
#    pragma unroll 1
            for (; first < end; first += c.tile_keys) {
                unsigned n_bytes = (unsigned)(least(end - first, c.tile_keys) * c.head_size) * 2u;
                int64_t from = at + (int64_t)first * c.head_size;
                ring_expect(ring, 2 * n_bytes);
                ring_copy(ring, 0, (const T *)c.keys + from, n_bytes, policy);
                ring_copy(ring, (int)n_bytes, (const T *)c.values + from, n_bytes, policy);
                ring_advance(ring);
            }
        }
    }
}

/* ---- the beginning of x ---- */

/* The row of a table, NULL where there is none. */
template <typename T, typename Call>
DEVICE const T *table_row(const Call &c, const void *table, int row, int n_rows) {
    return table && row >= 0 && row < n_rows ? (const T *)table + (int64_t)row * c.channels : NULL;
}

/* This thread's channels of the embedding, and the element of x that it keeps. */
template <typename T, typename Call>
DEVICE void embed(const Call &c, Me &me, int token, float (&x)[MOST_SLICES][2]) {
    const T *row = table_row<T>(c, c.token_table, token, c.vocabulary);
    const T *place = table_row<T>(c, c.position_table, me.position, c.n_places);
    if (blockIdx.x == 0 && me.thread == 0) {
        if (!row) report(c.fault, FAULT_TOKEN, token, c.vocabulary);
        if (c.position_table && !place) report(c.fault, FAULT_POSITION, me.position, c.n_places);
    }
    unsigned of_token[MOST_SLICES], of_place[MOST_SLICES];
    load_channels<T>(me, c, row, of_token);
    load_channels<T>(me, c, place, of_place);
    Share own = share_of(c.gemv[ATTENTION_OUT].deal);
    bool has_row = me.thread < own.count;
    me.kept =
        element_of(row, own.first + me.thread, has_row) + element_of(place, own.first + me.thread, has_row);
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        float2 a = pair_as_floats(of_token[s], T()), b = pair_as_floats(of_place[s], T());
        x[s][0] = a.x + b.x, x[s][1] = a.y + b.y;
    }
}

template <typename Call> DEVICE void fill_angles(const Call &c, const Me &me) {
    const double TURN = 6.283185307179586476925;
    float *cosine = (float *)(decode_shared + c.shared.angles), *sine = cosine + c.head_size / 2;
#    pragma unroll 1
    for (int i = me.thread; i < c.head_size / 2; i += c.n_warps * WARP) {
        double angle = (double)me.position * exp2(c.frequency_step * i);
        angle -= TURN * rint(angle / TURN);
        sincosf((float)angle, &sine[i], &cosine[i]);
    }
    computing_barrier(c);
}

/* ---- GEMVs ---- */

/* What the tile is multiplied with. has_x: x is in registers already. */
template <typename T, typename Call>
DEVICE void receive_factors(const Call &c, const Me &me, int k, bool has_x,
                            const unsigned (&weight)[MOST_SLICES], float (&x)[MOST_SLICES][2],
                            float (&moments)[2]) {
    if (k == HIDDEN_OUT) {
        receive_hidden(me, c);
    } else if (k == ATTENTION_OUT) {
        receive_heads<T>(me, c, x);
        set_factors<T>(me, c, x);
    } else {
        bool is_behind = k == ATTENTION_IN; /* x comes from the block before */
        int set = is_behind ? c.at.words - me.set : me.set;
        int at = set + (k == HIDDEN_IN ? c.at.middle : c.at.end);
        if (!has_x) receive_x(me, c, at, is_behind ? me.tag - 1 : me.tag, x);
        begin_norm<T>(me, c, weight, x, moments);
    }
}

/* What comes out of a row, before it is sent. norm: mean and 1 / deviation. */
template <typename Call>
DEVICE float row_value(const Call &c, const Me &me, int k, int row, float2 norm, float bias) {
    float4 sum = row_sum(me, c, row);
    float value = k == HIDDEN_OUT ? sum.x : sum.x + sum.y;
    return (is_wide(k) ? fmaf(norm.y, fmaf(-norm.x, sum.z, value), sum.w) : value) + bias;
}

/* The rows that have their sums: a thread each. By whole warps. */
template <typename T, typename Call>
DEVICE void finish_rows(const Call &c, Me &me, int k, Share rows, float2 norm, float bias, float up_bias) {
    if (me.warp * WARP >= rows.count) return;
    bool has_row = me.thread < rows.count, is_pair = k == ATTENTION_IN || k == HIDDEN_IN;
    int row = has_row ? me.thread : 0, at = rows.first + me.thread;
    float value = row_value(c, me, k, row, norm, bias), rest;
    if (k == HIDDEN_IN && c.is_gated)
        value = value * sigmoid(value, &rest) * row_value(c, me, k, rows.count + row, norm, up_bias);
    else if (k == HIDDEN_IN) value = activate(c.activation, value);
    if (k == HEAD) {
        if (has_row) c.logits[at] = value;
        return;
    }
    float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    me.kept += is_pair ? 0.0f : value;
    unsigned payload = is_pair ? pair_of_floats(value, next, T()) : __float_as_uint(me.kept);
    int place = k == ATTENTION_IN    ? c.at.qkv
                : k == ATTENTION_OUT ? c.at.middle
                : k == HIDDEN_IN     ? c.at.hidden
                                     : c.at.end;
    if (has_row && !(is_pair && at % 2))
        mail_send(c.mail, me.set + place + (is_pair ? at / 2 : at), payload, me.tag);
}

/* GEMV k of a block. has_x: x is in registers already. The head, which has many tiles, finishes each by
 * itself. */
template <typename T, typename Call>
DEVICE void run_gemv(const Call &c, Ring &ring, Me &me, int k, int block, bool has_x,
                     float (&x)[MOST_SLICES][2]) {
    find_place(me);
    const DecodeGemv &p = c.gemv[k];
    Share rows = share_of(p.deal);
    uint4 w[HELD];
    unsigned weight[MOST_SLICES];
    float bias = 0.0f, up_bias = 0.0f, moments[2];
    float2 norm = make_float2(0.0f, 1.0f);
    int n_ranges = k == HIDDEN_IN && c.is_gated ? 2 : 1;
    int n_tiles = (rows.count + p.deal.tile - 1) / p.deal.tile * n_ranges;
    int first = 0, range = 0;
#    pragma unroll 1
    for (int tile = 0; tile < n_tiles; tile++) {
        int here = least(rows.count - first, p.deal.tile);
        take_tile<T>(ring, me, c, k, here, w);
        if (tile == 0) {
            const T *biases = of_block<T>(p.bias, block, p.stride) + rows.first;
            bool has_bias = p.bias && me.thread < rows.count;
            bias = has_bias ? as_float(biases[me.thread]) : 0.0f;
            up_bias = has_bias && n_ranges > 1 ? as_float(biases[c.hidden + me.thread]) : 0.0f;
            if (is_wide(k)) prepare_norm<T>(me, c, p, block, weight);
            receive_factors<T>(c, me, k, has_x, weight, x, moments);
        }
        multiply_tile<T>(me, c, k, w, here, k == HEAD ? 0 : range * rows.count + first,
                         is_wide(k) && tile == 0 ? moments : NULL);
        if (k == HEAD || tile == n_tiles - 1) {
            computing_barrier(c);
            if (is_wide(k) && (k != HEAD || tile == 0)) norm = end_norm(me, c);
            Share done = {rows.first + (k == HEAD ? first : 0), k == HEAD ? here : rows.count};
            finish_rows<T>(c, me, k, done, norm, bias, up_bias);
            me.turn ^= 1;
        }
        first += here;
        if (first == rows.count) first = 0, range++;
    }
}

template <typename T, typename Call> DEVICE void compute(const Call &c, Me &me, Ring &weights, Ring &keys) {
    int position = *(const volatile int32_t *)c.start, token = *(const volatile int32_t *)c.tokens;
    unsigned first_tag = *(volatile unsigned *)c.tag + 1;
    float x[MOST_SLICES][2];
    cut_keys(c, me, position);
    embed<T>(c, me, token, x);
    if (c.is_rotary) fill_angles(c, me);
#    pragma unroll 1
    for (int step = 0; step <= c.n_blocks * HEAD; step++) {
        int l = step / HEAD, k = step % HEAD;
        if (l == c.n_blocks) l--, k = HEAD;
        me.tag = first_tag + (unsigned)l;
        me.set = l % 2 * c.at.words;
        if (k == ATTENTION_OUT) attend<T>(c, keys, me, l);
        if (k == HEAD) let_successor_start();
        run_gemv<T>(c, weights, me, k, l, step == 0, x);
    }
    if (blockIdx.x == 0 && me.thread == 0)
        *c.tag = me.tag; /* all others have read it: they have sent since */
}

#endif

template <typename T, typename Call>
static __global__ void __launch_bounds__((Call::MOST_WARPS + 2) * WARP, 1)
    decode_kernel(const __grid_constant__ Call c) {
#if __CUDA_ARCH__ >= 900
    Ring weights = {c.shared.full, c.shared.empty, 0, SLOT_BYTES, c.n_slots, 0, 0};
    Ring keys = {
        c.shared.key_full, c.shared.key_empty, c.shared.key_slots, c.key_slot_bytes, KEY_SLOTS, 0, 0};
    Me me = {};
    find_place(me);
    if (me.thread == 0) {
        ring_init(weights, c.n_warps);
        ring_init(keys, c.n_warps);
    }
    __syncthreads();
    if (me.warp == c.n_warps) { /* weights: nobody changes them, so they need not wait */
        if (me.lane == 0) produce_weights<T>(c, weights);
        return;
    }
    wait_for_predecessor();
    if (me.warp == c.n_warps + 1) {
        if (me.lane == 0) produce_keys<T>(c, me, keys);
        return;
    }
    compute<T>(c, me, weights, keys);
#endif
}

/* ---- on the host's side ---- */

static const void *place_of(const KernelCall *call, const Tensor *tensor) {
    if (!tensor) return NULL;
    return (const char *)call->in[DECODE_PARAMETERS] + (size_t)tensor_root_element(tensor) * 2;
}

static void place_gemv(const KernelCall *call, DecodeGemv *p, const Tensor *weight, const Tensor *bias,
                       const Tensor *norm_weight, const Tensor *norm_bias) {
    p->weight = place_of(call, weight);
    p->bias = place_of(call, bias);
    p->norm_weight = place_of(call, norm_weight);
    p->norm_bias = place_of(call, norm_bias);
}

static void fill_addresses(const KernelCall *call, DecodeCall *c) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)call->node->attributes;
    const DecodeBlock *b = &step->blocks[0];
    const CudaContext *context = cuda_context(call);
    DecodeGemv *p = c->gemv;
    place_gemv(call, &p[ATTENTION_IN], b->qkv_weight, b->qkv_bias, b->norm1_weight, b->norm1_bias);
    place_gemv(call, &p[ATTENTION_OUT], b->out_weight, b->out_bias, NULL, NULL);
    place_gemv(call, &p[HIDDEN_IN], b->fc_weight, b->fc_bias, b->norm2_weight, b->norm2_bias);
    place_gemv(call, &p[HIDDEN_OUT], b->proj_weight, b->proj_bias, NULL, NULL);
    place_gemv(call, &p[HEAD], step->head_weight, NULL, step->final_weight, step->final_bias);
    c->token_table = place_of(call, step->token_table);
    c->position_table = place_of(call, step->position_table);
    c->keys = (char *)call->out[DECODE_CACHES] + (size_t)tensor_root_element(b->keys) * 2;
    c->values = (char *)call->out[DECODE_CACHES] + (size_t)tensor_root_element(b->values) * 2;
    c->tokens = (const int32_t *)call->in[DECODE_TOKENS];
    c->start = (const int32_t *)call->in[DECODE_START];
    c->logits = (float *)call->out[DECODE_LOGITS];
    c->mail.words = (Word *)context->mail;
    c->sums = c->mail.words + MAIL_BYTES / sizeof(Word);
    c->tag = (unsigned *)((char *)c->sums + MAIL_SUM_BYTES);
    c->tiles = c->tag + 1;
    c->turn = c->tag + 2;
    c->fault = context->device_fault;
}

template <typename T, typename Call>
static cudaError_t start(const DecodeCall *c, int n_grid, cudaStream_t stream) {
    Call call;
    (DecodeCall &)call = *c;
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)n_grid);
    config.blockDim = dim3((unsigned)(c->n_warps + 2) * WARP);
    config.dynamicSmemBytes = (size_t)c->shared.end;
    config.stream = stream;
    config.attrs = &pdl;
    config.numAttrs = pdl_attribute(&pdl, stream);
    cudaError_t code = cudaFuncSetAttribute(decode_kernel<T, Call>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, c->shared.end);
    return code == cudaSuccess ? cudaLaunchKernelEx(&config, decode_kernel<T, Call>, call) : code;
}

template <typename T> static cudaError_t start_size(const DecodeCall *c, int n_grid, cudaStream_t stream) {
    return c->n_warps <= FEW_WARPS ? start<T, FewWarpsCall>(c, n_grid, stream)
                                   : start<T, ManyWarpsCall>(c, n_grid, stream);
}

extern "C" Status cuda_decode_step(const KernelCall *call, Error *error) {
    CudaContext *context = cuda_context(call);
    const Node *node = call->node;
    DecodeCall c = {};
    int n_grid;
    if (!cuda_decode_plan(&context->traits, node, &c, &n_grid))
        return cuda_unsupported(call, node->output[DECODE_LOGITS], error);
    fill_addresses(call, &c);
    bool is_bf16 = node->input[DECODE_PARAMETERS]->dtype == DTYPE_BF16;
    bool by_clusters = cuda_decode_cluster_fits(&c, is_bf16);
    context->decode_way = by_clusters ? "clusters" : "grid";
    if (by_clusters)
        return cuda_check(cuda_decode_cluster(&c, is_bf16, context->stream), "decode_step", error);
    cudaError_t code = is_bf16 ? start_size<bf16>(&c, n_grid, context->stream)
                               : start_size<f16>(&c, n_grid, context->stream);
    return cuda_check(code, "decode_step", error);
}
