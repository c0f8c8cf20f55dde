/* The picture: a band for every track of every rank, time from left to right, one colour a kind.
 *
 * A trace has many more events than a picture has points, and an SVG with an element for each of them would
 * be slow to open. So a band is divided into columns of half a point; each takes the colour of what filled
 * most of it, and neighbours of one colour become one rectangle. The size of the file is bounded by the
 * picture's width, whatever the trace holds.
 *
 * Lines that join the ranks of a collective are drawn where there are few enough to be followed by the
 * eye.
 *
 * No word is cut where it cannot be seen: what is too long for a band is left out or said shorter, the margin
 * is as wide as the longest name needs, and a name that is too long even for the widest ends in dots. */
#include "lab/picture/timeline.h"

#include "graph/actions.h"
#include "lab/picture/canvas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_LEFT = 150, /* margin, at least */
    RIGHT = 24,
    PLOT = 1026,
    NAME_COLUMNS = 44, /* of a name in the margin, at most */
    MARK_COLUMNS = 14,
    TOP = 92,
    HOST_HEIGHT = 24,
    TRACK_HEIGHT = 14,
    TRACK_GAP = 3,
    RANK_GAP = 13,
    N_COLUMNS = 2 * PLOT,
    MOST_BANDS = 96,
    MOST_LINES = 60, /* that join collectives */
    CAPTION_COLUMNS = 165,
    CAPTION_LINES = 4,
    LEAST_ACTION = 3, /* points between the borders of actions that are drawn */
};

/* Told apart also by eyes that do not tell red from green. */
static const struct {
    const char *fill, *ink, *words;
} looks[N_TIMELINE_KINDS] = {
    [TIMELINE_STEP] = {"#e4e4e4", "#444444", "in a step, between instructions"},
    [TIMELINE_FORWARD] = {"#56b4e9", "#08324a", "forward"},
    [TIMELINE_BACKWARD] = {"#0072b2", "#ffffff", "backward"},
    [TIMELINE_WEIGHT_GRADIENT] = {"#b3a369", "#2e2600", "weight gradient"},
    [TIMELINE_UPDATE] = {"#009e73", "#ffffff", "update"},
    [TIMELINE_COLLECTIVE] = {"#e69f00", "#3d2a00", "collective"},
    [TIMELINE_WAIT] = {"#d55e00", "#ffffff", "waiting"},
    [TIMELINE_MESSAGE] = {"#cc79a7", "#3f1029", "message"},
    [TIMELINE_WORK] = {"#999999", "#ffffff", "data, evaluation, sample"},
    [TIMELINE_FILE] = {"#f0e442", "#3a3600", "file, or moved by an offload"},
    [TIMELINE_OTHER] = {"#7a5fb0", "#ffffff", "other"},
};

/* Waiting of a pipeline's stage: nearly as pale as nothing, which it is in a prediction. */
static const char bubble_fill[] = "#fbe6d6";

typedef struct {
    const Timeline *timeline;
    Canvas canvas;
    int left; /* margin */
    bool is_drawn[TIMELINE_MAX_TRACKS];
    int y[TIMELINE_MAX_TRACKS], height[TIMELINE_MAX_TRACKS];
    int n_bands, n_left_out; /* tracks drawn; ranks that found no room */
    int bottom;              /* of the last band */
    bool has_kind[N_TIMELINE_KINDS];
    bool has_lines, has_bubbles;
    bool has_actions[TIMELINE_MAX_TRACKS]; /* of a pipeline: they have the labels */
    int n_chunks;
} Picture;

/* ---- Words */

static size_t count_columns(const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* As many columns, the last of them dots if there are more. */
static const char *shortened(const char *text, size_t columns, char *out, size_t n_bytes) {
    static const char dots[] = "\xe2\x80\xa6";
    size_t n = 0, n_columns = 0, kept = count_columns(text) > columns ? columns - 1 : columns;
    for (; text[n] && n + sizeof dots < n_bytes; n++) {
        if (((unsigned char)text[n] & 0xc0) != 0x80 && n_columns++ == kept) break;
        out[n] = text[n];
    }
    snprintf(out + n, n_bytes - n, "%s", text[n] ? dots : "");
    return out;
}

static double x_of(const Picture *picture, double time_us) {
    const Timeline *timeline = picture->timeline;
    return picture->left + PLOT * (time_us - timeline->from_us) / (timeline->to_us - timeline->from_us);
}

/* ---- Where the bands are */

static bool is_seen(const Timeline *timeline, const TimelineTrack *track) {
    for (size_t i = track->first; i < track->first + track->n; i++) {
        const TimelineEvent *event = &timeline->event[i];
        if (event->end_us > timeline->from_us && event->begin_us < timeline->to_us) return true;
    }
    return false;
}

static void place_bands(Picture *picture) {
    const Timeline *timeline = picture->timeline;
    int y = TOP, rank = -1;
    for (int i = 0; i < timeline->n_tracks; i++) {
        const TimelineTrack *track = &timeline->track[i];
        bool is_first = track->rank != rank;
        if (!is_first && !is_seen(timeline, track)) continue;
        if (picture->n_bands == MOST_BANDS) {
            picture->n_left_out += is_first;
            rank = track->rank;
            continue;
        }
        if (is_first && rank >= 0) y += RANK_GAP - TRACK_GAP;
        rank = track->rank;
        picture->is_drawn[i] = true;
        picture->y[i] = y;
        picture->height[i] = is_first ? HOST_HEIGHT : TRACK_HEIGHT;
        picture->n_bands++;
        y += picture->height[i] + TRACK_GAP;
    }
    picture->bottom = y - TRACK_GAP;
}

/* ---- Bands */

typedef struct {
    const Picture *picture;
    float share[N_COLUMNS][N_TIMELINE_KINDS]; /* of each column */
} Columns;

static void fill_columns(void *context, const TimelineSegment *segment) {
    Columns *columns = context;
    double begin = 2.0 * (x_of(columns->picture, segment->begin_us) - columns->picture->left);
    double end = 2.0 * (x_of(columns->picture, segment->end_us) - columns->picture->left);
    for (int i = (int)fmax(0.0, floor(begin)); i < N_COLUMNS && i < end; i++) {
        double part = fmin(end, i + 1.0) - fmax(begin, (double)i);
        if (part > 0.0) columns->share[i][segment->event->kind] += (float)part;
    }
}

/* What fills most of a column, if that is more than what is empty; -1: nothing. */
static int colour_of(const float *share) {
    float empty = 1.0f;
    int best = 0;
    for (int kind = 0; kind < N_TIMELINE_KINDS; kind++) {
        empty -= share[kind];
        if (share[kind] > share[best]) best = kind;
    }
    return share[best] > empty || share[best] > 0.3f ? best : -1;
}

static void draw_band(Picture *picture, int track, const Columns *columns) {
    for (int first = 0, end; first < N_COLUMNS; first = end) {
        int kind = colour_of(columns->share[first]);
        for (end = first + 1; end < N_COLUMNS && colour_of(columns->share[end]) == kind;) end++;
        if (kind < 0) continue;
        bool is_bubble = kind == TIMELINE_WAIT && picture->has_actions[track];
        picture->has_kind[kind] = true;
        picture->has_bubbles |= is_bubble;
        canvas_rectangle(&picture->canvas, picture->left + first / 2.0, picture->y[track],
                         (end - first) / 2.0, picture->height[track],
                         is_bubble ? bubble_fill : looks[kind].fill);
    }
}

typedef struct {
    Picture *picture;
    int track;
} Labels;

static bool fits(const char *text, double width) {
    return canvas_text_width(CANVAS_LABEL, count_columns(text)) <= width - 2.0;
}

/* What something is, where there is room for it: with its number, without, or in one word. */
static void draw_label(void *context, const TimelineSegment *segment) {
    Labels *labels = context;
    Picture *picture = labels->picture;
    const TimelineEvent *event = segment->event;
    double begin = x_of(picture, segment->begin_us), width = x_of(picture, segment->end_us) - begin;
    bool is_wait = event->kind == TIMELINE_WAIT;
    bool has_number = (event->kind == TIMELINE_COLLECTIVE || is_wait) && event->number >= 0;
    char text[192];
    if (event->kind == TIMELINE_STEP || picture->has_actions[labels->track]) return;
    if (has_number) snprintf(text, sizeof text, "%s %lld", event->name, (long long)event->number);
    else snprintf(text, sizeof text, "%s", event->name);
    /* "wait for" by itself would be half a sentence. */
    if (!fits(text, width)) snprintf(text, sizeof text, "%s", is_wait ? "wait" : event->name);
    if (!fits(text, width)) return;
    canvas_text(&picture->canvas, CANVAS_LABEL, begin + width / 2,
                picture->y[labels->track] + picture->height[labels->track] / 2.0 + 3, looks[event->kind].ink,
                text);
}

static void draw_idle(Picture *picture, int track) {
    double x = picture->left, y = picture->y[track], height = picture->height[track];
    canvas_rectangle(&picture->canvas, x - 0.5, y - 0.5, PLOT + 1, height + 1, "#e6e6e6");
    canvas_rectangle(&picture->canvas, x, y, PLOT, height, "#fafafa");
}

/* ---- Actions of a pipeline */

static void find_actions(Picture *picture) {
    const Timeline *timeline = picture->timeline;
    for (size_t i = 0; i < timeline->n_events; i++) {
        const TimelineEvent *event = &timeline->event[i];
        if (!timeline_is_action(event)) continue;
        picture->has_actions[event->track] = true;
        if (picture->n_chunks <= event->chunk) picture->n_chunks = event->chunk + 1;
    }
}

/* The colour of an action, darker if it is of a later chunk. */
static const char *shaded(TimelineKind kind, int chunk, char text[8]) {
    unsigned colour = (unsigned)strtoul(looks[kind].fill + 1, NULL, 16);
    double light = 1.0 - fmin(0.6, 0.2 * chunk);
    unsigned red = (unsigned)(light * (colour >> 16)), green = (unsigned)(light * (colour >> 8 & 255)),
             blue = (unsigned)(light * (colour & 255));
    snprintf(text, 8, "#%02x%02x%02x", red & 255, green & 255, blue & 255);
    return text;
}

static TimelineKind kind_of_action(const TimelineEvent *event) {
    if (strcmp(event->name, action_name(ACTION_FORWARD)) == 0) return TIMELINE_FORWARD;
    if (strcmp(event->name, action_name(ACTION_BACKWARD)) == 0) return TIMELINE_BACKWARD;
    return strcmp(event->name, action_name(ACTION_UPDATE)) == 0 ? TIMELINE_UPDATE : TIMELINE_WEIGHT_GRADIENT;
}

/* A border, and "F3", or "3" where that is too wide. Instructions of later chunks are painted over. */
static void draw_action(Picture *picture, size_t index) {
    const TimelineEvent *event = &picture->timeline->event[index];
    double begin, end;
    timeline_action_span(picture->timeline, index, &begin, &end);
    begin = fmax(x_of(picture, begin), picture->left);
    end = fmin(x_of(picture, end), picture->left + PLOT);
    double width = end - begin;
    double y = picture->y[event->track], height = picture->height[event->track];
    TimelineKind kind = kind_of_action(event);
    char label[32], colour[8];
    if (width <= 0.0) return;
    if (event->chunk)
        canvas_rectangle(&picture->canvas, begin, y, width, height, shaded(kind, event->chunk, colour));
    if (width < LEAST_ACTION) return;
    canvas_rectangle(&picture->canvas, end - 0.4, y, 0.8, height, "#ffffff");
    int n = snprintf(label, sizeof label, "%c%lld", event->name[0] - 'a' + 'A', (long long)event->number);
    double letter = canvas_text_width(CANVAS_LABEL, 1) * 0.9, wide = event->name[0] == 'w' ? 0.8 : 0.0;
    bool is_short = (n + wide) * letter > width - 1.0;
    if ((n - is_short) * letter > width - 1.0 || kind == TIMELINE_UPDATE) return;
    canvas_text(&picture->canvas, CANVAS_LABEL, begin + width / 2, y + height / 2 + 3,
                event->chunk < 2 ? looks[kind].ink : "#ffffff", label + is_short);
}

static void draw_actions(Picture *picture) {
    const Timeline *timeline = picture->timeline;
    for (size_t i = 0; i < timeline->n_events; i++) {
        const TimelineEvent *event = &timeline->event[i];
        if (picture->is_drawn[event->track] && timeline_is_action(event)) draw_action(picture, i);
    }
}

static Status draw_bands(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    Columns *columns = malloc(sizeof *columns);
    if (!columns) return error_failed(error, "no memory to draw");
    for (int track = 0; track < timeline->n_tracks && error->status == STATUS_OK; track++) {
        size_t n_clipped = 0;
        if (!picture->is_drawn[track]) continue;
        memset(columns, 0, sizeof *columns);
        columns->picture = picture;
        Labels labels = {picture, track};
        draw_idle(picture, track);
        if (timeline_visit(timeline, track, fill_columns, columns, &n_clipped, error) == STATUS_OK)
            draw_band(picture, track, columns);
        if (error->status == STATUS_OK)
            timeline_visit(timeline, track, draw_label, &labels, &n_clipped, error);
    }
    free(columns);
    return error->status;
}

/* Of a band: the rank's for its first, the thread's for the others. */
static const char *band_name(const Timeline *timeline, int i, bool *is_first) {
    const TimelineTrack *track = &timeline->track[i];
    *is_first = i == 0 || track[-1].rank != track->rank;
    return *is_first ? timeline->rank[track->rank].name : track->name;
}

static void choose_margin(Picture *picture) {
    double widest = 0.0;
    for (int i = 0; i < picture->timeline->n_tracks; i++) {
        bool is_first;
        const char *name = band_name(picture->timeline, i, &is_first);
        size_t n = count_columns(name);
        double width = canvas_text_width(is_first ? CANVAS_NAME : CANVAS_SMALL_NAME,
                                         n < NAME_COLUMNS ? n : NAME_COLUMNS);
        if (picture->is_drawn[i]) widest = fmax(widest, width);
    }
    picture->left = (int)fmax(LEAST_LEFT, widest + 20.0);
}

static void draw_names(Picture *picture) {
    char text[256];
    for (int i = 0; i < picture->timeline->n_tracks; i++) {
        bool is_first;
        const char *name = band_name(picture->timeline, i, &is_first);
        if (picture->is_drawn[i])
            canvas_text(&picture->canvas, is_first ? CANVAS_NAME : CANVAS_SMALL_NAME, picture->left - 8,
                        picture->y[i] + picture->height[i] / 2.0 + 4, NULL,
                        shortened(name, NAME_COLUMNS, text, sizeof text));
    }
    if (!picture->n_left_out) return;
    snprintf(text, sizeof text, "... %d more ranks", picture->n_left_out);
    canvas_text(&picture->canvas, CANVAS_SMALL_NAME, picture->left - 8, picture->bottom + 14, NULL, text);
}

/* ---- Steps and collectives across the bands */

/* Steps, and the long things between them. */
static bool is_mark(const TimelineEvent *event) {
    static const char *const names[] = {"evaluation", "sample", "checkpoint"};
    if (event->kind == TIMELINE_STEP) return strncmp(event->name, "step ", 5) == 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(event->name, names[i]) == 0) return true;
    return false;
}

/* Of the first rank: a line where each begins, its name where there is room before the end and behind the
 * last one. */
static void draw_steps(Picture *picture) {
    const Timeline *timeline = picture->timeline;
    double last = -INFINITY, free_from = -INFINITY;
    char text[256];
    for (size_t i = 0; i < timeline->track[0].n; i++) {
        const TimelineEvent *event = &timeline->event[timeline->track[0].first + i];
        bool is_inside = event->begin_us >= timeline->from_us && event->begin_us <= timeline->to_us;
        if (!is_mark(event) || !is_inside) continue;
        double x = x_of(picture, event->begin_us);
        if (x < last + 3.0) continue; /* too many to be told apart */
        last = x;
        canvas_line(&picture->canvas, CANVAS_DASHED, x, TOP - 10, x, picture->bottom);
        shortened(event->name, MARK_COLUMNS, text, sizeof text);
        double end = x + 3 + canvas_text_width(CANVAS_MARK, count_columns(text));
        if (x < free_from || end > picture->left + PLOT + RIGHT - 2) continue;
        free_from = end + 4;
        canvas_text(&picture->canvas, CANVAS_MARK, x + 3, TOP - 4, NULL, text);
    }
}

static bool is_joined(const TimelineCollective *collective) {
    return collective->n_ranks > 1 && collective->is_complete && collective->n_bytes > 0;
}

static int by_track(const void *a, const void *b) {
    return *(const size_t *)a < *(const size_t *)b ? -1 : 1; /* events are in the order of their tracks */
}

/* From band to band, and down each of them. */
static Status draw_join(Picture *picture, const TimelineCollective *collective, Error *error) {
    const Timeline *timeline = picture->timeline;
    size_t n = (size_t)collective->n_ranks, *order = malloc(n * sizeof *order);
    double last_x = NAN, last_y = NAN;
    if (!order) return error_failed(error, "no memory to draw");
    memcpy(order, collective->event, n * sizeof *order);
    qsort(order, n, sizeof *order, by_track);
    for (size_t i = 0; i < n; i++) {
        const TimelineEvent *event = &timeline->event[order[i]];
        if (!picture->is_drawn[event->track]) continue;
        double x = fmin(fmax(x_of(picture, event->begin_us), picture->left), picture->left + PLOT);
        double y = picture->y[event->track], bottom = y + picture->height[event->track];
        if (!isnan(last_x)) canvas_line(&picture->canvas, CANVAS_THIN, last_x, last_y, x, y);
        canvas_line(&picture->canvas, CANVAS_THIN, x, y, x, bottom);
        last_x = x;
        last_y = bottom;
    }
    free(order);
    picture->has_lines = true;
    return STATUS_OK;
}

static Status draw_joins(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    size_t n = 0;
    for (size_t i = 0; i < timeline->n_collectives; i++) n += is_joined(&timeline->collective[i]);
    for (size_t i = 0; n <= MOST_LINES && i < timeline->n_collectives; i++)
        if (is_joined(&timeline->collective[i])) TRY(draw_join(picture, &timeline->collective[i], error));
    return STATUS_OK;
}

/* ---- Axis, legend, words */

static void draw_axis(Picture *picture) {
    const Timeline *timeline = picture->timeline;
    double length = timeline->to_us - timeline->from_us, step = pow(10.0, floor(log10(length / 5.0)));
    while (length / step > 14.0) step *= length / step > 35.0 ? 5.0 : 2.0;
    double unit = timeline->to_us >= 2e7 ? 1e6 : timeline->to_us >= 2e3 ? 1e3 : 1.0;
    double first = ceil(timeline->from_us / step - 1e-9) * step, y = picture->bottom + 6;
    char text[80];
    canvas_line(&picture->canvas, CANVAS_AXIS, picture->left, y, picture->left + PLOT, y);
    for (int i = 0; i <= 20; i++) { /* counted: far from 0, a small step may not change a large number */
        double at = first + i * step;
        if (at > timeline->to_us * (1 + 1e-12)) break;
        double x = x_of(picture, at);
        canvas_line(&picture->canvas, CANVAS_GRID, x, TOP, x, y + 5);
        snprintf(text, sizeof text, "%.10g", at / unit);
        canvas_text(&picture->canvas, CANVAS_TICK, x, y + 18, NULL, text);
    }
    snprintf(text, sizeof text, "time since the beginning of the %s (%s)",
             timeline->axis ? timeline->axis : "trace",
             unit == 1e6   ? "s"
             : unit == 1e3 ? "ms"
                           : "us");
    canvas_text(&picture->canvas, CANVAS_TICK, picture->left + PLOT / 2.0, y + 36, NULL, text);
}

static void draw_legend(Picture *picture) {
    static const char joined[] = "one collective on its ranks";
    double x = picture->left;
    for (int kind = 0; kind < N_TIMELINE_KINDS; kind++) {
        if (!picture->has_kind[kind]) continue;
        bool is_bubble = kind == TIMELINE_WAIT && picture->has_bubbles;
        canvas_rectangle(&picture->canvas, x, 46, 14, 12, is_bubble ? bubble_fill : looks[kind].fill);
        canvas_text(&picture->canvas, CANVAS_KEY, x + 19, 56, NULL, looks[kind].words);
        x += 40.0 + canvas_text_width(CANVAS_KEY, strlen(looks[kind].words));
    }
    for (int chunk = 1; chunk < picture->n_chunks && chunk <= 3; chunk++) {
        char words[32], colour[8];
        snprintf(words, sizeof words, "chunk %d%s", chunk,
                 chunk == 3 && picture->n_chunks > 4 ? " and later" : "");
        canvas_rectangle(&picture->canvas, x, 46, 14, 12, shaded(TIMELINE_FORWARD, chunk, colour));
        canvas_text(&picture->canvas, CANVAS_KEY, x + 19, 56, NULL, words);
        x += 40.0 + canvas_text_width(CANVAS_KEY, strlen(words));
    }
    if (!picture->has_lines) return;
    canvas_line(&picture->canvas, CANVAS_THIN, x, 46, x, 58);
    canvas_text(&picture->canvas, CANVAS_KEY, x + 6, 56, NULL, joined);
}

/* Bytes of the caption's next line: to a line's end, or to the last blank that fits, if there is one. */
static size_t caption_bytes(const char *text) {
    size_t n = 0, n_columns = 0, blank = 0;
    for (; text[n] && text[n] != '\n'; n++) {
        if (((unsigned char)text[n] & 0xc0) != 0x80 && n_columns++ == CAPTION_COLUMNS)
            return blank ? blank : n;
        if (text[n] == ' ') blank = n;
    }
    return n;
}

static int caption_lines(const char *caption) {
    int n = 0;
    for (; *caption && n < CAPTION_LINES; n++) {
        caption += caption_bytes(caption);
        caption += strspn(caption, " \n");
    }
    return n;
}

static void draw_words(Picture *picture, const char *title, const char *caption) {
    char text[1024];
    double middle = picture->canvas.width / 2.0;
    canvas_text(&picture->canvas, CANVAS_TITLE, middle, 30, NULL, shortened(title, 110, text, sizeof text));
    for (int i = 0, n = caption_lines(caption); i < n; i++) {
        size_t n_bytes = caption_bytes(caption);
        if (i + 1 == CAPTION_LINES) shortened(caption, CAPTION_COLUMNS, text, sizeof text);
        else snprintf(text, sizeof text, "%.*s", (int)n_bytes, caption);
        canvas_text(&picture->canvas, CANVAS_CAPTION, middle, picture->bottom + 64 + 14 * i, NULL, text);
        caption += n_bytes;
        caption += strspn(caption, " \n");
    }
}

static Status draw_all(Picture *picture, const char *title, const char *caption, Error *error) {
    draw_axis(picture);
    TRY(draw_bands(picture, error));
    draw_actions(picture);
    draw_steps(picture);
    TRY(draw_joins(picture, error));
    draw_names(picture);
    draw_legend(picture);
    draw_words(picture, title, caption);
    return STATUS_OK;
}

Status timeline_draw(const Timeline *timeline, const char *title, const char *caption, const char *folder,
                     const char *name, bool *has_png, Error *error) {
    *has_png = false;
    Picture *picture = calloc(1, sizeof *picture);
    if (!picture) return error_failed(error, "no memory to draw");
    picture->timeline = timeline;
    place_bands(picture);
    find_actions(picture);
    choose_margin(picture);
    int height = picture->bottom + 64 + 14 * caption_lines(caption);
    if (canvas_open(&picture->canvas, folder, name, picture->left + PLOT + RIGHT, height, error) ==
            STATUS_OK &&
        draw_all(picture, title, caption, error) == STATUS_OK)
        canvas_close(&picture->canvas, has_png, error);
    canvas_drop(&picture->canvas);
    free(picture);
    return error->status;
}
