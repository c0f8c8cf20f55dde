/* The picture: a band for every track of every rank, time from left to right, one colour a kind.
 *
 * A trace has many more events than a picture has points, and an SVG with an element for each of them would
 * be slow to open. So a band is divided into columns of half a point; each takes the colour of what filled
 * most of it, and neighbours of one colour become one rectangle. The size of the file is bounded by the
 * picture's width, whatever the trace holds.
 *
 * Lines that join the ranks of a collective are drawn where there are few enough to be followed by the
 * eye. */
#include "lab/picture/timeline.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "graph/actions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 1200,
    LEFT = 150,
    RIGHT = 24,
    PLOT = WIDTH - LEFT - RIGHT,
    TOP = 92,
    HOST_HEIGHT = 24,
    TRACK_HEIGHT = 14,
    TRACK_GAP = 3,
    RANK_GAP = 13,
    N_COLUMNS = 2 * PLOT,
    MOST_BANDS = 96,
    MOST_LINES = 60, /* that join collectives */
    CAPTION_COLUMNS = 170,
    LETTER = 6,       /* the width of one in a band */
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
    [TIMELINE_FILE] = {"#f0e442", "#3a3600", "file"},
    [TIMELINE_OTHER] = {"#7a5fb0", "#ffffff", "other"},
};

typedef struct {
    const Timeline *timeline;
    FileWriter *writer;
    bool is_drawn[TIMELINE_MAX_TRACKS];
    int y[TIMELINE_MAX_TRACKS], height[TIMELINE_MAX_TRACKS];
    int n_bands, n_left_out; /* tracks drawn; ranks that found no room */
    int bottom;              /* of the last band */
    bool has_kind[N_TIMELINE_KINDS];
    bool has_lines;
    bool has_actions[TIMELINE_MAX_TRACKS]; /* of a pipeline: they have the labels */
    int n_chunks;
} Picture;

/* ---- Text that is safe in XML */

static const char *safe(const char *text, size_t columns, char *out, size_t n_bytes) {
    size_t n = 0, n_columns = 0;
    for (; *text && n + 8 < n_bytes; text++) {
        unsigned char c = (unsigned char)*text;
        bool is_start = (c & 0xc0) != 0x80;
        if (is_start && n_columns++ == columns) break;
        if (c == '<' || c == '>' || c == '&' || c == '"') {
            const char *name = c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : "&quot;";
            n += (size_t)snprintf(out + n, n_bytes - n, "%s", name);
        } else {
            out[n++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        }
    }
    out[n] = '\0';
    return out;
}

static double x_of(const Picture *picture, double time_us) {
    const Timeline *timeline = picture->timeline;
    return LEFT + PLOT * (time_us - timeline->from_us) / (timeline->to_us - timeline->from_us);
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
    double begin = 2.0 * (x_of(columns->picture, segment->begin_us) - LEFT);
    double end = 2.0 * (x_of(columns->picture, segment->end_us) - LEFT);
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

static Status write_band(Picture *picture, int track, const Columns *columns, Error *error) {
    for (int first = 0, end; first < N_COLUMNS; first = end) {
        int kind = colour_of(columns->share[first]);
        for (end = first + 1; end < N_COLUMNS && colour_of(columns->share[end]) == kind;) end++;
        if (kind < 0) continue;
        picture->has_kind[kind] = true;
        TRY(file_writer_printf(picture->writer, error,
                               "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
                               LEFT + first / 2.0, picture->y[track], (end - first) / 2.0,
                               picture->height[track], looks[kind].fill));
    }
    return STATUS_OK;
}

typedef struct {
    Picture *picture;
    int track;
    Error *error;
} Labels;

/* What something is, where there is room for it. */
static void write_label(void *context, const TimelineSegment *segment) {
    Labels *labels = context;
    Picture *picture = labels->picture;
    const TimelineEvent *event = segment->event;
    double begin = x_of(picture, segment->begin_us), width = x_of(picture, segment->end_us) - begin;
    char text[160], shown[160];
    if (picture->has_actions[labels->track]) return;
    if (width < 4 * LETTER || event->kind == TIMELINE_STEP || labels->error->status != STATUS_OK) return;
    bool has_number = event->kind == TIMELINE_COLLECTIVE || event->kind == TIMELINE_WAIT;
    if (has_number && event->number >= 0)
        snprintf(text, sizeof text, "%s %lld", event->name, (long long)event->number);
    else snprintf(text, sizeof text, "%s", event->name);
    if ((double)strlen(text) * LETTER > width - 2.0) snprintf(text, sizeof text, "%s", event->name);
    if ((double)strlen(text) * LETTER > width - 2.0) return;
    file_writer_printf(picture->writer, labels->error,
                       "<text x=\"%.1f\" y=\"%d\" class=\"in\" style=\"fill:%s\">%s</text>\n",
                       begin + width / 2, picture->y[labels->track] + picture->height[labels->track] / 2 + 3,
                       looks[event->kind].ink, safe(text, 40, shown, sizeof shown));
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

static double shade_of(int chunk) {
    return fmin(0.6, 0.2 * chunk);
}

/* Darker if it is of a later chunk, a border, and "F3", or "3" where that is too wide. */
static Status write_action(Picture *picture, const TimelineEvent *event, Error *error) {
    double begin = fmax(x_of(picture, event->begin_us), LEFT);
    double end = fmin(x_of(picture, event->end_us), LEFT + PLOT), width = end - begin;
    int y = picture->y[event->track], height = picture->height[event->track];
    char label[32];
    if (width <= 0.0) return STATUS_OK;
    if (event->chunk)
        TRY(file_writer_printf(
            picture->writer, error,
            "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill-opacity=\"%.1f\"/>\n", begin, y,
            width, height, shade_of(event->chunk)));
    if (width < LEAST_ACTION) return STATUS_OK;
    TRY(file_writer_printf(picture->writer, error, "<path class=\"cut\" d=\"M%.1f %dv%d\"/>\n", end, y,
                           height));
    int n = snprintf(label, sizeof label, "%c%lld", event->name[0] - 'a' + 'A', (long long)event->number);
    bool is_wide = event->name[0] == 'w', is_short = (n + 0.6 * is_wide) * LETTER > width - 1.0;
    if ((n - is_short) * LETTER > width - 1.0 || strcmp(event->name, action_name(ACTION_UPDATE)) == 0)
        return STATUS_OK;
    bool is_light = strcmp(event->name, action_name(ACTION_BACKWARD)) != 0 && event->chunk < 2;
    return file_writer_printf(
        picture->writer, error, "<text x=\"%.1f\" y=\"%d\" class=\"in\" style=\"fill:%s\">%s</text>\n",
        begin + width / 2, y + height / 2 + 3, is_light ? "#111" : "#fff", label + is_short);
}

static Status write_actions(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    for (size_t i = 0; i < timeline->n_events; i++) {
        const TimelineEvent *event = &timeline->event[i];
        if (!picture->is_drawn[event->track] || !timeline_is_action(event)) continue;
        TRY(write_action(picture, event, error));
    }
    return STATUS_OK;
}

static Status write_bands(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    Columns *columns = malloc(sizeof *columns);
    if (!columns) return error_failed(error, "no memory to draw");
    for (int track = 0; track < timeline->n_tracks && error->status == STATUS_OK; track++) {
        size_t n_clipped = 0;
        if (!picture->is_drawn[track]) continue;
        memset(columns, 0, sizeof *columns);
        columns->picture = picture;
        Labels labels = {picture, track, error};
        file_writer_printf(picture->writer, error,
                           "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"idle\"/>\n", LEFT,
                           picture->y[track], PLOT, picture->height[track]);
        if (timeline_visit(timeline, track, fill_columns, columns, &n_clipped, error) == STATUS_OK)
            write_band(picture, track, columns, error);
        if (error->status == STATUS_OK)
            timeline_visit(timeline, track, write_label, &labels, &n_clipped, error);
    }
    free(columns);
    return error->status;
}

static Status write_track_names(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    char text[256];
    for (int i = 0; i < timeline->n_tracks; i++) {
        const TimelineTrack *track = &timeline->track[i];
        bool is_first = i == 0 || track[-1].rank != track->rank;
        if (!picture->is_drawn[i]) continue;
        const char *name = is_first ? timeline->rank[track->rank].name : track->name;
        TRY(file_writer_printf(picture->writer, error, "<text x=\"%d\" y=\"%d\" class=\"%s\">%s</text>\n",
                               LEFT - 8, picture->y[i] + picture->height[i] / 2 + 4,
                               is_first ? "rank" : "track", safe(name, 23, text, sizeof text)));
    }
    if (!picture->n_left_out) return STATUS_OK;
    return file_writer_printf(picture->writer, error,
                              "<text x=\"%d\" y=\"%d\" class=\"track\">... %d more ranks</text>\n", LEFT - 8,
                              picture->bottom + 14, picture->n_left_out);
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

/* Of the first rank: a line where each begins, its name where there is room. */
static Status write_steps(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    double last = -INFINITY, labelled = -INFINITY;
    char text[256];
    for (size_t i = 0; i < timeline->track[0].n; i++) {
        const TimelineEvent *event = &timeline->event[timeline->track[0].first + i];
        bool is_inside = event->begin_us >= timeline->from_us && event->begin_us <= timeline->to_us;
        if (!is_mark(event) || !is_inside) continue;
        double x = x_of(picture, event->begin_us);
        if (x < last + 3.0) continue; /* too many to be told apart */
        last = x;
        TRY(file_writer_printf(picture->writer, error,
                               "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"step\"/>\n", x, x,
                               TOP - 10, picture->bottom));
        if (x < labelled + 9.0 * LETTER || x > LEFT + PLOT - 6 * LETTER) continue;
        labelled = x;
        TRY(file_writer_printf(picture->writer, error, "<text x=\"%.1f\" y=\"%d\" class=\"mark\">%s</text>\n",
                               x + 3, TOP - 4, safe(event->name, 14, text, sizeof text)));
    }
    return STATUS_OK;
}

static bool is_joined(const TimelineCollective *collective) {
    return collective->n_ranks > 1 && collective->is_complete && collective->n_bytes > 0;
}

static int by_track(const void *a, const void *b) {
    return *(const size_t *)a < *(const size_t *)b ? -1 : 1; /* events are in the order of their tracks */
}

static Status write_line(Picture *picture, const TimelineCollective *collective, Error *error) {
    const Timeline *timeline = picture->timeline;
    size_t n = (size_t)collective->n_ranks, *order = malloc(n * sizeof *order);
    if (!order) return error_failed(error, "no memory to draw");
    memcpy(order, collective->event, n * sizeof *order);
    qsort(order, n, sizeof *order, by_track);
    Status status = file_writer_printf(picture->writer, error, "<polyline class=\"join\" points=\"");
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        const TimelineEvent *event = &timeline->event[order[i]];
        if (!picture->is_drawn[event->track]) continue;
        double x = fmin(fmax(x_of(picture, event->begin_us), LEFT), LEFT + PLOT);
        int y = picture->y[event->track];
        status = file_writer_printf(picture->writer, error, "%.1f,%d %.1f,%d ", x, y, x,
                                    y + picture->height[event->track]);
    }
    if (status == STATUS_OK) status = file_writer_printf(picture->writer, error, "\"/>\n");
    free(order);
    picture->has_lines = true;
    return status;
}

static Status write_lines(Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    size_t n = 0;
    for (size_t i = 0; i < timeline->n_collectives; i++) n += is_joined(&timeline->collective[i]);
    for (size_t i = 0; n <= MOST_LINES && i < timeline->n_collectives; i++)
        if (is_joined(&timeline->collective[i])) TRY(write_line(picture, &timeline->collective[i], error));
    return STATUS_OK;
}

/* ---- Axis, legend, words */

static Status write_axis(const Picture *picture, Error *error) {
    const Timeline *timeline = picture->timeline;
    double length = timeline->to_us - timeline->from_us, step = pow(10.0, floor(log10(length / 5.0)));
    while (length / step > 14.0) step *= length / step > 35.0 ? 5.0 : 2.0;
    double unit = timeline->to_us >= 2e7 ? 1e6 : timeline->to_us >= 2e3 ? 1e3 : 1.0;
    const char *name = unit == 1e6 ? "s" : unit == 1e3 ? "ms" : "us";
    int y = picture->bottom + 6;
    TRY(file_writer_printf(picture->writer, error,
                           "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" class=\"axis\"/>\n", LEFT,
                           LEFT + PLOT, y, y));
    double first = ceil(timeline->from_us / step - 1e-9) * step;
    for (int i = 0; i <= 20; i++) { /* counted: far from 0, a small step may not change a large number */
        double at = first + i * step;
        if (at > timeline->to_us * (1 + 1e-12)) break;
        double x = x_of(picture, at);
        TRY(file_writer_printf(picture->writer, error,
                               "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"grid\"/>\n"
                               "<text x=\"%.1f\" y=\"%d\" class=\"tick\">%.10g</text>\n",
                               x, x, TOP, y + 5, x, y + 18, at / unit));
    }
    return file_writer_printf(
        picture->writer, error,
        "<text x=\"%d\" y=\"%d\" class=\"tick\">time since the beginning of the %s (%s)</text>\n",
        LEFT + PLOT / 2, y + 36, timeline->axis ? timeline->axis : "trace", name);
}

static Status write_legend(const Picture *picture, Error *error) {
    double x = LEFT;
    for (int kind = 0; kind < N_TIMELINE_KINDS; kind++) {
        if (!picture->has_kind[kind]) continue;
        TRY(file_writer_printf(picture->writer, error,
                               "<rect x=\"%.1f\" y=\"46\" width=\"14\" height=\"12\" fill=\"%s\"/>\n"
                               "<text x=\"%.1f\" y=\"56\" class=\"key\">%s</text>\n",
                               x, looks[kind].fill, x + 19, looks[kind].words));
        x += 40.0 + 6.2 * (double)strlen(looks[kind].words);
    }
    for (int chunk = 1; chunk < picture->n_chunks && chunk <= 3; chunk++) {
        TRY(file_writer_printf(
            picture->writer, error,
            "<rect x=\"%.1f\" y=\"46\" width=\"14\" height=\"12\" fill=\"%s\"/>"
            "<rect x=\"%.1f\" y=\"46\" width=\"14\" height=\"12\" fill-opacity=\"%.1f\"/>\n"
            "<text x=\"%.1f\" y=\"56\" class=\"key\">chunk %d%s</text>\n",
            x, looks[TIMELINE_FORWARD].fill, x, shade_of(chunk), x + 19, chunk,
            chunk == 3 && picture->n_chunks > 4 ? " and later" : ""));
        x += 40.0 + 6.2 * (chunk == 3 && picture->n_chunks > 4 ? 17.0 : 7.0);
    }
    if (!picture->has_lines) return STATUS_OK;
    return file_writer_printf(picture->writer, error,
                              "<polyline class=\"join\" points=\"%.1f,46 %.1f,58\"/>\n"
                              "<text x=\"%.1f\" y=\"56\" class=\"key\">one collective on its ranks</text>\n",
                              x, x, x + 6);
}

static Status write_words(const Picture *picture, const char *title, const char *caption, Error *error) {
    char text[1024];
    TRY(file_writer_printf(picture->writer, error, "<text x=\"%d\" y=\"30\" class=\"title\">%s</text>\n",
                           WIDTH / 2, safe(title, 120, text, sizeof text)));
    int y = picture->bottom + 64;
    for (size_t n = strlen(caption), done = 0; done < n && y < picture->bottom + 100; y += 14) {
        TRY(file_writer_printf(picture->writer, error,
                               "<text x=\"%d\" y=\"%d\" class=\"caption\">%s</text>\n", WIDTH / 2, y,
                               safe(caption + done, CAPTION_COLUMNS, text, sizeof text)));
        done += CAPTION_COLUMNS;
        while (done < n && ((unsigned char)caption[done] & 0xc0) == 0x80) done++;
    }
    return STATUS_OK;
}

static const char style[] =
    "<style>\n"
    "text{font-family:Helvetica,Arial,sans-serif;fill:#222}\n"
    ".title{font-size:17px;font-weight:bold;text-anchor:middle}\n"
    ".key{font-size:12px}.rank{font-size:12px;text-anchor:end}\n"
    ".track{font-size:10px;text-anchor:end;fill:#666}.mark{font-size:10px;fill:#555}\n"
    ".tick{font-size:11px;text-anchor:middle}.in{font-size:10px;text-anchor:middle}\n"
    ".caption{font-size:11px;text-anchor:middle;font-family:monospace;fill:#555}\n"
    ".idle{fill:#fafafa;stroke:#dddddd;stroke-width:.5}.step{stroke:#888;stroke-width:.7;stroke-dasharray:3 2}\n"
    ".join{fill:none;stroke:#000;stroke-width:.6;stroke-opacity:.55}\n"
    ".cut{stroke:#fff;stroke-width:.8}\n"
    ".axis{stroke:#222}.grid{stroke:#ccc;stroke-width:.5}\n"
    "</style>\n";

static Status write_picture(Picture *picture, const char *title, const char *caption, Error *error) {
    place_bands(picture);
    find_actions(picture);
    int height = picture->bottom + 64 + 14 * (int)((strlen(caption) + CAPTION_COLUMNS - 1) / CAPTION_COLUMNS);
    if (height > picture->bottom + 110) height = picture->bottom + 110;
    TRY(file_writer_printf(
        picture->writer, error,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
        "%s<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
        WIDTH, height, WIDTH, height, style, WIDTH, height));
    TRY(write_axis(picture, error));
    TRY(write_bands(picture, error));
    TRY(write_actions(picture, error));
    TRY(write_steps(picture, error));
    TRY(write_lines(picture, error));
    TRY(write_track_names(picture, error));
    TRY(write_legend(picture, error));
    TRY(write_words(picture, title, caption, error));
    return file_writer_printf(picture->writer, error, "</svg>\n");
}

Status timeline_draw(const Timeline *timeline, const char *title, const char *caption, const char *path,
                     Error *error) {
    FileWriter writer;
    Picture *picture = calloc(1, sizeof *picture);
    if (!picture) return error_failed(error, "no memory to draw");
    *picture = (Picture){.timeline = timeline, .writer = &writer};
    if (file_writer_open(&writer, path, error) == STATUS_OK &&
        write_picture(picture, title, caption, error) == STATUS_OK)
        file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    free(picture);
    return error->status;
}
