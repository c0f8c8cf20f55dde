/* jansson parses and prints; what is added is what it leaves to its user: which file and field was wrong,
 * ranges, and values that JSON cannot hold. */
#include "base/text/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file/file.h"
#include "base/text/format.h"
#include "base/text/utf8.h"

/* jansson returns NULL only when memory is out; a few bytes that cannot be had end the program, as in the
 * arena. */
static json_t *must(json_t *value) {
    if (!value) {
        fprintf(stderr, "pgpt: out of memory: cannot make a JSON value\n");
        abort();
    }
    return value;
}

json_t *json_make_number(double value) {
    return isfinite(value) ? must(json_real(value)) : json_null();
}

json_t *json_make_text(const char *text) {
    json_t *plain = json_string(text);
    if (plain) return plain;
    char *mended = malloc(3 * strlen(text) + 1), *end = mended;
    if (!mended) return must(NULL);
    for (size_t at = 0, n = strlen(text), used; at < n; at += used) {
        bool is_valid = utf8_decode(text + at, n - at, &used) < UTF8_N_UNICODE;
        memcpy(end, is_valid ? text + at : "\xEF\xBF\xBD", is_valid ? used : 3);
        end += is_valid ? used : 3;
    }
    json_t *value = must(json_stringn(mended, (size_t)(end - mended)));
    free(mended);
    return value;
}

static Status make_line(const json_t *value, int digits, size_t flags, char **line, Error *error) {
    *line = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits) | flags);
    return *line ? STATUS_OK : error_failed(error, "cannot write a JSON line: out of memory");
}

Status json_line(const json_t *value, int digits, char **line, Error *error) {
    return make_line(value, digits, 0, line, error);
}

/* To a terminal everything beyond ASCII goes as \uNNNN, which says the same; DEL, the one control character
 * that jansson leaves, cannot stand anywhere but within a text. */
static bool write_to_terminal(FILE *stream, const char *line) {
    for (; *line; line++) {
        if ((*line == 127 ? fputs("\\u007f", stream) : fputc(*line, stream)) == EOF) return false;
    }
    return fputc('\n', stream) != EOF && fflush(stream) == 0;
}

Status json_line_write(FILE *stream, const json_t *value, int digits, Error *error) {
    char *line;
    int descriptor = fileno(stream);
    bool is_terminal = descriptor >= 0 && isatty(descriptor);
    TRY(make_line(value, digits, is_terminal ? JSON_ENSURE_ASCII : 0, &line, error));
    bool written = is_terminal ? write_to_terminal(stream, line)
                               : fprintf(stream, "%s\n", line) >= 0 && fflush(stream) == 0;
    int reason = errno;
    free(line);
    return written ? STATUS_OK : error_failed(error, "cannot write a JSON line: %s", strerror(reason));
}

Status json_print(FILE *stream, json_t *object, Error *error) {
    json_line_write(stream, object, JSON_DIGITS_FLOAT, error);
    json_decref(object);
    return error->status;
}

void error_add_json(Error *error, json_t *object) {
    json_object_set_new(object, "error", json_make_text(error->text));
    json_object_set_new(object, "exit_code", json_integer((json_int_t)error->status));
    error->is_in_json = true;
}

void error_write_json(Error *error, FILE *stream) {
    if (error->status == STATUS_OK || error->is_in_json) return;
    json_t *object = must(json_object());
    error_add_json(error, object);
    json_line_write(stream, object, JSON_DIGITS_FLOAT, &(Error){0});
    json_decref(object);
}

size_t json_mark_bytes(const char *bytes, size_t n_bytes) {
    return n_bytes >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

Status json_parse(const char *bytes, size_t n_bytes, const char *path, json_t **value, Error *error) {
    json_error_t where;
    size_t n_mark = json_mark_bytes(bytes, n_bytes);
    *value = json_loadb(bytes + n_mark, n_bytes - n_mark, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (*value) return STATUS_OK;
    return error_user(error, "%s:%d:%d: not valid JSON: %s", path, where.line, where.column, where.text);
}

Status json_read(const char *path, size_t limit_bytes, json_t **value, Error *error) {
    *value = NULL;
    char *bytes;
    size_t n_bytes;
    TRY(file_read_regular(path, limit_bytes, &bytes, &n_bytes, error));
    Status status = json_parse(bytes, n_bytes, path, value, error);
    free(bytes);
    return status;
}

static const char *kind_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a text";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number with a fraction";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}

/* The field, of one of two types (the same twice for one). */
static Status find(const json_t *object, const char *path, const char *field, json_type type,
                   json_type or_type, const char *wants, json_t **value, Error *error) {
    if (!json_is_object(object))
        return error_user(error, "%s: wants an object with a field '%s'", path, field);
    *value = json_object_get(object, field);
    if (!*value) return error_user(error, "%s: field '%s' is missing", path, field);
    if (json_typeof(*value) == type || json_typeof(*value) == or_type) return STATUS_OK;
    return error_user(error, "%s: field '%s' wants %s, got %s", path, field, wants, kind_of(*value));
}

Status json_field_int(const json_t *object, const char *path, const char *field, int64_t min, int64_t max,
                      int64_t *value, Error *error) {
    json_t *found = NULL;
    TRY(find(object, path, field, JSON_INTEGER, JSON_INTEGER, "a whole number", &found, error));
    int64_t number = json_integer_value(found);
    if (number < min || number > max) {
        return error_user(
            error, "%s: field '%s' wants a whole number between %" PRId64 " and %" PRId64 ", got %" PRId64,
            path, field, min, max, number);
    }
    *value = number;
    return STATUS_OK;
}

Status json_field_float(const json_t *object, const char *path, const char *field, double min, double max,
                        double *value, Error *error) {
    json_t *found = NULL;
    TRY(find(object, path, field, JSON_REAL, JSON_INTEGER, "a number", &found, error));
    double number = json_number_value(found);
    if (!(number >= min && number <= max)) {
        return error_user(error, "%s: field '%s' wants a number between %s and %s, got %s", path, field,
                          format_double(min).text, format_double(max).text, format_double(number).text);
    }
    *value = number;
    return STATUS_OK;
}

Status json_field_bool(const json_t *object, const char *path, const char *field, bool *value, Error *error) {
    json_t *found = NULL;
    TRY(find(object, path, field, JSON_TRUE, JSON_FALSE, "true or false", &found, error));
    *value = json_is_true(found);
    return STATUS_OK;
}

Status json_field_text(const json_t *object, const char *path, const char *field, const char **value,
                       Error *error) {
    json_t *found = NULL;
    TRY(find(object, path, field, JSON_STRING, JSON_STRING, "a text", &found, error));
    *value = json_string_value(found);
    return STATUS_OK;
}

Status json_field_object(const json_t *object, const char *path, const char *field, json_t **value,
                         Error *error) {
    return find(object, path, field, JSON_OBJECT, JSON_OBJECT, "an object", value, error);
}

Status json_field_array(const json_t *object, const char *path, const char *field, json_t **value,
                        Error *error) {
    return find(object, path, field, JSON_ARRAY, JSON_ARRAY, "an array", value, error);
}
