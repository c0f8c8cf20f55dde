/* Borders lie at multiples of 64 elements, so that slices keep the alignment that kernels like; the last
 * slices of a small unit may be empty. */
#include "parallel/sync/partition.h"

#include "comm/comm.h"

enum { OUTSIDE = -1 }; /* of all blocks */

/* Does the piece still belong to the unit that began at piece `start` and has n elements so far? */
static bool joins(const FlatPiece *pieces, int start, int piece, int64_t n, int64_t most, bool by_block) {
    if (pieces[piece].chunk != pieces[start].chunk || pieces[piece].is_alone || pieces[start].is_alone)
        return false;
    if (pieces[piece].group != pieces[start].group) return false;
    if (by_block && pieces[piece].block != pieces[start].block) return false;
    if (by_block && pieces[start].block != OUTSIDE) return true;
    return n + pieces[piece].n <= most;
}

static const int64_t *slice_borders(Arena *arena, int64_t n, int n_ranks) {
    int64_t *border = ARENA_ARRAY(arena, int64_t, n_ranks + 1);
    comm_even_borders(n, n_ranks, PARTITION_GRAIN, border);
    return border;
}

Partition partition_build(Arena *arena, const FlatPiece *pieces, int n_pieces, const PartitionPlace *places,
                          int64_t unit_bytes, bool by_block) {
    Partition partition = {0};
    for (int i = 0; i < N_FLAT_GROUPS; i++) partition.place[i] = places[i];
    PartitionUnit *units = ARENA_ARRAY(arena, PartitionUnit, n_pieces + 1);
    int64_t most = unit_bytes / (int64_t)sizeof(float);
    for (int start = 0, end; start < n_pieces; start = end) {
        PartitionUnit *unit = &units[partition.n_units++];
        *unit = (PartitionUnit){.first = pieces[start].first,
                                .n = pieces[start].n,
                                .first_piece = start,
                                .group = pieces[start].group,
                                .local_first = partition.n_local};
        for (end = start + 1; end < n_pieces && joins(pieces, start, end, unit->n, most, by_block); end++)
            unit->n += pieces[end].n;
        unit->n_pieces = end - start;
        PartitionPlace place = places[unit->group];
        unit->border = slice_borders(arena, unit->n, place.n_ranks);
        partition.n_flat += unit->n;
        partition.n_local += unit->border[place.rank + 1] - unit->border[place.rank];
    }
    partition.unit = units;
    return partition;
}

ShardMap partition_map(const Partition *partition, Arena *arena) {
    ShardRun *runs = ARENA_ARRAY(arena, ShardRun, partition->n_units + 1);
    ShardMap map = {.run = runs, .n_local = partition->n_local};
    for (int i = 0; i < partition->n_units; i++) {
        const PartitionUnit *unit = &partition->unit[i];
        int64_t n = partition_slice_count(partition, i);
        if (n)
            runs[map.n_runs++] =
                (ShardRun){unit->first + partition_slice_first(partition, i), n, unit->local_first};
    }
    return map;
}

ShardMap shard_map_whole(int64_t n_flat, Arena *arena) {
    ShardRun run = {.n = n_flat};
    return (ShardMap){.n_runs = 1, .run = arena_copy(arena, &run, sizeof run), .n_local = n_flat};
}

/* Rank r has the pieces whose middle lies in the r-th part of its group's. Pieces that touch are one run. */
ShardMap shard_map_share(const FlatPiece *pieces, int n_pieces, const PartitionPlace *places, Arena *arena) {
    int64_t n_flat = n_pieces ? pieces[n_pieces - 1].first + pieces[n_pieces - 1].n : 0;
    int64_t n_of_group[N_FLAT_GROUPS] = {0}, before[N_FLAT_GROUPS] = {0};
    ShardRun *runs = ARENA_ARRAY(arena, ShardRun, n_pieces + 1);
    ShardMap map = {.run = runs, .n_local = n_flat};
    for (int i = 0; i < n_pieces; i++) n_of_group[pieces[i].group] += pieces[i].n;
    for (int i = 0; i < n_pieces; i++) {
        const FlatPiece *piece = &pieces[i];
        double middle = (double)before[piece->group] + 0.5 * (double)piece->n;
        PartitionPlace place = places[piece->group];
        before[piece->group] += piece->n;
        if (!piece->n || (int)(middle / (double)n_of_group[piece->group] * place.n_ranks) != place.rank)
            continue;
        ShardRun *last = map.n_runs ? &runs[map.n_runs - 1] : NULL;
        if (last && last->flat_first + last->n == piece->first) last->n += piece->n;
        else runs[map.n_runs++] = (ShardRun){piece->first, piece->n, piece->first};
    }
    return map;
}

Status shard_map_visit(const ShardMap *map, int64_t first, int64_t n, ShardVisit visit, void *context,
                       Error *error) {
    for (int i = 0; i < map->n_runs; i++) {
        const ShardRun *run = &map->run[i];
        int64_t begin = run->flat_first > first ? run->flat_first : first;
        int64_t end = run->flat_first + run->n < first + n ? run->flat_first + run->n : first + n;
        if (begin >= end) continue;
        TRY(visit(context, begin - first, end - begin, run->local_first + begin - run->flat_first, error));
    }
    return STATUS_OK;
}
