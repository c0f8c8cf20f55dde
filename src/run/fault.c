/* A disk that is full is made by the limit on the length of files, which holds for this process alone: the
 * system itself then refuses every write, so that the path which is tested is the real one. */
#include "run/fault.h"

#include "base/text/format.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *const names[] = {"none", "kill", "stop", "hang", "error", "disk", NULL};

static FaultKind find_kind(const char *name, size_t n) {
    for (int kind = FAULT_KILL; names[kind]; kind++) {
        if (strlen(names[kind]) == n && memcmp(names[kind], name, n) == 0) return (FaultKind)kind;
    }
    return FAULT_NONE;
}

Status fault_parse(const char *text, int n_ranks, Fault *fault, Error *error) {
    *fault = (Fault){0};
    if (!*text) return STATUS_OK;
    size_t n_kind = strcspn(text, ":");
    int rank = -1, n_read = 0;
    long long step = 0;
    fault->kind = find_kind(text, n_kind);
    if (fault->kind == FAULT_NONE || sscanf(text + n_kind, ":%9d:%18lld%n", &rank, &step, &n_read) != 2 ||
        text[n_kind + (size_t)n_read] || step < 1) {
        return error_user(
            error,
            "--fault wants KIND:RANK:STEP with one of kill, stop, hang, error, disk, as kill:1:20; "
            "got '%s'",
            text);
    }
    if (rank < 0 || rank >= n_ranks) {
        return error_user(error, "--fault %s: there is no rank %d among %d; they count from 0", text, rank,
                          n_ranks);
    }
    fault->rank = rank;
    fault->step = step;
    const char *attempt = getenv(ATTEMPT_VARIABLE);
    if (attempt && strtol(attempt, NULL, 10) > 0) fault->kind = FAULT_NONE;
    return STATUS_OK;
}

Status fault_strike(const Fault *fault, int rank, int64_t step, Error *error) {
    if (fault->kind == FAULT_NONE || fault->rank != rank || fault->step != step) return STATUS_OK;
    switch (fault->kind) {
    case FAULT_KILL: raise(SIGKILL); break;
    case FAULT_STOP: raise(SIGSTOP); break;
    case FAULT_HANG:
        for (;;) pause();
    case FAULT_ERROR:
        return error_failed(error, "an error was thrown before step %lld, as --fault asked", (long long)step);
    case FAULT_DISK:
        /* A log in a file is as full as the rest. */
        fprintf(stderr, "pgpt: the disk of rank %d is full from here on, as --fault asked\n", rank);
        signal(SIGXFSZ, SIG_IGN); /* so that write(2) fails instead */
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 0, .rlim_max = RLIM_INFINITY});
        break;
    case FAULT_NONE: break;
    }
    return STATUS_OK;
}
