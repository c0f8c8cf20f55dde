/* The parameter table: every weight of a model, described once. Allocation, initialisation, optimizer,
 * checkpoint, conversion and planner all walk it; none of them knows a weight by its number. */
#ifndef PGPT_MODEL_PARAMETERS_H
#define PGPT_MODEL_PARAMETERS_H

#include "graph/graph.h"
#include "model/config.h"
#include "model/parameter_shard.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/sync/gradient_sync.h"
#include "parallel/sync/replicas.h"

typedef enum {
    ROLE_TOKEN_TABLE,
    ROLE_POSITION_TABLE,
    ROLE_NORM1_WEIGHT,
    ROLE_NORM1_BIAS,
    ROLE_QKV_WEIGHT,
    ROLE_QKV_BIAS,
    ROLE_ATTENTION_OUT_WEIGHT,
    ROLE_ATTENTION_OUT_BIAS,
    ROLE_NORM2_WEIGHT,
    ROLE_NORM2_BIAS,
    ROLE_FC_WEIGHT, /* of the MLP; in a block with experts: of those that all tokens pass */
    ROLE_FC_BIAS,
    ROLE_PROJ_WEIGHT,
    ROLE_PROJ_BIAS,
    ROLE_ROUTER_WEIGHT,      /* (E,C) */
    ROLE_ROUTER_NOISE,       /* (E,C), of noisy top-k */
    ROLE_EXPERT_FC_WEIGHT,   /* (E,F,C), or of SwiGLU (E,2,F,C): all experts of a block are one tensor */
    ROLE_EXPERT_FC_BIAS,     /* (E,F) or (E,2,F) */
    ROLE_EXPERT_PROJ_WEIGHT, /* (E,C,F) */
    ROLE_EXPERT_PROJ_BIAS,   /* (E,C) */
    ROLE_ROUTER_BIAS,        /* ParameterTable.router_bias, which is no weight */
    ROLE_DEPTH_ROUTER,       /* (C) */
    ROLE_DEPTH_PREDICTOR,    /* (C) */
    ROLE_DEPTH_PREDICTOR_BIAS,
    ROLE_FINAL_NORM_WEIGHT,
    ROLE_FINAL_NORM_BIAS,
    ROLE_HEAD_WEIGHT,
    N_ROLES,
} ParameterRole;

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } Initializer;

/* Parameters are known by what they do, where, and for which expert of a mixture. */
enum { NO_EXPERT = -1 };
typedef struct {
    ParameterRole role;
    int block, expert; /* or NO_BLOCK, NO_EXPERT */
} ParameterKey;

typedef struct {
    const char *name; /* Hugging Face's GPT-2 name */
    ParameterRole role;
    int block;       /* or NO_BLOCK */
    int expert;      /* or NO_EXPERT */
    int number;      /* its position in the table of the whole model, of which its initial values are made */
    int chunk;       /* of the part; of a table that two chunks use, the one with the embedding */
    FlatGroup group; /* of ranks that hold the same: those with these experts, or all */
    /* The token table of a tied model in a pipeline. It is used as the embedding and as the head, and either
     * the first and the last stage both have it (a pair, whose gradients are summed:
     * gradient_sync_begin_update), or one stage has it for two of its chunks. */
    bool is_tied_pair, is_of_two_chunks;
    Shape whole;
    ShardRule rule;
    ParameterShard shard; /* what of the whole is here: its boxes, one behind the other, are the tensor */
    Shape shape;          /* of what is here */
    Shape laid_out;       /* its shape in memory: tables of tokens have rows of zeros at the end, see below */
    DType dtype;
    bool decays;        /* weight decay: matrices only */
    bool is_transposed; /* Hugging Face stores it as (in,out) */
    Initializer init;
    float deviation;       /* of INIT_NORMAL */
    int64_t flat_offset;   /* its first element in the flat array of all parameters here, */
    int64_t head_elements; /* of SHARD_QKV_ROWS, of a head: boxes begin and end at multiples of it */
    int64_t whole_offset;  /* and in that of the whole model: what stochastic rounding draws by */
} Parameter;

/* Rows of a vocabulary are filled up to a multiple of these, so that rows of logits are as tensor cores
 * want them: GPT-2's 50,257 columns take seven times as long as 50,304, and 65 three times as long as 72.
 * Files and reports know nothing of it. */
enum { VOCABULARY_MULTIPLE = 8, LARGE_VOCABULARY_MULTIPLE = 128, LARGE_VOCABULARY = 4096 };

typedef struct {
    Arena arena;
    int n_parameters;
    Parameter *parameter;
    int n_blocks;            /* of the whole model */
    int *index;              /* of the parameter with a key: see parameter_find_key */
    int64_t n_elements;      /* of all parameters */
    int64_t n_flat_elements; /* with the padding that keeps each one aligned */
    int n_whole_parameters;  /* of the whole model, where this is a part of it */
    int64_t n_whole_elements;
    int64_t n_experts;
    /* What routers without a balance loss choose by beside their gates, (blocks with experts here, E): of the
     * model as its parameters are, and given to whoever takes these, but moved by load and not by a gradient,
     * and f32 whatever the weights are. Without elements: there is none. */
    Parameter router_bias;
} ParameterTable;

/* A run of blocks, with or without what comes before them and behind them: what a pipeline runs at a time (a
 * virtual stage, parallel/pipeline/schedule.h). */
typedef struct {
    int first_block, end_block;
    bool has_embedding, has_head; /* the head with the final norm */
} ParameterChunk;

/* What a rank holds of the model: its shard of every tensor of one or more chunks (a pipeline stage), which
 * ascend in the model.
 *
 * The chunk with the head of a tied model needs the token table too. Where the same rank has the embedding,
 * there is one table; where another one has it, both hold it, and the one with the embedding owns it. */
typedef struct {
    int n_ranks, rank;               /* of tensor parallelism */
    TensorStyle style;               /* of it */
    int n_expert_ranks, expert_rank; /* of expert parallelism; 0, 0: all experts are here */
    int n_chunks;
    ParameterChunk chunk[SCHEDULE_MAX_CHUNKS];
} ParameterPart;

/* Which shard of its tensors a rank of a mesh has. */
void parameter_part_set_rank(ParameterPart *part, const Mesh *mesh);

/* Is it cut over the ranks of ep? */
bool role_is_of_experts(ParameterRole role);

/* Does another rank of tp hold one of several boxes, and not all of them? */
bool parameter_has_shared_boxes(const Parameter *parameter);

/* One chunk, on one rank. */
ParameterPart parameter_part_whole(const ModelConfig *config);

/* The table of the whole model. Fails when the sizes overflow. */
Status parameters_build(ParameterTable *table, const ModelConfig *config, Error *error);

/* The table of a part: chunk by chunk, each in the order of the model. All ranks of a stage have the same
 * parameters in the same order, in which those that a rank has nothing of have no elements. */
Status parameters_build_part(ParameterTable *table, const ModelConfig *config, const ParameterPart *part,
                             Error *error);
void parameters_free(ParameterTable *table);

/* The parameters as pieces of the flat array, each with its padding; n_parameters of them, from the arena. */
const FlatPiece *parameters_pieces(const ParameterTable *table, Arena *arena);

/* The same as a gradient strategy wants it: the flat array with its pieces. */
FlatArray parameters_flat(const ParameterTable *table, Arena *arena);

/* The parameter with this key, NULL if the table has none (no bias, say, or another stage's block); the
 * shorter one is of no expert. */
const Parameter *parameter_find_key(const ParameterTable *table, ParameterKey key);
const Parameter *parameter_find(const ParameterTable *table, ParameterRole role, int block);

/* The table's tensors in a graph: parts of one flat tensor, in table order. */
typedef struct {
    Tensor *flat;
    Tensor **tensor; /* one a parameter */
    const ParameterTable *table;
    Tensor *router_bias; /* the table's; NULL: it has none */
} ParameterTensors;

static inline FlatTensors parameters_flat_tensors(const ParameterTensors *tensors) {
    return (FlatTensors){.flat = tensors->flat, .tensor = tensors->tensor};
}

ParameterTensors parameters_record(const ParameterTable *table, Graph *graph, DType dtype,
                                   bool needs_gradient);

/* The tensor with this role, NULL if the model has none. */
Tensor *parameter_tensor(const ParameterTensors *tensors, ParameterRole role, int block);

/* The tensor of one of the table's parameters, or of its router_bias. */
Tensor *parameter_tensor_of(const ParameterTensors *tensors, const Parameter *parameter);

/* The row of router_bias that is this block's (E), and where it is. */
Tensor *parameter_router_bias(const ParameterTensors *tensors, Graph *graph, int block);
int64_t parameter_router_row(const ParameterTable *table, int block);
int64_t parameters_n_router_biases(const ParameterTable *table);

/* Of the biases of the whole model, (all blocks with experts, E), those that are here; and the other way
 * round, leaving the others as they are. */
void parameters_take_router_bias(const ParameterTable *table, const ModelConfig *config, const float *whole,
                                 float *here);
void parameters_give_router_bias(const ParameterTable *table, const ModelConfig *config, const float *here,
                                 float *whole);

/* What this rank and others of tp hold alike and have to sum gradients of, at most SHARD_MAX_BOXES a
 * parameter; returns how many. `tp` are the ranks of tensor parallelism, `heads` those of them that hold the
 * same key/value heads (ShardHeads); by_sequence: their rows are split (model/gpt.h). */
int parameters_replicas(const ParameterTensors *tensors, Comm *tp, Comm *heads, bool by_sequence,
                        GradientReplica *replicas);

/* Initial values into the flat array on the host. They depend on (seed, parameter, element) of the whole
 * model alone: a shard has the values that the whole tensor has there. */
void parameters_initialise(const ParameterTable *table, uint64_t seed, float *flat, int n_threads);

/* The same for one parameter (by its position in the table), into an array of its own. */
void parameter_initialise(const ParameterTable *table, int index, uint64_t seed, float *values,
                          int n_threads);

/* Whoever takes the values of a whole parameter: a generator, a training step. */
typedef Status (*ParameterTaker)(void *context, const Parameter *parameter, const float *values,
                                 Error *error);

/* The initial values of every parameter to the taker, one at a time, so that the weights are on the host only
 * once. */
Status parameters_initialise_each(const ParameterTable *table, uint64_t seed, int n_threads,
                                  ParameterTaker take, void *context, Error *error);

/* Elements of each group. */
GroupCounts parameters_count_groups(const ParameterTable *table);

/* Elements of the largest parameter: room for any one of them. */
int64_t parameters_largest(const ParameterTable *table);

#endif
