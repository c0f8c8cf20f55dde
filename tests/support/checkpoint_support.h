/* What the tests of checkpoints share: a fresh folder, a small run, and its arrays dealt out to several ranks. */
#ifndef PGPT_TESTS_CHECKPOINT_SUPPORT_H
#define PGPT_TESTS_CHECKPOINT_SUPPORT_H

#include "checkpoint/checkpoint.h"
#include "folder_support.h"
#include "parallel/sync/shard_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Change one byte in place. */
static inline void put_byte(const char *path, size_t at, char byte) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc((unsigned char)byte, file), (unsigned char)byte);
    assert_int_equal(fclose(file), 0);
}

static inline char *get_bytes(const char *path, size_t *n_bytes) {
    char *bytes;
    Error error = {0};
    if (file_read(path, 1 << 26, &bytes, n_bytes, &error) != STATUS_OK) fail_msg("%s", error.text);
    return bytes;
}

#define assert_ok(call, error)                                                                               \
    do {                                                                                                     \
        if ((call) != STATUS_OK) fail_msg("%s", (error).text);                                               \
    } while (0)

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *array[3]; /* parameters, two moments */
    CheckpointState state;
} TestRun;

static const ModelConfig tiny_config = {.preset = "nano",
                                        .n_layers = 1,
                                        .n_heads = 1,
                                        .n_channels = 2,
                                        .context = 3,
                                        .vocabulary = 4,
                                        .tied = true,
                                        .bias = true,
                                        .dropout = 0.1,
                                        .rotary_theta = 10000.0};

static inline TestRun open_test_run(const ModelConfig *config) {
    TestRun run = {.config = *config};
    Error error = {0};
    assert_ok(config_complete(&run.config, config->vocabulary, &error), error);
    assert_ok(parameters_build(&run.table, &run.config, &error), error);
    for (int k = 0; k < 3; k++) {
        run.array[k] = calloc((size_t)run.table.n_flat_elements, sizeof(float));
        parameters_initialise(&run.table, (uint64_t)k, run.array[k], 1);
    }
    run.state = (CheckpointState){.step = 120,
                                  .n_sequences = 1920,
                                  .n_tokens = 122880,
                                  .seed = INT64_MAX,
                                  .data_hash = UINT64_MAX - 5,
                                  .tokenizer_hash = 3,
                                  .validation_loss = 0.1 + 0.2,
                                  .optimizer = "adamw",
                                  .n_moments = 2};
    return run;
}

static inline void close_test_run(TestRun *run) {
    for (int k = 0; k < 3; k++) free(run->array[k]);
    parameters_free(&run->table);
}

static inline CheckpointSource source_of(const TestRun *run) {
    return (CheckpointSource){.config = &run->config,
                              .table = &run->table,
                              .parameters = run->array[0],
                              .moment = {run->array[1], run->array[2]},
                              .state = &run->state};
}

static inline void save_step(TestRun *run, const char *path, int64_t step, double validation_loss) {
    Error error = {0};
    run->state.step = step;
    run->state.validation_loss = validation_loss;
    CheckpointSource source = source_of(run);
    assert_ok(checkpoint_save(path, &source, &error), error);
}

static inline void assert_same_values(const TestRun *run, const float *got, const float *want) {
    for (int i = 0; i < run->table.n_parameters; i++) {
        const Parameter *parameter = &run->table.parameter[i];
        assert_memory_equal(got + parameter->flat_offset, want + parameter->flat_offset,
                            sizeof(float) * (size_t)shape_count(parameter->shape));
    }
}

/* ---- maps of several ranks */

/* Large enough to be cut inside of tensors. */
static const ModelConfig cut_config = {.preset = "nano",
                                       .n_layers = 2,
                                       .n_heads = 2,
                                       .n_channels = 6,
                                       .context = 5,
                                       .vocabulary = 11,
                                       .tied = true,
                                       .bias = true,
                                       .rotary_theta = 10000.0};

enum { MOST_RUNS = 512, MOST_RANKS = 160 };

typedef struct {
    ShardMap map[MOST_RANKS];
    ShardRun run[MOST_RANKS][MOST_RUNS];
    float *local[MOST_RANKS]; /* what each rank holds, after spread_values */
} TestMaps;

static inline unsigned draw(unsigned *seed, unsigned n) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 16) % n;
}

/* The flat array cut anywhere and dealt out: runs that touch, gaps in the ranks' arrays, ranks without anything. */
static inline void draw_maps(TestMaps *maps, int64_t n_flat, int n_ranks, unsigned seed) {
    memset(maps, 0, sizeof *maps);
    for (int r = 0; r < n_ranks; r++) maps->map[r].run = maps->run[r];
    unsigned longest = 1 + draw(&seed, 1 + draw(&seed, (unsigned)n_flat)),
             n_dealt = 1 + draw(&seed, (unsigned)n_ranks);
    for (int64_t first = 0, n; first < n_flat; first += n) {
        int64_t shortest = n_flat / MOST_RUNS + 1;
        n = shortest + draw(&seed, longest);
        if (n > n_flat - first) n = n_flat - first;
        ShardMap *map = &maps->map[draw(&seed, n_dealt)];
        int64_t gap = draw(&seed, 3) ? 0 : draw(&seed, 5);
        ((ShardRun *)map->run)[map->n_runs++] = (ShardRun){first, n, map->n_local + gap};
        map->n_local += gap + n;
    }
    for (int r = 0; r < n_ranks; r++) maps->map[r].n_local += draw(&seed, 4);
}

/* Every rank's own array, of what the flat one holds; what is in no run is NAN. */
static inline void spread_values(TestMaps *maps, int n_ranks, const float *flat) {
    for (int r = 0; r < n_ranks; r++) {
        const ShardMap *map = &maps->map[r];
        maps->local[r] = malloc(sizeof(float) * (size_t)map->n_local + 1);
        assert_non_null(maps->local[r]);
        memset(maps->local[r], 0xFF, sizeof(float) * (size_t)map->n_local);
        for (int i = 0; i < map->n_runs; i++) {
            const ShardRun *run = &map->run[i];
            memcpy(maps->local[r] + run->local_first, flat + run->flat_first, sizeof(float) * (size_t)run->n);
        }
    }
}

static inline void free_values(TestMaps *maps, int n_ranks) {
    for (int r = 0; r < n_ranks; r++) free(maps->local[r]);
}

/* What is read by a map is what the run has, and 0 where no parameter is. */
static inline void assert_map_is_read(const TestRun *run, const Checkpoint *checkpoint, int moment,
                                      const ShardMap *map) {
    Error error = {0};
    size_t n_bytes = sizeof(float) * (size_t)map->n_local;
    float *got = malloc(n_bytes + 1), *want = calloc(1, n_bytes + 1);
    assert_true(got && want);
    memset(got, 0xFF, n_bytes);
    for (int i = 0; i < map->n_runs; i++) {
        for (int64_t k = 0; k < map->run[i].n; k++) {
            int64_t at = map->run[i].flat_first + k;
            for (int p = 0; p < run->table.n_parameters; p++) {
                int64_t offset = run->table.parameter[p].flat_offset;
                if (at >= offset && at < offset + shape_count(run->table.parameter[p].shape))
                    want[map->run[i].local_first + k] = run->array[moment + 1][at];
            }
        }
    }
    assert_ok(checkpoint_read_map(checkpoint, &run->table, moment, map, got, &error), error);
    assert_memory_equal(got, want, n_bytes);
    free(got);
    free(want);
}

#endif
