/* MPI, where the build has it. */
#ifndef PGPT_COMM_COMM_MPI_H
#define PGPT_COMM_COMM_MPI_H

#include "comm/comm.h"

/* Was the build made with MPI? And was this process started by mpirun, mpiexec or srun, so that there are
 * others to find? (By the launcher's environment: MPI itself is not touched.) */
bool comm_mpi_is_built(void);
bool comm_mpi_is_launched(void);

/* What there is, in words: "Open MPI 4.1.4, threads: multiple". */
const char *comm_mpi_library(void);

/* Begin MPI and open the group of all processes. Closing it ends MPI. Once in the life of a process. */
Status comm_mpi_open(Comm *world, Error *error);

/* Of a communicator over MPI: its ranks that share this host's memory. Collective. */
Status comm_mpi_split_host(Comm *comm, Comm *host, Error *error);

/* The library's own blocking sum of f32 (MPI_Allreduce), with nothing of ours around it: what others are
 * measured against. Collective. */
Status comm_mpi_sum(Comm *comm, float *data, int64_t n, Error *error);

/* How a waiting rank spends its time: `spins` looks before it gives way, for a host with a core for each of
 * its ranks; 0 where there are more ranks than cores. */
void comm_mpi_set_patience(Comm *comm, int spins);

#endif
