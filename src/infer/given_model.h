/* The model that a command is given: a run's folder, one checkpoint's, or a model folder of Hugging Face.
 *
 *     TRY(given_model_find(&model, &options, CHECKPOINT_NEWEST, "pgpt eval MODEL", NULL, &log, error));
 *                                                             and its tokenizer
 *     ...                                                     whatever can be refused before the weights are
 *                                                             read
 *     TRY(given_model_open(&model, NULL, &device, error));    parameters and backend: now programs can be
 *                                                             planned
 *     TRY(given_model_load(&model, upload, context, error));  every parameter, one after the other
 *     given_model_close(&model);                              also after any of these has failed
 *  */
#ifndef PGPT_INFER_GIVEN_MODEL_H
#define PGPT_INFER_GIVEN_MODEL_H

#include "base/options/options.h"
#include "data/tokenizer/tokenizer.h"
#include "device/device.h"
#include "huggingface/model_source.h"

#define GIVEN_MODEL_DEFAULT "runs/latest"
#define GIVEN_MODEL_HELP                                                                                     \
    "a run's folder, one checkpoint's, or a model folder of Hugging Face; default: " GIVEN_MODEL_DEFAULT     \
    ", the last run in this folder"
#define GIVEN_MODEL_CHOICE_HELP                                                                              \
    "which checkpoint of the run: the newest, or the one with the lowest validation loss"

extern const char *const given_model_choices[]; /* CheckpointChoice in words, NULL-terminated */

typedef struct {
    ModelSource source;
    Tokenizer *tokenizer;
    ParameterTable table;
    Backend backend;
    bool has_backend;
} GivenModel;

/* By its path, with its tokenizer; what the user should know is in model->source.warning. */
Status given_model_find_path(GivenModel *model, const char *path, CheckpointChoice choice, Error *error);

/* The first argument, or the last run here. usage: how to name one, for who has neither. `comm`: the ranks
 * that find it together, which all get what goes wrong; NULL: one process. */
Status given_model_find(GivenModel *model, const Options *options, CheckpointChoice choice, const char *usage,
                        Comm *comm, const Log *log, Error *error);

/* `part`: what this rank will have of it; NULL: all. */
Status given_model_open(GivenModel *model, const ParameterPart *part, const DeviceOptions *device,
                        Error *error);

/* So that the model is in memory once: `upload` gets the values of one parameter at a time, in f32. */
Status given_model_load(const GivenModel *model, ParameterTaker upload, void *context, Error *error);

void given_model_close(GivenModel *model);

#endif
