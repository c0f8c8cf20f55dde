/* The bar lives on one line that is always redrawn from its start, never moved, so nothing has to be undone
 * when the program dies: the cursor is visible and at the end of the bar. The window's width is asked for at
 * every drawing, which follows a resize without a signal handler. One column is left free: some terminals
 * wrap after the last.
 *
 * The rate is the ratio of two exponentially fading sums, work done and seconds taken. Unlike a fading mean
 * of per-update rates it weighs a slow step by its length and does not care how often it is updated. */
#define _GNU_SOURCE /* vasprintf */
#include "base/text/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"

#define REDRAW_NS      100000000u /* a tenth of a second */
#define MEMORY_SECONDS 30.0       /* the rate forgets what is older */
#define MEMORY_UPDATES 8.0        /* but looks back over so many updates, however slow */

enum { WIDEST_BAR = 40, NARROWEST_BAR = 8, BAR_FROM_COLUMNS = 50 };

/* ---- One line of text */

typedef struct {
    char *text;
    size_t n_bytes;
} Line;

static void append(Line *line, const char *text, size_t n_bytes) {
    size_t room = PROGRESS_LINE_BYTES - 1 - line->n_bytes;
    if (n_bytes > room) n_bytes = room;
    memcpy(line->text + line->n_bytes, text, n_bytes);
    line->n_bytes += n_bytes;
    line->text[line->n_bytes] = 0;
}

static void append_text(Line *line, const char *text) {
    append(line, text, strlen(text));
}

/* A bar of `cells` columns, its two edges included. */
static void append_bar(Line *line, Terminal terminal, size_t cells, double fraction) {
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    cells -= 2;
    size_t parts = (size_t)(fraction * (double)cells * 8), full = parts / 8, part = parts % 8;
    append_text(line, terminal.utf8 ? "▕" : "[");
    if (terminal.colour) append_text(line, "\033[36m");
    for (size_t i = 0; i < full; i++) append_text(line, terminal.utf8 ? "█" : "#");
    bool tip = full < cells && (terminal.utf8 ? part > 0 : parts > 0);
    if (tip) append_text(line, terminal.utf8 ? eighths[part] : ">");
    if (terminal.colour) append_text(line, "\033[0m");
    for (size_t i = full + tip; i < cells; i++) append_text(line, " ");
    append_text(line, terminal.utf8 ? "▏" : "]");
}

/* Bytes of the most whole fields that fit; if not even the first does, of the most characters. */
static size_t fit_status(const char *status, size_t columns) {
    size_t fitting = terminal_text_cut(status, columns);
    if (!status[fitting]) return fitting;
    size_t end = 0;
    for (const char *gap = strstr(status, "  "); gap && (size_t)(gap - status) <= fitting;
         gap = strstr(gap, "  ")) {
        end = (size_t)(gap - status);
        while (*gap == ' ') gap++;
    }
    return end ? end : fitting;
}

void progress_render(char text[PROGRESS_LINE_BYTES], Terminal terminal, int columns, double fraction,
                     double seconds_left, const char *status) {
    Line line = {text, 0};
    text[0] = 0;
    char percent[8], left[48] = "";
    fraction = fraction > 0 ? fraction < 1 ? fraction : 1 : 0; /* also for NAN */
    snprintf(percent, sizeof percent, "%3d%%", (int)(fraction * 100 + 1e-9));
    if (seconds_left >= 0 && seconds_left < 10) snprintf(left, sizeof left, "ETA %.0fs", seconds_left);
    else if (seconds_left >= 10) snprintf(left, sizeof left, "ETA %s", format_duration(seconds_left).text);
    size_t room = columns > 0 ? (size_t)columns : 0;
    if (room < strlen(percent)) return;
    room -= strlen(percent);

    size_t bar = columns >= BAR_FROM_COLUMNS ? NARROWEST_BAR : 0;
    if (bar) room -= bar + 1;
    const char *gap = strstr(status, "  ");
    size_t first_field = terminal_text_columns(status) - (gap ? terminal_text_columns(gap) : 0);
    if (strlen(left) + 2 + (first_field ? first_field + 2 : 0) > room) left[0] = 0;
    if (left[0]) room -= strlen(left) + 2;
    size_t shown = room > 2 ? fit_status(status, room - 2) : 0;
    if (shown) room -= terminal_text_columns(status) - terminal_text_columns(status + shown) + 2;
    if (bar) bar = bar + room < WIDEST_BAR ? bar + room : WIDEST_BAR;

    if (bar) {
        append_bar(&line, terminal, bar, fraction);
        append_text(&line, " ");
    }
    append_text(&line, percent);
    if (shown) {
        append_text(&line, "  ");
        append(&line, status, shown);
    }
    if (left[0]) {
        append_text(&line, terminal.colour ? "  \033[2m" : "  ");
        append_text(&line, left);
        if (terminal.colour) append_text(&line, "\033[0m");
    }
}

/* ---- The bar on the screen */

static void draw(Progress *progress) {
    char text[PROGRESS_LINE_BYTES];
    progress_render(text, progress->terminal, terminal_columns(progress->stream) - 1, progress->fraction,
                    progress_seconds_left(progress), progress->status);
    fprintf(progress->stream, "\r%s\033[K", text);
    fflush(progress->stream);
    progress->shown = true;
}

void progress_begin(Progress *progress, FILE *stream, double fraction) {
    *progress = (Progress){.stream = stream, .terminal = terminal_of(stream), .fraction = fraction};
    progress->sampled = fraction;
    progress->sampled_ns = timer_now_ns();
}

static bool due_at(const Progress *progress, uint64_t now_ns) {
    return progress->terminal.interactive && (progress->drawn_ns == 0 || now_ns < progress->drawn_ns ||
                                              now_ns - progress->drawn_ns >= REDRAW_NS);
}

bool progress_due(const Progress *progress) {
    return due_at(progress, timer_now_ns());
}

static void learn_rate(Progress *progress, double fraction, uint64_t now_ns) {
    double seconds = timer_seconds(progress->sampled_ns, now_ns);
    if (seconds <= 0) return;
    double memory = seconds * MEMORY_UPDATES > MEMORY_SECONDS ? seconds * MEMORY_UPDATES : MEMORY_SECONDS;
    double kept = exp(-seconds / memory);
    progress->rate_sum = progress->rate_sum * kept + fraction - progress->sampled;
    progress->rate_seconds = progress->rate_seconds * kept + seconds;
    progress->sampled = fraction;
    progress->sampled_ns = now_ns;
}

void progress_update_at(Progress *progress, double fraction, const char *status, uint64_t now_ns) {
    learn_rate(progress, fraction, now_ns);
    progress->fraction = fraction;
    if (!due_at(progress, now_ns)) return;
    plain_text(progress->status, sizeof progress->status, status, strlen(status), false);
    progress->drawn_ns = now_ns;
    draw(progress);
}

void progress_update(Progress *progress, double fraction, const char *status) {
    progress_update_at(progress, fraction, status, timer_now_ns());
}

double progress_seconds_left(const Progress *progress) {
    if (progress->fraction >= 1) return 0;
    if (progress->rate_seconds <= 0 || progress->rate_sum <= 0) return NAN;
    return (1 - progress->fraction) * progress->rate_seconds / progress->rate_sum;
}

void progress_hide(Progress *progress) {
    if (!progress->shown) return;
    fputs("\r\033[K", progress->stream);
    fflush(progress->stream);
    progress->shown = false;
}

/* In one call, so that lines of several ranks do not mix. Where there is no memory, nothing is said. */
static void write_lines(FILE *stream, const char *format, va_list arguments) {
    char *raw = NULL;
    int n = vasprintf(&raw, format, arguments);
    if (n < 0) return;
    char *text = plain_copy(raw, (size_t)n, true);
    if (text) fprintf(stream, "%s\n", text);
    free(text);
    free(raw);
}

void progress_print(Progress *progress, const char *format, ...) {
    bool back = progress->shown;
    progress_hide(progress);
    va_list arguments;
    va_start(arguments, format);
    write_lines(progress->stream, format, arguments);
    va_end(arguments);
    fflush(progress->stream);
    if (back) draw(progress);
}

void progress_end(Progress *progress) {
    progress_hide(progress);
    progress->terminal.interactive = false;
}
