/* From lines to arrays. A run may be under way, killed in the middle of a line, or resumed after it had lost
 * steps: whatever can be read is, and what cannot is counted, so that whoever draws can say it. */
#include "lab/curves/curves.h"

#include "base/file/file.h"
#include "base/text/json.h"
#include "base/text/plain.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const curve_x_names[] = {"step", "time", "tokens", NULL};
const char *const curve_x_labels[] = {"step", "time in steps (s)", "tokens"};
const char *const panel_names[] = {"loss", "rate", "norm", "speed", NULL};
const char *const panel_labels[N_PANELS] = {"loss", "learning rate", "gradient norm", "tokens/s"};

static const char *const fields[N_CURVES] = {"loss", "val_loss", "lr", "grad_norm", "tokens_per_s"};

/* ---- Reading */

static bool grow(CurveRun *run) {
    if (run->n < run->capacity) return true;
    int64_t capacity = run->capacity ? 2 * run->capacity : 1024;
    for (int i = 0; i < N_CURVE_X + N_CURVES; i++) {
        double **array = i < N_CURVE_X ? &run->x[i] : &run->y[i - N_CURVE_X];
        double *larger = realloc(*array, (size_t)capacity * sizeof **array);
        if (!larger) return false;
        *array = larger;
    }
    run->capacity = capacity;
    return true;
}

static double number_of(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Steps only grow, but in a file that two attempts have written to: then the later ones count. */
static void forget_from(CurveRun *run, double step) {
    while (run->n > 0 && run->x[CURVE_X_STEP][run->n - 1] >= step) {
        run->n--;
        run->n_again++;
    }
}

static Status add_step(CurveRun *run, const json_t *object, Error *error) {
    double step = number_of(object, "step"), step_ms = number_of(object, "step_ms");
    double tokens = number_of(object, "tokens");
    forget_from(run, step);
    if (!grow(run)) return error_failed(error, "no memory for the steps of %s", run->path);
    double before = run->n ? run->x[CURVE_X_TIME][run->n - 1] : 0.0;
    run->x[CURVE_X_STEP][run->n] = step;
    run->x[CURVE_X_TIME][run->n] = before + (isnan(step_ms) ? 0.0 : step_ms * 1e-3);
    run->x[CURVE_X_TOKENS][run->n] = tokens;
    for (int i = 0; i < N_CURVES; i++) run->y[i][run->n] = number_of(object, fields[i]);
    run->n++;
    return STATUS_OK;
}

/* Of the header: what was there when the run began. */
static void read_header(CurveRun *run, const json_t *object) {
    const json_t *machine = json_object_get(object, "machine");
    const char *processor = json_string_value(json_object_get(machine, "processor"));
    const char *started = json_string_value(json_object_get(object, "started"));
    double n_cores = number_of(machine, "cores"), n_ranks = number_of(object, "ranks");
    char text[300];
    if (!machine || run->machine) return;
    snprintf(text, sizeof text, "%.150s, %.0f core%s; %.0f rank%s; %.10s",
             processor ? processor : "a processor without a name", n_cores, n_cores == 1 ? "" : "s", n_ranks,
             n_ranks == 1 ? "" : "s", started ? started : "");
    run->machine = strdup(plain(text).text);
}

/* The header is an object without a step, and not broken. */
static Status add_line(CurveRun *run, const char *line, size_t n, int64_t number, Error *error) {
    json_error_t trouble;
    json_t *object = json_loadb(line, n, 0, &trouble);
    Status status = STATUS_OK;
    if (!json_is_object(object)) {
        if (!run->n_broken++) run->first_broken = number;
    } else if (json_is_integer(json_object_get(object, "step"))) {
        status = add_step(run, object, error);
    } else {
        read_header(run, object);
    }
    json_decref(object);
    return status;
}

static Status read_lines(CurveRun *run, FILE *file, Error *error) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    for (int64_t number = 1; error->status == STATUS_OK && (n = getline(&line, &capacity, file)) > 0;
         number++) {
        run->is_cut = line[n - 1] != '\n';
        int64_t n_broken = run->n_broken;
        add_line(run, line, (size_t)n, number, error);
        if (run->is_cut) run->n_broken = n_broken; /* not yet written, rather than broken */
    }
    free(line);
    return error->status;
}

static Status find_file(const char *path, char *file, size_t n_bytes, Error *error) {
    struct stat facts;
    if (stat(path, &facts) != 0) {
        if (errno == ENOENT)
            return error_user(error, "there is no '%s'; give a run's folder, as runs/latest",
                              plain(path).text);
        return file_problem(error, "open", path, errno);
    }
    int n = snprintf(file, n_bytes, "%s%s", path, S_ISDIR(facts.st_mode) ? "/metrics.jsonl" : "");
    if (n < 0 || (size_t)n >= n_bytes) return error_user(error, "'%s' is too long a name", plain(path).text);
    if (S_ISDIR(facts.st_mode) && !file_exists(file))
        return error_user(error, "%s has no metrics.jsonl: it is no run's folder, or its run has not begun",
                          plain(path).text);
    if (!S_ISDIR(facts.st_mode) && !S_ISREG(facts.st_mode))
        return error_user(error, "%s is neither a folder nor a file; give a run's folder", plain(path).text);
    return STATUS_OK;
}

static Status read_run(CurveRun *run, const char *path, Error *error) {
    char place[4096];
    TRY(find_file(path, place, sizeof place, error));
    FILE *file = fopen(place, "r");
    if (!file) return file_problem(error, "read", place, errno);
    read_lines(run, file, error);
    bool has_failed = ferror(file);
    fclose(file);
    TRY(error->status);
    if (has_failed) return error_failed(error, "%s cannot be read to its end", place);
    if (run->n) return STATUS_OK;
    if (run->n_broken)
        return error_user(error, "%s has no step that can be read: %lld lines of it are no JSON objects",
                          plain(place).text, (long long)run->n_broken);
    return error_user(error, "%s has no steps yet; wait for the first one", plain(place).text);
}

Status curve_run_read(CurveRun *run, const char *path, Error *error) {
    *run = (CurveRun){.path = strdup(path)};
    if (!run->path) error_failed(error, "no memory for a name");
    else read_run(run, path, error);
    if (error->status != STATUS_OK) curve_run_free(run);
    return error->status;
}

void curve_run_free(CurveRun *run) {
    free(run->path);
    free(run->name);
    free(run->machine);
    for (int i = 0; i < N_CURVE_X; i++) free(run->x[i]);
    for (int i = 0; i < N_CURVES; i++) free(run->y[i]);
    *run = (CurveRun){0};
}

/* ---- Names */

/* The last n_parts parts of a path, without slashes at its end. */
static char *last_parts(const char *path, int n_parts) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && n_parts > 0) {
        begin--;
        if (path[begin] == '/' && begin + 1 < end && --n_parts == 0) begin++;
        if (n_parts == 0) break;
    }
    return strndup(path + begin, end - begin);
}

static bool is_unique(CurveRun *runs, int n_runs, int index, int n_parts) {
    char *mine = last_parts(runs[index].path, n_parts);
    bool unique = true;
    for (int i = 0; i < n_runs && mine && unique; i++) {
        char *other = i == index ? NULL : last_parts(runs[i].path, n_parts);
        unique = !other || strcmp(mine, other) != 0;
        free(other);
    }
    free(mine);
    return unique;
}

static bool is_same_run(const char *a, const char *b) {
    struct stat first, second;
    if (strcmp(a, b) == 0) return true;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

Status curve_runs_name(CurveRun *runs, int n_runs, Error *error) {
    enum { MOST_PARTS = 64 };
    for (int i = 0; i < n_runs; i++) {
        for (int k = 0; k < i; k++)
            if (is_same_run(runs[i].path, runs[k].path))
                return error_user(error, "%s is the same run as %s; leave one of them out",
                                  plain(runs[i].path).text, plain(runs[k].path).text);
        int n_parts = 1;
        while (n_parts < MOST_PARTS && !is_unique(runs, n_runs, i, n_parts)) n_parts++;
        free(runs[i].name);
        runs[i].name = last_parts(runs[i].path, n_parts);
        if (!runs[i].name) return error_failed(error, "no memory for a name");
    }
    return STATUS_OK;
}

/* ---- What is drawn */

bool curve_has(const CurveRun *run, Curve curve) {
    for (int64_t i = 0; i < run->n; i++)
        if (isfinite(run->y[curve][i])) return true;
    return false;
}

int panel_curves(Panel panel, Curve *curves) {
    static const Curve first[N_PANELS] = {CURVE_LOSS, CURVE_RATE, CURVE_NORM, CURVE_SPEED};
    curves[0] = first[panel];
    curves[1] = CURVE_VALIDATION;
    return panel == PANEL_LOSS ? 2 : 1;
}

bool panel_has(const CurveRun *runs, int n_runs, Panel panel) {
    Curve curves[2];
    int n_curves = panel_curves(panel, curves);
    for (int i = 0; i < n_runs; i++)
        for (int k = 0; k < n_curves; k++)
            if (curve_has(&runs[i], curves[k])) return true;
    return false;
}

/* Those that can be drawn: measured, and above 0 where the axis is logarithmic. */
static void take_points(CurveLine *line, const CurveView *view) {
    const double *x = line->run->x[view->x], *y = line->run->y[line->curve];
    for (int64_t i = 0; i < line->run->n; i++) {
        bool is_there =
            isfinite(x[i]) && isfinite(y[i]) && !(view->log_x && x[i] <= 0) && !(view->log_y && y[i] <= 0);
        if (!is_there) continue;
        line->x[line->n] = x[i];
        line->y[line->n++] = y[i];
    }
}

/* Means over a window around each point; at the ends it is shorter on both sides, so that it stays in the
 * middle. */
static void smooth(CurveLine *line, int64_t window, Arena *arena) {
    int64_t half = window / 2, n = line->n;
    double *sums = ARENA_ARRAY(arena, double, n + 1);
    sums[0] = 0.0;
    for (int64_t i = 0; i < n; i++) sums[i + 1] = sums[i] + line->y[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t reach = half < i ? half : i;
        if (reach > n - 1 - i) reach = n - 1 - i;
        line->y[i] = (sums[i + reach + 1] - sums[i - reach]) / (double)(2 * reach + 1);
    }
}

static void thin_out(CurveLine *line) {
    int64_t n = line->n;
    for (int64_t k = 0; k < CURVE_MOST_POINTS; k++) {
        int64_t first = k * n / CURVE_MOST_POINTS, end = (k + 1) * n / CURVE_MOST_POINTS;
        double x = 0, y = 0;
        for (int64_t i = first; i < end; i++) {
            x += line->x[i];
            y += line->y[i];
        }
        line->x[k] = x / (double)(end - first);
        line->y[k] = y / (double)(end - first);
    }
    line->n = CURVE_MOST_POINTS;
}

CurveLine curve_line(const CurveRun *run, Curve curve, const CurveView *view, Arena *arena) {
    CurveLine line = {.run = run,
                      .curve = curve,
                      .x = ARENA_ARRAY(arena, double, run->n + 1),
                      .y = ARENA_ARRAY(arena, double, run->n + 1)};
    take_points(&line, view);
    if (view->smooth > 1 && curve != CURVE_VALIDATION && curve != CURVE_RATE)
        smooth(&line, view->smooth, arena);
    if (line.n > CURVE_MOST_POINTS) thin_out(&line);
    return line;
}
