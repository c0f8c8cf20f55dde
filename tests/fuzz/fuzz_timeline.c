/* A trace for `pgpt lab timeline`: read, measured and drawn, whatever it is. */
#include "fuzz.h"

#include "lab/picture/timeline.h"

static char folder[] = "/tmp/pgpt-fuzz-XXXXXX";

static void remove_folder(void) {
    static const char *const names[] = {"timeline.svg", "timeline.gp"};
    char path[64];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* Drawn as an SVG only: with gnuplot at hand each picture would take a process. */
static void prepare(void) {
    static bool is_ready;
    if (is_ready) return;
    FUZZ_CHECK(mkdtemp(folder) && setenv("PATH", "/nowhere", 1) == 0);
    atexit(remove_folder);
    is_ready = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Timeline timeline;
    Error error = {0};
    bool has_png;
    prepare();
    if (timeline_read(&timeline, fuzz_file(0, bytes, n_bytes), &error) == STATUS_OK) {
        FUZZ_CHECK(timeline.n_events > 0 && timeline.n_ranks > 0 && timeline.length_us > 0.0);
        FUZZ_CHECK(timeline_measure(&timeline, &error) == STATUS_OK);
        double window_us = timeline.to_us - timeline.from_us;
        for (int i = 0; i < timeline.n_ranks; i++) {
            const TimelineTime *time = &timeline.rank[i].time;
            FUZZ_CHECK(time->compute_us >= 0.0 && time->compute_us + time->wait_us <= window_us * 1.000001);
            FUZZ_CHECK(time->overlapped_us <= time->comm_us * 1.000001);
        }
        const char *caption = timeline.machine ? timeline.machine : timeline.date ? timeline.date : "caption";
        FUZZ_CHECK(timeline_draw(&timeline, "title", caption, folder, "timeline", &has_png, &error) ==
                   STATUS_OK);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    timeline_free(&timeline);
    return 0;
}
