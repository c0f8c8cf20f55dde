/* Order: embeddings, blocks, final norm, head: the order in which a forward pass meets them, so that the
 * backward finishes gradients from the end of the flat array to its start. A part of several chunks has them
 * one behind the other.
 *
 * All parameters of the model are described first, and those of the part then laid out: so a parameter's
 * number, its initial values and whether the sizes can be are the same for every part. */
#include "model/parameters.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "base/text/format.h"
#include "graph/plan.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <string.h>

/* Elements of a parameter with the padding that keeps the next one aligned; -1 when they overflow. */
static int64_t padded_count(Shape shape) {
    enum { ALIGN = PLAN_ALIGNMENT / 4 };
    int64_t count = shape_count(shape);
    return count < 0 || count > INT64_MAX / 16 - ALIGN ? -1 : (count + ALIGN - 1) / ALIGN * ALIGN;
}

/* Halves of experts' rows lie one behind the other, which is what a layer takes; files know them apart, since
 * ranks have some rows of each. */
static Shape laid_out(ParameterRole role, Shape shape) {
    if (role == ROLE_EXPERT_FC_WEIGHT && shape.n_dims == 4 && shape.dim[2] <= INT64_MAX / 2)
        return SHAPE(shape.dim[0], shape.dim[1] * shape.dim[2], shape.dim[3]);
    if (role == ROLE_EXPERT_FC_BIAS && shape.n_dims == 3)
        return SHAPE(shape.dim[0], shape.dim[1] * shape.dim[2]);
    bool has_tokens = role == ROLE_TOKEN_TABLE || role == ROLE_HEAD_WEIGHT;
    int64_t multiple = shape.dim[0] < LARGE_VOCABULARY ? VOCABULARY_MULTIPLE : LARGE_VOCABULARY_MULTIPLE;
    if (has_tokens && shape.dim[0] <= INT64_MAX - multiple)
        shape.dim[0] = (shape.dim[0] + multiple - 1) / multiple * multiple;
    return shape;
}

/* The parameters of the whole model, in order, as they are described. */
typedef struct {
    Arena *arena; /* of names */
    Parameter *parameter;
    int n_parameters;
    int64_t n_flat; /* elements of all so far; says nothing once they overflow */
} Builder;

static Parameter *add(Builder *builder, ParameterRole role, int block, const char *name, Shape shape) {
    Parameter *parameter = &builder->parameter[builder->n_parameters];
    *parameter = (Parameter){.role = role,
                             .block = block,
                             .expert = NO_EXPERT,
                             .number = builder->n_parameters++,
                             .whole = shape,
                             .whole_offset = builder->n_flat,
                             .dtype = DTYPE_F32};
    int64_t count = padded_count(laid_out(role, shape));
    if (count >= 0 && builder->n_flat <= INT64_MAX - count) builder->n_flat += count;
    parameter->name = block == NO_BLOCK ? arena_strdup(builder->arena, name)
                                        : arena_printf(builder->arena, "h.%d.%s", block, name);
    return parameter;
}

static void add_matrix(Builder *builder, ParameterRole role, int block, const char *name, int64_t outputs,
                       int64_t inputs, ShardRule rule, float deviation) {
    Parameter *parameter = add(builder, role, block, name, SHAPE(outputs, inputs));
    parameter->rule = rule;
    parameter->decays = true;
    parameter->init = INIT_NORMAL;
    parameter->deviation = deviation;
    parameter->is_transposed = block != NO_BLOCK;
}

static void add_vector(Builder *builder, ParameterRole role, int block, const char *name, int64_t count,
                       ShardRule rule, Initializer init) {
    Parameter *parameter = add(builder, role, block, name, SHAPE(count));
    parameter->rule = rule;
    parameter->init = init;
}

static void add_norm(Builder *builder, const ModelConfig *config, ParameterRole weight, ParameterRole bias,
                     int block, const char *weight_name, const char *bias_name) {
    add_vector(builder, weight, block, weight_name, config->n_channels, SHARD_NONE, INIT_ONE);
    if (config->bias && config->norm == NORM_LAYERNORM) {
        add_vector(builder, bias, block, bias_name, config->n_channels, SHARD_NONE, INIT_ZERO);
    }
}

/* Experts, as the MLP that they stand for: each one tensor a role, with the experts as its first dim. */
static void add_expert_weight(Builder *builder, ParameterRole role, int block, const char *name, Shape shape,
                              ShardRule rule, float deviation) {
    Parameter *parameter = add(builder, role, block, name, shape);
    parameter->rule = rule;
    parameter->decays = true;
    parameter->init = INIT_NORMAL;
    parameter->deviation = deviation;
}

static void add_expert_bias(Builder *builder, ParameterRole role, int block, const char *name, Shape shape,
                            ShardRule rule) {
    Parameter *parameter = add(builder, role, block, name, shape);
    parameter->rule = rule;
    parameter->init = INIT_ZERO;
}

static void add_experts(Builder *builder, const ModelConfig *config, int block, float deviation,
                        float residual_deviation) {
    int64_t E = config->n_experts, F = config->expert_hidden, C = config->n_channels;
    bool is_gated = config->mlp == MLP_SWIGLU;
    add_expert_weight(builder, ROLE_ROUTER_WEIGHT, block, "moe.router.weight", SHAPE(E, C), SHARD_ALIKE,
                      deviation);
    if (config->router == ROUTER_NOISY_TOPK)
        add_expert_weight(builder, ROLE_ROUTER_NOISE, block, "moe.router.noise.weight", SHAPE(E, C),
                          SHARD_ALIKE, deviation);
    add_expert_weight(builder, ROLE_EXPERT_FC_WEIGHT, block, "moe.experts.c_fc.weight",
                      is_gated ? SHAPE(E, 2, F, C) : SHAPE(E, F, C), SHARD_EXPERT_ROWS, deviation);
    if (config->bias)
        add_expert_bias(builder, ROLE_EXPERT_FC_BIAS, block, "moe.experts.c_fc.bias",
                        is_gated ? SHAPE(E, 2, F) : SHAPE(E, F), SHARD_EXPERT_COLUMNS);
    add_expert_weight(builder, ROLE_EXPERT_PROJ_WEIGHT, block, "moe.experts.c_proj.weight", SHAPE(E, C, F),
                      SHARD_EXPERT_COLUMNS, residual_deviation);
    if (config->bias)
        add_expert_bias(builder, ROLE_EXPERT_PROJ_BIAS, block, "moe.experts.c_proj.bias", SHAPE(E, C),
                        SHARD_FIRST);
}

static void add_mlp(Builder *builder, const ModelConfig *config, int block, int64_t n_hidden,
                    const char *const name[4], float deviation, float residual_deviation) {
    int64_t channels = config->n_channels, rows = n_hidden * (config->mlp == MLP_SWIGLU ? 2 : 1);
    add_matrix(builder, ROLE_FC_WEIGHT, block, name[0], rows, channels, SHARD_HIDDEN_ROWS, deviation);
    if (config->bias) add_vector(builder, ROLE_FC_BIAS, block, name[1], rows, SHARD_HIDDEN_ROWS, INIT_ZERO);
    add_matrix(builder, ROLE_PROJ_WEIGHT, block, name[2], channels, n_hidden, SHARD_HIDDEN_COLUMNS,
               residual_deviation);
    if (config->bias) add_vector(builder, ROLE_PROJ_BIAS, block, name[3], channels, SHARD_FIRST, INIT_ZERO);
}

/* The router of a block that some positions go by, and the predictor of what it chooses (ops/depth/depth.h).
 * A score is the gate of what the block adds, so scores begin as large as the stream's channels are. */
static void add_depth(Builder *builder, const ModelConfig *config, int block) {
    int64_t channels = config->n_channels;
    add_vector(builder, ROLE_DEPTH_ROUTER, block, "depth.router.weight", channels, SHARD_NONE, INIT_NORMAL);
    builder->parameter[builder->n_parameters - 1].deviation = 1.0f / sqrtf((float)channels);
    add_vector(builder, ROLE_DEPTH_PREDICTOR, block, "depth.predictor.weight", channels, SHARD_NONE,
               INIT_ZERO);
    add_vector(builder, ROLE_DEPTH_PREDICTOR_BIAS, block, "depth.predictor.bias", 1, SHARD_NONE, INIT_ZERO);
}

/* GPT-2's initialisation: 0.02, and the two projections that write into the residual stream scaled down by
 * the square root of how many of them add up there. */
static void add_block(Builder *builder, const ModelConfig *config, int block) {
    const float deviation = 0.02f;
    if (config_is_depth_block(config, block)) add_depth(builder, config, block);
    float residual_deviation = deviation / sqrtf(2.0f * (float)config->n_layers);
    int64_t channels = config->n_channels, heads = config->n_heads + 2 * config->n_kv_heads;
    int64_t qkv = heads * config_head_size(config);
    static const char *const mlp_names[] = {"mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
                                            "mlp.c_proj.bias"};
    static const char *const shared_names[] = {"moe.shared.c_fc.weight", "moe.shared.c_fc.bias",
                                               "moe.shared.c_proj.weight", "moe.shared.c_proj.bias"};
    add_norm(builder, config, ROLE_NORM1_WEIGHT, ROLE_NORM1_BIAS, block, "ln_1.weight", "ln_1.bias");
    add_matrix(builder, ROLE_QKV_WEIGHT, block, "attn.c_attn.weight", qkv, channels, SHARD_QKV_ROWS,
               deviation);
    if (config->bias)
        add_vector(builder, ROLE_QKV_BIAS, block, "attn.c_attn.bias", qkv, SHARD_QKV_ROWS, INIT_ZERO);
    add_matrix(builder, ROLE_ATTENTION_OUT_WEIGHT, block, "attn.c_proj.weight", channels, channels,
               SHARD_HEAD_COLUMNS, residual_deviation);
    if (config->bias) {
        add_vector(builder, ROLE_ATTENTION_OUT_BIAS, block, "attn.c_proj.bias", channels, SHARD_FIRST,
                   INIT_ZERO);
    }
    add_norm(builder, config, ROLE_NORM2_WEIGHT, ROLE_NORM2_BIAS, block, "ln_2.weight", "ln_2.bias");
    if (!config_has_experts(config, block)) {
        add_mlp(builder, config, block, config->n_hidden, mlp_names, deviation, residual_deviation);
        return;
    }
    if (config->n_shared_experts)
        add_mlp(builder, config, block, config->n_shared_experts * config->expert_hidden, shared_names,
                deviation, residual_deviation);
    add_experts(builder, config, block, deviation, residual_deviation);
}

static void add_model(Builder *builder, const ModelConfig *config) {
    add_matrix(builder, ROLE_TOKEN_TABLE, NO_BLOCK, "wte.weight", config->vocabulary, config->n_channels,
               SHARD_TOKEN_ROWS, 0.02f);
    if (config->position == POSITION_LEARNED) {
        add_matrix(builder, ROLE_POSITION_TABLE, NO_BLOCK, "wpe.weight", config->context, config->n_channels,
                   SHARD_FIRST, 0.02f);
    }
    for (int block = 0; block < config->n_layers; block++) add_block(builder, config, block);
    add_norm(builder, config, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK, "ln_f.weight",
             "ln_f.bias");
    if (!config->tied) {
        add_matrix(builder, ROLE_HEAD_WEIGHT, NO_BLOCK, "lm_head.weight", config->vocabulary,
                   config->n_channels, SHARD_TOKEN_ROWS, 0.02f);
    }
}

/* ---- the part */

static int *index_at(const ParameterTable *table, ParameterKey key) {
    return &table->index[(key.block + 1) * N_ROLES + (int)key.role];
}

bool role_is_of_experts(ParameterRole role) {
    return role >= ROLE_EXPERT_FC_WEIGHT && role <= ROLE_EXPERT_PROJ_BIAS;
}

/* Experts lie along the first dim: of what is here, those of this rank. */
static void cut_experts(Parameter *parameter, const ParameterPart *part) {
    if (part->n_expert_ranks <= 1 || !role_is_of_experts(parameter->role)) return;
    ShardSpan span = shard_span(parameter->whole.dim[0], part->n_expert_ranks, part->expert_rank);
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        Box *box = &parameter->shard.box[i].box;
        box->offset[0] = span.first;
        box->shape.dim[0] = span.n;
    }
    if (parameter->shape.dim[0]) parameter->shape.dim[0] = span.n;
    parameter->group = FLAT_EXPERTS;
    parameter->whole_offset += span.first * (shape_count(parameter->whole) / parameter->whole.dim[0]);
}

/* Take one of the model's parameters into the table; false when the sizes overflow. */
static bool place(ParameterTable *table, const ModelConfig *config, const ParameterPart *part,
                  const Parameter *described, int chunk, bool is_owner) {
    *index_at(table, (ParameterKey){described->role, described->block, described->expert}) =
        table->n_parameters + 1;
    Parameter *parameter = &table->parameter[table->n_parameters++];
    *parameter = *described;
    parameter->chunk = chunk;
    parameter->rule = shard_rule_in(part->style, parameter->rule, parameter->whole);
    parameter->shard =
        parameter_shard_cut(config, parameter->rule, parameter->whole, part->n_ranks, part->rank);
    for (int i = 0; i < parameter->shard.n_boxes && !is_owner; i++) parameter->shard.box[i].is_owner = false;
    if (parameter->rule == SHARD_QKV_ROWS)
        parameter->head_elements =
            config_head_size(config) * (shape_count(parameter->whole) / parameter->whole.dim[0]);
    parameter->shape = parameter_shard_shape(&parameter->shard, parameter->rule, parameter->whole);
    cut_experts(parameter, part);
    parameter->laid_out = laid_out(parameter->role, parameter->shape);
    int64_t count = padded_count(parameter->laid_out);
    if (count < 0 || table->n_flat_elements > INT64_MAX / 16 - count) return false;
    parameter->flat_offset = table->n_flat_elements;
    table->n_elements += shape_count(parameter->shape);
    if (parameter->role == ROLE_ROUTER_WEIGHT && config->router == ROUTER_BALANCE_FREE)
        table->router_bias.shape.dim[0]++;
    table->n_flat_elements += count;
    return true;
}

static bool is_in_chunk(const ParameterChunk *chunk, const Parameter *parameter) {
    if (parameter->block != NO_BLOCK)
        return parameter->block >= chunk->first_block && parameter->block < chunk->end_block;
    bool is_embedding = parameter->role == ROLE_TOKEN_TABLE || parameter->role == ROLE_POSITION_TABLE;
    return is_embedding ? chunk->has_embedding : chunk->has_head;
}

/* Who has what of a tied token table: the chunk with the embedding and the one with the head, or -1. */
typedef struct {
    int embedding, head;
} TiedChunks;

static TiedChunks tied_chunks(const ModelConfig *config, const ParameterPart *part) {
    TiedChunks tied = {-1, -1};
    for (int i = 0; i < part->n_chunks && config->tied; i++) {
        if (part->chunk[i].has_embedding) tied.embedding = i;
        if (part->chunk[i].has_head) tied.head = i;
    }
    return tied;
}

static bool place_all(ParameterTable *table, const ModelConfig *config, const ParameterPart *part,
                      const Builder *model) {
    TiedChunks tied = tied_chunks(config, part);
    for (int chunk = 0; chunk < part->n_chunks; chunk++) {
        for (int i = 0; i < model->n_parameters; i++) {
            if (is_in_chunk(&part->chunk[chunk], &model->parameter[i]) &&
                !place(table, config, part, &model->parameter[i], chunk, true))
                return false;
        }
        /* The last stage of a tied model has the table of the first as its head. */
        bool has_copy = tied.head == chunk && tied.embedding < 0;
        if (has_copy && !place(table, config, part, &model->parameter[0], chunk, false)) return false;
    }
    int at = *index_at(table, (ParameterKey){ROLE_TOKEN_TABLE, NO_BLOCK, NO_EXPERT});
    if (!at) return true;
    Parameter *tokens = &table->parameter[at - 1];
    tokens->is_tied_pair = (tied.embedding < 0) != (tied.head < 0);
    tokens->is_of_two_chunks = tied.embedding >= 0 && tied.head >= 0 && tied.embedding != tied.head;
    return true;
}

/* Elements of the whole model; false when they are more than can be. The message wants to know of them all
 * the same. */
static bool count_elements(ParameterTable *table, const Builder *model, double *approximate) {
    bool is_sound = true;
    *approximate = 0.0;
    for (int i = 0; i < model->n_parameters; i++) {
        Shape shape = model->parameter[i].whole;
        int64_t count = shape_count(shape);
        double product = 1.0;
        for (int k = 0; k < shape.n_dims; k++) product *= (double)shape.dim[k];
        *approximate += product;
        is_sound = is_sound && count >= 0 && table->n_whole_elements <= INT64_MAX / 16 - count;
        if (is_sound) table->n_whole_elements += count;
    }
    return is_sound;
}

/* Chunks ascend, and do not share anything. */
static bool is_chunk_sound(const ModelConfig *config, const ParameterPart *part, int index) {
    const ParameterChunk *chunk = &part->chunk[index];
    int from = index > 0 ? part->chunk[index - 1].end_block : 0;
    bool is_first = index == 0, is_last = index == part->n_chunks - 1;
    return chunk->first_block >= from && chunk->first_block <= chunk->end_block &&
           chunk->end_block <= config->n_layers && (is_first || !chunk->has_embedding) &&
           (is_last || !chunk->has_head);
}

static Status check_part(const ModelConfig *config, const ParameterPart *part, Error *error) {
    if (part->n_ranks < 1 || part->rank < 0 || part->rank >= part->n_ranks || part->n_chunks < 1 ||
        part->n_chunks > SCHEDULE_MAX_CHUNKS)
        return error_failed(error, "rank %d of %d with %d chunks is no part of a model", part->rank,
                            part->n_ranks, part->n_chunks);
    if (part->n_expert_ranks > 1 &&
        (part->n_expert_ranks > config->n_experts || part->expert_rank >= part->n_expert_ranks))
        return error_failed(error, "rank %d of %d has none of %lld experts", part->expert_rank,
                            part->n_expert_ranks, (long long)config->n_experts);
    for (int i = 0; i < part->n_chunks; i++) {
        if (is_chunk_sound(config, part, i)) continue;
        return error_failed(error, "chunk %d with blocks %d to %d is no part of a model of %lld blocks", i,
                            part->chunk[i].first_block, part->chunk[i].end_block - 1,
                            (long long)config->n_layers);
    }
    return STATUS_OK;
}

void parameter_part_set_rank(ParameterPart *part, const Mesh *mesh) {
    part->n_ranks = mesh->shape.size[AXIS_TP];
    part->rank = mesh->coordinate[AXIS_TP];
    part->n_expert_ranks = mesh->shape.size[AXIS_EP];
    part->expert_rank = mesh->coordinate[AXIS_EP];
}

ParameterPart parameter_part_whole(const ModelConfig *config) {
    return (ParameterPart){
        .n_ranks = 1,
        .n_chunks = 1,
        .chunk = {{.end_block = (int)config->n_layers, .has_embedding = true, .has_head = true}}};
}

Status parameters_build_part(ParameterTable *table, const ModelConfig *config, const ParameterPart *part,
                             Error *error) {
    *table = (ParameterTable){.n_blocks = (int)config->n_layers,
                              .n_experts = config->n_experts,
                              .router_bias = {.name = "router bias",
                                              .role = ROLE_ROUTER_BIAS,
                                              .block = NO_BLOCK,
                                              .expert = NO_EXPERT,
                                              .shape = SHAPE(0, config->n_experts),
                                              .dtype = DTYPE_F32}};
    TRY(check_part(config, part, error));
    Arena arena = {0};
    int64_t capacity = 5 + config->n_layers * (ROLE_FINAL_NORM_WEIGHT - ROLE_NORM1_WEIGHT);
    Builder model = {.arena = &table->arena, .parameter = ARENA_ARRAY(&arena, Parameter, capacity)};
    add_model(&model, config);
    table->parameter = ARENA_ARRAY(&table->arena, Parameter, capacity);
    table->index = ARENA_ARRAY(&table->arena, int, (config->n_layers + 1) * N_ROLES);
    table->n_whole_parameters = model.n_parameters;
    double n_elements;
    if (!count_elements(table, &model, &n_elements) || !place_all(table, config, part, &model)) {
        parameters_free(table);
        error_user(
            error,
            "a model of these sizes has %.3g parameters and needs %.3g bytes for its weights alone, %s are "
            "free; choose smaller --channels, --layers, --context or --vocab",
            n_elements, 4.0 * n_elements, format_bytes(memory_available_bytes()).text);
    }
    arena_free(&arena);
    return error->status;
}

Status parameters_build(ParameterTable *table, const ModelConfig *config, Error *error) {
    ParameterPart whole = parameter_part_whole(config);
    return parameters_build_part(table, config, &whole, error);
}

void parameters_free(ParameterTable *table) {
    arena_free(&table->arena);
    *table = (ParameterTable){0};
}

ParameterTensors parameters_record(const ParameterTable *table, Graph *graph, DType dtype,
                                   bool needs_gradient) {
    ParameterTensors tensors = {.table = table};
    tensors.flat = graph_tensor(graph, PLACE_PARAMETER, dtype, SHAPE(table->n_flat_elements), "parameters");
    tensors.flat->needs_gradient = needs_gradient;
    tensors.tensor = ARENA_ARRAY(&graph->arena, Tensor *, table->n_parameters);
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        tensors.tensor[i] =
            graph_view(graph, tensors.flat, parameter->laid_out, parameter->flat_offset, parameter->name);
    }
    if (parameters_n_router_biases(table))
        tensors.router_bias =
            graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, table->router_bias.shape, "router bias");
    return tensors;
}

Tensor *parameter_tensor_of(const ParameterTensors *tensors, const Parameter *parameter) {
    if (parameter->role == ROLE_ROUTER_BIAS) return tensors->router_bias;
    return tensors->tensor[parameter - tensors->table->parameter];
}

int64_t parameters_n_router_biases(const ParameterTable *table) {
    return shape_count(table->router_bias.shape);
}

/* Row by row: where the blocks here are among all. */
static void move_router_bias(const ParameterTable *table, const ModelConfig *config, float *whole,
                             float *here, bool gives) {
    int64_t E = table->n_experts, row = 0;
    for (int block = 0; block < config->n_layers && parameters_n_router_biases(table); block++) {
        if (!config_has_experts(config, block)) continue;
        float *there = whole + E * row++;
        if (!parameter_find(table, ROLE_ROUTER_WEIGHT, block)) continue;
        float *own = here + parameter_router_row(table, block) * E;
        memcpy(gives ? there : own, gives ? own : there, (size_t)E * sizeof *whole);
    }
}

void parameters_take_router_bias(const ParameterTable *table, const ModelConfig *config, const float *whole,
                                 float *here) {
    move_router_bias(table, config, (float *)whole, here, false);
}

void parameters_give_router_bias(const ParameterTable *table, const ModelConfig *config, const float *here,
                                 float *whole) {
    move_router_bias(table, config, whole, (float *)here, true);
}

int64_t parameter_router_row(const ParameterTable *table, int block) {
    int64_t row = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        row += parameter->role == ROLE_ROUTER_WEIGHT && parameter->block < block;
    }
    return row;
}

Tensor *parameter_router_bias(const ParameterTensors *tensors, Graph *graph, int block) {
    int64_t E = tensors->table->n_experts;
    return graph_view(graph, tensors->router_bias, SHAPE(E), parameter_router_row(tensors->table, block) * E,
                      arena_printf(&graph->arena, "h.%d.moe.router.bias", block));
}

/* The index holds position + 1, so that zeroed memory means "none"; NO_BLOCK has row 0. There are no
 * experts yet. */
const Parameter *parameter_find_key(const ParameterTable *table, ParameterKey key) {
    if (key.block < NO_BLOCK || key.block >= table->n_blocks || key.expert != NO_EXPERT) return NULL;
    int found = *index_at(table, key);
    return found ? &table->parameter[found - 1] : NULL;
}

const Parameter *parameter_find(const ParameterTable *table, ParameterRole role, int block) {
    return parameter_find_key(table, (ParameterKey){role, block, NO_EXPERT});
}

Tensor *parameter_tensor(const ParameterTensors *tensors, ParameterRole role, int block) {
    const Parameter *parameter = parameter_find(tensors->table, role, block);
    return parameter ? tensors->tensor[parameter - tensors->table->parameter] : NULL;
}

/* Elements first .. first + n - 1 of a box of the whole tensor. */
static void initialise_run(const Parameter *parameter, const Box *box, RandomKey key, int64_t first,
                           int64_t n, float *values) {
    if (parameter->init != INIT_NORMAL) {
        for (int64_t k = 0; k < n; k++) values[k] = parameter->init == INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    const Box whole = box_whole(parameter->whole);
    int64_t run = box_run(box, &whole);
    for (int64_t done = 0, here; done < n; done += here) {
        int64_t at = first + done;
        here = run - at % run < n - done ? run - at % run : n - done;
        random_normal_fill(key, (uint64_t)box_element(box, &whole, at), (uint64_t)here, parameter->deviation,
                           values + done);
    }
}

void parameter_initialise(const ParameterTable *table, int index, uint64_t seed, float *values,
                          int n_threads) {
    enum { CHUNK = 1 << 16 };
    const Parameter *parameter = &table->parameter[index];
    RandomKey key = random_key(seed, RANDOM_INIT + (uint64_t)parameter->number, 0);
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        const Box *box = &parameter->shard.box[i].box;
        int64_t count = shape_count(box->shape);
#pragma omp parallel for num_threads(n_threads) schedule(static)
        for (int64_t first = 0; first < count; first += CHUNK) {
            int64_t n = count - first < CHUNK ? count - first : CHUNK;
            initialise_run(parameter, box, key, first, n, values + first);
        }
        values += count;
    }
}

void parameters_initialise(const ParameterTable *table, uint64_t seed, float *flat, int n_threads) {
    for (int i = 0; i < table->n_parameters; i++) {
        parameter_initialise(table, i, seed, flat + table->parameter[i].flat_offset, n_threads);
    }
}

Status parameters_initialise_each(const ParameterTable *table, uint64_t seed, int n_threads,
                                  ParameterTaker take, void *context, Error *error) {
    size_t n_bytes = (size_t)parameters_largest(table) * sizeof(float);
    void *values;
    TRY(memory_alloc(&values, n_bytes, "one of the model's tensors", error));
    for (int i = 0; i < table->n_parameters && error->status == STATUS_OK; i++) {
        parameter_initialise(table, i, seed, values, n_threads);
        take(context, &table->parameter[i], values, error);
    }
    if (error->status == STATUS_OK && parameters_n_router_biases(table)) {
        memset(values, 0, (size_t)parameters_n_router_biases(table) * sizeof(float));
        take(context, &table->router_bias, values, error);
    }
    memory_free(values, n_bytes);
    return error->status;
}

GroupCounts parameters_count_groups(const ParameterTable *table) {
    GroupCounts counts = {{0}};
    for (int i = 0; i < table->n_parameters; i++)
        counts.n[table->parameter[i].group] += shape_count(table->parameter[i].shape);
    return counts;
}

int64_t parameters_largest(const ParameterTable *table) {
    int64_t largest = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        int64_t count = shape_count(table->parameter[i].shape);
        if (count > largest) largest = count;
    }
    if (parameters_n_router_biases(table) > largest) largest = parameters_n_router_biases(table);
    return largest;
}

FlatArray parameters_flat(const ParameterTable *table, Arena *arena) {
    return (FlatArray){.piece = parameters_pieces(table, arena),
                       .n_pieces = table->n_parameters,
                       .n_elements = table->n_flat_elements};
}
