/* A trace for `pgpt lab timeline`: read, measured and drawn, whatever it is. */
#include "fuzz.h"

#include "lab/picture/timeline.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    Timeline timeline;
    Error error = {0};
    if (timeline_read(&timeline, fuzz_file(0, bytes, n_bytes), &error) == STATUS_OK) {
        FUZZ_CHECK(timeline.n_events > 0 && timeline.n_ranks > 0 && timeline.length_us > 0.0);
        FUZZ_CHECK(timeline_measure(&timeline, &error) == STATUS_OK);
        double window_us = timeline.to_us - timeline.from_us;
        for (int i = 0; i < timeline.n_ranks; i++) {
            const TimelineTime *time = &timeline.rank[i].time;
            FUZZ_CHECK(time->compute_us >= 0.0 && time->compute_us + time->wait_us <= window_us * 1.000001);
            FUZZ_CHECK(time->overlapped_us <= time->comm_us * 1.000001);
        }
        FUZZ_CHECK(timeline_draw(&timeline, "title", "caption", "/dev/null", &error) == STATUS_OK);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    timeline_free(&timeline);
    return 0;
}
