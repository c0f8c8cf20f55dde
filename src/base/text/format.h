/* Numbers as people read them, and the word a misspelt one was meant to be.
 *
 * A short text comes back by value, so that no buffer has to be found for it:
 *
 *     printf("%s at %s\n", format_bytes(n).text, format_rate(flops / seconds, "FLOP/s").text); */
#ifndef PGPT_BASE_TEXT_FORMAT_H
#define PGPT_BASE_TEXT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char text[40];
} FormatText;

typedef struct {
    char text[80];
} FormatMeant;

/* 512 B, 1.50 KiB, 12.3 GiB: powers of 1024, three digits. */
FormatText format_bytes(uint64_t n_bytes);

/* 950, 1.23 k, 124 M, 175 G: powers of 1000, three digits; whole numbers below 1000 stay whole. */
FormatText format_count(double count);

/* format_rate(183e9, "FLOP/s") is 183 GFLOP/s; the unit is cut at 15 bytes. "unknown" when not finite. */
FormatText format_rate(double per_second, const char *unit);

/* 850us, 12ms, 4.2s, 1m05s, 1h02m, 3d04h; "unknown" when not finite or negative. */
FormatText format_duration(double seconds);

/* 1 step, 3 steps, 0 steps: of a thing whose plural has an s. */
FormatText format_things(int64_t n, const char *thing);

/* The shortest decimal number that reads back as exactly this double. */
FormatText format_double(double value);

/* How many letters must be added, dropped, changed or swapped with a neighbour to turn one word into the
 * other. */
size_t format_distance(const char *a, const char *b);

/* Is `known` near enough to `word` to ask "did you mean"? Returns a penalty, lower is nearer; SIZE_MAX for
 * no. */
size_t format_likeness(const char *word, const char *known);

/* The word of a NULL-terminated list that was probably meant, or NULL if none is near. */
const char *format_nearest(const char *word, const char *const *known);

/* "did you mean 'train'? ", or nothing if no word of the list is near: the middle of a message. */
FormatMeant format_did_you_mean(const char *word, const char *const *known);

#endif
