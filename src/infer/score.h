/* Scoring: how likely a model finds given tokens.
 *
 * A ScoreText is a sequence of tokens of which the first `n_given` are only read and the others are scored:
 * each gets its loss, -log p(token | the tokens before it, as far as its window reaches). A whole text is
 * scored with n_given 1, since nothing stands before its first token; an answer to a question with n_given
 * the question's length.
 *
 *     TRY(scorer_plan(&scorer, &config, &table, backend, texts, n_texts, &options, error));
 *     ... scorer_required_bytes(&scorer) ...
 *     TRY(scorer_open(&scorer, NULL, error));    // or the DeviceMemory of somebody who has the weights
 *     TRY(scorer_upload(&scorer, ...));          // not if they were borrowed
 *     TRY(scorer_run(&scorer, NULL, NULL, error));
 *     scorer_close(&scorer);                     // also after a failure, and twice
 *
 * A text longer than the model's window is cut into overlapping ones. Window k reads `window` tokens from the
 * position k·stride on and scores what the windows before it did not: `stride` tokens, each with at least
 * window - stride + 1 tokens before it. So every token is scored exactly once, in the first window that
 * contains it, which is the one that shows the model most of what stands before. The smaller the stride, the
 * better the model looks and the longer it takes; stride = window cuts without overlap. The last window may
 * be shorter.
 *
 * Where the scored tokens alone fit into a window, there is only one, at the end: of a longer beginning the
 * model sees the last part.
 *
 * In a pipeline batches follow each other through the stages: a stage goes on with the next one as soon as it
 * has handed on the last, and the losses are found where the model ends. */
#ifndef PGPT_INFER_SCORE_H
#define PGPT_INFER_SCORE_H

#include "infer/generator.h"

typedef struct {
    const int32_t *tokens;
    int64_t n_tokens;
    int64_t n_given;   /* at least 1; n_tokens - n_given are scored, which may be none */
    float *losses;     /* (n_tokens - n_given) out: natural logarithms; NAN where a run was ended before */
    int64_t n_unseen;  /* out: tokens at the beginning that no window reaches */
    bool is_predicted; /* out, of score_last_words only: every scored token was the likeliest */
    int64_t n_bytes;   /* not used here: what the scored tokens are in the text they come from */
} ScoreText;

typedef struct {
    int64_t window; /* tokens read at a time; 0: the model's context, which is also the most */
    int64_t stride; /* 1 .. window; 0: half of the window */
    int64_t batch;  /* windows at a time; 0: chosen */
    DType dtype;    /* of weights and activations */
    ModelPart part; /* what this rank has of the model; {0}: all of it */
    /* Ranks that share out the work: of n_shares of them this is number `share`, which scores every
     * n_shares-th batch and leaves the losses of others as NAN; 0, 0: alone. See score_merge. */
    int share, n_shares;
} ScoreOptions;

/* Fill in what is 0; out of range is a user's error that names the option of the command line. */
Status score_options_complete(ScoreOptions *options, const ModelConfig *config, Error *error);

/* Told how much of the work is done, in tokens read; false ends the run early, which then returns
 * STATUS_OK. */
typedef bool (*ScoreProgress)(void *context, int64_t n_done, int64_t n_total);

typedef struct {
    int64_t text;
    int64_t begin;     /* reads tokens begin .. begin + n_inputs - 1, to predict those one further on */
    int64_t n_inputs;  /* at most the window */
    int64_t n_skipped; /* of its predictions, the first ones: scored by the window before, or given */
} ScoreWindow;

/* The program for windows of up to T tokens; a few lengths have one each, so that short ones are not padded
 * far. */
typedef struct {
    int64_t T, B;
    int64_t first, n_windows; /* of the scorer's windows */
    Graph *graph;
    GptLoss loss; /* without tokens, targets or losses where another stage has them */
    Program program;
    Executor executor;
} ScorePass;

enum { SCORE_MAX_PASSES = 8 };

typedef struct {
    const ParameterTable *table;
    const Backend *backend;
    ScoreText *texts;
    int64_t n_texts, vocabulary;
    ScoreOptions options; /* complete */
    ScoreWindow *windows; /* in the order in which they will run */
    int64_t n_windows;
    int64_t n_inputs; /* of this rank's share of the windows: tokens to read */
    ScorePass pass[SCORE_MAX_PASSES];
    int n_passes;
    DeviceMemory memory;
    int32_t *tokens, *targets; /* (B,T) of the largest pass: what is uploaded */
    float *losses;             /* (B·T) what comes back */
    size_t windows_bytes, rows_bytes;
} Scorer;

/* Cut the windows, record and plan the programs. Texts and table must outlive the scorer, and the scorer must
 * stay where it is. */
Status scorer_plan(Scorer *scorer, const ModelConfig *config, const ParameterTable *table,
                   const Backend *backend, ScoreText *texts, int64_t n_texts, const ScoreOptions *options,
                   Error *error);

/* Device memory that open will take besides the parameters. */
size_t scorer_required_bytes(const Scorer *scorer);

/* As generator_open and generator_upload. */
Status scorer_open(Scorer *scorer, const DeviceMemory *owner, Error *error);
Status scorer_upload(Scorer *scorer, const Parameter *parameter, const float *values, Error *error);
void scorer_close(Scorer *scorer);

/* Fill the losses of all texts; `progress` may be NULL. A loss that is not finite is an error: the model has
 * diverged. */
Status scorer_run(Scorer *scorer, ScoreProgress progress, void *context, Error *error);

/* What the ranks have scored, to all of them: each loss is that of the rank which has one. Collective over
 * all ranks that have a share or a part. */
Status score_merge(ScoreText *texts, int64_t n_texts, Comm *comm, Error *error);

/* The same for texts whose scored tokens are few and must also be what the model itself would say, always
 * taking the likeliest token: losses and is_predicted. `window` as in ScoreOptions, complete; of a longer
 * beginning the last part is seen, and `share` of n_shares. The generator is open and is left with texts in
 * its rows. */
typedef struct {
    int64_t window;
    int share, n_shares; /* as in ScoreOptions */
} ScoreWordsOptions;

Status score_last_words(Generator *generator, ScoreText *texts, int64_t n_texts,
                        const ScoreWordsOptions *options, ScoreProgress progress, void *context,
                        Error *error);

#endif
