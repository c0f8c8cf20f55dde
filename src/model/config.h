/* The shape of a model: options, presets, and the checks that make a configuration sound. */
#ifndef PGPT_MODEL_CONFIG_H
#define PGPT_MODEL_CONFIG_H

#include "base/options/options.h"

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { MLP_GELU_TANH, MLP_GELU_ERF, MLP_SWIGLU } MlpKind;
typedef enum { POSITION_LEARNED, POSITION_ROTARY } PositionKind;

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
} ModelConfig;

extern const OptionSpec model_option_specs[];

/* Give the options of --model's preset that the user did not set himself their values. */
Status config_apply_preset(Options *options, const char *name, Error *error);

/* Fill in what is 0 (hidden size, key/value heads, vocabulary from the tokenizer) and check that all of it
 * fits together; a mistake names the option to change. */
Status config_complete(ModelConfig *config, int64_t tokenizer_vocabulary, Error *error);

/* Has this block experts in the place of its MLP? Has any? */
bool config_has_experts(const ModelConfig *config, int block);
int config_n_expert_blocks(const ModelConfig *config);

/* Tokens of a sequence of T that an expert takes at most; 0: as many as want it. */
int64_t config_capacity(const ModelConfig *config, int64_t T);

/* Head size, and the norm's epsilon (GPT-2's). */
int64_t config_head_size(const ModelConfig *config);
#define NORM_EPSILON 1e-5f

#endif
