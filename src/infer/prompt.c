#include "infer/prompt.h"

Status prompt_begin_text(const Tokenizer *tokenizer, TokenArray *tokens, Error *error) {
    int32_t end = tokenizer_end_of_text(tokenizer);
    Error ignored = {0};
    size_t n_before = tokens->n;
    TRY(token_array_reserve(tokens, 1, error));
    if (end >= 0) tokens->ids[tokens->n++] = end;
    else if (tokenizer_encode(tokenizer, "\n", 1, tokens, &ignored) != STATUS_OK || tokens->n == n_before)
        tokens->ids[tokens->n++] = 0;
    return STATUS_OK;
}
