/* Large texts: on several threads, and bit by bit.
 *
 * Both rest on tokenizer_cut: the pieces of a text that is cut where it says encode to the ids of the whole.
 * Threads take pieces of PIECE_BYTES, large enough that the start of one (a fresh table of words) does not
 * matter, and leave their ids in arrays of their own, which are then put together in order. */
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#    include <omp.h>
#endif

enum { PIECE_BYTES = 1 << 20 };

/* ---- Threads ---- */

typedef struct {
    size_t first, n_bytes;
    TokenArray tokens;
    Error error;
} Piece;

typedef struct {
    Piece *pieces;
    size_t n, capacity;
} PieceList;

static Status add_piece(PieceList *list, size_t first, size_t n_bytes, Error *error) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity * 2 + 16;
        Piece *pieces = realloc(list->pieces, capacity * sizeof *pieces);
        if (!pieces)
            return error_failed(error, "out of memory: no room to encode a text in %zu pieces", capacity);
        list->pieces = pieces;
        list->capacity = capacity;
    }
    list->pieces[list->n++] = (Piece){.first = first, .n_bytes = n_bytes};
    return STATUS_OK;
}

/* Cut about every PIECE_BYTES; a piece for which no cut is known takes more. */
static Status make_pieces(const Tokenizer *tokenizer, const char *text, size_t n_bytes, PieceList *list,
                          Error *error) {
    for (size_t first = 0; first < n_bytes;) {
        size_t n_here = n_bytes - first, wanted = PIECE_BYTES;
        while (wanted < n_here) {
            size_t cut = tokenizer_cut(tokenizer, text + first, wanted);
            if (cut) n_here = cut;
            else wanted *= 2;
        }
        TRY(add_piece(list, first, n_here, error));
        first += n_here;
    }
    return STATUS_OK;
}

static Status join_pieces(Piece *pieces, size_t n_pieces, TokenArray *tokens, Error *error) {
    size_t n_ids = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        if (pieces[i].error.status != STATUS_OK) { /* the first in the text, whichever thread met one first */
            *error = pieces[i].error;
            return error->status;
        }
        n_ids += pieces[i].tokens.n;
    }
    TRY(token_array_reserve(tokens, n_ids, error));
    for (size_t i = 0; i < n_pieces; i++) {
        if (pieces[i].tokens.n == 0) continue;
        memcpy(tokens->ids + tokens->n, pieces[i].tokens.ids, pieces[i].tokens.n * sizeof *tokens->ids);
        tokens->n += pieces[i].tokens.n;
    }
    return STATUS_OK;
}

Status tokenizer_encode_parallel(const Tokenizer *tokenizer, const char *text, size_t n_bytes, int n_threads,
                                 TokenArray *tokens, Error *error) {
#ifdef _OPENMP
    if (n_threads <= 0) n_threads = omp_get_max_threads();
#else
    n_threads = 1;
#endif
    if (n_threads == 1 || n_bytes <= PIECE_BYTES)
        return tokenizer_encode(tokenizer, text, n_bytes, tokens, error);
    PieceList list = {0};
    TRY_GOTO(make_pieces(tokenizer, text, n_bytes, &list, error), done);
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
    for (size_t i = 0; i < list.n; i++) {
        Piece *piece = &list.pieces[i];
        tokenizer_encode(tokenizer, text + piece->first, piece->n_bytes, &piece->tokens, &piece->error);
    }
    join_pieces(list.pieces, list.n, tokens, error);
done:
    for (size_t i = 0; i < list.n; i++) token_array_free(&list.pieces[i].tokens);
    free(list.pieces);
    return error->status;
}

/* ---- Streams ---- */

TokenStream token_stream(const Tokenizer *tokenizer, int n_threads) {
    return (TokenStream){.tokenizer = tokenizer, .n_threads = n_threads};
}

static Status keep(TokenStream *stream, const char *bytes, size_t n_bytes, Error *error) {
    if (n_bytes > stream->capacity - stream->n_kept) {
        size_t capacity = stream->n_kept + n_bytes;
        if (capacity < stream->capacity * 2) capacity = stream->capacity * 2;
        char *kept = capacity < n_bytes ? NULL : realloc(stream->kept, capacity);
        if (!kept) {
            return error_failed(error, "out of memory: no room for %zu bytes of text that cannot be cut",
                                capacity);
        }
        stream->kept = kept;
        stream->capacity = capacity;
    }
    if (n_bytes) memcpy(stream->kept + stream->n_kept, bytes, n_bytes);
    stream->n_kept += n_bytes;
    return STATUS_OK;
}

/* New bytes go behind what was kept, are encoded up to the last cut, and the rest is kept in turn. With
 * nothing kept they are encoded where they lie. */
Status token_stream_write(TokenStream *stream, const char *bytes, size_t n_bytes, TokenArray *tokens,
                          Error *error) {
    if (n_bytes == 0) return STATUS_OK;
    size_t n_before = stream->n_kept;
    if (n_before) {
        TRY(keep(stream, bytes, n_bytes, error));
        bytes = stream->kept;
        n_bytes = stream->n_kept;
    }
    size_t cut = tokenizer_cut(stream->tokenizer, bytes, n_bytes);
    if (cut) {
        Status status =
            tokenizer_encode_parallel(stream->tokenizer, bytes, cut, stream->n_threads, tokens, error);
        if (status != STATUS_OK) {
            stream->n_kept = n_before;
            return status;
        }
    }
    if (!n_before) return keep(stream, bytes + cut, n_bytes - cut, error);
    memmove(stream->kept, stream->kept + cut, n_bytes - cut);
    stream->n_kept = n_bytes - cut;
    return STATUS_OK;
}

Status token_stream_end(TokenStream *stream, TokenArray *tokens, Error *error) {
    size_t n = stream->n_kept;
    stream->n_kept = 0;
    return tokenizer_encode_parallel(stream->tokenizer, stream->kept, n, stream->n_threads, tokens, error);
}

void token_stream_free(TokenStream *stream) {
    free(stream->kept);
    *stream = (TokenStream){0};
}
