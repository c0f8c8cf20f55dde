/* What a process is doing, on a board that other processes of the host can read, whatever becomes of it: when
 * it is stopped or killed, the board still shows where.
 *
 *     int descriptor;
 *     ActivityBoard *own = activity_board_open(&descriptor);              // its number is told to the others
 *     activity_set_board(activity, own);
 *
 *     ActivityBoard *other = activity_board_join(process, descriptor);    // while it is still there
 *     activity_board_describe(other, text, sizeof text);                  // any time later
 *
 * A board is memory without a file, so that nothing is left behind. Of a process that goes on, a reader may
 * see two moments mixed; of one that stands still, where it stands. NULL is allowed everywhere. */
#ifndef PGPT_BASE_SYSTEM_ACTIVITY_BOARD_H
#define PGPT_BASE_SYSTEM_ACTIVITY_BOARD_H

#include "base/system/activity.h"

/* NULL where the system has no such memory. */
ActivityBoard *activity_board_open(int *descriptor);

/* Another process's, to read. NULL where it cannot be had. */
ActivityBoard *activity_board_join(int64_t process, int descriptor);

void activity_board_close(ActivityBoard *board);

/* As activity_describe; NULL instead of text where the board is empty: that process does nothing that it
 * would say. */
const char *activity_board_describe(const ActivityBoard *board, char *text, size_t n_bytes);

/* ---- For activity.c */

void activity_board_begin(ActivityBoard *board, int track, const char *track_name, int32_t depth,
                          const ActivityEntry *entry, uint64_t now);
void activity_board_end(ActivityBoard *board, int track, int32_t depth);

#endif
