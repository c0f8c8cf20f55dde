/* Tokenizer: text to token ids and back.
 *
 * A tokenizer is built from a text, trained (bpe_train.h) or opened from a file, and constant from then on,
 * so threads may share it. The kinds:
 *
 *   byte   256 ids, one per byte: any data, no vocabulary to learn
 *   char   the distinct characters of the text it was built from; a byte that is no valid UTF-8 is a symbol
 *          of its own
 *   word   words with their punctuation split off, `[UNK]` for what is not in the vocabulary; a line end is a
 *          token, a blank line is `[EOS]`, the end of a text
 *   bpe    byte-level byte-pair encoding, as GPT-2's: any bytes, with a vocabulary of any size from 256 on;
 *          from tokenizer_open or bpe_train only
 *
 * byte, char and bpe give back exactly the bytes that went in; word gives back the words and lines with
 * ordinary spacing.
 *
 *     Tokenizer *tokenizer;
 *     TRY(tokenizer_build("char", text, n_bytes, 0, &tokenizer, error));
 *     TokenArray tokens = {0};
 *     TRY(tokenizer_encode(tokenizer, prompt, strlen(prompt), &tokens, error));
 *     TokenDecoder decoder = token_decoder(tokenizer);
 *     for (size_t i = 0; i < tokens.n; i++) {
 *         TokenBytes piece = token_decode(&decoder, tokens.ids[i]);
 *         fwrite(piece.bytes, 1, piece.n, stdout);
 *     } */
#ifndef PGPT_DATA_TOKENIZER_TOKENIZER_H
#define PGPT_DATA_TOKENIZER_TOKENIZER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Tokenizer Tokenizer;

/* A growing array of ids; {0} is an empty one. */
typedef struct {
    int32_t *ids;
    size_t n, capacity;
} TokenArray;

Status token_array_reserve(TokenArray *tokens, size_t n_more, Error *error);
void token_array_free(TokenArray *tokens);

/* Build a tokenizer of a kind from the text it shall encode. max_vocabulary caps the number of ids of the
 * kinds that learn words (specials included); 0 is no cap. An unknown kind is a user's error that names the
 * known ones. */
Status tokenizer_build(const char *kind, const char *text, size_t n_bytes, int max_vocabulary,
                       Tokenizer **tokenizer, Error *error);

void tokenizer_free(Tokenizer *tokenizer);

/* Open what a path leads to, finding out what it is:
 *   - tokenizer.json as tokenizer_save writes it, or Hugging Face's of the byte-level BPE kind;
 *   - OpenAI's encoder.json or vocab.bpe, Hugging Face's vocab.json or merges.txt, with the other one beside
 *     it;
 *   - a .tiktoken file of ranks;
 *   - a folder that holds one of these.
 * A file that is something else, damaged or contradicts itself is a user's error that names file and
 * field. */
Status tokenizer_open(const char *path, Tokenizer **tokenizer, Error *error);

/* Whether special tokens ("<|endoftext|>") are found in the text that is encoded. From the start they are
 * where the file lists them as Hugging Face's added tokens, and are not elsewhere: there their characters are
 * ordinary text. For bpe; the other kinds take no notice. To be set before threads share the tokenizer. */
void tokenizer_allow_special(Tokenizer *tokenizer, bool allowed);

/* One JSON file. Saving replaces the file whole or leaves it untouched. A bpe tokenizer is saved as a
 * tokenizer.json that Hugging Face's libraries read. Loading takes what save wrote. */
Status tokenizer_save(const Tokenizer *tokenizer, const char *path, Error *error);
Status tokenizer_load(const char *path, Tokenizer **tokenizer, Error *error);

/* The names of the kinds that tokenizer_build knows, with blanks between: for help texts. */
const char *tokenizer_kinds(void);

const char *tokenizer_kind(const Tokenizer *tokenizer);

/* Number of ids: every id is in [0, n). */
int tokenizer_n_vocabulary(const Tokenizer *tokenizer);

/* The id that ends a text, or -1 in the kinds that have none. */
int32_t tokenizer_end_of_text(const Tokenizer *tokenizer);

/* Identifies the mapping: equal for two tokenizers exactly when they give the same ids (up to 64-bit
 * accident), whether or not special tokens are allowed. */
uint64_t tokenizer_hash(const Tokenizer *tokenizer);

/* Append the ids of a text. Fails where a character has no id (char kind): a user's error that names the
 * character, its place and the known ones; put what the text is in front of it with error_prefix ("--prompt:
 * "). After a failure the array is as it was. */
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                        Error *error);

/* Where a text may be cut so that the pieces encode to the same ids as the whole: the largest such position
 * that is at most n_bytes, whatever follows the n_bytes given. 0 means that more bytes are needed to say.
 * This is how a stream is encoded in chunks and a large text by several threads. */
size_t tokenizer_cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes);

/* The same as tokenizer_encode, on several threads (0: as many as OpenMP would use). */
Status tokenizer_encode_parallel(const Tokenizer *tokenizer, const char *text, size_t n_bytes, int n_threads,
                                 TokenArray *tokens, Error *error);

/* Encode a text that comes bit by bit and may be larger than memory: the ids are those of the whole text,
 * however the bits are cut. What cannot be encoded before more is known is kept.
 *
 *     TokenStream stream = token_stream(tokenizer, n_threads);
 *     while ((n = fread(bytes, 1, sizeof bytes, file)) > 0) {
 *         TRY_GOTO(token_stream_write(&stream, bytes, n, &tokens, error), done);
 *         ...                                            // use tokens, and set tokens.n = 0
 *     }
 *     TRY_GOTO(token_stream_end(&stream, &tokens, error), done);
 * done:
 *     token_stream_free(&stream);
 *
 * Bits of some megabytes keep all threads busy. After token_stream_end the stream takes the next text. */
typedef struct {
    const Tokenizer *tokenizer;
    int n_threads;
    char *kept; /* the bytes that wait */
    size_t n_kept, capacity;
} TokenStream;

TokenStream token_stream(const Tokenizer *tokenizer, int n_threads);
Status token_stream_write(TokenStream *stream, const char *bytes, size_t n_bytes, TokenArray *tokens,
                          Error *error);
Status token_stream_end(TokenStream *stream, TokenArray *tokens, Error *error);
void token_stream_free(TokenStream *stream);

/* The bytes of one token. They belong to the tokenizer and are not terminated by a zero. */
typedef struct {
    const char *bytes;
    size_t n;
} TokenBytes;

/* Decoding goes token by token and keeps here what the next token's spacing depends on. The pieces of a
 * sequence are the same bytes however it is cut. Feed a prompt's tokens through the decoder too, even if they
 * are not printed, so that the first new token knows what it follows. */
typedef struct {
    const Tokenizer *tokenizer;
    int32_t previous; /* -1 before the first */
    bool in_quote;
} TokenDecoder;

TokenDecoder token_decoder(const Tokenizer *tokenizer);

/* An id outside the vocabulary (a model's padded vocabulary may sample one) has no bytes. */
TokenBytes token_decode(TokenDecoder *decoder, int32_t id);

/* All at once: a new string with a zero after its n_bytes, to be freed. */
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t n, char **text,
                        size_t *n_bytes, Error *error);

#endif
