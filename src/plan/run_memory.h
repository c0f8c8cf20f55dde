/* Is there enough memory for a run, and if not, what would fit? */
#ifndef PGPT_PLAN_RUN_MEMORY_H
#define PGPT_PLAN_RUN_MEMORY_H

#include "train/trainer.h"

/* For a run that is planned. The error says what it needs, what there is, and what to change. */
Status run_memory_check(const Trainer *trainer, Error *error);

/* --offload auto: how little has to be kept elsewhere for this run to fit; where nothing is enough, all that
 * can be. Plans it several times. */
Status run_memory_choose_offload(const TrainerSetup *setup, Offload *offload, Error *error);

/* The same of a run that is only planned, with so many bytes on the device and in the host's memory. */
typedef struct {
    uint64_t device, host;
} MemoryRoom;

Status run_memory_plan_offload(const TrainerSetup *setup, const MemoryRoom *room, Offload *offload,
                               Error *error);

/* trainer_open, which says the same where memory is gone by now that was there when it was checked. */
Status run_memory_open(Trainer *trainer, Error *error);

#endif
