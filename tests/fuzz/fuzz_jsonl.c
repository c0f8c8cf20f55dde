/* A .jsonl source as every command reads it: whole, in small pieces and twice, which must all be the same texts. */
#include "fuzz_folder.h"

#include "data/shards/prepare_encode.h"
#include "data/text.h"

#include <string.h>

enum { LINES };

typedef struct {
    const Text *text;
    size_t n_bytes, n_documents;
} Comparison;

static Status compare_text(void *context, const PieceText *text, Error *error) {
    (void)error;
    Comparison *comparison = context;
    FUZZ_CHECK(text->first && text->line && text->n_bytes);
    FUZZ_CHECK(text->n_bytes <= comparison->text->n_bytes - comparison->n_bytes);
    FUZZ_CHECK(memcmp(comparison->text->bytes + comparison->n_bytes, text->bytes, text->n_bytes) == 0);
    comparison->n_bytes += text->n_bytes;
    comparison->n_documents++;
    return STATUS_OK;
}

/* In pieces of a size that lines do not fit into; the list has been read, and compares. */
static void read_pieces(InputList *list, const Text *text) {
    Error error = {0};
    Comparison comparison = {.text = text};
    PieceReader reader = piece_reader(list, NULL, 16);
    Piece piece = {0};
    for (bool more = true; more;) {
        FUZZ_CHECK(piece_reader_next(&reader, &piece, &more, &error) == STATUS_OK);
        if (more) FUZZ_CHECK(piece_texts(&piece, compare_text, &comparison, &error) == STATUS_OK);
    }
    piece_free(&piece);
    piece_reader_close(&reader);
    FUZZ_CHECK(comparison.n_bytes == text->n_bytes && comparison.n_documents == text->n_documents);
}

static Status count_tokens(void *context, const int32_t *ids, size_t n, Error *error) {
    (void)ids, (void)error;
    *(size_t *)context += n;
    return STATUS_OK;
}

static void encode(InputList *list, const Tokenizer *tokenizer, const Text *text) {
    Error error = {0};
    size_t n_tokens = 0;
    TokenSink sink = {.tokens = count_tokens, .context = &n_tokens};
    FUZZ_CHECK(encode_inputs(list, tokenizer, 1, NULL, &sink, &error) == STATUS_OK);
    size_t n_ends = tokenizer_end_of_text(tokenizer) >= 0 ? text->n_documents - 1 : 0;
    FUZZ_CHECK(n_tokens == text->n_bytes + n_ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char *folder;
    static Tokenizer *tokenizer;
    static char path[320];
    const char *source = path;
    Error error = {0};
    if (!folder) {
        folder = fuzz_folder("lines.jsonl", LINES);
        snprintf(path, sizeof path, "%s/lines.jsonl", folder);
        FUZZ_CHECK(tokenizer_build("byte", "", 0, 0, &tokenizer, &error) == STATUS_OK);
    }
    fuzz_file(LINES, bytes, n_bytes);
    InputList list;
    Text text;
    Content first, second;
    FUZZ_CHECK(input_list_open(&source, 1, &list, &error) == STATUS_OK);
    FUZZ_CHECK(input_list_read(&list, &error) == STATUS_OK && input_list_content(&list, &first));
    if (text_read(&list, source, TEXT_DOCUMENTS, &text, &error) == STATUS_OK) {
        FUZZ_CHECK(text.n_bytes <= n_bytes && text.n_documents > 0 && strlen(text.bytes) <= text.n_bytes);
        read_pieces(&list, &text);
        encode(&list, tokenizer, &text);
        text_free(&text);
    }
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
    FUZZ_CHECK(input_list_content(&list, &second) && content_equal(first, second));
    error = (Error){0};
    if (text_read(&list, source, TEXT_FILES, &text, &error) == STATUS_OK) {
        FUZZ_CHECK(text.n_bytes == n_bytes && memcmp(text.bytes, bytes, n_bytes) == 0);
        text_free(&text);
    }
    input_list_close(&list);
    return 0;
}
