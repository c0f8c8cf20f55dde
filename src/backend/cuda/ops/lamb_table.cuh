/* Which elements are of which tensor, for kernels of LAMB: a flat array is cut into tiles, 8 elements a
 * thread of one block, each within one tensor and one run (LAMB_RUN). The segments travel as an argument of
 * the kernels, as runs do (decay_runs.cuh); more than fit are several launches:
 *
 *     LambTable table;
 *     LambWalk walk = {};
 *     while (next_table(&spans, &elements, count, &walk, &table))
 *         kernel<<<table.n_tiles, THREADS, ...>>>(..., table);     // segment_of, element_of */
#ifndef PGPT_BACKEND_CUDA_OPS_LAMB_TABLE_CUH
#define PGPT_BACKEND_CUDA_OPS_LAMB_TABLE_CUH

#include "backend/cuda/runtime/device.cuh"

extern "C" {
#include "ops/update/lamb.h"
}

enum { THREADS = 256, MAX_SEGMENTS = 100 };
static_assert((int)THREADS * VECTOR == (int)LAMB_TILE, "a tile is a block's work");

/* Elements first .. end - 1 of the call, which are of one tensor or of none. */
typedef struct {
    int64_t first, end;
    int end_tile; /* of the launch */
    int tensor;   /* -1: none */
    bool is_counted;
} LambSegment;

typedef struct {
    int n_segments, n_tiles;
    LambSegment segment[MAX_SEGMENTS];
} LambTable;

/* How far the launches got. */
typedef struct {
    int64_t element;
    int span;
} LambWalk;

static LambSegment segment_at(const TensorSpans *spans, const UpdateElements *elements, int64_t count,
                              LambWalk *walk) {
    int64_t shift = elements->first_element, first = walk->element,
            run_end = lamb_run_end(elements->n_before, first);
    while (walk->span < spans->n_spans && spans->span[walk->span].end - shift <= first) walk->span++;
    const TensorSpan *span = walk->span < spans->n_spans ? &spans->span[walk->span] : NULL;
    LambSegment segment = {first, count, 0, -1, false};
    if (span && span->first - shift > first) {
        segment.end = span->first - shift;
    } else if (span) {
        segment.end = span->end - shift;
        segment.tensor = span->tensor;
        segment.is_counted = span->is_counted;
    }
    if (segment.end > count) segment.end = count;
    if (segment.end > run_end) segment.end = run_end;
    return segment;
}

/* The next launch: false when there is none. */
static bool next_table(const TensorSpans *spans, const UpdateElements *elements, int64_t count,
                       LambWalk *walk, LambTable *table) {
    table->n_segments = table->n_tiles = 0;
    while (walk->element < count && table->n_segments < MAX_SEGMENTS) {
        LambSegment segment = segment_at(spans, elements, count, walk);
        table->n_tiles += (int)((segment.end - segment.first + LAMB_TILE - 1) / LAMB_TILE);
        segment.end_tile = table->n_tiles;
        table->segment[table->n_segments++] = segment;
        walk->element = segment.end;
    }
    return table->n_segments > 0;
}

/* The segment that a tile is in. */
DEVICE int segment_of(const LambTable &table, int tile) {
    int low = 0, high = table.n_segments - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (tile < table.segment[middle].end_tile) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* This thread's first element. */
DEVICE int64_t element_of(const LambTable &table, int segment) {
    int first_tile = segment ? table.segment[segment - 1].end_tile : 0;
    return table.segment[segment].first +
           ((int64_t)((int)blockIdx.x - first_tile) * THREADS + threadIdx.x) * VECTOR;
}

#endif
