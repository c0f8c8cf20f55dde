/* Counts, not sets: a token leaves the window with its last occurrence, not with its first. A window over all
 * of the text has nothing that leaves and keeps no ring, so a text may grow for ever. */
#include "infer/repetition.h"

#include "base/system/memory.h"

#include <string.h>

static size_t counts_bytes(const RepetitionWindows *windows) {
    return sizeof(int32_t) * (size_t)(windows->n_texts * windows->n_vocabulary);
}

static size_t recent_bytes(const RepetitionWindows *windows) {
    return sizeof(int32_t) * (size_t)(windows->n_texts * windows->window);
}

static size_t seen_bytes(const RepetitionWindows *windows) {
    return sizeof(int64_t) * (size_t)windows->n_texts;
}

Status repetition_open(RepetitionWindows *windows, int64_t n_texts, int64_t n_vocabulary, int64_t window,
                       Error *error) {
    *windows = (RepetitionWindows){.n_texts = n_texts, .n_vocabulary = n_vocabulary, .window = window};
    int64_t n_elements = 0, n_ring = 0;
    if (n_texts < 1 || n_vocabulary < 1 || !int64_multiply(n_texts, n_vocabulary, &n_elements) ||
        !int64_multiply(n_texts, window, &n_ring) || n_elements > INT64_MAX / 8 || n_ring > INT64_MAX / 8) {
        *windows = (RepetitionWindows){0};
        return error_user(error,
                          "a --repetition-window of %lld tokens for %lld texts is too much; 0 looks at all",
                          (long long)window, (long long)n_texts);
    }
    void *counts = NULL, *recent = NULL, *seen = NULL;
    memory_alloc(&counts, counts_bytes(windows), "the repetition penalty", error);
    if (!error->status) memory_alloc(&recent, recent_bytes(windows), "the repetition window", error);
    if (!error->status) memory_alloc(&seen, seen_bytes(windows), "the repetition window", error);
    windows->counts = counts;
    windows->recent = recent;
    windows->n_seen = seen;
    if (error->status) repetition_close(windows);
    return error->status;
}

void repetition_close(RepetitionWindows *windows) {
    memory_free(windows->counts, counts_bytes(windows));
    memory_free(windows->recent, recent_bytes(windows));
    memory_free(windows->n_seen, seen_bytes(windows));
    *windows = (RepetitionWindows){0};
}

const int32_t *repetition_counts(const RepetitionWindows *windows, int64_t text) {
    return windows->counts ? windows->counts + text * windows->n_vocabulary : NULL;
}

void repetition_start(RepetitionWindows *windows, int64_t text, const int32_t *tokens, int64_t n_tokens) {
    if (!windows->counts) return;
    memset(windows->counts + text * windows->n_vocabulary, 0,
           sizeof *windows->counts * (size_t)windows->n_vocabulary);
    windows->n_seen[text] = 0;
    int64_t first = windows->window && n_tokens > windows->window ? n_tokens - windows->window : 0;
    for (int64_t i = first; i < n_tokens; i++) repetition_add(windows, text, tokens[i]);
}

void repetition_add(RepetitionWindows *windows, int64_t text, int32_t token) {
    if (!windows->counts) return;
    int32_t *counts = windows->counts + text * windows->n_vocabulary;
    int64_t n_seen = windows->n_seen[text]++;
    counts[token]++;
    if (!windows->window) return;
    int32_t *place = windows->recent + text * windows->window + n_seen % windows->window;
    if (n_seen >= windows->window) counts[*place]--;
    *place = token;
}
