/* Who else is there, on which hosts, and with which cores.
 *
 * MPI is begun only where a launcher has started more than one process: pgpt train on its own, in a batch
 * script, or as the only task of an srun needs none of it. When a launcher did start several and they cannot
 * find each other (a program without MPI, or with another MPI than the launcher's), every one of them would
 * take itself for the only one and write over the others' files. That is found here, from what the launcher's
 * environment promised. */
#include "parallel/launch/launch.h"

#include "base/text/json.h"
#include "comm/comm_mpi.h"
#include "comm/comm_self.h"
#include "parallel/launch/affinity.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SHARED_MEMORY "/dev/shm"

/* ---- What the launcher promised */

static const struct {
    const char *rank, *size;
} VARIABLES[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI's mpirun */
    {"PMI_RANK", "PMI_SIZE"},                         /* MPICH's mpiexec and its kin; srun --mpi=pmi2 */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},   /* MVAPICH's mpirun_rsh */
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},         /* srun; a batch script itself has no size of a step */
};

typedef struct {
    int rank, size;       /* size 0: there is no launcher that we know */
    const char *variable; /* that has the rank */
} Promise;

static Promise read_promise(void) {
    for (size_t i = 0; i < sizeof VARIABLES / sizeof VARIABLES[0]; i++) {
        const char *rank = getenv(VARIABLES[i].rank), *size = getenv(VARIABLES[i].size);
        if (!rank || !size) continue;
        Promise promise = {(int)strtol(rank, NULL, 10), (int)strtol(size, NULL, 10), VARIABLES[i].rank};
        if (promise.size > 0 && promise.rank >= 0) return promise;
    }
    return (Promise){0};
}

Launch launch_alone(void) {
    CoreSet allowed = cores_allowed();
    Launch launch = {.world = comm_self(),
                     .host_size = 1,
                     .n_hosts = 1,
                     .n_cores = cores_usable(),
                     .n_host_cores = cores_count(&allowed),
                     .n_parts = 1,
                     .is_root = read_promise().rank == 0};
    if (gethostname(launch.host, sizeof launch.host - 1) != 0 || !launch.host[0])
        snprintf(launch.host, sizeof launch.host, "an unnamed host");
    return launch;
}

/* ---- Opening */

/* Processes that cannot reach each other all fail alike. One speaks; the others wait a little before they
 * leave, because launchers end everybody when the first one goes. */
static Status fail_apart(Launch *launch, Error *error) {
    launch->is_agreed = true;
    if (!launch->is_root) nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    return error->status;
}

static Status open_world(Launch *launch, Promise promise, Error *error) {
    if (!comm_mpi_is_built()) {
        error_user(
            error,
            "several processes were started, but this pgpt was built without MPI; start one without mpirun or "
            "srun, or build pgpt with -DPGPT_MPI=on");
        return fail_apart(launch, error);
    }
    Comm world = {0};
    if (comm_mpi_open(&world, error) != STATUS_OK) return fail_apart(launch, error);
    if (world.size == 1 && promise.size > 1) {
        error_user(
            error,
            "%d processes were started, but MPI (%s) shows each of them only itself; use the mpirun of that "
            "MPI; with Slurm, srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)",
            promise.size, comm_mpi_library());
        comm_close(&world);
        return fail_apart(launch, error);
    }
    launch->world = world;
    launch->is_root = world.rank == 0;
    return STATUS_OK;
}

/* Of the ranks that share this host: how many there are, and what each may run on. */
static Status share_cores(Launch *launch, Comm *host, Error *error) {
    size_t n = (size_t)host->size;
    CoreSet *sets = calloc(n, sizeof *sets), all = {{0}};
    int64_t *border = malloc((n + 1) * sizeof *border);
    if (!sets || !border) {
        error_failed(error, "no memory for the cores of %d ranks", host->size);
        goto done;
    }
    sets[host->rank] = cores_allowed();
    comm_even_borders((int64_t)(n * sizeof *sets), host->size, sizeof *sets, border);
    TRY_GOTO(comm_all_gather(host, sets, border, COMM_U8, error), done);
    RankCores share = affinity_cores(sets, host->size, host->rank, cores_quota());
    for (size_t i = 0; i < n; i++) cores_join(&all, &sets[i]);
    launch->host_rank = host->rank;
    launch->host_size = host->size;
    launch->n_cores = share.n_cores;
    launch->n_host_cores = cores_count(&all);
    launch->part = share.part;
    launch->n_parts = share.n_parts;
    launch->is_pinned = share.is_own && host->size > 1;
    launch->is_shared = share.is_crowded;
done:
    free(sets);
    free(border);
    return error->status;
}

static Status find_neighbours(Launch *launch, Error *error) {
    Comm host = {0};
    TRY(comm_mpi_split_host(&launch->world, &host, error));
    share_cores(launch, &host, error);
    int64_t n_hosts = host.rank == 0;
    comm_close(&host);
    if (error->status != STATUS_OK) return error->status;
    TRY(comm_all_reduce(&launch->world, &n_hosts, 1, COMM_I64, COMM_SUM, error));
    launch->n_hosts = (int)n_hosts;
    if (launch->is_shared) comm_mpi_set_patience(&launch->world, 0);
    return STATUS_OK;
}

Status launch_open(Launch *launch, double hang_seconds, Error *error) {
    *launch = launch_alone();
    segments_clear(SHARED_MEMORY, launch->cleared, sizeof launch->cleared);
    Promise promise = read_promise();
    if (promise.size == 1 || (promise.size == 0 && !comm_mpi_is_launched())) return STATUS_OK;
    /* Where ranks are not known, not all speak at once either. */
    int turn = promise.variable ? promise.rank : (int)(getpid() % 8);
    launch->guard =
        guard_open(&(GuardOptions){.rank = turn, .variable = promise.variable, .seconds = hang_seconds});
    TRY(open_world(launch, promise, error));
    if (launch->world.size == 1) return STATUS_OK;
    launch_note_segments(launch);
    TRY(launch_check_program(launch, error));
    return find_neighbours(launch, error);
}

void launch_end_guard(Launch *launch) {
    guard_close(launch->guard);
    launch->guard = NULL;
}

void launch_note_segments(Launch *launch) {
    if (launch->world.size > 1) segments_note(&launch->segments, SHARED_MEMORY);
}

void launch_close(Launch *launch) {
    comm_close(&launch->world);
    segments_close(&launch->segments);
    launch_end_guard(launch);
    if (launch->at_end) launch->at_end(launch->at_end_context);
    launch->at_end = NULL;
}

/* ---- Cores and threads */

Status launch_pin(Launch *launch, Error *error) {
    (void)error;
    if (launch->n_parts < 2) return STATUS_OK;
    CoreSet allowed = cores_allowed(), slice = cores_slice(&allowed, launch->part, launch->n_parts);
    /* Where it is not allowed, the ranks run as before: slower at times, never wrong. */
    if (cores_bind(&slice)) launch->is_pinned = true;
    launch->n_parts = 1;
    return STATUS_OK;
}

int launch_threads(const Launch *launch, int wished) {
    if (wished > 0) return wished;
    const char *variable = getenv("OMP_NUM_THREADS");
    if (launch->world.size == 1 || (variable && strtol(variable, NULL, 10) > 0)) return 0;
    return launch->n_cores;
}

/* ---- Words */

Log launch_log(const Launch *launch, bool quiet) {
    Log logger = log_make(quiet);
    if (!launch->is_root) logger.stream = NULL;
    return logger;
}

Status launch_agree(Launch *launch, Error *error) {
    comm_agree(&launch->world, error);
    launch->is_agreed = error->status != STATUS_OK && !launch->world.is_broken;
    return error->status;
}

void launch_fail(Launch *launch, Error *error) {
    if (error->status == STATUS_OK || launch->world.size == 1 || launch->is_agreed) return;
    Log logger = log_make(false);
    error_prefix(error, "rank %d on %s: ", launch->world.rank, launch->host);
    /* Several ranks may fail alike, and a program that reads JSON wants one line. The first in line ends the
     * others. */
    int turn = launch->world.rank < 20 ? launch->world.rank : 20;
    if (launch->wants_json)
        nanosleep(&(struct timespec){.tv_sec = turn / 5, .tv_nsec = turn % 5 * 200000000L}, NULL);
    log_error(&logger, error);
    if (launch->wants_json) error_write_json(error, stdout);
    comm_abort(&launch->world, (int)error->status);
}

/* Not through stdout: another thread may hold its lock for ever. */
void launch_write_end(const Launch *launch, const char *what) {
    char line[256];
    if (!launch->wants_json) return;
    int n = snprintf(line, sizeof line, "{\"error\":\"%s; see standard error\",\"exit_code\":%d}\n", what,
                     STATUS_FAILED);
    ssize_t ignored = n > 0 ? write(STDOUT_FILENO, line, (size_t)n) : 0;
    (void)ignored;
}

const char *launch_describe(const Launch *launch, int n_threads, char *text, size_t n_bytes) {
    int size = launch->world.size;
    const char *plural = n_threads == 1 ? "" : "s";
    if (size == 1) {
        snprintf(text, n_bytes, "1 process, %d thread%s", n_threads, plural);
    } else {
        snprintf(text, n_bytes, "%d ranks on %d host%s, %d thread%s each%s", size, launch->n_hosts,
                 launch->n_hosts == 1 ? "" : "s", n_threads, plural,
                 launch->is_pinned   ? ", pinned to cores"
                 : launch->is_shared ? ", more ranks than cores"
                                     : "");
    }
    return text;
}

/* Open MPI binds one or two ranks to a single core each unless told otherwise, however many cores there are.
 * Slurm binds to what the job was given, and that is as it should be. */
const char *launch_advice(const Launch *launch, char *text, size_t n_bytes) {
    if (read_promise().size == 0 || getenv("SLURM_JOB_ID")) return NULL;
    CoreSet possible = cores_possible();
    int n_possible = cores_count(&possible), quota = cores_quota();
    if (quota > 0 && quota < n_possible) n_possible = quota;
    if (launch->n_host_cores < 1 || launch->n_host_cores >= n_possible) return NULL;
    snprintf(
        text, n_bytes,
        "the launcher has bound pgpt to %d of %d cores of this host; mpirun --bind-to none gives it all of them",
        launch->n_host_cores, n_possible);
    return text;
}
