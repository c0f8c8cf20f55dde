/* One rank reads the texts, all score their share, and all have the losses. */
#include "base/system/memory.h"
#include "infer/score_set.h"
#include "infer/score_shards.h"

#include <math.h>
#include <stdlib.h>

/* Room for what rank 0 has. */
static Status reserve(ScoreSet *set, int64_t n_tokens, int64_t n_texts, int64_t n_items, Error *error) {
    TRY(token_array_reserve(&set->tokens, (size_t)n_tokens, error));
    set->texts = calloc((size_t)n_texts + 1, sizeof *set->texts);
    set->items = calloc((size_t)n_items + 1, sizeof *set->items);
    if (!set->texts || !set->items)
        return error_failed(error, "out of memory: no room for %lld texts", (long long)n_texts);
    set->tokens.n = (size_t)n_tokens;
    set->n_texts = set->texts_capacity = n_texts;
    set->n_items = set->items_capacity = n_items;
    return STATUS_OK;
}

/* Texts as they are in memory: all ranks run the same program, and pointers are set anew. */
Status score_set_share(ScoreSet *set, Comm *comm, Error *error) {
    int64_t n[] = {(int64_t)set->tokens.n, set->n_texts, set->n_items, set->n_builtin};
    if (comm->size == 1) return STATUS_OK;
    TRY(comm_broadcast(comm, n, 4, COMM_I64, 0, error));
    if (comm->rank > 0) reserve(set, n[0], n[1], n[2], error);
    TRY(comm_agree(comm, error));
    int64_t texts_bytes = n[1] * (int64_t)sizeof *set->texts,
            items_bytes = n[2] * (int64_t)sizeof *set->items;
    TRY(comm_broadcast(comm, set->tokens.ids, n[0], COMM_I32, 0, error));
    TRY(comm_broadcast(comm, set->texts, texts_bytes, COMM_U8, 0, error));
    TRY(comm_broadcast(comm, set->items, items_bytes, COMM_U8, 0, error));
    if (comm->rank == 0) return STATUS_OK;
    set->n_builtin = n[3];
    return score_set_place_texts(set, error);
}

/* The smallest counts: a loss before none, and "predicted", as -1, before not. */
static void pack(const ScoreText *texts, int64_t n_texts, float *values) {
    for (int64_t i = 0; i < n_texts; i++) {
        const ScoreText *text = &texts[i];
        for (int64_t k = 0; k < text->n_tokens - text->n_given; k++)
            *values++ = isnan(text->losses[k]) ? INFINITY : text->losses[k];
        *values++ = text->is_predicted ? -1.0f : 0.0f;
    }
}

static void unpack(const float *values, ScoreText *texts, int64_t n_texts) {
    for (int64_t i = 0; i < n_texts; i++) {
        ScoreText *text = &texts[i];
        for (int64_t k = 0; k < text->n_tokens - text->n_given; k++, values++)
            text->losses[k] = isinf(*values) ? NAN : *values;
        text->is_predicted = *values++ < 0.0f;
    }
}

Status score_merge(ScoreText *texts, int64_t n_texts, Comm *comm, Error *error) {
    int64_t n = n_texts;
    void *values;
    if (comm->size == 1) return STATUS_OK;
    for (int64_t i = 0; i < n_texts; i++) n += texts[i].n_tokens - texts[i].n_given;
    TRY(memory_alloc(&values, sizeof(float) * (size_t)n, "the losses of all ranks", error));
    pack(texts, n_texts, values);
    if (comm_all_reduce(comm, values, n, COMM_F32, COMM_MIN, error) == STATUS_OK)
        unpack(values, texts, n_texts);
    memory_free(values, sizeof(float) * (size_t)n);
    return error->status;
}
