/* What pgpt lab table shows. Both halves, training and text, are the same table over other figures, so a
 * half is a value: whose seconds, for how many tokens.
 *
 * A row that could not be measured has its record's figures, marked by a star, and a line below that names
 * machine and date. */
#include "cli/lab/lab_table.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "lab/picture/machine_note.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    double train_s, generate_s;
} OLD[N_TABLE_ROWS] = {
    [ROW_SERIAL] = {15264, 113},
    [ROW_MPI] = {1287, 112},
    [ROW_CUDA] = {429, 8.0},
    [ROW_BOTH] = {226, 7.8},
};
enum { OLD_LAYERS = 6, OLD_HEADS = 6, OLD_CHANNELS = 384, OLD_CONTEXT = 256, MOST_SYMBOLS = 512 };

/* ---- Figures */

/* Of any row: all trained the same. */
static const TableModel *model_of(const TableStudy *study) {
    int i = 0;
    while (i + 1 < N_TABLE_ROWS && isnan(study->rows[i].train_s)) i++;
    return &study->rows[i].model;
}

/* Is it the older study's work, or some part of it? It had 172 symbols; a text of some more or fewer changes
 * less than a thousandth of the arithmetic. */
static bool compares(const TableStudy *study) {
    const TableModel *model = model_of(study);
    return model->n_layers == OLD_LAYERS && model->n_heads == OLD_HEADS &&
           model->n_channels == OLD_CHANNELS && model->n_vocabulary <= MOST_SYMBOLS &&
           (!study->sequence || study->sequence == OLD_CONTEXT) &&
           model->n_step_tokens == TABLE_OLD_STEP_TOKENS;
}

/* As many steps, or tokens, as are shown. */
static int64_t steps_shown(const TableStudy *study) {
    return compares(study) ? TABLE_OLD_STEPS : study->n_steps;
}

static int64_t tokens_shown(const TableStudy *study) {
    return compares(study) ? TABLE_OLD_TOKENS : study->values->call.n_tokens;
}

static const TableRecord *record_of(const TableStudy *study, int i) {
    return compares(study) ? study->rows[i].record : NULL;
}

typedef enum { HALF_TRAINING, HALF_TEXT, HALF_CACHED } Half;

/* Of a row as it is shown, measured or recorded. */
static double seconds_of(const TableStudy *study, Half half, int i) {
    const TableRow *row = &study->rows[i];
    const TableRecord *record = record_of(study, i);
    double tokens = (double)tokens_shown(study) / (double)study->values->call.n_tokens;
    if (*row->missing && record)
        return half == HALF_TRAINING ? record->train_s
               : half == HALF_TEXT   ? record->generate_s
                                     : record->cached_s;
    if (half == HALF_TRAINING) return table_steps_s(row, study->n_steps, steps_shown(study));
    return tokens * (half == HALF_TEXT ? row->generate_s : row->cached_s);
}

static double tokens_of(const TableStudy *study, Half half) {
    if (half != HALF_TRAINING) return (double)tokens_shown(study);
    return (double)steps_shown(study) * (double)model_of(study)->n_step_tokens;
}

static double old_seconds(Half half, int i) {
    return half == HALF_TRAINING ? OLD[i].train_s : OLD[i].generate_s;
}

static int ranks_of(const TableStudy *study, int i) {
    const TableRecord *record = record_of(study, i);
    return *study->rows[i].missing && record ? record->n_ranks : study->rows[i].n_ranks;
}

/* ---- The table */

static void print_cell(double value, int width) {
    int decimals = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
    if (isnan(value)) printf(" %*s", width, "-");
    else printf(" %*.*f", width, decimals, value);
}

static void print_ratio(double value) {
    if (isnan(value)) printf(" %9s", "-");
    else printf(" %8.*fx", value >= 100 ? 0 : value >= 10 ? 1 : 2, value);
}

static void print_half_head(const TableStudy *study, Half half) {
    printf("%-11s %6s | %10s %10s %9s", "", "ranks", "seconds", "tokens/s", "speed-up");
    if (compares(study)) printf(" | %9s %10s %9s | %9s", "older s", "tokens/s", "speed-up", "faster by");
    if (half == HALF_TEXT) printf(" | %12s", "with cache s");
    printf("\n");
}

static void print_half_row(const TableStudy *study, Half half, int i) {
    double seconds = seconds_of(study, half, i), n_tokens = tokens_of(study, half);
    bool is_recorded = *study->rows[i].missing && record_of(study, i);
    printf("%-11s", study->rows[i].name);
    if (isnan(seconds)) printf(" %6s |", "-");
    else printf(" %5d%s |", ranks_of(study, i), is_recorded ? "*" : " ");
    print_cell(seconds, 10);
    print_cell(n_tokens / seconds, 10);
    print_ratio(seconds_of(study, half, ROW_SERIAL) / seconds);
    if (compares(study)) {
        double old = old_seconds(half, i);
        printf(" |");
        print_cell(old, 9);
        print_cell(n_tokens / old, 10);
        print_ratio(old_seconds(half, ROW_SERIAL) / old);
        printf(" |");
        print_ratio(old / seconds);
    }
    if (half == HALF_TEXT) {
        printf(" |");
        print_cell(seconds_of(study, HALF_CACHED, i), 12);
    }
    printf("\n");
}

static void print_half(const TableStudy *study, Half half) {
    print_half_head(study, half);
    for (int i = 0; i < N_TABLE_ROWS; i++) print_half_row(study, half, i);
    printf("\n");
}

/* Where the figures of a row come from. */
static void print_machine(const TableStudy *study, int i) {
    const TableRow *row = &study->rows[i];
    const TableRecord *record = record_of(study, i);
    printf("%-12s", row->name);
    if (!*row->missing) printf("%s\n", plain(row->machine).text);
    else if (record)
        printf("* recorded %s on %s (%s)\n", record->date, record->machine, plain(row->missing).text);
    else if (row->device[1] == 'u') /* cuda */
        printf(
            "%s. Nothing is recorded yet: 'pgpt lab table --record' on a machine with one prints what to keep\n",
            plain(row->missing).text);
    else printf("%s\n", plain(row->missing).text);
}

static void print_notes(const TableStudy *study) {
    printf("Machines:\n");
    for (int i = 0; i < N_TABLE_ROWS; i++) print_machine(study, i);
    if (compares(study))
        printf("older study its own program; MPI by %d processes on two nodes\n", TABLE_OLD_RANKS);
    else
        printf(
            "\nThe older study's seconds are left out: it trained %d layers of %d channels, %d heads, in steps of %d "
            "tokens\nof %d, which is other work.\n",
            OLD_LAYERS, OLD_CHANNELS, OLD_HEADS, TABLE_OLD_STEP_TOKENS, OLD_CONTEXT);
    if (study->n_steps != steps_shown(study))
        printf("\nOf the %" PRId64 " steps %" PRId64
               " were measured; the others are taken to be like those behind the first.\n",
               steps_shown(study), study->n_steps);
    if (study->values->call.n_tokens != tokens_shown(study))
        printf("\n%" PRId64 " tokens of text were measured; those of %" PRId64 " are that, multiplied.\n",
               study->values->call.n_tokens, tokens_shown(study));
    printf(
        "\nSpeed-up is over the row 'serial' of the same program. Text is made by one process, in the row 'MPI' with %s;\n"
        "without the cache it reads the whole text again for every token.\n",
        format_things(study->rows[ROW_MPI].n_text_threads, "thread").text);
}

void lab_table_print(const TableStudy *study) {
    const TableModel *model = model_of(study);
    int64_t n_shown = steps_shown(study);
    printf("%s, %s, %" PRId64 " channels, %s parameters; %s, %" PRId64 " symbols\n",
           format_things(model->n_layers, "layer").text, format_things(model->n_heads, "head").text,
           model->n_channels, format_count((double)model->n_parameters).text,
           *study->data ? plain(study->data).text : "a made text", model->n_vocabulary);
    printf("\nTraining: %s of %s\n", format_things(n_shown, "step").text,
           format_things(model->n_step_tokens, "token").text);
    print_half(study, HALF_TRAINING);
    printf("Generating %s without a KV cache\n", format_things(tokens_shown(study), "token").text);
    print_half(study, HALF_TEXT);
    print_notes(study);
}

/* ---- The picture */

static void write_title(const TableStudy *study, Half half, char *title, size_t n_bytes) {
    const TableModel *model = model_of(study);
    int64_t n_shown = steps_shown(study);
    char measured[64] = "";
    if (n_shown != study->n_steps)
        snprintf(measured, sizeof measured, " (%" PRId64 " measured)", study->n_steps);
    if (half == HALF_TRAINING)
        snprintf(title, n_bytes, "Training a GPT of %s, %" PRId64 " channels: %s of %s%s",
                 format_things(model->n_layers, "layer").text, model->n_channels,
                 format_things(n_shown, "step").text, format_things(model->n_step_tokens, "token").text,
                 measured);
    else
        snprintf(title, n_bytes, "Generating %s without a KV cache: a GPT of %s, %" PRId64 " channels",
                 format_things(tokens_shown(study), "token").text,
                 format_things(model->n_layers, "layer").text, model->n_channels);
}

static const char *row_label(const TableStudy *study, int i, Arena *arena) {
    const TableRow *row = &study->rows[i];
    if (isnan(seconds_of(study, HALF_TRAINING, i))) return arena_printf(arena, "%s (not here)", row->name);
    const char *star = *row->missing ? "*" : "";
    if (ranks_of(study, i) == 1) return arena_printf(arena, "%s%s", row->name, star);
    return arena_printf(arena, "%s, %d ranks%s", row->name, ranks_of(study, i), star);
}

static const char *picture_note(const TableStudy *study, Arena *arena) {
    int n_ranks = study->rows[ROW_MPI].n_ranks;
    const char *note = machine_note(arena, arena_printf(arena, "MPI: %d ranks of 1 thread", n_ranks),
                                    *study->rows[ROW_MPI].missing ? 1 : n_ranks, study->output.note);
    for (int i = 0; i < N_TABLE_ROWS; i++) {
        const TableRecord *record = record_of(study, i);
        if (*study->rows[i].missing && record)
            return arena_printf(arena, "%s. * recorded %s on %s", note, record->date, record->machine);
        if (!*study->rows[i].missing && i >= ROW_CUDA)
            return arena_printf(arena, "%s. CUDA: %s", note, study->rows[i].machine);
    }
    return note;
}

static Status draw_half(const TableStudy *study, Half half, const char *name, Error *error) {
    Arena arena = {0};
    const char *names[N_TABLE_ROWS];
    char title[240];
    double x[N_TABLE_ROWS], ours[N_TABLE_ROWS], older[N_TABLE_ROWS];
    for (int i = 0; i < N_TABLE_ROWS; i++) {
        names[i] = row_label(study, i, &arena);
        x[i] = i;
        ours[i] = seconds_of(study, half, i);
        older[i] = old_seconds(half, i);
    }
    write_title(study, half, title, sizeof title);
    PlotSeries series[] = {{"pgpt", PLOT_POINTS, x, ours, N_TABLE_ROWS},
                           {"older study", PLOT_POINTS, x, older, N_TABLE_ROWS}};
    Plot plot = {.title = title,
                 .x_label = "",
                 .y_label = "time in seconds, logarithmic",
                 .y_log = true,
                 .series = series,
                 .n_series = compares(study) ? 2 : 1,
                 .x_names = names,
                 .shows_values = true,
                 .note = picture_note(study, &arena)};
    lab_draw(&study->output, &plot, name, error);
    arena_free(&arena);
    return error->status;
}

Status lab_table_draw(const TableStudy *study, Error *error) {
    TRY(draw_half(study, HALF_TRAINING, "table", error));
    return draw_half(study, HALF_TEXT, "table-text", error);
}

/* ---- JSON, and what is to be kept */

static json_t *row_json(const TableStudy *study, int i) {
    const TableRow *row = &study->rows[i];
    const TableRecord *record = record_of(study, i);
    json_t *entry = json_object();
    bool is_there = !*row->missing, has_older = compares(study);
    double train_s = seconds_of(study, HALF_TRAINING, i), text_s = seconds_of(study, HALF_TEXT, i);
    json_object_set_new(entry, "name", json_string(row->name));
    json_object_set_new(entry, "missing", is_there ? json_null() : json_make_text(row->missing));
    json_object_set_new(entry, "recorded", !is_there && record ? json_string(record->date) : json_null());
    json_object_set_new(entry, "machine",
                        is_there ? json_make_text(row->machine)
                        : record ? json_make_text(record->machine)
                                 : json_null());
    json_object_set_new(entry, "ranks", isnan(train_s) ? json_null() : json_integer(ranks_of(study, i)));
    json_object_set_new(entry, "measured_train_s", json_make_number(row->train_s));
    json_object_set_new(entry, "train_s", json_make_number(train_s));
    json_object_set_new(entry, "tokens_per_s", json_make_number(tokens_of(study, HALF_TRAINING) / train_s));
    json_object_set_new(entry, "speed_up",
                        json_make_number(seconds_of(study, HALF_TRAINING, ROW_SERIAL) / train_s));
    json_object_set_new(entry, "generate_s", json_make_number(text_s));
    json_object_set_new(entry, "generate_tokens_per_s",
                        json_make_number(tokens_of(study, HALF_TEXT) / text_s));
    json_object_set_new(entry, "generate_speed_up",
                        json_make_number(seconds_of(study, HALF_TEXT, ROW_SERIAL) / text_s));
    json_object_set_new(entry, "cached_generate_s", json_make_number(seconds_of(study, HALF_CACHED, i)));
    json_object_set_new(entry, "loss", json_make_number(row->loss));
    json_object_set_new(entry, "older_train_s", json_make_number(has_older ? OLD[i].train_s : NAN));
    json_object_set_new(entry, "older_generate_s", json_make_number(has_older ? OLD[i].generate_s : NAN));
    return entry;
}

Status lab_table_print_json(const TableStudy *study, Error *error) {
    json_t *object = json_object(), *rows = json_array();
    const TableModel *model = model_of(study);
    for (int i = 0; i < N_TABLE_ROWS; i++) json_array_append_new(rows, row_json(study, i));
    json_object_set_new(object, "command", json_string("lab table"));
    json_object_set_new(object, "measured_steps", json_integer(study->n_steps));
    json_object_set_new(object, "steps", json_integer(steps_shown(study)));
    json_object_set_new(object, "tokens", json_integer(tokens_shown(study)));
    json_object_set_new(object, "data", *study->data ? json_make_text(study->data) : json_null());
    json_object_set_new(object, "vocab", json_integer(model->n_vocabulary));
    json_object_set_new(object, "parameters", json_integer(model->n_parameters));
    json_object_set_new(object, "layers", json_integer(model->n_layers));
    json_object_set_new(object, "channels", json_integer(model->n_channels));
    json_object_set_new(object, "step_tokens", json_integer(model->n_step_tokens));
    json_object_set_new(object, "rows", rows);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

void lab_table_print_records(const TableStudy *study) {
    Arena arena = {0};
    int n = 0;
    for (int i = ROW_CUDA; i < N_TABLE_ROWS; i++) { /* what other machines may not have */
        const TableRow *row = &study->rows[i];
        if (*row->missing) continue;
        if (!n++) printf("\nFor src/lab/table_records.h, each in the place of the line of that name:\n");
        printf("    {\"%s\", \"%s\", \"%s\", %d, %.4g, %.4g, %.4g},\n", row->name, machine_date(&arena),
               plain(row->machine).text, row->n_ranks, row->train_s, row->generate_s, row->cached_s);
    }
    if (!n) printf("\nThere is nothing to record: no row with a GPU was measured.\n");
    arena_free(&arena);
}
