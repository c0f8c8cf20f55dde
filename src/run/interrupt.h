/* Ctrl-C, SIGTERM, SIGHUP (a terminal that is closed), SIGXCPU (CPU time that runs out) and SIGUSR1 (which
 * launchers of many ranks pass on at once) as a polite question: the trainer finishes its step, saves and
 * leaves. */
#ifndef PGPT_RUN_INTERRUPT_H
#define PGPT_RUN_INTERRUPT_H

#include <stdbool.h>

/* So long after the first signal the same one again is the same wish; later it ends the process. */
#define INTERRUPT_MOMENT_SECONDS 2.0

/* Before that they end the process as they do any; then this file, and the folder if that is empty (NULL:
 * none), are removed first. Until interrupt_keep. */
void interrupt_remove(const char *file, const char *folder);
void interrupt_keep(void);

/* From here on these signals are only remembered; one that comes again after a moment ends the process as
 * usual. Those that are ignored stay so. */
void interrupt_watch(void);

/* Has there been one? */
bool interrupt_was_signalled(void);

/* Back to how it was before interrupt_watch, unless there has been one: what follows it within the moment
 * must not do harm. */
void interrupt_ignore(void);

#endif
