/* A model from wherever it lies: a run's folder, one of its checkpoints, or a folder of Hugging Face.
 *
 *     ModelSource source;
 *     TRY(model_source_open(&source, "models/gpt2", CHECKPOINT_NEWEST, error));
 *     if (source.warning[0]) log_warning(&logger, "%s", source.warning);
 *     TRY_GOTO(parameters_build(&table, &source.config, error), done);
 *     TRY_GOTO(model_source_check(&source, &table, error), done);
 *     for (int i = 0; i < table.n_parameters; i++)
 *         TRY_GOTO(model_source_read(&source, &table.parameter[i], values, error), done);
 * done:
 *     model_source_close(&source); */
#ifndef PGPT_HUGGINGFACE_MODEL_SOURCE_H
#define PGPT_HUGGINGFACE_MODEL_SOURCE_H

#include "checkpoint/checkpoint.h"
#include "huggingface/huggingface.h"

typedef enum { MODEL_SOURCE_CHECKPOINT, MODEL_SOURCE_HUGGINGFACE } ModelSourceKind;

typedef struct {
    ModelSourceKind kind;
    const char *path;        /* the checkpoint's folder, or Hugging Face's */
    const char *folder;      /* where its other files are: the run's folder, or Hugging Face's */
    const char *tokenizer;   /* what its tokenizer is opened from, a file or a folder; NULL: there is none */
    uint64_t tokenizer_hash; /* of the tokenizer that the model was trained with; 0: not known */
    const char *origin;   /* the config.json of Hugging Face that the model came from; NULL: none is known */
    SafetensorsType type; /* of its tensors where they came from */
    const char *warning;  /* "" unless there is something that the user should know */
    ModelConfig config;   /* complete */
    int64_t step;         /* 0 for Hugging Face's */
    Checkpoint checkpoint;
    HuggingFaceModel huggingface;
    Arena arena;
} ModelSource;

/* The name under which a run's folder keeps the config.json that its model came from. */
#define MODEL_SOURCE_ORIGIN "huggingface.json"

/* The name of a tokenizer of ours in a folder of Hugging Face, where tokenizer.json means theirs. */
#define MODEL_SOURCE_OUR_TOKENIZER "pgpt_tokenizer.json"

/* The choice is for a run's folder (see checkpoint_open). */
Status model_source_open(ModelSource *source, const char *path, CheckpointChoice choice, Error *error);

/* The same on several ranks, which share the work of checking a checkpoint and all have the same model, or
 * the same error. Collective; comm NULL: one process. */
Status model_source_open_together(ModelSource *source, Comm *comm, const char *path, CheckpointChoice choice,
                                  Error *error);
void model_source_close(ModelSource *source); /* safe after a failed open, and twice */

/* The tensors must be those of the table, all of them, in its shapes. The table may be that of a part of the
 * model. */
Status model_source_check(const ModelSource *source, const ParameterTable *table, Error *error);

/* All values that the table has of one parameter; there is room for one tensor in memory, not for the
 * model. */
Status model_source_read(const ModelSource *source, const Parameter *parameter, float *values, Error *error);

/* What the table has of the biases of the routers (ParameterTable.router_bias), 0 where the source knows of
 * none. */
void model_source_read_router_bias(const ModelSource *source, const ParameterTable *table, float *values);

/* Give a command's model options the values of the source, as a preset does. One that was set to something
 * else is a user's error, except for dropout. */
Status model_source_set_options(const ModelSource *source, Options *options, Error *error);

/* Keep the config.json that the model came from, if there is one, in a run's folder. */
Status model_source_keep_origin(const ModelSource *source, const char *folder, Error *error);

/* Is this file a tokenizer of ours, not Hugging Face's? */
bool model_source_is_our_tokenizer(const char *path);

#endif
