/* What a thread does between two looks at something that other processes have to finish.
 *
 *     Pause pause = {.patience = &patience};
 *     while (pause_before_look(&pause), !is_done()) pause_after_look(&pause);
 */
#ifndef PGPT_COMM_PATIENCE_H
#define PGPT_COMM_PATIENCE_H

#include "base/system/timer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct {
    int spins; /* looks before the first pause, where somebody waits for the result */
    atomic_bool is_patient;
    pthread_mutex_t mutex;
    pthread_cond_t is_needed;
} Patience;

void patience_open(Patience *patience, int spins);
void patience_close(Patience *patience);

/* Does whoever needs the result compute meanwhile? False at first. May be called while another thread waits,
 * which then does as told without finishing its sleep. */
void patience_set(Patience *patience, bool is_patient);

/* Of one wait. */
typedef struct {
    Patience *patience;
    int n_looks;       /* in a row that moved nothing */
    uint64_t start_ns; /* of this look; 0 while spinning, when nobody needs to know */
} Pause;

static inline void pause_before_look(Pause *pause) {
    pause->start_ns = pause->n_looks < pause->patience->spins ? 0 : timer_now_ns();
}

void pause_after_look(Pause *pause);

#endif
