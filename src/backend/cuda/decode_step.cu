/* decode_step: one grid that stays for the whole step, a thread block on every multiprocessor.
 *
 * Floor: the bytes of the weights over the read bandwidth, 58 us for 124M parameters in 16 bits on an H200. Every product
 * needs all results of the one before, so a step takes at least five times a block the time that numbers need from every
 * multiprocessor to every other; as kernels of their own they would pay for an end and a start each time as well.
 *
 * Rows of every matrix are dealt out to the thread blocks. One warp orders the copies of the weights, block after block, as
 * far ahead as shared memory holds (decode_ring.cuh): reading never waits for computing. Another orders cached keys and
 * values. The others take a tile into registers, then look for the numbers that it is to be multiplied with
 * (decode_mail.cuh), so that only arithmetic is left when those come. A thread a row finishes what comes out (bias,
 * activation, residual) and sends it to all thread blocks.
 *
 * x is in f32, in the registers of the threads that finish its rows. */
#include "backend/cuda/decode_attend.cuh"
#include "backend/cuda/gelu.cuh"

extern "C" {
#include "ops/decode_step.h"
}

#if __CUDA_ARCH__ >= 900

/* ---- with its neighbours in the stream ----
 * Until it has waited, a thread reads only what no predecessor writes. */

DEVICE void wait_for_predecessor(void) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
DEVICE void let_successor_start(void) {
    asm volatile("griddepcontrol.launch_dependents;");
}

/* ---- ordering copies: one thread each ---- */

/* Rows first .. end - 1 of a matrix, counted from the thread block's own first one. */
template <typename T>
DEVICE void order_rows(Ring &ring, const T *weight, const Deal &deal, int first, int end, int inner,
                       uint64_t policy) {
    weight += (int64_t)share_of(deal).first * inner;
    for (int row = first; row < end; row += deal.tile) {
        unsigned n_bytes = (unsigned)(least(end - row, deal.tile) * inner) * 2u;
        ring_expect(ring, n_bytes);
        ring_copy(ring, 0, weight + (int64_t)row * inner, n_bytes, policy);
        ring_advance(ring);
    }
}

/* Vectors that all thread blocks will read. */
template <typename T> DEVICE void prefetch(const T *p, int count) {
    if (p) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(count * 2) : "memory");
}
template <typename T> DEVICE void prefetch_vectors(const DecodeCall &c, int block) {
    prefetch(of_block<T>(c, c.block.norm1_weight, block), c.channels);
    prefetch(of_block<T>(c, c.block.norm1_bias, block), c.channels);
    prefetch(of_block<T>(c, c.block.qkv_bias, block), (c.n_heads + 2 * c.n_kv_heads) * c.head_size);
    prefetch(of_block<T>(c, c.block.out_bias, block), c.channels);
    prefetch(of_block<T>(c, c.block.norm2_weight, block), c.channels);
    prefetch(of_block<T>(c, c.block.norm2_bias, block), c.channels);
    prefetch(of_block<T>(c, c.block.fc_bias, block), c.hidden * (c.is_gated ? 2 : 1));
    prefetch(of_block<T>(c, c.block.proj_bias, block), c.channels);
}

/* In the order in which they are taken. */
template <typename T> DEVICE void order_weights(const DecodeCall &c, Ring &ring) {
    uint64_t policy = keep_policy(KEEP_SHORT);
    for (int l = 0; l < c.n_blocks; l++) {
        if (blockIdx.x == 0) prefetch_vectors<T>(c, l);
        order_rows(ring, of_block<T>(c, c.block.qkv_weight, l), c.qkv, 0, share_of(c.qkv).count, c.channels,
                   policy);
        order_rows(ring, of_block<T>(c, c.block.out_weight, l), c.out, 0, share_of(c.out).count, c.channels,
                   policy);
        for (int range = 0; range < (c.is_gated ? 2 : 1); range++)
            order_rows(ring, of_block<T>(c, c.block.fc_weight, l) + (int64_t)range * c.hidden * c.channels,
                       c.fc, 0, share_of(c.fc).count, c.channels, policy);
        order_rows(ring, of_block<T>(c, c.block.proj_weight, l), c.proj, 0, share_of(c.proj).count, c.hidden,
                   policy);
    }
    int count = share_of(c.logit).count, kept = least(c.kept_rows, count);
    order_rows(ring, (const T *)c.head, c.logit, 0, kept, c.channels, keep_policy(KEEP_LONG));
    order_rows(ring, (const T *)c.head, c.logit, kept, count, c.channels, policy);
}

DEVICE void cut_keys(const DecodeCall &c, Me &me) {
    me.position = c.start[0];
    if (me.position < 0 || me.position >= c.capacity) { /* reported; the cache's last place is as good as any */
        if (blockIdx.x == 0 && me.thread == 0) report(c.fault, FAULT_CACHE, me.position, c.capacity);
        me.position = c.capacity - 1;
    }
    int n_keys = me.position + 1;
    me.n_parts = least((n_keys + c.tile_keys - 1) / c.tile_keys, MOST_PARTS);
    me.part_keys = (n_keys + me.n_parts - 1) / me.n_parts;
}

template <typename T> DEVICE void order_keys(const DecodeCall &c, Me &me, Ring &ring) {
    uint64_t policy = keep_policy(KEEP_NORMAL);
    cut_keys(c, me);
    for (int l = 0; l < c.n_blocks; l++) {
        for (int unit = (int)blockIdx.x; unit < c.n_heads * me.n_parts; unit += (int)gridDim.x) {
            int head = unit % c.n_heads, first = unit / c.n_heads * me.part_keys;
            int end = least(first + me.part_keys, me.position), kv = head / (c.n_heads / c.n_kv_heads);
            int64_t at = l * c.cache_stride + (int64_t)kv * c.capacity * c.head_size;
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
template <typename T> DEVICE const T *table_row(const DecodeCall &c, const void *table, int row, int n_rows) {
    return table && row >= 0 && row < n_rows ? (const T *)table + (int64_t)row * c.channels : NULL;
}

/* This thread's channels of the embedding, and the row of x that it keeps. */
template <typename T, int S> DEVICE float embed(const DecodeCall &c, const Me &me, float (&x)[S][2]) {
    int token = c.tokens[0];
    const T *row = table_row<T>(c, c.token_table, token, c.vocabulary);
    const T *place = table_row<T>(c, c.position_table, me.position, c.n_places);
    if (blockIdx.x == 0 && me.thread == 0) {
        if (!row) report(c.fault, FAULT_TOKEN, token, c.vocabulary);
        if (c.position_table && !place) report(c.fault, FAULT_POSITION, me.position, c.n_places);
    }
    unsigned of_token[S], of_place[S];
    load_channels<T, S>(me, c, row, of_token);
    load_channels<T, S>(me, c, place, of_place);
#pragma unroll
    for (int s = 0; s < S; s++) {
        float2 a = pair_as_floats(of_token[s], T()), b = pair_as_floats(of_place[s], T());
        x[s][0] = a.x + b.x, x[s][1] = a.y + b.y;
    }
    Share own = share_of(c.out);
    bool has_row = me.thread < own.count;
    return element_of(row, own.first + me.thread, has_row) + element_of(place, own.first + me.thread, has_row);
}

DEVICE void fill_angles(const DecodeCall &c, const Me &me) {
    const double TURN = 6.283185307179586476925;
    float *cosine = (float *)(decode_shared + c.shared.angles), *sine = cosine + c.head_size / 2;
    for (int i = me.thread; c.is_rotary && i < c.head_size / 2; i += c.n_warps * WARP) {
        double angle = (double)me.position * exp2(c.frequency_step * i);
        angle -= TURN * rint(angle / TURN);
        sincosf((float)angle, &sine[i], &cosine[i]);
    }
    computing_barrier(c);
}

/* ---- the five phases of a block, and the head ---- */

/* Values of this thread block's rows, two a word; by whole warps. */
template <typename T> DEVICE void send_pairs(const Me &me, const DecodeCall &c, int at, Share rows, float value) {
    float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    if (me.thread < rows.count && me.thread % 2 == 0)
        mail_send(c.mail, me.set + at + (rows.first + me.thread) / 2, pair_of_floats(value, next, T()), me.tag);
}

/* qkv of norm1(x), x being that of the block before, or in registers already. */
template <typename T, typename Size>
DEVICE void attention_in(const DecodeCall &c, Ring &ring, Me &me, int l, float (&x)[Size::CHANNELS][2]) {
    enum { E = Size::EIGHTS_IN, S = Size::CHANNELS, LOW = S * SLICE / 2 };
    uint4 w[E][2 * S];
    unsigned weight[S], bias[S];
    find_place(me);
    Share rows = share_of(c.qkv);
    take_first<T, E, S>(ring, me, c.qkv, c.channels, c.channel_slices, w);
    load_channels<T, S>(me, c, of_block<T>(c, c.block.norm1_weight, l), weight);
    load_channels<T, S>(me, c, of_block<T>(c, c.block.norm1_bias, l), bias);
    bool has_row = me.thread < rows.count;
    float b = element_of(of_block<T>(c, c.block.qkv_bias, l), rows.first + me.thread, has_row);
    if (l) receive_x<S>(me, c, (me.set ? 0 : c.at.words) + c.at.end, me.tag - 1, x);
    normalise<T, S>(me, c, weight, bias, x);
    multiply<T, E, S, LOW>(ring, me, c, c.qkv, 1, c.channels, c.channel_slices, w);
    if (me.warp * WARP >= rows.count) return;
    float value = has_row ? row_sum(me, c, me.thread) + b : 0.0f;
    send_pairs<T>(me, c, c.at.qkv, rows, value);
}

/* x plus the attention's output: the rows that this thread block keeps. */
template <typename T, typename Size>
DEVICE void attention_out(const DecodeCall &c, Ring &ring, Me &me, int l, float &kept) {
    enum { E = Size::EIGHTS_OUT, S = Size::CHANNELS, LOW = S * SLICE / 2 };
    uint4 w[E][2 * S];
    float x[S][2];
    find_place(me);
    Share rows = share_of(c.out);
    take_first<T, E, S>(ring, me, c.out, c.channels, c.channel_slices, w);
    bool has_row = me.thread < rows.count;
    float b = element_of(of_block<T>(c, c.block.out_bias, l), rows.first + me.thread, has_row);
    receive_heads<T, S>(me, c, x);
    set_factors<T, S>(me, c, x);
    multiply<T, E, S, LOW>(ring, me, c, c.out, 1, c.channels, c.channel_slices, w);
    if (!has_row) return;
    kept += row_sum(me, c, me.thread) + b;
    mail_send(c.mail, me.set + c.at.middle + rows.first + me.thread, kept, me.tag);
}

DEVICE float activate(Activation activation, float x) {
    if (activation == ACTIVATION_GELU_TANH) return gelu_forward<ACTIVATION_GELU_TANH>(x);
    if (activation == ACTIVATION_GELU_ERF) return gelu_forward<ACTIVATION_GELU_ERF>(x);
    return x;
}

template <typename T, typename Size> DEVICE void hidden_in(const DecodeCall &c, Ring &ring, Me &me, int l) {
    enum { E = Size::EIGHTS_IN, S = Size::CHANNELS, LOW = S * SLICE / 2 };
    uint4 w[E][2 * S];
    unsigned weight[S], bias[S];
    float x[S][2];
    find_place(me);
    Share rows = share_of(c.fc);
    take_first<T, E, S>(ring, me, c.fc, c.channels, c.channel_slices, w);
    load_channels<T, S>(me, c, of_block<T>(c, c.block.norm2_weight, l), weight);
    load_channels<T, S>(me, c, of_block<T>(c, c.block.norm2_bias, l), bias);
    bool has_row = me.thread < rows.count;
    const T *biases = of_block<T>(c, c.block.fc_bias, l);
    float b = element_of(biases, rows.first + me.thread, has_row);
    float up = element_of(biases, c.hidden + rows.first + me.thread, has_row && c.is_gated);
    receive_x<S>(me, c, me.set + c.at.middle, me.tag, x);
    normalise<T, S>(me, c, weight, bias, x);
    multiply<T, E, S, LOW>(ring, me, c, c.fc, c.is_gated ? 2 : 1, c.channels, c.channel_slices, w);
    if (me.warp * WARP >= rows.count) return;
    float value = has_row ? row_sum(me, c, me.thread) + b : 0.0f, rest;
    if (c.is_gated && has_row) up += row_sum(me, c, rows.count + me.thread);
    value = c.is_gated ? value * sigmoid(value, &rest) * up : activate(c.activation, value);
    send_pairs<T>(me, c, c.at.hidden, rows, value);
}

template <typename T, typename Size>
DEVICE void hidden_out(const DecodeCall &c, Ring &ring, Me &me, int l, float &kept) {
    enum { E = Size::EIGHTS_OUT, S = Size::HIDDEN };
    uint4 w[E][2 * S];
    find_place(me);
    Share rows = share_of(c.proj);
    take_first<T, E, S>(ring, me, c.proj, c.hidden, c.hidden_slices, w);
    bool has_row = me.thread < rows.count;
    float b = element_of(of_block<T>(c, c.block.proj_bias, l), rows.first + me.thread, has_row);
    receive_hidden<S>(me, c);
    multiply<T, E, S, 0>(ring, me, c, c.proj, 1, c.hidden, c.hidden_slices, w);
    if (!has_row) return;
    kept += row_sum(me, c, me.thread) + b;
    mail_send(c.mail, me.set + c.at.end + rows.first + me.thread, kept, me.tag);
}

template <typename T, typename Size> DEVICE void head(const DecodeCall &c, Ring &ring, Me &me) {
    enum { E = Size::EIGHTS_IN, S = Size::CHANNELS, LOW = S * SLICE / 2 };
    uint4 w[E][2 * S];
    unsigned weight[S], bias[S];
    float x[S][2];
    find_place(me);
    Share rows = share_of(c.logit);
    load_channels<T, S>(me, c, (const T *)c.final_weight, weight);
    load_channels<T, S>(me, c, (const T *)c.final_bias, bias);
    receive_x<S>(me, c, me.set + c.at.end, me.tag, x);
    normalise<T, S>(me, c, weight, bias, x);
    for (int first = 0, kept = least(c.kept_rows, rows.count); first < rows.count;) {
        int here = least((first < kept ? kept : rows.count) - first, c.logit.tile);
        me.turn ^= 1;
        take_tile<T, E, S>(ring, me, here, c.channels, c.channel_slices, w);
        multiply_tile<T, E, S, LOW>(me, c, w, here, 0);
        computing_barrier(c);
        if (me.thread < here) c.logits[rows.first + first + me.thread] = row_sum(me, c, me.thread);
        first += here;
    }
}

template <typename T, typename Size>
DEVICE void compute(const DecodeCall &c, Me &me, Ring &weights, Ring &keys) {
    cut_keys(c, me);
    fill_angles(c, me);
    unsigned first_tag = *(volatile unsigned *)c.tag + 1;
    float x[Size::CHANNELS][2], kept = embed<T, Size::CHANNELS>(c, me, x);
    for (int i = 0; i < c.n_blocks; i++) {
        int l = i;
        asm volatile("" : "+r"(l)); /* addresses are made from it where they are needed, not all kept */
        me.tag = first_tag + (unsigned)l;
        me.set = l % 2 * c.at.words;
        attention_in<T, Size>(c, weights, me, l, x);
        attend<T, Size::ROUNDS>(c, keys, me, l);
        attention_out<T, Size>(c, weights, me, l, kept);
        hidden_in<T, Size>(c, weights, me, l);
        hidden_out<T, Size>(c, weights, me, l, kept);
    }
    let_successor_start();
    head<T, Size>(c, weights, me);
    if (blockIdx.x == 0 && me.thread == 0) *c.tag = me.tag; /* all others have read it: they have sent since */
}

#endif

template <typename T, typename Size>
static __global__ void __launch_bounds__((Size::MOST_WARPS + 2) * WARP, 1)
    decode_kernel(const __grid_constant__ DecodeCall c) {
#if __CUDA_ARCH__ >= 900
    Ring weights = {c.shared.full, c.shared.empty, 0, SLOT_BYTES, c.n_slots, 0, 0};
    Ring keys = {c.shared.key_full, c.shared.key_empty, c.shared.key_slot, KEY_SLOT_BYTES, 1, 0, 0};
    Me me = {};
    find_place(me);
    if (me.thread == 0) {
        ring_init(weights, c.n_warps);
        ring_init(keys, c.n_warps);
    }
    __syncthreads();
    if (me.warp == c.n_warps) { /* weights: nobody changes them, so they need not wait */
        if (me.lane == 0) order_weights<T>(c, weights);
        return;
    }
    wait_for_predecessor();
    if (me.warp == c.n_warps + 1) {
        if (me.lane == 0) order_keys<T>(c, me, keys);
        return;
    }
    compute<T, Size>(c, me, weights, keys);
#endif
}

/* ---- on the host's side ---- */

static const void *place_of(const KernelCall *call, const Tensor *tensor) {
    if (!tensor) return NULL;
    return (const char *)call->in[DECODE_PARAMETERS] + (size_t)tensor_root_element(tensor) * 2;
}

static void fill_addresses(const KernelCall *call, DecodeCall *c) {
    const DecodeStepAttributes *step = (const DecodeStepAttributes *)call->node->attributes;
    const DecodeBlock *first = &step->blocks[0];
    enum { N_WEIGHTS = sizeof(BlockWeights) / sizeof(void *) };
    for (int i = 0; i < N_WEIGHTS; i++) /* the two structs name the same things in the same order */
        ((const void **)&c->block)[i] = place_of(call, ((const Tensor *const *)first)[i]);
    c->token_table = place_of(call, step->token_table);
    c->position_table = place_of(call, step->position_table);
    c->final_weight = place_of(call, step->final_weight);
    c->final_bias = place_of(call, step->final_bias);
    c->head = place_of(call, step->head_weight);
    c->keys = (char *)call->out[DECODE_CACHES] + (size_t)tensor_root_element(first->keys) * 2;
    c->values = (char *)call->out[DECODE_CACHES] + (size_t)tensor_root_element(first->values) * 2;
    c->tokens = (const int32_t *)call->in[DECODE_TOKENS];
    c->start = (const int32_t *)call->in[DECODE_START];
    c->logits = (float *)call->out[DECODE_LOGITS];
    CudaContext *context = cuda_context(call);
    c->mail.words = (Word *)context->mail;
    c->tag = (unsigned *)((char *)context->mail + MAIL_BYTES);
    c->fault = context->device_fault;
}

template <typename T, typename Size>
static cudaError_t start(const DecodeCall *c, int n_grid, cudaStream_t stream) {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)n_grid);
    config.blockDim = dim3((unsigned)(c->n_warps + 2) * WARP);
    config.dynamicSmemBytes = (size_t)c->shared.end;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    cudaError_t code = cudaFuncSetAttribute(decode_kernel<T, Size>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, c->shared.end);
    return code == cudaSuccess ? cudaLaunchKernelEx(&config, decode_kernel<T, Size>, *c) : code;
}

template <typename T> static cudaError_t start_size(const DecodeCall *c, int n_grid, cudaStream_t stream) {
    if (c->size == FEW_WARPS) return start<T, FewWarps>(c, n_grid, stream);
    if (c->size == MANY_WARPS) return start<T, ManyWarps>(c, n_grid, stream);
    return start<T, ManyWideWarps>(c, n_grid, stream);
}

extern "C" Status cuda_decode_step(const KernelCall *call, Error *error) {
    const CudaContext *context = cuda_context(call);
    const Node *node = call->node;
    DecodeCall c = {};
    int n_grid;
    if (!cuda_decode_plan(context, node, &c, &n_grid))
        return cuda_unsupported(call, node->output[DECODE_LOGITS], error);
    fill_addresses(call, &c);
    bool is_bf16 = node->input[DECODE_PARAMETERS]->dtype == DTYPE_BF16;
    cudaError_t code = is_bf16 ? start_size<bf16>(&c, n_grid, context->stream)
                               : start_size<f16>(&c, n_grid, context->stream);
    return cuda_check(code, "decode_step", error);
}
