/* One pool of bytes, one array of offsets, one hash table of numbers: three allocations however many symbols,
 * and a lookup touches one slot and the symbol itself. */
#include "data/tokenizer/symbols.h"

#include "data/hash.h"

#include <stdlib.h>

static uint64_t hash_of(const char *bytes, size_t n_bytes) {
    return hash_bytes(0, bytes, n_bytes);
}

/* The slot that holds the symbol, or the free one where it belongs. */
static size_t slot_of(const SymbolTable *table, const char *bytes, size_t n_bytes, uint64_t hash) {
    size_t mask = table->n_slots - 1, at = (size_t)hash & mask;
    uint32_t tag = (uint32_t)(hash >> 32);
    for (;; at = (at + 1) & mask) {
        SymbolSlot slot = table->slots[at];
        if (slot.id < 0) return at;
        if (slot.tag == tag && symbols_n_bytes(table, slot.id) == n_bytes &&
            memcmp(symbols_bytes(table, slot.id), bytes, n_bytes) == 0) {
            return at;
        }
    }
}

int32_t symbols_find(const SymbolTable *table, const char *bytes, size_t n_bytes) {
    if (table->n_slots == 0) return -1;
    return table->slots[slot_of(table, bytes, n_bytes, hash_of(bytes, n_bytes))].id;
}

static Status grow_slots(SymbolTable *table, Error *error) {
    size_t n_slots = table->n_slots ? table->n_slots * 2 : 256;
    SymbolSlot *slots = malloc(n_slots * sizeof *slots);
    if (!slots) return error_failed(error, "out of memory: no room for a vocabulary of %d symbols", table->n);
    memset(slots, 0xFF, n_slots * sizeof *slots);
    free(table->slots);
    table->slots = slots;
    table->n_slots = n_slots;
    for (int32_t id = 0; id < table->n; id++) {
        const char *bytes = symbols_bytes(table, id);
        uint64_t hash = hash_of(bytes, symbols_n_bytes(table, id));
        size_t at = (size_t)hash & (n_slots - 1);
        while (slots[at].id >= 0) at = (at + 1) & (n_slots - 1);
        slots[at] = (SymbolSlot){(uint32_t)(hash >> 32), id};
    }
    return STATUS_OK;
}

static Status reserve(SymbolTable *table, size_t n_bytes, Error *error) {
    if (table->n >= SYMBOLS_MAX) {
        return error_user(error, "more than %d different symbols; cap the vocabulary or use bytes",
                          SYMBOLS_MAX);
    }
    if (n_bytes + 2 > table->pool_capacity - table->pool_bytes) {
        size_t capacity = (table->pool_capacity + n_bytes + 2) * 2;
        char *pool = realloc(table->pool, capacity);
        if (!pool) return error_failed(error, "out of memory: no room for %zu bytes of vocabulary", capacity);
        table->pool = pool;
        table->pool_capacity = capacity;
    }
    if ((size_t)table->n + 2 > table->n_capacity) {
        size_t capacity = table->n_capacity * 2 + 64;
        size_t *starts = realloc(table->starts, capacity * sizeof *starts);
        if (!starts) return error_failed(error, "out of memory: no room for %zu symbols", capacity);
        table->starts = starts;
        table->n_capacity = capacity;
    }
    return ((size_t)table->n + 1) * 2 > table->n_slots ? grow_slots(table, error) : STATUS_OK;
}

Status symbols_intern(SymbolTable *table, const char *bytes, size_t n_bytes, int32_t *id, Error *error) {
    uint64_t hash = hash_of(bytes, n_bytes);
    if (table->n_slots) {
        *id = table->slots[slot_of(table, bytes, n_bytes, hash)].id;
        if (*id >= 0) return STATUS_OK;
    }
    TRY(reserve(table, n_bytes, error));
    if (table->n == 0) { /* the first symbol's blank */
        table->pool[0] = ' ';
        table->pool_bytes = 1;
        table->starts[0] = 1;
    }
    size_t at = slot_of(table, bytes, n_bytes, hash);
    if (n_bytes) memcpy(table->pool + table->pool_bytes, bytes, n_bytes);
    table->pool_bytes += n_bytes;
    table->pool[table->pool_bytes++] = ' ';
    *id = table->n++;
    table->starts[table->n] = table->pool_bytes;
    table->slots[at] = (SymbolSlot){(uint32_t)(hash >> 32), *id};
    return STATUS_OK;
}

uint64_t symbols_hash(const SymbolTable *table, uint64_t hash) {
    hash = hash_u64(hash, (uint64_t)table->n);
    for (int32_t id = 0; id < table->n; id++) {
        hash = hash_bytes(hash, symbols_bytes(table, id), symbols_n_bytes(table, id));
    }
    return hash;
}

void symbols_free(SymbolTable *table) {
    free(table->pool);
    free(table->starts);
    free(table->slots);
    *table = (SymbolTable){0};
}
