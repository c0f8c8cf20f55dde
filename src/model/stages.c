/* All blocks are alike, so a stage is its number of blocks, and what a stage costs is a straight line: so
 * much for embedding or head, so much for each block. Blocks that are given out one by one, each to whoever
 * is the least afterwards, make the largest as small as can be: were there a better cut, the largest stage of
 * this one would have a block less there and some other stage one more, and that one would have been the
 * least when the block was given away. That holds under limits too. So it is done three times: by FLOPs,
 * which gives the limit of FLOPs; by memory within it, which gives that of memory; and by FLOPs within both.
 *
 * Then a stage gives out its blocks to its chunks in the same way. */
#include "model/stages.h"

#include "model/model_flops.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* What something costs with n blocks: rest + n * each. */
typedef struct {
    double rest, each;
} Line;

static double line_at(Line line, int n) {
    return line.rest + (double)n * line.each;
}

typedef struct {
    Line flops, bytes;
    int n; /* blocks */
} Load;

typedef struct {
    double flops, bytes;
} Limits;

static bool is_within(const Load *load, int n, Limits limits) {
    return line_at(load->flops, n) <= limits.flops && line_at(load->bytes, n) <= limits.bytes;
}

/* Give n_blocks to the loads, at least n_least to each, one by one to the one that is then the least. */
static void give_out(Load *loads, int n_loads, int n_blocks, int n_least, bool by_bytes, Limits limits) {
    for (int i = 0; i < n_loads; i++) loads[i].n = n_least;
    for (int left = n_blocks - n_loads * n_least; left > 0; left--) {
        int best = -1;
        double least = INFINITY, second = INFINITY;
        for (int i = 0; i < n_loads; i++) {
            const Load *load = &loads[i];
            double flops = line_at(load->flops, load->n + 1), bytes = line_at(load->bytes, load->n + 1);
            double value = by_bytes ? bytes : flops, other = by_bytes ? flops : bytes;
            if (!is_within(load, load->n + 1, limits)) continue;
            if (best >= 0 && (value > least || (value == least && other >= second))) continue;
            best = i;
            least = value;
            second = other;
        }
        if (best < 0) return; /* cannot be: a cut within the limits is known */
        loads[best].n++;
    }
}

/* ---- what stages cost */

/* Of a whole model on the first rank of tp; activations are what a backward waits for, of a token. */
typedef struct {
    PartFlops flops;
    double n_block, n_embedding, n_head;       /* parameters */
    double kept_block, kept_border, kept_head; /* activations, in bytes */
} ModelCosts;

static double count_rank(const ModelConfig *config, ShardRule rule, Shape whole, int n_tp) {
    ParameterShard shard = parameter_shard_cut(config, rule, whole, n_tp, 0);
    return (double)shape_count(parameter_shard_shape(&shard, rule, whole));
}

/* Of a block: two normed rows, two sums, queries with keys and values, what attention makes, the hidden
 * channels before and behind their activation; f32. */
static ModelCosts model_costs(const ModelConfig *config, const StagesOptions *options) {
    int n_tp = options->n_tp;
    ModelCosts costs = {.flops = model_flops_parts(config, options->T, n_tp)};
    double h = (double)config->n_channels, n_halves = config->mlp == MLP_SWIGLU ? 2.0 : 1.0;
    int64_t size = config_head_size(config), qkv = (config->n_heads + 2 * config->n_kv_heads) * size;
    int64_t hidden = config->n_hidden * (int64_t)n_halves;
    double n_qkv = count_rank(config, SHARD_QKV_ROWS, SHAPE(qkv, 1), n_tp);
    double n_queries = count_rank(config, SHARD_HEAD_COLUMNS, SHAPE(1, config->n_heads * size), n_tp);
    double n_hidden = count_rank(config, SHARD_HIDDEN_ROWS, SHAPE(hidden, 1), n_tp);
    double n_passed =
        n_hidden; /* of parameters all experts count, of what a token leaves those that it passes */
    if (config->n_experts) {
        double share = (double)config_n_expert_blocks(config) / (double)config->n_layers;
        double n_expert =
            count_rank(config, SHARD_HIDDEN_COLUMNS, SHAPE(1, config->expert_hidden), n_tp) * n_halves;
        n_hidden = (1.0 - share) * n_hidden +
                   share * n_expert * (double)(config->n_experts + config->n_shared_experts);
        n_passed = (1.0 - share) * n_passed +
                   share * n_expert * (double)(config->n_chosen + config->n_shared_experts);
    }
    double n_tokens = count_rank(config, SHARD_TOKEN_ROWS, SHAPE(config->vocabulary, 1), n_tp);
    costs.n_block = h * (n_qkv + n_queries + n_hidden + n_hidden / n_halves) + 2.0 * h;
    costs.n_embedding = h * n_tokens;
    if (config->position == POSITION_LEARNED) costs.n_embedding += h * (double)config->context;
    costs.n_head = h * n_tokens + h;
    double f32 = (double)sizeof(float);
    costs.kept_block = f32 * (4.0 * h + n_qkv + n_queries + n_passed + n_passed / n_halves);
    double n_depth = (double)config_n_depth_blocks(config, 0, (int)config->n_layers);
    if (n_depth > 0.0) { /* where some positions go by, a block is the mean of all blocks */
        double share = (double)config_depth_rows(config, options->T) / (double)options->T;
        costs.kept_block *= 1.0 - n_depth / (double)config->n_layers * (1.0 - share);
    }
    costs.kept_border = f32 * h;
    costs.kept_head = 2.0 * f32 * h;
    return costs;
}

/* How many micro-batches a stage holds, as if each had all of its chunks. */
static double n_held(const StagesOptions *options, int stage) {
    const ScheduleShape *shape = &options->shape;
    int n = schedule_in_flight(options->schedule, shape, stage);
    return n < 0 ? (double)shape->n_micro_batches : (double)n / (double)shape->n_chunks;
}

/* A virtual stage; `n_held` micro-batches are in it. */
static Load chunk_load(const ModelConfig *config, const StagesOptions *options, const ModelCosts *costs,
                       int virtual_stage, double held) {
    const ScheduleShape *shape = &options->shape;
    int last = shape->n_stages * shape->n_chunks - 1;
    StagePlacement placement = schedule_info(options->schedule)->placement;
    double state = options->state_bytes > 0.0 ? options->state_bytes : 16.0;
    double n_tokens = held * (double)options->B * (double)options->T;
    Load load = {.flops = {.each = costs->flops.block},
                 .bytes = {.rest = n_tokens * costs->kept_border,
                           .each = state * costs->n_block + n_tokens * costs->kept_block}};
    if (virtual_stage == 0) {
        load.flops.rest += costs->flops.embedding;
        load.bytes.rest += state * costs->n_embedding;
    }
    if (virtual_stage == last) {
        bool is_here = config->tied && placement_stage(placement, shape, 0) ==
                                           placement_stage(placement, shape, last); /* there is one table */
        load.flops.rest += costs->flops.head;
        load.bytes.rest += (is_here ? 0.0 : state * costs->n_head) + n_tokens * costs->kept_head;
    }
    return load;
}

/* ---- cutting */

/* The most stages up to `most` that the ranks can be divided into; below 1: none. */
static int fewer_stages(const StagesOptions *options, int most) {
    while (most > 1 && options->n_ranks && options->n_ranks % most) most--;
    return most;
}

/* "--pp 3 --chunks 2 or --pp 7 --schedule 1f1b": the nearest shapes that have a block for every chunk. */
static const char *nearest_shapes(const StagesOptions *options, int n_blocks, Arena *arena) {
    const ScheduleShape *shape = &options->shape;
    const char *text = "";
    ScheduleShape fewer_chunks = *shape;
    int n_stages = fewer_stages(options, n_blocks / shape->n_chunks);
    fewer_chunks.n_chunks = n_blocks / shape->n_stages;
    Error ignored = {0};
    if (n_stages > 1) {
        text = shape->n_chunks > 1 ? arena_printf(arena, "--pp %d --chunks %d", n_stages, shape->n_chunks)
                                   : arena_printf(arena, "--pp %d", n_stages);
    } else if (shape->n_chunks == 1) { /* one stage has no schedule */
        text = options->schedule == SCHEDULE_1F1B ? "--pp 1" : "--pp 1 without --schedule";
    }
    if (shape->n_chunks == 1) return text;
    const char * or = *text ? " or " : "";
    if (fewer_chunks.n_chunks < 1) { /* nor are there blocks for as many stages of one chunk */
        n_stages = fewer_stages(options, n_blocks);
        return n_stages > 1 ? arena_printf(arena, "%s%s--pp %d --schedule 1f1b", text, or, n_stages)
                            : arena_printf(arena, "%s%s--pp 1 without --schedule and --chunks", text, or);
    }
    if (schedule_check_shape(options->schedule, &fewer_chunks, &ignored) == STATUS_OK)
        return arena_printf(arena, "%s%s--pp %d --chunks %d", text, or, shape->n_stages,
                            fewer_chunks.n_chunks);
    return arena_printf(arena, "%s%s--pp %d --schedule 1f1b", text, or, shape->n_stages);
}

static Status check_options(const ModelConfig *config, const StagesOptions *options, Arena *arena,
                            Error *error) {
    const ScheduleShape *shape = &options->shape;
    TRY(schedule_check_shape(options->schedule, shape, error));
    int64_t n_virtual = (int64_t)shape->n_stages * shape->n_chunks;
    if (n_virtual <= config->n_layers) return STATUS_OK;
    const char *nearest = nearest_shapes(options, (int)config->n_layers, arena);
    if (shape->n_chunks == 1)
        return error_user(
            error, "--pp %d makes more stages than the model's %lld blocks; choose %s, or --layers %lld",
            shape->n_stages, (long long)config->n_layers, nearest, (long long)n_virtual);
    return error_user(error,
                      "--pp %d with %d chunks a stage makes %lld parts of a model of %lld blocks, and each "
                      "needs one; choose %s%s--layers %lld",
                      shape->n_stages, shape->n_chunks, (long long)n_virtual, (long long)config->n_layers,
                      nearest, *nearest ? ", or " : "", (long long)n_virtual);
}

/* The virtual stages with their loads, of no blocks yet; a stage's load is the sum of its chunks'. */
static Load *open_stages(Stages *stages, const ModelConfig *config, const StagesOptions *options,
                         Arena *arena) {
    const ScheduleShape *shape = &options->shape;
    ModelCosts costs = model_costs(config, options);
    *stages = (Stages){.shape = *shape,
                       .placement = schedule_info(options->schedule)->placement,
                       .n_virtual = shape->n_stages * shape->n_chunks};
    stages->virtual_stage = ARENA_ARRAY(arena, VirtualStage, stages->n_virtual);
    Load *loads = ARENA_ARRAY(arena, Load, stages->n_virtual);
    for (int i = 0; i < stages->n_virtual; i++) {
        VirtualStage *stage = &stages->virtual_stage[i];
        stage->stage = placement_stage(stages->placement, shape, i);
        stage->chunk = placement_chunk(stages->placement, shape, i);
        loads[i] = chunk_load(config, options, &costs, i, n_held(options, stage->stage));
    }
    return loads;
}

/* The blocks of every virtual stage are known: which ones they are, and what they come to. */
static void fill_stages(Stages *stages, const Load *loads) {
    int first = 0;
    for (int i = 0; i < stages->n_virtual; i++) {
        VirtualStage *stage = &stages->virtual_stage[i];
        stage->part = (ParameterChunk){.first_block = first,
                                       .end_block = first + loads[i].n,
                                       .has_embedding = i == 0,
                                       .has_head = i == stages->n_virtual - 1};
        stage->flops = line_at(loads[i].flops, loads[i].n);
        stage->bytes = line_at(loads[i].bytes, loads[i].n);
        first += loads[i].n;
    }
}

static Limits largest_of(const Load *loads, int n_loads) {
    Limits largest = {0};
    for (int i = 0; i < n_loads; i++) {
        largest.flops = fmax(largest.flops, line_at(loads[i].flops, loads[i].n));
        largest.bytes = fmax(largest.bytes, line_at(loads[i].bytes, loads[i].n));
    }
    return largest;
}

/* The blocks of a stage to its chunks. */
static void give_to_chunks(const Stages *stages, int stage, int n_blocks, Load *loads, Load *chunks) {
    const ScheduleShape *shape = &stages->shape;
    for (int c = 0; c < shape->n_chunks; c++)
        chunks[c] = loads[placement_virtual(stages->placement, shape, stage, c)];
    give_out(chunks, shape->n_chunks, n_blocks, 1, false, (Limits){INFINITY, INFINITY});
    for (int c = 0; c < shape->n_chunks; c++)
        loads[placement_virtual(stages->placement, shape, stage, c)].n = chunks[c].n;
}

Status stages_balance(Stages *stages, const ModelConfig *config, const StagesOptions *options, Arena *arena,
                      Error *error) {
    const ScheduleShape *shape = &options->shape;
    TRY(check_options(config, options, arena, error));
    Load *loads = open_stages(stages, config, options, arena);
    int p = shape->n_stages, v = shape->n_chunks, n_blocks = (int)config->n_layers;
    Load *whole = ARENA_ARRAY(arena, Load, p), *chunks = ARENA_ARRAY(arena, Load, v);
    for (int i = 0; i < stages->n_virtual; i++) {
        Load *stage = &whole[stages->virtual_stage[i].stage];
        stage->flops = (Line){stage->flops.rest + loads[i].flops.rest, loads[i].flops.each};
        stage->bytes = (Line){stage->bytes.rest + loads[i].bytes.rest, loads[i].bytes.each};
    }
    Limits limits = {INFINITY, INFINITY};
    give_out(whole, p, n_blocks, v, false, limits);
    limits.flops = largest_of(whole, p).flops;
    give_out(whole, p, n_blocks, v, true, limits);
    limits.bytes = largest_of(whole, p).bytes;
    give_out(whole, p, n_blocks, v, false, limits);
    for (int stage = 0; stage < p; stage++) give_to_chunks(stages, stage, whole[stage].n, loads, chunks);
    fill_stages(stages, loads);
    return STATUS_OK;
}

/* ---- as the user says */

/* The next number of the list, behind which `*text` then stands; -1 where there is none. */
static int next_count(const char **text) {
    char *end;
    if (**text < '0' || **text > '9') return -1;
    errno = 0;
    long value = strtol(*text, &end, 10);
    if (errno || value > INT32_MAX / 2 || (*end && *end != ',')) return -1;
    *text = *end && end[1] ? end + 1 : end; /* behind a last comma there is no number, which is said of it */
    return (int)value;
}

Status stages_parse(Stages *stages, const char *text, const ModelConfig *config, const StagesOptions *options,
                    Arena *arena, Error *error) {
    Stages balanced;
    TRY(stages_balance(&balanced, config, options, arena, error));
    const char *example = stages_text(&balanced, arena), *at = text;
    Load *loads = open_stages(stages, config, options, arena);
    int n = 0;
    int64_t sum = 0;
    do {
        int count = next_count(&at);
        if (count < 1)
            return error_user(
                error,
                "--stages %s: number %d is not a number of blocks, 1 or more; give one for each "
                "of %d stages, separated by commas, as %s",
                text, n + 1, stages->n_virtual, example);
        if (n < stages->n_virtual) loads[n].n = count;
        sum += count;
        n++;
    } while (*at);
    if (n != stages->n_virtual)
        return error_user(
            error, "--stages %s names %d stage%s; --pp %d%s has %d in the order of the model, as %s", text, n,
            n == 1 ? "" : "s", stages->shape.n_stages,
            stages->shape.n_chunks > 1 ? arena_printf(arena, " with %d chunks each", stages->shape.n_chunks)
                                       : "",
            stages->n_virtual, example);
    if (sum != config->n_layers)
        return error_user(error, "--stages %s has %lld blocks and the model %lld; as %s, they come to that",
                          text, (long long)sum, (long long)config->n_layers, example);
    fill_stages(stages, loads);
    return STATUS_OK;
}

/* ---- what came out */

const VirtualStage *stages_chunk(const Stages *stages, int stage, int chunk) {
    return &stages->virtual_stage[placement_virtual(stages->placement, &stages->shape, stage, chunk)];
}

ParameterPart stages_part(const Stages *stages, int stage, int n_tp, int tp) {
    ParameterPart part = {.n_ranks = n_tp, .rank = tp, .n_chunks = stages->shape.n_chunks};
    for (int chunk = 0; chunk < part.n_chunks; chunk++)
        part.chunk[chunk] = stages_chunk(stages, stage, chunk)->part;
    return part;
}

/* Of a stage with all of its chunks. */
static double stage_flops(const Stages *stages, int stage) {
    double flops = 0.0;
    for (int chunk = 0; chunk < stages->shape.n_chunks; chunk++)
        flops += stages_chunk(stages, stage, chunk)->flops;
    return flops;
}

static double mean_flops(const Stages *stages) {
    double total = 0.0;
    for (int i = 0; i < stages->n_virtual; i++) total += stages->virtual_stage[i].flops;
    return total / stages->shape.n_stages;
}

double stages_imbalance(const Stages *stages) {
    double slowest = 0.0;
    for (int i = 0; i < stages->shape.n_stages; i++) slowest = fmax(slowest, stage_flops(stages, i));
    return slowest / mean_flops(stages);
}

const char *stages_text(const Stages *stages, Arena *arena) {
    const char *text = "";
    for (int i = 0; i < stages->n_virtual; i++) {
        const ParameterChunk *part = &stages->virtual_stage[i].part;
        text = arena_printf(arena, "%s%s%d", text, i ? "," : "", part->end_block - part->first_block);
    }
    return text;
}
