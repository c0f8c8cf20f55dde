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

/* Of this host, whatever this rank is bound to. */
static int host_cores(void) {
    CoreSet all = cores_possible();
    int n = cores_count(&all), quota = cores_quota();
    if (quota && quota < n) n = quota;
    return n > 0 ? n : cores_usable();
}

const char *machine_name(Arena *arena) {
    json_t *machine = metrics_machine();
    const char *processor = json_string_value(json_object_get(machine, "processor"));
    char *name =
        arena_printf(arena, "%s, %s", short_name(processor ? processor : "a processor without a name", arena),
                     format_things(host_cores(), "core").text);
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

const char *machine_note(Arena *arena, const char *who, int n_busy, const char *before) {
    const char *shared = n_busy > host_cores() ? ", more than there are cores" : "";
    size_t n = before ? strlen(before) : 0;
    const char *stop = !n ? "" : strchr(".!?", before[n - 1]) ? " " : ". ";
    return arena_printf(arena, "%s%s%s; %s%s; %s", n ? before : "", stop, machine_name(arena), who, shared,
                        machine_date(arena));
}
