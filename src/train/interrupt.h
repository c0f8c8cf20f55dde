/* Ctrl-C, SIGTERM and SIGUSR1 (which launchers of many ranks pass on at once) as a polite question: the trainer finishes its step, saves and leaves. */
#ifndef PGPT_TRAIN_INTERRUPT_H
#define PGPT_TRAIN_INTERRUPT_H

#include <stdbool.h>

/* From here on the first of these signals is only remembered; a second one ends the process as usual. */
void interrupt_watch(void);

/* Has there been one? */
bool interrupt_was_signalled(void);

/* Back to how it was before interrupt_watch. */
void interrupt_ignore(void);

#endif
