/* The CPU backend: f32 kernels, vectorised and shared by threads. */
#ifndef PGPT_BACKEND_CPU_CPU_H
#define PGPT_BACKEND_CPU_CPU_H

#include "graph/backend.h"

/* n_threads 0 takes every core that this process may use (its affinity and its container's quota), or what
 * OMP_NUM_THREADS says. Results do not depend on the number. backend->close gives everything back. */
Status backend_cpu_open(Backend *backend, int n_threads, Error *error);

/* What programs for it are planned by; n_threads as above. */
Status backend_cpu_traits(BackendTraits *traits, int n_threads, Error *error);

#endif
