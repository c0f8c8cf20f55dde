/* What `lab collectives` found, as JSON: the same object is printed for other programs and read back when the
 * study has started its own ranks, so that one table can hold several numbers of them. */
#include "lab/collectives/collectives.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing */

static json_t *link_json(const Link *link) {
    json_t *object = json_object();
    json_object_set_new(object, "alpha_s", json_make_number(link->eager.alpha));
    json_object_set_new(object, "beta_s_per_byte", json_make_number(link->eager.beta));
    json_object_set_new(object, "long_alpha_s", json_make_number(link->asking.alpha));
    json_object_set_new(object, "long_beta_s_per_byte", json_make_number(link->asking.beta));
    json_object_set_new(object, "long_from_bytes", json_make_number(link->border));
    json_object_set_new(object, "gap_s", json_make_number(link->gap));
    return object;
}

json_t *collectives_machine_json(const Machine *machine) {
    json_t *object = json_object(), *hosts = json_array();
    for (int i = 0; i < machine->n_ranks; i++) json_array_append_new(hosts, json_integer(machine->host[i]));
    json_object_set_new(object, "ranks", json_integer(machine->n_ranks));
    json_object_set_new(object, "hosts", json_integer(machine->n_hosts));
    json_object_set_new(object, "host_of_rank", hosts);
    json_object_set_new(object, "cores", json_integer(machine->n_cores));
    json_object_set_new(object, "within_host", link_json(&machine->within));
    json_object_set_new(object, "across_hosts",
                        machine->n_hosts > 1 ? link_json(&machine->across) : json_null());
    json_object_set_new(object, "gamma_s_per_byte", json_make_number(machine->gamma));
    json_object_set_new(object, "delta_s_per_byte", json_make_number(machine->delta));
    json_object_set_new(object, "cache_bytes", json_make_number(machine->cache_bytes));
    return object;
}

json_t *collectives_row_json(const CollectivesRow *row) {
    json_t *object = json_object(), *ways = json_object();
    json_object_set_new(object, "collective", json_string(collective_kind_name(row->kind)));
    json_object_set_new(object, "bytes", json_integer(row->n_bytes));
    json_object_set_new(object, "rounds", json_integer(row->n_rounds));
    for (int way = 0; way < collectives_n_ways(row->kind); way++) {
        json_t *entry = json_object();
        json_object_set_new(entry, "seconds", json_make_number(row->seconds[way]));
        json_object_set_new(entry, "median_s", json_make_number(row->median[way]));
        json_object_set_new(entry, "model_s", json_make_number(row->model[way])); /* null of the library's */
        json_object_set_new(ways, collectives_name(row->kind, way), entry);
    }
    json_object_set_new(object, "ways", ways);
    return object;
}

/* ---- Reading */

static Status read_link(const json_t *object, const char *source, const char *field, Link *link,
                        Error *error) {
    json_t *from;
    TRY(json_field_object(object, source, field, &from, error));
    TRY(json_field_float(from, source, "alpha_s", 0, INFINITY, &link->eager.alpha, error));
    TRY(json_field_float(from, source, "beta_s_per_byte", 0, INFINITY, &link->eager.beta, error));
    TRY(json_field_float(from, source, "long_alpha_s", 0, INFINITY, &link->asking.alpha, error));
    TRY(json_field_float(from, source, "long_beta_s_per_byte", 0, INFINITY, &link->asking.beta, error));
    TRY(json_field_float(from, source, "long_from_bytes", 0, INFINITY, &link->border, error));
    return json_field_float(from, source, "gap_s", 0, INFINITY, &link->gap, error);
}

Status collectives_read_machine(const json_t *object, const char *source, Machine *machine, Error *error) {
    int64_t n_ranks, n_hosts, n_cores;
    json_t *hosts;
    *machine = (Machine){0};
    TRY(json_field_int(object, source, "ranks", 1, 1 << 20, &n_ranks, error));
    TRY(json_field_int(object, source, "hosts", 1, n_ranks, &n_hosts, error));
    TRY(json_field_int(object, source, "cores", 1, 1 << 20, &n_cores, error));
    TRY(json_field_array(object, source, "host_of_rank", &hosts, error));
    TRY(read_link(object, source, "within_host", &machine->within, error));
    if (n_hosts > 1) TRY(read_link(object, source, "across_hosts", &machine->across, error));
    TRY(json_field_float(object, source, "gamma_s_per_byte", 0, INFINITY, &machine->gamma, error));
    TRY(json_field_float(object, source, "delta_s_per_byte", 0, INFINITY, &machine->delta, error));
    TRY(json_field_float(object, source, "cache_bytes", 0, INFINITY, &machine->cache_bytes, error));
    int *host = calloc((size_t)n_ranks, sizeof *host);
    if (!host || json_array_size(hosts) != (size_t)n_ranks) {
        free(host);
        return error_failed(error, "%s: host_of_rank does not name the host of each of %d ranks", source,
                            (int)n_ranks);
    }
    for (int64_t i = 0; i < n_ranks; i++) {
        json_int_t number = json_integer_value(json_array_get(hosts, (size_t)i));
        host[i] = number >= 0 && number < n_hosts ? (int)number : 0;
    }
    machine->n_ranks = (int)n_ranks;
    machine->n_hosts = (int)n_hosts;
    machine->n_cores = (int)n_cores;
    machine->host = host;
    return STATUS_OK;
}

static double number_or_nan(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

Status collectives_read_row(const json_t *object, const char *source, CollectivesRow *row, Error *error) {
    int64_t n_rounds;
    const char *kind;
    json_t *ways, *entry;
    *row = (CollectivesRow){.kind = -1};
    TRY(json_field_text(object, source, "collective", &kind, error));
    for (int i = 0; i < COLLECTIVES_N_KINDS; i++)
        if (strcmp(kind, collective_kind_name(collectives_kinds[i])) == 0) row->kind = collectives_kinds[i];
    if (row->kind < 0) return error_failed(error, "%s: there is no collective '%s'", source, kind);
    TRY(json_field_int(object, source, "bytes", 0, INT64_MAX, &row->n_bytes, error));
    TRY(json_field_int(object, source, "rounds", 1, 1 << 20, &n_rounds, error));
    TRY(json_field_object(object, source, "ways", &ways, error));
    row->n_rounds = (int)n_rounds;
    for (int way = 0; way < collectives_n_ways(row->kind); way++) {
        TRY(json_field_object(ways, source, collectives_name(row->kind, way), &entry, error));
        row->seconds[way] = number_or_nan(entry, "seconds");
        row->median[way] = number_or_nan(entry, "median_s");
        row->model[way] = number_or_nan(entry, "model_s");
    }
    return STATUS_OK;
}
