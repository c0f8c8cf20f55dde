/* The folder that a run leaves behind: config.ini, tokenizer.json, metrics.jsonl, checkpoints/.
 *
 * One process at a time writes it. A new run makes its folder by exclusive creation before it reads anything,
 * so that two runs never take the same name, and holds the lock RUN/lock for as long as it writes there; so
 * does a run that goes on. */
#ifndef PGPT_RUN_RUN_FOLDER_H
#define PGPT_RUN_RUN_FOLDER_H

#include "base/file/file_lock.h"
#include "base/options/options.h"
#include "data/tokenizer/tokenizer.h"

/* ---- Whose folder it is */

typedef struct {
    char *path;        /* NULL: nothing is claimed */
    size_t n_existing; /* so many bytes of it name folders that were there before */
    bool is_begun;     /* it has become a run, and stays */
    FileLock lock;
    char warning[512]; /* "" unless the file system has no locks */
    Arena arena;
} RunClaim;

/* For a new run: `wanted`, which must not be there yet or be empty, or runs/DATE-TIME-MODEL where that is
 * empty. With `may_restart` a run that has no checkpoint yet may be in it as well. */
Status run_claim_new(RunClaim *claim, const char *wanted, const char *model, bool may_restart, Error *error);

/* For a run that goes on in its folder. */
Status run_claim_again(RunClaim *claim, const char *folder, Error *error);

/* For a supervisor, who holds RUN/supervise.lock through all attempts of a job. An error where one of them,
 * or the job itself, is under way. */
Status run_claim_supervise(RunClaim *claim, const char *folder, Error *error);

/* Gives the folder back; one that has not become a run is removed, with the folders above it that were made
 * for it. Safe twice, and after an error. A signal that ends the process before that does the same. */
void run_claim_release(RunClaim *claim);

/* ---- What is in it */

/* Write what is known before the first step; the claim is a run from now on. If it lies in runs/, runs/latest
 * points to it. */
Status run_folder_create(RunClaim *claim, const Options *options, const Tokenizer *tokenizer, Error *error);

#endif
