/* Attention by items, of heads of 64 or 128 in 16 bits, by warpgroups (4 warps) that multiply 64 rows at a
 * time (wgmma, compute capability 9.0), dense or over the lists of sparse attention: what
 * attention_items_forward_sm90.cu, attention_items_queries_sm90.cu and attention_items_keys_sm90.cu share.
 *
 * An item of work is two blocks of 64 rows of one head, of queries or of keys, neighbours or such that have
 * the same entries in the list: a warpgroup each. A warp of a third group is the producer. It walks over the
 * entries of both rows of the list at once, from the last one on, and loads by TMA what either has: mostly
 * both have the same, so it is read once for 128 rows. What a step is to each group it leaves beside that:
 * nothing, all of it, or some. Without a list every block of queries meets all keys up to its own block.
 *
 * The kernels are persistent: rows of a window are a few steps, in which a block would not even have begun.
 * As many blocks as there is room for take one item after the other, in the order of the items, each when it
 * is through with one (a ticket says which); the producer is as far ahead as there is room for steps, in the
 * next item if need be. Who computes an item does not matter to its bits. Results leave by TMA, out of the
 * item's rows, while the next item is computed.
 *
 * Of a step that is seen in part, what is seen is a word of 64 keys for each query, or the tile's band, where
 * it has one (pattern_bits.h) and there are no documents.
 *
 * Who waits for whom: rows_full and full, for copies and what the producer wrote before; rows_empty and
 * empty, for both groups, those too that a step is nothing to. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ITEMS_ATTENTION_ITEMS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ITEMS_ATTENTION_ITEMS_CUH

#include "backend/cuda/attention/attention_facts.h"
#include "backend/cuda/attention/attention_walk.cuh"
#include "backend/cuda/attention/attention_warpgroup_spans.cuh"
#include "backend/cuda/attention_items/attention_items.h"
#include "backend/cuda/runtime/pdl.cuh"
#include "backend/cuda/sparse/sparse_split.h"

static_assert((int)SPAN == (int)ATTENTION_BLOCK, "a block of the list is what a group multiplies");

enum {
    ITEM_GROUPS = 2,
    ITEM_WARPS = ITEM_GROUPS * GROUP_WARPS,
    ITEM_THREADS = (ITEM_WARPS + GROUP_WARPS) * WARP,
    ITEMS = 2 /* that there is room for: one, and the next one's rows */
};

/* Who arrives when a step is there: who issued its copies, and each lane of the producer's warp, which make
 * words of what is seen. */
enum { STEP_ARRIVALS = 1 + WARP };

typedef struct {
    int n_blocks; /* of a sequence, from first_block on */
    int first_block;
    int apart; /* the two of an item (sparse_split.h) */
    int n_pairs, n_heads, n_items;
    bool from_last;   /* the last rows come first: those that have most to do */
    bool has_bands;   /* what is seen of a tile is its band */
    unsigned *ticket; /* items that were asked for beside every block's first one; 0 before and after */
} Items;

/* Where an item is. b = -1: there are no more. */
typedef struct {
    int b, h, block; /* the first of two */
} ItemPlace;

typedef enum { STEP_NOTHING, STEP_ALL, STEP_SOME } StepKind;
typedef struct {
    int first, h; /* its first row, and of which head of queries */
    int kind[ITEM_GROUPS];
    bool is_last; /* of the item */
} ItemStep;

template <int HS> struct Boxes {
    enum { N = HS / SIZE };
    char box[N][SPAN_BYTES];
};

/* Of a tile (pattern_bits.h). */
typedef struct {
    alignas(16) uint64_t word[3]; /* the last one is 0 */
} Band;

/* What both kernels of the backward are told. The kernel of the queries finds the facts of rows, for
 * others, too. */
typedef struct {
    CUtensorMap qkv, y, dy; /* in boxes of SPAN rows and SIZE channels */
    CUtensorMap dqkv;       /* in boxes of 16 rows */
    const float *lse;
    RowFacts *facts;
    Items items;
    ListWalk walk;
} BackwardCall;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- items ---- */

/* The same rows of all heads are next to each other: neighbours read the same at about the same time. */
DEVICE ItemPlace place_of_item(const Items &items, int item) {
    ItemPlace place = {-1, 0, 0};
    if (item >= items.n_items) return place;
    int n_all = items.n_items / items.n_pairs, head = item % n_all, at = item / n_all,
        pair = items.from_last ? items.n_pairs - 1 - at : at;
    place.b = head / items.n_heads;
    place.h = head % items.n_heads;
    place.block = items.first_block + pair / items.apart * ITEM_GROUPS * items.apart + pair % items.apart;
    return place;
}

/* By the producer's warp. produce(place, turn, n) has one thread arrive at rows_full[turn], and leaves the
 * item's steps, the first of which is number n of the block; it returns one behind the last. The ticket is
 * asked for before an item, and has come when it is needed; who asks last sets it back. */
template <typename SHARED, typename PRODUCE>
DEVICE void produce_items(const Items &items, SHARED &shared, const PRODUCE &produce) {
    int item = (int)blockIdx.x, lane = (int)threadIdx.x % WARP;
#    pragma unroll 1
    for (int k = 0, n = 0;; k++) {
        int turn = k % ITEMS, asked = 0;
        ItemPlace place = place_of_item(items, item);
        mbarrier_wait(&shared.rows_empty[turn], ~(k / ITEMS) & 1);
        __syncwarp(); /* none may still wait when the barrier is two turns ahead */
        if (lane == 0) shared.place[turn] = place;
        if (place.b < 0) {
            if (lane == 0) {
                mbarrier_arrive(&shared.rows_full[turn]);
                if constexpr (SHARED::FACT_WARPS > 0) mbarrier_arrive(&shared.slopes_full[turn]);
            }
            return;
        }
        if (lane == 0) asked = (int)atomicAdd(items.ticket, 1u);
        n = produce(place, turn, n);
        if (lane == 0 && asked == items.n_items - 1) *items.ticket = 0;
        item = (int)gridDim.x + __shfl_sync(0xFFFFFFFFu, asked, 0);
    }
}

/* The rows out of which an item's results are copied are free when that is done; `stored` says which, or -1.
 * To be called before a warp stores the next ones, and where there is time. */
template <typename SHARED> DEVICE void free_rows(SHARED &shared, int &stored) {
    if (stored < 0) return;
    if (threadIdx.x % WARP == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp();
    mbarrier_arrive(&shared.rows_empty[stored]);
    stored = -1;
}

/* By a group: compute(place, k, n, stored) of the k-th item, whose turn is k % ITEMS; it returns one behind
 * the number of its last step, leaves results in the item's rows and has them copied. */
template <typename SHARED, typename COMPUTE>
DEVICE void compute_items(SHARED &shared, const COMPUTE &compute) {
    int stored = -1;
#    pragma unroll 1
    for (int k = 0, n = 0;; k++) {
        int turn = k % ITEMS;
        mbarrier_wait(&shared.rows_full[turn], k / ITEMS & 1);
        const ItemPlace place = shared.place[turn];
        if (place.b < 0) break;
        n = compute(place, k, n, stored);
        stored = turn;
    }
    free_rows(shared, stored); /* a block stays until its memory is read */
}

template <typename SHARED> DEVICE void init_item_barriers(SHARED &shared, int n_full) {
    if constexpr (SHARED::FACT_WARPS > 0) mbarrier_init_warps(&shared.outputs_empty, SHARED::FACT_WARPS);
    for (int i = 0; i < ITEMS; i++) {
        mbarrier_init(&shared.rows_full[i], 1);
        mbarrier_init_warps(&shared.rows_empty[i], ITEM_WARPS);
        if constexpr (SHARED::FACT_WARPS > 0) {
            mbarrier_init(&shared.slopes_full[i], 1);
            mbarrier_init_warps(&shared.facts_full[i], SHARED::FACT_WARPS);
        }
    }
    for (int i = 0; i < (int)(sizeof shared.full / sizeof shared.full[0]); i++) {
        mbarrier_init(&shared.full[i], n_full);
        mbarrier_init_warps(&shared.empty[i], ITEM_WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async_proxy();
}

/* Of the group's own threads. */
DEVICE void group_sync(const Self &me) {
    if (me.group) asm volatile("bar.sync 2, %0;" ::"n"(GROUP_WARPS * WARP) : "memory");
    else asm volatile("bar.sync 1, %0;" ::"n"(GROUP_WARPS * WARP) : "memory");
}

/* ---- steps ---- */

/* A row of the list, or a column, from its last entry on. */
typedef struct {
    const int32_t *entry; /* NULL: blocks from `first` on, of which `own` is not seen whole */
    int first, own;
    int n, left; /* entries, and those that are left */
} ItemRow;

DEVICE ItemRow item_of_list(const int32_t *begin, const int32_t *entry, int number) {
    int first = __ldg(begin + number), n = __ldg(begin + number + 1) - first;
    ItemRow row = {entry + first, 0, 0, n, n};
    return row;
}
/* Of n_blocks of a sequence. */
DEVICE ItemRow item_row(const ListWalk &walk, const AttentionBlockList &list, int number, int n_blocks) {
    ItemRow row = {NULL, 0, number, number + 1, number + 1};
    if (number >= n_blocks) row.n = row.left = 0;
    else if (walk.blocks) row = item_of_list(list.row_begin, list.row, number);
    return row;
}
DEVICE ItemRow item_column(const ListWalk &walk, const AttentionBlockList &list, int number, int n_blocks) {
    ItemRow row = {NULL, number, number, n_blocks - number, n_blocks - number};
    if (number >= n_blocks) row.n = row.left = 0;
    else if (walk.blocks) row = item_of_list(list.column_begin, list.column, number);
    return row;
}
/* Its next entry; less than 0: there is none. */
DEVICE int next_entry(const ItemRow &row) {
    if (row.left <= 0) return -2;
    int at = row.left - 1, block = row.first + at;
    return row.entry ? __ldg(row.entry + at) : 2 * block + (block == row.own);
}

DEVICE AttentionBlockList list_of_item(const ListWalk &walk, int b) {
    AttentionBlockList list = {};
    return walk.blocks ? walk.list_of(b) : list;
}

/* The next step of both rows: false: there is none. */
DEVICE bool next_step(ItemRow row[ITEM_GROUPS], int n_positions, ItemStep *step) {
    const int now[ITEM_GROUPS] = {next_entry(row[0]), next_entry(row[1])};
    int block = max(now[0] >> 1, now[1] >> 1);
    if (block < 0) return false;
    step->first = block * SPAN;
#    pragma unroll
    for (int g = 0; g < ITEM_GROUPS; g++) {
        bool is_its = now[g] >> 1 == block, is_masked = now[g] & 1 || step->first + SPAN > n_positions;
        step->kind[g] = !is_its ? STEP_NOTHING : is_masked ? STEP_SOME : STEP_ALL;
        if (is_its) row[g].left--;
    }
    step->is_last = row[0].left <= 0 && row[1].left <= 0;
    return true;
}

/* By that warp, of a tile for each group. `distance` is that of the first group's, and `more` what that of
 * the second one has beside it. */
DEVICE void make_bands(Band band[ITEM_GROUPS], const WalkRows &r, int distance, int more) {
    int lane = (int)threadIdx.x % WARP, g = lane / 2, upper = lane % 2;
    if (g >= ITEM_GROUPS) return;
    band[g].word[upper] = pattern_band_word(&r.pattern, distance + g * more, upper);
    if (upper) band[g].word[2] = 0;
}

/* So many bits of a band from bit `first` on. */
template <int N> DEVICE void read_band(unsigned bits[N], const Band &band, int first) {
    const unsigned *word = (const unsigned *)band.word + first / 32;
#    pragma unroll
    for (int i = 0; i < N; i++) bits[i] = __funnelshift_r(word[i], word[i + 1], (unsigned)first);
}

/* Of the thread's two queries, its first key being bit 0. */
DEVICE void load_band(uint64_t mine[1][2], const Band &band, const Self &me) {
#    pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned half[2];
        read_band<2>(half, band, SPAN - 1 - (me.warp * 16 + i * 8 + me.lane / 4) + me.lane % 4 * 2);
        mine[0][i] = (uint64_t)half[1] << 32 | half[0];
    }
}

/* By that warp, of groups that see some of the step: of SPAN queries from `query` on, keys from `key` on. */
DEVICE void make_seen(uint64_t seen[SPAN], const WalkRows &r, int b, int query, int key) {
#    pragma unroll 1
    for (int i = (int)threadIdx.x % WARP; i < SPAN; i += WARP) seen[i] = walk_bits(r, b, query + i, key);
}

/* SPAN rows of a head. By one thread. */
template <int HS>
DEVICE void produce_boxes(Boxes<HS> &to, const CUtensorMap *map, int column, int row, int b,
                          uint64_t *barrier) {
#    pragma unroll
    for (int i = 0; i < Boxes<HS>::N; i++) produce_span(to.box[i], map, column + i * SIZE, row, b, barrier);
}

/* Of an item of queries, by the producer's warp: rows(g, block) loads those of a group, of rows_bytes in all;
 * then come keys, values and bands, step by step. STEP_ARRIVALS arrive at shared.full. Columns are those of a
 * row of qkv. */
template <int HS, int N_STEPS, typename CALL, typename SHARED, typename ROWS>
DEVICE int produce_keys(const CALL &c, SHARED &shared, const ItemPlace &place, int turn, int n,
                        unsigned rows_bytes, const ROWS &rows) {
    const TiledShape &s = c.walk.rows.queries;
    AttentionBlockList list = list_of_item(c.walk, place.b);
    int key_column = (s.n_heads + place.h / s.share) * HS, value_column = key_column + s.n_kv_heads * HS;
    bool is_first = threadIdx.x % WARP == 0;
    ItemRow row[ITEM_GROUPS];
    ItemStep step;
    if (is_first) mbarrier_expect(&shared.rows_full[turn], rows_bytes);
#    pragma unroll
    for (int g = 0; g < ITEM_GROUPS; g++) { /* rows that are not there are zeros */
        int block = place.block + g * c.items.apart;
        if (is_first) rows(g, block);
        row[g] = item_row(c.walk, list, block, c.items.n_blocks);
    }
#    pragma unroll 1
    for (; next_step(row, s.n_positions, &step); n++) {
        int at = n % N_STEPS;
        mbarrier_wait(&shared.empty[at], ~(n / N_STEPS) & 1);
        __syncwarp(); /* as in produce_items */
        if (is_first) {
            shared.step[at] = step;
            mbarrier_expect(&shared.full[at], 2 * sizeof shared.keys[0]);
            produce_boxes(shared.keys[at], &c.qkv, key_column, step.first, place.b, &shared.full[at]);
            produce_boxes(shared.values[at], &c.qkv, value_column, step.first, place.b, &shared.full[at]);
        }
        if (c.items.has_bands && (step.kind[0] == STEP_SOME || step.kind[1] == STEP_SOME))
            make_bands(shared.band[at], c.walk.rows, place.block * SPAN - step.first, c.items.apart * SPAN);
        mbarrier_arrive(&shared.full[at]);
    }
    return n;
}

/* What a block does: compute(me, place, k, n, stored) by its groups, with REGISTERS each, and
 * produce(place, turn, n) by the producer, whose group gives them theirs (0: they keep what the kernel begins
 * with). n_full arrive when a step is there. find(g) is done by another warp for each group, where there are
 * FACT_WARPS. */
template <int REGISTERS, int PRODUCER_REGISTERS, typename SHARED, typename COMPUTE, typename PRODUCE,
          typename FIND>
DEVICE void run_items(const Items &items, SHARED &shared, int n_full, const COMPUTE &compute,
                      const PRODUCE &produce, const FIND &find) {
    const Self me = self_of(warp_of_block());
    if (threadIdx.x == 0) init_item_barriers(shared, n_full);
    __syncthreads();
    wait_for_predecessor();
    let_successor_start(); /* it waits, too, and has no room before this one's blocks end */
    if (me.group < ITEM_GROUPS) {
        if constexpr (REGISTERS > 0) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        compute_items(shared, [&](const ItemPlace &place, int k, int n, int &stored) {
            return compute(me, place, k, n, stored);
        });
    } else {
        if constexpr (REGISTERS > 0)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (me.warp == 0) produce_items(items, shared, produce);
        else if (me.warp <= SHARED::FACT_WARPS) find(me.warp - 1);
    }
}

/* ---- products ---- */

template <int N> DEVICE void hold_sums(float c[N][4]) {
    static_assert(N % 8 == 0, "what hold takes");
#    pragma unroll
    for (int i = 0; i < N / 8; i++) hold(c + i * 8);
}

/* c = a · bᵀ over all channels. */
template <typename T, int HS>
DEVICE void multiply_channels(float c[8][4], const Boxes<HS> &a, const Boxes<HS> &b) {
#    pragma unroll
    for (int i = 0; i < Boxes<HS>::N; i++) {
        unsigned first = describe(a.box[i], 16), second = describe(b.box[i], 16);
#    pragma unroll
        for (int k = 0; k < SIZE / 16; k++)
            multiply_step<false>(c, first + k * NEXT_COLUMNS, second + k * NEXT_COLUMNS, i || k ? 1 : 0, T());
    }
}
/* c += a · b over the rows of b. */
template <typename T, int HS>
DEVICE void multiply_weights(float c[HS / 8][4], const unsigned a[4][4], const Boxes<HS> &b) {
#    pragma unroll
    for (int i = 0; i < Boxes<HS>::N; i++) multiply_rows<T>(c + i * 8, a, b.box[i], true);
}

/* Results become first factors. */
template <typename T> DEVICE void narrow(unsigned kept[4][4], const float p[8][4]) {
#    pragma unroll
    for (int i = 0; i < 16; i++) { /* the pair of row j % 2 of the 8 columns 2·k + j / 2 */
        int k = i / 4, j = i % 4;
        const float *pair = p[2 * k + j / 2] + j % 2 * 2;
        kept[k][j] = pair_of_floats(pair[0], pair[1], T());
    }
}

/* A warp's 16 rows from a box to where they belong; rows beyond the sequence are not written. By one
 * thread. */
DEVICE void copy_box_rows(const CUtensorMap *map, const void *from, int column, int row, int sequence) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
        "r"(column), "r"(row), "r"(sequence), "r"(shared_address(from))
        : "memory");
}

/* A group's results into boxes that all of its warps are done with; rows g of each 16 times factor[0], rows
 * g+8 times factor[1]. */
template <typename T, int HS>
DEVICE void put_in_boxes(Boxes<HS> &to, const float d[HS / 8][4], const float factor[2], const Self &me) {
#    pragma unroll
    for (int i = 0; i < Boxes<HS>::N; i++) put_in_box<T>(to.box[i], me, factor, d + i * 8);
}
/* From there to rows `first` on. By one thread of each warp, behind fence_async_proxy and __syncwarp. */
template <int HS>
DEVICE void copy_boxes(const CUtensorMap *map, const Boxes<HS> &from, int column, int first, int b,
                       const Self &me) {
    enum { WARP_ROWS = SPAN / GROUP_WARPS };
#    pragma unroll
    for (int i = 0; i < Boxes<HS>::N; i++)
        copy_box_rows(map, from.box[i] + me.warp * WARP_ROWS * SIZE * 2, column + i * SIZE,
                      first + me.warp * WARP_ROWS, b);
}
DEVICE void commit_copies(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Both. The rows are on their way when it returns. */
template <typename T, int HS>
DEVICE void store_boxes(Boxes<HS> &by, const float d[HS / 8][4], const float factor[2],
                        const CUtensorMap *map, int column, int first, int b, const Self &me) {
    put_in_boxes<T, HS>(by, d, factor, me);
    fence_async_proxy();
    __syncwarp();
    if (me.lane == 0) {
        copy_boxes<HS>(map, by, column, first, b, me);
        commit_copies();
    }
}

#endif

/* ---- on the host's side ---- */

/* The parts of the backward, one after the other: the first one finds the facts of rows. */
Status attention_items_queries(const CudaContext *context, const AttentionShape *shape,
                               const AttentionMemory *memory, const AttentionLists *lists, Error *error);
Status attention_items_keys(const CudaContext *context, const AttentionShape *shape,
                            const AttentionMemory *memory, const AttentionLists *lists, int n_skipped,
                            Error *error);

/* Of blocks that are `apart`: within each 2·apart, the first half with the second. What is left at the end
 * has no partner, or one that is not there. n_skipped blocks, the first ones, have no item; n_heads of a
 * sequence. */
static inline Items items_of(const CudaContext *context, const AttentionShape *s, const AttentionMemory *m,
                             int n_heads, int n_skipped, bool from_last) {
    const AttentionPattern *pattern = &m->pattern;
    Items items = {};
    int apart = sparse_blocks_apart(pattern, s->n_positions);
    items.n_blocks = (int)attention_n_blocks(s->n_positions) - n_skipped;
    int rest = items.n_blocks % (ITEM_GROUPS * apart);
    items.first_block = n_skipped;
    items.apart = apart;
    items.n_heads = n_heads;
    items.n_pairs = items.n_blocks / (ITEM_GROUPS * apart) * apart + (rest < apart ? rest : apart);
    items.n_items = (int)(items.n_pairs * s->n_sequences * n_heads);
    items.from_last = from_last;
    items.has_bands = !m->starts && pattern_has_bands(pattern);
    items.ticket = context->tickets;
    return items;
}

/* Rows of a head, as warps store them. */
static inline bool map_warp_rows(CUtensorMap *map, const void *data, const AttentionShape *s, int64_t width) {
    uint64_t size[3] = {(uint64_t)width, (uint64_t)s->n_positions, (uint64_t)s->n_sequences},
             stride[2] = {(uint64_t)width * 2, (uint64_t)(width * s->n_positions) * 2};
    uint32_t box[3] = {SIZE, SPAN / GROUP_WARPS, 1};
    return cuda_tma_descriptor(map, data, 3, size, stride, box);
}

/* False: the driver cannot make the maps. */
static inline bool backward_call(BackwardCall *call, const CudaContext *context, const AttentionShape *s,
                                 const AttentionMemory *m, const AttentionLists *lists, int n_heads,
                                 int n_skipped, bool from_last) {
    *call = {};
    call->lse = m->lse;
    call->facts = (RowFacts *)m->scratch;
    call->items = items_of(context, s, m, n_heads, n_skipped, from_last);
    call->walk = list_walk(s, m, lists);
    return map_heads(&call->qkv, m->qkv, s, s->width) && map_heads(&call->y, m->y, s, s->y_width) &&
           map_heads(&call->dy, m->dy, s, s->y_width) && map_warp_rows(&call->dqkv, m->dqkv, s, s->width);
}

/* The statement, T being the type of numbers, HS the size of a head, and DROPS whether there is dropout. */
#define FOR_ITEM_KIND(shape, T, HS, DROPS, ...)                                                              \
    FOR_SHORT_TYPE(shape, T,                                                                                 \
                   FOR_CONSTANT(HS, (shape)->head_size == SIZE, SIZE, 2 * SIZE,                              \
                                FOR_CONSTANT(DROPS, (shape)->threshold != 0, true, false, __VA_ARGS__)))

/* So many blocks of threads a multiprocessor; call.items says how much there is to do. */
template <typename Call>
static cudaError_t launch_items(void (*kernel)(const Call), const CudaContext *context, int n_resident,
                                size_t shared_bytes, const Call &call) {
    int n_places = context->traits.n_processors * n_resident,
        n_blocks = call.items.n_items < n_places ? call.items.n_items : n_places;
    if (!n_blocks) return cudaSuccess;
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
    if (code != cudaSuccess) return code;
    return launch_pdl(kernel, (unsigned)n_blocks, ITEM_THREADS, shared_bytes, context->stream, call);
}

#endif
