/* Times belong to a machine. A picture is copied to places where nobody knows which, so it carries the line
 * itself. */
#include "lab/picture/machine_note.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "train/metrics.h"

#include <string.h>
#include <time.h>

/* Makers write (R), (TM) and CPU into the names of their processors. */
static const char *short_name(const char *name, Arena *arena) {
    static const char *const noise[] = {"(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"};
    char *text = arena_strdup(arena, name);
    for (size_t i = 0; i < sizeof noise / sizeof noise[0]; i++) {
        for (char *found = strstr(text, noise[i]); found; found = strstr(text, noise[i]))
            memmove(found, found + strlen(noise[i]), strlen(found + strlen(noise[i])) + 1);
    }
    return text;
}

const char *machine_words(Arena *arena, const char *processor, int64_t n_cores) {
    return arena_printf(arena, "%s, %s",
                        short_name(processor && *processor ? processor : "a processor without a name", arena),
                        format_things(n_cores, "core").text);
}

const char *machine_name(Arena *arena) {
    json_t *machine = metrics_machine();
    const char *name =
        machine_words(arena, json_string_value(json_object_get(machine, "processor")), cores_of_host());
    json_decref(machine);
    return name;
}

const char *machine_date(Arena *arena) {
    char date[16];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    return arena_strdup(arena, date);
}

const char *machine_sentence(Arena *arena, const char *before, const char *text) {
    size_t n = before ? strlen(before) : 0;
    const char *stop = !n ? "" : strchr(".!?", before[n - 1]) ? " " : ". ";
    return arena_printf(arena, "%s%s%s", n ? before : "", stop, text);
}

const char *machine_note(Arena *arena, const char *who, int n_busy, const char *before) {
    const char *shared = n_busy > cores_of_host() ? ", more than there are cores" : "";
    return machine_sentence(
        arena, before,
        arena_printf(arena, "%s; %s%s; %s", machine_name(arena), who, shared, machine_date(arena)));
}
