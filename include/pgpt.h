/* pgpt as a library: open a model, complete and score texts, train.
 *
 *     pgpt_error error;
 *     pgpt_model *model;
 *     char *text;
 *     const char *options[] = {"tokens=40", "temperature=0.8", NULL};
 *     if (pgpt_open("runs/first", NULL, &model, &error) == PGPT_OK &&
 *         pgpt_complete(model, "Once upon a time", options, &text, &error) == PGPT_OK)
 *         puts(text);
 *     else
 *         fprintf(stderr, "%s\n", error.text);
 *
 * Compile with `cc program.c $(pkg-config --cflags --libs pgpt)`.
 *
 * Errors are values: a function that can fail returns a pgpt_status and describes what went wrong in
 * *error, which it writes whenever it is called; error may be NULL. What a failed function would have
 * handed out is NULL or 0.
 *
 * Options are a list of "name=value" that ends with NULL, or NULL for none. Names, values and defaults are
 * those of the command line (`pgpt generate --help`, `pgpt train --help`) without the dashes; a switch is
 * "name=true" or "name=false". An unknown or useless one is an error.
 *
 * Threads: there is no state outside the handles. Different handles may be used by different threads at the
 * same time. One handle is used by one thread at a time, but for pgpt_tokenize, pgpt_detokenize and
 * pgpt_model_about, which any number of threads may call. Callbacks run in the thread that made the call,
 * and must not use the handle that it was made with, but for those three. The library installs no signal
 * handlers, writes nothing to standard output or standard error and does not end the process, except where
 * not even the memory for a small record can be had.
 *
 * Texts are bytes, UTF-8 as a rule. A token may end within a character, and with it what a callback is
 * given.
 *
 * Structures that the library hands out may grow at their end in later versions; of those that the caller
 * makes, pgpt_observer may, and begins with its size. A version whose major and minor number are the same
 * is compatible. */
#ifndef PGPT_H
#define PGPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined __GNUC__
#    define PGPT_API __attribute__((visibility("default")))
#else
#    define PGPT_API
#endif

/* ---- Version */

#define PGPT_VERSION_MAJOR  0
#define PGPT_VERSION_MINOR  11
#define PGPT_VERSION_PATCH  0
#define PGPT_VERSION_NUMBER (PGPT_VERSION_MAJOR * 10000 + PGPT_VERSION_MINOR * 100 + PGPT_VERSION_PATCH)

/* Of the library that is there when the program runs: "0.1.0", with the commit where it is not a release;
 * and the number, to be compared with PGPT_VERSION_NUMBER of the header that it was compiled with. */
PGPT_API const char *pgpt_version(void);
PGPT_API int pgpt_version_number(void);

/* ---- Errors */

typedef enum {
    PGPT_OK = 0,
    PGPT_FAILED = 1, /* the system failed, or a file is damaged */
    PGPT_USER = 2,   /* what was asked for cannot be; the text says what to do instead */
} pgpt_status;

typedef struct {
    pgpt_status status;
    char text[1024]; /* one line without control characters; "" where there is no error */
} pgpt_error;

/* Gives back what a function said to give back by this. NULL is fine. */
PGPT_API void pgpt_free(void *memory);

/* ---- Models */

typedef struct pgpt_model pgpt_model;

/* The model in a folder: a run of `pgpt train` or pgpt_train, one of its checkpoints, or a GPT-2 of Hugging
 * Face. Options: checkpoint (newest, best), device (auto, cpu, cuda), dtype, threads. */
PGPT_API pgpt_status pgpt_open(const char *folder, const char *const *options, pgpt_model **model,
                               pgpt_error *error);
PGPT_API void pgpt_close(pgpt_model *model); /* NULL is fine */

typedef struct {
    const char *folder;  /* of the checkpoint, or of Hugging Face's files */
    const char *device;  /* "cpu", "cuda" */
    const char *warning; /* what whoever opened it should know; "" if nothing */
    int64_t step;        /* at which it was saved; 0: it was not trained here */
    int64_t n_parameters, n_layers, n_heads, n_channels;
    int64_t context;     /* tokens that it sees at a time */
    int64_t vocabulary;  /* tokens are 0 to vocabulary - 1 */
    int32_t end_of_text; /* the token that ends a text; -1: it has none */
} pgpt_model_info;

/* Valid until the model is closed. */
PGPT_API const pgpt_model_info *pgpt_model_about(const pgpt_model *model);

/* ---- Texts and tokens. The results are to be given back by pgpt_free. */

PGPT_API pgpt_status pgpt_tokenize(const pgpt_model *model, const char *text, size_t n_bytes,
                                   int32_t **tokens, size_t *n_tokens, pgpt_error *error);

/* *text has a zero behind its *n_bytes. Tokens outside the vocabulary are nothing. */
PGPT_API pgpt_status pgpt_detokenize(const pgpt_model *model, const int32_t *tokens, size_t n_tokens,
                                     char **text, size_t *n_bytes, pgpt_error *error);

/* ---- Generation */

/* One token, as it is made or scored. */
typedef struct {
    int32_t token;
    float log_probability; /* under the model's own distribution, whatever the options */
    const char *bytes;     /* the text that it adds, not terminated by a zero, */
    size_t n_bytes;        /* which may be none, or what earlier tokens had to hold back for a stop string */
} pgpt_token;

/* Other than 0 ends the call, which then returns PGPT_OK. */
typedef int (*pgpt_token_callback)(void *context, const pgpt_token *token);

/* Go on from a prompt (of 0 bytes: begin a text) and tell every token. The same model, options and prompt
 * give the same text. Options: tokens, temperature, top-k, top-p, repetition-penalty, repetition-window,
 * seed, stop, stop-at-end. */
PGPT_API pgpt_status pgpt_generate(pgpt_model *model, const char *prompt, size_t n_bytes,
                                   const char *const *options, pgpt_token_callback callback, void *context,
                                   pgpt_error *error);

/* The same in one piece: a prompt that ends with a zero, and the text that was added to it, to be given
 * back by pgpt_free. */
PGPT_API pgpt_status pgpt_complete(pgpt_model *model, const char *prompt, const char *const *options,
                                   char **text, pgpt_error *error);

/* ---- Scoring */

typedef struct {
    int64_t n_tokens;     /* that were scored: all but the first, before which nothing stands */
    double loss;          /* -log p of a token, natural logarithm, in the mean */
    double perplexity;    /* e to the loss */
    double bits_per_byte; /* which compares models of different tokenizers */
} pgpt_score_result;

/* How likely the model finds a text of at least two tokens. The callback is told every scored token when
 * all are known; NULL: nobody is. */
PGPT_API pgpt_status pgpt_score(pgpt_model *model, const char *text, size_t n_bytes,
                                pgpt_token_callback callback, void *context, pgpt_score_result *result,
                                pgpt_error *error);

/* ---- Training */

/* A step that has been done. What is not known is NAN. */
typedef struct {
    int64_t step, n_steps; /* counted from 1; of the whole run */
    int64_t n_tokens;      /* that the run has learned from so far */
    double loss, learning_rate, gradient_norm;
    double tokens_per_s, step_ms;
} pgpt_step;

typedef enum { PGPT_LOG_NOTE, PGPT_LOG_WARNING } pgpt_log_kind;

/* Who is told what happens in a run. Slots may be NULL. What returns other than 0 asks the run to stop: it
 * saves and ends, and pgpt_train returns PGPT_OK. */
typedef struct {
    size_t size; /* sizeof(pgpt_observer) */
    void *context;
    int (*on_step)(void *context, const pgpt_step *step);
    int (*on_evaluation)(void *context, int64_t step, double validation_loss);
    int (*on_sample)(void *context, int64_t step, const char *text, size_t n_bytes);
    int (*on_checkpoint)(void *context, int64_t step, const char *folder);
    void (*on_log)(void *context, pgpt_log_kind kind, const char *line);
} pgpt_observer;

typedef struct {
    char folder[4096];      /* of the run, for pgpt_open */
    int64_t step;           /* steps done */
    double loss;            /* of the last step */
    double validation_loss; /* of the last evaluation */
    int was_stopped,
        saved; /* before its last step, by an observer; is what it has come to in a checkpoint? */
} pgpt_training;

/* Train a model, as `pgpt train` does, in this process: options are its options ("model=nano", "steps=100",
 * "out=runs/first", "resume=runs/first"), and a word that ends in .ini is a config file. Those that print
 * or that are for processes as a whole (json, quiet, print-program, print-mesh, fault, hang-timeout) are
 * refused. Returns when the run has ended. Signals are the caller's: a handler of his that wants the run to
 * stop sets a flag that an observer looks at. Relative paths begin at the current folder. result may be
 * NULL. */
PGPT_API pgpt_status pgpt_train(const char *const *options, const pgpt_observer *observers,
                                size_t n_observers, pgpt_training *result, pgpt_error *error);

#ifdef __cplusplus
}
#endif

#endif
