/* How this process was started: alone, or as one of many by mpirun, mpiexec or srun.
 *
 *     Launch launch;
 *     TRY(launch_open(&launch, 1800.0, error));
 *     ... launch.world is the group of all processes, of size 1 where there is only this one ...
 *     launch_close(&launch);
 *
 * Errors are everybody's: what goes wrong on one rank before the run begins is agreed upon (launch_agree) and
 * printed once, by rank 0; what goes wrong later is printed by the rank that it happened to, which then ends
 * the job. */
#ifndef PGPT_PARALLEL_LAUNCH_LAUNCH_H
#define PGPT_PARALLEL_LAUNCH_LAUNCH_H

#include "base/options/options_text.h"
#include "base/text/log.h"
#include "comm/comm.h"
#include "parallel/launch/guard.h"
#include "parallel/launch/segments.h"

typedef struct {
    Comm world;    /* of the host's own memory, for control: options, errors, losses */
    int host_rank; /* among the ranks of this host */
    int host_size;
    int n_hosts;
    char host[256];    /* this one's name */
    int n_cores;       /* that this rank may use without taking them from another */
    int n_host_cores;  /* that the ranks of this host may use together */
    int part, n_parts; /* of cores that several ranks were given alike: how launch_pin divides them */
    bool is_pinned;    /* to cores of its own, by the launcher or by launch_pin */
    bool is_shared;    /* there are more ranks on this host than cores */
    bool is_agreed;    /* the error that ended the run is known to all ranks */
    bool wants_json;   /* an error goes to stdout too, as the last line, from one rank */
    bool is_root;      /* speaks for all: rank 0. The others print no notes and no results */
    void (*at_end)(void *context); /* what launch_close calls when MPI has ended; NULL: nothing */
    void *at_end_context;
    Segments segments; /* of shared memory, that MPI has made for this rank */
    char cleared[192]; /* what killed ranks had left of theirs, and launch_open has removed; "" if nothing */
    Guard *guard;      /* NULL: nobody looks out for ranks that are stopped, or somebody else does */
} Launch;

/* Begins MPI where there are others to find, and checks that all ranks run the same program. After an error
 * the launch can still be asked whether it is the root, and must be closed. From now on a rank that is
 * stopped for hang_seconds ends the job (0: never), until launch_end_guard. */
Status launch_open(Launch *launch, double hang_seconds, Error *error);
void launch_end_guard(Launch *launch);

/* This process as the only one, whatever started it. Nothing is opened; closing it does no harm. */
Launch launch_alone(void);
void launch_close(Launch *launch);

/* There may be more segments of shared memory now: NCCL makes its own. */
void launch_note_segments(Launch *launch);

/* Give each rank of a host cores of its own, unless the launcher has done so or there are too few. Before any
 * threads are made; all ranks of a host or none. */
Status launch_pin(Launch *launch, Error *error);

/* Threads to ask a backend for: what the user wished (0: nothing), or this rank's share of the cores; 0, the
 * backend's own choice, where there is nobody to share with or OMP_NUM_THREADS decides. */
int launch_threads(const Launch *launch, int wished);

/* To stderr on the root, nowhere on the others. */
Log launch_log(const Launch *launch, bool quiet);

/* Are these the same on all ranks? `name` says what it is ("command", "--data"), `value` is text; the message
 * names the first rank that differs from rank 0, and both values. Collective. */
Status launch_check_same(Launch *launch, const char *name, const char *value, Error *error);

/* The same for lines of "key = value", as options_write_values makes them: names the first key that differs.
 * `what` is what they are ("options"). Collective. */
Status launch_check_lines(Launch *launch, const char *what, const char *text, Error *error);

/* Do all ranks run the same program? Collective; launch_open has done it. */
Status launch_check_program(Launch *launch, Error *error);

/* A number that differs when the program's file does; 0 where it cannot be read. */
uint64_t launch_program_hash(void);

/* After an error that only this rank knows of, where there are others: says it and ends the job. Before
 * anything is given back that other ranks, or threads of this one, may still use. Otherwise it does
 * nothing. */
void launch_fail(Launch *launch, Error *error);

/* Where a thread ends the process without a word to main(): the error in JSON, if it is wanted. `what` is
 * plain words. */
void launch_write_end(const Launch *launch, const char *what);

/* Do all ranks have the same options (but the transient ones)? Collective. */
Status launch_check_options(Launch *launch, const Options *options, Error *error);

/* comm_agree on the world; what it returns need not be printed by anybody but rank 0. */
Status launch_agree(Launch *launch, Error *error);

/* After something that rank 0 has done for all: its error is everybody's, and nobody is named. Collective. */
Status launch_agree_with_root(Launch *launch, Error *error);

/* "8 ranks on 2 hosts, 4 threads each, pinned to cores": for the log. */
const char *launch_describe(const Launch *launch, int n_threads, char *text, size_t n_bytes);

/* What the user may want to know about the cores of this rank's host: the launcher has bound the ranks to a
 * few of them. NULL where there is nothing to say. */
const char *launch_advice(const Launch *launch, char *text, size_t n_bytes);

#endif
