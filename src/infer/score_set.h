/* Score sets: what an evaluation asks a model, read from the user's files and encoded, and what the answers
 * come to.
 *
 *     ScoreSet set;
 *     score_set_init(&set, SCORE_CHOICE, tokenizer);
 *     TRY_GOTO(score_set_read(&set, "questions.jsonl", &(ScoreReadOptions){0}, error), done);
 *     ... scorer_plan(&scorer, ..., set.texts, set.n_texts, ...), scorer_run ...
 *     TRY_GOTO(score_summarise(&set, &summary, error), done);
 * done:
 *     score_set_free(&set);
 *
 * Kinds:
 *
 *   SCORE_TEXT       Running text. Each document (a file, or the "text" of a line of a .jsonl file) is a text
 *                    of its own, whose first token is not scored because nothing stands before it.
 *   SCORE_CHOICE     Lines {"context": TEXT, "choices": [TEXT, ...], "label": the right one's number, from
 *                    0}. A choice is a text that is given the context. The model's answer is the likeliest
 *                    continuation.
 *   SCORE_LAST_WORD  Lines {"text": TEXT}, or plain lines. The last word, with the blank before it, is to be
 *                    predicted from what stands before.
 *
 * Where a given beginning ends. Tokens may reach over the border between context and choice: " cat" is one
 * token of GPT-2's, " " and "cat" are two. Context and choice are therefore encoded together, and the border
 * is where the context's own tokens end. Should those not be the first of the whole (a token reaches over the
 * border), both are encoded apart. Blanks at the end of a context count as the beginning of its choices,
 * since tokenizers attach them to the following word. A context without tokens is replaced by the tokenizer's
 * end of text, or else by a line end.
 *
 * Lines that are empty are skipped. Whatever else is wrong is a user's error that names file, line and
 * field. */
#ifndef PGPT_INFER_SCORE_SET_H
#define PGPT_INFER_SCORE_SET_H

#include "base/arena.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/score.h"

typedef enum { SCORE_TEXT, SCORE_CHOICE, SCORE_LAST_WORD } ScoreKind;

typedef struct {
    int64_t first_text, n_texts; /* one a choice; of the other kinds one */
    int64_t label;
} ScoreItem;

typedef struct {
    ScoreKind kind;
    const Tokenizer *tokenizer;
    TokenArray tokens; /* of all texts, one after the other */
    ScoreText *texts;
    int64_t n_texts, texts_capacity;
    ScoreItem *items;
    int64_t n_items, items_capacity;
    int64_t n_scored;  /* tokens, of all texts */
    int64_t n_builtin; /* tokens of the whole built-in corpus, where it was named; else 0 */
    float *losses;     /* (n_scored) where the texts' losses lie */
} ScoreSet;

typedef struct {
    int64_t most_tokens;   /* of running text, the first so many; 0: all */
    int64_t most_items;    /* of the other kinds; 0: all */
    const char *delimiter; /* stands between a context and each choice; NULL: nothing */
} ScoreReadOptions;

void score_set_init(ScoreSet *set, ScoreKind kind, const Tokenizer *tokenizer);

/* `data` is what the user named (data/names.h), without weights; for running text prepared data of the same
 * tokenizer too, of which everything is scored; of the built-in corpus, the end that
 * training holds out by default. Choices and last words stand in lines, so a .jsonl file's are
 * taken as they are. Once for each set. */
Status score_set_read(ScoreSet *set, const char *data, const ScoreReadOptions *options, Error *error);

void score_set_free(ScoreSet *set);

/* What rank 0 has read, to all, whose sets are empty. Collective. */
Status score_set_share(ScoreSet *set, Comm *comm, Error *error);

typedef struct {
    int64_t n_items, n_tokens,
        n_bytes; /* that count: those of which all was scored; of running text, what was */
    int64_t n_cut_items, n_cut_tokens; /* whose given beginning did not fit, and what of it was not seen */
    double loss; /* natural logarithms: per token; for last words per word, as LAMBADA's figures are. For
                          choices that of the right ones. */
    double perplexity; /* e^loss */
    double bits_per_byte;
    double accuracy; /* choices: by log-likelihood per token; last words: all of it predicted; NAN for text */
    double accuracy_sum; /* choices: by the plain sum, which favours short ones; otherwise NAN */
} ScoreSummary;

/* Of equally likely choices the first is the answer. */
Status score_summarise(const ScoreSet *set, ScoreSummary *summary, Error *error);

#endif
