#include "train/metrics.h"

#include "base/text/format.h"
#include "base/version.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static json_t *processor_name(void) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], *name = NULL;
    while (file && !name && fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) == 0) name = strchr(line, ':');
    }
    if (file) fclose(file);
    if (!name) return json_null();
    name += strspn(name, ": \t");
    name[strcspn(name, "\n")] = '\0';
    return json_make_text(name);
}

json_t *metrics_machine(void) {
    json_t *machine = json_object();
    struct utsname system;
    json_object_set_new(machine, "processor", processor_name());
    json_object_set_new(machine, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(
        machine, "memory_bytes",
        json_integer((json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE)));
    if (uname(&system) == 0) {
        json_object_set_new(machine, "system", json_make_text(system.sysname));
        json_object_set_new(machine, "release", json_make_text(system.release));
        json_object_set_new(machine, "host", json_make_text(system.nodename));
    }
    return machine;
}

static Status write_line(LineWriter *writer, json_t *object, Error *error) {
    char *line = NULL;
    if (json_line(object, JSON_DIGITS_FLOAT, &line, error) == STATUS_OK)
        line_writer_write(writer, line, error);
    free(line);
    json_decref(object);
    return error->status;
}

/* Steps only grow, so everything from the first that is too many on can go at once. */
static Status cut_after_step(const char *path, int64_t n_done, Error *error) {
    FILE *file = fopen(path, "r");
    if (!file) return error_failed(error, "cannot read %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0;
    off_t offset = 0;
    bool is_too_far = false;
    for (ssize_t n; !is_too_far && (n = getline(&line, &capacity, file)) > 0;) {
        long long step;
        is_too_far = sscanf(line, "{\"step\":%lld", &step) == 1 && step > n_done;
        if (!is_too_far) offset += n;
    }
    free(line);
    fclose(file);
    if (!is_too_far || truncate(path, offset) == 0) return STATUS_OK;
    return error_failed(error, "cannot shorten %s: %s", path, strerror(errno));
}

Status metrics_open(LineWriter *writer, const char *run, json_t *header, int64_t n_done, Error *error) {
    char path[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    bool is_new = !file_exists(path);
    if (line_writer_open(writer, path, error) != STATUS_OK || !is_new) {
        json_decref(header);
        return error->status == STATUS_OK ? cut_after_step(path, n_done, error) : error->status;
    }
    char date[40];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_object_set_new(header, "version", json_string(PGPT_VERSION));
    json_object_set_new(header, "started", json_string(date));
    json_object_set_new(header, "machine", metrics_machine());
    return write_line(writer, header, error);
}

static void set_measured(json_t *object, const char *key, double value) {
    if (!isnan(value)) json_object_set_new(object, key, json_make_number(value));
}

void metrics_add_routes(json_t *line, const RouterReport *routes) {
    if (!routes->is_there) return;
    set_measured(line, "balance_loss", routes->balance_loss);
    set_measured(line, "z_loss", routes->z_loss);
    set_measured(line, "dropped", routes->dropped);
    set_measured(line, "expert_load", routes->busiest);
    set_measured(line, "router_entropy", routes->entropy);
    json_object_set_new(line, "empty_experts", json_integer(routes->n_empty));
}

/* Three digits are more than a batch tells. */
static void add_loads(json_t *line, const StepMetrics *metrics) {
    json_t *blocks = metrics->loads ? json_array() : NULL, *block = NULL;
    if (!blocks) return;
    for (int64_t i = 0; i < metrics->n_loads; i++) {
        if (i % metrics->n_experts == 0) json_array_append_new(blocks, block = json_array());
        json_array_append_new(block, json_make_number(round(metrics->loads[i] * 1e3) * 1e-3));
    }
    json_object_set_new(line, "expert_loads", blocks);
}

Status metrics_write(LineWriter *writer, const StepMetrics *metrics, Error *error) {
    json_t *line = json_object();
    json_object_set_new(line, "step", json_integer(metrics->step));
    json_object_set_new(line, "tokens", json_integer(metrics->n_tokens));
    set_measured(line, "loss", metrics->loss);
    set_measured(line, "val_loss", metrics->validation_loss);
    set_measured(line, "lr", metrics->rate);
    set_measured(line, "grad_norm", metrics->gradient_norm);
    set_measured(line, "depth_loss", metrics->depth_loss);
    set_measured(line, "depth_accuracy", metrics->depth_accuracy);
    if (!isnan(metrics->loss_scale)) {
        set_measured(line, "loss_scale", metrics->loss_scale);
        json_object_set_new(line, "skipped", json_integer(metrics->n_skipped));
    }
    metrics_add_routes(line, &metrics->routes);
    add_loads(line, metrics);
    set_measured(line, "tokens_per_s", metrics->tokens_per_s);
    set_measured(line, "flops_per_s", metrics->flops_per_s);
    set_measured(line, "step_ms", metrics->step_ms);
    set_measured(line, "forward_ms", metrics->forward_ms);
    set_measured(line, "backward_ms", metrics->backward_ms);
    set_measured(line, "update_ms", metrics->update_ms);
    set_measured(line, "comm_ms", metrics->comm_ms);
    set_measured(line, "comm_wait_ms", metrics->comm_wait_ms);
    set_measured(line, "stage_wait_ms", metrics->stage_wait_ms);
    if (!isnan(metrics->slowest_ms)) {
        set_measured(line, "slowest_ms", metrics->slowest_ms);
        json_object_set_new(line, "slowest_rank", json_integer(metrics->slowest_rank));
    }
    if (metrics->variance_kept > 0.0) set_measured(line, "variance_kept", metrics->variance_kept);
    if (metrics->begins_to_compress)
        json_object_set_new(line, "compressed_from", json_integer(metrics->step + 1));
    if (!isnan(metrics->staleness))
        json_object_set_new(line, "staleness", json_integer((json_int_t)metrics->staleness));
    return write_line(writer, line, error);
}

void metrics_status(const StepMetrics *metrics, int64_t n_steps, char *text, size_t n_bytes) {
    char validation[32] = "", skipped[48] = "", routes[80] = "";
    if (!isnan(metrics->validation_loss)) {
        snprintf(validation, sizeof validation, "  val %.4f", metrics->validation_loss);
    }
    if (metrics->n_skipped > 0)
        snprintf(skipped, sizeof skipped, "  %lld skipped", (long long)metrics->n_skipped);
    if (metrics->routes.is_there) /* what is always said, and what only where there is something to say */
        snprintf(routes, sizeof routes, "  load %.2f  dropped %.1f%%", metrics->routes.busiest,
                 100.0 * metrics->routes.dropped);
    if (metrics->routes.n_empty > 0)
        snprintf(routes + strlen(routes), sizeof routes - strlen(routes), "  %lld idle",
                 (long long)metrics->routes.n_empty);
    snprintf(text, n_bytes, "step %lld/%lld  loss %.4f%s%s  %s  %s%s", (long long)metrics->step,
             (long long)n_steps, metrics->loss, validation, routes,
             format_rate(metrics->tokens_per_s, "tokens/s").text,
             format_rate(metrics->flops_per_s, "FLOP/s").text, skipped);
}
