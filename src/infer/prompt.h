/* What a text begins with where there is no prompt: an end of text, or else a line end, or else token 0. */
#ifndef PGPT_INFER_PROMPT_H
#define PGPT_INFER_PROMPT_H

#include "data/tokenizer/tokenizer.h"

/* Append it: at least one token. */
Status prompt_begin_text(const Tokenizer *tokenizer, TokenArray *tokens, Error *error);

#endif
