/* Prompts of a call: the one on the command line or on standard input, or a file of them.
 *
 * All tokens lie in one array, so that a file of a million short prompts is two allocations. */
#include "cli/model/generate.h"

#include "base/text/json.h"
#include "infer/prompt.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT_LIMIT_BYTES = 64 << 20, FILE_LIMIT_BYTES = 1 << 30 };

void generate_prompts_free(GeneratePrompts *list) {
    token_array_free(&list->tokens);
    free(list->prompts);
    *list = (GeneratePrompts){0};
}

static Status push_prompt(GeneratePrompts *list, GeneratePrompt prompt, Error *error) {
    if (list->n_prompts == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 64;
        GeneratePrompt *larger = realloc(list->prompts, sizeof *larger * (size_t)capacity);
        if (!larger)
            return error_failed(error, "out of memory: no room for %lld prompts", (long long)capacity);
        list->prompts = larger;
        list->capacity = capacity;
    }
    list->prompts[list->n_prompts++] = prompt;
    return STATUS_OK;
}

static Status add_prompt(GeneratePrompts *list, const Tokenizer *tokenizer, const char *place, int64_t line,
                         const char *text, size_t n_bytes, Error *error) {
    size_t first = list->tokens.n;
    if (tokenizer_encode(tokenizer, text, n_bytes, &list->tokens, error) != STATUS_OK)
        return error_prefix(error, "%s: ", place);
    bool is_shown = list->tokens.n > first;
    if (!is_shown) TRY(prompt_begin_text(tokenizer, &list->tokens, error));
    return push_prompt(list, (GeneratePrompt){first, list->tokens.n - first, line, is_shown}, error);
}

Status generate_prompts_add(GeneratePrompts *list, const Tokenizer *tokenizer, const char *source,
                            const char *text, size_t n_bytes, Error *error) {
    return add_prompt(list, tokenizer, source, 0, text, n_bytes, error);
}

static Status read_stdin(char **text, size_t *n_bytes, Error *error) {
    char piece[4096];
    FILE *stream = open_memstream(text, n_bytes);
    if (!stream) return error_failed(error, "no memory for the prompt");
    for (size_t n, total = 0; (n = fread(piece, 1, sizeof piece, stdin)) > 0;) {
        fwrite(piece, 1, n, stream);
        if ((total += n) <= PROMPT_LIMIT_BYTES) continue;
        error_user(error, "the prompt on standard input is longer than %d bytes; give its end only",
                   PROMPT_LIMIT_BYTES);
        break;
    }
    if (ferror(stdin)) error_failed(error, "cannot read the prompt from standard input");
    if (fclose(stream) != 0) error_failed(error, "no memory for the prompt");
    return error->status;
}

Status generate_prompts_add_stdin(GeneratePrompts *list, const Tokenizer *tokenizer, Error *error) {
    char *text = NULL;
    size_t n_bytes = 0;
    TRY_GOTO(read_stdin(&text, &n_bytes, error), done);
    /* The line end that echo and editors put behind a text is not meant as part of it. */
    if (n_bytes > 0 && text[n_bytes - 1] == '\n') n_bytes--;
    generate_prompts_add(list, tokenizer, "the prompt on standard input", text, n_bytes, error);
done:
    free(text);
    return error->status;
}

/* ---- files */

static bool is_blank(const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] != ' ' && (text[i] < '\t' || text[i] > '\r')) return false;
    }
    return true;
}

static Status add_json_line(GeneratePrompts *list, const Tokenizer *tokenizer, const char *place,
                            int64_t number, const char *line, size_t n_bytes, Error *error) {
    json_error_t where;
    const char *text;
    json_t *object = json_loadb(line, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (!object) {
        return error_user(error, "%s: not valid JSON at byte %d: %s; each line must be one object", place,
                          where.position, where.text);
    }
    if (json_field_text(object, place, "prompt", &text, error) == STATUS_OK)
        add_prompt(list, tokenizer, place, number, text, strlen(text), error);
    json_decref(object);
    return error->status;
}

static Status add_lines(GeneratePrompts *list, const Tokenizer *tokenizer, const char *path,
                        const char *bytes, size_t n_bytes, Error *error) {
    size_t n_path = strlen(path);
    bool is_json = n_path >= 6 && strcmp(path + n_path - 6, ".jsonl") == 0;
    int64_t number = 0;
    for (size_t at = json_mark_bytes(bytes, n_bytes); at < n_bytes;) {
        const char *line = bytes + at, *end = memchr(line, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - line) : n_bytes - at;
        at += n + 1;
        number++;
        if (n > 0 && line[n - 1] == '\r') n--; /* a file from Windows */
        if (is_blank(line, n)) continue;
        char place[512];
        snprintf(place, sizeof place, "%.480s:%lld", path, (long long)number);
        TRY(is_json ? add_json_line(list, tokenizer, place, number, line, n, error)
                    : add_prompt(list, tokenizer, place, number, line, n, error));
    }
    if (list->n_prompts) return STATUS_OK;
    return error_user(error, "%s has no prompts: it %s; write one a line", path,
                      n_bytes ? "has only empty lines" : "is empty");
}

Status generate_prompts_add_file(GeneratePrompts *list, const Tokenizer *tokenizer, const char *path,
                                 Error *error) {
    bool is_stdin = strcmp(path, "-") == 0;
    char *bytes;
    size_t n_bytes;
    TRY(file_read(is_stdin ? "/dev/stdin" : path, FILE_LIMIT_BYTES, &bytes, &n_bytes, error));
    add_lines(list, tokenizer, is_stdin ? "standard input" : path, bytes, n_bytes, error);
    free(bytes);
    return error->status;
}

/* ---- other ranks */

Status generate_prompts_share(GeneratePrompts *list, Comm *comm, Error *error) {
    int64_t n[2] = {(int64_t)list->tokens.n, list->n_prompts};
    if (comm->size == 1) return STATUS_OK;
    TRY(comm_broadcast(comm, n, 2, COMM_I64, 0, error));
    if (comm->rank > 0) {
        TRY(token_array_reserve(&list->tokens, (size_t)n[0], error));
        list->prompts = calloc((size_t)n[1], sizeof *list->prompts);
        if (!list->prompts)
            return error_failed(error, "out of memory: no room for %lld prompts", (long long)n[1]);
        list->tokens.n = (size_t)n[0];
        list->n_prompts = list->capacity = n[1];
    }
    TRY(comm_broadcast(comm, list->tokens.ids, n[0], COMM_I32, 0, error));
    return comm_broadcast(comm, list->prompts, n[1] * (int64_t)sizeof *list->prompts, COMM_U8, 0, error);
}

/* ---- use */

void generate_prompts_warn(const GeneratePrompts *list, const char *path, int64_t context, const Log *log) {
    const GeneratePrompt *first = NULL;
    int64_t n_long = 0;
    for (int64_t i = 0; i < list->n_prompts; i++) {
        if ((int64_t)list->prompts[i].n_tokens <= context) continue;
        if (!n_long++) first = &list->prompts[i];
    }
    if (!first) return;
    if (!first->line) {
        log_warning(log, "the prompt has %zu tokens; the model sees the last %lld of them, its context",
                    first->n_tokens, (long long)context);
        return;
    }
    log_warning(
        log,
        "%lld of %lld prompts are longer than the model's context, it sees the last %lld tokens of them; "
        "the first is %s:%lld with %zu tokens",
        (long long)n_long, (long long)list->n_prompts, (long long)context, path, (long long)first->line,
        first->n_tokens);
}

void generate_prompts_write(const GeneratePrompts *list, int64_t prompt, TokenDecoder *decoder,
                            PlainWriter *writer) {
    const GeneratePrompt *given = &list->prompts[prompt];
    for (size_t i = 0; i < given->n_tokens; i++) {
        TokenBytes piece = token_decode(decoder, list->tokens.ids[given->first + i]);
        if (writer && given->is_shown) plain_write(writer, piece.bytes, piece.n);
    }
}
