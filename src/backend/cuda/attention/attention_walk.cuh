/* Walks: which tiles of keys meet a tile of queries, and the other way round, and which of their scores
 * count. The tiled kernels of attention_part, of its sparse kind and of sparse attention are the same but for
 * that: attention_walk_forward.cuh, attention_walk_queries.cuh and attention_walk_keys.cuh take a walk.
 *
 *   RectangleWalk   rows of one run of positions each, queries and keys: every tile is asked for its state.
 *                   Results are merged with, or added to, what is there in f32.
 *   ListWalk        a whole sequence, by lists of blocks of 64 (ops/attention/sparse_attention.h). Results
 *                   are written in the type of qkv.
 *
 * What a walk has:
 *
 *     query_place<ROWS>()                        the tile of queries that this block has
 *     key_steps<ROWS, KEYS>(place), next_keys    the tiles of keys that it meets, one after the other
 *     key_place<ROWS>(), query_steps, next_queries    the same for a block that has keys
 *
 * Tiles of which nothing is seen are not among them; a step says whether all of it is. Else kernels ask for
 * words of 64 bits (walk_bits): the keys that a query sees. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_CUH

#include "backend/cuda/attention/attention_mma.cuh"

extern "C" {
#include "backend/cuda/sparse/pattern_bits.h"
#include "ops/attention/sparse_attention.h"
}

/* Where queries and keys lie, and what a query sees. */
typedef struct {
    TiledShape queries, keys; /* rows: n_positions of them, `width` apart; of y and dy `y_width` apart */
    int64_t query_rows, key_rows, first_query, first_key; /* of a sequence in memory; the first ones here */
    int64_t key_column;               /* elements from the beginning of a row to its first key */
    int query_position, key_position; /* of the first ones */
    uint64_t n_positions;             /* of the whole sequence */
    AttentionPattern pattern;
    const int32_t *starts; /* (B,query_rows): where the queries' documents begin; NULL: there are none */
} WalkRows;

/* Of a block: a sequence, a head (of queries, or of keys and values) and the first of its rows. */
typedef struct {
    int b, h, first;
} WalkPlace;

/* A tile that a block meets: its first row, of which head of queries it is, and if some of it is not seen. */
typedef struct {
    int first, h;
    bool is_masked;
} WalkStep;

/* ---- places in memory ---- */

DEVICE int64_t walk_query_at(const WalkRows &r, int b, int h) {
    return (b * r.query_rows + r.first_query) * r.queries.width + (int64_t)h * r.queries.head_size;
}
DEVICE int64_t walk_y_at(const WalkRows &r, int b, int h) {
    return (b * r.query_rows + r.first_query) * r.queries.y_width + (int64_t)h * r.queries.head_size;
}
DEVICE int64_t walk_key_at(const WalkRows &r, int b, int kv) {
    return (b * r.key_rows + r.first_key) * r.keys.width + r.key_column + (int64_t)kv * r.keys.head_size;
}
/* From a key to its value. */
DEVICE int64_t walk_to_value(const WalkRows &r) {
    return (int64_t)r.keys.n_kv_heads * r.keys.head_size;
}
/* Of lse, and of the facts of rows. */
DEVICE int64_t walk_lse_at(const WalkRows &r, int b, int h) {
    return ((int64_t)b * r.queries.n_heads + h) * r.query_rows + r.first_query;
}

/* ---- what is seen ---- */

/* Bit j: query `row` sees key `key` + j. None of a query that is not there. */
DEVICE uint64_t walk_bits(const WalkRows &r, int b, int row, int key) {
    if (row >= r.queries.n_positions) return 0;
    int start = r.starts ? __ldg(r.starts + b * r.query_rows + r.first_query + row) : 0;
    int left = r.keys.n_positions - key;
    uint64_t bits = pattern_bits(&r.pattern, r.query_position + row, start, r.key_position + key);
    return left >= PATTERN_BITS ? bits : left > 0 ? bits & ~(~(uint64_t)0 << left) : 0;
}

/* Of all keys from `key` on, do rows up to `row` see none, since all follow them? */
DEVICE bool walk_is_behind(const WalkRows &r, int row, int key) {
    return r.key_position + key > r.query_position + row;
}

/* Of a head: query 0 is row 0, key 0 the first key of block `block`. */
DEVICE Dropout walk_dropout(const WalkRows &r, int b, int h, int *block) {
    Dropout d;
    d.key = dropout_key(r.queries.random, r.queries.site);
    d.sequence = first_sequence(r.queries.random) + (uint64_t)b;
    d.first_row = (uint64_t)(r.queries.first_head + h) * r.n_positions + (uint64_t)r.query_position;
    d.blocks = (unsigned)((r.n_positions + 7) / 8);
    d.threshold = r.queries.threshold;
    d.scale = random_dropout_scale(r.queries.threshold);
    *block = r.key_position / 8;
    return d;
}

/* ---- scores ---- */

/* What rows g and g+8 of each block of 16 see of the keys from first_key on, this thread's first one being
 * bit
 * 0. first_row is the thread's own. The four lanes that share rows make a word each; whole warps call it. */
template <int M>
DEVICE void find_seen(uint64_t seen[M][2], const WalkRows &r, int b, int first_row, int first_key) {
    enum { WORDS = 2 * M };
    int c = (int)threadIdx.x % 4, own = c % WORDS;
    uint64_t mine = walk_bits(r, b, first_row + own / 2 * 16 + own % 2 * 8, first_key);
#pragma unroll
    for (int i = 0; i < WORDS; i++) seen[i / 2][i % 2] = __shfl_sync(0xFFFFFFFFu, mine, i, 4) >> (c * 2);
}

/* Scores of keys that a query does not see become -inf. */
template <int M, int N> DEVICE void hide_scores(float s[M][N][4], const uint64_t seen[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const unsigned half[2] = {(unsigned)seen[m][i], (unsigned)(seen[m][i] >> 32)};
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    if (!(half[n / 4] >> (n % 4 * 8 + j) & 1u)) s[m][n][2 * i + j] = -INFINITY;
                }
            }
        }
    }
}

/* Weights that dropout takes become 0. `block`: of the tile's first key. */
template <int M, int N>
DEVICE void drop_weights(float p[M][N][4], const Dropout &dropout, int first_row, int block) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = kept_of_rows(dropout, first_row + m * 16, block + n);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (!(bits >> i & 1u)) p[m][n + i / 4][i % 4] = 0.0f;
            }
        }
    }
}

/* ---- rectangles ---- */

struct RectangleWalk {
    enum { IS_ADDED = 1, IS_PIECE = 0 }; /* results: to what is there, in f32 */
    template <typename T> struct Output { typedef float Type; };
    struct Steps {
        int b, first, next, end; /* the block's own rows; tiles of the others */
        int h, n_left;           /* query_steps: a head, and how many follow it */
        int begin;
    };

    WalkRows rows;
    bool merges; /* forward: y and lse have what other keys gave */

    __device__ __forceinline__ BlockState state(int b, int query, int n_queries, int key, int n_keys) const {
        int last_query = min(query + n_queries, rows.queries.n_positions) - 1,
            last_key = min(key + n_keys, rows.keys.n_positions) - 1;
        int k_first = rows.key_position + key, k_last = rows.key_position + last_key;
        BlockState state = pattern_state(&rows.pattern, rows.query_position + query,
                                         rows.query_position + last_query, k_first, k_last);
        if (!rows.starts || state == BLOCK_ABSENT) return state;
        const int32_t *starts = rows.starts + b * rows.query_rows + rows.first_query;
        return pattern_state_in_documents(state, k_first, k_last, __ldg(starts + query),
                                          __ldg(starts + last_query));
    }

    /* Long rows of tiles first. */
    template <int ROWS> __device__ __forceinline__ WalkPlace query_place(void) const {
        int n_blocks = (rows.queries.n_positions + ROWS - 1) / ROWS, head = (int)blockIdx.x / n_blocks;
        WalkPlace place = {head / rows.queries.n_heads, head % rows.queries.n_heads,
                           (n_blocks - 1 - (int)blockIdx.x % n_blocks) * ROWS};
        return place;
    }
    template <int ROWS> __device__ __forceinline__ WalkPlace key_place(void) const {
        int n_blocks = (rows.keys.n_positions + ROWS - 1) / ROWS, head = (int)blockIdx.x / n_blocks;
        WalkPlace place = {head / rows.keys.n_kv_heads, head % rows.keys.n_kv_heads,
                           (int)blockIdx.x % n_blocks * ROWS};
        return place;
    }

    template <int ROWS, int KEYS> __device__ __forceinline__ Steps key_steps(const WalkPlace &place) const {
        int end_query = min(place.first + ROWS, rows.queries.n_positions),
            end_key = min(rows.keys.n_positions, rows.query_position + end_query - rows.key_position);
        Steps steps = {place.b, place.first, 0, max(0, (end_key + KEYS - 1) / KEYS), place.h, 0, 0};
        return steps;
    }
    template <int ROWS, int KEYS>
    __device__ __forceinline__ bool next_keys(Steps &steps, WalkStep *step) const {
        while (steps.next < steps.end) {
            int first = steps.next++ * KEYS;
            BlockState is = state(steps.b, steps.first, ROWS, first, KEYS);
            if (is == BLOCK_ABSENT) continue;
            *step = {first, steps.h, is != BLOCK_FULL || first + KEYS > rows.keys.n_positions};
            return true;
        }
        return false;
    }

    template <int ROWS, int QUERIES>
    __device__ __forceinline__ Steps query_steps(const WalkPlace &place) const {
        int first = max(0, rows.key_position + place.first - rows.query_position) / QUERIES,
            end = (rows.queries.n_positions + QUERIES - 1) / QUERIES, share = rows.queries.share;
        Steps steps = {place.b, place.first, first, end, place.h * share, share - 1, first};
        return steps;
    }
    template <int ROWS, int QUERIES>
    __device__ __forceinline__ bool next_queries(Steps &steps, WalkStep *step) const {
        for (;;) {
            if (steps.next >= steps.end) {
                if (!steps.n_left || steps.begin >= steps.end) return false;
                steps.n_left--, steps.h++, steps.next = steps.begin;
            }
            int first = steps.next++ * QUERIES;
            BlockState is = state(steps.b, first, QUERIES, steps.first, ROWS);
            if (is == BLOCK_ABSENT) continue;
            *step = {first, steps.h,
                     is != BLOCK_FULL || first + QUERIES > rows.queries.n_positions ||
                         steps.first + ROWS > rows.keys.n_positions};
            return true;
        }
    }
};

/* ---- lists ---- */

/* A row of a list, or a column, from its last entry on. */
typedef struct {
    const int32_t *entry;
    int n, left; /* entries, and those that are left */
} ListRow;

DEVICE ListRow list_row(const int32_t *begin, const int32_t *entry, int number, int n_rows) {
    ListRow row = {entry, 0, 0};
    if (number >= n_rows) return row;
    int first = __ldg(begin + number);
    row.entry += first;
    row.n = row.left = __ldg(begin + number + 1) - first;
    return row;
}
/* What comes next; less than 0: nothing does. */
DEVICE int list_next(const ListRow &row) {
    return row.left > 0 ? __ldg(row.entry + row.left - 1) : -2;
}

/* A block of threads has one block of rows of the list, or two (ROWS) and walks over what either sees. Tiles
 * that it meets are blocks of the list or, beside one block of rows, halves of them. Every query sees itself,
 * so the last block of a row, which comes first, has a key for all of them. */
struct ListWalk {
    enum { IS_ADDED = 0, IS_PIECE = 0 };
    template <typename T> struct Output { typedef T Type; };
    struct Steps {
        ListRow row[2];
        int piece, h, n_left; /* of an entry; heads that follow */
    };

    WalkRows rows;
    const int32_t *blocks;
    int64_t most;
    bool is_of_sequence; /* each has a list of its own */
    int n_skipped;       /* keys that blocks of keys leave out, the first ones; whole blocks */

    __device__ __forceinline__ AttentionBlockList list_of(int b) const {
        return attention_block_list(blocks, is_of_sequence ? b : 0, rows.queries.n_positions, most);
    }

    /* The same rows of all heads are next to each other: those that have most to do come first, and
     * neighbours read the same keys at about the same time. */
    template <int ROWS>
    __device__ __forceinline__ WalkPlace place_of(int n_heads, bool from_last, int n_skipped_rows) const {
        int n_blocks = (rows.queries.n_positions - n_skipped_rows + ROWS - 1) / ROWS,
            n_all = (int)gridDim.x / n_blocks, at = (int)blockIdx.x / n_all, head = (int)blockIdx.x % n_all;
        WalkPlace place = {head / n_heads, head % n_heads,
                           (from_last ? n_blocks - 1 - at : at) * ROWS + n_skipped_rows};
        return place;
    }
    template <int ROWS> __device__ __forceinline__ WalkPlace query_place(void) const {
        return place_of<ROWS>(rows.queries.n_heads, true, 0);
    }
    template <int ROWS> __device__ __forceinline__ WalkPlace key_place(void) const {
        return place_of<ROWS>(rows.queries.n_kv_heads, false, n_skipped);
    }

    /* Steps of TILE rows. */
    template <int ROWS, int TILE>
    __device__ __forceinline__ Steps steps_of(const int32_t *begin, const int32_t *entry, int first) const {
        enum { N_ROWS = ROWS / ATTENTION_BLOCK };
        static_assert(ROWS % ATTENTION_BLOCK == 0 && N_ROWS <= 2 && (N_ROWS == 1 || TILE == ATTENTION_BLOCK),
                      "blocks of a list");
        int n_blocks = (rows.queries.n_positions + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK,
            number = first / ATTENTION_BLOCK;
        Steps steps = {};
        steps.row[0] = list_row(begin, entry, number, n_blocks);
        if (N_ROWS == 2) steps.row[1] = list_row(begin, entry, number + 1, n_blocks);
        steps.piece = ATTENTION_BLOCK / TILE - 1;
        return steps;
    }
    template <int ROWS, int TILE>
    __device__ __forceinline__ bool next_step(Steps &steps, WalkStep *step) const {
        int own = list_next(steps.row[0]), other = ROWS > ATTENTION_BLOCK ? list_next(steps.row[1]) : own;
        int block = max(own >> 1, other >> 1);
        if (block < 0) return false;
        step->first = block * ATTENTION_BLOCK + steps.piece * TILE;
        step->h = steps.h;
        step->is_masked = own != other || own & 1 || step->first + TILE > rows.queries.n_positions;
        if (steps.piece) {
            steps.piece--;
            return true;
        }
        steps.piece = ATTENTION_BLOCK / TILE - 1;
        if (own >> 1 == block) steps.row[0].left--;
        if (ROWS > ATTENTION_BLOCK && other >> 1 == block) steps.row[1].left--;
        return true;
    }

    template <int ROWS, int KEYS> __device__ __forceinline__ Steps key_steps(const WalkPlace &place) const {
        AttentionBlockList list = list_of(place.b);
        Steps steps = steps_of<ROWS, KEYS>(list.row_begin, list.row, place.first);
        steps.h = place.h;
        return steps;
    }
    template <int ROWS, int KEYS>
    __device__ __forceinline__ bool next_keys(Steps &steps, WalkStep *step) const {
        return next_step<ROWS, KEYS>(steps, step);
    }

    template <int ROWS, int QUERIES>
    __device__ __forceinline__ Steps query_steps(const WalkPlace &place) const {
        AttentionBlockList list = list_of(place.b);
        Steps steps = steps_of<ROWS, QUERIES>(list.column_begin, list.column, place.first);
        steps.h = place.h * rows.queries.share;
        steps.n_left = rows.queries.share - 1;
        return steps;
    }
    template <int ROWS, int QUERIES>
    __device__ __forceinline__ bool next_queries(Steps &steps, WalkStep *step) const {
        if (next_step<ROWS, QUERIES>(steps, step)) return true;
        if (!steps.n_left) return false;
        steps.n_left--, steps.h++;
        for (int i = 0; i < 2; i++) steps.row[i].left = steps.row[i].n;
        return next_step<ROWS, QUERIES>(steps, step);
    }
};

static inline ListWalk list_walk(const AttentionShape *s, const AttentionMemory *m,
                                 const AttentionLists *lists) {
    ListWalk walk = {};
    WalkRows *r = &walk.rows;
    r->queries = r->keys = tiled_shape(s, m);
    r->query_rows = r->key_rows = s->n_positions;
    r->key_column = (int64_t)s->n_heads * s->head_size;
    r->n_positions = (uint64_t)s->n_positions;
    r->pattern = m->pattern;
    r->starts = m->starts;
    walk.blocks = lists->blocks;
    walk.most = lists->most;
    walk.is_of_sequence = lists->is_of_sequence;
    return walk;
}

/* ---- results ---- */

/* 16 rows of results, times factor, added to rows of floats from `first` on (the thread's own). */
template <int HS>
DEVICE void add_rows(float *head, const float c[HS / 8][4], float factor, int first, const TiledShape &s) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + i * 8;
        if (row >= s.n_positions) continue;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            if (n * 8 >= s.head_size) continue;
            float2 *to = (float2 *)(head + row * s.width + n * 8 + column), before = *to;
            *to = make_float2(fmaf(c[n][2 * i], factor, before.x), fmaf(c[n][2 * i + 1], factor, before.y));
        }
    }
}

/* A warp's rows of a gradient to where they belong. `tile` is memory for the warp alone. */
template <typename WALK, typename T, int HS, int M, typename OUT>
DEVICE void walk_store(T *tile, const float d[M][HS / 8][4], OUT *head, float factor, int warp_row,
                       const TiledShape &s) {
    if constexpr (WALK::IS_ADDED) {
        int first = warp_row + (int)threadIdx.x % WARP / 4;
#pragma unroll
        for (int m = 0; m < M; m++) add_rows<HS>(head, d[m], factor, first + m * 16, s);
    } else {
        const float factors[2] = {factor, factor};
#pragma unroll
        for (int m = 0; m < M; m++) put_rows<T, HS>(tile + m * 16 * tile_stride<T, HS>(), d[m], factors);
        store_rows<T, HS, M * 16>(tile, head, s.width, warp_row, s, s.add);
    }
}

#endif
