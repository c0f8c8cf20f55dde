/* The table is walked, not indexed: a command has some dozens of options and they are looked up a few dozen
 * times in the life of the program.
 *
 * Every value carries the rank of its source and yields only to an equal or higher one. That makes the order
 * in which defaults, preset, file and command line are applied irrelevant, and it has to be: the preset is
 * named by a file or by the command line, but ranks below both. */
#include "base/options/options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text/format.h"
#include "base/text/plain.h"

/* Room for a value that nobody keeps. */
typedef union {
    bool truth;
    int64_t whole;
    double number;
    const char *text;
    int choice;
} AnyValue;

static const OptionGroup no_groups[] = {OPTION_GROUP_END};

static const OptionGroup *groups_of(const OptionCommand *command) {
    return command->groups ? command->groups : no_groups;
}

int options_count(const OptionCommand *command) {
    int n = 0;
    for (const OptionGroup *group = groups_of(command); group->title; group++) {
        for (const OptionSpec *spec = group->specs; spec->name; spec++) n++;
    }
    return n;
}

const OptionSpec *options_spec(const OptionCommand *command, int index, const OptionGroup **group_out) {
    for (const OptionGroup *group = groups_of(command); group->title; group++) {
        for (const OptionSpec *spec = group->specs; spec->name; spec++) {
            if (index-- == 0) {
                if (group_out) *group_out = group;
                return spec;
            }
        }
    }
    return NULL;
}

/* '_' and '-' are the same: people come from languages where names have underscores. */
static bool same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        if ((*a == '_' ? '-' : *a) != (*b == '_' ? '-' : *b)) return false;
    }
    return *a == *b;
}

int options_find(const OptionCommand *command, const char *name) {
    int index = 0;
    for (const OptionGroup *group = groups_of(command); group->title; group++) {
        for (const OptionSpec *spec = group->specs; spec->name; spec++, index++)
            if (same_name(spec->name, name)) return index;
    }
    return -1;
}

static void *field_of(const Options *options, int index) {
    const OptionGroup *group = NULL;
    const OptionSpec *spec = options_spec(options->command, index, &group);
    return spec && group ? (char *)options->values + group->offset + spec->offset : NULL;
}

const void *options_value(const Options *options, int index) {
    return field_of(options, index);
}

/* ---- The table itself may be wrong: that is found at the first use, not by a user. */

static Status check_spec(const OptionCommand *command, int index, Arena *scratch, Error *error) {
    const OptionSpec *spec = options_spec(command, index, NULL);
    const char *where = command->name;
    size_t n = strlen(spec->name);
    if (n == 0 || n > 40 || strspn(spec->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != n ||
        spec->name[0] == '-' || strcmp(spec->name, "help") == 0) {
        return error_failed(error, "%s: '%s' cannot be the name of an option", where, spec->name);
    }
    if (options_find(command, spec->name) != index)
        return error_failed(error, "%s: --%s is twice in the table", where, spec->name);
    if (spec->type == OPTION_TYPE_CHOICE) {
        int64_t n_choices = 0;
        while (spec->choices && spec->choices[n_choices]) n_choices++;
        if (spec->int_default < 0 || spec->int_default >= n_choices) {
            return error_failed(error, "%s: the default of --%s is not among its choices", where, spec->name);
        }
    }
    AnyValue ignored;
    Error wrong = {0};
    if (option_parse(spec, "the default", option_default_text(spec, scratch), &ignored, scratch, &wrong) !=
        STATUS_OK) {
        return error_failed(error, "%s: --%s: %s", where, spec->name, wrong.text);
    }
    return STATUS_OK;
}

Status options_init(Options *options, const OptionCommand *command, void *values, Error *error) {
    *options = (Options){.command = command, .values = values, .n_options = options_count(command)};
    options->sources = ARENA_ARRAY(&options->arena, OptionSource, options->n_options + 1);
    options->asked = ARENA_ARRAY(&options->arena, const char *, options->n_options + 1);
    for (int i = 0; i < options->n_options; i++) {
        const OptionSpec *spec = options_spec(command, i, NULL);
        TRY_GOTO(check_spec(command, i, &options->arena, error), failed);
        const char *text = option_default_text(spec, &options->arena);
        TRY_GOTO(option_parse(spec, spec->name, text, field_of(options, i), &options->arena, error), failed);
        options->asked[i] = text;
    }
    return STATUS_OK;
failed:
    options_free(options);
    return error->status;
}

void options_free(Options *options) {
    arena_free(&options->arena);
    *options = (Options){0};
}

/* ---- One value */

Status options_unknown(const OptionCommand *command, const char *dashes, const char *name, Error *error) {
    Arena scratch = {0};
    int n = options_count(command);
    const char **names = ARENA_ARRAY(&scratch, const char *, n + 1);
    for (int i = 0; i < n; i++) names[i] = options_spec(command, i, NULL)->name;
    const char *best = format_nearest(name, names);
    arena_free(&scratch);
    if (best)
        return error_user(error, "unknown option %s%s; did you mean %s%s?", dashes, plain_value(name).text,
                          dashes, best);
    if (command->listed_in)
        return error_user(error, "unknown option %s%s; %s lists them", dashes, plain_value(name).text,
                          command->listed_in);
    return error_user(error, "unknown option %s%s; 'pgpt %s --help' lists them", dashes,
                      plain_value(name).text, command->name);
}

/* Read from a config file, where names have no dashes. */
static bool is_of_file(OptionSource source) {
    return source >= OPTION_FROM_RUN_DEFAULT && source <= OPTION_FROM_FILE;
}

static Status set_index(Options *options, int index, const char *text, OptionSource source, Error *error) {
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    char shown[64];
    snprintf(shown, sizeof shown, "%s%s", is_of_file(source) ? "" : "--", spec->name);
    AnyValue outranked; /* what a higher source hides must be right all the same */
    bool wins = source >= options->sources[index];
    TRY(option_parse(spec, shown, text, wins ? field_of(options, index) : &outranked, &options->arena,
                     error));
    if (!wins) return STATUS_OK;
    options->sources[index] = source;
    options->asked[index] = option_value_text(spec, field_of(options, index), &options->arena);
    return STATUS_OK;
}

Status options_set(Options *options, const char *name, const char *text, OptionSource source, Error *error) {
    int index = options_find(options->command, name);
    if (index < 0) return options_unknown(options->command, is_of_file(source) ? "" : "--", name, error);
    return set_index(options, index, text, source, error);
}

Status options_set_int(Options *options, const char *name, int64_t value, OptionSource source, Error *error) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return options_set(options, name, text, source, error);
}

void options_reset(Options *options, const char *name) {
    int index = options_find(options->command, name);
    if (index < 0) return;
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    Error ignored = {0}; /* options_init has found the default to be right */
    options->sources[index] = OPTION_FROM_DEFAULT;
    set_index(options, index, option_default_text(spec, &options->arena), OPTION_FROM_DEFAULT, &ignored);
}

OptionSource options_source(const Options *options, const char *name) {
    int index = options_find(options->command, name);
    return index < 0 ? OPTION_FROM_DEFAULT : options->sources[index];
}

const char *option_source_name(OptionSource source) {
    static const char *const names[] = {"default", "preset", "run", "run", "file", "command line"};
    return names[source];
}

/* ---- The command line */

static bool ends_in_ini(const char *word) {
    size_t n = strlen(word);
    return n > 4 && strcmp(word + n - 4, ".ini") == 0;
}

/* `after_switch` is the on/off option that stood right before the word, or NULL: it takes no separate value,
 * and whoever wrote one meant "--switch=word". */
static Status add_argument(Options *options, const char *word, bool ended, const char *after_switch,
                           Error *error) {
    const OptionPositional *next = options->command->positionals;
    for (int i = 0; i < options->n_arguments && next && next->name; i++) {
        if (!next->repeated) next++;
    }
    if (next && next->name && !*word && !ended) {
        return error_user(error, "%s is empty; leave it out, or say which (a variable that is not set?)",
                          next->name);
    }
    bool is_taken = next && next->name, is_early = is_taken && next->behind_dashes && !ended;
    if (is_taken && !is_early) {
        options->arguments[options->n_arguments++] = word;
        return STATUS_OK;
    }
    if (after_switch && !is_early) {
        return error_user(error, "unexpected word '%s'; --%s is a switch: write --%s, --no-%s or --%s=%s",
                          plain_value(word).text, after_switch, after_switch, after_switch, after_switch,
                          plain_value(word).text);
    }
    return error_user(
        error, "unexpected word '%s'; %s, see 'pgpt %s --help'", plain_value(word).text,
        is_early ? "options begin with --, and those for another command stand behind a '--' of their own"
        : options->command->no_config ? "options begin with --"
                                      : "a config file's name ends in .ini, options begin with --",
        options->command->name);
}

static Status check_arguments(const Options *options, Error *error) {
    const OptionPositional *wanted = options->command->positionals;
    for (int i = 0; wanted && wanted->name; wanted++, i++) {
        if (i < options->n_arguments || wanted->optional) continue;
        return error_user(error, "pgpt %s wants %s (%s); see 'pgpt %s --help'", options->command->name,
                          wanted->name, wanted->help, options->command->name);
    }
    return STATUS_OK;
}

/* --no-NAME, for a switch. */
static Status turn_off(Options *options, const char *name, bool has_value, Error *error) {
    const char *switch_name = name + strlen("no-");
    int index = options_find(options->command, switch_name);
    if (index < 0) return options_unknown(options->command, "--no-", switch_name, error);
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    if (spec->type != OPTION_TYPE_BOOL) {
        return error_user(error, "--no-%s: --%s is not a switch, give it a value: --%s VALUE", spec->name,
                          spec->name, spec->name);
    }
    if (has_value)
        return error_user(error, "--no-%s takes no value; write --%s=VALUE", spec->name, spec->name);
    return set_index(options, index, "false", OPTION_FROM_COMMAND, error);
}

/* Behind an option that may stand alone: is the next word its value, or something else? */
static bool is_value_of_optional(const OptionCommand *command, const char *next) {
    return next && next[0] != '-' && (command->no_config || !ends_in_ini(next));
}

/* What a script hands over from a variable that was never set would otherwise look like an option that was
 * left out. */
static Status refuse_empty(const OptionSpec *spec, const char *text, Error *error) {
    if (spec->type != OPTION_TYPE_STRING || *text || spec->flags & OPTION_MAY_BE_EMPTY) return STATUS_OK;
    return error_user(error, "--%s is empty; leave it out, or give %s (a variable that is not set?)",
                      spec->name, spec->value_name ? spec->value_name : "a text");
}

/* One "--name", "--name=value" or "--name value"; *used counts the words taken. */
static Status parse_option(Options *options, int n_words, char *const *words, int *used,
                           const char **switch_name, Error *error) {
    const OptionCommand *command = options->command;
    const char *name = words[0] + 2, *equals = strchr(name, '=');
    *used = 1;
    if (equals) name = arena_printf(&options->arena, "%.*s", (int)(equals - name), name);
    int index = options_find(command, name);
    if (strcmp(name, "help") == 0 || strcmp(name, "no-help") == 0)
        return error_user(error, "--help takes no value and no 'no-'; write 'pgpt %s --help'", command->name);
    if (index < 0 && strncmp(name, "no-", 3) == 0) return turn_off(options, name, equals != NULL, error);
    if (index < 0) return options_unknown(command, "--", name, error);
    const OptionSpec *spec = options_spec(command, index, NULL);
    const char *text = equals ? equals + 1 : NULL;
    if (!text && spec->type == OPTION_TYPE_BOOL) {
        text = "true";
        *switch_name = spec->name;
    }
    if (!text) {
        const char *next = n_words > 1 ? words[1] : NULL;
        bool is_option =
            next && strncmp(next, "--", 2) == 0 && next[2] && options_find(command, next + 2) >= 0;
        if (spec->text_alone && !is_value_of_optional(command, next))
            return set_index(options, index, spec->text_alone, OPTION_FROM_COMMAND, error);
        if (!next || is_option) {
            error_user(error, "--%s wants %s, but %s%s follows", spec->name,
                       option_wants(spec, &options->arena), next ? "the option " : "nothing",
                       next ? plain_value(next).text : "");
            return error->status;
        }
        text = next;
        *used = 2;
    }
    TRY(refuse_empty(spec, text, error));
    return set_index(options, index, text, OPTION_FROM_COMMAND, error);
}

Status options_parse(Options *options, int n_words, char *const *words, Error *error) {
    const OptionCommand *command = options->command;
    options->arguments = ARENA_ARRAY(&options->arena, const char *, n_words + 1);
    options->n_arguments = 0;
    bool ended = false;
    const char *after_switch = NULL;
    for (int i = 0; i < n_words;) {
        const char *word = words[i], *switch_name = NULL;
        int used = 1;
        if (ended || word[0] != '-' || !word[1]) {
            if (!ended && !command->no_config && ends_in_ini(word))
                TRY(options_read_config(options, word, error));
            else TRY(add_argument(options, word, ended, after_switch, error));
        } else if (strcmp(word, "--") == 0) {
            ended = true;
        } else if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
            options->help_wanted = true;
            return STATUS_OK;
        } else if (strncmp(word, "-h=", 3) == 0) {
            return error_user(error, "-h takes no value; write 'pgpt %s --help'", command->name);
        } else if (word[1] != '-') {
            return error_user(error, "unknown option %s; options begin with two dashes, see 'pgpt %s --help'",
                              plain_value(word).text, command->name);
        } else {
            TRY(parse_option(options, n_words - i, words + i, &used, &switch_name, error));
        }
        after_switch = switch_name;
        i += used;
    }
    return check_arguments(options, error);
}
