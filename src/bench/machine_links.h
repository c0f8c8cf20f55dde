/* What carries data on this machine: between ranks, to and from a GPU's memory, to a disk. */
#ifndef PGPT_BENCH_MACHINE_LINKS_H
#define PGPT_BENCH_MACHINE_LINKS_H

#include "bench/training.h"
#include "comm/comm.h"
#include "plan/machine.h"

/* Ranks of this host, all at once, each with its part of what carries them; of GPUs by the communicators that
 * training has for them (NCCL where it can be). Collective. *how names what carried them. */
Status machine_measure_links(MachineHost *host, const BenchSetup *setup, bool is_gpu, Comm *world,
                             const char **how, Error *error);

/* One rank alone: guessed from a copy in memory. */
Status machine_guess_links(MachineHost *host, bool is_gpu, Error *error);

/* Bytes a second between pinned memory of the host and the device, each way, with the other under way too. */
Status machine_measure_bus(MachineHost *machine, const Backend *backend, Error *error);

/* Of a folder's disk; it stays 0 where nothing can be written there. */
void machine_measure_disk(MachineHost *host, const char *folder);

#endif
