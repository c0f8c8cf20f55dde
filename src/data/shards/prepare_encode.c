/* Rounds of: read some pieces, encode them all at once, hand their tokens on in order. Reading and writing
 * are little beside encoding, so they are not overlapped with it; a round has several pieces for each thread,
 * so that a slow one holds nobody up. Memory is bounded by the pieces of a round: the corpus is never there
 * as a whole.
 *
 * Pieces are cut where the tokenizer says that it makes no difference, so the tokens are those of the whole
 * text. */
#include "data/shards/prepare_encode.h"

#include "base/system/timer.h"
#include "base/text/format.h"

#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#    include <omp.h>
#endif

enum { PIECE_BYTES = 1 << 20, PIECES_PER_THREAD = 2, MOST_PIECES = 256 };

typedef struct {
    const Tokenizer *tokenizer;
    Piece piece;
    TokenArray ids;
    size_t *starts; /* the tokens that begin documents */
    size_t n_starts, capacity;
    uint64_t n_text_bytes;
    Error error;
} Work;

static Status encode_text(void *context, const PieceText *text, Error *error) {
    Work *work = context;
    if (text->first) {
        if (work->n_starts == work->capacity) {
            size_t capacity = work->capacity ? 2 * work->capacity : 16;
            size_t *starts = realloc(work->starts, capacity * sizeof *starts);
            if (!starts) return error_failed(error, "out of memory: no room for a list of documents");
            work->starts = starts;
            work->capacity = capacity;
        }
        work->starts[work->n_starts++] = work->ids.n;
    }
    work->n_text_bytes += text->n_bytes;
    return tokenizer_encode(work->tokenizer, text->bytes, text->n_bytes, &work->ids, error);
}

static void encode_piece(Work *work) {
    work->ids.n = 0;
    work->n_starts = 0;
    work->n_text_bytes = 0;
    work->error = (Error){0};
    piece_texts(&work->piece, encode_text, work, &work->error);
}

/* What has gone by. */
typedef struct {
    const TokenSink *sink;
    int32_t end;  /* end of text, or -1 */
    int32_t last; /* the last token, -1 before the first */
    bool begins;  /* a document has begun, but none of its tokens has come yet */
    uint64_t n_tokens;
} Stream;

static Status pass(Stream *stream, const int32_t *ids, size_t n, Error *error) {
    const TokenSink *sink = stream->sink;
    if (n == 0) return STATUS_OK;
    if (stream->begins) {
        if (stream->end >= 0 && stream->last >= 0 && stream->last != stream->end) {
            TRY(sink->tokens(sink->context, &stream->end, 1, error));
            stream->n_tokens++;
        }
        if (sink->document) TRY(sink->document(sink->context, error));
        stream->begins = false;
    }
    stream->n_tokens += n;
    stream->last = ids[n - 1];
    return sink->tokens(sink->context, ids, n, error);
}

static Status pass_piece(Stream *stream, const Work *work, Error *error) {
    const TokenSink *sink = stream->sink;
    if (work->error.status != STATUS_OK) {
        *error = work->error;
        return error->status;
    }
    if (sink->text) TRY(sink->text(sink->context, work->n_text_bytes, error));
    size_t at = 0;
    for (size_t i = 0; i <= work->n_starts; i++) {
        size_t stop = i < work->n_starts ? work->starts[i] : work->ids.n;
        TRY(pass(stream, work->ids.ids + at, stop - at, error));
        at = stop;
        if (i < work->n_starts) stream->begins = true;
    }
    return STATUS_OK;
}

static void show(Progress *progress, const InputList *list, uint64_t n_read, uint64_t n_tokens,
                 uint64_t start_ns) {
    if (!progress || !progress_due(progress)) return;
    char status[PROGRESS_STATUS_BYTES], of[48] = "";
    if (list->size_known) snprintf(of, sizeof of, " of %s", format_bytes(list->n_bytes).text);
    snprintf(status, sizeof status, "%s%s  %s tokens  %s", format_bytes(n_read).text, of,
             format_count((double)n_tokens).text,
             format_rate((double)n_read / timer_seconds_since(start_ns), "B/s").text);
    double fraction = list->size_known && list->n_bytes ? (double)n_read / (double)list->n_bytes : 0.0;
    progress_update(progress, fraction < 1.0 ? fraction : 1.0, status);
}

static int count_threads(int n_threads) {
#ifdef _OPENMP
    if (n_threads <= 0) n_threads = omp_get_max_threads();
#else
    n_threads = 1;
#endif
    return n_threads;
}

Status encode_inputs(InputList *list, const Tokenizer *tokenizer, int n_threads, Progress *progress,
                     const TokenSink *sink, Error *error) {
    n_threads = count_threads(n_threads);
    int n_works = n_threads * PIECES_PER_THREAD < MOST_PIECES ? n_threads * PIECES_PER_THREAD : MOST_PIECES;
    Work *works = calloc((size_t)n_works, sizeof *works);
    if (!works) return error_failed(error, "out of memory: no room to encode");
    for (int i = 0; i < n_works; i++) works[i].tokenizer = tokenizer;
    PieceReader reader = piece_reader(list, tokenizer, PIECE_BYTES);
    Stream stream = {.sink = sink, .end = tokenizer_end_of_text(tokenizer), .last = -1};
    uint64_t start_ns = timer_now_ns();
    for (bool more = true; more && error->status == STATUS_OK;) {
        int n = 0;
        while (n < n_works) {
            TRY_GOTO(piece_reader_next(&reader, &works[n].piece, &more, error), done);
            if (!more) break;
            n++;
        }
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
        for (int i = 0; i < n; i++) encode_piece(&works[i]);
        for (int i = 0; i < n; i++) TRY_GOTO(pass_piece(&stream, &works[i], error), done);
        show(progress, list, reader.n_read, stream.n_tokens, start_ns);
    }
done:
    piece_reader_close(&reader);
    for (int i = 0; i < n_works; i++) {
        piece_free(&works[i].piece);
        token_array_free(&works[i].ids);
        free(works[i].starts);
    }
    free(works);
    return error->status;
}
