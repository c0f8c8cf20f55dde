/* Order: embeddings, blocks, final norm, head: the order in which a forward pass meets them, so that the backward
 * finishes gradients from the end of the flat array to its start. */
#include "model/parameters.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "base/text/format.h"
#include "graph/plan.h"

#include <math.h>
#include <string.h>

typedef struct {
    ParameterTable *table;
    bool overflow;
    double n_elements; /* counted beyond what an integer holds, for the message */
} Builder;

static Shape laid_out(ParameterRole role, Shape shape) {
    bool has_tokens = role == ROLE_TOKEN_TABLE || role == ROLE_HEAD_WEIGHT;
    int64_t multiple = shape.dim[0] < LARGE_VOCABULARY ? VOCABULARY_MULTIPLE : LARGE_VOCABULARY_MULTIPLE;
    if (has_tokens && shape.dim[0] <= INT64_MAX - multiple)
        shape.dim[0] = (shape.dim[0] + multiple - 1) / multiple * multiple;
    return shape;
}

static Parameter *add(Builder *builder, ParameterRole role, int block, const char *name, Shape shape) {
    ParameterTable *table = builder->table;
    table->index[(block + 1) * N_ROLES + (int)role] = table->n_parameters + 1;
    Parameter *parameter = &table->parameter[table->n_parameters++];
    *parameter = (Parameter){
        .role = role, .block = block, .shape = shape, .laid_out = laid_out(role, shape), .dtype = DTYPE_F32};
    parameter->name = block == NO_BLOCK ? arena_strdup(&table->arena, name)
                                        : arena_printf(&table->arena, "h.%d.%s", block, name);
    int64_t count = shape_count(parameter->laid_out);
    double approximate = 1.0;
    for (int i = 0; i < shape.n_dims; i++) approximate *= (double)shape.dim[i];
    builder->n_elements += approximate;
    enum { ALIGN = PLAN_ALIGNMENT / 4 };
    if (count < 0 || table->n_flat_elements > INT64_MAX / 16 - count - ALIGN) {
        builder->overflow = true;
        return parameter;
    }
    parameter->flat_offset = table->n_flat_elements;
    table->n_elements += shape_count(shape);
    table->n_flat_elements += (count + ALIGN - 1) / ALIGN * ALIGN;
    return parameter;
}

static void add_matrix(Builder *builder, ParameterRole role, int block, const char *name, int64_t outputs,
                       int64_t inputs, ShardRule shard, float deviation) {
    Parameter *parameter = add(builder, role, block, name, SHAPE(outputs, inputs));
    parameter->shard = shard;
    parameter->decays = true;
    parameter->init = INIT_NORMAL;
    parameter->deviation = deviation;
    parameter->is_transposed = block != NO_BLOCK;
}

static void add_vector(Builder *builder, ParameterRole role, int block, const char *name, int64_t count,
                       ShardRule shard, Initializer init) {
    Parameter *parameter = add(builder, role, block, name, SHAPE(count));
    parameter->shard = shard;
    parameter->init = init;
}

static void add_norm(Builder *builder, const ModelConfig *config, ParameterRole weight, ParameterRole bias,
                     int block, const char *weight_name, const char *bias_name) {
    add_vector(builder, weight, block, weight_name, config->n_channels, SHARD_NONE, INIT_ONE);
    if (config->bias && config->norm == NORM_LAYERNORM) {
        add_vector(builder, bias, block, bias_name, config->n_channels, SHARD_NONE, INIT_ZERO);
    }
}

/* GPT-2's initialisation: 0.02, and the two projections that write into the residual stream scaled down by the
 * square root of how many of them add up there. */
static void add_block(Builder *builder, const ModelConfig *config, int block) {
    const float deviation = 0.02f;
    float residual_deviation = deviation / sqrtf(2.0f * (float)config->n_layers);
    int64_t channels = config->n_channels, heads = config->n_heads + 2 * config->n_kv_heads;
    int64_t qkv = heads * config_head_size(config);
    int64_t hidden = config->n_hidden * (config->mlp == MLP_SWIGLU ? 2 : 1);
    add_norm(builder, config, ROLE_NORM1_WEIGHT, ROLE_NORM1_BIAS, block, "ln_1.weight", "ln_1.bias");
    add_matrix(builder, ROLE_QKV_WEIGHT, block, "attn.c_attn.weight", qkv, channels, SHARD_QKV, deviation);
    if (config->bias)
        add_vector(builder, ROLE_QKV_BIAS, block, "attn.c_attn.bias", qkv, SHARD_QKV, INIT_ZERO);
    add_matrix(builder, ROLE_ATTENTION_OUT_WEIGHT, block, "attn.c_proj.weight", channels, channels,
               SHARD_COLUMNS, residual_deviation);
    if (config->bias) {
        add_vector(builder, ROLE_ATTENTION_OUT_BIAS, block, "attn.c_proj.bias", channels, SHARD_NONE,
                   INIT_ZERO);
    }
    add_norm(builder, config, ROLE_NORM2_WEIGHT, ROLE_NORM2_BIAS, block, "ln_2.weight", "ln_2.bias");
    add_matrix(builder, ROLE_FC_WEIGHT, block, "mlp.c_fc.weight", hidden, channels, SHARD_ROWS, deviation);
    if (config->bias)
        add_vector(builder, ROLE_FC_BIAS, block, "mlp.c_fc.bias", hidden, SHARD_ROWS, INIT_ZERO);
    add_matrix(builder, ROLE_PROJ_WEIGHT, block, "mlp.c_proj.weight", channels, config->n_hidden,
               SHARD_COLUMNS, residual_deviation);
    if (config->bias)
        add_vector(builder, ROLE_PROJ_BIAS, block, "mlp.c_proj.bias", channels, SHARD_NONE, INIT_ZERO);
}

Status parameters_build(ParameterTable *table, const ModelConfig *config, Error *error) {
    *table = (ParameterTable){0};
    Builder builder = {.table = table};
    int64_t capacity = 5 + config->n_layers * (ROLE_PROJ_BIAS - ROLE_NORM1_WEIGHT + 1);
    table->parameter = ARENA_ARRAY(&table->arena, Parameter, capacity);
    table->index = ARENA_ARRAY(&table->arena, int, (config->n_layers + 1) * N_ROLES);
    add_matrix(&builder, ROLE_TOKEN_TABLE, NO_BLOCK, "wte.weight", config->vocabulary, config->n_channels,
               SHARD_ROWS, 0.02f);
    if (config->position == POSITION_LEARNED) {
        add_matrix(&builder, ROLE_POSITION_TABLE, NO_BLOCK, "wpe.weight", config->context, config->n_channels,
                   SHARD_NONE, 0.02f);
    }
    for (int block = 0; block < config->n_layers; block++) add_block(&builder, config, block);
    add_norm(&builder, config, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK, "ln_f.weight",
             "ln_f.bias");
    if (!config->tied) {
        add_matrix(&builder, ROLE_HEAD_WEIGHT, NO_BLOCK, "lm_head.weight", config->vocabulary,
                   config->n_channels, SHARD_ROWS, 0.02f);
    }
    if (builder.overflow) {
        parameters_free(table);
        return error_user(
            error,
            "a model of these sizes has %.3g parameters and needs %.3g bytes for its weights alone, %s are "
            "free; choose smaller --channels, --layers, --context or --vocab",
            builder.n_elements, 4.0 * builder.n_elements, format_bytes(memory_available_bytes()).text);
    }
    return STATUS_OK;
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
    return tensors;
}

/* The index holds position + 1, so that zeroed memory means "none"; NO_BLOCK has row 0. */
const Parameter *parameter_find(const ParameterTable *table, ParameterRole role, int block) {
    int found = table->index[(block + 1) * N_ROLES + (int)role];
    return found ? &table->parameter[found - 1] : NULL;
}

Tensor *parameter_tensor(const ParameterTensors *tensors, ParameterRole role, int block) {
    const Parameter *parameter = parameter_find(tensors->table, role, block);
    return parameter ? tensors->tensor[parameter - tensors->table->parameter] : NULL;
}

void parameter_initialise(const ParameterTable *table, int index, uint64_t seed, float *values,
                          int n_threads) {
    enum { CHUNK = 1 << 16 };
    const Parameter *parameter = &table->parameter[index];
    int64_t count = shape_count(parameter->shape);
    RandomKey key = random_key(seed, RANDOM_INIT + (uint64_t)index, 0);
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        if (parameter->init == INIT_NORMAL) {
            random_normal_fill(key, (uint64_t)first, (uint64_t)n, parameter->deviation, values + first);
        } else {
            for (int64_t k = 0; k < n; k++) values[first + k] = parameter->init == INIT_ONE ? 1.0f : 0.0f;
        }
    }
}

void parameters_initialise(const ParameterTable *table, uint64_t seed, float *flat, int n_threads) {
    for (int i = 0; i < table->n_parameters; i++) {
        parameter_initialise(table, i, seed, flat + table->parameter[i].flat_offset, n_threads);
    }
}

int64_t parameters_largest(const ParameterTable *table) {
    int64_t largest = 0;
    for (int i = 0; i < table->n_parameters; i++) {
        int64_t count = shape_count(table->parameter[i].shape);
        if (count > largest) largest = count;
    }
    return largest;
}

FlatArray parameters_flat(const ParameterTable *table, Arena *arena) {
    return (FlatArray){.piece = parameters_pieces(table, arena),
                       .n_pieces = table->n_parameters,
                       .n_elements = table->n_flat_elements};
}

const FlatPiece *parameters_pieces(const ParameterTable *table, Arena *arena) {
    FlatPiece *pieces = ARENA_ARRAY(arena, FlatPiece, table->n_parameters + 1);
    int64_t end = table->n_flat_elements;
    for (int i = table->n_parameters - 1; i >= 0; i--) {
        const Parameter *parameter = &table->parameter[i];
        pieces[i] = (FlatPiece){parameter->flat_offset, end - parameter->flat_offset, parameter->block};
        end = parameter->flat_offset;
    }
    return pieces;
}
