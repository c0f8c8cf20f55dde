/* SymbolTable: byte strings numbered 0, 1, 2, ... in the order they came, found by number or by content.
 *
 * {0} is an empty table. In memory every symbol has a blank before its first byte, which belongs to no
 * symbol: decoders that put a blank before a word hand out one byte more instead of copying. */
#ifndef PGPT_DATA_TOKENIZER_SYMBOLS_H
#define PGPT_DATA_TOKENIZER_SYMBOLS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t tag; /* high bits of the hash: spares most comparisons */
    int32_t id;   /* -1: free */
} SymbolSlot;

typedef struct {
    char *pool;
    size_t pool_bytes, pool_capacity;
    size_t *
        /* symbol i is pool[starts[i] .. starts[i + 1] - 1), the last byte being the next one's blank */
        starts;
    int32_t n;
    size_t n_capacity;
    SymbolSlot *slots; /* open addressing, a power of two, at most half full */
    size_t n_slots;
} SymbolTable;

/* The largest number of symbols a table takes. */
#define SYMBOLS_MAX (1 << 24)

/* The number of a symbol, or -1. */
int32_t symbols_find(const SymbolTable *table, const char *bytes, size_t n_bytes);

/* The number of a symbol, added if it is new. */
Status symbols_intern(SymbolTable *table, const char *bytes, size_t n_bytes, int32_t *id, Error *error);

static inline const char *symbols_bytes(const SymbolTable *table, int32_t id) {
    return table->pool + table->starts[id];
}

static inline size_t symbols_n_bytes(const SymbolTable *table, int32_t id) {
    return table->starts[id + 1] - table->starts[id] - 1;
}

uint64_t symbols_hash(const SymbolTable *table, uint64_t hash);

void symbols_free(SymbolTable *table);

#endif
