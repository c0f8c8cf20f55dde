/* The folder that a run leaves behind: config.ini, tokenizer.json, metrics.jsonl, checkpoints/. */
#ifndef PGPT_TRAIN_RUN_FOLDER_H
#define PGPT_TRAIN_RUN_FOLDER_H

#include "base/options.h"
#include "data/tokenizer.h"

/* The folder's name: `wanted`, or runs/DATE-TIME-MODEL when that is empty. From the arena. */
const char *run_folder_name(Arena *arena, const char *wanted, const char *model);

/* Refuses a folder that already holds a run, which would be mixed up with the new one. */
Status run_folder_check(const char *folder, Error *error);

/* Make it and write what is known before the first step. If it lies in runs/, runs/latest points to it. */
Status run_folder_create(const char *folder, const Options *options, const Tokenizer *tokenizer,
                         Error *error);

#endif
