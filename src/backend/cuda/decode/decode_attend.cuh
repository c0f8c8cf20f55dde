/* Attention of decode_step: one query against the cached keys and the new one.
 *
 * The keys of a head are cut into parts, and a thread block takes a part of one head. Its cached keys and
 * values are in shared memory, then in registers, before the query comes. Groups of HS/8 threads have a key
 * at a time, KEY_ROUNDS of them of a tile; what they get is joined in the warp, then over the warps. A part's
 * output is already divided by its sum of exponentials; who needs the head's output joins the parts by those
 * sums. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_ATTEND_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_ATTEND_CUH

#include "backend/cuda/decode/decode_step.cuh"

#if __CUDA_ARCH__ >= 900

typedef struct {
    float max, sum, value[VECTOR]; /* scores are logarithms to base 2 */
} Attended;

/* This thread's keys and values of a tile. */
typedef struct {
    float key[KEY_ROUNDS][VECTOR], value[KEY_ROUNDS][VECTOR];
} Held;

template <typename Call> DEVICE int lanes_of(const Call &c) {
    return c.head_size / VECTOR;
}
/* The first of this thread's channels of a head. */
template <typename Call> DEVICE int head_channel(const Me &me, const Call &c) {
    return (me.lane & (lanes_of(c) - 1)) * VECTOR;
}
/* Which key of a tile round i has for this thread. */
template <typename Call> DEVICE int key_at(const Me &me, const Call &c, int i) {
    return (((i * c.n_warps + me.warp) * WARP + me.lane) * VECTOR) >> c.head_shift;
}

template <typename T> DEVICE void unpack8(uint4 raw, float v[VECTOR]) {
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#    pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = pair_as_floats(word[i], T());
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}

/* ---- keys and values ---- */

/* Keys that are not there have values of 0; their scores will not count. */
template <typename T, typename Call>
DEVICE void take_keys(Ring &ring, const Me &me, const Call &c, int n_keys, Held &held) {
    const T *tile = (const T *)ring_wait(ring) + head_channel(me, c);
#    pragma unroll
    for (int i = 0; i < KEY_ROUNDS; i++) {
        int k = key_at(me, c, i);
        uint4 key = make_uint4(0, 0, 0, 0), value = key;
        if (k < n_keys) {
            key = *(const uint4 *)(tile + k * c.head_size);
            value = *(const uint4 *)(tile + (n_keys + k) * c.head_size);
        }
        unpack8<T>(key, held.key[i]);
        unpack8<T>(value, held.value[i]);
    }
    ring_release(ring);
}

/* Pairs (i, i+HS/2) turned by the position's angle; the other half of the pairs is in the other half of the
 * group. */
template <typename Call> DEVICE void turn8(const Me &me, const Call &c, float (&v)[VECTOR]) {
    int half = c.head_size / 2, channel = head_channel(me, c);
    const float *cosine = (const float *)(decode_shared + c.shared.angles) + (channel & (half - 1));
    const float *sine = cosine + half;
    float sign = channel < half ? -1.0f : 1.0f;
#    pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, v[k], lanes_of(c) / 2);
        v[k] = fmaf(v[k], cosine[k], sign * other * sine[k]);
    }
}

enum { QUERY, KEY, VALUE, N_RECEIVED };

/* This thread's channels of the new query, and with has_new of the new key and value. By whole warps. */
template <typename Call>
DEVICE void receive_new(const Me &me, const Call &c, int head, int kv, bool has_new,
                        unsigned (&payload)[N_RECEIVED][VECTOR / 2]) {
    int half = c.head_size / 2, looks = 0;
    const Word *words = mail_box(c.mail) + me.set + c.at.qkv + head_channel(me, c) / 2;
    const Word *query = words + head * half, *key = words + (c.n_heads + kv) * half;
    bool complete;
    do {
        complete = mail_look(query, me.tag, payload[QUERY]);
        if (has_new) {
            complete &= mail_look(key, me.tag, payload[KEY]);
            complete &= mail_look(key + c.n_kv_heads * half, me.tag, payload[VALUE]);
        }
        mail_patience(&looks);
    } while (!complete);
    __syncwarp();
}

DEVICE uint4 as_vector(const unsigned (&word)[4]) {
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* The new key and value: into the cache, and in the place of the key that they are of this tile. By a whole
 * warp. */
template <typename T, typename Call>
DEVICE void keep_new(const Me &me, const Call &c, int64_t to, int number, bool stores,
                     unsigned (&payload)[N_RECEIVED][VECTOR / 2], Held &held) {
    uint4 raw = as_vector(payload[KEY]);
    float key[VECTOR];
    unpack8<T>(raw, key);
    if (c.is_rotary) { /* rounded, as it will be read from the cache */
        turn8(me, c, key);
        raw = make_uint4(pair_of_floats(key[0], key[1], T()), pair_of_floats(key[2], key[3], T()),
                         pair_of_floats(key[4], key[5], T()), pair_of_floats(key[6], key[7], T()));
        unpack8<T>(raw, key);
    }
    float value[VECTOR];
    unpack8<T>(as_vector(payload[VALUE]), value);
    bool is_here = false;
#    pragma unroll
    for (int i = 0; i < KEY_ROUNDS; i++) {
        if (key_at(me, c, i) != number) continue;
        is_here = true;
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) held.key[i][k] = key[k], held.value[i][k] = value[k];
    }
    if (!is_here || !stores) return;
    *(uint4 *)((T *)c.keys + to) = raw;
    *(uint4 *)((T *)c.values + to) = as_vector(payload[VALUE]);
}

/* ---- scores and sums ---- */

/* The sums over the threads of a group, of N numbers at a time. */
template <int N> DEVICE void group_sums(float (&v)[N], int lanes) {
#    pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        if (step >= lanes) continue;
#    pragma unroll
        for (int i = 0; i < N; i++) v[i] += __shfl_xor_sync(0xFFFFFFFFu, v[i], step);
    }
}

/* A tile of n keys, the new one included. */
template <typename Call>
DEVICE void attend_tile(const Me &me, const Call &c, Attended &mine, const float (&q)[VECTOR], int n_keys,
                        const Held &held) {
    float score[KEY_ROUNDS], max = mine.max;
#    pragma unroll
    for (int i = 0; i < KEY_ROUNDS; i++) {
        float even = 0.0f, odd = 0.0f;
#    pragma unroll
        for (int k = 0; k < VECTOR; k += 2) {
            even = fmaf(q[k], held.key[i][k], even);
            odd = fmaf(q[k + 1], held.key[i][k + 1], odd);
        }
        score[i] = even + odd;
    }
    group_sums<KEY_ROUNDS>(score, lanes_of(c));
#    pragma unroll
    for (int i = 0; i < KEY_ROUNDS; i++) {
        score[i] = key_at(me, c, i) < n_keys ? score[i] * (c.scale * 1.44269504f) : -INFINITY;
        max = fmaxf(max, score[i]);
    }
    float reference = max == -INFINITY ? 0.0f : max, keep = exp2_fast(mine.max - reference);
    mine.max = max;
    mine.sum *= keep;
#    pragma unroll
    for (int k = 0; k < VECTOR; k++) mine.value[k] *= keep;
#    pragma unroll
    for (int i = 0; i < KEY_ROUNDS; i++) {
        float p = exp2_fast(score[i] - reference);
        mine.sum += p;
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) mine.value[k] = fmaf(p, held.value[i][k], mine.value[k]);
    }
}

/* All groups of the warp into one. */
DEVICE void join_groups(Attended &mine, int lanes) {
    float max = mine.max;
#    pragma unroll
    for (int step = 1; step < WARP; step *= 2)
        if (step >= lanes) max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, step));
    float keep = exp2_fast(mine.max - (max == -INFINITY ? 0.0f : max));
    mine.max = max;
    mine.sum *= keep;
#    pragma unroll
    for (int k = 0; k < VECTOR; k++) mine.value[k] *= keep;
#    pragma unroll 1
    for (int step = lanes; step < WARP; step *= 2) {
        mine.sum += __shfl_xor_sync(0xFFFFFFFFu, mine.sum, step);
#    pragma unroll
        for (int k = 0; k < VECTOR; k++) mine.value[k] += __shfl_xor_sync(0xFFFFFFFFu, mine.value[k], step);
    }
}

/* All warps into one, and out with it: by a thread a channel. */
template <typename T, typename Call>
DEVICE void send_part(const Me &me, const Call &c, const Attended &mine, int head, int part) {
    float *heads = (float *)(decode_shared + c.shared.heads);
    float2 *weights = (float2 *)(decode_shared + c.shared.head_weights);
    if (me.lane < lanes_of(c)) store8(heads + me.warp * c.head_size + me.lane * VECTOR, mine.value);
    if (me.lane == 0) weights[me.warp] = make_float2(mine.max, mine.sum);
    computing_barrier(c);
    if (me.warp * WARP >= c.head_size) return;
    float2 weight[Call::MOST_WARPS];
    float max = -INFINITY, sum = 0.0f, value = 0.0f;
    bool is_channel = me.thread < c.head_size;
#    pragma unroll
    for (int w = 0; w < Call::MOST_WARPS; w++) {
        weight[w] = w < c.n_warps ? weights[w] : make_float2(-INFINITY, 0.0f);
        max = fmaxf(max, weight[w].x);
    }
#    pragma unroll
    for (int w = 0; w < Call::MOST_WARPS; w++) {
        float p = exp2_fast(weight[w].x - max);
        sum = fmaf(p, weight[w].y, sum);
        if (is_channel && w < c.n_warps) value = fmaf(p, heads[w * c.head_size + me.thread], value);
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

/* One part of the keys of one head. Of its n keys the last may be the new one, which is in no cache yet. */
template <typename T, typename Call>
DEVICE void attend_part(Ring &ring, const Me &me, const Call &c, int block, int head, int part) {
    int first = part * me.part_keys, n = least(first + me.part_keys, me.position + 1) - first;
    int n_old = least(n, me.position - first), share = c.n_heads / c.n_kv_heads, kv = head / share;
    Attended mine = {-INFINITY, 0.0f, {0}};
    float q[VECTOR];
    unsigned payload[N_RECEIVED][VECTOR / 2];
#    pragma unroll 1
    for (int done = 0; done < n; done += c.tile_keys) {
        int old = least(n_old - done, c.tile_keys), all = least(n - done, c.tile_keys);
        bool has_new = false; /* is the new one among this warp's keys? */
#    pragma unroll
        for (int i = 0; i < KEY_ROUNDS; i++) has_new |= all > old && key_at(me, c, i) == old;
        has_new = __any_sync(0xFFFFFFFFu, has_new);
        Held held = {};
        if (old > 0) take_keys<T>(ring, me, c, old, held);
        if (!done || has_new) receive_new(me, c, head, kv, has_new, payload);
        if (!done) {
            unpack8<T>(as_vector(payload[QUERY]), q);
            if (c.is_rotary) turn8(me, c, q);
        }
        if (has_new) {
            int64_t to = block * c.cache_stride + ((int64_t)kv * c.capacity + me.position) * c.head_size;
            keep_new<T>(me, c, to + head_channel(me, c), old, kv * share == head, payload, held);
        }
        attend_tile(me, c, mine, q, all, held);
    }
    join_groups(mine, lanes_of(c));
    send_part<T>(me, c, mine, head, part);
}

template <typename T, typename Call> DEVICE void attend(const Call &c, Ring &ring, Me &me, int block) {
    find_place(me);
    int n_units = c.n_heads * me.n_parts;
#    pragma unroll 1
    for (int unit = block_number(); unit < n_units; unit += (int)gridDim.x) {
        attend_part<T>(ring, me, c, block, unit % c.n_heads, unit / c.n_heads);
        if (unit + (int)gridDim.x < n_units) computing_barrier(c); /* the next one uses the same memory */
    }
}

/* ---- at the other end ---- */

/* Two channels of a part of a head, and what it weighs: greatest score, sum of exponentials. */
typedef struct {
    unsigned pair[1], weight[2];
} Part;

/* Parts p .. p + PARTS_AT_ONCE - 1, as far as there are, of this thread's channels. */
template <typename Call>
DEVICE void receive_parts(const Me &me, const Call &c, int n_slices, int p,
                          Part (&got)[MOST_SLICES][PARTS_AT_ONCE]) {
    const Word *box = mail_box(c.mail) + me.set;
    int looks = 0;
    bool complete;
    do {
        complete = true;
#    pragma unroll
        for (int i = 0; i < MOST_SLICES * PARTS_AT_ONCE; i++) {
            int s = i / PARTS_AT_ONCE, k = i % PARTS_AT_ONCE;
            if (s >= n_slices || p + k >= me.n_parts) continue;
            int channel = channel_of(me, c, s), head = channel >> c.head_shift;
            complete &=
                mail_look(box + c.at.parts + ((p + k) * c.channels + channel) / 2, me.tag, got[s][k].pair);
            complete &=
                mail_look(box + c.at.weights + ((p + k) * c.n_heads + head) * 2, me.tag, got[s][k].weight);
        }
        mail_patience(&looks);
    } while (!complete);
}

/* What the heads have put out, this thread's channels: the parts of a head, each by its share of the sum. */
template <typename T, typename Call>
DEVICE void receive_heads(const Me &me, const Call &c, float (&x)[MOST_SLICES][2]) {
    int n_slices = own_slices(me, c);
    float most[MOST_SLICES], sum[MOST_SLICES];
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) most[s] = -INFINITY, sum[s] = x[s][0] = x[s][1] = 0.0f;
#    pragma unroll 1
    for (int p = 0; p < me.n_parts; p += PARTS_AT_ONCE) {
        Part got[MOST_SLICES][PARTS_AT_ONCE];
        receive_parts(me, c, n_slices, p, got);
#    pragma unroll
        for (int s = 0; s < MOST_SLICES; s++) {
            float max = most[s];
#    pragma unroll
            for (int k = 0; k < PARTS_AT_ONCE; k++)
                if (s < n_slices && p + k < me.n_parts)
                    max = fmaxf(max, __uint_as_float(got[s][k].weight[0]));
            float keep = exp2_fast(most[s] - max);
            most[s] = max;
            sum[s] *= keep, x[s][0] *= keep, x[s][1] *= keep;
#    pragma unroll
            for (int k = 0; k < PARTS_AT_ONCE; k++) {
                if (s >= n_slices || p + k >= me.n_parts) continue;
                float part = __uint_as_float(got[s][k].weight[1]) *
                             exp2_fast(__uint_as_float(got[s][k].weight[0]) - max);
                float2 v = pair_as_floats(got[s][k].pair[0], T());
                sum[s] += part;
                x[s][0] = fmaf(part, v.x, x[s][0]);
                x[s][1] = fmaf(part, v.y, x[s][1]);
            }
        }
    }
#    pragma unroll
    for (int s = 0; s < MOST_SLICES; s++) {
        float part = s < n_slices ? __fdividef(1.0f, sum[s]) : 0.0f;
        x[s][0] = s < n_slices ? x[s][0] * part : 0.0f;
        x[s][1] = s < n_slices ? x[s][1] * part : 0.0f;
    }
}

#endif

#endif
