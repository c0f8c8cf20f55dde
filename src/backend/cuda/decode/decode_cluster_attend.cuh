/* Attention of decode_cluster.cu: one query of a head against its cached keys and the new one.
 *
 * Ranks have a part of the keys each. Those are in registers when the query comes: groups of 8 threads have a
 * key at a time, 8 channels a thread. What comes out is joined over the warp, over the warps of the block,
 * and by whoever needs it over the ranks: a part goes with its greatest score and its sum of exponentials. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_ATTEND_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_ATTEND_CUH

#include "backend/cuda/decode/decode_cluster_parts.cuh"

#if __CUDA_ARCH__ >= 900

typedef struct {
    float max, sum, value[VECTOR]; /* scores are logarithms to base 2 */
} Seen;

DEVICE int key_of_turn(const Self &me, int i) {
    return i * KEYS_AT_ONCE + me.warp * (KEYS_AT_ONCE / COMPUTING_WARPS) + me.lane / (HEAD_SIZE / VECTOR);
}

template <typename T> DEVICE void unpack_vector(uint4 raw, float (&v)[VECTOR]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#    pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = pair_as_floats(word[i], T());
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}
template <typename T> DEVICE uint4 pack_vector(const float (&v)[VECTOR]) {
    return make_uint4(pair_of_floats(v[0], v[1], T()), pair_of_floats(v[2], v[3], T()),
                      pair_of_floats(v[4], v[5], T()), pair_of_floats(v[6], v[7], T()));
}

/* Keys that are not there are 0; their scores will not count. */
template <int HEADS>
DEVICE void take_keys(ClusterShared<HEADS> &shared, const Self &me, int turn, uint4 (&key)[KEY_TURNS],
                      uint4 (&value)[KEY_TURNS]) {
    int channel = me.lane % (HEAD_SIZE / VECTOR) * VECTOR;
    mbarrier_wait(&shared.keys_full, turn);
#    pragma unroll
    for (int i = 0; i < KEY_TURNS; i++) {
        int k = key_of_turn(me, i);
        key[i] = value[i] = make_uint4(0, 0, 0, 0);
        if (k >= me.n_old) continue;
        key[i] = *(const uint4 *)&shared.keys[0][k][channel];
        value[i] = *(const uint4 *)&shared.keys[1][k][channel];
    }
    mbarrier_arrive(&shared.keys_empty);
}

/* This thread's keys, as far as there are: in the first TURNS turns. */
template <typename T, int TURNS>
DEVICE void see_keys(const DecodeCall &c, const Self &me, const float (&query)[VECTOR],
                     const uint4 (&key)[KEY_TURNS], const uint4 (&value)[KEY_TURNS], Seen &seen) {
    float score[TURNS], v[VECTOR], max = -INFINITY;
#    pragma unroll
    for (int i = 0; i < TURNS; i++) {
        float even = 0.0f, odd = 0.0f;
        unpack_vector<T>(key[i], v);
#    pragma unroll
        for (int k = 0; k < VECTOR; k += 2) {
            even = fmaf(query[k], v[k], even);
            odd = fmaf(query[k + 1], v[k + 1], odd);
        }
        score[i] = even + odd;
    }
#    pragma unroll
    for (int step = 1; step < HEAD_SIZE / VECTOR; step *= 2) {
#    pragma unroll
        for (int i = 0; i < TURNS; i++) score[i] += __shfl_xor_sync(0xFFFFFFFFu, score[i], step);
    }
#    pragma unroll
    for (int i = 0; i < TURNS; i++) {
        score[i] = key_of_turn(me, i) < me.n_keys ? score[i] * (c.scale * 1.44269504f) : -INFINITY;
        max = fmaxf(max, score[i]);
    }
#    pragma unroll
    for (int step = HEAD_SIZE / VECTOR; step < WARP; step *= 2)
        max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, step));
    float reference = max == -INFINITY ? 0.0f : max;
    seen.max = max;
#    pragma unroll
    for (int i = 0; i < TURNS; i++) {
        float p = exp2_fast(score[i] - reference);
        seen.sum += p;
        unpack_vector<T>(value[i], v);
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) seen.value[k] = fmaf(p, v[k], seen.value[k]);
    }
#    pragma unroll
    for (int step = HEAD_SIZE / VECTOR; step < WARP; step *= 2) {
        seen.sum += __shfl_xor_sync(0xFFFFFFFFu, seen.sum, step);
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) seen.value[k] += __shfl_xor_sync(0xFFFFFFFFu, seen.value[k], step);
    }
}

/* Eight parts as one: channels 2 · lane and the next. weight: the whole's greatest score and sum. */
DEVICE float2 join_parts(const Self &me, const float (&part)[RANKS][HEAD_SIZE],
                         const float2 (&weights)[RANKS], float2 &weight) {
    static_assert(RANKS == COMPUTING_WARPS, "parts of warps and of ranks");
    float2 w[RANKS], v = make_float2(0.0f, 0.0f);
    float max = -INFINITY, sum = 0.0f;
#    pragma unroll
    for (int i = 0; i < RANKS; i++) {
        w[i] = weights[i];
        max = fmaxf(max, w[i].x);
    }
    float reference = max == -INFINITY ? 0.0f : max;
#    pragma unroll
    for (int i = 0; i < RANKS; i++) {
        float p = exp2_fast(w[i].x - reference);
        float2 here = ((const float2 *)part[i])[me.lane];
        sum = fmaf(p, w[i].y, sum);
        v.x = fmaf(p, here.x, v.x);
        v.y = fmaf(p, here.y, v.y);
    }
    weight = make_float2(max, sum);
    return v;
}

/* Which of this warp's turns has the new key; -1: none has. */
DEVICE int turn_of_new(const Self &me) {
    int turn = me.n_old / KEYS_AT_ONCE, warp = me.n_old % KEYS_AT_ONCE / (KEYS_AT_ONCE / COMPUTING_WARPS);
    return me.n_old < me.n_keys && warp == me.warp ? turn : -1;
}

/* The new key and value among this thread's, if they are its own. */
DEVICE void insert_new(const Self &me, uint4 k, uint4 v, uint4 (&key)[KEY_TURNS], uint4 (&value)[KEY_TURNS]) {
#    pragma unroll
    for (int i = 0; i < KEY_TURNS; i++)
        if (key_of_turn(me, i) == me.n_old) key[i] = k, value[i] = v;
}
/* Into the cache, when everything else has been sent. */
template <typename T> DEVICE void keep_new(const DecodeCall &c, const Self &me, int block, uint4 k, uint4 v) {
    int64_t to = block * c.cache_stride + ((int64_t)me.cluster * c.capacity + me.position) * HEAD_SIZE +
                 me.lane % (HEAD_SIZE / VECTOR) * VECTOR;
    if (me.lane >= HEAD_SIZE / VECTOR) return;
    *(uint4 *)((T *)c.keys + to) = k;
    *(uint4 *)((T *)c.values + to) = v;
}

/* This rank's keys of the cluster's head: what they come to, to all ranks. */
template <typename T, int HEADS>
DEVICE void attend(const DecodeCall &c, ClusterShared<HEADS> &shared, const Self &me, int block) {
    uint4 key[KEY_TURNS], value[KEY_TURNS];
    float query[VECTOR], new_key[VECTOR], new_value[VECTOR];
    Seen seen = {};
    int turn = block & 1;
    take_keys(shared, me, turn, key, value);
    mbarrier_wait(&shared.arrived[QKV], turn);
#    pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float4 channel = shared.new_token[k * RANKS + me.lane % (HEAD_SIZE / VECTOR)];
        query[k] = channel.x, new_key[k] = channel.y, new_value[k] = channel.z;
    }
    uint4 k = make_uint4(0, 0, 0, 0), v = k;
    bool has_new = turn_of_new(me) >= 0;
    if (has_new) {
        k = pack_vector<T>(new_key), v = pack_vector<T>(new_value);
        insert_new(me, k, v, key, value);
    }
    if (me.n_keys <= 2 * KEYS_AT_ONCE) see_keys<T, 2>(c, me, query, key, value, seen);
    else see_keys<T, KEY_TURNS>(c, me, query, key, value, seen);
    if (me.lane < HEAD_SIZE / VECTOR) store8(&shared.warp_part[turn][me.warp][me.lane * VECTOR], seen.value);
    if (me.lane == 0) shared.warp_weight[turn][me.warp] = make_float2(seen.max, seen.sum);
    computing_barrier();
    float2 weight, part = join_parts(me, shared.warp_part[turn], shared.warp_weight[turn], weight);
    send(true, me.warp, &shared.part[me.rank][2 * me.lane],
         make_uint2(__float_as_uint(part.x), __float_as_uint(part.y)), &shared.arrived[PARTS]);
    send(me.lane == 0, me.warp, &shared.part_weight[me.rank],
         make_uint2(__float_as_uint(weight.x), __float_as_uint(weight.y)), &shared.arrived[PARTS]);
    expect_next(shared, me, QKV);
    if (has_new) keep_new<T>(c, me, block, k, v);
}

/* The head's output as factors, in every warp by itself. */
template <typename T, int HEADS>
DEVICE void receive_head(ClusterShared<HEADS> &shared, const Self &me, int turn) {
    float2 weight;
    mbarrier_wait(&shared.arrived[PARTS], turn);
    float2 v = join_parts(me, shared.part, shared.part_weight, weight);
    float part = __fdividef(1.0f, weight.y);
    v.x *= part, v.y *= part;
    unsigned rounded = pair_of_floats(v.x, v.y, T());
    float2 back = pair_as_floats(rounded, T());
    shared.joined[me.warp][0][me.lane] = rounded;
    shared.joined[me.warp][1][me.lane] = pair_of_floats(v.x - back.x, v.y - back.y, T());
    __syncwarp();
}

#endif

#endif
