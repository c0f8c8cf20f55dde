#include "cli/model/eval_report.h"

#include "base/text/format.h"
#include "base/text/json.h"
#include "data/dataset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double per_second(const EvalReport *report) {
    return (double)report->summary.n_tokens / report->seconds;
}

static void print_items(const EvalReport *report, FILE *stream) {
    const ScoreSummary *summary = &report->summary;
    bool is_choice = report->set->kind == SCORE_CHOICE;
    fprintf(stream, "accuracy        %.4f (%lld of %lld %s)\n", summary->accuracy,
            (long long)llround(summary->accuracy * (double)summary->n_items), (long long)summary->n_items,
            is_choice ? "by log-likelihood per token" : "last words predicted exactly");
    if (is_choice) fprintf(stream, "accuracy, sum   %.4f (by log-likelihood)\n", summary->accuracy_sum);
    fprintf(stream, "loss            %.4f per %s\n", summary->loss,
            is_choice ? "token of the right choices" : "word");
    fprintf(stream, "perplexity      %.4g\n", summary->perplexity);
    fprintf(stream, "bits per byte   %.4f\n", summary->bits_per_byte);
    fprintf(stream, "scored          %lld tokens (%lld bytes) of %s\n", (long long)summary->n_tokens,
            (long long)summary->n_bytes, is_choice ? "right choices" : "last words");
    if (summary->n_cut_items) {
        fprintf(stream,
                "too long        %lld contexts for the window of %lld tokens: %lld tokens were cut off\n",
                (long long)summary->n_cut_items, (long long)report->options.window,
                (long long)summary->n_cut_tokens);
    }
}

static void print_text(const EvalReport *report, FILE *stream) {
    const ScoreSummary *summary = &report->summary;
    fprintf(stream, "loss            %.4f per token\n", summary->loss);
    fprintf(stream, "perplexity      %.4g\n", summary->perplexity);
    fprintf(stream, "bits per byte   %.4f\n", summary->bits_per_byte);
    fprintf(stream, "scored          %lld tokens (%lld bytes), window %lld, stride %lld\n",
            (long long)summary->n_tokens, (long long)summary->n_bytes, (long long)report->options.window,
            (long long)report->options.stride);
    if (report->set->n_builtin)
        fprintf(
            stream,
            "held out        of builtin's %lld tokens the last %.0f %% are scored, which training holds out "
            "(unless its --validation was another)\n",
            (long long)report->set->n_builtin, 100.0 * DATASET_DEFAULT_VALIDATION_FRACTION);
}

void eval_report_print(const EvalReport *report, FILE *stream) {
    if (report->set->kind == SCORE_TEXT) print_text(report, stream);
    else print_items(report, stream);
    fprintf(stream, "time            %s, %s, %s\n", format_duration(report->seconds).text,
            format_rate(per_second(report), "tokens/s").text, format_bytes(report->peak_bytes).text);
}

Status eval_report_json(const EvalReport *report, FILE *stream, Error *error) {
    const ScoreSummary *summary = &report->summary;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("eval"));
    json_object_set_new(object, "task", json_make_text(report->task));
    json_object_set_new(object, "data", json_make_text(report->data));
    json_object_set_new(object, "model", json_make_text(report->model));
    json_object_set_new(object, "step", json_integer(report->step));
    json_object_set_new(object, "loss", json_make_number(summary->loss));
    json_object_set_new(object, "perplexity", json_make_number(summary->perplexity));
    json_object_set_new(object, "bits_per_byte", json_make_number(summary->bits_per_byte));
    json_object_set_new(object, "accuracy", json_make_number(summary->accuracy));
    json_object_set_new(object, "accuracy_sum", json_make_number(summary->accuracy_sum));
    json_object_set_new(object, "items", json_integer(summary->n_items));
    json_object_set_new(object, "tokens", json_integer(summary->n_tokens));
    json_object_set_new(object, "bytes", json_integer(summary->n_bytes));
    json_object_set_new(object, "window", json_integer(report->options.window));
    json_object_set_new(object, "stride", json_integer(report->options.stride));
    json_object_set_new(object, "cut_items", json_integer(summary->n_cut_items));
    json_object_set_new(object, "cut_tokens", json_integer(summary->n_cut_tokens));
    json_object_set_new(object, "tokens_read", json_integer(report->n_read));
    json_object_set_new(object, "seconds", json_make_number(report->seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number(per_second(report)));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)report->peak_bytes));
    json_object_set_new(object, "interrupted", json_boolean(report->was_interrupted));
    return json_print(stream, object, error);
}

/* ---- token by token */

/* Bytes as a JSON text: a part of a character, as byte tokens are, becomes U+FFFD. */
static json_t *piece_json(TokenBytes piece) {
    if (!piece.bytes) return json_string("");
    json_t *value = json_stringn(piece.bytes, piece.n);
    if (value) return value;
    char *copy = malloc(piece.n + 1);
    if (!copy) return json_null();
    for (size_t i = 0; i < piece.n; i++) copy[i] = piece.bytes[i] ? piece.bytes[i] : ' ';
    copy[piece.n] = 0;
    value = json_make_text(copy);
    free(copy);
    return value;
}

static Status write_tokens(const ScoreSet *set, int64_t item, int64_t choice, FileWriter *writer,
                           Error *error) {
    const ScoreText *text = &set->texts[set->items[item].first_text + choice];
    TokenDecoder decoder = token_decoder(set->tokenizer);
    int64_t first = set->kind == SCORE_TEXT ? 0 : text->n_given;
    for (int64_t i = 0; i < text->n_tokens; i++) {
        TokenBytes piece = token_decode(&decoder, text->tokens[i]);
        if (i < first) continue;
        json_t *object = json_object();
        char *line = NULL;
        double loss = i < text->n_given ? (double)NAN : (double)text->losses[i - text->n_given];
        json_object_set_new(object, "item", json_integer(item));
        if (set->kind == SCORE_CHOICE) json_object_set_new(object, "choice", json_integer(choice));
        json_object_set_new(object, "position", json_integer(i));
        json_object_set_new(object, "token", json_integer(text->tokens[i]));
        json_object_set_new(object, "text", piece_json(piece));
        json_object_set_new(object, "log_probability", json_make_number(-loss));
        if (json_line(object, JSON_DIGITS_FLOAT, &line, error) == STATUS_OK)
            file_writer_printf(writer, error, "%s\n", line);
        json_decref(object);
        free(line);
        TRY(error->status);
    }
    return STATUS_OK;
}

Status eval_report_tokens(const ScoreSet *set, FileWriter *writer, Error *error) {
    for (int64_t item = 0; item < set->n_items; item++) {
        for (int64_t choice = 0; choice < set->items[item].n_texts; choice++)
            TRY(write_tokens(set, item, choice, writer, error));
    }
    return file_writer_commit(writer, error);
}
