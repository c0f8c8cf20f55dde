/* The generator: continues texts with a model, whose weights it may share with a trainer.
 *
 * Three stages, so that a trainer can count the memory of everything before it allocates anything:
 *
 *     TRY(generator_plan(&generator, &config, &table, backend, &(GeneratorOptions){.n_rows = 4}, error));
 *     ... generator_required_bytes(&generator) ...
 *     // or NULL: weights of its own, to be uploaded
 *     TRY(generator_open(&generator, &trainer_memory, error));
 *     TRY(generator_run(&generator, &request, error));           // as often as wanted
 *     generator_close(&generator);                               // also after a failure, and twice
 *
 * Rows are places for sequences: each has its own text, length and KV cache, and none influences another. A
 * row sees at most the last `context` tokens of its text. When its cache is full, it keeps the last half of
 * the context and reads that anew from position 0: a pause of context/2 tokens of reading every context/2
 * tokens, so the price of a token stays the same however long the text grows.
 *
 * Where several ranks have parts of the model (model_part.h), each has a generator over its part of the table
 * and makes the same calls as the others. All of them have the logits after a step, so all choose the same
 * tokens.
 *
 * Nothing is allocated after generator_open, but for the few bytes of a run's sampler and, where repetition
 * is penalised, its counts. The struct points into itself: it stays where it was planned.
 *
 * What a row computes does not depend on what the others do, but its last bits depend on how many rows there
 * are and on whether a pass reads one token (decode) or a chunk (prefill), since GEMMs of different shapes
 * add up in different orders. A text is therefore the same in every batch, but for the rare token that is
 * decided by such a bit: two that are equally likely to seven digits, or a random number that falls on the
 * border between two. */
#ifndef PGPT_INFER_GENERATOR_H
#define PGPT_INFER_GENERATOR_H

#include "graph/wiring.h"
#include "infer/model_part.h"
#include "infer/sampler.h"
#include "ops/sample.h"

typedef struct {
    int64_t n_rows; /* B: sequences decoded together, at least 1 */
    int64_t chunk;  /* tokens of a prompt read at a time; 0: chosen */
    DType dtype;    /* of weights, activations and caches */
    ModelPart part; /* what this rank has of the model; {0}: all of it */
} GeneratorOptions;

/* The text of one row, as far as the model can see it. */
typedef struct {
    int64_t n_tokens; /* in the window */
    int64_t n_cached; /* of which keys and values are known */
} GeneratorRow;

/* One of the two programs: a pass over T new tokens of every row. */
typedef struct {
    Graph *graph;
    GptDecode decode;
    Program program;
    Executor executor;
} GeneratorPass;

/* Tokens that the device draws by itself, at most so many before the host looks at them. */
enum { GENERATOR_MOST_AHEAD = 64 };

typedef struct {
    bool is_there;                   /* the device can, and the program of single tokens ends with it */
    Tensor *settings, *rows, *picks; /* see ops/sample.h */
    SampleRow *row;                  /* (B) as the host wants them */
    SamplePick *pick;                /* (GENERATOR_MOST_AHEAD,B) what came back */
    int64_t n_draws;                 /* how often it was asked: tokens of one draw come at the same time */
    int n_current, first; /* picks since the device's state was written, -1: it must be; of the last draw */
} GeneratorDrawing;

typedef struct {
    GeneratorPass prefill, decode; /* (B,chunk) and (B,1), over the same caches */
    const ParameterTable *table;
    const Backend *backend;
    DeviceMemory memory;
    GeneratorDrawing drawing;
    int64_t B, chunk, context, vocabulary;
    int64_t n_read;   /* tokens that passes have read, since it was opened: again without the cache */
    int64_t n_logits; /* of a row: its first `vocabulary` are tokens' */
    DType dtype;
    ModelPart part;
    Arena arena;             /* the host's side: */
    GeneratorRow *row;       /* (B) */
    int32_t *window;         /* (B,context) the tokens that each row sees */
    int32_t *tokens;         /* (B,chunk) what is uploaded */
    int32_t *start, *rows;   /* (B) likewise */
    float *logits;           /* (B,n_logits) of the last pass */
    int64_t *prompt, *n_new; /* (B) of a run: the prompt in the row (-1: none), and tokens made from it */
} Generator;

/* Record and plan both programs. The table must outlive the generator. */
Status generator_plan(Generator *generator, const ModelConfig *config, const ParameterTable *table,
                      const Backend *backend, const GeneratorOptions *options, Error *error);

/* Device memory that open will take besides the parameters: caches, activations, inputs. */
size_t generator_required_bytes(const Generator *generator);

/* `owner` holds the parameters, of a program recorded from the same table, and must outlive the generator.
 * With NULL they are allocated here and wait for generator_upload. */
Status generator_open(Generator *generator, const DeviceMemory *owner, Error *error);
Status generator_upload(Generator *generator, const Parameter *parameter, const float *values, Error *error);
void generator_close(Generator *generator);

/* ---- Rows one by one, for those that schedule them themselves (a server, an evaluation).
 *
 *     TRY(generator_start(&generator, row, prompt, n_tokens, error));
 *     TRY(generator_step(&generator, error));
 *     token = choose(generator_logits(&generator, row));
 *     generator_append(&generator, row, token); */

/* Begin a new text in a row, from at least one token; of more than fit, the last `context` ones are seen. */
Status generator_start(Generator *generator, int64_t row, const int32_t *tokens, int64_t n_tokens,
                       Error *error);

/* Add a token to the text of a row. */
Status generator_append(Generator *generator, int64_t row, int32_t token, Error *error);

/* Read whatever is new in any row. Rows with nothing new cost the same and keep their logits. */
Status generator_step(Generator *generator, Error *error);

/* (V) what follows the row's text; valid from one generator_step to the next. May be edited in place. */
float *generator_logits(Generator *generator, int64_t row);

/* A token below the model's vocabulary? */
Status generator_check_token(const Generator *generator, int32_t token, Error *error);

/* ---- Several tokens of every row at a time, where the device can draw them (generator_can_draw).
 *
 *     set generator->drawing.row (B): which rows draw, and their places in the random stream
 *     TRY(generator_draw(&generator, &settings, n, error));
 *     for (i < n) for (each row that draws) {
 *         int32_t token = generator_drawn(&generator, row, i).token;
 *         TRY(generator_append_drawn(&generator, row, token, error));
 *     }
 *
 * A row may end after fewer: then nothing more is appended to it, and the device is told what changed
 * (generator_changed) before it draws again. As long as nothing changes, draws follow each other without
 * anything being written. */

/* How many tokens can be drawn at once, if these rows (B) do; 0: the rows must be read first, or the device
 * cannot. */
int64_t generator_can_draw(const Generator *generator, const bool *is_drawing);
Status generator_draw(Generator *generator, const SampleSettings *settings, int n_tokens, Error *error);
SamplePick generator_drawn(const Generator *generator, int64_t row, int i);
Status generator_append_drawn(Generator *generator, int64_t row, int32_t token, Error *error);
void generator_changed(Generator *generator);

/* ---- Many prompts, sampled. */

typedef struct {
    const int32_t *tokens;
    int64_t n_tokens; /* at least 1 */
    uint64_t
        sample; /* its number in the random stream: prompts that differ in it alone give different texts */
} GeneratorPrompt;

typedef struct {
    int64_t prompt;   /* which prompt it continues */
    int64_t position; /* in its text, the prompt's tokens included */
    int32_t token;
    float log_probability;
    bool is_last; /* nothing follows for this prompt (unless the callback's own verdict ends it) */
} GeneratedToken;

typedef enum {
    GENERATOR_GO_ON,
    GENERATOR_END_TEXT, /* this prompt has enough: a stop string was met, say */
    GENERATOR_END_ALL,  /* no more tokens for anybody; the run returns STATUS_OK */
} GeneratorVerdict;

/* Told every new token, in the order in which they are made. */
typedef GeneratorVerdict (*GeneratorCallback)(void *context, const GeneratedToken *token);

typedef struct {
    const GeneratorPrompt *prompts;
    int64_t n_prompts;    /* more than there are rows: a row that is done takes the next one */
    int64_t n_new_tokens; /* for each, at most */
    int64_t n_vocabulary; /* tokens below this are sampled; 0: all that the model knows */
    int32_t end_token;    /* ends a text when it is drawn (and is handed over); -1: none does */
    SamplerOptions sampler;
    bool without_cache; /* the whole text is read again for each token, as if nothing were kept */
    GeneratorCallback callback;
    void *context;
} GeneratorRequest;

Status generator_run(Generator *generator, const GeneratorRequest *request, Error *error);

#endif
