/* Times belong to a machine. A picture is copied to places where nobody knows which, so it carries the line
 * itself. */
#include "lab/picture/machine_note.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "train/metrics.h"

#include <time.h>

const char *machine_name(Arena *arena) {
    json_t *machine = metrics_machine();
    const char *processor = json_string_value(json_object_get(machine, "processor"));
    char *name = arena_printf(arena, "%s, %s", processor ? processor : "a processor without a name",
                              format_things(cores_usable(), "core").text);
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
    const char *shared = n_busy > cores_usable() ? ", more than there are cores" : "";
    return arena_printf(arena, "%s%s%s; %s%s; %s", before ? before : "", before && *before ? ". " : "",
                        machine_name(arena), who, shared, machine_date(arena));
}
