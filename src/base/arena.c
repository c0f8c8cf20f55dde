/* Chunks double up to a limit, so a small arena costs little and a large one few calls. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK_BYTES = 4096, LAST_CHUNK_BYTES = 1 << 20, ALIGNMENT = 16 };

struct ArenaChunk {
    ArenaChunk *next;
    size_t capacity, used;
    _Alignas(ALIGNMENT) unsigned char bytes[];
};

static ArenaChunk *new_chunk(ArenaChunk *next, size_t n_bytes) {
    size_t capacity = next ? next->capacity * 2 : FIRST_CHUNK_BYTES;
    if (capacity > LAST_CHUNK_BYTES) capacity = LAST_CHUNK_BYTES;
    if (capacity < n_bytes) capacity = n_bytes;
    ArenaChunk *chunk = capacity > SIZE_MAX / 2 ? NULL : calloc(1, sizeof *chunk + capacity);
    if (!chunk) {
        fprintf(stderr, "pgpt: out of memory: cannot get %zu bytes for a record\n", capacity);
        abort();
    }
    chunk->capacity = capacity;
    chunk->next = next;
    return chunk;
}

void *arena_alloc(Arena *arena, size_t n_bytes) {
    n_bytes = n_bytes > SIZE_MAX / 4 ? SIZE_MAX / 2 + 1 : (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!arena->chunk || arena->chunk->capacity - arena->chunk->used < n_bytes) {
        arena->chunk = new_chunk(arena->chunk, n_bytes);
    }
    void *memory = arena->chunk->bytes + arena->chunk->used;
    arena->chunk->used += n_bytes;
    return memory;
}

void *arena_copy(Arena *arena, const void *bytes, size_t n_bytes) {
    void *memory = arena_alloc(arena, n_bytes);
    if (n_bytes) memcpy(memory, bytes, n_bytes);
    return memory;
}

char *arena_strdup(Arena *arena, const char *text) {
    return arena_copy(arena, text, strlen(text) + 1);
}

char *arena_printf(Arena *arena, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int n = vsnprintf(NULL, 0, format, arguments);
    char *text = arena_alloc(arena, n < 0 ? 1 : (size_t)n + 1);
    if (n >= 0) vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

void arena_free(Arena *arena) {
    for (ArenaChunk *chunk = arena->chunk; chunk;) {
        ArenaChunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    arena->chunk = NULL;
}
