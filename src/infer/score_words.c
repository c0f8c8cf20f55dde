/* Is the last word what the model would have said? The losses alone do not tell: a token of probability 0.3
 * may be the likeliest or not. So the logits are needed, of a few positions after a long beginning, and that
 * is what the generator is made for: it reads the beginning into its caches, then the word token by token.
 * The true token is put in whatever the model would have said, since up to the first wrong one that is the
 * same, and the losses need it.
 *
 * Texts of similar length run together, because a row that has nothing new to read waits for those that
 * have. */
#include "infer/score.h"

#include "base/system/memory.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    int64_t text, n_tokens;
} Turn;

static int by_length(const void *a, const void *b) {
    const Turn *x = a, *y = b;
    if (x->n_tokens != y->n_tokens) return x->n_tokens < y->n_tokens ? -1 : 1;
    return (x->text > y->text) - (x->text < y->text);
}

static int64_t n_scored(const ScoreText *text) {
    return text->n_tokens - text->n_given;
}

static int64_t n_read(const ScoreText *text) {
    return text->n_tokens - 1 - text->n_unseen;
}

/* The loss of a token, and whether no other has a larger logit (of equal ones the first counts). */
static float token_loss(const float *logits, int64_t V, int32_t token, bool *is_likeliest) {
    int64_t best = 0;
    double sum = 0.0;
    for (int64_t i = 1; i < V; i++) best = logits[i] > logits[best] ? i : best;
    for (int64_t i = 0; i < V; i++) sum += exp((double)logits[i] - (double)logits[best]);
    *is_likeliest = best == token;
    return (float)(log(sum) + (double)logits[best] - (double)logits[token]);
}

static Status start_rows(Generator *generator, ScoreText *texts, const Turn *turns, int64_t n_rows,
                         int64_t *longest, Error *error) {
    *longest = 0;
    for (int64_t b = 0; b < n_rows; b++) {
        ScoreText *text = &texts[turns[b].text];
        TRY(generator_start(generator, b, text->tokens + text->n_unseen, text->n_given - text->n_unseen,
                            error));
        if (*longest < n_scored(text)) *longest = n_scored(text);
        text->is_predicted = true;
    }
    return STATUS_OK;
}

/* Token number k of the words of all rows that have so many. */
static Status take_tokens(Generator *generator, ScoreText *texts, const Turn *turns, int64_t n_rows,
                          int64_t k, Error *error) {
    for (int64_t b = 0; b < n_rows; b++) {
        ScoreText *text = &texts[turns[b].text];
        if (k >= n_scored(text)) continue;
        int32_t token = text->tokens[text->n_given + k];
        if (token < 0 || token >= generator->vocabulary) {
            return error_failed(error, "token %d is not one of the model's %lld", token,
                                (long long)generator->vocabulary);
        }
        bool is_likeliest;
        text->losses[k] =
            token_loss(generator_logits(generator, b), generator->vocabulary, token, &is_likeliest);
        if (!isfinite(text->losses[k])) {
            return error_failed(error,
                                "the model gives token %lld of text %lld no probability: it has diverged",
                                (long long)(text->n_given + k), (long long)turns[b].text);
        }
        text->is_predicted = text->is_predicted && is_likeliest;
        if (k + 1 < n_scored(text)) TRY(generator_append(generator, b, token, error));
    }
    return STATUS_OK;
}

/* Every so many texts one share's. */
static Status run_turns(Generator *generator, ScoreText *texts, const Turn *turns, int64_t n_texts,
                        const ScoreWordsOptions *options, ScoreProgress progress, void *context,
                        Error *error) {
    int64_t n_done = 0, n_total = 0, n_shares = options->n_shares > 1 ? options->n_shares : 1;
    for (int64_t i = 0; i < n_texts; i++) {
        if (i / generator->B % n_shares == options->share) n_total += n_read(&texts[turns[i].text]);
    }
    for (int64_t first = generator->B * options->share; first < n_texts; first += generator->B * n_shares) {
        int64_t n_rows = n_texts - first < generator->B ? n_texts - first : generator->B, longest;
        TRY(start_rows(generator, texts, turns + first, n_rows, &longest, error));
        for (int64_t k = 0; k < longest; k++) {
            TRY(generator_step(generator, error));
            TRY(take_tokens(generator, texts, turns + first, n_rows, k, error));
        }
        for (int64_t b = 0; b < n_rows; b++) n_done += n_read(&texts[turns[first + b].text]);
        if (progress && !progress(context, n_done, n_total)) return STATUS_OK;
    }
    return STATUS_OK;
}

Status score_last_words(Generator *generator, ScoreText *texts, int64_t n_texts,
                        const ScoreWordsOptions *options, ScoreProgress progress, void *context,
                        Error *error) {
    int64_t window = options->window;
    void *room;
    size_t n_bytes = sizeof(Turn) * (size_t)n_texts;
    TRY(memory_alloc(&room, n_bytes, "the order of the texts", error));
    Turn *turns = room;
    for (int64_t i = 0; i < n_texts; i++) {
        ScoreText *text = &texts[i];
        /* All but the last token are read. A word that fills the window alone keeps one token before it. */
        text->n_unseen = text->n_tokens - 1 > window ? text->n_tokens - 1 - window : 0;
        if (text->n_unseen > text->n_given - 1) text->n_unseen = text->n_given - 1;
        text->is_predicted = false;
        for (int64_t k = 0; k < n_scored(text); k++) text->losses[k] = NAN;
        turns[i] = (Turn){i, text->n_given - text->n_unseen};
    }
    qsort(turns, (size_t)n_texts, sizeof *turns, by_length);
    run_turns(generator, texts, turns, n_texts, options, progress, context, error);
    memory_free(turns, n_bytes);
    return error->status;
}
