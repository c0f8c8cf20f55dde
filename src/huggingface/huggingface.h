/* Hugging Face's model folders: GPT-2, Llama, Mistral and Mixtral as `transformers` saves them.
 *
 *     config.json                     the model's kind and sizes
 *     model.safetensors               its tensors; or, where they fill several files,
 *     model.safetensors.index.json    which tensor is in which of model-00001-of-00003.safetensors, ...
 *
 * Which tensors hold which part of a parameter: huggingface_layout.h. GPT-2's have the names of the parameter
 * table, mostly behind "transformer.", and matrices of its blocks are stored as (in,out), ours are (out,in).
 * Everything is checked before anything is used, and every message
 * names the file and the field or tensor. Writing such a folder is huggingface_write.h. */
#ifndef PGPT_HUGGINGFACE_HUGGINGFACE_H
#define PGPT_HUGGINGFACE_HUGGINGFACE_H

#include "base/text/json.h"
#include "checkpoint/safetensors.h"
#include "model/parameters.h"

#define HUGGINGFACE_CONFIG  "config.json"
#define HUGGINGFACE_WEIGHTS "model.safetensors"
#define HUGGINGFACE_INDEX   "model.safetensors.index.json"
#define HUGGINGFACE_PREFIX  "transformer."

/* ---- Reading
 *
 *     HuggingFaceModel model;
 *     TRY(huggingface_open(&model, "models/gpt2", error));
 *     TRY_GOTO(parameters_build(&table, &model.config, error), done);
 *     TRY_GOTO(huggingface_check(&model, &table, error), done);
 *     TRY_GOTO(huggingface_read(&model, &table.parameter[i], values, error), done);
 * done:
 *     huggingface_close(&model); */

typedef struct {
    const char *name; /* without GPT-2's prefix */
    const SafetensorsFile *file;
    const SafetensorsTensor *tensor;
} HuggingFaceTensor;

typedef struct {
    char *path;
    ModelConfig config;   /* complete */
    char note[200];       /* "" unless something of config.json could not be taken over */
    SafetensorsType type; /* of the token table */
    bool has_other_types; /* not all tensors are of that type */
    SafetensorsFile *file;
    int n_files;
    HuggingFaceTensor *tensor; /* sorted by name; what a model computes anew (masks) is left out */
    int n_tensors;
    Arena arena;
} HuggingFaceModel;

/* Is there a config.json in this folder? */
bool huggingface_is_model(const char *folder);

Status huggingface_open(HuggingFaceModel *model, const char *folder, Error *error);
void huggingface_close(HuggingFaceModel *model); /* safe after a failed open, and twice */

/* All tensors of the table must be there in their shapes and be numbers, and, unless the table is that of a
 * stage, no others; a head that is tied must be absent or equal to the token table. */
Status huggingface_check(const HuggingFaceModel *model, const ParameterTable *table, Error *error);

/* All values that the table has of one parameter, in our layout. One that is stored in fewer bits is read
 * exactly. */
Status huggingface_read(const HuggingFaceModel *model, const Parameter *parameter, float *values,
                        Error *error);

/* ---- config.json */

/* The configuration in a file; texts go to the arena. `note` has room for 200 bytes. */
Status huggingface_config_read(const char *path, ModelConfig *config, char *note, Arena *arena, Error *error);

/* Is this a model that Hugging Face has a layout for (huggingface_layout.h)? If not, it is a user's error
 * that names the option in the way. */
Status huggingface_can_express(const ModelConfig *config, Error *error);

/* The type that a config.json states for its model's tensors; F32 where it states none. */
SafetensorsType huggingface_config_type(const char *path);

/* The text of a config.json for this model, from malloc. `origin` names the config.json that the model came
 * from: if it still describes the model, its other fields are kept, byte by byte if there is nothing to
 * change. NULL: there is none. `end_token` ends a text, -1 if nothing does. `is_bare`: its tensors go without
 * "transformer.", as in a model without head. */
Status huggingface_config_text(const ModelConfig *config, const char *origin, SafetensorsType type,
                               int32_t end_token, char **text, bool *is_bare, Error *error);

#endif
