/* Where and when a picture was made: a figure without its machine says nothing. */
#include "cli/lab/lab.h"

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

static const char *today(Arena *arena) {
    time_t seconds = time(NULL);
    struct tm parts;
    char day[16] = "";
    if (localtime_r(&seconds, &parts)) strftime(day, sizeof day, "%Y-%m-%d", &parts);
    return arena_strdup(arena, day);
}

/* Of this host, whatever this rank is bound to. */
static int usable_cores(void) {
    CoreSet all = cores_possible();
    int n = cores_count(&all), quota = cores_quota();
    if (quota && quota < n) n = quota;
    return n > 0 ? n : cores_usable();
}

const char *lab_place(const LabOutput *output, const char *ranks, int64_t most, const char *thing,
                      Arena *arena) {
    json_t *machine = metrics_machine();
    const char *processor = json_string_value(json_object_get(machine, "processor"));
    int n_cores = usable_cores();
    size_t n = strlen(output->note);
    const char *text =
        arena_printf(arena, "%s, %s; %s; %s.", short_name(processor ? processor : "unknown processor", arena),
                     format_things(n_cores, "core").text, ranks, today(arena));
    if (most > n_cores)
        text = arena_printf(arena, "%s Up to %s share %s.", text, format_things(most, thing).text,
                            format_things(n_cores, "core").text);
    if (n)
        text =
            arena_printf(arena, "%s%s %s", output->note, strchr(".!?", output->note[n - 1]) ? "" : ".", text);
    json_decref(machine);
    return text;
}
