/* attention of short sequences, backward. attention_backward_queries.cu says what is computed. Where
 * warpgroups can multiply, attention_warpgroup_backward_sm90.cu does it for heads of 64.
 *
 * Floor at 64 sequences of 256, 6 heads of 64, 16 bits: 101 MB to read and write, 23 us if none of it is in
 * the cache; 8.1 GFLOP, 14 us at the rate of mma; with dropout, random numbers as in the forward.
 *
 * A block has a head at a time and all of its queries, keys, values and dy, so nothing is read twice and no
 * sum leaves the block. There are as many blocks as multiprocessors, and each takes one head after the other:
 * the next one's keys and values are on their way while this one is computed, and the rest is fetched into
 * the cache. Warp w has keys 16·w and on, whose gradients it sums over the queries that see them, and after
 * them queries 16·w and on, whose gradient it sums over the keys that they see: long rows of tiles for one
 * are short ones for the other. Scores and dweights are made twice for that, once in either order; to pass
 * dscores on through shared memory would take barriers, and more of it than there is. Which weights are kept
 * is drawn once for both, one bit each, mostly by warps that would wait for others.
 *
 * c being 1 over the part that dropout keeps, p the weights before dropout and p' those that are kept, else
 * 0:
 *     dvalue = c·Σ p'·dy,   dscore = c·scale·(p'·(dy·value) - p·D/c);
 * so c and scale are left to the end, and D/c is found once for each query.
 *
 * The sums over a sequence's rows, if they are wanted, are those of its head's queries, keys and values: a
 * warp adds up its 16 rows by shuffles, and keeps what it has in registers until nobody needs the head any
 * more; then there is room for it in shared memory, and the block adds up its warps. */
#include "backend/cuda/attention/attention_short.cuh"

/* Into the cache. */
DEVICE void fetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(p));
}

/* The sums of the columns of 16 rows from `first` on, as store_results stores them; see summed_column. */
template <typename T, int HS>
DEVICE void sum_rows(float sums[HS / 32], const float c[HS / 8][4], float factor, int first,
                     const TiledShape &s) {
    int lane = (int)threadIdx.x % WARP, row = first + lane / 4;
    float v[HS / 4];
#pragma unroll
    for (int n = 0; n < HS / 8; n++) {
        float2 upper = pair_as_floats(pair_of_floats(c[n][0] * factor, c[n][1] * factor, T()), T());
        float2 lower = pair_as_floats(pair_of_floats(c[n][2] * factor, c[n][3] * factor, T()), T());
        v[2 * n] = (row < s.n_positions ? upper.x : 0.0f) + (row + 8 < s.n_positions ? lower.x : 0.0f);
        v[2 * n + 1] = (row < s.n_positions ? upper.y : 0.0f) + (row + 8 < s.n_positions ? lower.y : 0.0f);
    }
    give_half<HS / 8>(v, 16);
    give_half<HS / 16>(v, 8);
    give_half<HS / 32>(v, 4);
#pragma unroll
    for (int k = 0; k < HS / 32; k++) sums[k] = v[k];
}

template <typename T, int HS, int ROWS> struct ShortBackward {
    enum {
        WARPS = ROWS / 16,
        THREADS = WARPS * WARP,
        STRIDE = tile_stride<T, HS>(),
        SIZE = ROWS * STRIDE,
        MASK_BYTES = WARPS * (WARPS + 1) / 2 * 32,
        BYTES = 6 * SIZE * (int)sizeof(T) + ROWS * (int)sizeof(RowFacts) + 2 * MASK_BYTES + 16
    };
};

/* What a block has in shared memory: of one head queries and their dy, of this one and the next keys and
 * values, one behind the other. */
template <typename T> struct ShortHead {
    T *queries, *slopes, *keys; /* values are behind the keys */
    RowFacts *facts;
    unsigned char *mask;
    int *counter; /* of the tiles of the mask that are drawn */
};

/* Part k of a product's first factor: from registers, or from where this lane reads it in shared memory. */
template <typename T, int HS> DEVICE void first_part(unsigned part[4], const First<T, HS> &a, int k) {
#pragma unroll
    for (int i = 0; i < 4; i++) part[i] = a.part[k][i];
}
template <typename T, int HS> DEVICE void first_part(unsigned part[4], unsigned shared, int k) {
    load_matrices(part, shared + (unsigned)k * 32);
}

/* p = a · firstᵀ and dp = b · secondᵀ, side by side: twice as many products that need not wait for each
 * other. Keys and values are read as first factors every time, since there are not registers for all. */
template <typename T, int HS, int N, typename First>
DEVICE void multiply_both(float p[1][N][4], const First &a, unsigned first, float dp[1][N][4], const First &b,
                          unsigned second) {
    enum { STRIDE = tile_stride<T, HS>() };
    clear<1, N>(p);
    clear<1, N>(dp);
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        unsigned part[4], dpart[4];
        first_part<T, HS>(part, a, k);
        first_part<T, HS>(dpart, b, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned at = (unsigned)(n * 8 * STRIDE + k * 16) * 2, x[4], y[4];
            load_matrices(x, first + at);
            load_matrices(y, second + at);
            multiply_add(p[0][n], part, x[0], x[1], T());
            multiply_add(p[0][n + 1], part, x[2], x[3], T());
            multiply_add(dp[0][n], dpart, y[0], y[1], T());
            multiply_add(dp[0][n + 1], dpart, y[2], y[3], T());
        }
    }
}

/* How many tiles of 16 queries and 16 keys lie in the first so many rows of them, on and under the
 * diagonal. */
__host__ __device__ constexpr int tiles_before(int row) {
    return row * (row + 1) / 2;
}

/* Which weights are kept, tile by tile, 32 bytes each: bit i of byte 2·q + j is key 8·j + i of query q. A
 * lane draws for 8 keys of one query. Warps take one tile after the other as they are free: `counter` says
 * which is next. */
DEVICE void draw_mask(unsigned char *mask, const ShortDropout &dropout, int n_positions, int *counter) {
    int lane = (int)threadIdx.x % WARP, n_tiles = tiles_before((n_positions + 15) / 16);
    for (;;) {
        int tile = lane ? 0 : atomicAdd(counter, 1);
        tile = __shfl_sync(0xFFFFFFFFu, tile, 0);
        if (tile >= n_tiles) return;
        int row = (int)((sqrtf(8.0f * (float)tile + 1.0f) - 1.0f) * 0.5f);
        if (tiles_before(row) > tile) row--;
        if (tiles_before(row + 1) <= tile) row++;
        RandomBlock block = draw(dropout, row * 16 + lane % 16, (tile - tiles_before(row)) * 2 + lane / 16);
        unsigned bits = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) bits |= keeps(block.word[j / 2], j & 1, dropout.limit) ? 1u << j : 0;
        mask[tile * 32 + 2 * (lane % 16) + lane / 16] = (unsigned char)bits;
    }
}

/* -lse · log2 e and -D/c of every query; rows that are not there get weights 0. y and lse are what the
 * thread read of its rows. */
template <typename T, int HS, int ROWS>
DEVICE void find_all_facts(RowFacts *facts, const T *slopes, const Raw<T> *y, const float *lse, float inverse,
                           const TiledShape &s) {
    typedef ShortBackward<T, HS, ROWS> Short;
    enum { CHUNKS = HS / 8, PASS = Short::THREADS / CHUNKS };
    int first = (int)threadIdx.x / CHUNKS, column = (int)threadIdx.x % CHUNKS * 8;
#pragma unroll
    for (int i = 0; i < ROWS / PASS; i++) {
        int row = i * PASS + first;
        float a[VECTOR], b[VECTOR], sum = 0.0f;
        load8(slopes + row * Short::STRIDE + column, a);
        unpack(y[i], b);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum += a[k] * b[k];
#pragma unroll
        for (int step = CHUNKS / 2; step; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        bool there = row < s.n_positions;
        if (column == 0) {
            facts[row] = make_float2(there ? -lse[i] * LOG2_E : -INFINITY, there ? -sum * inverse : 0.0f);
        }
    }
}

/* Rows are 16 keys, columns N·8 queries: scores become weights that are kept, dweights become dscores. The
 * first query comes `ahead` of the first key. bits[n]: bits 0 and 8 are of keys g and g+8 and the thread's
 * first query, bits 16 and 24 of the next. */
template <int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_keys(float p[1][N][4], float dp[1][N][4], const RowFacts *facts, const unsigned bits[N],
                           int ahead, float scale_log2) {
    int lane = (int)threadIdx.x % WARP, key = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 two = *(const float4 *)(facts + n * 8 + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float relative = i & 1 ? two.z : two.x, sum = i & 1 ? two.w : two.y;
            float weight = exp2_fast(fmaf(p[0][n][i], scale_log2, relative));
            if (MASKED && key + i / 2 * 8 > ahead + n * 8 + column + (i & 1)) weight = 0.0f;
            bool stays = !DROPS || (bits[n] & 1u << ((i & 1) * 16 + i / 2 * 8));
            p[0][n][i] = stays ? weight : 0.0f;
            dp[0][n][i] = fmaf(p[0][n][i], dp[0][n][i], weight * sum);
        }
    }
}

/* Rows are 16 queries, columns N·8 keys: scores become dscores. The first key comes `ahead` of the first
 * query. Bits 0, 1, 8 and 9 of bits[i][n / 2] are of the thread's keys and of row g + 8·i. */
template <int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_queries(float p[1][N][4], const float dp[1][N][4], const RowFacts facts[2],
                              const unsigned bits[2][N / 2], int ahead, float scale_log2) {
    int lane = (int)threadIdx.x % WARP, query = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            RowFacts row = facts[i / 2];
            float weight = exp2_fast(fmaf(p[0][n][i], scale_log2, row.x));
            if (MASKED && ahead + n * 8 + column + (i & 1) > query + i / 2 * 8) weight = 0.0f;
            bool stays = !DROPS || (bits[i / 2][n / 2] & 1u << (n % 2 * 8 + (i & 1)));
            p[0][n][i] = weight * ((stays ? dp[0][n][i] : 0.0f) + row.y);
        }
    }
}

/* The gradients of keys and values 16·block and on, without their factors. */
template <typename T, int HS, int ROWS, bool DROPS>
DEVICE void gradients_of_keys(float dk[1][HS / 8][4], float dv[1][HS / 8][4], const ShortHead<T> &head,
                              int block, const TiledShape &s) {
    typedef TileMma<T, HS> Mma;
    enum { STRIDE = tile_stride<T, HS>(), N = 2 };
    const unsigned to_other = ROWS * STRIDE * sizeof(T); /* from queries to dy, and from keys to values */
    const unsigned row_bytes = STRIDE * sizeof(T);
    int lane = (int)threadIdx.x % WARP;
    unsigned k = shared_address(head.keys + block * 16 * STRIDE) + Mma::lane_of_first(), v = k + to_other;
    unsigned rows_at = shared_address(head.queries) + Mma::lane_of_rows(),
             turned_at = shared_address(head.queries) + Mma::lane_of_channels();
    const unsigned char *mask = head.mask + 32 * (tiles_before(block) + block) + lane % 4 * 4;
    clear<1, HS / 8>(dk);
    clear<1, HS / 8>(dv);
#pragma unroll 1
    for (int query = block * 16 / (N * 8) * (N * 8); query < s.n_positions; query += N * 8) {
        float p[1][N][4], dp[1][N][4];
        unsigned bits[N] = {}, at = (unsigned)query * row_bytes;
        multiply_both<T, HS, N>(p, k, rows_at + at, dp, v, rows_at + at + to_other);
#pragma unroll
        for (int n = 0; n < N && DROPS; n++) {
            bits[n] = *(const unsigned *)(mask + n * 16) >> (lane / 4);
        }
        mask += query * 2 + 32;
        int ahead = query - block * 16;
        if (ahead <= 0) {
            slopes_of_keys<N, DROPS, true>(p, dp, head.facts + query, bits, ahead, s.scale_log2);
        } else {
            slopes_of_keys<N, DROPS, false>(p, dp, head.facts + query, bits, ahead, s.scale_log2);
        }
        Mma::template multiply_weights<1, N>(dv, p, turned_at + at + to_other);
        Mma::template multiply_weights<1, N>(dk, dp, turned_at + at);
    }
}

/* The gradient of queries 16·block and on, without the factors. */
template <typename T, int HS, int ROWS, bool DROPS>
DEVICE void gradient_of_queries(float dq[1][HS / 8][4], const ShortHead<T> &head, int block,
                                const TiledShape &s) {
    typedef TileMma<T, HS> Mma;
    enum { STRIDE = tile_stride<T, HS>(), N = 4 };
    const unsigned to_values = ROWS * STRIDE * sizeof(T), step = N * 8 * STRIDE * sizeof(T);
    int lane = (int)threadIdx.x % WARP, first = block * 16 + lane / 4;
    First<T, HS> q, g;
    Mma::load_first(q, shared_address(head.queries + block * 16 * STRIDE) + Mma::lane_of_first());
    Mma::load_first(g, shared_address(head.slopes + block * 16 * STRIDE) + Mma::lane_of_first());
    const RowFacts facts[2] = {head.facts[first], head.facts[first + 8]};
    unsigned rows_at = shared_address(head.keys) + Mma::lane_of_rows(),
             turned_at = shared_address(head.keys) + Mma::lane_of_channels();
    clear<1, HS / 8>(dq);
#pragma unroll 1
    for (int at = 0; at <= block; at += N / 2, rows_at += step, turned_at += step) {
        float p[1][N][4], dp[1][N][4];
        unsigned bits[2][N / 2] = {};
        multiply_both<T, HS, N>(p, q, rows_at, dp, g, rows_at + to_values);
#pragma unroll
        for (int i = 0; i < N && DROPS; i++) {
            const unsigned char *mask =
                head.mask + 32 * (tiles_before(block) + at + i / 2) + 2 * (lane / 4 + 8 * (i % 2));
            bits[i % 2][i / 2] = *(const unsigned short *)mask >> (lane % 4 * 2);
        }
        int ahead = (at - block) * 16;
        if (at + N / 2 > block) slopes_of_queries<N, DROPS, true>(p, dp, facts, bits, ahead, s.scale_log2);
        else slopes_of_queries<N, DROPS, false>(p, dp, facts, bits, ahead, s.scale_log2);
        Mma::template multiply_weights<1, N>(dq, p, turned_at);
    }
}

/* What all warps have of queries, keys and values, added up in their order. shared: (warps, 3, HS). */
template <int HS>
DEVICE void store_head_sums(float *sums, float *shared, const float own[3][HS / 32], const TiledShape &s) {
    int warp = (int)threadIdx.x / WARP, n_warps = (s.n_positions + 15) / 16;
#pragma unroll
    for (int i = 0; i < 3; i++) {
#pragma unroll
        for (int k = 0; k < HS / 32; k++) shared[(warp * 3 + i) * HS + summed_column<HS>(k)] = own[i][k];
    }
    __syncthreads();
    int which = (int)threadIdx.x / HS, column = (int)threadIdx.x % HS;
    if (which >= 3 || column >= s.head_size) return;
    float sum = 0.0f;
    for (int w = 0; w < n_warps; w++) sum += shared[(w * 3 + which) * HS + column];
    sums[which * s.n_heads * s.head_size + column] = sum;
}

template <typename T, int HS, int ROWS>
DEVICE void load_keys(T *keys, const T *qkv, int head, const TiledShape &s) {
    typedef ShortBackward<T, HS, ROWS> Short;
    const T *first = qkv + short_slot(head, s).at_query + (int64_t)s.n_heads * s.head_size;
    load_head<T, HS, ROWS, Short::THREADS, false>(keys, first, s.width, 0, s);
    load_head<T, HS, ROWS, Short::THREADS, false>(keys + Short::SIZE,
                                                  first + (int64_t)s.n_heads * s.head_size, s.width, 0, s);
    cp_async_commit();
}

/* What will be read of the next head only after this one, but for its keys and values: into the cache. */
template <typename T>
DEVICE void fetch_head(const T *dy, const T *qkv, const T *y, int index, const TiledShape &s) {
    ShortSlot place = short_slot(index, s);
    for (int row = (int)threadIdx.x; row < s.n_positions; row += (int)blockDim.x) {
        fetch(qkv + place.at_query + row * s.width);
        fetch(dy + place.at_y + row * s.y_width);
        fetch(y + place.at_y + row * s.y_width);
    }
}

/* Queries, dy and what is made of them; then keys and values are there too. The mask is drawn here for the
 * first head, else it was before: then `drawn` is true. */
template <typename T, int HS, int ROWS, bool DROPS>
DEVICE void prepare_head(const ShortHead<T> &head, const T *dy, const T *qkv, const T *y, const float *lse,
                         const ShortDropout &dropout, bool drawn, float inverse, int index,
                         const TiledShape &s) {
    typedef ShortBackward<T, HS, ROWS> Short;
    enum { CHUNKS = HS / 8, PASS = Short::THREADS / CHUNKS, OWN = ROWS / PASS };
    ShortSlot place = short_slot(index, s);
    load_head<T, HS, ROWS, Short::THREADS, false>(head.queries, qkv + place.at_query, s.width, 0, s);
    load_head<T, HS, ROWS, Short::THREADS, false>(head.slopes, dy + place.at_y, s.y_width, 0, s);
    cp_async_commit();
    Raw<T> own_y[OWN];
    float own_lse[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int row = i * PASS + (int)threadIdx.x / CHUNKS, column = (int)threadIdx.x % CHUNKS * 8;
        bool there = row < s.n_positions && column < s.head_size;
        own_y[i] = load_raw<T, true>(y + place.at_y + row * s.y_width + column, there ? VECTOR : 0);
        own_lse[i] = row < s.n_positions ? lse[(int64_t)index * s.n_positions + row] : 0.0f;
    }
    if (DROPS && !drawn) draw_mask(head.mask, of_head(dropout, place, s), s.n_positions, head.counter);
    cp_async_wait_all();
    if (threadIdx.x == 0) *head.counter = 0;
    find_all_facts<T, HS, ROWS>(head.facts, head.slopes, own_y, own_lse, inverse, s);
    __syncthreads();
}

template <typename T, int HS, int ROWS, bool DROPS>
static __global__ void __launch_bounds__(ShortBackward<T, HS, ROWS>::THREADS, 256 / ROWS)
    short_backward_kernel(const T *dy, const T *qkv, const T *y, const float *lse, T *dqkv, float *sums,
                          int n_heads_in_all, TiledShape s) {
    typedef ShortBackward<T, HS, ROWS> Short;
    extern __shared__ __align__(16) char shared_memory[];
    ShortHead<T> head;
    head.queries = (T *)shared_memory;
    head.slopes = head.queries + Short::SIZE;
    T *const both_keys = head.slopes + Short::SIZE;
    head.facts = (RowFacts *)(both_keys + 4 * Short::SIZE);
    unsigned char *const both_masks = (unsigned char *)(head.facts + ROWS);
    head.counter = (int *)(both_masks + 2 * Short::MASK_BYTES);
    float keep = DROPS ? random_dropout_scale(s.threshold) : 1.0f;
    const float factor[2] = {s.scale * keep, s.scale * keep}, value_factor[2] = {keep, keep};
    int block = (int)threadIdx.x / WARP, turn = 0;
    if (threadIdx.x == 0) *head.counter = 0;
    load_keys<T, HS, ROWS>(both_keys, qkv, (int)blockIdx.x, s);
    ShortDropout dropout = {};
    if (DROPS) dropout = short_dropout_of(s, 0, 0);
    __syncthreads();
    for (int index = (int)blockIdx.x; index < n_heads_in_all; index += (int)gridDim.x, turn ^= 1) {
        head.keys = both_keys + turn * 2 * Short::SIZE;
        head.mask = both_masks + turn * Short::MASK_BYTES;
        prepare_head<T, HS, ROWS, DROPS>(head, dy, qkv, y, lse, dropout, index != (int)blockIdx.x,
                                         1.0f / keep, index, s);
        int next = index + (int)gridDim.x;
        if (next < n_heads_in_all) {
            load_keys<T, HS, ROWS>(both_keys + (turn ^ 1) * 2 * Short::SIZE, qkv, next, s);
            fetch_head(dy, qkv, y, next, s);
        }
        float own[3][HS / 32] = {};
        if (block * 16 < s.n_positions) {
            T *to = dqkv + short_slot(index, s).at_query;
            int64_t to_keys = (int64_t)s.n_heads * s.head_size;
            {
                float dk[1][HS / 8][4], dv[1][HS / 8][4];
                gradients_of_keys<T, HS, ROWS, DROPS>(dk, dv, head, block, s);
                if (sums) sum_rows<T, HS>(own[1], dk[0], factor[0], block * 16, s);
                if (sums) sum_rows<T, HS>(own[2], dv[0], value_factor[0], block * 16, s);
                store_results<T, HS>(to + to_keys, s.width, dk[0], factor, block * 16, s, s.add);
                store_results<T, HS>(to + 2 * to_keys, s.width, dv[0], value_factor, block * 16, s, s.add);
            }
            float dq[1][HS / 8][4];
            gradient_of_queries<T, HS, ROWS, DROPS>(dq, head, block, s);
            if (sums) sum_rows<T, HS>(own[0], dq[0], factor[0], block * 16, s);
            store_results<T, HS>(to, s.width, dq[0], factor, block * 16, s, s.add);
        }
        if (DROPS && next < n_heads_in_all) {
            draw_mask(both_masks + (turn ^ 1) * Short::MASK_BYTES, of_head(dropout, short_slot(next, s), s),
                      s.n_positions, head.counter);
        }
        __syncthreads(); /* nobody needs this head any more */
        if (sums) {
            ShortSlot place = short_slot(index, s);
            store_head_sums<HS>(sums + place.b * s.width + place.h * s.head_size, (float *)head.keys, own, s);
        }
    }
}

/* ---- launching ---- */

/* attention_short_takes counts on it. */
template <int HS, int ROWS> struct SharedBytes {
    static_assert((int)ShortForward<bf16, HS, ROWS>::BYTES == ATTENTION_SHORT_FORWARD_BYTES(HS, ROWS), "");
    static_assert((int)ShortBackward<bf16, HS, ROWS>::BYTES == ATTENTION_SHORT_BACKWARD_BYTES(HS, ROWS), "");
};
template struct SharedBytes<32, 128>;
template struct SharedBytes<32, 256>;
template struct SharedBytes<64, 128>;
template struct SharedBytes<64, 256>;

/* As many blocks as can be on the device at a time, and no more than there are heads. */
template <typename T, int HS, int ROWS, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    typedef ShortBackward<T, HS, ROWS> Short;
    auto kernel = short_backward_kernel<T, HS, ROWS, DROPS>;
    int device = 0, n_processors = 0, n_heads = (int)(shape->n_sequences * shape->n_heads);
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Short::BYTES);
    if (code == cudaSuccess) code = cudaGetDevice(&device);
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device);
    }
    if (code != cudaSuccess) return code;
    int most = n_processors * (256 / ROWS), rounds = (n_heads + most - 1) / most;
    int blocks = (n_heads + rounds - 1) / rounds;
    kernel<<<(unsigned)blocks, Short::THREADS, Short::BYTES, stream>>>(
        (const T *)m->dy, (const T *)m->qkv, (const T *)m->y, m->lse, (T *)m->dqkv, m->sums, n_heads,
        tiled_shape(shape, m));
    return cudaGetLastError();
}

Status attention_short_backward(const AttentionShape *shape, const AttentionMemory *memory,
                                cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_SHORT(shape, T, HS, ROWS, DROPS, { code = launch<T, HS, ROWS, DROPS>(shape, memory, stream); });
    return cuda_check(code, "attention_backward (short)", error);
}
