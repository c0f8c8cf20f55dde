/* Attention of decode_step: one query against the cached keys and the new one.
 *
 * The keys of a head are cut into parts, and a thread block takes a part of one head. Its cached keys and values are in
 * shared memory, then in registers, before the query comes. Groups of HS/8 threads have a key at a time; what they get is
 * joined in the warp, then over the warps. A part's output is already divided by its sum of exponentials; who needs the
 * head's output joins the parts by those sums. */
#ifndef PGPT_BACKEND_CUDA_DECODE_ATTEND_CUH
#define PGPT_BACKEND_CUDA_DECODE_ATTEND_CUH

#include "backend/cuda/decode_step.cuh"

#if __CUDA_ARCH__ >= 900

typedef struct {
    float max, sum, value[VECTOR]; /* scores are logarithms to base 2 */
} Attended;

DEVICE int lanes_of(const DecodeCall &c) {
    return c.head_size / VECTOR;
}
/* The first of this thread's channels of a head. */
DEVICE int head_channel(const Me &me, const DecodeCall &c) {
    return (me.lane & (lanes_of(c) - 1)) * VECTOR;
}

template <typename T> DEVICE void unpack8(uint4 raw, float v[VECTOR]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = pair_as_floats(word[i], T());
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}

/* ---- keys and values ---- */

/* Which key of a tile round i has for this thread. */
DEVICE int key_at(const Me &me, const DecodeCall &c, int i) {
    return (((i * c.n_warps + me.warp) * WARP + me.lane) * VECTOR) >> c.head_shift;
}

template <typename T, int ROUNDS>
DEVICE void take_keys(Ring &ring, const Me &me, const DecodeCall &c, int n_keys, uint4 (&keys)[ROUNDS],
                      uint4 (&values)[ROUNDS]) {
    const T *tile = (const T *)ring_wait(ring) + head_channel(me, c);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int k = key_at(me, c, i);
        keys[i] = k < n_keys ? *(const uint4 *)(tile + k * c.head_size) : nothing4();
        values[i] = k < n_keys ? *(const uint4 *)(tile + (n_keys + k) * c.head_size) : nothing4();
    }
    ring_release(ring);
}

/* Pairs (i, i+HS/2) turned by the position's angle; the other half of the pairs is in the other half of the group. */
DEVICE void turn8(const Me &me, const DecodeCall &c, float (&v)[VECTOR]) {
    int half = c.head_size / 2, channel = head_channel(me, c);
    const float *cosine = (const float *)(decode_shared + c.shared.angles) + (channel & (half - 1));
    const float *sine = cosine + half;
    float sign = channel < half ? -1.0f : 1.0f;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], lanes_of(c) / 2);
        v[k] = fmaf(v[k], cosine[k], sign * other * sine[k]);
    }
}

template <typename T> DEVICE void round8(float (&v)[VECTOR]) {
#pragma unroll
    for (int k = 0; k < VECTOR; k += 2) {
        float2 pair = pair_as_floats(pair_of_floats(v[k], v[k + 1], T()), T());
        v[k] = pair.x, v[k + 1] = pair.y;
    }
}

enum { QUERY, KEY, VALUE, N_RECEIVED };

/* This thread's channels of the new query, and with has_new of the new key and value. By whole warps. */
template <typename T>
DEVICE void receive_new(const Me &me, const DecodeCall &c, int head, int kv, bool has_new,
                        float (&got)[N_RECEIVED][VECTOR]) {
    int half = c.head_size / 2;
    const Word *words = mail_box(c.mail) + me.set + c.at.qkv + head_channel(me, c) / 2;
    const Word *key = words + (c.n_heads + kv) * half;
    const Word *const from[N_RECEIVED] = {words + head * half, key, key + c.n_kv_heads * half};
    const bool wanted[N_RECEIVED] = {true, has_new, has_new};
    unsigned payload[N_RECEIVED][VECTOR / 2];
    mail_receive<N_RECEIVED, VECTOR / 2>(from, wanted, me.tag, payload);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N_RECEIVED * VECTOR / 2; i++) {
        float2 pair = pair_as_floats(payload[i / 4][i % 4], T());
        got[i / 4][i % 4 * 2] = pair.x, got[i / 4][i % 4 * 2 + 1] = pair.y;
    }
    if (c.is_rotary) turn8(me, c, got[QUERY]);
    if (c.is_rotary && has_new) turn8(me, c, got[KEY]);
}

/* The new key and value into the cache, and as they will be read from there. */
template <typename T>
DEVICE void keep_new(const Me &me, const DecodeCall &c, int block, int kv, bool stores,
                     float (&got)[N_RECEIVED][VECTOR]) {
    int64_t to = block * c.cache_stride + ((int64_t)kv * c.capacity + me.position) * c.head_size;
    if (stores) {
        store8((T *)c.keys + to + head_channel(me, c), got[KEY]);
        store8((T *)c.values + to + head_channel(me, c), got[VALUE]);
    }
    round8<T>(got[KEY]);
    round8<T>(got[VALUE]);
}

/* ---- scores and sums ---- */

DEVICE float group_dot(const float (&a)[VECTOR], const float (&b)[VECTOR], int lanes) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sum = fmaf(a[k], b[k], sum);
    for (int step = lanes / 2; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    return sum;
}

DEVICE void attend_key(Attended &mine, float score, const float (&value)[VECTOR]) {
    float max = fmaxf(mine.max, score), reference = max == -INFINITY ? 0.0f : max;
    float keep = exp2f(mine.max - reference), p = exp2f(score - reference);
    mine.max = max;
    mine.sum = fmaf(mine.sum, keep, p);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) mine.value[k] = fmaf(p, value[k], mine.value[k] * keep);
}

template <typename T, int ROUNDS>
DEVICE void attend_tile(const Me &me, const DecodeCall &c, Attended &mine, const float (&q)[VECTOR],
                        int n_keys, const uint4 (&keys)[ROUNDS], const uint4 (&values)[ROUNDS]) {
    float score[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        float key[VECTOR];
        unpack8<T>(keys[i], key);
        score[i] = group_dot(q, key, lanes_of(c));
        if (key_at(me, c, i) >= n_keys) score[i] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        float value[VECTOR];
        unpack8<T>(values[i], value);
        attend_key(mine, score[i], value);
    }
}

/* All groups of the warp into one. */
DEVICE void join_groups(Attended &mine, int lanes) {
    float max = mine.max;
    for (int step = lanes; step < WARP; step *= 2) max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, step));
    float keep = exp2f(mine.max - (max == -INFINITY ? 0.0f : max));
    mine.max = max;
    mine.sum *= keep;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) mine.value[k] *= keep;
    for (int step = lanes; step < WARP; step *= 2) {
        mine.sum += __shfl_xor_sync(0xFFFFFFFFu, mine.sum, step);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) mine.value[k] += __shfl_xor_sync(0xFFFFFFFFu, mine.value[k], step);
    }
}

/* All warps into one, and out with it: by a thread a channel. */
template <typename T>
DEVICE void send_part(const Me &me, const DecodeCall &c, const Attended &mine, int head, int part) {
    float *heads = (float *)(decode_shared + c.shared.heads);
    float2 *weights = (float2 *)(decode_shared + c.shared.head_weights);
    if (me.lane < lanes_of(c)) store8(heads + me.warp * c.head_size + me.lane * VECTOR, mine.value);
    if (me.lane == 0) weights[me.warp] = make_float2(mine.max, mine.sum);
    computing_barrier(c);
    if (me.warp * WARP >= c.head_size) return;
    float max = -INFINITY, sum = 0.0f, value = 0.0f;
#pragma unroll 4
    for (int w = 0; w < c.n_warps; w++) max = fmaxf(max, weights[w].x);
    bool is_channel = me.thread < c.head_size;
#pragma unroll 4
    for (int w = 0; w < c.n_warps; w++) {
        float2 other = weights[w];
        float weight = exp2f(other.x - max);
        sum = fmaf(weight, other.y, sum);
        if (is_channel) value = fmaf(weight, heads[w * c.head_size + me.thread], value);
    }
    value = __fdividef(value, sum);
    float next = __shfl_down_sync(0xFFFFFFFFu, value, 1);
    int pair = (part * c.channels + head * c.head_size + me.thread) / 2;
    if (is_channel && me.thread % 2 == 0)
        mail_send(c.mail, me.set + c.at.parts + pair, pair_of_floats(value, next, T()), me.tag);
    if (me.thread < 2)
        mail_send(c.mail, me.set + c.at.weights + (part * c.n_heads + head) * 2 + me.thread,
                  me.thread ? sum : max, me.tag);
}

/* One part of the keys of one head. */
template <typename T, int ROUNDS>
DEVICE void attend_part(Ring &ring, const Me &me, const DecodeCall &c, int block, int head, int part) {
    int first = part * me.part_keys, n_old = least(first + me.part_keys, me.position) - first;
    int share = c.n_heads / c.n_kv_heads, kv = head / share;
    bool has_new = part == me.n_parts - 1 && me.warp == 0;
    Attended mine = {-INFINITY, 0.0f, {0}};
    float got[N_RECEIVED][VECTOR];
    uint4 keys[ROUNDS], values[ROUNDS];
    if (n_old > 0) take_keys<T, ROUNDS>(ring, me, c, least(n_old, c.tile_keys), keys, values);
    receive_new<T>(me, c, head, kv, has_new, got);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) got[QUERY][k] *= c.scale * 1.44269504f;
    for (int done = 0; done < n_old; done += c.tile_keys) {
        int here = least(n_old - done, c.tile_keys);
        if (done) take_keys<T, ROUNDS>(ring, me, c, here, keys, values);
        attend_tile<T, ROUNDS>(me, c, mine, got[QUERY], here, keys, values);
    }
    if (has_new) { /* a whole warp, of which the first group counts */
        bool counts = me.lane < lanes_of(c);
        keep_new<T>(me, c, block, kv, counts && kv * share == head, got);
        float score = group_dot(got[QUERY], got[KEY], lanes_of(c));
        attend_key(mine, counts ? score : -INFINITY, got[VALUE]);
    }
    join_groups(mine, lanes_of(c));
    send_part<T>(me, c, mine, head, part);
}

template <typename T, int ROUNDS> DEVICE void attend(const DecodeCall &c, Ring &ring, Me &me, int block) {
    int n_units = c.n_heads * me.n_parts;
    for (int unit = block_number(); unit < n_units; unit += (int)gridDim.x) {
        find_place(me);
        attend_part<T, ROUNDS>(ring, me, c, block, unit % c.n_heads, unit / c.n_heads);
        if (unit + (int)gridDim.x < n_units) computing_barrier(c); /* the next one uses the same memory */
    }
}

/* ---- at the other end ---- */

/* Two channels of a part of a head. */
typedef struct {
    unsigned pair[1];
    unsigned weight[2]; /* greatest score, sum of exponentials */
} Part;

/* Parts p .. p + PARTS_AT_ONCE - 1, as far as there are. */
DEVICE void receive_parts(const Me &me, const DecodeCall &c, int channel, int p, Part (&got)[PARTS_AT_ONCE]) {
    const Word *box = mail_box(c.mail) + me.set;
    bool complete;
    int looks = 0;
    do {
        complete = true;
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; i++) {
            if (p + i >= me.n_parts) continue;
            complete &= mail_look(box + c.at.parts + ((p + i) * c.channels + channel) / 2, me.tag, got[i].pair);
            complete &= mail_look(box + c.at.weights + ((p + i) * c.n_heads + (channel >> c.head_shift)) * 2, me.tag,
                                  got[i].weight);
        }
        if (++looks > MOST_LOOKS) __trap();
    } while (!complete);
}

/* What the heads have put out, this thread's channels: the parts of a head, each by its share of the sum. */
template <typename T, int S> DEVICE void receive_heads(const Me &me, const DecodeCall &c, float (&x)[S][2]) {
    int n_slices = warp_slices(c, me.warp);
#pragma unroll
    for (int s = 0; s < S; s++) {
        float most = -INFINITY, sum = 0.0f;
        x[s][0] = x[s][1] = 0.0f;
        for (int p = 0; p < me.n_parts && s < n_slices; p += PARTS_AT_ONCE) {
            Part got[PARTS_AT_ONCE];
            receive_parts(me, c, channel_of(me, c, s), p, got);
#pragma unroll
            for (int i = 0; i < PARTS_AT_ONCE; i++) {
                if (p + i >= me.n_parts) continue;
                float score = __uint_as_float(got[i].weight[0]), max = fmaxf(most, score);
                float keep = exp2f(most - max), share = __uint_as_float(got[i].weight[1]) * exp2f(score - max);
                float2 v = pair_as_floats(got[i].pair[0], T());
                most = max;
                sum = fmaf(sum, keep, share);
                x[s][0] = fmaf(share, v.x, x[s][0] * keep);
                x[s][1] = fmaf(share, v.y, x[s][1] * keep);
            }
        }
        float part = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
        x[s][0] *= part, x[s][1] *= part;
    }
}

#endif

#endif
