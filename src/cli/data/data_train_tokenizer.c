/* pgpt data train-tokenizer: a byte-level BPE vocabulary from texts of any size.
 *
 * The trainer asks for text, the reader hands out pieces of files or of lines. One piece is read ahead,
 * because only the next one tells whether a document has ended. */
#include "cli/data/data.h"

#include "base/file/file.h"
#include "base/file/staged_folder.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "data/shards/prepare_input.h"
#include "data/tokenizer/bpe_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 4 << 20 };

static const char *const specials[] = {"<|endoftext|>"};

/* ---- Text for the trainer */

typedef struct {
    PieceReader reader;
    Piece pieces[2];
    int next;      /* the piece to be handed out next */
    bool has_next; /* there is one */
    char *texts;   /* of a piece of lines, */
    size_t n_bytes, capacity;
    size_t *ends; /* which end here */
    size_t n_ends, ends_capacity;
    size_t next_text, at;
} Feed;

static Status keep_text(void *context, const PieceText *text, Error *error) {
    Feed *feed = context;
    size_t n_bytes = text->n_bytes;
    if (n_bytes > feed->capacity - feed->n_bytes) {
        size_t capacity = 2 * feed->capacity + n_bytes;
        char *larger = realloc(feed->texts, capacity);
        if (!larger) return error_failed(error, "out of memory: no room for %zu bytes of text", capacity);
        feed->texts = larger;
        feed->capacity = capacity;
    }
    if (feed->n_ends == feed->ends_capacity) {
        size_t capacity = 2 * feed->ends_capacity + 64;
        size_t *larger = realloc(feed->ends, capacity * sizeof *larger);
        if (!larger) return error_failed(error, "out of memory: no room for a list of documents");
        feed->ends = larger;
        feed->ends_capacity = capacity;
    }
    memcpy(feed->texts + feed->n_bytes, text->bytes, n_bytes);
    feed->n_bytes += n_bytes;
    feed->ends[feed->n_ends++] = feed->n_bytes;
    return STATUS_OK;
}

static Status feed_next(void *context, const char **bytes, size_t *n_bytes, bool *document_ends,
                        Error *error) {
    Feed *feed = context;
    for (;;) {
        *document_ends = true;
        if (feed->next_text < feed->n_ends) {
            size_t end = feed->ends[feed->next_text++];
            *bytes = feed->texts + feed->at;
            *n_bytes = end - feed->at;
            feed->at = end;
            return STATUS_OK;
        }
        *n_bytes = 0;
        if (!feed->has_next) return STATUS_OK;
        const Piece *piece = &feed->pieces[feed->next];
        feed->next = !feed->next;
        TRY(piece_reader_next(&feed->reader, &feed->pieces[feed->next], &feed->has_next, error));
        if (!piece->file->json_lines) {
            *bytes = piece->bytes;
            *n_bytes = piece->n_bytes;
            *document_ends = !feed->has_next || feed->pieces[feed->next].first;
            return STATUS_OK;
        }
        feed->n_bytes = feed->n_ends = feed->next_text = feed->at = 0;
        TRY(piece_texts(piece, keep_text, feed, error));
    }
}

static void feed_close(Feed *feed) {
    piece_reader_close(&feed->reader);
    piece_free(&feed->pieces[0]);
    piece_free(&feed->pieces[1]);
    free(feed->texts);
    free(feed->ends);
}

/* ---- The command */

/* Reading is the first half of the bar, merging the second. */
static void show(void *context, const BpeTrainProgress *state) {
    DataCall *call = context;
    if (!call->log.progress || !progress_due(&call->progress)) return;
    bool merging = strcmp(state->phase, "merging") == 0;
    double part = state->total ? (double)state->done / (double)state->total : 0.0;
    char status[PROGRESS_STATUS_BYTES];
    snprintf(status, sizeof status, "%s  %s %s", state->phase, format_count((double)state->done).text,
             state->unit);
    progress_update(&call->progress, (merging ? 0.5 : 0.0) + 0.5 * (part < 1.0 ? part : 1.0), status);
}

static Status train(DataCall *call, InputList *list, Tokenizer **tokenizer, Error *error) {
    Feed feed = {.reader = piece_reader(list, NULL, PIECE_BYTES)};
    BpeTextSource source = {feed_next, &feed};
    BpeTrainOptions options = {.n_vocabulary = (int)call->values->vocabulary_size,
                               .specials = specials,
                               .n_specials = sizeof specials / sizeof *specials,
                               .n_threads = (int)call->values->n_threads,
                               .progress = show,
                               .progress_context = call};
    data_progress(call);
    if (piece_reader_next(&feed.reader, &feed.pieces[0], &feed.has_next, error) == STATUS_OK) {
        bpe_train(&options, &source, tokenizer, error);
    }
    data_progress_end(call);
    feed_close(&feed);
    return error->status;
}

/* FOLDER becomes FOLDER/tokenizer.json. The folder is made at once: better to know before the work that it
 * cannot be. */
static Status choose_path(const char *out, Arena *arena, const char **path, bool *made, Error *error) {
    size_t n = strlen(out);
    bool is_file = n > 5 && strcmp(out + n - 5, ".json") == 0;
    if (!n)
        return error_user(error, "--out is missing; name a folder to be made, or a file that ends in .json");
    *path = is_file ? out : arena_printf(arena, "%s/tokenizer.json", out);
    if (file_exists(*path)) return error_user(error, "%s exists already; choose another --out", *path);
    if (is_file) return STATUS_OK;
    TRY(staged_folder_check(out, error)); /* not among somebody's files */
    *made = !file_exists(out);
    return file_make_folders(out, error);
}

static Status report(DataCall *call, const Tokenizer *tokenizer, const char *path, double seconds,
                     Error *error) {
    log_note(&call->log, "%s: %d symbols in %s; encode with it: pgpt data prepare ... --tokenizer %s", path,
             tokenizer_n_vocabulary(tokenizer), format_duration(seconds).text, shell_path(path).text);
    if (tokenizer_n_vocabulary(tokenizer) < call->values->vocabulary_size) {
        log_warning(&call->log, "the text has no more pairs that repeat: %d symbols instead of %lld",
                    tokenizer_n_vocabulary(tokenizer), (long long)call->values->vocabulary_size);
    }
    if (!call->values->json) return STATUS_OK;
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("data train-tokenizer"));
    json_object_set_new(object, "tokenizer", json_make_text(tokenizer_kind(tokenizer)));
    json_object_set_new(object, "vocabulary", json_integer(tokenizer_n_vocabulary(tokenizer)));
    json_object_set_new(object, "seconds", json_make_number(seconds));
    json_object_set_new(object, "peak_bytes", json_integer((json_int_t)memory_resident_peak_bytes()));
    json_object_set_new(object, "out", json_make_text(path));
    return json_print(stdout, object, error);
}

Status data_train_tokenizer(DataCall *call, Error *error) {
    uint64_t start = timer_now_ns();
    Arena arena = {0};
    InputList list = {0};
    Tokenizer *tokenizer = NULL;
    const char *path = NULL;
    bool made = false;
    if (!call->values->vocabulary_size) {
        return error_user(error, "--vocab-size is missing; say how many symbols to learn, 16384 for example");
    }
    TRY_GOTO(data_open_inputs(call, &list, error), done);
    TRY_GOTO(choose_path(call->values->out, &arena, &path, &made, error), done);
    TRY_GOTO(train(call, &list, &tokenizer, error), done);
    TRY_GOTO(tokenizer_save(tokenizer, path, error), done);
    report(call, tokenizer, path, timer_seconds_since(start), error);
done:
    if (made && error->status != STATUS_OK) rmdir(call->values->out);
    input_list_close(&list);
    tokenizer_free(tokenizer);
    arena_free(&arena);
    return error->status;
}
