/* A line is composed first and written with one call, so that the lines of several ranks on one terminal do
 * not mix within a line. What does not fit in the buffer is cut: a log line is a sentence, not a document. */
#include "base/text/log.h"

#include "base/text/plain.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

static const char NOTE[] = "", WARNING[] = "warning: ";

static void say(const Log *logger, const char *kind, const char *format, va_list arguments) {
    char text[2048];
    plain_format(text, sizeof text, format, arguments);
    if (logger->sink) {
        logger->sink->line(logger->sink->context, kind == WARNING, text);
        return;
    }
    if (logger->progress && logger->progress->stream == logger->stream) {
        progress_print(logger->progress, "pgpt: %s%s", kind, text);
        return;
    }
    if (logger->progress) progress_hide(logger->progress);
    fprintf(logger->stream, "pgpt: %s%s\n", kind, text);
    fflush(logger->stream);
}

static bool is_heard(const Log *logger) {
    return logger->stream || logger->sink;
}

bool log_is_unheard(const Log *logger) {
    struct stat status;
    if (!logger->stream || !ferror(logger->stream)) return false;
    int descriptor = fileno(logger->stream);
    if (fstat(descriptor, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)))
        return false;
    struct pollfd end = {.fd = descriptor, .events = POLLOUT};
    return poll(&end, 1, 0) > 0 && (end.revents & (POLLERR | POLLHUP));
}

Log log_make(bool quiet) {
    return (Log){.stream = stderr, .quiet = quiet};
}

void log_note(const Log *logger, const char *format, ...) {
    if (!is_heard(logger) || logger->quiet) return;
    va_list arguments;
    va_start(arguments, format);
    say(logger, NOTE, format, arguments);
    va_end(arguments);
}

void log_warning(const Log *logger, const char *format, ...) {
    if (!is_heard(logger)) return;
    va_list arguments;
    va_start(arguments, format);
    say(logger, WARNING, format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void say_error(const Log *logger, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(logger, NOTE, format, arguments);
    va_end(arguments);
}

Status log_error(const Log *logger, const Error *error) {
    if (is_heard(logger) && error->status != STATUS_OK) say_error(logger, "%s", error->text);
    return error->status;
}
