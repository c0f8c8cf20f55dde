/* Stop strings: texts that end a sample where they appear in it.
 *
 * A text comes in pieces, the bytes of its tokens, that need not end where characters or stop strings do. The
 * matcher says after each piece how many of the last bytes must not be shown yet, because they may be the
 * beginning of a stop string, and finally whether one was met. The result does not depend on how the bytes
 * were cut into pieces:
 *
 *     TRY(stop_set_parse(&set, "\\n\\n|User:", error));
 *     StopMatcher matcher = stop_matcher(&set, room);
 *     for (each piece) {
 *         append the piece to the text;
 *         size_t n_held = stop_feed(&matcher, piece.bytes, piece.n);
 *         if (matcher.is_met) { cut n_held bytes off the text's end; break; }
 *         show all of the text but its last n_held bytes;
 *     }
 *     show what was held back: a text that ended otherwise keeps it
 *
 * Of several stop strings the one that is complete first ends the text; of those that are complete with the
 * same byte, the longest. */
#ifndef PGPT_INFER_STOP_H
#define PGPT_INFER_STOP_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *bytes;
    size_t n_bytes; /* at least 1 */
    const size_t
        *border; /* (n_bytes) of its first i+1 bytes, the longest proper beginning that is also their end */
} StopString;

typedef struct {
    StopString *strings;
    size_t n_strings, capacity;
    Arena arena;
} StopSet; /* {0} is a set that nothing meets */

/* Add one string of any bytes. An empty one is a user's error. */
Status stop_set_add(StopSet *set, const char *bytes, size_t n_bytes, Error *error);

/* Add those of a list as on the command line: '|' stands between two, and \n, \t, \r, \\ and \| are a line
 * end, a tab, a carriage return, a backslash and a bar. Messages begin with what is wrong; put the option's
 * name in front. */
Status stop_set_parse(StopSet *set, const char *list, Error *error);

void stop_set_free(StopSet *set);

/* The state of one text. */
typedef struct {
    const StopSet *set;
    size_t *n_matched; /* (n_strings) how much of each string the text ends with, at most */
    bool is_met;
} StopMatcher;

/* `room` is for set->n_strings numbers and belongs to the caller, as does the set. */
StopMatcher stop_matcher(const StopSet *set, size_t *room);

/* Take the next bytes of the text. Returns how many bytes at its end may still become part of a stop string;
 * or, if one was met, how many do not belong to the text: that string and what of these bytes stands behind
 * it. */
size_t stop_feed(StopMatcher *matcher, const char *bytes, size_t n_bytes);

#endif
