/* What the losses come to. Sums are in double precision and in the order of the texts, whatever the order and
 * the batches in which they were scored were.
 *
 * A run that was ended early leaves NAN behind: of running text the tokens that were scored count, of the
 * other kinds the items all of whose texts were. */
#include "infer/score_set.h"

#include <math.h>

typedef struct {
    double loss;
    int64_t n_tokens;
    bool is_whole;
} TextSum;

static TextSum sum_text(const ScoreText *text) {
    TextSum sum = {.is_whole = true};
    for (int64_t i = 0; i < text->n_tokens - text->n_given; i++) {
        if (isnan(text->losses[i])) {
            sum.is_whole = false;
            continue;
        }
        sum.loss += (double)text->losses[i];
        sum.n_tokens++;
    }
    return sum;
}

/* Bytes of those tokens of running text that were scored. */
static int64_t scored_bytes(const ScoreSet *set, const ScoreText *text) {
    TokenDecoder decoder = token_decoder(set->tokenizer);
    int64_t n_bytes = 0;
    for (int64_t i = 0; i < text->n_tokens; i++) {
        size_t n = token_decode(&decoder, text->tokens[i]).n;
        if (i >= text->n_given && !isnan(text->losses[i - text->n_given])) n_bytes += (int64_t)n;
    }
    return n_bytes;
}

typedef struct {
    double loss;
    int64_t n_right, n_right_by_sum;
} Totals;

static void count_text(const ScoreSet *set, const ScoreText *text, ScoreSummary *summary, Totals *totals) {
    TextSum sum = sum_text(text);
    if (set->kind != SCORE_TEXT && !sum.is_whole) return;
    totals->loss += sum.loss;
    totals->n_right += text->is_predicted;
    summary->n_items++;
    summary->n_tokens += sum.n_tokens;
    summary->n_bytes += sum.is_whole ? text->n_bytes : scored_bytes(set, text);
}

static void count_choices(const ScoreSet *set, const ScoreItem *item, ScoreSummary *summary, Totals *totals) {
    int64_t best = 0, best_by_sum = 0;
    double lowest = INFINITY, lowest_sum = INFINITY;
    for (int64_t i = 0; i < item->n_texts; i++) {
        TextSum sum = sum_text(&set->texts[item->first_text + i]);
        if (!sum.is_whole) return;
        double mean = sum.loss / (double)sum.n_tokens;
        if (mean < lowest) lowest = mean, best = i;
        if (sum.loss < lowest_sum) lowest_sum = sum.loss, best_by_sum = i;
    }
    const ScoreText *right = &set->texts[item->first_text + item->label];
    TextSum sum = sum_text(right);
    totals->loss += sum.loss;
    totals->n_right += best == item->label;
    totals->n_right_by_sum += best_by_sum == item->label;
    summary->n_items++;
    summary->n_tokens += sum.n_tokens;
    summary->n_bytes += right->n_bytes;
}

static void count_cuts(const ScoreSet *set, const ScoreItem *item, ScoreSummary *summary) {
    int64_t n_cut = 0;
    for (int64_t i = 0; i < item->n_texts; i++) {
        int64_t n = set->texts[item->first_text + i].n_unseen;
        if (n > n_cut) n_cut = n;
    }
    summary->n_cut_items += n_cut > 0;
    summary->n_cut_tokens += n_cut;
}

Status score_summarise(const ScoreSet *set, ScoreSummary *summary, Error *error) {
    *summary = (ScoreSummary){.accuracy = NAN, .accuracy_sum = NAN};
    Totals totals = {0};
    for (int64_t i = 0; i < set->n_items; i++) {
        const ScoreItem *item = &set->items[i];
        if (set->kind == SCORE_CHOICE) count_choices(set, item, summary, &totals);
        else count_text(set, &set->texts[item->first_text], summary, &totals);
        count_cuts(set, item, summary);
    }
    if (!summary->n_tokens) return error_failed(error, "nothing was scored before the evaluation ended");
    double n_items = (double)summary->n_items;
    summary->loss = totals.loss / (set->kind == SCORE_LAST_WORD ? n_items : (double)summary->n_tokens);
    summary->perplexity = exp(summary->loss);
    summary->bits_per_byte = totals.loss / log(2.0) / (double)summary->n_bytes;
    if (set->kind != SCORE_TEXT) summary->accuracy = (double)totals.n_right / n_items;
    if (set->kind == SCORE_CHOICE) summary->accuracy_sum = (double)totals.n_right_by_sum / n_items;
    return STATUS_OK;
}
