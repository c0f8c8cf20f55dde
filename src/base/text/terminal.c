/* The environment is read instead of calling setlocale: a library must not change the locale of its process,
 * and with LC_NUMERIC set to a comma country every number that pgpt prints or reads would change. */
#include "base/text/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool locale_is_utf8(void) {
    const char *locale = environment("LC_ALL");
    if (!locale) locale = environment("LC_CTYPE");
    if (!locale) locale = environment("LANG");
    const char *charset = locale ? strchr(locale, '.') : NULL;
    if (!charset) return false;
    return strncasecmp(charset, ".UTF-8", 6) == 0 || strncasecmp(charset, ".utf8", 5) == 0;
}

Terminal terminal_of(FILE *stream) {
    Terminal terminal = {.utf8 = locale_is_utf8()};
    const char *kind = environment("TERM");
    terminal.interactive = isatty(fileno(stream)) && kind && strcmp(kind, "dumb") != 0;
    terminal.colour = terminal.interactive && !environment("NO_COLOR");
    return terminal;
}

int terminal_columns(FILE *stream) {
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *given = environment("COLUMNS");
    long columns = given ? strtol(given, NULL, 10) : 0;
    return columns > 0 && columns < 10000 ? (int)columns : 80;
}

static bool continues(char byte) {
    return ((unsigned char)byte & 0xC0) == 0x80;
}

size_t terminal_text_columns(const char *text) {
    size_t columns = 0;
    for (; *text; text++) columns += !continues(*text);
    return columns;
}

size_t terminal_text_cut(const char *text, size_t columns) {
    size_t n_bytes = 0;
    while (text[n_bytes]) {
        if (!continues(text[n_bytes])) {
            if (columns == 0) break;
            columns--;
        }
        n_bytes++;
    }
    return n_bytes;
}
