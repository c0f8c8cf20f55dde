/* The first error wins: what fails afterwards, while cleaning up, is a consequence and would hide the
 * cause. */
#include "base/error.h"

#include "base/text/plain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static Status set(Error *error, Status status, const char *format, va_list arguments) {
    if (error->status == STATUS_OK) {
        error->status = status;
        plain_format(error->text, sizeof error->text, format, arguments);
    }
    return error->status;
}

Status error_failed(Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Status status = set(error, STATUS_FAILED, format, arguments);
    va_end(arguments);
    return status;
}

Status error_user(Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    Status status = set(error, STATUS_USER, format, arguments);
    va_end(arguments);
    return status;
}

/* Once more from two texts that are plain already: together they may be too long. */
__attribute__((format(printf, 2, 3))) static void put_together(Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    plain_format(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

Status error_suffix(Error *error, const char *format, ...) {
    char before[sizeof error->text], behind[sizeof error->text];
    memcpy(before, error->text, sizeof before);
    va_list arguments;
    va_start(arguments, format);
    plain_format(behind, sizeof behind, format, arguments);
    va_end(arguments);
    put_together(error, "%s%s", before, behind);
    return error->status;
}

Status error_prefix(Error *error, const char *format, ...) {
    char above[sizeof error->text], below[sizeof error->text];
    memcpy(below, error->text, sizeof below);
    va_list arguments;
    va_start(arguments, format);
    plain_format(above, sizeof above, format, arguments);
    va_end(arguments);
    put_together(error, "%s%s", above, below);
    return error->status;
}
