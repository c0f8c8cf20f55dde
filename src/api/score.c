/* Scoring one text with the weights of the generator. */
#include "api/api.h"

#include "infer/score.h"

#include <math.h>
#include <stdlib.h>

static Status score_tokens(pgpt_model *model, ScoreText *text, Error *error) {
    GivenModel *given = &model->given;
    ScoreOptions options = {.dtype = model->dtype};
    Scorer scorer = {0};
    TRY(score_options_complete(&options, &given->source.config, error));
    TRY_GOTO(
        scorer_plan(&scorer, &given->source.config, &given->table, &given->backend, text, 1, &options, error),
        done);
    TRY_GOTO(device_check_memory(&given->backend, scorer_required_bytes(&scorer), "scoring",
                                 "choose a smaller model", error),
             done);
    TRY_GOTO(scorer_open(&scorer, &model->generator.memory, error), done);
    scorer_run(&scorer, NULL, NULL, error);
done:
    scorer_close(&scorer);
    return error->status;
}

static void summarise(const ScoreText *text, size_t n_scored_bytes, pgpt_score_result *result) {
    int64_t n = text->n_tokens - text->n_given;
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)text->losses[i];
    *result = (pgpt_score_result){.n_tokens = n,
                                  .loss = sum / (double)n,
                                  .perplexity = exp(sum / (double)n),
                                  .bits_per_byte = sum / log(2.0) / (double)n_scored_bytes};
}

/* Tell every scored token. Returns the bytes of the first one, which is not. */
static size_t tell(const ApiCall *call, const Tokenizer *tokenizer, const ScoreText *text,
                   pgpt_token_callback callback, void *context) {
    TokenDecoder decoder = token_decoder(tokenizer);
    size_t n_first = 0;
    for (int64_t i = 0; i < text->n_tokens; i++) {
        TokenBytes piece = token_decode(&decoder, text->tokens[i]);
        if (i == 0) n_first = piece.n;
        if (i < text->n_given || !callback) continue;
        pgpt_token token = {.token = text->tokens[i],
                            .log_probability = -text->losses[i - text->n_given],
                            .bytes = piece.n ? piece.bytes : "",
                            .n_bytes = piece.n};
        api_step_out(call);
        if (callback(context, &token) != 0) callback = NULL;
        api_step_in(call);
    }
    return n_first;
}

static Status score(ApiCall *call, pgpt_model *model, const char *bytes, size_t n_bytes,
                    pgpt_token_callback callback, void *context, pgpt_score_result *result, Error *error) {
    const Tokenizer *tokenizer = model->given.tokenizer;
    TokenArray tokens = {0};
    ScoreText text = {.n_given = 1};
    TRY_GOTO(tokenizer_encode(tokenizer, bytes, n_bytes, &tokens, error), done);
    if (tokens.n < 2) {
        error_user(error, "a text of %zu tokens has nothing to score; give it at least two", tokens.n);
        goto done;
    }
    text.tokens = tokens.ids;
    text.n_tokens = (int64_t)tokens.n;
    text.losses = malloc(tokens.n * sizeof *text.losses);
    if (!text.losses) {
        error_failed(error, "no memory for the losses of %zu tokens", tokens.n);
        goto done;
    }
    TRY_GOTO(score_tokens(model, &text, error), done);
    size_t n_first = tell(call, tokenizer, &text, callback, context);
    if (result) summarise(&text, n_bytes - (n_first < n_bytes ? n_first : n_bytes), result);
done:
    free(text.losses);
    token_array_free(&tokens);
    return error->status;
}

pgpt_status pgpt_score(pgpt_model *model, const char *text, size_t n_bytes, pgpt_token_callback callback,
                       void *context, pgpt_score_result *result, pgpt_error *error) {
    ApiCall call;
    api_enter(&call);
    if (result) *result = (pgpt_score_result){0};
    score(&call, model, text, n_bytes, callback, context, result, &call.error);
    return api_leave(&call, error);
}
