/* The pairs, and merging.
 *
 * Most words are short, and for those nothing beats an array of the neighbours' ranks that is searched for
 * the lowest again after every merge: quadratic, but in a cache line or two. Long words exist as well (a
 * megabyte of one letter is one word), so from LONG_WORD tokens on a heap of pairs over a linked list takes
 * over, n log n. Both make the same choice at every step: the lowest rank, and of those the leftmost. */
#include "data/tokenizer/bpe.h"

#include "base/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { LONG_WORD = 48 };

/* ---- Pairs ---- */

static inline uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline size_t first_slot(const Bpe *bpe, uint64_t pair) {
    uint64_t hash = pair * 0x9E3779B97F4A7C15u;
    return (size_t)(hash ^ hash >> 32) & (bpe->n_slots - 1);
}

/* The slot of a pair, or the free one where it belongs. */
static inline BpeSlot *slot_of(const Bpe *bpe, uint64_t pair) {
    size_t at = first_slot(bpe, pair);
    while (bpe->slots[at].pair != pair && bpe->slots[at].pair != UINT64_MAX) {
        at = (at + 1) & (bpe->n_slots - 1);
    }
    return &bpe->slots[at];
}

static Status grow(Bpe *bpe, Error *error) {
    size_t capacity = bpe->merges_capacity ? bpe->merges_capacity * 2 : 256, n_slots = capacity * 4;
    BpeMerge *merges = realloc(bpe->merges, capacity * sizeof *merges);
    if (merges) bpe->merges = merges;
    BpeSlot *slots = merges ? malloc(n_slots * sizeof *slots) : NULL;
    if (!slots) return error_failed(error, "out of memory: no room for %zu merges", capacity);
    memset(slots, 0xFF, n_slots * sizeof *slots);
    free(bpe->slots);
    bpe->slots = slots;
    bpe->n_slots = n_slots;
    bpe->merges_capacity = capacity;
    for (size_t rank = 0; rank < bpe->n_merges; rank++) {
        uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
        *slot_of(bpe, pair) = (BpeSlot){pair, (uint32_t)rank, merges[rank].id};
    }
    return STATUS_OK;
}

Status bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t id, Error *error) {
    if (bpe->n_merges == bpe->merges_capacity) TRY(grow(bpe, error));
    uint64_t pair = pair_of(left, right);
    BpeSlot *slot = slot_of(bpe, pair);
    if (slot->pair == pair) return error_user(error, "is the same as merge %u", slot->rank + 1);
    *slot = (BpeSlot){pair, (uint32_t)bpe->n_merges, id};
    bpe->merges[bpe->n_merges++] = (BpeMerge){left, right, id};
    return STATUS_OK;
}

/* ---- Merging ---- */

static const BpeSlot no_pair = {UINT64_MAX, UINT32_MAX, -1};

static inline const BpeSlot *find(const Bpe *bpe, int32_t left, int32_t right) {
    const BpeSlot *slot = slot_of(bpe, pair_of(left, right));
    return slot->pair == UINT64_MAX ? &no_pair : slot;
}

static void merge_short(const Bpe *bpe, int32_t *ids, size_t *n_ids) {
    uint32_t ranks[LONG_WORD]; /* of (ids[i], ids[i + 1]) */
    int32_t merged[LONG_WORD]; /* what they become */
    size_t n = *n_ids;
    for (size_t i = 0; i + 1 < n; i++) {
        const BpeSlot *slot = find(bpe, ids[i], ids[i + 1]);
        ranks[i] = slot->rank;
        merged[i] = slot->id;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == UINT32_MAX) break;
        ids[best] = merged[best];
        n--;
        for (size_t i = best + 1; i < n; i++) ids[i] = ids[i + 1];
        for (size_t i = best; i + 1 < n; i++) {
            ranks[i] = ranks[i + 1];
            merged[i] = merged[i + 1];
        }
        if (best + 1 < n) {
            const BpeSlot *slot = find(bpe, ids[best], ids[best + 1]);
            ranks[best] = slot->rank;
            merged[best] = slot->id;
        }
        if (best > 0) {
            const BpeSlot *slot = find(bpe, ids[best - 1], ids[best]);
            ranks[best - 1] = slot->rank;
            merged[best - 1] = slot->id;
        }
    }
    *n_ids = n;
}

/* A pair that may be merged: its rank and the place of its left token. It is stale when the token there has
 * gone or the pair's rank is another by now. */
typedef struct {
    uint32_t rank;
    size_t at;
} Candidate;

typedef struct {
    Candidate *candidates;
    size_t n;
} Heap;

static bool before(Candidate a, Candidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(Heap *heap, Candidate candidate) {
    size_t at = heap->n++;
    for (; at > 0 && before(candidate, heap->candidates[(at - 1) / 2]); at = (at - 1) / 2) {
        heap->candidates[at] = heap->candidates[(at - 1) / 2];
    }
    heap->candidates[at] = candidate;
}

static Candidate heap_pop(Heap *heap) {
    Candidate top = heap->candidates[0], last = heap->candidates[--heap->n];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap->n) break;
        if (child + 1 < heap->n && before(heap->candidates[child + 1], heap->candidates[child])) child++;
        if (!before(heap->candidates[child], last)) break;
        heap->candidates[at] = heap->candidates[child];
        at = child;
    }
    heap->candidates[at] = last;
    return top;
}

typedef struct {
    size_t previous, next; /* SIZE_MAX: none */
    uint32_t rank;         /* of this token and the next; UINT32_MAX: no pair, or the token has gone */
} Link;

static void set_rank(const Bpe *bpe, const int32_t *ids, Link *links, Heap *heap, size_t at) {
    links[at].rank = links[at].next == SIZE_MAX ? UINT32_MAX : find(bpe, ids[at], ids[links[at].next])->rank;
    if (links[at].rank != UINT32_MAX) heap_push(heap, (Candidate){links[at].rank, at});
}

static Status merge_long(const Bpe *bpe, int32_t *ids, size_t *n_ids, Error *error) {
    size_t n = *n_ids, n_left = 0;
    Link *links = malloc(n * sizeof *links);
    Heap heap = {malloc(3 * n * sizeof(Candidate)), 0}; /* n at the start, at most two more for each merge */
    if (!links || !heap.candidates) {
        free(links);
        free(heap.candidates);
        return error_failed(error, "out of memory: no room to merge a word of %zu bytes", n);
    }
    for (size_t i = 0; i < n; i++) {
        links[i].previous = i ? i - 1 : SIZE_MAX;
        links[i].next = i + 1 < n ? i + 1 : SIZE_MAX;
        set_rank(bpe, ids, links, &heap, i);
    }
    while (heap.n) {
        Candidate best = heap_pop(&heap);
        size_t at = best.at, gone = links[at].next;
        if (links[at].rank != best.rank) continue;
        ids[at] = bpe->merges[best.rank].id;
        links[at].next = links[gone].next;
        links[gone].rank = UINT32_MAX;
        if (links[at].next != SIZE_MAX) links[links[at].next].previous = at;
        set_rank(bpe, ids, links, &heap, at);
        if (links[at].previous != SIZE_MAX) set_rank(bpe, ids, links, &heap, links[at].previous);
    }
    for (size_t at = 0; at != SIZE_MAX; at = links[at].next) ids[n_left++] = ids[at];
    *n_ids = n_left;
    free(links);
    free(heap.candidates);
    return STATUS_OK;
}

Status bpe_merge(const Bpe *bpe, int32_t *ids, size_t *n, Error *error) {
    if (*n < 2 || bpe->n_merges == 0) return STATUS_OK;
    if (*n > LONG_WORD) return merge_long(bpe, ids, n, error);
    merge_short(bpe, ids, n);
    return STATUS_OK;
}

/* ---- Bytes as characters ---- */

uint32_t bpe_character_of_byte(unsigned char byte) {
    if (byte <= 32) return 256u + byte;
    if (byte >= 127 && byte <= 160) return 256u + 33u + (byte - 127u);
    return byte == 173 ? 256u + 33u + 34u : byte;
}

int bpe_byte_of_character(uint32_t character) {
    if (character < 256) {
        return bpe_character_of_byte((unsigned char)character) == character ? (int)character : -1;
    }
    if (character < 256 + 33) return (int)character - 256;
    if (character < 256 + 33 + 34) return (int)character - 256 - 33 + 127;
    return character == 256 + 33 + 34 ? 173 : -1;
}

bool bpe_bytes_of_text(const char *text, size_t n_text, char *bytes, size_t *n_bytes) {
    *n_bytes = 0;
    for (size_t at = 0, n; at < n_text; at += n) {
        int byte = bpe_byte_of_character(utf8_decode(text + at, n_text - at, &n));
        if (byte < 0) return false;
        bytes[(*n_bytes)++] = (char)byte;
    }
    return true;
}

void bpe_text_of_bytes(const char *bytes, size_t n_bytes, char *text) {
    for (size_t i = 0; i < n_bytes; i++)
        text += utf8_encode(bpe_character_of_byte((unsigned char)bytes[i]), text);
    *text = 0;
}
