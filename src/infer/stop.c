/* Each stop string is looked for by the method of Knuth, Morris and Pratt: its state is the length of its
 * longest beginning that the text ends with. That one number is both what finding the string needs and what
 * holding back needs: the longest of these beginnings, and not a byte more, may turn out to be part of a stop
 * string. No bytes of the text are kept here; whoever has the text cuts it. */
#include "infer/stop.h"

#include <string.h>

/* One byte more: the longest beginning of the string that the text now ends with, given that it was n
 * before. */
static size_t advance(const StopString *string, size_t n, char byte) {
    while (n > 0 && string->bytes[n] != byte) n = string->border[n - 1];
    return string->bytes[n] == byte ? n + 1 : 0;
}

Status stop_set_add(StopSet *set, const char *bytes, size_t n_bytes, Error *error) {
    if (n_bytes == 0) {
        return error_user(
            error,
            "stop string %zu is empty, and every text would end at once; give it some text, and write \\| for a bar",
            set->n_strings + 1);
    }
    if (set->n_strings == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 8;
        StopString *larger = ARENA_ARRAY(&set->arena, StopString, capacity);
        if (set->n_strings) memcpy(larger, set->strings, sizeof *larger * set->n_strings);
        set->strings = larger;
        set->capacity = capacity;
    }
    StopString *string = &set->strings[set->n_strings++];
    size_t *border = ARENA_ARRAY(&set->arena, size_t, n_bytes); /* of one byte: none */
    *string =
        (StopString){.bytes = arena_copy(&set->arena, bytes, n_bytes), .n_bytes = n_bytes, .border = border};
    /* The string, read as a text from its second byte on, in search of its own beginning. */
    for (size_t i = 1; i < n_bytes; i++) border[i] = advance(string, border[i - 1], bytes[i]);
    return STATUS_OK;
}

/* The byte that a backslash and this letter stand for. */
static Status unescape(char letter, char *byte, Error *error) {
    switch (letter) {
    case 'n': *byte = '\n'; return STATUS_OK;
    case 't': *byte = '\t'; return STATUS_OK;
    case 'r': *byte = '\r'; return STATUS_OK;
    case '\\':
    case '|': *byte = letter; return STATUS_OK;
    case 0: return error_user(error, "a backslash at the end stands for nothing; write \\\\ for a backslash");
    default:
        return error_user(error, "\\%c is not known; there are \\n, \\t, \\r, \\\\ and \\| (a bar)", letter);
    }
}

Status stop_set_parse(StopSet *set, const char *list, Error *error) {
    Arena scratch = {0};
    char *bytes = arena_alloc(&scratch, strlen(list) + 1);
    size_t n_bytes = 0;
    for (;; list++) {
        if (*list == 0 || *list == '|') {
            TRY_GOTO(stop_set_add(set, bytes, n_bytes, error), done);
            n_bytes = 0;
            if (!*list) break;
        } else if (*list == '\\') {
            TRY_GOTO(unescape(*++list, &bytes[n_bytes++], error), done);
        } else {
            bytes[n_bytes++] = *list;
        }
    }
done:
    arena_free(&scratch);
    return error->status;
}

void stop_set_free(StopSet *set) {
    arena_free(&set->arena);
    *set = (StopSet){0};
}

StopMatcher stop_matcher(const StopSet *set, size_t *room) {
    for (size_t i = 0; i < set->n_strings; i++) room[i] = 0;
    return (StopMatcher){.set = set, .n_matched = room};
}

/* The length of the longest string that this byte completes; 0: none. */
static size_t feed_byte(StopMatcher *matcher, char byte) {
    size_t n_met = 0;
    for (size_t i = 0; i < matcher->set->n_strings; i++) {
        const StopString *string = &matcher->set->strings[i];
        matcher->n_matched[i] = advance(string, matcher->n_matched[i], byte);
        if (matcher->n_matched[i] < string->n_bytes) continue;
        if (string->n_bytes > n_met) n_met = string->n_bytes;
    }
    return n_met;
}

size_t stop_feed(StopMatcher *matcher, const char *bytes, size_t n_bytes) {
    if (matcher->is_met) return n_bytes;
    for (size_t i = 0; i < n_bytes; i++) {
        size_t n_met = feed_byte(matcher, bytes[i]);
        if (!n_met) continue;
        matcher->is_met = true;
        return n_met + (n_bytes - i - 1);
    }
    size_t n_held = 0;
    for (size_t i = 0; i < matcher->set->n_strings; i++) {
        if (matcher->n_matched[i] > n_held) n_held = matcher->n_matched[i];
    }
    return n_held;
}
