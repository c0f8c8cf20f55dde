/* OpenMP's loop schedules, compared on the gradient of least squares: how rows are dealt out to threads, and
 * by whom memory was first touched.
 *
 *     SchedulesOptions options = {.n_rows = 2000000, .n_weights = 5, .n_rounds = 5};
 *     SchedulesCell cell = {.n_threads = 2, .schedule = LOOP_STATIC, .touch = SCHEDULES_BY_ALL};
 *     TRY(schedules_measure(&options, &cell, error));               // cell.seconds
 *
 * The operating system gives a page of memory to the node of the thread that writes to it first. Rows that
 * one thread has filled lie in its node, and all others fetch them from there, whatever the schedule. */
#ifndef PGPT_LAB_LINEAR_SCHEDULES_H
#define PGPT_LAB_LINEAR_SCHEDULES_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { LOOP_STATIC, LOOP_DYNAMIC, LOOP_GUIDED, N_LOOP_SCHEDULES } LoopScheduleKind;
typedef enum { SCHEDULES_BY_ONE, SCHEDULES_BY_ALL, N_TOUCHES } TouchKind;

extern const char *const schedules_names[];       /* static dynamic guided, NULL */
extern const char *const schedules_touch_names[]; /* "one thread", "all threads", NULL */

typedef struct {
    int64_t n_rows, n_weights;
    int64_t chunk; /* rows dealt at a time; 0: OpenMP's own choice, which for dynamic is 1 */
    int n_rounds;
} SchedulesOptions;

typedef struct {
    int n_threads;
    LoopScheduleKind schedule;
    TouchKind touch;
    bool is_uneven;  /* the last rows cost most */
    double seconds;  /* of one gradient: the least of the rounds */
    double checksum; /* of the gradient: the same, but for rounding, whatever the schedule */
} SchedulesCell;

/* Was the program built with OpenMP? Without it everything runs in one thread. */
bool schedules_are_there(void);

/* Nodes of memory that this machine has; 0: it does not say. */
int schedules_memory_nodes(void);

Status schedules_measure(const SchedulesOptions *options, SchedulesCell *cell, Error *error);

#endif
