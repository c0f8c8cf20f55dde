/* When what a device behind the host was given began and ended there: spans between two of its events, shown
 * on tracks of a recorder once they are over.
 *
 *     DeviceTimes *times;
 *     TRY(device_times_open(&times, backend, error));
 *     device_times_watch(times, activity);
 *     const BackendSpan *span = device_times_next(times, DEVICE_TRACK_COMPUTE, &entry);
 *     // NULL while nothing is recorded
 *     if (span) backend->event_record(backend->context, span->begin, error);
 *     ...                                                   // spans may lie in each other
 *     if (span) backend->event_record(backend->context, span->end, error);
 *     device_times_end(times, span);
 *     device_times_show(times);       // before the recorder is read; waits for what is under way
 *     device_times_close(&times);
 *
 * One thread's: that which gives the device its work. NULL is allowed everywhere, and nothing: where the host
 * waits for every kernel, its own tracks have these times. */
#ifndef PGPT_GRAPH_DEVICE_DEVICE_TIMES_H
#define PGPT_GRAPH_DEVICE_DEVICE_TIMES_H

#include "base/system/activity.h"
#include "graph/backend.h"

typedef struct DeviceTimes DeviceTimes;

typedef enum {
    DEVICE_TRACK_COMPUTE, /* "device": what it computes, and where that waits */
    DEVICE_TRACK_OUT,     /* "bus out", "bus in": copies to and from the host, beside it */
    DEVICE_TRACK_IN,
    N_DEVICE_TRACKS,
} DeviceTrack;

/* *opened is NULL where the backend has no events. */
Status device_times_open(DeviceTimes **opened, const Backend *backend, Error *error);
void device_times_close(DeviceTimes **opened); /* also NULL */

/* Whose recorder it is; NULL: nobody's. */
void device_times_watch(DeviceTimes *times, Activity *activity);

/* Events for what is given to the device now, which the caller records around it. The entry's words live as
 * long as the activity. NULL where nothing is recorded now. Not while kernels are captured; the first one
 * waits for the device. */
const BackendSpan *device_times_next(DeviceTimes *times, DeviceTrack track, const ActivityEntry *entry);

/* Both were recorded: from now on it may be shown. Also NULL. */
void device_times_end(DeviceTimes *times, const BackendSpan *span);

bool device_times_are_wanted(const DeviceTimes *times);

/* All that was given so far and has ended. */
void device_times_show(DeviceTimes *times);

#endif
