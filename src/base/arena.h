/* Arena: memory for many small things that die together (graph nodes, names, option strings).
 *
 * Allocation is a pointer bump; everything is freed at once. Memory comes zeroed and aligned to 16 bytes. An
 * arena never returns NULL: it holds kilobytes of records, and a process that cannot get those can do nothing
 * better than stop, so it says so and aborts. Large buffers (tensors, files) do not belong here: use
 * memory.h, which reports failure. */
#ifndef PGPT_BASE_ARENA_H
#define PGPT_BASE_ARENA_H

#include <stddef.h>

typedef struct ArenaChunk ArenaChunk;

typedef struct {
    ArenaChunk *chunk; /* newest first; NULL in an empty arena, so {0} is a valid one */
} Arena;

void *arena_alloc(Arena *arena, size_t n_bytes);
void *arena_copy(Arena *arena, const void *bytes, size_t n_bytes);
char *arena_strdup(Arena *arena, const char *text);
char *arena_printf(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(Arena *arena);

#define ARENA_NEW(arena, type)          ((type *)arena_alloc((arena), sizeof(type)))
#define ARENA_ARRAY(arena, type, count) ((type *)arena_alloc((arena), sizeof(type) * (size_t)(count)))

#endif
