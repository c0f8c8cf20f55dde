/* What has become of other processes of this host.
 *
 *     if (process_state(id) == PROCESS_STOPPED) ...          // somebody sent it SIGSTOP
 */
#ifndef PGPT_BASE_SYSTEM_PROCESS_H
#define PGPT_BASE_SYSTEM_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    PROCESS_GOES_ON, /* runs, or waits for something; or cannot be looked at */
    PROCESS_STOPPED, /* by a signal or a debugger */
    PROCESS_GONE,    /* has ended, reaped or not */
} ProcessState;

ProcessState process_state(int64_t id);

/* A process with the same parent as this one that is stopped; 0: there is none. */
int64_t process_stopped_sibling(void);

/* The children of this process, zombies among them: how many there are, and the first `most` of them. */
int process_children(int64_t *ids, int most);

/* A variable of another process's environment, as it was when its program started; false where it has none,
 * or may not be looked at. */
bool process_variable(int64_t id, const char *name, char *value, size_t n_bytes);

#endif
