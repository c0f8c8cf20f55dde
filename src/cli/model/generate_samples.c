/* Samples: their tokens come one by one from the generator, become bytes, and go on until one of four ends.
 *
 * The text of a sample is kept whole; what a stop string may still take back is only not shown yet. Which
 * random numbers a sample gets depends on its number among those of its prompt and on nothing else, so that a
 * prompt gives the same texts alone, in a file of others and with any number of rows. */
#include "cli/model/generate.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "run/interrupt.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void generate_samples_close(GenerateSamples *set) {
    for (int64_t i = 0; set->samples && i < set->n_samples; i++) {
        free(set->samples[i].text);
        free(set->samples[i].tokens);
    }
    free(set->samples);
    free(set->stop_room);
    stop_set_free(&set->stop);
    *set = (GenerateSamples){0};
}

Status generate_samples_open(GenerateSamples *set, const GenerateOptions *options, const Options *sources,
                             const Tokenizer *tokenizer, const GeneratePrompts *prompts,
                             const GenerateShare *share, Error *error) {
    *set = (GenerateSamples){.options = options,
                             .tokenizer = tokenizer,
                             .prompts = prompts,
                             .share = share->share,
                             .n_shares = share->n_shares,
                             .interrupted = share->interrupted,
                             .context = share->context};
    bool has_stop = options_source(sources, "stop") != OPTION_FROM_DEFAULT;
    if (has_stop && stop_set_parse(&set->stop, options->stop, error) != STATUS_OK)
        return error_prefix(error, "--stop: ");
    set->n_samples = prompts->n_prompts * options->n_samples; /* both are far below 2^31 */
    size_t n_samples = (size_t)set->n_samples, n_strings = set->stop.n_strings;
    size_t stop_bytes = sizeof *set->stop_room * (n_strings + 1);
    TRY(memory_check((sizeof *set->samples + stop_bytes) * n_samples, "the samples",
                     "choose fewer --samples or prompts", error));
    set->samples = calloc(n_samples, sizeof *set->samples);
    set->stop_room = calloc(n_samples, stop_bytes);
    if (!set->samples || !set->stop_room)
        return error_failed(error, "no memory for %lld samples", (long long)n_samples);
    set->streams = share->is_root && options->stream && n_samples == 1 && !*options->output;
    set->shown = plain_writer(set->streams ? stdout : NULL);
    set->is_plain = set->shown.is_plain |= share->is_launched;
    set->shows_progress = share->is_root && !options->quiet && !(set->streams && isatty(STDOUT_FILENO));
    for (size_t i = 0; i < n_samples; i++) {
        set->samples[i] = (GenerateSample){.prompt = (int64_t)i / options->n_samples,
                                           .number = (int64_t)i % options->n_samples,
                                           .decoder = token_decoder(tokenizer),
                                           .stop = stop_matcher(&set->stop, set->stop_room + i * n_strings)};
    }
    return STATUS_OK;
}

int64_t generate_samples_own(const GenerateSamples *set) {
    return set->share < set->n_samples ? (set->n_samples - 1 - set->share) / set->n_shares + 1 : 0;
}

/* ---- one token */

static Status append_bytes(GenerateSample *sample, TokenBytes piece, Error *error) {
    if (sample->n_bytes + piece.n > sample->capacity) {
        size_t capacity = 2 * (sample->n_bytes + piece.n) + 64;
        char *larger = realloc(sample->text, capacity);
        if (!larger) return error_failed(error, "out of memory: no room for a text of %zu bytes", capacity);
        sample->text = larger;
        sample->capacity = capacity;
    }
    if (piece.n) memcpy(sample->text + sample->n_bytes, piece.bytes, piece.n);
    sample->n_bytes += piece.n;
    return STATUS_OK;
}

static Status keep_token(GenerateSample *sample, const GeneratedToken *token, Error *error) {
    if (sample->n_tokens == sample->tokens_capacity) {
        int64_t capacity = 2 * sample->tokens_capacity + 64;
        SampledToken *larger = realloc(sample->tokens, sizeof *larger * (size_t)capacity);
        if (!larger)
            return error_failed(error, "out of memory: no room for %lld tokens", (long long)capacity);
        sample->tokens = larger;
        sample->tokens_capacity = capacity;
    }
    sample->tokens[sample->n_tokens] = (SampledToken){token->token, token->log_probability};
    return STATUS_OK;
}

/* Show what no stop string can take back, or, at the end, everything. */
static void show_text(GenerateSamples *set, GenerateSample *sample, size_t n_held) {
    if (!set->streams) return;
    size_t n = sample->n_bytes - n_held - sample->n_shown;
    if (!n) return;
    plain_write(&set->shown, sample->text + sample->n_shown, n);
    fflush(stdout);
    sample->n_shown += n;
}

/* The token that ends a text is not part of it. */
static Status add_token(GenerateSamples *set, GenerateSample *sample, const GeneratedToken *token,
                        Error *error) {
    const GenerateOptions *options = set->options;
    bool ends_text = options->stop_at_end && token->token == tokenizer_end_of_text(set->tokenizer);
    if (options->log_probs) TRY(keep_token(sample, token, error));
    sample->n_tokens++;
    sample->log_probability += (double)token->log_probability;
    size_t n_held = 0;
    if (!ends_text) {
        TokenBytes piece = token_decode(&sample->decoder, token->token);
        TRY(append_bytes(sample, piece, error));
        n_held = stop_feed(&sample->stop, piece.bytes, piece.n);
    }
    if (sample->stop.is_met) {
        sample->n_bytes -= n_held;
        sample->end = GENERATE_STOP;
    } else if (token->is_last) {
        sample->end = ends_text ? GENERATE_END_OF_TEXT : GENERATE_LENGTH;
    }
    bool has_ended = sample->end != GENERATE_INTERRUPTED;
    show_text(set, sample, has_ended ? 0 : n_held);
    return STATUS_OK;
}

static void show_progress(GenerateSamples *set) {
    double seconds = timer_seconds_since(set->started_ns);
    if (!set->shows_progress || seconds < 1.0 || !progress_due(&set->progress)) return;
    char status[PROGRESS_STATUS_BYTES];
    double total = (double)set->options->n_tokens * (double)generate_samples_own(set);
    snprintf(status, sizeof status, "%lld tokens  %.0f tokens/s", (long long)set->n_made,
             (double)set->n_made / seconds);
    progress_update(&set->progress, (double)set->n_made / total, status);
}

/* Sample `i` of this rank's. */
static GenerateSample *own_sample(const GenerateSamples *set, int64_t i) {
    return &set->samples[set->share + i * set->n_shares];
}

static GeneratorVerdict take_token(void *context, const GeneratedToken *token) {
    GenerateSamples *set = context;
    GenerateSample *sample = own_sample(set, token->prompt);
    if (add_token(set, sample, token, set->error) != STATUS_OK) return GENERATOR_END_ALL;
    set->n_made++;
    show_progress(set);
    set->was_interrupted = set->interrupted(set->context, set->error);
    if (set->was_interrupted || set->error->status != STATUS_OK) return GENERATOR_END_ALL;
    return sample->stop.is_met ? GENERATOR_END_TEXT : GENERATOR_GO_ON;
}

/* ---- all of them */

static GeneratorPrompt *list_prompts(const GenerateSamples *set, int64_t n_own, Error *error) {
    GeneratorPrompt *prompts = calloc((size_t)n_own + 1, sizeof *prompts);
    if (!prompts) error_failed(error, "no memory for %lld samples", (long long)n_own);
    for (int64_t i = 0; prompts && i < n_own; i++) {
        const GenerateSample *sample = own_sample(set, i);
        const GeneratePrompt *prompt = &set->prompts->prompts[sample->prompt];
        prompts[i] = (GeneratorPrompt){set->prompts->tokens.ids + prompt->first, (int64_t)prompt->n_tokens,
                                       (uint64_t)sample->number};
    }
    return prompts;
}

Status generate_samples_run(GenerateSamples *set, Generator *generator, Error *error) {
    const GenerateOptions *options = set->options;
    int64_t n_own = generate_samples_own(set);
    GeneratorPrompt *prompts = list_prompts(set, n_own, error);
    if (!prompts) return error->status;
    GeneratorRequest request = {.prompts = prompts,
                                .n_prompts = n_own,
                                .n_new_tokens = options->n_tokens,
                                .n_vocabulary = tokenizer_n_vocabulary(set->tokenizer),
                                .end_token =
                                    options->stop_at_end ? tokenizer_end_of_text(set->tokenizer) : -1,
                                .without_cache = !options->cache,
                                .sampler = {.temperature = options->temperature,
                                            .top_k = options->top_k,
                                            .top_p = options->top_p,
                                            .seed = (uint64_t)options->seed,
                                            .repetition_penalty = options->repetition_penalty,
                                            .repetition_window = options->repetition_window},
                                .callback = take_token,
                                .context = set};
    for (int64_t i = 0; i < n_own; i++) {
        GenerateSample *sample = own_sample(set, i);
        generate_prompts_write(set->prompts, sample->prompt, &sample->decoder, &set->shown);
    }
    set->error = error;
    set->started_ns = timer_now_ns();
    interrupt_watch();
    progress_begin(&set->progress, stderr, 0.0);
    generator_run(generator, &request, error);
    progress_end(&set->progress);
    interrupt_ignore();
    set->n_read = generator->n_read;
    if (set->streams) show_text(set, &set->samples[0], 0); /* an interrupted one keeps what was held back */
    plain_end(&set->shown);
    if (error->status != STATUS_OK && set->streams) putchar('\n');
    free(prompts);
    return error->status;
}
