/* A thread that ends this process when another rank of this host is stopped (SIGSTOP) for too long, and says
 * which: the others would wait for it without end. It is there from before MPI begins, when ranks know
 * nothing of each other, and goes where a training run's watchdog comes, which sees more (run/watchdog.h).
 *
 *     Guard *guard = guard_open(&(GuardOptions){.rank = 2, .variable = "PMI_RANK", .seconds = 1800});
 *     ...
 *     guard_close(guard);
 *
 * The launcher ends the other ranks when this one is gone. */
#ifndef PGPT_PARALLEL_LAUNCH_GUARD_H
#define PGPT_PARALLEL_LAUNCH_GUARD_H

typedef struct {
    int rank;             /* this one's, as far as is known */
    const char *variable; /* of the environment, where the launcher has put it; NULL: it is not known */
    double seconds;       /* that a rank may be stopped; 0: for ever */
} GuardOptions;

typedef struct Guard Guard;

/* NULL where nobody is to look out, or there is no thread for it. */
Guard *guard_open(const GuardOptions *options);
void guard_close(Guard *guard); /* safe on NULL */

#endif
