/* Writing a folder of Hugging Face: config.json and the weights, as `transformers` writes them. */
#ifndef PGPT_HUGGINGFACE_HUGGINGFACE_WRITE_H
#define PGPT_HUGGINGFACE_HUGGINGFACE_WRITE_H

#include "huggingface/model_source.h"

typedef struct {
    SafetensorsType type; /* F32, BF16 or F16 */
    uint64_t shard_bytes; /* most bytes of a weights file; a larger tensor has one of its own */
    int32_t end_token;    /* that ends a text, -1 if nothing does */
    /* Asked after every tensor, with the part that is done; an error ends the writing. May be NULL. */
    Status (*report)(void *context, double fraction, Error *error);
    void *context;
} HuggingFaceWriteOptions;

/* Into a folder that is there. The table is the source's, checked. Tensors are read, turned and written one
 * after the other. A number that the type cannot hold is a user's error that names its tensor. */
Status huggingface_write(const ModelSource *source, const ParameterTable *table, const char *folder,
                         const HuggingFaceWriteOptions *options, int *n_files, Error *error);

#endif
