/* A stage of a pipeline that takes a set time for each of its parts: a small GPT's, with sleeps in it. So a
 * schedule can be measured on a machine that has fewer cores than the pipeline has stages: ranks that sleep
 * take no core from each other, and everything else is as in training (lists of actions, executor, messages).
 *
 *     StageTimes times = {.forward = 8, .input_gradient = 8, .weight_gradient = 8};      // ms of each chunk
 *     StepOptions options = {..., .record_stage = sleeping_stage_record, .stage_context = &times}; */
#ifndef PGPT_LAB_PIPELINE_SLEEPING_STAGE_H
#define PGPT_LAB_PIPELINE_SLEEPING_STAGE_H

#include "graph/op.h"
#include "model/gpt.h"

/* The model computes what it would without them: the operation is y = x + 0 weight. */
extern const Op OP_SLEEP, OP_SLEEP_INPUT_GRADIENT, OP_SLEEP_WEIGHT_GRADIENT;

/* A StageRecorder (train/step/step.h); the context is a StageTimes in milliseconds, of a chunk. A chunk that
 * has neither input nor output (a pipeline of one stage) does not sleep. */
GptStageTensors sleeping_stage_record(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                      const GptLossOptions *options, const GptStage *stage, Tensor *input,
                                      const void *context);

#endif
