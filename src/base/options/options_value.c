/* One value and its text, in both directions. What is written here is read back to the same bits: a double is
 * printed with as many digits as it needs, and texts are left as they are (the config file has its own
 * quoting).
 *
 * Whole numbers are read digit by digit instead of through a double, so that 2^63-1 is exact, "1.5M" and
 * "1e6" are whole, and "0.5" is not. Nothing that the C library would let pass silently (blanks, hexadecimal,
 * inf, nan, an empty text, digits followed by rubbish) is a number here. */
#include "base/options/options.h"

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text/format.h"
#include "base/text/plain.h"

enum { LONGEST_NUMBER = 64, LARGEST_EXPONENT = 400 };

/* Copy a number without the underscores between its digits; false if it has a character no number has. */
static bool plain_number(const char *text, char plain[LONGEST_NUMBER]) {
    size_t n = 0;
    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '_') {
            if (i == 0 || !isdigit((unsigned char)text[i - 1]) || !isdigit((unsigned char)text[i + 1]))
                return false;
            continue;
        }
        if (!strchr("0123456789+-.eEkMG", text[i]) || n + 1 == LONGEST_NUMBER) return false;
        plain[n++] = text[i];
    }
    plain[n] = 0;
    return n > 0;
}

/* The power of ten of a suffix at the end of a number, which is cut off. */
static int take_suffix(char *plain) {
    size_t n = strlen(plain);
    char last = n ? plain[n - 1] : 0;
    int power = last == 'k' ? 3 : last == 'M' ? 6 : last == 'G' ? 9 : 0;
    if (power) plain[n - 1] = 0;
    return power;
}

bool options_whole_number(const char *text, int64_t *value) {
    char plain[LONGEST_NUMBER] = "";
    if (!plain_number(text, plain)) return false;
    int power = take_suffix(plain);
    char *next = plain;
    bool negative = *next == '-', point = false;
    if (*next == '-' || *next == '+') next++;
    int64_t number = 0;
    int n_digits = 0;
    for (; isdigit((unsigned char)*next) || (*next == '.' && !point); next++) {
        if (*next == '.') {
            point = true;
            continue;
        }
        int digit = negative ? '0' - *next : *next - '0';
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, digit, &number))
            return false;
        n_digits++;
        power -= point;
    }
    if (n_digits == 0) return false;
    if (*next == 'e' || *next == 'E') {
        char *end;
        long exponent = strtol(next + 1, &end, 10);
        if (end == next + 1 || labs(exponent) > LARGEST_EXPONENT) return false;
        power += (int)exponent;
        next = end;
    }
    if (*next) return false;
    for (; power < 0 && number != 0; power++, number /= 10) {
        if (number % 10) return false;
    }
    for (; power > 0 && number != 0; power--) {
        if (__builtin_mul_overflow(number, 10, &number)) return false;
    }
    *value = number;
    return true;
}

/* Is a number's text not 0, and the number is? */
static bool vanishes(const char *text, double value) {
    size_t n = strcspn(text, "eE");
    return value == 0.0 && strcspn(text, "123456789") < n;
}

/* A number that is written as one should be; 0 where it is too near to it for a double. */
static bool read_float(const char *text, double *value) {
    char plain[LONGEST_NUMBER + 4] = "", *end;
    if (!plain_number(text, plain)) return false;
    int power = take_suffix(plain);
    if (power && strpbrk(plain, "eE")) return false;
    if (strpbrk(plain, "kMG") || !*plain) return false;
    if (power) snprintf(plain + strlen(plain), 4, "e%d", power); /* exact, as a product would not be */
    double number = strtod(plain, &end);
    if (end == plain || *end || !isfinite(number)) return false;
    *value = number;
    return true;
}

static bool parse_float(const char *text, double *value) {
    return read_float(text, value) && !vanishes(text, *value);
}

static bool parse_bool(const char *text, bool *value) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) == 0) {
            *value = i % 2;
            return true;
        }
    }
    return false;
}

static bool parse_choice(const char *const *choices, const char *text, int *value) {
    for (int pass = 0; pass < 2; pass++) { /* as written first, then whatever the case */
        for (int i = 0; choices[i]; i++) {
            if ((pass ? strcasecmp : strcmp)(text, choices[i]) == 0) {
                *value = i;
                return true;
            }
        }
    }
    return false;
}

static bool parse_word(const OptionWord *words, const char *text, int64_t *value) {
    for (const OptionWord *word = words; word && word->name; word++) {
        if (strcasecmp(text, word->name) != 0) continue;
        *value = word->value;
        return true;
    }
    return false;
}

static bool int_in_range(const OptionSpec *spec, int64_t value) {
    if (spec->flags & OPTION_ABOVE_MIN ? value <= spec->int_min : value < spec->int_min) return false;
    return spec->flags & OPTION_BELOW_MAX ? value < spec->int_max : value <= spec->int_max;
}

static bool float_is_allowed(const OptionSpec *spec, double value) {
    if (spec->flags & OPTION_ABOVE_MIN ? value <= spec->float_min : value < spec->float_min) return false;
    return spec->flags & OPTION_BELOW_MAX ? value < spec->float_max : value <= spec->float_max;
}

/* What is computed with as a 32-bit float has to be right as one: not 0 where the value is not (nor so near
 * to it that some hardware takes it for 0), and still on this side of an end that does not belong to the
 * range. */
static bool survives_f32(const OptionSpec *spec, double value) {
    if (!(spec->flags & OPTION_F32) || value == 0.0) return true;
    double magnitude = fabs((double)(float)value);
    return magnitude >= (double)FLT_MIN && magnitude <= (double)FLT_MAX &&
           float_is_allowed(spec, (double)(float)value);
}

static bool float_in_range(const OptionSpec *spec, double value) {
    return float_is_allowed(spec, value) && survives_f32(spec, value);
}

/* What to say of a number that is right but for this; otherwise "". */
static const char *number_loss(const OptionSpec *spec, const char *text) {
    double value;
    if (spec->type == OPTION_TYPE_INT && spec->int_max == INT64_MAX && read_float(text, &value) &&
        value >= 0x1p63)
        return ", which is more than 64 bits hold; give at most 9223372036854775807";
    if (spec->type != OPTION_TYPE_FLOAT || !read_float(text, &value)) return "";
    if (vanishes(text, value) && !(spec->flags & OPTION_F32))
        return float_is_allowed(spec, 0.0)
                   ? ", which is nearer to 0 than numbers can be; give 0, or at least 2.3e-308"
                   : ", which is nearer to 0 than numbers can be; give at least 2.3e-308";
    if (!vanishes(text, value) && (!float_is_allowed(spec, value) || survives_f32(spec, value))) return "";
    if (fabs(value) > 2.0 * (double)FLT_MIN)
        return ", which 32-bit floats, that it is computed with, cannot tell from the end of that range; stay further away";
    return float_is_allowed(spec, 0.0)
               ? ", which is nearer to 0 than 32-bit floats, that it is computed with, can be; give 0, or at least 1.2e-38"
               : ", which is nearer to 0 than 32-bit floats, that it is computed with, can be; give at least 1.2e-38";
}

static bool parse_into(const OptionSpec *spec, const char *text, void *field, Arena *arena) {
    bool truth;
    int64_t whole;
    double number;
    int choice;
    switch (spec->type) {
    case OPTION_TYPE_BOOL:
        if (!parse_bool(text, &truth)) return false;
        *(bool *)field = truth;
        return true;
    case OPTION_TYPE_INT:
        if (!parse_word(spec->words, text, &whole) &&
            (!options_whole_number(text, &whole) || !int_in_range(spec, whole)))
            return false;
        *(int64_t *)field = whole;
        return true;
    case OPTION_TYPE_FLOAT:
        if (!parse_float(text, &number) || !float_in_range(spec, number)) return false;
        *(double *)field = number;
        return true;
    case OPTION_TYPE_STRING: *(const char **)field = arena_strdup(arena, text); return true;
    case OPTION_TYPE_CHOICE:
        if (!parse_choice(spec->choices, text, &choice)) return false;
        memcpy(field, &choice, sizeof choice); /* an int or an enum of the same size */
        return true;
    }
    return false;
}

/* The one of its names that a text was meant to be; NULL: none. */
static const char *meant_by(const OptionSpec *spec, const char *text, Arena *arena) {
    int n = 0;
    if (spec->type == OPTION_TYPE_CHOICE) return format_nearest(text, spec->choices);
    while (spec->words && spec->words[n].name) n++;
    const char **names = ARENA_ARRAY(arena, const char *, n + 1);
    for (int i = 0; i < n; i++) names[i] = spec->words[i].name;
    return format_nearest(text, names);
}

Status option_parse(const OptionSpec *spec, const char *shown, const char *text, void *field, Arena *arena,
                    Error *error) {
    if (parse_into(spec, text, field, arena)) return STATUS_OK;
    Arena scratch = {0};
    const char *meant = meant_by(spec, text, &scratch);
    const char *lost = number_loss(spec, text);
    error_user(error, "%s wants %s, got '%s'%s%s%s%s", shown, option_wants(spec, &scratch),
               plain_value(text).text, lost, meant ? "; did you mean " : "", meant ? meant : "",
               meant ? "?" : "");
    arena_free(&scratch);
    return error->status;
}

const char *option_int_word(const OptionSpec *spec, int64_t value) {
    for (const OptionWord *word = spec->words; word && word->name && !int_in_range(spec, value); word++)
        if (word->value == value) return word->name;
    return NULL;
}

static const char *int_text(const OptionSpec *spec, int64_t value, Arena *arena) {
    const char *word = option_int_word(spec, value);
    return word ? word : arena_printf(arena, "%" PRId64, value);
}

const char *option_value_text(const OptionSpec *spec, const void *field, Arena *arena) {
    int choice;
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return *(const bool *)field ? "true" : "false";
    case OPTION_TYPE_INT: return int_text(spec, *(const int64_t *)field, arena);
    case OPTION_TYPE_FLOAT: return arena_strdup(arena, format_double(*(const double *)field).text);
    case OPTION_TYPE_STRING: return *(const char *const *)field;
    case OPTION_TYPE_CHOICE: memcpy(&choice, field, sizeof choice); return spec->choices[choice];
    }
    return "";
}

const char *option_default_text(const OptionSpec *spec, Arena *arena) {
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return spec->bool_default ? "true" : "false";
    case OPTION_TYPE_INT: return int_text(spec, spec->int_default, arena);
    case OPTION_TYPE_FLOAT: return arena_strdup(arena, format_double(spec->float_default).text);
    case OPTION_TYPE_STRING: return spec->text_default ? spec->text_default : "";
    case OPTION_TYPE_CHOICE: return spec->choices[spec->int_default];
    }
    return "";
}

/* The ends of a number's range as texts; NULL for no limit. */
static void range_ends(const OptionSpec *spec, const char **min, const char **max, Arena *arena) {
    *min = *max = NULL;
    if (spec->type == OPTION_TYPE_INT) {
        if (spec->int_min != INT64_MIN) *min = arena_printf(arena, "%" PRId64, spec->int_min);
        if (spec->int_max != INT64_MAX) *max = arena_printf(arena, "%" PRId64, spec->int_max);
    } else {
        if (isfinite(spec->float_min)) *min = arena_strdup(arena, format_double(spec->float_min).text);
        if (isfinite(spec->float_max)) *max = arena_strdup(arena, format_double(spec->float_max).text);
    }
}

/* "WHAT between A and B" if both ends belong to the range, else each end in its own words. */
static const char *number_wants(const OptionSpec *spec, const char *what, Arena *arena) {
    const char *min, *max;
    range_ends(spec, &min, &max, arena);
    bool above = spec->flags & OPTION_ABOVE_MIN, below = spec->flags & OPTION_BELOW_MAX;
    if (!min && !max) return what;
    if (min && max && !above && !below) return arena_printf(arena, "%s between %s and %s", what, min, max);
    const char *low = above ? "above" : "of at least", *high = below ? "below" : "at most";
    if (!max) return arena_printf(arena, "%s %s %s", what, low, min);
    if (!min) return arena_printf(arena, "%s %s%s %s", what, below ? "" : "of ", high, max);
    return arena_printf(arena, "%s %s %s and %s %s", what, low, min, high, max);
}

/* The same in short, for the help: "A to B", "above A", "at most B", or "". */
static const char *number_range(const OptionSpec *spec, Arena *arena) {
    const char *min, *max;
    range_ends(spec, &min, &max, arena);
    bool above = spec->flags & OPTION_ABOVE_MIN, below = spec->flags & OPTION_BELOW_MAX;
    if (!min && !max) return "";
    if (min && max && !above && !below) return arena_printf(arena, "%s to %s; ", min, max);
    const char *low = min ? arena_printf(arena, "%s %s", above ? "above" : "at least", min) : "";
    const char *high = max ? arena_printf(arena, "%s %s", below ? "below" : "at most", max) : "";
    return arena_printf(arena, "%s%s%s; ", low, min && max ? ", " : "", high);
}

static const char *choice_list(const OptionSpec *spec, Arena *arena) {
    const char *list = "";
    for (int i = 0; spec->choices[i]; i++) {
        list = arena_printf(arena, "%s%s%s", list, i ? ", " : "", spec->choices[i]);
    }
    return list;
}

/* "none, selective" */
static const char *word_list(const OptionSpec *spec, Arena *arena) {
    const char *list = "";
    for (const OptionWord *word = spec->words; word && word->name; word++)
        list = arena_printf(arena, "%s%s%s", list, *list ? ", " : "", word->name);
    return list;
}

/* The same with what is wanted otherwise. */
static const char *or_word(const OptionSpec *spec, const char *wanted, Arena *arena) {
    return spec->words ? arena_printf(arena, "%s, or one of %s", wanted, word_list(spec, arena)) : wanted;
}

const char *option_wants(const OptionSpec *spec, Arena *arena) {
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return "true or false";
    case OPTION_TYPE_INT: return or_word(spec, number_wants(spec, "a whole number", arena), arena);
    case OPTION_TYPE_FLOAT: return number_wants(spec, "a number", arena);
    case OPTION_TYPE_STRING: return "a text";
    case OPTION_TYPE_CHOICE: return arena_printf(arena, "one of %s", choice_list(spec, arena));
    }
    return "";
}

const char *option_facts(const OptionSpec *spec, Arena *arena) {
    const char *initial = option_default_text(spec, arena);
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return arena_printf(arena, "default %s", spec->bool_default ? "on" : "off");
    case OPTION_TYPE_INT:
    case OPTION_TYPE_FLOAT:
        return arena_printf(arena, "%s%s%sdefault %s", number_range(spec, arena), word_list(spec, arena),
                            spec->words ? "; " : "", initial);
    case OPTION_TYPE_STRING: return *initial ? arena_printf(arena, "default \"%s\"", initial) : "";
    case OPTION_TYPE_CHOICE: return arena_printf(arena, "%s; default %s", choice_list(spec, arena), initial);
    }
    return "";
}
