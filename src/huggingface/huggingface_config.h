/* What the files that read and write config.json share. Private to huggingface_config*.c. */
#ifndef PGPT_HUGGINGFACE_HUGGINGFACE_CONFIG_H
#define PGPT_HUGGINGFACE_HUGGINGFACE_CONFIG_H

#include "huggingface/huggingface.h"

enum { CONFIG_MOST_LAYERS = 1000, CONFIG_LARGEST = 1 << 30, CONFIG_NOTE_BYTES = 200 };

/* Fields that are null are as good as absent. */
const json_t *config_field(const json_t *object, const char *field);
Status config_read_switch(const json_t *object, const char *path, const char *field, bool otherwise,
                          bool *value, Error *error);

/* Llama, Mistral and Mixtral: their fields as our options; and the fields of such a model. */
bool config_is_llama(const char *model_type);
Status config_read_llama(const json_t *object, const char *path, const char *model_type, json_t *ours,
                         char *note, Error *error);
json_t *config_fresh_llama(const ModelConfig *config, int32_t end_token);

/* The option in the way of writing the model so; NULL: none. `text` has room for it. */
const char *config_llama_obstacle(const ModelConfig *config, char *text, size_t n_bytes);

#endif
