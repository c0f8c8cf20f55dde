/* Tables of parts of a model: the shards of all ranks are the model, each element owned once, with the values that the
 * whole model has there, and what a rank holds fits together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "model/config.h"
#include "shard_layouts.h"

#include <stdlib.h>
#include <string.h>

static const int tp_sizes[] = {1, 2, 3, 4, 8};
enum { N_TP_SIZES = sizeof tp_sizes / sizeof tp_sizes[0], MOST_TP = 8, SEED = 11 };

static ParameterTable build(const ModelConfig *config, const ParameterPart *part) {
    ParameterTable table;
    Error error = {0};
    Status status =
        part ? parameters_build_part(&table, config, part, &error) : parameters_build(&table, config, &error);
    if (status != STATUS_OK) fail_msg("%s", error.text);
    return table;
}

static float *initial_values(const ParameterTable *table, int n_threads) {
    float *flat = malloc(sizeof(float) * (size_t)table->n_flat_elements + 1);
    assert_non_null(flat);
    memset(flat, 0xFF, sizeof(float) * (size_t)table->n_flat_elements);
    parameters_initialise(table, SEED, flat, n_threads);
    return flat;
}

typedef struct {
    ModelConfig config;
    ParameterTable table; /* of the whole model */
    float *values;
    unsigned char *n_owners; /* of every element of its flat array */
} Whole;

/* The values of a part, and who owns what. */
static void check_values(Whole *whole, const ParameterTable *table) {
    float *values = initial_values(table, 1),
          *want = malloc(sizeof(float) * (size_t)table->n_flat_elements + 1);
    assert_non_null(want);
    int64_t n_elements = 0, flat_end = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        const Parameter *global = parameter_find(&whole->table, parameter->role, parameter->block);
        assert_non_null(global);
        assert_ptr_equal(parameter_find(table, parameter->role, parameter->block), parameter);
        assert_int_equal(parameter->number, global - whole->table.parameter);
        assert_string_equal(parameter->name, global->name);
        assert_true(shape_equal(parameter->whole, global->shape));
        assert_int_equal(parameter->flat_offset, flat_end);
        int64_t count = shape_count(parameter->shape), n_boxed = 0;
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const ShardBox *box = &parameter->shard.box[k];
            assert_true(box_is_within(&box->box, global->shape));
            n_boxed += shape_count(box->box.shape);
            const Box all = box_whole(global->shape);
            for (int64_t e = 0; box->is_owner && e < shape_count(box->box.shape); e++)
                whole->n_owners[global->flat_offset + box_element(&box->box, &all, e)]++;
        }
        assert_int_equal(n_boxed, count);
        shard_take(parameter, whole->values + global->flat_offset, want);
        assert_memory_equal(values + parameter->flat_offset, want, sizeof(float) * (size_t)count);
        n_elements += count;
        flat_end = parameter->flat_offset + (shape_count(parameter->laid_out) + 63) / 64 * 64;
    }
    assert_int_equal(n_elements, table->n_elements);
    assert_int_equal(flat_end, table->n_flat_elements);
    assert_int_equal(table->n_whole_elements, whole->table.n_elements);
    assert_int_equal(table->n_whole_parameters, whole->table.n_parameters);
    free(values);
    free(want);
}

static Shape local_shape(const ParameterTable *table, ParameterRole role, int block) {
    const Parameter *parameter = parameter_find(table, role, block);
    assert_non_null(parameter);
    return parameter->shape;
}

static bool part_has(const ParameterPart *part, int block) {
    bool has = false;
    for (int c = 0; c < part->n_chunks; c++)
        has |= block >= part->chunk[c].first_block && block < part->chunk[c].end_block;
    return has;
}

/* Chunk by chunk, and each in the order of the model, but for a copy of the token table at the end of its own. */
static void check_chunks(const ParameterTable *table, const ParameterPart *part) {
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        const ParameterChunk *chunk = &part->chunk[parameter->chunk];
        assert_in_range(parameter->chunk, 0, part->n_chunks - 1);
        if (parameter->block != NO_BLOCK)
            assert_true(parameter->block >= chunk->first_block && parameter->block < chunk->end_block);
        if (i == 0) continue;
        assert_in_range(parameter->chunk, parameter[-1].chunk, part->n_chunks - 1);
        bool is_copy = parameter->role == ROLE_TOKEN_TABLE && !chunk->has_embedding;
        if (parameter->chunk == parameter[-1].chunk)
            assert_int_equal(parameter->number > parameter[-1].number, !is_copy);
    }
}

/* A rank can compute with what it has: heads with their keys and values, hidden channels in and out. */
static void check_fits(const ModelConfig *config, const ParameterTable *table, const ParameterPart *part) {
    ShardHeads heads = shard_heads(config, part->n_ranks, part->rank);
    int64_t size = config_head_size(config), n_together = config->n_heads / config->n_kv_heads;
    assert_int_equal(heads.query.n == 0, heads.key.n == 0);
    if (heads.key.n) {
        assert_int_equal(heads.query.n % heads.key.n, 0);
        for (int64_t h = 0; h < heads.query.n; h++)
            assert_int_equal((heads.query.first + h) / n_together,
                             heads.key.first + h / (heads.query.n / heads.key.n));
    }
    int64_t n_halves = config->mlp == MLP_SWIGLU ? 2 : 1;
    for (int block = 0; block < config->n_layers; block++) {
        if (!part_has(part, block)) continue;
        int64_t rows = (heads.query.n + 2 * heads.key.n) * size;
        assert_int_equal(local_shape(table, ROLE_QKV_WEIGHT, block).dim[0], rows);
        assert_int_equal(local_shape(table, ROLE_ATTENTION_OUT_WEIGHT, block).dim[1], heads.query.n * size);
        assert_int_equal(local_shape(table, ROLE_FC_WEIGHT, block).dim[0],
                         n_halves * local_shape(table, ROLE_PROJ_WEIGHT, block).dim[1]);
        const Parameter *fc = parameter_find(table, ROLE_FC_WEIGHT, block);
        const Parameter *proj = parameter_find(table, ROLE_PROJ_WEIGHT, block);
        for (int k = 0; part->n_ranks > 1 && k < fc->shard.n_boxes; k++) {
            assert_int_equal(fc->shard.n_boxes, n_halves);
            assert_int_equal(fc->shard.box[k].box.offset[0],
                             k * config->n_hidden + proj->shard.box[0].box.offset[1]);
        }
        if (!config->bias) continue;
        assert_int_equal(local_shape(table, ROLE_QKV_BIAS, block).dim[0], rows);
        assert_int_equal(local_shape(table, ROLE_FC_BIAS, block).dim[0], fc->shape.dim[0]);
        assert_int_equal(local_shape(table, ROLE_PROJ_BIAS, block).dim[0],
                         part->rank == 0 ? config->n_channels : 0);
    }
}

/* In the naive style: columns of every weight in a block, and biases on the first rank. */
static void check_row_style(const ModelConfig *config, const ParameterTable *table,
                            const ParameterPart *part) {
    static const ParameterRole weights[] = {ROLE_QKV_WEIGHT, ROLE_ATTENTION_OUT_WEIGHT, ROLE_FC_WEIGHT,
                                            ROLE_PROJ_WEIGHT};
    static const ParameterRole biases[] = {ROLE_QKV_BIAS, ROLE_ATTENTION_OUT_BIAS, ROLE_FC_BIAS,
                                           ROLE_PROJ_BIAS};
    for (int block = 0; block < config->n_layers; block++) {
        for (size_t i = 0; part_has(part, block) && i < sizeof weights / sizeof weights[0]; i++) {
            const Parameter *weight = parameter_find(table, weights[i], block);
            ShardSpan span = shard_span(weight->whole.dim[1], part->n_ranks, part->rank);
            assert_int_equal(weight->shape.dim[0], weight->whole.dim[0]);
            assert_int_equal(weight->shape.dim[1], span.n);
            if (span.n) assert_int_equal(weight->shard.box[0].box.offset[1], span.first);
            if (!config->bias) continue;
            const Parameter *bias = parameter_find(table, biases[i], block);
            assert_int_equal(bias->shape.dim[0], part->rank == 0 ? bias->whole.dim[0] : 0);
        }
    }
}

static bool holds(const Parameter *parameter, const Box *box) {
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        if (box_equal(&parameter->shard.box[i].box, box)) return true;
    }
    return false;
}

/* Every box says truly which ranks of its stage hold the same. */
static void check_holders(const ParameterTable *tables, int tp_size) {
    for (int rank = 0; rank < tp_size; rank++) {
        assert_int_equal(tables[rank].n_parameters, tables[0].n_parameters);
        for (int i = 0; i < tables[rank].n_parameters; i++) {
            const Parameter *parameter = &tables[rank].parameter[i];
            for (int k = 0; k < parameter->shard.n_boxes; k++) {
                const ShardBox *box = &parameter->shard.box[k];
                for (int other = 0; other < tp_size; other++) {
                    bool is_holder = other >= box->first_holder && other < box->first_holder + box->n_holders;
                    assert_int_equal(holds(&tables[other].parameter[i], &box->box), is_holder);
                }
            }
        }
    }
}

static void check_style(Whole *whole, int tp_size, int n_stages, int n_chunks, StagePlacement placement,
                        TensorStyle style) {
    memset(whole->n_owners, 0, (size_t)whole->table.n_flat_elements);
    for (int stage = 0; stage < n_stages; stage++) {
        ParameterTable tables[MOST_TP];
        for (int tp = 0; tp < tp_size; tp++) {
            ParameterPart part = shard_chunks(tp_size, tp, n_stages, stage, n_chunks, placement);
            part.style = style;
            tables[tp] = build(&whole->config, &part);
            check_values(whole, &tables[tp]);
            check_chunks(&tables[tp], &part);
            if (style == TENSOR_COLUMN) check_fits(&whole->config, &tables[tp], &part);
            else check_row_style(&whole->config, &tables[tp], &part);
            for (int block = 0; block < SHARD_LAYERS; block++)
                assert_int_equal(parameter_find(&tables[tp], ROLE_FC_WEIGHT, block) != NULL,
                                 part_has(&part, block));
        }
        check_holders(tables, tp_size);
        for (int tp = 0; tp < tp_size; tp++) parameters_free(&tables[tp]);
    }
    for (int i = 0; i < whole->table.n_parameters; i++) {
        const Parameter *parameter = &whole->table.parameter[i];
        for (int64_t k = 0; k < shape_count(parameter->shape); k++) {
            if (whole->n_owners[parameter->flat_offset + k] != 1)
                fail_msg("tp %d, %d stages of %d chunks: element %lld of %s is owned %d times", tp_size,
                         n_stages, n_chunks, (long long)k, parameter->name,
                         whole->n_owners[parameter->flat_offset + k]);
        }
    }
}

static void check_layout(Whole *whole, int tp_size, int n_stages, int n_chunks, StagePlacement placement) {
    for (int style = 0; style < N_TENSOR_STYLES; style++)
        check_style(whole, tp_size, n_stages, n_chunks, placement, (TensorStyle)style);
}

static void test_shards_make_up_the_model(void **state) {
    (void)state;
    for (int i = 0; i < N_SHARD_CONFIGS; i++) {
        Whole whole = {.config = shard_config(i)};
        whole.table = build(&whole.config, NULL);
        whole.values = initial_values(&whole.table, 1);
        whole.n_owners = malloc((size_t)whole.table.n_flat_elements);
        assert_non_null(whole.n_owners);
        for (int k = 0; k < N_TP_SIZES; k++) {
            for (int n_stages = 1; n_stages <= MOST_STAGES; n_stages++)
                check_layout(&whole, tp_sizes[k], n_stages, 1, PLACEMENT_LOOP);
            for (int n_chunks = 2; n_chunks <= 3; n_chunks++) {
                for (int n_stages = 1; n_stages <= 2; n_stages++) {
                    check_layout(&whole, tp_sizes[k], n_stages, n_chunks, PLACEMENT_LOOP);
                    check_layout(&whole, tp_sizes[k], n_stages, 2, PLACEMENT_V);
                }
            }
        }
        free(whole.values);
        free(whole.n_owners);
        parameters_free(&whole.table);
    }
}

/* Which rows and columns, in numbers. */
static void test_boxes_by_hand(void **state) {
    (void)state;
    ModelConfig config =
        shard_config(1); /* 5 heads of 6, one key/value head, 43 hidden channels, 257 tokens */
    ParameterPart part = shard_part(2, 1, 1, 0);
    ParameterTable table = build(&config, &part);
    const ParameterShard *qkv = &parameter_find(&table, ROLE_QKV_WEIGHT, 2)->shard;
    const ParameterShard *fc = &parameter_find(&table, ROLE_FC_WEIGHT, 2)->shard;
    const ParameterShard *out = &parameter_find(&table, ROLE_ATTENTION_OUT_WEIGHT, 2)->shard;
    const ParameterShard *proj = &parameter_find(&table, ROLE_PROJ_WEIGHT, 2)->shard;
    const ParameterShard *tokens = &parameter_find(&table, ROLE_TOKEN_TABLE, NO_BLOCK)->shard;
    const ParameterShard *norm = &parameter_find(&table, ROLE_NORM1_WEIGHT, 2)->shard;
    /* Heads 3 and 4, and the key/value head that rank 0 owns: keys and values touch, and are one box. */
    assert_int_equal(qkv->n_boxes, 2);
    assert_true(box_equal(&qkv->box[0].box, &(Box){SHAPE(12, 30), {18, 0}}));
    assert_true(box_equal(&qkv->box[1].box, &(Box){SHAPE(12, 30), {30, 0}}));
    assert_true(qkv->box[0].is_owner && qkv->box[0].n_holders == 1);
    assert_true(!qkv->box[1].is_owner && qkv->box[1].first_holder == 0 && qkv->box[1].n_holders == 2);
    assert_int_equal(fc->n_boxes, 2);
    assert_true(box_equal(&fc->box[0].box, &(Box){SHAPE(21, 30), {22, 0}}));
    assert_true(box_equal(&fc->box[1].box, &(Box){SHAPE(21, 30), {43 + 22, 0}}));
    assert_true(out->n_boxes == 1 && box_equal(&out->box[0].box, &(Box){SHAPE(30, 12), {0, 18}}));
    assert_true(proj->n_boxes == 1 && box_equal(&proj->box[0].box, &(Box){SHAPE(30, 21), {0, 22}}));
    assert_true(tokens->n_boxes == 1 && box_equal(&tokens->box[0].box, &(Box){SHAPE(128, 30), {129, 0}}));
    assert_true(norm->n_boxes == 1 && norm->box[0].n_holders == 2 && !norm->box[0].is_owner);
    parameters_free(&table);
}

/* The last stage of a tied model has the token table as its head, behind its blocks, and does not own it. */
static void test_tied_stages(void **state) {
    (void)state;
    ModelConfig config = shard_config(0);
    ParameterPart part = shard_part(2, 0, 3, 2);
    ParameterTable table = build(&config, &part);
    const Parameter *last = &table.parameter[table.n_parameters - 1];
    assert_int_equal(last->role, ROLE_TOKEN_TABLE);
    assert_int_equal(last->number, 0);
    assert_int_equal(last->shape.dim[0], 129);
    assert_int_equal(last->laid_out.dim[0], 136);
    assert_false(last->shard.box[0].is_owner);
    assert_null(parameter_find(&table, ROLE_POSITION_TABLE, NO_BLOCK));
    parameters_free(&table);
    part = shard_part(2, 0, 3, 1);
    table = build(&config, &part);
    assert_null(parameter_find(&table, ROLE_TOKEN_TABLE, NO_BLOCK));
    assert_null(parameter_find(&table, ROLE_FINAL_NORM_WEIGHT, NO_BLOCK));
    parameters_free(&table);
}

static Parameter token_table(const ModelConfig *config, int n_stages, int stage, int n_chunks,
                             StagePlacement placement, bool *is_there, bool *is_alone) {
    Arena arena = {0};
    ParameterPart part = shard_chunks(1, 0, n_stages, stage, n_chunks, placement);
    ParameterTable table = build(config, &part);
    const Parameter *found = parameter_find(&table, ROLE_TOKEN_TABLE, NO_BLOCK);
    Parameter tokens = found ? *found : (Parameter){0};
    int n_tables = 0;
    for (int i = 0; i < table.n_parameters; i++) n_tables += table.parameter[i].role == ROLE_TOKEN_TABLE;
    *is_there = found != NULL;
    assert_int_equal(n_tables, found != NULL);
    if (found) {
        const FlatPiece *piece = &parameters_pieces(&table, &arena)[found - table.parameter];
        assert_int_equal(piece->chunk, tokens.chunk);
        assert_int_equal(piece->is_pair, tokens.is_tied_pair);
        assert_int_equal(piece->n % 64, 0);
        *is_alone = piece->is_alone;
    }
    parameters_free(&table);
    arena_free(&arena);
    return tokens;
}

/* Who has the token table, and whether the other end has it too. */
static void test_tied_pairs(void **state) {
    (void)state;
    ModelConfig tied = shard_config(0), untied = shard_config(1);
    for (int n_chunks = 1; n_chunks <= 2; n_chunks++) {
        for (int stage = 0; stage < 3; stage++) {
            bool is_there, is_alone = false;
            Parameter tokens = token_table(&tied, 3, stage, n_chunks, PLACEMENT_LOOP, &is_there, &is_alone);
            assert_int_equal(is_there, stage != 1);
            if (!is_there) continue;
            assert_true(tokens.is_tied_pair && is_alone && !tokens.is_of_two_chunks);
            assert_int_equal(tokens.chunk, stage == 0 ? 0 : n_chunks - 1);
            assert_int_equal(tokens.shard.box[0].is_owner, stage == 0);
            assert_int_equal(tokens.whole_offset, 0); /* both ends draw the same where they round */
        }
    }
    /* In a V the first stage has both ends, and one table for two chunks. */
    for (int stage = 0; stage < 2; stage++) {
        bool is_there, is_alone = false;
        Parameter tokens = token_table(&tied, 2, stage, 2, PLACEMENT_V, &is_there, &is_alone);
        assert_int_equal(is_there, stage == 0);
        if (!is_there) continue;
        assert_true(!tokens.is_tied_pair && tokens.is_of_two_chunks && is_alone && tokens.chunk == 0);
        assert_true(tokens.shard.box[0].is_owner);
    }
    /* Without a tie, and without a pipeline, a table is like any other. */
    bool is_there, is_alone = true;
    Parameter tokens = token_table(&untied, 2, 0, 1, PLACEMENT_LOOP, &is_there, &is_alone);
    assert_true(is_there && !is_alone && !tokens.is_tied_pair && !tokens.is_of_two_chunks);
    token_table(&untied, 2, 1, 1, PLACEMENT_LOOP, &is_there, &is_alone);
    assert_false(is_there);
    tokens = token_table(&tied, 1, 0, 1, PLACEMENT_LOOP, &is_there, &is_alone);
    assert_true(is_there && !is_alone && !tokens.is_tied_pair && !tokens.is_of_two_chunks);
}

static void test_keys(void **state) {
    (void)state;
    ModelConfig config = shard_config(0);
    ParameterTable table = build(&config, NULL);
    const Parameter *fc = parameter_find_key(&table, (ParameterKey){ROLE_FC_WEIGHT, 1, NO_EXPERT});
    assert_true(fc && fc->block == 1 && fc->expert == NO_EXPERT);
    assert_null(parameter_find_key(&table, (ParameterKey){ROLE_FC_WEIGHT, 1, 0}));
    assert_null(parameter_find(&table, ROLE_FC_WEIGHT, SHARD_LAYERS));
    assert_null(parameter_find(&table, ROLE_FC_WEIGHT, -2));
    assert_null(parameter_find(&table, ROLE_FC_WEIGHT, NO_BLOCK));
    parameters_free(&table);
}

static void test_wrong_parts(void **state) {
    (void)state;
    ModelConfig config = shard_config(0);
    const ParameterPart wrong[] = {
        {.n_ranks = 0, .n_chunks = 1, .chunk = {{.end_block = 1}}},
        {.n_ranks = 2, .rank = 2, .n_chunks = 1, .chunk = {{.end_block = 1}}},
        {.n_ranks = 2, .rank = -1, .n_chunks = 1, .chunk = {{.end_block = 1}}},
        {.n_ranks = 1},
        {.n_ranks = 1, .n_chunks = SCHEDULE_MAX_CHUNKS + 1},
        {.n_ranks = 1, .n_chunks = 1, .chunk = {{.first_block = -1, .end_block = 1}}},
        {.n_ranks = 1, .n_chunks = 1, .chunk = {{.first_block = 3, .end_block = 2}}},
        {.n_ranks = 1, .n_chunks = 1, .chunk = {{.first_block = 0, .end_block = SHARD_LAYERS + 1}}},
        /* chunks that share a block, go backwards, begin or end the model in the middle */
        {.n_ranks = 1, .n_chunks = 2, .chunk = {{0, 2, true, false}, {1, 3, false, true}}},
        {.n_ranks = 1, .n_chunks = 2, .chunk = {{2, 3, false, false}, {0, 1, false, false}}},
        {.n_ranks = 1, .n_chunks = 2, .chunk = {{0, 1, true, false}, {2, 3, true, false}}},
        {.n_ranks = 1, .n_chunks = 2, .chunk = {{0, 1, false, true}, {2, 3, false, true}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ParameterTable table;
        Error error = {0};
        assert_int_equal(parameters_build_part(&table, &config, &wrong[i], &error), STATUS_FAILED);
        parameters_free(&table);
    }
}

typedef struct {
    const ParameterTable *table;
    float *flat;
    int n_taken, n_wanted;
} Taker;

static Status take(void *context, const Parameter *parameter, const float *values, Error *error) {
    Taker *taker = context;
    assert_ptr_equal(parameter, &taker->table->parameter[taker->n_taken]); /* in table order */
    if (taker->n_taken == taker->n_wanted) return error_failed(error, "enough");
    taker->n_taken++;
    memcpy(taker->flat + parameter->flat_offset, values,
           sizeof *values * (size_t)shape_count(parameter->shape));
    return STATUS_OK;
}

/* One at a time they are the values of the flat array; who fails gets no more. */
static void test_initial_values_one_at_a_time(void **state) {
    (void)state;
    ModelConfig config = shard_config(0);
    ParameterTable table = build(&config, NULL);
    size_t n_bytes = sizeof(float) * (size_t)table.n_flat_elements;
    float *want = initial_values(&table, 1), *got = calloc(1, n_bytes + 1);
    assert_non_null(got);
    Taker all = {&table, got, 0, table.n_parameters}, few = {&table, got, 0, 2};
    Error error = {0};
    assert_int_equal(parameters_initialise_each(&table, SEED, 2, take, &all, &error), STATUS_OK);
    assert_int_equal(all.n_taken, table.n_parameters);
    for (int i = 0; i < table.n_parameters; i++) {
        const Parameter *parameter = &table.parameter[i];
        assert_memory_equal(got + parameter->flat_offset, want + parameter->flat_offset,
                            sizeof(float) * (size_t)shape_count(parameter->shape));
    }
    assert_int_equal(parameters_initialise_each(&table, SEED, 1, take, &few, &error), STATUS_FAILED);
    assert_int_equal(few.n_taken, 2);
    assert_string_equal(error.text, "enough");
    free(got);
    free(want);
    parameters_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_make_up_the_model),
        cmocka_unit_test(test_boxes_by_hand),
        cmocka_unit_test(test_tied_stages),
        cmocka_unit_test(test_tied_pairs),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_wrong_parts),
        cmocka_unit_test(test_initial_values_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
