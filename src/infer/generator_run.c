/* Prompts take turns in the rows of a generator, and grow there token by token.
 *
 * Two ways to the next tokens. The host's: read what is new, take the logits, choose (sampler.h). Or, where
 * the device draws by itself and every row has only its last token to be read, several at a time: 16, a few
 * milliseconds' worth, then more and more as long as nothing happens, so that the first ones are there at
 * once and later ones do not wait for the host. What was drawn behind the end of a text is thrown away. A
 * penalty on repetition is the host's alone, and so is a run without the cache, in which every token is read
 * anew for the next one. */
#include "infer/generator.h"

#include "infer/repetition.h"

enum { FIRST_AHEAD = 16, MOST_AHEAD_WHILE_WAITING = 8 }; /* waiting: prompts for a row that ends */

typedef struct {
    const GeneratorRequest *request;
    Sampler sampler;
    RepetitionWindows repetition; /* a text in each row; closed where repetition is not penalised */
    SampleSettings settings;
    bool *is_drawing; /* (B) */
    int64_t next;     /* prompt */
    int n_ahead;      /* tokens to be drawn at a time, at most */
} Run;

/* Give every free row the next prompt. Returns, in *n_active, how many rows have one. */
static Status fill_rows(Generator *generator, Run *run, int64_t *n_active, Error *error) {
    const GeneratorRequest *request = run->request;
    *n_active = 0;
    for (int64_t b = 0; b < generator->B; b++) {
        if (generator->prompt[b] < 0 && run->next < request->n_prompts) {
            const GeneratorPrompt *prompt = &request->prompts[run->next];
            for (int64_t i = 0; i < prompt->n_tokens; i++)
                TRY(generator_check_token(generator, prompt->tokens[i], error));
            TRY(generator_start(generator, b, prompt->tokens, prompt->n_tokens, error));
            repetition_start(&run->repetition, b, prompt->tokens, prompt->n_tokens);
            generator->n_new[b] = 0;
            generator->prompt[b] = run->next++;
            generator_changed(generator);
        }
        *n_active += generator->prompt[b] >= 0;
    }
    return STATUS_OK;
}

static const GeneratorPrompt *prompt_of(const Generator *generator, const Run *run, int64_t b) {
    return &run->request->prompts[generator->prompt[b]];
}

/* The position in its text that the next token of a row will have. */
static int64_t next_position(const Generator *generator, const Run *run, int64_t b) {
    return prompt_of(generator, run, b)->n_tokens + generator->n_new[b];
}

/* Hand a row's next token over. *goes_on: it is to be appended. */
static GeneratorVerdict hand_over(Generator *generator, Run *run, int64_t b, SampledToken picked,
                                  bool *goes_on) {
    const GeneratorRequest *request = run->request;
    GeneratedToken made = {.prompt = generator->prompt[b],
                           .position = next_position(generator, run, b),
                           .token = picked.token,
                           .log_probability = picked.log_probability};
    made.is_last = ++generator->n_new[b] >= request->n_new_tokens ||
                   (request->end_token >= 0 && made.token == request->end_token);
    GeneratorVerdict verdict =
        request->callback ? request->callback(request->context, &made) : GENERATOR_GO_ON;
    *goes_on = !made.is_last && verdict == GENERATOR_GO_ON;
    if (!*goes_on) {
        generator->prompt[b] = -1; /* the row stays as it is, and has nothing new to read */
        generator_changed(generator);
    }
    return verdict;
}

/* ---- the host's way */

static Status continue_row(Generator *generator, Run *run, int64_t b, GeneratorVerdict *verdict,
                           Error *error) {
    SampledToken picked;
    int64_t position = next_position(generator, run, b);
    if (sampler_pick(&run->sampler, generator_logits(generator, b), repetition_counts(&run->repetition, b),
                     prompt_of(generator, run, b)->sample, (uint64_t)position, &picked, error) != STATUS_OK) {
        return error_prefix(error, "at token %lld: ", (long long)position);
    }
    bool goes_on;
    *verdict = hand_over(generator, run, b, picked, &goes_on);
    if (!goes_on) return STATUS_OK;
    repetition_add(&run->repetition, b, picked.token);
    return generator_append(generator, b, picked.token, error);
}

static Status choose_tokens(Generator *generator, Run *run, GeneratorVerdict *verdict, Error *error) {
    for (int64_t b = 0; b < generator->B && run->request->without_cache; b++)
        if (generator->prompt[b] >= 0) generator->row[b].n_cached = 0;
    TRY(generator_step(generator, error));
    for (int64_t b = 0; b < generator->B && *verdict != GENERATOR_END_ALL; b++) {
        if (generator->prompt[b] >= 0) TRY(continue_row(generator, run, b, verdict, error));
    }
    run->n_ahead = FIRST_AHEAD;
    return STATUS_OK;
}

/* ---- the device's way */

/* How many tokens to draw now; 0: the host has to choose. */
static int n_to_draw(Generator *generator, Run *run) {
    if (sampler_penalises(&run->request->sampler) || run->request->without_cache) return 0;
    bool is_waiting = run->next < run->request->n_prompts;
    int64_t n =
        is_waiting && run->n_ahead > MOST_AHEAD_WHILE_WAITING ? MOST_AHEAD_WHILE_WAITING : run->n_ahead;
    for (int64_t b = 0; b < generator->B; b++) {
        run->is_drawing[b] = generator->prompt[b] >= 0;
        int64_t left = run->request->n_new_tokens - generator->n_new[b];
        if (run->is_drawing[b] && left < n) n = left;
    }
    int64_t most = generator_can_draw(generator, run->is_drawing);
    return (int)(n < most ? n : most);
}

static void set_rows(Generator *generator, const Run *run) {
    for (int64_t b = 0; b < generator->B; b++) {
        SampleRow *row = &generator->drawing.row[b];
        *row = (SampleRow){0};
        if (!run->is_drawing[b]) continue;
        *row = (SampleRow){.sample = prompt_of(generator, run, b)->sample,
                           .position = (uint64_t)next_position(generator, run, b),
                           .is_drawing = 1};
    }
}

static Status take_drawn(Generator *generator, Run *run, int64_t b, SamplePick pick,
                         GeneratorVerdict *verdict, Error *error) {
    if (pick.token < 0) {
        sampler_diverged(-1 - (int64_t)pick.token, pick.log_probability, error);
        return error_prefix(error, "at token %lld: ", (long long)next_position(generator, run, b));
    }
    bool goes_on;
    SampledToken picked = {pick.token, pick.log_probability};
    *verdict = hand_over(generator, run, b, picked, &goes_on);
    if (goes_on) return generator_append_drawn(generator, b, pick.token, error);
    generator->row[b].n_cached = generator->row[b].n_tokens;
    return STATUS_OK;
}

static Status draw_tokens(Generator *generator, Run *run, int n, GeneratorVerdict *verdict, Error *error) {
    set_rows(generator, run);
    TRY(generator_draw(generator, &run->settings, n, error));
    for (int i = 0; i < n; i++) {
        for (int64_t b = 0; b < generator->B; b++) {
            if (generator->prompt[b] < 0) continue;
            TRY(take_drawn(generator, run, b, generator_drawn(generator, b, i), verdict, error));
            if (*verdict == GENERATOR_END_ALL) return STATUS_OK;
        }
    }
    run->n_ahead = 2 * n < GENERATOR_MOST_AHEAD ? 2 * n : GENERATOR_MOST_AHEAD;
    return STATUS_OK;
}

/* ---- a run */

static Status run_prompts(Generator *generator, Run *run, Error *error) {
    int64_t n_active;
    GeneratorVerdict verdict = GENERATOR_GO_ON;
    generator_changed(generator);
    for (int64_t b = 0; b < generator->B; b++) generator->prompt[b] = -1;
    while (verdict != GENERATOR_END_ALL) {
        TRY(fill_rows(generator, run, &n_active, error));
        if (!n_active) return STATUS_OK;
        int n = n_to_draw(generator, run);
        if (n) TRY(draw_tokens(generator, run, n, &verdict, error));
        else TRY(choose_tokens(generator, run, &verdict, error));
    }
    return STATUS_OK;
}

/* A window that no text of the run outgrows is one over all of it. */
static Status open_repetition(Generator *generator, Run *run, Error *error) {
    const GeneratorRequest *request = run->request;
    if (!sampler_penalises(&request->sampler)) return STATUS_OK;
    int64_t longest = 0, window = request->sampler.repetition_window;
    for (int64_t i = 0; i < request->n_prompts; i++) {
        if (request->prompts[i].n_tokens > longest) longest = request->prompts[i].n_tokens;
    }
    if (window - request->n_new_tokens >= longest) window = 0;
    return repetition_open(&run->repetition, generator->B, generator->vocabulary, window, error);
}

Status generator_run(Generator *generator, const GeneratorRequest *request, Error *error) {
    if (request->n_new_tokens < 1) return STATUS_OK;
    int64_t n_vocabulary = request->n_vocabulary ? request->n_vocabulary : generator->vocabulary;
    if (n_vocabulary > generator->vocabulary) {
        return error_failed(error, "%lld tokens were to be sampled from a model of %lld",
                            (long long)n_vocabulary, (long long)generator->vocabulary);
    }
    Arena arena = {0};
    Run run = {.request = request,
               .is_drawing = ARENA_ARRAY(&arena, bool, generator->B),
               .n_ahead = FIRST_AHEAD,
               .settings = {.temperature = request->sampler.temperature,
                            .top_k = request->sampler.top_k,
                            .top_p = request->sampler.top_p,
                            .seed = request->sampler.seed,
                            .n_vocabulary = n_vocabulary}};
    if (sampler_open(&run.sampler, &request->sampler, n_vocabulary, error) == STATUS_OK &&
        open_repetition(generator, &run, error) == STATUS_OK) {
        run_prompts(generator, &run, error);
    }
    repetition_close(&run.repetition);
    sampler_close(&run.sampler);
    arena_free(&arena);
    return error->status;
}
