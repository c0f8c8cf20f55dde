/* The line below a picture that says where and when it was made: "Intel Xeon, 2 cores; 4 ranks, more than
 * cores; 2026-11-18".
 *
 *     Arena arena = {0};
 *     plot.note = machine_note(&arena, "1 to 4 ranks", 4, output->note);
 *     ... lab_draw ...
 *     arena_free(&arena); */
#ifndef PGPT_LAB_PICTURE_MACHINE_NOTE_H
#define PGPT_LAB_PICTURE_MACHINE_NOTE_H

#include "base/arena.h"

#include <stdint.h>

/* `who`: what ran, in words ("2 ranks of 1 thread"). n_busy: the most threads of all ranks on this host that
 * had something to do at the same time; where that is more than the cores, the line says so. `before`: what
 * the user has to say, which stands before it; NULL or "": nothing. */
const char *machine_note(Arena *arena, const char *who, int n_busy, const char *before);

/* What the user has to say (NULL or "": nothing), a full stop where it has none, and the text. */
const char *machine_sentence(Arena *arena, const char *before, const char *text);

/* The same words of a machine that is given: a processor as the system names it (NULL or "": not known), and
 * its cores. */
const char *machine_words(Arena *arena, const char *processor, int64_t n_cores);

/* "Intel Xeon @ 2.80GHz, 2 cores". */
const char *machine_name(Arena *arena);

/* Today, "2026-11-18", in UTC. */
const char *machine_date(Arena *arena);

#endif
