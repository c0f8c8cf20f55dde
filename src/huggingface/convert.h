/* From any model to a folder of the other kind: what `pgpt convert` does.
 *
 * A folder of ours is a run's: config.ini with the model's options, one checkpoint without optimizer, the
 * tokenizer's files, and the config.json that the model came from, so that it can go back as it was. The
 * folder appears when all of it is there. */
#ifndef PGPT_HUGGINGFACE_CONVERT_H
#define PGPT_HUGGINGFACE_CONVERT_H

#include "base/text/log.h"
#include "huggingface/model_source.h"

typedef struct {
    bool to_huggingface;
    SafetensorsType type; /* of the tensors written for Hugging Face; ours are F32 */
    uint64_t shard_bytes; /* see huggingface_write.h */
    int32_t end_token;    /* likewise */
    const Log *log;
    Progress *progress;        /* may be NULL */
    bool (*should_stop)(void); /* asked between tensors; NULL: never */
} ConvertOptions;

typedef struct {
    int64_t n_parameters;
    int n_tensors, n_files; /* files of weights */
    uint64_t n_bytes;       /* of the tensors as they were written */
} ConvertResult;

/* `folder` must not be there yet, or be empty. */
Status convert_model(const ModelSource *source, const char *folder, const ConvertOptions *options,
                     ConvertResult *result, Error *error);

#endif
