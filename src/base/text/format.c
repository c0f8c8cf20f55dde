/* Three significant digits are what a person takes in at a glance, and they keep columns narrow. The care is
 * at the borders: 999.7 k must become "1.00 M", not "1000 k", so the unit is chosen by the rounded value.
 *
 * Misspellings are judged by the optimal string alignment distance (insert, drop, change, swap neighbours): a
 * swap is the commonest slip of the fingers and must cost one, not two. */
#include "base/text/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_WORD = 64 };

/* Divides until fewer than three digits and a half remain; returns how often. */
static size_t scale(double *value, double base, size_t n_units) {
    size_t unit = 0;
    while (fabs(*value) >= base - 0.5 && unit + 1 < n_units) {
        *value /= base;
        unit++;
    }
    return unit;
}

static int decimals(double value) {
    value = fabs(value);
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

static FormatText scaled(double value, const char *space, const char *unit) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    FormatText result = {""};
    if (!isfinite(value)) {
        snprintf(result.text, sizeof result.text, "unknown");
        return result;
    }
    bool whole = value == floor(value) && fabs(value) < 1000;
    size_t prefix = scale(&value, 1000, sizeof prefixes / sizeof *prefixes);
    int digits = whole ? 0 : decimals(value);
    if (fabs(value) >= 1e6) { /* beyond the last prefix */
        snprintf(result.text, sizeof result.text, "%.2e%s%s%.15s", value, space, prefixes[prefix], unit);
    } else {
        const char *gap = *prefixes[prefix] || *unit ? space : "";
        snprintf(result.text, sizeof result.text, "%.*f%s%s%.15s", digits, value, gap, prefixes[prefix],
                 unit);
    }
    return result;
}

FormatText format_bytes(uint64_t n_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    FormatText result = {""};
    double value = (double)n_bytes;
    size_t unit = scale(&value, 1024, sizeof units / sizeof *units);
    snprintf(result.text, sizeof result.text, "%.*f %s", unit ? decimals(value) : 0, value, units[unit]);
    return result;
}

FormatText format_count(double count) {
    return scaled(count, " ", "");
}

FormatText format_rate(double per_second, const char *unit) {
    return scaled(per_second, " ", unit);
}

FormatText format_duration(double seconds) {
    FormatText result = {""};
    char *text = result.text;
    size_t size = sizeof result.text;
    if (!isfinite(seconds) || seconds < 0) {
        snprintf(text, size, "unknown");
    } else if (seconds < 0.0009995) {
        snprintf(text, size, "%.0fus", seconds * 1e6);
    } else if (seconds < 0.9995) {
        snprintf(text, size, "%.0fms", seconds * 1e3);
    } else if (seconds < 9.95) {
        snprintf(text, size, "%.1fs", seconds);
    } else if (seconds < 59.5) {
        snprintf(text, size, "%.0fs", seconds);
    } else if (seconds < 3599.5) {
        long whole = lround(seconds);
        snprintf(text, size, "%ldm%02lds", whole / 60, whole % 60);
    } else if (seconds < 24 * 3600 - 30) {
        long minutes = lround(seconds / 60);
        snprintf(text, size, "%ldh%02ldm", minutes / 60, minutes % 60);
    } else if (seconds < 1000.0 * 24 * 3600 - 1800) {
        long hours = lround(seconds / 3600);
        snprintf(text, size, "%ldd%02ldh", hours / 24, hours % 24);
    } else {
        snprintf(text, size, "over 999d");
    }
    return result;
}

FormatText format_things(int64_t n, const char *thing) {
    FormatText result;
    size_t length = strlen(thing);
    const char *ending = length > 1 && strcmp(thing + length - 2, "ch") == 0 ? "es" : "s";
    snprintf(result.text, sizeof result.text, "%" PRId64 " %.16s%s", n, thing, n == 1 ? "" : ending);
    return result;
}

FormatText format_double(double value) {
    FormatText result = {""};
    if (value == floor(value) && fabs(value) < 1e15) { /* 10, where the shortest would be 1e+01 */
        snprintf(result.text, sizeof result.text, "%.0f", value);
        return result;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(result.text, sizeof result.text, "%.*g", digits, value);
        if (strtod(result.text, NULL) == value) break;
    }
    return result;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t format_distance(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a > LONGEST_WORD || n_b > LONGEST_WORD) return n_a > n_b ? n_a : n_b;
    /* rows[i % 3][j]: the distance of the first i letters of a from the first j of b; three rows, for the
     * swap. */
    size_t rows[3][LONGEST_WORD + 1];
    for (size_t j = 0; j <= n_b; j++) rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t change = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = least(change, least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = least(row[j], two_above[j - 2] + 1);
            }
        }
    }
    return rows[n_a % 3][n_b];
}

size_t format_likeness(const char *word, const char *known) {
    size_t n_word = strlen(word), n_known = strlen(known), longer = n_word > n_known ? n_word : n_known;
    size_t distance = format_distance(word, known);
    /* A slip in a short word, two in a usual one: "help" is not "mlp". */
    size_t allowed = longer <= 4 ? 1 : longer <= 8 ? 2 : longer <= 14 ? 3 : 4;
    if (distance <= allowed && distance < longer) return distance * 4;
    /* The beginning or a part of a longer name ("--micro"): worse than a slip, better than nothing. */
    if (n_word >= 3 && strncmp(word, known, n_word) == 0) return LONGEST_WORD * 4 + distance;
    if (n_word >= 4 && strstr(known, word)) return LONGEST_WORD * 8 + distance;
    return SIZE_MAX;
}

const char *format_nearest(const char *word, const char *const *known) {
    const char *best = NULL;
    size_t best_likeness = SIZE_MAX;
    for (; *known; known++) {
        size_t likeness = format_likeness(word, *known);
        if (likeness < best_likeness) {
            best_likeness = likeness;
            best = *known;
        }
    }
    return best;
}

FormatMeant format_did_you_mean(const char *word, const char *const *known) {
    const char *nearest = format_nearest(word, known);
    FormatMeant meant = {{0}};
    if (nearest) snprintf(meant.text, sizeof meant.text, "did you mean '%.60s'? ", nearest);
    return meant;
}
