/* What the studies of pgpt lab share: options that every one of them has, lists of numbers, how results are
 * shown.
 *
 * A study is often run to be put on a page, so the command that made a picture is written below it. It is put
 * together from the words as they came, quoted where a shell would need it: what stands there can be copied
 * and run again. */
#include "cli/lab/lab.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "base/text/terminal.h"
#include "base/text/utf8.h"
#include "lab/launch/launcher.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const OptionSpec lab_option_specs[] = {
    OPTION_STRING("out", LabOptions, out, "runs/lab", "FOLDER", "where data and pictures go"),
    OPTION_STRING("note", LabOptions, note, "", "TEXT",
                  "stands below the pictures, above the command: what they do not show by themselves",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_BOOL("json", LabOptions, json, false, "make the last line of the output one JSON object"),
    OPTION_BOOL("quiet", LabOptions, quiet, false, "only the table, and what went wrong"),
    OPTION_END,
};

enum { NOTE_COLUMNS = 200 }; /* two lines */

/* The options that all studies have, wherever the command keeps them. */
static const LabOptions *own_options(const OptionCommand *command, const void *values) {
    const OptionGroup *group = command->groups;
    while (group->specs != lab_option_specs) group++;
    return (const LabOptions *)((const char *)values + group->offset);
}

static Status check_options(const LabOptions *lab, Error *error) {
    size_t n = strlen(lab->note), n_columns = 0;
    if (!*lab->out)
        return error_user(error,
                          "--out '' is no folder; leave it out for runs/lab, or give '.' for this one");
    if (!utf8_valid(lab->note, n)) return error_user(error, "--note is not UTF-8; write it in plain letters");
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)lab->note[i] < ' ' || lab->note[i] == 127)
            return error_user(error, "--note has a line break or another control character; leave it out");
        n_columns += ((unsigned char)lab->note[i] & 0xC0) != 0x80;
    }
    if (n_columns > NOTE_COLUMNS)
        return error_user(error, "--note has %zu characters, and below a picture there is room for %d",
                          n_columns, NOTE_COLUMNS);
    return STATUS_OK;
}

Status lab_read_options(Launch *launch, Options *options, const OptionCommand *command, void *values,
                        int n_words, char *const *words, bool *goes_on, Error *error) {
    *goes_on = false;
    if (options_init(options, command, values, error) == STATUS_OK)
        options_parse(options, n_words, words, error);
    if (error->status == STATUS_OK && !options->help_wanted)
        check_options(own_options(command, values), error);
    if (launch_agree(launch, error) == STATUS_OK) launch_check_options(launch, options, error);
    if (error->status != STATUS_OK) {
        options_free(options);
        return error->status;
    }
    *goes_on = !options->help_wanted;
    if (options->help_wanted && launch->is_root) command_show_help(command);
    return STATUS_OK;
}

Status lab_read_options_alone(Launch *launch, Options *options, const OptionCommand *command, const char *why,
                              void *values, int n_words, char *const *words, bool *goes_on, Error *error) {
    TRY(lab_read_options(launch, options, command, values, n_words, words, goes_on, error));
    if (!*goes_on || launch->world.size == 1) return STATUS_OK;
    *goes_on = false;
    options_free(options);
    error_user(error, "'%s' %s", command->name, why);
    return launch_agree(launch, error);
}

/* ---- The caption */

static const char *quoted(const char *word, Arena *arena) {
    size_t n = shell_quote(NULL, 0, word);
    char *text = ARENA_ARRAY(arena, char, n + 1);
    shell_quote(text, n + 1, word);
    return text;
}

/* Where results go is not what made them. *i moves on if the next word belongs to this one. */
static bool is_about_output(const char *word, int *i) {
    bool has_value = strcmp(word, "--out") == 0 || strcmp(word, "--note") == 0;
    *i += has_value;
    return has_value || strncmp(word, "--out=", 6) == 0 || strncmp(word, "--note=", 7) == 0 ||
           strcmp(word, "--json") == 0 || strcmp(word, "--quiet") == 0;
}

/* What starts ranks here: srun, if it has started as many, and mpirun otherwise. Its further words are not
 * known. */
static const char *starter(const Launch *launch) {
    const char *n_tasks = getenv("SLURM_STEP_NUM_TASKS");
    bool is_slurm = n_tasks && atoi(n_tasks) == launch->world.size && !getenv("OMPI_COMM_WORLD_SIZE");
    return is_slurm ? "srun" : "mpirun";
}

LabOutput lab_output(const Launch *launch, Options *options, const LabOptions *lab, int n_words,
                     char *const *words) {
    Arena *arena = &options->arena;
    char *text = arena_printf(arena, "pgpt %s", options->command->name);
    if (launch->world.size > 1)
        text = arena_printf(arena, "%s -n %d %s", starter(launch), launch->world.size, text);
    bool is_ours = true; /* behind -- stand words of another command */
    for (int i = 0; i < n_words; i++) {
        is_ours = is_ours && strcmp(words[i], "--") != 0;
        if (is_ours && is_about_output(words[i], &i)) continue;
        text = arena_printf(arena, "%s %s", text, quoted(words[i], arena));
    }
    return (LabOutput){
        .folder = lab->out, .caption = text, .note = lab->note, .log = launch_log(launch, lab->quiet)};
}

/* ---- Results */

static bool is_picture(const char *name) {
    static const char *const endings[] = {".svg", ".png", ".dat", ".gp"};
    const char *ending = strrchr(name, '.');
    for (size_t i = 0; ending && i < sizeof endings / sizeof endings[0]; i++) {
        if (strcmp(ending, endings[i]) == 0) return true;
    }
    return strncmp(name, ".runs-", 6) == 0; /* of a study that is under way, or was killed */
}

/* Pictures replace those of the same name, so they do not go where anything else is. */
static Status check_pictures(const char *path, Error *error) {
    Folder folder;
    Arena arena = {0};
    FolderEntry *entries;
    size_t n_entries;
    if (!file_exists(path)) return STATUS_OK;
    TRY(folder_open(&folder, path, error));
    folder_list(&folder, &arena, &entries, &n_entries, error);
    for (size_t i = 0; i < n_entries && error->status == STATUS_OK; i++) {
        if (is_picture(entries[i].name)) continue;
        error_user(error, "%s holds '%s', which is no picture of a study; choose another --out", path,
                   entries[i].name);
    }
    folder_close(&folder);
    arena_free(&arena);
    return error->status;
}

Status lab_check_folder(const Launch *launch, const LabOutput *output, Error *error) {
    RunFolder probe = {0};
    if (!launch->is_root || error->status != STATUS_OK) return error->status;
    TRY(check_pictures(output->folder, error));
    run_folder_make(&probe, output->folder, error);
    run_folder_remove(&probe);
    return error->status;
}

Status lab_draw(const LabOutput *output, const Plot *plot, const char *name, Error *error) {
    Plot shown = *plot;
    bool drawn = false;
    if (!shown.caption) shown.caption = output->caption;
    if (!shown.note) shown.note = output->note;
    TRY(plot_write(&shown, output->folder, name, &drawn, error));
    if (drawn) {
        log_note(&output->log, "picture: %s/%s.svg and .png; data: %s/%s.dat", output->folder, name,
                 output->folder, name);
    } else {
        log_warning(
            &output->log,
            "no picture: gnuplot %s; the data is in %s/%s.dat. To draw it, %s: (cd %s && gnuplot %s.gp)",
            plot_has_gnuplot() ? "failed" : "is not installed", output->folder, name,
            plot_has_gnuplot() ? "and to see why" : "install gnuplot, then", shell_path(output->folder).text,
            name);
    }
    return STATUS_OK;
}

Status lab_print_json(json_t *object, Error *error) {
    json_line_write(stdout, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

/* ---- Lists */

Status lab_read_train_words(const OptionCommand *study, const char *const *words, int n_words,
                            const char *const *ours, Options *train, Error *error) {
    char **copies = ARENA_ARRAY(&train->arena, char *, n_words + 1);
    for (int i = 0; i < n_words; i++) copies[i] = arena_strdup(&train->arena, words[i]);
    if (options_parse(train, n_words, copies, error) != STATUS_OK)
        return error_prefix(error, "behind '--' (see 'pgpt %s --help'): ", study->name);
    if (train->help_wanted)
        return error_user(error,
                          "'pgpt train --help' shows what can stand behind '--'; leave --help out there");
    for (; *ours; ours++) {
        if (options_source(train, *ours) == OPTION_FROM_COMMAND)
            return error_user(error,
                              "behind '--', --%s cannot be given: the study sets it; see 'pgpt %s --help'",
                              *ours, study->name);
    }
    return STATUS_OK;
}

/* 64, 4K, 4KiB, 1M, 2GiB; what follows is left in *end. */
static bool read_number(const char *text, bool is_bytes, int64_t *value, const char **end) {
    char *behind;
    errno = 0;
    long long number = strtoll(text, &behind, 10);
    if (behind == text || isspace((unsigned char)*text) || errno) return false;
    const char *unit = is_bytes && *behind ? strchr("KMG", toupper((unsigned char)*behind)) : NULL;
    if (unit) {
        int shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : 30;
        if (number > INT64_MAX >> shift || number < 0) return false;
        number <<= shift;
        behind++;
        if (strncmp(behind, "iB", 2) == 0) behind += 2;
    }
    *value = number;
    *end = behind;
    return true;
}

Status lab_read_list(const char *option, const char *text, int64_t min, int64_t max, bool is_bytes,
                     LabList *list, Error *error) {
    *list = (LabList){.n = 0};
    for (const char *next = text;; next++) {
        int64_t value = 0;
        const char *end = next;
        size_t n_shown = strcspn(next, ",");
        bool is_good = read_number(next, is_bytes, &value, &end) && (*end == ',' || !*end) && value >= min &&
                       value <= max;
        if (!is_good) {
            return error_user(
                error, "%s '%s': '%s' is not a whole number between %" PRId64 " and %" PRId64 "; write %s",
                option, plain_value(text).text, plain_value_of(next, n_shown).text, min, max,
                is_bytes ? "bytes, as in 1K,64K,4M" : "them as in 1,2,4");
        }
        for (int i = 0; i < list->n; i++)
            if (list->values[i] == value)
                return error_user(error, "%s '%s' has %" PRId64 " twice; leave one out", option,
                                  plain_value(text).text, value);
        if (list->n == LAB_LIST_MAX)
            return error_user(error, "%s has more than %d numbers; give fewer", option, LAB_LIST_MAX);
        list->values[list->n++] = value;
        if (!*end) return STATUS_OK;
        next = end;
    }
}
