#include "infer/generate_options.h"

#include "device/device.h"
#include "infer/given_model.h"

enum { MANY = 1 << 30 };

const OptionSpec generate_option_specs[] = {
    OPTION_STRING(
        "prompt", GenerateOptions, prompt, "", "TEXT",
        "the text to go on from; '-' reads it from standard input, as does leaving it out when standard "
        "input is not a terminal and there is one process; without one the model begins a text of its own",
        .flags = OPTION_MAY_BE_EMPTY),
    OPTION_STRING(
        "prompts", GenerateOptions, prompts, "", "FILE",
        "go on from each of the prompts in a file ('-' is standard input): one a line, or, if its name ends in "
        ".jsonl, an object with a field \"prompt\" a line; empty lines are passed over"),
    OPTION_INT("tokens", GenerateOptions, n_tokens, 256, 1, MANY, "tokens to add, to each sample"),
    OPTION_INT("samples", GenerateOptions, n_samples, 1, 1, 1 << 20, "texts to make from each prompt"),
    OPTION_INT(
        "rows", GenerateOptions, n_rows, 0, 0, 1 << 20,
        "samples to decode at a time; more are faster and take more memory, and give the same texts but for "
        "rounding, which can turn a token where two are nearly equal; 0: up to 32"),
    OPTION_FLOAT(
        "temperature", GenerateOptions, temperature, 0.8, 0.0, 1e6,
        "how freely to choose: 0 always takes the likeliest token, 1 follows the model's probabilities"),
    OPTION_INT("top-k", GenerateOptions, top_k, 200, 0, MANY,
               "choose among the k likeliest tokens only; 0: all"),
    OPTION_FLOAT("top-p", GenerateOptions, top_p, 1.0, 0.0, 1.0,
                 "of those, choose among the likeliest that together have this probability; 1: all",
                 .flags = OPTION_ABOVE_MIN),
    OPTION_FLOAT(
        "repetition-penalty", GenerateOptions, repetition_penalty, 1.0, 0.0, 1000.0,
        "make tokens that are already in the text less likely: their logits are divided by this where they "
        "are above 0 and multiplied where below; 1: not; reported log-probabilities stay the model's own",
        .flags = OPTION_ABOVE_MIN),
    OPTION_INT("repetition-window", GenerateOptions, repetition_window, 0, 0, MANY,
               "the penalty is for tokens among the last so many, the prompt's included; 0: for all of them"),
    OPTION_INT("seed", GenerateOptions, seed, 1, 0, INT64_MAX,
               "fixes what is chosen: the same seed gives the same text, another one another text"),
    OPTION_STRING(
        "stop", GenerateOptions, stop, "", "TEXT",
        "end a sample before this text where the model writes it; several are separated by '|', and \\n, \\t, "
        "\\r, \\\\ and \\| stand for a line end, a tab, a carriage return, a backslash and a bar"),
    OPTION_BOOL("stop-at-end", GenerateOptions, stop_at_end, false,
                "end a sample where the model ends its text, if its tokenizer has a token for that"),
    OPTION_BOOL(
        "cache", GenerateOptions, cache, true,
        "keep keys and values of what was read (KV cache); without it the whole text is read again for "
        "every token, to see what the cache is worth"),
    OPTION_CHOICE("checkpoint", GenerateOptions, choice, CHECKPOINT_NEWEST, given_model_choices,
                  GIVEN_MODEL_CHOICE_HELP),
    OPTION_DEVICE(GenerateOptions, device),
    OPTION_CHOICE("dtype", GenerateOptions, precision, PRECISION_F32, precision_names,
                  "precision to compute in; pure-... are the same here as without"),
    OPTION_THREADS(GenerateOptions, n_threads),
    OPTION_STRING("output", GenerateOptions, output, "", "FILE",
                  "write the samples to this file, a JSON object a line, instead of to standard output",
                  .flags = OPTION_TRANSIENT),
    OPTION_BOOL(
        "log-probs", GenerateOptions, log_probs, false,
        "list in the JSON of each sample every token that was drawn, those of the stop string too, with its "
        "text and log-probability",
        .flags = OPTION_TRANSIENT),
    OPTION_BOOL("stream", GenerateOptions, stream, true, "show a single sample token by token as it is made",
                .flags = OPTION_TRANSIENT),
    OPTION_JSON(GenerateOptions, json, .flags = OPTION_TRANSIENT),
    OPTION_BOOL("quiet", GenerateOptions, quiet, false, "say only what went wrong",
                .flags = OPTION_TRANSIENT),
    OPTION_END,
};
