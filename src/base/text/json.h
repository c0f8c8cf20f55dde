/* Small helps over jansson: reading with messages that name file and field, writing one line.
 *
 * jansson's own functions begin with json_ too; ours are json_read, json_parse, json_print,
 * json_mark_bytes, json_line*, json_make_* and json_field_*. */
#ifndef PGPT_BASE_TEXT_JSON_H
#define PGPT_BASE_TEXT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* Digits that bring a float, or a double, back exactly. */
enum { JSON_DIGITS_FLOAT = 9, JSON_DIGITS_DOUBLE = 17 };

/* Values that jansson would refuse: a number that is not finite becomes null, bytes that are not UTF-8 become
 * U+FFFD. New references, never NULL. */
json_t *json_make_number(double value);
json_t *json_make_text(const char *text);

/* The value on one line, keys in the order they were set; from malloc. */
Status json_line(const json_t *value, int digits, char **line, Error *error);

/* The same with a newline, to a stream, flushed and checked; to a terminal in ASCII. */
Status json_line_write(FILE *stream, const json_t *value, int digits, Error *error);

/* An object that is a command's result: the same with a float's digits, and the reference is given up. */
Status json_print(FILE *stream, json_t *object, Error *error);

/* Bytes of the byte-order mark that a text may begin with: 3, or 0 where there is none. Editors of Windows
 * write one. */
size_t json_mark_bytes(const char *bytes, size_t n_bytes);

/* {"error": "...", "exit_code": 2}: how a command that was asked for JSON says that it failed, on the last
 * line. Nothing if there is no error, or if it is in the JSON already. Whether it could be written is not
 * told: there is nobody to tell. */
void error_write_json(Error *error, FILE *stream);

/* The same two fields in an object that is a command's result all the same; the error counts as written. */
void error_add_json(Error *error, json_t *object);

/* Read a file that must hold exactly one JSON value, with no key twice. A byte-order mark before it is passed
 * over. `*value` is a new reference. */
Status json_read(const char *path, size_t limit_bytes, json_t **value, Error *error);
Status json_parse(const char *bytes, size_t n_bytes, const char *path, json_t **value, Error *error);

/* Fields of an object. `path` is only for the message: "run/manifest.json: field 'step' wants a whole number
 * between 0 and 10, got -3". Texts and objects are borrowed from the object. */
Status json_field_int(const json_t *object, const char *path, const char *field, int64_t min, int64_t max,
                      int64_t *value, Error *error);
Status json_field_float(const json_t *object, const char *path, const char *field, double min, double max,
                        double *value, Error *error);
Status json_field_bool(const json_t *object, const char *path, const char *field, bool *value, Error *error);
Status json_field_text(const json_t *object, const char *path, const char *field, const char **value,
                       Error *error);
Status json_field_object(const json_t *object, const char *path, const char *field, json_t **value,
                         Error *error);
Status json_field_array(const json_t *object, const char *path, const char *field, json_t **value,
                        Error *error);

#endif
