/* GEMMs: who computes which part of C, and in which order.
 *
 * One dimension of C, the smaller of m and n, is *stationary*: its operand (say the weights, when tokens are
 * many) is packed once, by all threads together, and then only read. The other is *moving*: it is cut into
 * tasks of a few strips each; a thread that takes a task packs its strips for one block of k into memory of
 * its own, small enough for the second-level cache, and lets the stationary strips pass by. So each operand
 * is packed once, the large one by those who use it, threads meet only once, and a big weight matrix flows
 * from memory in the background: while a block is being multiplied, the lines of the next are being fetched,
 * a few per tile. Where the other operand is but a few strips, and rows lie near each other, packing would
 * cost what it saves: the kernel then reads the operand as it lies (leave_apart), in the same order.
 *
 * Sums over k are cut into blocks of at most K_BLOCK, always in the same places, and added up in order by
 * whoever has the task: the bits of C depend on neither the number of threads nor their luck. Sums between
 * blocks rest in C, or in `preactivation` when there is one, because then C may still hold the residual. */
#include "backend/cpu/gemm/gemm.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#ifdef _OPENMP
#    include <omp.h>
#endif

#include "backend/cpu/gemm/gemm_kernel.h"

#ifndef _OPENMP /* one thread */
static int omp_get_thread_num(void) {
    return 0;
}
static int omp_get_num_threads(void) {
    return 1;
}
#endif

#define K_BLOCK          512 /* sums over k are cut into blocks of at most this, */
#define K_WHOLE          768 /* unless all of it is no longer than this */
#define TASK_COLUMNS     128 /* 128 x 768 floats are 384 KiB, well inside the second level */
#define TASK_ROWS        126
#define STATIONARY_MAX   8192      /* rows or columns packed at a time */
#define STATIONARY_BYTES (2 << 20) /* blocks of k packed at a time may take this much, or one block if more */
#define SHARE_THRESHOLD  400000    /* multiply-adds below which a second thread costs more than it brings */
/* An operand is not packed for so few strips of the other: of A by rows, also for a k below VEC_LANES, of A
 * by k, and of B; if it is so near: floats from row to row, since rows may share sets of the first level, and
 * of a block of k, a quarter of the second. */
#define APART_BY_ROW  3
#define APART_SHORT   16
#define APART_BY_K    8
#define APART_COLUMNS 16
#define APART_STRIDE  512
#define APART_FLOATS  (1 << 16)
#define FETCH_LINES   8  /* of the next GEMM that are asked for in a step of VEC_LANES terms, at most */
#define PIECE_K       32 /* rows of k, or */
#define PIECE_STRIPS  2  /* strips, that a thread packs at a time */
#define ALIGNMENT     64

typedef struct {
    bool rows_move;        /* rows of A move, B is stationary; or the other way round */
    bool a_apart, b_apart; /* not packed */
    int64_t k_block, n_k_blocks, k_blocks_per_pass;
    int64_t n_stationary, n_moving; /* strips */
    int64_t stationary_per_pass;    /* strips */
    int64_t n_tasks;
    size_t stationary_block_floats;        /* packed, one block of k */
    size_t stationary_bytes, moving_bytes; /* packed, all of a pass; moving is per thread */
} Plan;

/* Part `index` of `count` nearly equal parts of [0, total) starts here. */
static int64_t part_start(int64_t total, int64_t count, int64_t index) {
    return total * index / count;
}

static int64_t max_int64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static size_t packed_bytes(int64_t width, int64_t depth) {
    size_t bytes = (size_t)width * (size_t)depth * sizeof(float);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* What is packed is used once for each strip of the other operand. For a few of them packing does not pay,
 * where what lies apart stays in the caches; nor does filling up a short k. Rows of A that end in half a pair
 * are seen to (multiply_strips), other halves are packed. */
static bool stays_near(int64_t n_rows, int64_t stride) {
    return stride <= APART_STRIDE && n_rows * stride <= APART_FLOATS;
}

static void leave_apart(Plan *plan, const Gemm *gemm) {
    const int64_t n_columns = gemm_column_strips(gemm->n), n_rows = gemm_row_strips(gemm->m);
    if (gemm->transpose_a)
        plan->a_apart = n_columns <= APART_BY_K && gemm->m % 2 == 0 && stays_near(plan->k_block, gemm->lda);
    else
        plan->a_apart = n_columns <= (gemm->k < VEC_LANES ? APART_SHORT : APART_BY_ROW) &&
                        stays_near(GEMM_ROWS, gemm->lda);
    plan->b_apart = n_rows <= APART_COLUMNS && !gemm->transpose_b && gemm->n % VEC_LANES == 0 &&
                    (plan->a_apart || gemm->transpose_a) && stays_near(plan->k_block, gemm->ldb);
}

static Plan make_plan(const Gemm *gemm, int n_threads) {
    Plan plan = {.rows_move = gemm->m > gemm->n};
    plan.n_k_blocks = gemm->k <= K_WHOLE ? 1 : gemm_ceil_div(gemm->k, K_BLOCK);
    plan.k_block = gemm_pad_k(gemm_ceil_div(gemm->k, plan.n_k_blocks));

    int64_t n_rows = gemm_row_strips(gemm->m), n_columns = gemm_column_strips(gemm->n);
    int64_t stationary_strip = plan.rows_move ? GEMM_COLUMNS : GEMM_ROWS;
    int64_t moving_strip = plan.rows_move ? GEMM_ROWS : GEMM_COLUMNS;
    plan.n_stationary = plan.rows_move ? n_columns : n_rows;
    plan.n_moving = plan.rows_move ? n_rows : n_columns;

    int64_t n_passes = gemm_ceil_div(plan.n_stationary * stationary_strip, STATIONARY_MAX);
    plan.stationary_per_pass = gemm_ceil_div(plan.n_stationary, n_passes);
    size_t block_bytes = packed_bytes(plan.stationary_per_pass * stationary_strip, plan.k_block);
    plan.k_blocks_per_pass = block_bytes ? (int64_t)(STATIONARY_BYTES / block_bytes) : 1;
    plan.k_blocks_per_pass = max_int64(1, gemm_min(plan.k_blocks_per_pass, plan.n_k_blocks));
    plan.stationary_block_floats = block_bytes / sizeof(float);
    plan.stationary_bytes = block_bytes * (size_t)plan.k_blocks_per_pass;

    int64_t per_task = (plan.rows_move ? TASK_ROWS : TASK_COLUMNS) / moving_strip;
    int64_t rounds = gemm_ceil_div(plan.n_moving, per_task * n_threads);
    plan.n_tasks = gemm_min(rounds * n_threads, plan.n_moving);
    int64_t widest = gemm_ceil_div(plan.n_moving, plan.n_tasks);
    plan.moving_bytes = packed_bytes(widest * moving_strip, plan.k_block);
    leave_apart(&plan, gemm);
    return plan;
}

/* How many tasks of a region have been handed out; alone in its cache line. */
typedef struct {
    _Alignas(ALIGNMENT) _Atomic int64_t next;
} Turns;

/* How many threads a GEMM is worth. One of few rows waits for memory, and is worth as many as one of
 * eight. */
static int count_workers(const Gemm *gemm, int n_threads) {
    const double work = (double)max_int64(gemm->m, 8) * (double)gemm->n * (double)gemm->k;
    return work < SHARE_THRESHOLD || n_threads < 1 ? 1 : n_threads;
}

size_t gemm_scratch_bytes(const Gemm *shape, int n_threads) {
    if (shape->m <= 0 || shape->n <= 0 || shape->k <= 0 || gemm_is_small(shape)) return ALIGNMENT;
    const int n_workers = count_workers(shape, n_threads);
    Plan plan = make_plan(shape, n_workers);
    return plan.stationary_bytes + (plan.moving_bytes + sizeof(Turns)) * (size_t)n_workers;
}

/* By the bounds that make_plan keeps to: the stationary operand is the smaller one, a pass of it takes
 * STATIONARY_BYTES or one block of k, and a task is a few strips. */
size_t gemm_scratch_bytes_up_to(const Gemm *shape, int n_threads) {
    const int64_t widest_strip = max_int64(GEMM_ROWS, GEMM_COLUMNS), n_workers = max_int64(n_threads, 1);
    const int64_t k = max_int64(shape->k, 1), n_blocks = gemm_ceil_div(k, K_BLOCK);
    const int64_t depth = gemm_pad_k(gemm_min(k, K_WHOLE));
    const int64_t smaller = gemm_min(max_int64(shape->m, 1), max_int64(shape->n, 1));
    const int64_t width = gemm_min(smaller, STATIONARY_MAX) + 2 * widest_strip;
    size_t stationary = packed_bytes(width, depth);
    size_t whole = packed_bytes(width, k + (n_blocks + 1) * VEC_LANES) + (size_t)n_blocks * ALIGNMENT;
    if (stationary < STATIONARY_BYTES) stationary = whole < STATIONARY_BYTES ? whole : STATIONARY_BYTES;
    size_t moving = packed_bytes(max_int64(TASK_ROWS, TASK_COLUMNS) + widest_strip, depth);
    return stationary + (moving + sizeof(Turns)) * (size_t)n_workers;
}

/* A GEMM on its way: what all threads share. */
typedef struct {
    const Gemm *gemm;
    Plan plan;
    float *partial;            /* (m,n) as C: sums between blocks of k */
    const float *first_addend; /* (m,n) as C: what the first block adds to, or NULL */
    const float *bias;         /* (n), added by the first block, or NULL */
    GemmEpilogue epilogue;     /* what is left to do when the last block is in */
    bool plain;                /* that is nothing */
    float *stationary;
    char *moving; /* one buffer per thread */
    Turns *turns; /* one per thread */
} GemmRun;

static int64_t k_of_block(const GemmRun *run, int64_t block) {
    return gemm_min(block * run->plan.k_block, run->gemm->k);
}

static int64_t depth_of_block(const GemmRun *run, int64_t block) {
    return gemm_pad_k(k_of_block(run, block + 1) - k_of_block(run, block));
}

/* Strips [first, last) of one block of k. */
static GemmPart block_part(const GemmRun *run, int64_t first, int64_t last, int64_t block) {
    int64_t k_start = k_of_block(run, block), k_end = k_of_block(run, block + 1);
    return (GemmPart){first, last, k_start, k_end, k_start, k_end};
}

/* A strip: its rows (columns), those of them that exist, and its packed values, or where it begins in
 * memory. */
typedef struct {
    int64_t start, size, existing;
    const float *values;
    int64_t step; /* from one row to the next, or from one k */
    bool is_apart;
} Strip;

static int64_t strip_start(const GemmRun *run, bool rows, int64_t strip) {
    return rows ? gemm_row_start(run->gemm->m, strip) : gemm_column_start(run->gemm->n, strip);
}

static Strip get_strip(const GemmRun *run, bool rows, int64_t index, int64_t block, int64_t origin,
                       const float *packed) {
    const Gemm *gemm = run->gemm;
    const int64_t k = k_of_block(run, block);
    Strip strip = {.start = strip_start(run, rows, index)};
    strip.size = strip_start(run, rows, index + 1) - strip.start;
    strip.existing = gemm_min(strip.size, (rows ? gemm->m : gemm->n) - strip.start);
    if (rows ? run->plan.a_apart : run->plan.b_apart) {
        const bool k_is_row = !rows || gemm->transpose_a;
        strip.is_apart = true;
        strip.step = rows ? gemm->lda : gemm->ldb;
        strip.values = (rows ? gemm->a : gemm->b) +
                       (k_is_row ? k * strip.step + strip.start : strip.start * strip.step + k);
    } else {
        strip.values = packed + (strip.start - origin) * depth_of_block(run, block);
    }
    return strip;
}

typedef void MultiplyTile(bool a_by_k, int64_t rows, int64_t columns, const GemmTile *tile);

/* The kernel for strips that lie so. */
static MultiplyTile *set_strips(const GemmRun *run, const Strip *a, const Strip *b, int64_t block,
                                GemmTile *tile) {
    tile->a_step = a->is_apart ? a->step : a->size;
    tile->b_step = b->is_apart ? b->step : b->size;
    bool are_apart = run->plan.a_apart || run->plan.b_apart;
    tile->depth =
        are_apart ? k_of_block(run, block + 1) - k_of_block(run, block) : depth_of_block(run, block);
    return are_apart ? gemm_tile_apart : gemm_tile;
}

/* One tile of C for one block of k. Its places in memory are asked for meanwhile, so that they are at hand
 * when it is done. Usually the kernel writes C itself; at the edges and before an activation it writes a
 * buffer. */
static void multiply_tile(const GemmRun *run, const Strip *a, const Strip *b, int64_t k_block,
                          GemmFetch *fetch) {
    const Gemm *gemm = run->gemm;
    const int64_t at = a->start * gemm->ldc + b->start, rows = a->existing, columns = b->existing;
    const bool last = k_block == run->plan.n_k_blocks - 1;
    const float *addend = k_block ? run->partial : run->first_addend;
    const float *bias = k_block || !run->bias ? NULL : run->bias + b->start;
    float *to = last ? gemm->c : run->partial;
    GemmTile tile = {.a = a->values, .b = b->values, .bias = bias, .fetch = fetch};
    MultiplyTile *multiply = set_strips(run, a, b, k_block, &tile);
    tile.touch_stride = gemm->ldc;
    tile.touch_rows = rows;
    tile.touch_columns = columns;
    tile.touch[tile.n_touch++] = to + at;
    if (addend && addend != to) tile.touch[tile.n_touch++] = addend + at;
    if (last && run->epilogue.residual) tile.touch[tile.n_touch++] = run->epilogue.residual + at;
    if (last && !addend && run->partial != to) tile.touch[tile.n_touch++] = run->partial + at;

    if (rows == a->size && columns == b->size && (!last || run->plain)) {
        tile.c = to + at;
        tile.stride = gemm->ldc;
        tile.addend = addend ? addend + at : NULL;
        multiply(gemm->transpose_a, a->size, b->size, &tile);
        return;
    }

    _Alignas(ALIGNMENT) float values[GEMM_ROWS * GEMM_COLUMNS], padded_bias[GEMM_COLUMNS] = {0};
    if (bias && columns < b->size) tile.bias = memcpy(padded_bias, bias, (size_t)columns * sizeof(float));
    tile.c = values;
    tile.stride = b->size;
    multiply(gemm->transpose_a, a->size, b->size, &tile);
    const Gemm destination = {.c = to, .ldc = gemm->ldc};
    const GemmEpilogue nothing = {0};
    gemm_finish(&destination, last ? &run->epilogue : &nothing, values, b->size, addend, a->start, b->start,
                rows, columns);
}

/* A last strip that reaches one row past the matrix has a row of zeros when it is packed. Apart, its last row
 * is multiplied by itself, as two that are the same. */
static void multiply_strips(const GemmRun *run, const Strip *a, const Strip *b, int64_t k_block,
                            GemmFetch *fetch) {
    if (!a->is_apart || a->existing == a->size) {
        multiply_tile(run, a, b, k_block, fetch);
        return;
    }
    Strip even = *a, last = *a;
    even.size = even.existing = a->existing - 1;
    last.start += even.size;
    last.values += even.size * a->step;
    last.step = 0;
    last.size = 2;
    last.existing = 1;
    if (even.size) multiply_tile(run, &even, b, k_block, fetch);
    multiply_tile(run, &last, b, k_block, fetch);
}

/* The part of the moving operand that a thread will pack next, spread over the tiles it computes before
 * that. */
static GemmFetch fetch_source(const GemmRun *run, int64_t task, int64_t k_block, int64_t n_steps) {
    const Plan *plan = &run->plan;
    const Gemm *gemm = run->gemm;
    if (task >= plan->n_tasks) return (GemmFetch){0};
    const bool rows = plan->rows_move, k_is_row = rows ? gemm->transpose_a : !gemm->transpose_b;
    const int64_t first = strip_start(run, rows, part_start(plan->n_moving, plan->n_tasks, task));
    int64_t last = strip_start(run, rows, part_start(plan->n_moving, plan->n_tasks, task + 1));
    last = gemm_min(last, rows ? gemm->m : gemm->n);
    const int64_t k_first = k_of_block(run, k_block), k_last = k_of_block(run, k_block + 1);
    const int64_t width = k_is_row ? last - first : k_last - k_first;
    GemmFetch fetch = {.stride = rows ? gemm->lda : gemm->ldb,
                       .rows_left = k_is_row ? k_last - k_first : last - first};
    fetch.row = (rows ? gemm->a : gemm->b) +
                (k_is_row ? k_first * fetch.stride + first : first * fetch.stride + k_first);
    fetch.lines = gemm_ceil_div(width - 1, GEMM_LINE) + 1;
    fetch.lines_per_step = gemm_ceil_div(fetch.rows_left * fetch.lines, n_steps);
    return fetch;
}

static GemmFetch fetch_packed(const float *packed, int64_t n_floats, int64_t n_steps) {
    GemmFetch fetch = {.row = packed, .rows_left = 1, .lines = gemm_ceil_div(n_floats, GEMM_LINE)};
    fetch.lines_per_step = gemm_ceil_div(fetch.lines, n_steps);
    return fetch;
}

/* The first rows of an operand of the GEMM that follows. */
static GemmFetch fetch_next(const Gemm *gemm, bool rows, int64_t n_steps) {
    const bool is_by_rows = rows ? !gemm->transpose_a : gemm->transpose_b; /* k is the column */
    const int64_t k = gemm->transpose_a ? gemm->next_rows : gemm->k;
    const int64_t height = is_by_rows ? (rows ? gemm_min(gemm->next_rows, TASK_ROWS) : gemm->n) : k;
    const int64_t width = is_by_rows ? k : (rows ? gemm->m : gemm->n);
    GemmFetch fetch = {.row = rows ? gemm->next_a : gemm->next_b, .stride = rows ? gemm->lda : gemm->ldb};
    fetch.lines = gemm_ceil_div(width - 1, GEMM_LINE) + 1;
    fetch.rows_left = gemm_min(height, FETCH_LINES * n_steps / fetch.lines);
    fetch.lines_per_step = gemm_ceil_div(fetch.rows_left * fetch.lines, n_steps);
    return fetch;
}

/* All of one task: its strips of the moving operand against stationary strips [begin, end), for blocks
 * [k_begin, k_end) of k. */
static void run_task(const GemmRun *run, int64_t task, int64_t begin, int64_t end, int64_t k_begin,
                     int64_t k_end, float *moving) {
    const Plan *plan = &run->plan;
    const bool rows = plan->rows_move;
    const int64_t first = part_start(plan->n_moving, plan->n_tasks, task);
    const int64_t last = part_start(plan->n_moving, plan->n_tasks, task + 1);
    const int64_t origin = strip_start(run, rows, first), n_tiles = (last - first) * (end - begin);
    const int64_t stationary_origin = strip_start(run, !rows, begin);

    for (int64_t block = k_begin; block < k_end; block++) {
        const float *stationary = run->stationary + (size_t)(block - k_begin) * plan->stationary_block_floats;
        const int64_t depth = depth_of_block(run, block);
        const GemmPart part = block_part(run, first, last, block);
        if (!(rows ? plan->a_apart : plan->b_apart))
            (rows ? gemm_pack_rows : gemm_pack_columns)(run->gemm, &part, moving);
        const int64_t n_steps = n_tiles * depth / VEC_LANES;
        const bool is_last = run->gemm->next_a && task + 1 == plan->n_tasks && end == plan->n_stationary &&
                             block + 1 == plan->n_k_blocks;
        GemmFetch fetch[2];
        if (is_last) fetch[1] = fetch_next(run->gemm, !rows, n_steps);
        if (is_last) fetch[0] = fetch_next(run->gemm, rows, n_steps);
        else
            fetch[0] = block + 1 < k_end ? fetch_source(run, task, block + 1, n_steps)
                                         : fetch_source(run, task + 1, k_begin, n_steps);
        for (int64_t s = begin; s < end; s++) {
            const Strip still = get_strip(run, !rows, s, block, stationary_origin, stationary);
            const float *next = still.values + still.size * depth;
            if (s + 1 == end)
                next = block + 1 < k_end ? stationary + plan->stationary_block_floats : run->stationary;
            if (!is_last) fetch[1] = (GemmFetch){0};
            if (!is_last && !still.is_apart)
                fetch[1] = fetch_packed(next, still.size * depth, n_steps / (end - begin));
            for (int64_t t = first; t < last; t++) {
                const Strip moved = get_strip(run, rows, t, block, origin, moving);
                multiply_strips(run, rows ? &moved : &still, rows ? &still : &moved, block, fetch);
            }
        }
    }
}

/* Packs stationary strips [begin, end) for blocks [k_begin, k_end) of k, all threads together. Pieces are cut
 * so that each reads whole rows as stored: along k where k is the row, along the strips where it is the
 * column. */
static void pack_stationary(const GemmRun *run, int64_t begin, int64_t end, int64_t k_begin, int64_t k_end) {
    const Plan *plan = &run->plan;
    const Gemm *gemm = run->gemm;
    const bool rows = !plan->rows_move, k_is_row = rows ? gemm->transpose_a : !gemm->transpose_b;
    const int64_t origin = strip_start(run, rows, begin);
    const bool is_apart = rows ? plan->a_apart : plan->b_apart;
    const int64_t n_pieces =
        is_apart ? 0
                 : gemm_ceil_div(k_is_row ? plan->k_block : end - begin, k_is_row ? PIECE_K : PIECE_STRIPS);

#pragma omp for schedule(static)
    for (int64_t piece = 0; piece < n_pieces * (k_end - k_begin); piece++) {
        const int64_t block = k_begin + piece / n_pieces, index = piece % n_pieces;
        GemmPart part = block_part(run, begin, end, block);
        if (k_is_row) {
            part.k_from = part.k_start + index * PIECE_K;
            part.k_to = gemm_min(part.k_from + PIECE_K, part.k_end);
        } else {
            part.first = begin + index * PIECE_STRIPS;
            part.last = gemm_min(part.first + PIECE_STRIPS, end);
        }
        float *out = run->stationary + (size_t)(block - k_begin) * plan->stationary_block_floats;
        out += (strip_start(run, rows, part.first) - origin) * depth_of_block(run, block);
        (rows ? gemm_pack_rows : gemm_pack_columns)(gemm, &part, out);
    }
}

/* The next task for thread `me`, or -1. Each thread has a region of C, the same one in every GEMM, so that
 * it finds in its cache what it left there; when its own is done it helps with the others', which evens out
 * what threads lose to other programs. Regions also keep neighbours in C from being worked on at the same
 * time: the hardware, fetching ahead, would keep taking lines of C away from the thread next door, which was
 * seen to cost 15 %. */
static int64_t take_task(const GemmRun *run, int64_t n_regions, int64_t me) {
    const int64_t n_tasks = run->plan.n_tasks;
    for (int64_t i = 0; i < n_regions; i++) {
        int64_t region = (me + i) % n_regions;
        int64_t first = part_start(n_tasks, n_regions, region),
                size = part_start(n_tasks, n_regions, region + 1) - first;
        int64_t taken = atomic_fetch_add_explicit(&run->turns[region].next, 1, memory_order_relaxed);
        if (taken < size) return first + taken;
    }
    return -1;
}

/* What each thread does. */
static void run_thread(const GemmRun *run) {
    const Plan *plan = &run->plan;
    const int64_t me = omp_get_thread_num(), n_regions = omp_get_num_threads();
    float *moving = (float *)(run->moving + plan->moving_bytes * (size_t)me);
    for (int64_t begin = 0; begin < plan->n_stationary; begin += plan->stationary_per_pass) {
        const int64_t end = gemm_min(begin + plan->stationary_per_pass, plan->n_stationary);
        for (int64_t k_begin = 0; k_begin < plan->n_k_blocks; k_begin += plan->k_blocks_per_pass) {
            const int64_t k_end = gemm_min(k_begin + plan->k_blocks_per_pass, plan->n_k_blocks);
            atomic_init(&run->turns[me].next, 0);
            pack_stationary(run, begin, end, k_begin,
                            k_end); /* ends with all threads waiting for each other */
            for (int64_t task; (task = take_task(run, n_regions, me)) >= 0;)
                run_task(run, task, begin, end, k_begin, k_end, moving);
#pragma omp barrier
        }
    }
}

static bool is_empty(const GemmEpilogue *epilogue) {
    return !epilogue->bias && !epilogue->preactivation && !epilogue->residual &&
           epilogue->activation == GEMM_IDENTITY;
}

/* No terms to add up: C is what the epilogue makes of zero. */
static void run_empty_sum(const Gemm *gemm, const GemmEpilogue *epilogue) {
    if (gemm->accumulate) return;
    const float zeros[GEMM_COLUMNS] = {0};
    for (int64_t column = 0; column < gemm->n; column += GEMM_COLUMNS)
        gemm_finish(gemm, epilogue, zeros, 0, NULL, 0, column, gemm->m,
                    gemm_min(GEMM_COLUMNS, gemm->n - column));
}

/* Sums between blocks of k rest in C, unless C may still hold the residual for after the activation; without
 * an activation the residual is simply where the sum starts. */
static void place_sums(GemmRun *run) {
    GemmEpilogue *epilogue = &run->epilogue;
    run->partial = run->gemm->c;
    run->first_addend = run->gemm->accumulate ? run->gemm->c : NULL;
    run->bias = epilogue->bias;
    epilogue->bias = NULL;
    if (epilogue->preactivation) {
        run->partial = epilogue->preactivation;
    } else if (epilogue->activation == GEMM_IDENTITY && epilogue->residual) {
        run->first_addend = epilogue->residual;
        epilogue->residual = NULL;
    }
    assert(run->plan.n_k_blocks == 1 || epilogue->residual != run->partial);
    run->plain = is_empty(epilogue);
}

void gemm_run(const Gemm *gemm, void *scratch, int n_threads) {
    if (gemm->m <= 0 || gemm->n <= 0) return;
    GemmRun run = {.gemm = gemm};
    if (gemm->epilogue) run.epilogue = *gemm->epilogue;
    assert(!gemm->accumulate || is_empty(&run.epilogue));
    if (gemm->k <= 0) {
        run_empty_sum(gemm, &run.epilogue);
        return;
    }
    const int n_workers = count_workers(gemm, n_threads);
    if (gemm_is_small(gemm)) {
        gemm_small(gemm, &run.epilogue, n_workers);
        return;
    }
    run.plan = make_plan(gemm, n_workers);
    place_sums(&run);
    run.stationary = scratch;
    run.moving = (char *)scratch + run.plan.stationary_bytes;
    run.turns = (Turns *)(run.moving + run.plan.moving_bytes * (size_t)n_workers);
#pragma omp parallel num_threads(n_workers) if (n_workers > 1)
    run_thread(&run);
}
