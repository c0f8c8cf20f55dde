/* Flat arrays cut up for several ranks: whatever the pieces, every element is in exactly one unit, and of every unit in
 * exactly one rank's slice; and what a rank holds is found again where its map says. */
#include "harness.h"
#include "parallel/sync/partition.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_PIECES = 40, MOST_RANKS = 9 };

/* Pieces as a parameter table makes them: some outside of the blocks, then the blocks, then some outside again. */
typedef struct {
    FlatPiece piece[MOST_PIECES];
    int n_pieces;
    int64_t n_flat;
} Pieces;

/* Some are of two chunks, and one of them may be a unit of its own. Every piece a multiple of the grain, as parameters with their padding are, or of any length. */
static Pieces make_pieces(uint64_t seed, bool has_padding) {
    Pieces pieces = {.n_pieces = (int)(test_hash("n", seed) % (MOST_PIECES + 1))};
    int per_block = 1 + (int)(test_hash("block", seed) % 6);
    for (int i = 0; i < pieces.n_pieces; i++) {
        uint64_t number = seed * MOST_PIECES + (uint64_t)i;
        int64_t n = 1 + test_hash("piece", number) % (test_hash("large", number) % 5 ? 300 : 9000);
        if (has_padding) n = (n + PARTITION_GRAIN - 1) / PARTITION_GRAIN * PARTITION_GRAIN;
        bool is_outside = i < 2 || i >= pieces.n_pieces - 2;
        pieces.piece[i] =
            (FlatPiece){.first = pieces.n_flat, .n = n, .block = is_outside ? -1 : (i - 2) / per_block};
        pieces.n_flat += n;
    }
    for (int i = 0; i < pieces.n_pieces && seed % 4 == 1; i++) pieces.piece[i].chunk = i >= 2 + per_block * 2;
    if (seed % 4 < 2 && pieces.n_pieces)
        pieces.piece[test_hash("alone", seed) % (unsigned)pieces.n_pieces].is_alone = true;
    return pieces;
}

/* ---- units ---- */

static void check_units(const Pieces *pieces, const Partition *partition, int64_t most, bool by_block) {
    int64_t first = 0;
    int piece = 0;
    for (int u = 0; u < partition->n_units; u++) {
        const PartitionUnit *unit = &partition->unit[u];
        assert_true(unit->first == first);
        assert_int_equal(unit->first_piece, piece);
        assert_in_range(unit->n_pieces, 1, pieces->n_pieces);
        int block = pieces->piece[piece].block;
        int64_t n = 0;
        for (int i = 0; i < unit->n_pieces; i++, piece++) {
            n += pieces->piece[piece].n;
            if (by_block) assert_int_equal(pieces->piece[piece].block, block);
            assert_int_equal(pieces->piece[piece].chunk, pieces->piece[unit->first_piece].chunk);
            assert_int_equal(pieces->piece[piece].group, unit->group);
            if (pieces->piece[piece].is_alone) assert_int_equal(unit->n_pieces, 1);
        }
        assert_true(unit->n == n);
        first += n;
        bool is_by_size = !by_block || block < 0;
        if (is_by_size && unit->n_pieces > 1) assert_true(n <= most);
        /* It ends only where it has to: the next piece is of another block or chunk, or would not fit. */
        if (piece == pieces->n_pieces) continue;
        const FlatPiece *next = &pieces->piece[piece];
        if (next->chunk != next[-1].chunk || next->is_alone || next[-1].is_alone) continue;
        if (next->group != next[-1].group) continue;
        bool is_other = by_block && next->block != block;
        if (!is_other) assert_true(is_by_size && n + next->n > most);
    }
    assert_int_equal(piece, pieces->n_pieces);
    assert_true(first == pieces->n_flat && partition->n_flat == pieces->n_flat);
}

static void check_slices(const Partition *partition) {
    int64_t n_local = 0;
    for (int u = 0; u < partition->n_units; u++) {
        const PartitionUnit *unit = &partition->unit[u];
        int n_ranks = partition_place(partition, u).n_ranks;
        int64_t longest = 0, shortest = unit->n;
        assert_true(unit->border[0] == 0 && unit->border[n_ranks] == unit->n);
        for (int r = 0; r < n_ranks; r++) {
            int64_t n = unit->border[r + 1] - unit->border[r];
            assert_true(n >= 0);
            if (n) assert_true(unit->border[r] % PARTITION_GRAIN == 0);
            longest = n > longest ? n : longest;
            shortest = n < shortest ? n : shortest;
        }
        assert_true(longest - shortest < 2 * PARTITION_GRAIN);
        assert_true(unit->local_first == n_local);
        assert_true(partition_slice_first(partition, u) == unit->border[partition_place(partition, u).rank]);
        n_local += partition_slice_count(partition, u);
    }
    assert_true(n_local == partition->n_local);
}

/* ---- maps ---- */

/* Count how often each element is held, and check the map's own rules. */
static void paint(const ShardMap *map, unsigned char *n_holders, int64_t n_flat) {
    int64_t flat_end = 0, local_end = 0;
    for (int i = 0; i < map->n_runs; i++) {
        const ShardRun *run = &map->run[i];
        assert_true(run->n > 0 && run->flat_first >= flat_end && run->local_first >= local_end);
        flat_end = run->flat_first + run->n;
        local_end = run->local_first + run->n;
        for (int64_t k = 0; k < run->n; k++) n_holders[run->flat_first + k]++;
    }
    assert_true(flat_end <= n_flat && local_end <= map->n_local);
}

static void assert_once(unsigned char *n_holders, int64_t n_flat) {
    for (int64_t i = 0; i < n_flat; i++) assert_int_equal(n_holders[i], 1);
    memset(n_holders, 0, (size_t)n_flat);
}

typedef struct {
    const int64_t *local; /* each element's place in the whole */
    int64_t first;
    int64_t n_seen;
    int64_t skip_end;
    int n_calls, n_good; /* fails in the call after so many; -1: never */
} Visit;

static Status visit_part(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error) {
    Visit *visit = context;
    if (visit->n_calls++ == visit->n_good) return error_failed(error, "enough");
    assert_true(count > 0 && skip >= visit->skip_end);
    for (int64_t i = 0; i < count; i++) assert_true(visit->local[local_first + i] == visit->first + skip + i);
    visit->n_seen += count;
    visit->skip_end = skip + count;
    return STATUS_OK;
}

static void check_visits(const ShardMap *map, int64_t n_flat, uint64_t seed) {
    int64_t *local = malloc((size_t)(map->n_local + 1) * sizeof *local);
    assert_non_null(local);
    for (int64_t i = 0; i < map->n_local; i++) local[i] = -1;
    for (int i = 0; i < map->n_runs; i++) {
        for (int64_t k = 0; k < map->run[i].n; k++)
            local[map->run[i].local_first + k] = map->run[i].flat_first + k;
    }
    for (uint64_t round = 0; round < 12; round++) {
        int64_t first = round ? test_hash("first", seed * 12 + round) % (n_flat + 1) : 0;
        int64_t n = round ? test_hash("count", seed * 12 + round) % (n_flat - first + 1) : n_flat;
        int64_t n_held = 0;
        for (int64_t i = 0; i < map->n_local; i++) n_held += local[i] >= first && local[i] < first + n;
        Visit visit = {.local = local, .first = first, .n_good = -1};
        Error error = {0};
        assert_int_equal(shard_map_visit(map, first, n, visit_part, &visit, &error), STATUS_OK);
        assert_true(visit.n_seen == n_held && visit.skip_end <= n);
        Visit shorter = {.local = local, .first = first, .n_good = visit.n_calls / 2};
        Status status = shard_map_visit(map, first, n, visit_part, &shorter, &error);
        assert_int_equal(status, visit.n_calls ? STATUS_FAILED : STATUS_OK);
        assert_int_equal(shorter.n_calls, visit.n_calls ? visit.n_calls / 2 + 1 : 0); /* the first ends it */
    }
    free(local);
}

/* ---- all together ---- */

/* Where all parameters are held by the same ranks. */
static Partition build(Arena *arena, const FlatPiece *pieces, int n_pieces, int rank, int n_ranks,
                       int64_t unit_bytes, bool by_block) {
    const PartitionPlace places[N_FLAT_GROUPS] = {{rank, n_ranks}, {rank, n_ranks}};
    return partition_build(arena, pieces, n_pieces, places, unit_bytes, by_block);
}

static void check_partition(const Pieces *pieces, uint64_t seed, int n_ranks, int64_t unit_bytes,
                            bool by_block) {
    Arena arena = {0};
    unsigned char *n_holders = calloc((size_t)pieces->n_flat + 1, 1);
    assert_non_null(n_holders);
    int64_t n_local = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        Partition partition =
            build(&arena, pieces->piece, pieces->n_pieces, rank, n_ranks, unit_bytes, by_block);
        assert_int_equal(partition.place[FLAT_SHARED].rank, rank);
        check_units(pieces, &partition, unit_bytes / 4, by_block);
        check_slices(&partition);
        ShardMap map = partition_map(&partition, &arena);
        assert_true(map.n_local == partition.n_local);
        paint(&map, n_holders, pieces->n_flat);
        check_visits(&map, pieces->n_flat, seed + (uint64_t)rank);
        n_local += partition.n_local;
    }
    assert_true(n_local == pieces->n_flat);
    assert_once(n_holders, pieces->n_flat);
    free(n_holders);
    arena_free(&arena);
}

static void test_partitions(void **state) {
    (void)state;
    static const int64_t unit_bytes[] = {0, 4, 1000, 16384, 1 << 30};
    for (uint64_t seed = 0; seed < 60; seed++) {
        Pieces pieces = make_pieces(seed, seed % 3 != 0);
        for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks += 1 + (int)(seed % 3)) {
            int64_t bytes = unit_bytes[test_hash("unit", seed + (uint64_t)n_ranks) % 5];
            check_partition(&pieces, seed, n_ranks, bytes, seed % 2);
        }
    }
}

/* Ranks that get nothing of small units, and of everything. */
static void test_more_ranks_than_elements(void **state) {
    (void)state;
    Pieces pieces = {.piece = {{0, 64, .block = -1}, {64, 128, .block = 0}, {192, 1, .block = 1}},
                     .n_pieces = 3,
                     .n_flat = 193};
    check_partition(&pieces, 1, 300, 0, false);
    check_partition(&pieces, 2, 300, 0, true);
    check_partition(&pieces, 3, 7, 1 << 20, false);
    Arena arena = {0};
    Partition last = build(&arena, pieces.piece, 3, 299, 300, 0, false);
    assert_true(last.n_local == 0);
    assert_int_equal(partition_map(&last, &arena).n_runs, 0);
    arena_free(&arena);
}

/* One unit a block, as ZeRO-3 wants them, however large; the tables outside are cut by size. */
static void test_by_block(void **state) {
    (void)state;
    FlatPiece pieces[] = {{0, 640, .block = -1},   {640, 64, .block = -1},   {704, 6400, .block = 0},
                          {7104, 64, .block = 0},  {7168, 6400, .block = 1}, {13568, 64, .block = 1},
                          {13632, 64, .block = -1}};
    static const int64_t want[] = {704, 6464, 6464, 64};
    Arena arena = {0};
    Partition partition = build(&arena, pieces, 7, 1, 4, 4096, true);
    assert_int_equal(partition.n_units, 4);
    for (int u = 0; u < 4; u++) assert_true(partition.unit[u].n == want[u]);
    partition = build(&arena, pieces, 7, 1, 4, 256, true);
    assert_int_equal(partition.n_units, 5);
    partition = build(&arena, pieces, 7, 1, 4, 0, false);
    assert_int_equal(partition.n_units, 7);
    partition = build(&arena, pieces, 0, 0, 4, 4096, true);
    assert_int_equal(partition.n_units, 0);
    assert_true(partition.n_local == 0 && partition.n_flat == 0);
    arena_free(&arena);
}

/* A table that both ends of a pipeline hold has the same slices on both, whatever else they have. */
static void test_alone(void **state) {
    (void)state;
    const FlatPiece first[] = {
        {0, 8192, .block = -1, .is_alone = true}, {8192, 64, .block = -1}, {8256, 640, .block = 0}};
    const FlatPiece last[] = {
        {0, 640, .block = 4}, {640, 64, .block = -1}, {704, 8192, .block = -1, .is_alone = true}};
    Arena arena = {0};
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        for (int by_block = 0; by_block < 2; by_block++) {
            Partition a = build(&arena, first, 3, 0, n_ranks, 1 << 20, by_block);
            Partition b = build(&arena, last, 3, 0, n_ranks, 1 << 20, by_block);
            const PartitionUnit *x = &a.unit[0], *y = &b.unit[b.n_units - 1];
            assert_true(x->n_pieces == 1 && y->n_pieces == 1 && x->n == 8192 && y->n == 8192);
            assert_memory_equal(x->border, y->border, sizeof(int64_t) * (size_t)(n_ranks + 1));
        }
    }
    arena_free(&arena);
}

/* Everybody holds everything, and each writes whole pieces of it: all of them, about as much as the others. */
static void test_shares(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        Pieces pieces = make_pieces(seed, seed % 2);
        Arena arena = {0};
        unsigned char *n_holders = calloc((size_t)pieces.n_flat + 1, 1);
        assert_non_null(n_holders);
        ShardMap whole = shard_map_whole(pieces.n_flat, &arena);
        assert_true(whole.n_local == pieces.n_flat && whole.n_runs == 1 && whole.run->local_first == 0);
        int64_t longest_piece = 0;
        for (int i = 0; i < pieces.n_pieces; i++) {
            if (pieces.piece[i].n > longest_piece) longest_piece = pieces.piece[i].n;
        }
        int n_ranks = 1 + (int)(seed % MOST_RANKS);
        for (int rank = 0; rank < n_ranks; rank++) {
            PartitionPlace places[N_FLAT_GROUPS] = {{rank, n_ranks}, {rank, n_ranks}};
            ShardMap share = shard_map_share(pieces.piece, pieces.n_pieces, places, &arena);
            paint(&share, n_holders, pieces.n_flat);
            assert_true(share.n_local == pieces.n_flat); /* the arrays are whole: places are the same */
            if (!share.n_runs) continue;
            assert_int_equal(share.n_runs, 1);
            assert_true(share.run->flat_first == share.run->local_first);
            assert_true(share.run->n <= pieces.n_flat / n_ranks + 1 + longest_piece);
            check_visits(&share, pieces.n_flat, seed);
        }
        assert_once(n_holders, pieces.n_flat);
        free(n_holders);
        arena_free(&arena);
    }
}

/* ---- two groups ---- */

/* The pieces as rank `expert` of ep has them: every third one is of experts, and as long as its share. */
static Pieces pieces_of(uint64_t seed, int expert) {
    Pieces pieces = make_pieces(seed, true);
    pieces.n_flat = 0;
    for (int i = 0; i < pieces.n_pieces; i++) {
        FlatPiece *piece = &pieces.piece[i];
        piece->first = pieces.n_flat;
        if (i % 3 == 1 && !piece->is_alone) {
            piece->group = FLAT_EXPERTS;
            piece->n += expert * PARTITION_GRAIN;
        }
        pieces.n_flat += piece->n;
    }
    return pieces;
}

/* How many ranks hold, or save, each element of each piece: the piece's own place on a rank of ep. */
typedef struct {
    unsigned char *held[MOST_RANKS], *saved[MOST_RANKS];
} Holders;

static void count_holders(Holders *holders, const Pieces *pieces, const PartitionPlace *places, int expert,
                          int64_t unit_bytes, bool by_block) {
    Arena arena = {0};
    Partition partition =
        partition_build(&arena, pieces->piece, pieces->n_pieces, places, unit_bytes, by_block);
    check_units(pieces, &partition, unit_bytes / 4, by_block);
    check_slices(&partition);
    ShardMap map = partition_map(&partition, &arena);
    ShardMap share = shard_map_share(pieces->piece, pieces->n_pieces, places, &arena);
    paint(&map, holders->held[expert], pieces->n_flat);
    paint(&share, holders->saved[expert], pieces->n_flat);
    arena_free(&arena);
}

/* Of a shared piece over all ranks of ep, of experts on each: everything once. */
static void check_holders(const Holders *holders, const Pieces *pieces, int n_expert_ranks) {
    for (int i = 0; i < pieces[0].n_pieces; i++) {
        bool is_shared = pieces[0].piece[i].group == FLAT_SHARED;
        for (int expert = 0; expert < (is_shared ? 1 : n_expert_ranks); expert++) {
            for (int64_t k = 0; k < pieces[expert].piece[i].n; k++) {
                int held = 0, saved = 0;
                for (int e = expert; e < (is_shared ? n_expert_ranks : expert + 1); e++) {
                    held += holders->held[e][pieces[e].piece[i].first + k];
                    saved += holders->saved[e][pieces[e].piece[i].first + k];
                }
                assert_int_equal(held, 1);
                assert_int_equal(saved, 1);
            }
        }
    }
}

/* Ranks of ep have experts of their own and share the rest: units of shared pieces are the same on all. */
static void check_groups(uint64_t seed, int n_data, int n_expert_ranks, int64_t unit_bytes) {
    Pieces pieces[MOST_RANKS];
    Holders holders;
    for (int e = 0; e < n_expert_ranks; e++) {
        pieces[e] = pieces_of(seed, e);
        holders.held[e] = calloc((size_t)pieces[e].n_flat + 1, 1);
        holders.saved[e] = calloc((size_t)pieces[e].n_flat + 1, 1);
        assert_true(holders.held[e] && holders.saved[e]);
    }
    for (int data = 0; data < n_data; data++) {
        for (int e = 0; e < n_expert_ranks; e++) {
            const PartitionPlace places[N_FLAT_GROUPS] = {
                [FLAT_SHARED] = {data * n_expert_ranks + e, n_data * n_expert_ranks},
                [FLAT_EXPERTS] = {data, n_data}};
            count_holders(&holders, &pieces[e], places, e, unit_bytes, seed % 2);
        }
    }
    check_holders(&holders, pieces, n_expert_ranks);
    for (int e = 0; e < n_expert_ranks; e++) {
        free(holders.held[e]);
        free(holders.saved[e]);
    }
}

static void test_groups(void **state) {
    (void)state;
    static const int64_t unit_bytes[] = {0, 1000, 16384, 1 << 30};
    for (uint64_t seed = 0; seed < 40; seed++)
        for (int n_data = 1; n_data <= 3; n_data++)
            for (int n_expert_ranks = 1; n_expert_ranks <= 4; n_expert_ranks++)
                check_groups(seed, n_data, n_expert_ranks, unit_bytes[seed % 4]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_partitions),
        cmocka_unit_test(test_more_ranks_than_elements),
        cmocka_unit_test(test_by_block),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
