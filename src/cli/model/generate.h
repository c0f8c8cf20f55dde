/* What the files of pgpt generate share: prompts, the samples made from them, and what is said about both. */
#ifndef PGPT_CLI_MODEL_GENERATE_H
#define PGPT_CLI_MODEL_GENERATE_H

#include "base/file/file.h"
#include "base/text/log.h"
#include "base/text/plain.h"
#include "comm/comm.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/generate_options.h"
#include "infer/generator.h"
#include "infer/stop.h"

/* ---- Prompts (generate_prompts.c) */

typedef struct {
    size_t first, n_tokens; /* of the list's tokens; at least 1 */
    int64_t line;           /* where it stands in the file; 0: not from a file */
    bool is_shown;          /* not if it only says "begin" */
} GeneratePrompt;

/* {0} is an empty list. */
typedef struct {
    TokenArray tokens;
    GeneratePrompt *prompts;
    int64_t n_prompts, capacity;
} GeneratePrompts;

/* One prompt of this text; of no text, whatever a text begins with. `source` is for messages: "--prompt". */
Status generate_prompts_add(GeneratePrompts *list, const Tokenizer *tokenizer, const char *source,
                            const char *text, size_t n_bytes, Error *error);

/* Those of standard input: all of it is one. */
Status generate_prompts_add_stdin(GeneratePrompts *list, const Tokenizer *tokenizer, Error *error);

/* Those of a file, one a line; '-' is standard input. */
Status generate_prompts_add_file(GeneratePrompts *list, const Tokenizer *tokenizer, const char *path,
                                 Error *error);

/* Say so if there are some of which the model does not see the beginning. */
void generate_prompts_warn(const GeneratePrompts *list, const char *path, int64_t context, const Log *log);

/* The prompt's own text, made from its tokens as that of a sample; `writer` may be NULL, to move the decoder
 * alone. */
void generate_prompts_write(const GeneratePrompts *list, int64_t prompt, TokenDecoder *decoder,
                            PlainWriter *writer);

/* Rank 0's, to all. Collective. */
Status generate_prompts_share(GeneratePrompts *list, Comm *comm, Error *error);

void generate_prompts_free(GeneratePrompts *list);

/* ---- Samples (generate_samples.c) */

/* Why one has ended. */
typedef enum { GENERATE_INTERRUPTED, GENERATE_LENGTH, GENERATE_STOP, GENERATE_END_OF_TEXT } GenerateEnd;

typedef struct {
    int64_t prompt; /* which one it continues */
    int64_t number; /* among those of its prompt, from 0 */
    TokenDecoder decoder;
    StopMatcher stop;
    char *text; /* what was added to the prompt, up to the stop string once that is met */
    size_t n_bytes, capacity;
    size_t n_shown;       /* of those, on the screen already */
    SampledToken *tokens; /* all that were drawn, if they are wanted */
    int64_t n_tokens, tokens_capacity;
    double log_probability; /* the sum over all tokens */
    GenerateEnd end;
} GenerateSample;

/* Is the call to end? May fail: the others of a group are asked. */
typedef bool (*GenerateInterrupted)(void *context, Error *error);

/* {0} is closed. */
typedef struct {
    const GenerateOptions *options;
    const Tokenizer *tokenizer;
    const GeneratePrompts *prompts;
    StopSet stop;
    size_t *stop_room;       /* (n_samples, strings) */
    GenerateSample *samples; /* n_samples of each prompt, then those of the next */
    int64_t n_samples;       /* of all prompts */
    int64_t share, n_shares; /* this rank's: every n_shares-th sample, from this one on */
    int64_t n_made;          /* tokens, of all samples */
    int64_t n_read;          /* tokens that the model read for them */
    double seconds;
    bool streams;  /* the sample goes to stdout as it grows */
    bool is_plain; /* on stdout, whatever that is (plain.h) */
    PlainWriter shown;
    bool was_interrupted;
    GenerateInterrupted interrupted;
    void *context; /* of it */
    Progress progress;
    uint64_t started_ns;
    bool shows_progress;
    Error *error; /* of the run, for what goes wrong while it tells us a token */
} GenerateSamples;

/* Whose they are: what there is of ranks. */
typedef struct {
    int64_t share, n_shares;
    bool is_root;     /* shows what grows */
    bool is_launched; /* by a launcher, whose pipe may end at a terminal */
    GenerateInterrupted interrupted;
    void *context;
} GenerateShare;

/* Read --stop, and make room for the samples of all prompts. What is passed must outlive them. */
Status generate_samples_open(GenerateSamples *set, const GenerateOptions *options, const Options *sources,
                             const Tokenizer *tokenizer, const GeneratePrompts *prompts,
                             const GenerateShare *share, Error *error);

/* How many are this rank's. */
int64_t generate_samples_own(const GenerateSamples *set);

/* Make those. */
Status generate_samples_run(GenerateSamples *set, Generator *generator, Error *error);
void generate_samples_close(GenerateSamples *set);

/* Those of all ranks of the communicator to the first, each of which has made its share (generate_gather.c).
 * Collective. */
Status generate_samples_gather(GenerateSamples *set, Comm *comm, Error *error);

/* ---- Results (generate_report.c) */

/* The texts, as far as they were not shown while they grew. */
void generate_report_print(const GenerateSamples *set, FILE *stream);

/* One line for each sample, committed. */
Status generate_report_lines(const GenerateSamples *set, FileWriter *writer, Error *error);

/* All on one line. `path` and `step` are the checkpoint's. */
Status generate_report_json(const GenerateSamples *set, const char *path, int64_t step, size_t peak_bytes,
                            FILE *stream, Error *error);

#endif
