/* Errors: one value that says what went wrong and whose fault it was.
 *
 * Every function that can fail returns a Status and takes an Error as its last argument. The status is also
 * the exit code of the program, so a failure travels from the depth to main() without being translated:
 *
 *     Status load(const char *path, Error *error) {
 *         FILE *file = fopen(path, "rb");
 *         if (!file) return error_user(error, "cannot open %s: %s; check the path", path, strerror(errno));
 *         TRY_GOTO(read_header(file, error), done);
 *     done:
 *         fclose(file);
 *         return error->status;
 *     }
 *
 * A user's mistake (STATUS_USER) must say what, where and what to do instead. A message has no final full
 * stop and no newline; the program adds "pgpt: " before it. Whatever is put into it, it is one line that a
 * terminal can be shown (base/text/plain.h): control characters are escaped, and what is too long is cut and
 * says so. */
#ifndef PGPT_BASE_ERROR_H
#define PGPT_BASE_ERROR_H

#include <stdbool.h>

typedef enum {
    STATUS_OK = 0,
    STATUS_FAILED = 1, /* the system failed us, or a check did not hold */
    STATUS_USER = 2,   /* the user asked for something that cannot be */
} Status;

typedef struct {
    Status status;
    bool is_in_json; /* a JSON line that says it has been written: nobody writes another */
    char text[1024];
} Error;

/* Set the error (the first one stays) and return its status. */
Status error_failed(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
Status error_user(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put words in front of a message that comes from below: "loading run/x: " + text. */
Status error_prefix(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put what to do behind a message that comes from below: text + "; copy it again". */
Status error_suffix(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        Status try_status = (call);                                                                          \
        if (try_status != STATUS_OK) return try_status;                                                      \
    } while (0)

#define TRY_GOTO(call, label)                                                                                \
    do {                                                                                                     \
        if ((call) != STATUS_OK) goto label;                                                                 \
    } while (0)

#endif
