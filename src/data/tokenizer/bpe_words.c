/* Counting words on several threads.
 *
 * The text is gathered until there is enough to share out, cut between words into pieces, and each thread
 * counts the words of its pieces in a table of its own. The tables are put together once, at the end: the
 * number of distinct words grows much more slowly than the text. */
#include "data/tokenizer/bpe_words.h"

#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#    include <omp.h>
#endif

enum { PIECE_BYTES = 1 << 18, BATCH_PIECES = 16 /* per thread */ };

typedef struct {
    size_t first, n_bytes;
} Span;

typedef struct {
    const Pretokenizer *pretokenizer;
    BpeWords *tables; /* one per thread */
    Error *errors;
    int n_threads;
    char *bytes; /* gathered text */
    size_t n_bytes, capacity;
    size_t document; /* where in it the document starts that has not ended */
    Span *spans;     /* pieces ready to be counted */
    size_t n_spans, spans_capacity;
} Counter;

static Status add_count(BpeWords *table, const char *word, size_t n_bytes, uint64_t count, Error *error) {
    int32_t id = 0;
    TRY(symbols_intern(&table->words, word, n_bytes, &id, error));
    if ((size_t)id >= table->capacity) {
        size_t capacity = table->capacity * 2 + 1024;
        uint64_t *counts = realloc(table->counts, capacity * sizeof *counts);
        if (!counts) return error_failed(error, "out of memory: no room to count %zu words", capacity);
        memset(counts + table->capacity, 0, (capacity - table->capacity) * sizeof *counts);
        table->counts = counts;
        table->capacity = capacity;
    }
    table->counts[id] += count;
    return STATUS_OK;
}

static Status count_span(const Counter *counter, Span span, BpeWords *table, Error *error) {
    const char *text = counter->bytes + span.first;
    PieceWalk walk;
    TRY(piece_walk_begin(&walk, counter->pretokenizer, text, span.n_bytes, error));
    for (size_t first = 0; first < span.n_bytes; first = walk.at) {
        TRY_GOTO(piece_walk_next(&walk, error), done);
        TRY_GOTO(add_count(table, text + first, walk.at - first, 1, error), done);
    }
done:
    piece_walk_end(&walk);
    return error->status;
}

static Status count_spans(Counter *counter, Error *error) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(counter->n_threads)
    for (size_t i = 0; i < counter->n_spans; i++) {
#ifdef _OPENMP
        int thread = omp_get_thread_num();
#else
        int thread = 0;
#endif
        Error *own = &counter->errors[thread];
        if (own->status == STATUS_OK) count_span(counter, counter->spans[i], &counter->tables[thread], own);
    }
    counter->n_spans = 0;
    for (int thread = 0; thread < counter->n_threads; thread++) {
        if (counter->errors[thread].status == STATUS_OK) continue;
        *error = counter->errors[thread];
        return error->status;
    }
    return STATUS_OK;
}

static Status add_span(Counter *counter, size_t first, size_t n_bytes, Error *error) {
    if (counter->n_spans == counter->spans_capacity) {
        size_t capacity = counter->spans_capacity * 2 + 64;
        Span *spans = realloc(counter->spans, capacity * sizeof *spans);
        if (!spans) return error_failed(error, "out of memory: no room for %zu pieces of text", capacity);
        counter->spans = spans;
        counter->spans_capacity = capacity;
    }
    counter->spans[counter->n_spans++] = (Span){first, n_bytes};
    return STATUS_OK;
}

/* Cut what there is of a document into spans; what may still go on is left unless it has ended. */
static Status cut_document(Counter *counter, bool ended, Error *error) {
    size_t wanted = PIECE_BYTES;
    while (counter->document < counter->n_bytes) {
        size_t n_left = counter->n_bytes - counter->document, n_here = n_left;
        if (wanted < n_left || !ended) {
            n_here = pretokenizer_cut(counter->pretokenizer, counter->bytes + counter->document,
                                      wanted < n_left ? wanted : n_left);
        }
        if (n_here == 0) {
            if (wanted >= n_left) break;
            wanted *= 2;
            continue;
        }
        TRY(add_span(counter, counter->document, n_here, error));
        counter->document += n_here;
        wanted = PIECE_BYTES;
    }
    return STATUS_OK;
}

static Status gather(Counter *counter, const char *bytes, size_t n_bytes, Error *error) {
    if (n_bytes > counter->capacity - counter->n_bytes) {
        size_t capacity = counter->n_bytes + n_bytes + counter->capacity / 2;
        char *larger = capacity < n_bytes ? NULL : realloc(counter->bytes, capacity);
        if (!larger) return error_failed(error, "out of memory: no room for %zu bytes of text", capacity);
        counter->bytes = larger;
        counter->capacity = capacity;
    }
    memcpy(counter->bytes + counter->n_bytes, bytes, n_bytes);
    counter->n_bytes += n_bytes;
    return STATUS_OK;
}

/* Count all spans, and move to the front what is left of the last document. */
static Status flush(Counter *counter, Error *error) {
    TRY(count_spans(counter, error));
    counter->n_bytes -= counter->document;
    if (counter->n_bytes) memmove(counter->bytes, counter->bytes + counter->document, counter->n_bytes);
    counter->document = 0;
    return STATUS_OK;
}

static Status count_source(Counter *counter, const BpeTextSource *source, const BpeTrainOptions *options,
                           Error *error) {
    BpeTrainProgress progress = {.phase = "counting words", .unit = "bytes"};
    size_t batch_bytes = (size_t)counter->n_threads * BATCH_PIECES * PIECE_BYTES, full_at = batch_bytes;
    for (;;) {
        const char *bytes = NULL;
        size_t n_bytes = 0;
        bool document_ends = false;
        TRY(source->next(source->context, &bytes, &n_bytes, &document_ends, error));
        if (n_bytes) TRY(gather(counter, bytes, n_bytes, error));
        if (n_bytes == 0 || document_ends) TRY(cut_document(counter, true, error));
        if (n_bytes == 0) return flush(counter, error);
        if (counter->n_bytes < full_at) continue;
        TRY(cut_document(counter, false, error));
        TRY(flush(counter, error));
        full_at = counter->n_bytes * 2 > batch_bytes ? counter->n_bytes * 2 : batch_bytes;
        progress.done += n_bytes;
        if (options->progress) options->progress(options->progress_context, &progress);
    }
}

static Status put_together(const Counter *counter, BpeWords *words, Error *error) {
    for (int thread = 0; thread < counter->n_threads; thread++) {
        BpeWords *table = &counter->tables[thread];
        if (words->words.n == 0) { /* the first is taken as it is */
            *words = *table;
            *table = (BpeWords){0};
            continue;
        }
        for (int32_t id = 0; id < table->words.n; id++) {
            TRY(add_count(words, symbols_bytes(&table->words, id), symbols_n_bytes(&table->words, id),
                          table->counts[id], error));
        }
        bpe_words_free(table);
    }
    return STATUS_OK;
}

Status bpe_words_count(BpeWords *words, const Pretokenizer *pretokenizer, const BpeTextSource *source,
                       const BpeTrainOptions *options, int n_threads, Error *error) {
    *words = (BpeWords){0};
    Counter counter = {.pretokenizer = pretokenizer, .n_threads = n_threads};
    counter.tables = calloc((size_t)n_threads, sizeof *counter.tables);
    counter.errors = calloc((size_t)n_threads, sizeof *counter.errors);
    if (!counter.tables || !counter.errors) {
        error_failed(error, "out of memory: no room to count words on %d threads", n_threads);
        goto done;
    }
    TRY_GOTO(count_source(&counter, source, options, error), done);
    TRY_GOTO(put_together(&counter, words, error), done);
done:
    for (int thread = 0; counter.tables && thread < n_threads; thread++)
        bpe_words_free(&counter.tables[thread]);
    free(counter.tables);
    free(counter.errors);
    free(counter.bytes);
    free(counter.spans);
    if (error->status != STATUS_OK) bpe_words_free(words);
    return error->status;
}

void bpe_words_free(BpeWords *words) {
    symbols_free(&words->words);
    free(words->counts);
    *words = (BpeWords){0};
}
