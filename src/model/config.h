/* The shape of a model: options, presets, and the checks that make a configuration sound. */
#ifndef PGPT_MODEL_CONFIG_H
#define PGPT_MODEL_CONFIG_H

#include "base/options/options.h"
#include "ops/attention/attention_pattern.h"

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { MLP_GELU_TANH, MLP_GELU_ERF, MLP_SWIGLU } MlpKind;
typedef enum { POSITION_LEARNED, POSITION_ROTARY } PositionKind;

enum { CONFIG_MAX_PATTERNS = 16 };

/* Filled from the option table. Sizes that are 0 are worked out by config_complete. */
typedef struct {
    const char *preset;
    int64_t n_layers, n_heads, n_kv_heads, n_channels, n_hidden;
    int64_t context; /* T: positions that the model can see */
    int64_t vocabulary;
    int norm;     /* NormKind */
    int mlp;      /* MlpKind */
    int position; /* PositionKind */
    bool tied, bias;
    double dropout;
    double rotary_theta;
    /* A mixture of experts in the place of the MLP; n_experts 0: none, and the rest says nothing. */
    int64_t n_experts, n_chosen; /* E, and K of them a token */
    int64_t expert_every;        /* the last of so many blocks has experts, the others have an MLP */
    int64_t n_shared_experts;    /* that every token passes */
    int64_t expert_hidden;       /* F: width inside an expert */
    int router, router_gate;     /* RouterKind, GateKind (ops/experts/experts.h) */
    double expert_capacity;      /* of the mean load of an expert and sequence; 0: none is dropped */
    double balance_loss, z_loss, bias_rate;
    const char *attention;         /* the pattern of all blocks, in words; NULL: dense */
    const char *attention_pattern; /* patterns that blocks take in turn; "" or NULL: `attention` */
    bool document_mask;
    int64_t document_end; /* the token that ends a document; -1: not known, the tokenizer's */
    /* What config_complete made of the words; none: all blocks are dense. */
    AttentionPattern pattern[CONFIG_MAX_PATTERNS];
    int n_patterns;
    /* Mixture of depths: in every depth_every-th block, depth_capacity of the positions of a sequence pass;
     * 0: there are no such blocks. */
    double depth_capacity;
    int64_t depth_every;
} ModelConfig;

extern const OptionSpec model_option_specs[];

/* Give the options of --model's preset that the user did not set himself their values. */
Status config_apply_preset(Options *options, const char *name, Error *error);

/* Fill in what is 0 (hidden size, key/value heads, vocabulary from the tokenizer) and check that all of it
 * fits together; a mistake names the option to change. */
Status config_complete(ModelConfig *config, int64_t tokenizer_vocabulary, Error *error);

/* Options of the command line that do nothing in such a model are refused, as --router without --experts. */
Status config_refuse_idle(const Options *options, const ModelConfig *config, Error *error);

/* Has this block experts in the place of its MLP? Has any? */
bool config_has_experts(const ModelConfig *config, int block);
int config_n_expert_blocks(const ModelConfig *config);

/* Tokens of a sequence of T that an expert takes at most; 0: as many as want it. */
int64_t config_capacity(const ModelConfig *config, int64_t T);

/* The token that ends documents, where it is asked for and not known yet: the tokenizer's (-1: it has none,
 * which is the user's mistake). */
Status config_set_document_end(ModelConfig *config, int32_t end_of_text, Error *error);

/* Which keys a block's attention sees, documents aside; and is it sparse: by its pattern or by documents? */
AttentionPattern config_pattern(const ModelConfig *config, int64_t block);
bool config_is_sparse(const ModelConfig *config, int64_t block);

/* Hidden channels that a token passes in a block, the mean over the model, where an expert has so many. */
double config_active_hidden(const ModelConfig *config, double expert_hidden);

/* Head size, and the norm's epsilon (GPT-2's). */
int64_t config_head_size(const ModelConfig *config);
#define NORM_EPSILON 1e-5f

/* Does the router of this block let some positions pass and others go by? How many of T pass, and how many
 * blocks are such. */
bool config_is_depth_block(const ModelConfig *config, int block);
int64_t config_depth_rows(const ModelConfig *config, int64_t T);
int config_n_depth_blocks(const ModelConfig *config, int first_block, int end_block);

#endif
