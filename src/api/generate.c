/* Generation with a callback. What a stop string may still take back is held until that is known; the token
 * that settles it brings the bytes along. */
#include "api/api.h"

#include "infer/generate_options.h"
#include "infer/prompt.h"
#include "infer/stop.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    GenerateOptions generate;
} Values;

typedef struct {
    ApiCall *call;
    const Tokenizer *tokenizer;
    int32_t end_token;
    TokenDecoder decoder;
    StopSet stops;
    StopMatcher matcher;
    size_t *stop_room;
    char *bytes; /* that the program has not been given */
    size_t n_bytes, capacity;
    pgpt_token_callback callback;
    void *context;
} Telling;

static Status hold(Telling *telling, TokenBytes piece, Error *error) {
    if (telling->n_bytes + piece.n > telling->capacity) {
        size_t capacity = 2 * (telling->n_bytes + piece.n) + 64;
        char *larger = realloc(telling->bytes, capacity);
        if (!larger) return error_failed(error, "no memory for a text of %zu bytes", capacity);
        telling->bytes = larger;
        telling->capacity = capacity;
    }
    if (piece.n) memcpy(telling->bytes + telling->n_bytes, piece.bytes, piece.n);
    telling->n_bytes += piece.n;
    return STATUS_OK;
}

/* The first n of the bytes that are held go out with this token. */
static bool tell(Telling *telling, const GeneratedToken *token, size_t n) {
    pgpt_token told = {.token = token->token,
                       .log_probability = token->log_probability,
                       .bytes = n ? telling->bytes : "",
                       .n_bytes = n};
    api_step_out(telling->call);
    bool stops = telling->callback && telling->callback(telling->context, &told) != 0;
    api_step_in(telling->call);
    telling->n_bytes -= n;
    if (telling->n_bytes) memmove(telling->bytes, telling->bytes + n, telling->n_bytes);
    return stops;
}

/* The token that ends a text has no bytes. */
static GeneratorVerdict take_token(void *context, const GeneratedToken *token) {
    Telling *telling = context;
    size_t n_held = 0;
    if (token->token != telling->end_token) {
        TokenBytes piece = token_decode(&telling->decoder, token->token);
        if (hold(telling, piece, &telling->call->error) != STATUS_OK) return GENERATOR_END_ALL;
        n_held = stop_feed(&telling->matcher, piece.bytes, piece.n);
    }
    bool is_met = telling->matcher.is_met;
    size_t n = is_met || !token->is_last ? telling->n_bytes - n_held : telling->n_bytes;
    return tell(telling, token, n) || is_met ? GENERATOR_END_ALL : GENERATOR_GO_ON;
}

/* A prompt goes through the decoder too: what follows depends on it. */
static Status read_prompt(Telling *telling, const char *prompt, size_t n_bytes, TokenArray *tokens,
                          Error *error) {
    if (n_bytes) TRY(tokenizer_encode(telling->tokenizer, prompt, n_bytes, tokens, error));
    if (!tokens->n) return prompt_begin_text(telling->tokenizer, tokens, error);
    for (size_t i = 0; i < tokens->n; i++) token_decode(&telling->decoder, tokens->ids[i]);
    return STATUS_OK;
}

static Status read_stops(Telling *telling, const char *list, Error *error) {
    if (*list && stop_set_parse(&telling->stops, list, error) != STATUS_OK)
        return error_prefix(error, "stop: ");
    telling->stop_room = calloc(telling->stops.n_strings + 1, sizeof *telling->stop_room);
    if (!telling->stop_room) return error_failed(error, "no memory for stop strings");
    telling->matcher = stop_matcher(&telling->stops, telling->stop_room);
    return STATUS_OK;
}

static Status generate(pgpt_model *model, Telling *telling, const GenerateOptions *options,
                       const TokenArray *tokens, Error *error) {
    GeneratorPrompt prompt = {.tokens = tokens->ids, .n_tokens = (int64_t)tokens->n};
    GeneratorRequest request = {.prompts = &prompt,
                                .n_prompts = 1,
                                .n_new_tokens = options->n_tokens,
                                .n_vocabulary = tokenizer_n_vocabulary(telling->tokenizer),
                                .end_token = telling->end_token,
                                .sampler = {.temperature = options->temperature,
                                            .top_k = options->top_k,
                                            .top_p = options->top_p,
                                            .seed = (uint64_t)options->seed,
                                            .repetition_penalty = options->repetition_penalty,
                                            .repetition_window = options->repetition_window},
                                .callback = take_token,
                                .context = telling};
    return generator_run(&model->generator, &request, error);
}

static Status run(pgpt_model *model, Telling *telling, const char *prompt, size_t n_bytes,
                  const char *const *given, Error *error) {
    static const char *const allowed[] = {
        "tokens", "temperature", "top-k",       "top-p", "repetition-penalty", "repetition-window",
        "seed",   "stop",        "stop-at-end", NULL};
    Options parsed = {0};
    Values values;
    TokenArray tokens = {0};
    TRY_GOTO(
        api_read_options(&parsed, &api_generate_command, &values, given, "pgpt_generate", allowed, error),
        done);
    telling->end_token = values.generate.stop_at_end ? tokenizer_end_of_text(telling->tokenizer) : -1;
    TRY_GOTO(read_stops(telling, values.generate.stop, error), done);
    TRY_GOTO(read_prompt(telling, prompt, n_bytes, &tokens, error), done);
    generate(model, telling, &values.generate, &tokens, error);
done:
    token_array_free(&tokens);
    options_free(&parsed);
    return error->status;
}

pgpt_status pgpt_generate(pgpt_model *model, const char *prompt, size_t n_bytes, const char *const *options,
                          pgpt_token_callback callback, void *context, pgpt_error *error) {
    ApiCall call;
    Telling telling = {.call = &call,
                       .tokenizer = model->given.tokenizer,
                       .decoder = token_decoder(model->given.tokenizer),
                       .callback = callback,
                       .context = context};
    api_enter(&call);
    run(model, &telling, prompt, n_bytes, options, &call.error);
    stop_set_free(&telling.stops);
    free(telling.stop_room);
    free(telling.bytes);
    return api_leave(&call, error);
}

/* ---- In one piece */

typedef struct {
    char *text;
    size_t n_bytes, capacity;
    bool is_full;
} Collected;

static int collect(void *context, const pgpt_token *token) {
    Collected *collected = context;
    if (collected->n_bytes + token->n_bytes + 1 > collected->capacity) {
        size_t capacity = 2 * (collected->n_bytes + token->n_bytes) + 64;
        char *larger = realloc(collected->text, capacity);
        collected->is_full = !larger;
        if (!larger) return 1;
        collected->text = larger;
        collected->capacity = capacity;
    }
    memcpy(collected->text + collected->n_bytes, token->bytes, token->n_bytes);
    collected->n_bytes += token->n_bytes;
    return 0;
}

pgpt_status pgpt_complete(pgpt_model *model, const char *prompt, const char *const *options, char **text,
                          pgpt_error *error) {
    Collected collected = {.text = malloc(64), .capacity = 64};
    pgpt_error own;
    if (!error) error = &own;
    *text = NULL;
    *error = (pgpt_error){.status = PGPT_OK};
    collected.is_full = !collected.text;
    if (collected.text) pgpt_generate(model, prompt, strlen(prompt), options, collect, &collected, error);
    if (error->status == PGPT_OK && collected.is_full)
        *error = (pgpt_error){PGPT_FAILED, "no memory for the text"};
    if (error->status != PGPT_OK || !collected.text) {
        free(collected.text);
        return error->status;
    }
    collected.text[collected.n_bytes] = 0;
    *text = collected.text;
    return PGPT_OK;
}
