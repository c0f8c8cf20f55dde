/* What pgpt generate says of its samples: the texts for people; for programs one JSON object with everything,
 * or a file with one object a sample. The objects of samples are the same in both, but that those in the file
 * have the prompt's text with them, so that each line can be understood alone. */
#include "cli/model/generate.h"

#include "base/text/json.h"

#include <math.h>
#include <stdlib.h>

/* ---- for people */

static void print_heading(const GenerateSamples *set, const GenerateSample *sample, FILE *stream) {
    int64_t n_prompts = set->prompts->n_prompts, n_each = set->options->n_samples;
    if (n_prompts * n_each == 1) return;
    fputs("--- ", stream);
    if (n_prompts > 1)
        fprintf(stream, "prompt %lld of %lld", (long long)sample->prompt + 1, (long long)n_prompts);
    if (n_each > 1) {
        fprintf(stream, "%ssample %lld of %lld", n_prompts > 1 ? ", " : "", (long long)sample->number + 1,
                (long long)n_each);
    }
    fputs(" ---\n", stream);
}

void generate_report_print(const GenerateSamples *set, FILE *stream) {
    for (int64_t i = 0; i < set->n_samples; i++) {
        const GenerateSample *sample = &set->samples[i];
        print_heading(set, sample, stream);
        if (!set->streams) {
            TokenDecoder decoder = token_decoder(set->tokenizer);
            PlainWriter writer = plain_writer(stream);
            writer.is_plain |= set->is_plain;
            generate_prompts_write(set->prompts, sample->prompt, &decoder, &writer);
            plain_write(&writer, sample->text, sample->n_bytes);
            plain_end(&writer);
        }
        if (!sample->n_bytes || sample->text[sample->n_bytes - 1] != '\n') fputc('\n', stream);
    }
}

/* ---- for programs */

/* Bytes as a JSON text: zeros stay where the rest is UTF-8, and become blanks where it is not; what is no
 * UTF-8, such as a token that is a part of a character, becomes U+FFFD. */
static json_t *text_json(const char *bytes, size_t n_bytes) {
    const char *text = bytes ? bytes : "";
    json_t *value = json_stringn(text, n_bytes);
    if (value) return value;
    char *copy = malloc(n_bytes + 1);
    if (!copy) return json_null();
    for (size_t i = 0; i < n_bytes; i++) copy[i] = text[i] ? text[i] : ' ';
    copy[n_bytes] = 0;
    value = json_make_text(copy);
    free(copy);
    return value;
}

static json_t *tokens_json(const GenerateSamples *set, const GenerateSample *sample) {
    json_t *array = json_array();
    TokenDecoder decoder = token_decoder(set->tokenizer);
    generate_prompts_write(set->prompts, sample->prompt, &decoder, NULL);
    for (int64_t i = 0; i < sample->n_tokens; i++) {
        const SampledToken *token = &sample->tokens[i];
        TokenBytes piece = token_decode(&decoder, token->token);
        json_t *object = json_object();
        json_object_set_new(object, "token", json_integer(token->token));
        json_object_set_new(object, "text", text_json(piece.bytes, piece.n));
        json_object_set_new(object, "log_probability", json_make_number((double)token->log_probability));
        json_array_append_new(array, object);
    }
    return array;
}

static const char *const end_names[] = {"interrupted", "length", "stop", "end_of_text"};

static void add_sample(json_t *object, const GenerateSamples *set, const GenerateSample *sample) {
    const GeneratePrompt *prompt = &set->prompts->prompts[sample->prompt];
    double mean = sample->n_tokens ? sample->log_probability / (double)sample->n_tokens : (double)NAN;
    json_object_set_new(object, "prompt_index", json_integer(sample->prompt));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)prompt->n_tokens));
    json_object_set_new(object, "sample", json_integer(sample->number));
    json_object_set_new(object, "text", text_json(sample->text, sample->n_bytes));
    json_object_set_new(object, "tokens", json_integer(sample->n_tokens));
    json_object_set_new(object, "log_probability", json_make_number(sample->log_probability));
    json_object_set_new(object, "mean_log_probability", json_make_number(mean));
    json_object_set_new(object, "end", json_make_text(end_names[sample->end]));
    if (set->options->log_probs) json_object_set_new(object, "log_probabilities", tokens_json(set, sample));
}

static json_t *prompt_json(const GenerateSamples *set, int64_t prompt) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return json_null();
    TokenDecoder decoder = token_decoder(set->tokenizer);
    PlainWriter writer = plain_writer(stream); /* exact: memory is no terminal */
    generate_prompts_write(set->prompts, prompt, &decoder, &writer);
    json_t *value = fclose(stream) == 0 ? text_json(text, n_bytes) : json_null();
    free(text);
    return value;
}

Status generate_report_lines(const GenerateSamples *set, FileWriter *writer, Error *error) {
    for (int64_t i = 0; i < set->n_samples; i++) {
        const GenerateSample *sample = &set->samples[i];
        json_t *object = json_object();
        char *line = NULL;
        json_object_set_new(object, "prompt", prompt_json(set, sample->prompt));
        add_sample(object, set, sample);
        if (json_line(object, JSON_DIGITS_FLOAT, &line, error) == STATUS_OK)
            file_writer_printf(writer, error, "%s\n", line);
        json_decref(object);
        free(line);
        TRY(error->status);
    }
    return file_writer_commit(writer, error);
}

Status generate_report_json(const GenerateSamples *set, const char *path, int64_t step, size_t peak_bytes,
                            FILE *stream, Error *error) {
    json_t *samples = json_array();
    for (int64_t i = 0; i < set->n_samples; i++) {
        json_t *object = json_object();
        add_sample(object, set, &set->samples[i]);
        json_array_append_new(samples, object);
    }
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("generate"));
    json_object_set_new(object, "checkpoint", json_make_text(path));
    json_object_set_new(object, "step", json_integer(step));
    json_object_set_new(object, "prompts", json_integer(set->prompts->n_prompts));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)set->prompts->tokens.n));
    json_object_set_new(object, "samples", samples);
    json_object_set_new(object, "tokens", json_integer(set->n_made));
    json_object_set_new(object, "tokens_read", json_integer(set->n_read));
    json_object_set_new(object, "seconds", json_make_number(set->seconds));
    json_object_set_new(object, "tokens_per_s", json_make_number((double)set->n_made / set->seconds));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)peak_bytes));
    json_object_set_new(object, "interrupted", json_boolean(set->was_interrupted));
    return json_print(stream, object, error);
}
