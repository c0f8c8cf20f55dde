/* The first error wins: what fails afterwards, while cleaning up, is a consequence and would hide the cause. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static Status set(Error *error, Status status, const char *format, va_list arguments) {
    if (error->status == STATUS_OK) {
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, arguments);
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

Status error_prefix(Error *error, const char *format, ...) {
    char below[sizeof error->text];
    memcpy(below, error->text, sizeof below);
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    if (n >= 0 && (size_t)n < sizeof error->text) {
        snprintf(error->text + n, sizeof error->text - (size_t)n, "%s", below);
    }
    return error->status;
}
