/* MPI as a transport.
 *
 * Nothing here waits inside MPI. A library that waits spins at full speed, which is right for a rank with a
 * core of its own and ruinous for ranks that share cores with each other or with the computation they wait
 * for. So everything is started (MPI_Isend, MPI_Iallreduce, ...) and then looked at (MPI_Testall) by a loop
 * of our own, which decides what to do between two looks (patience.c). The few calls that have no started
 * form (splitting, ending) come right behind a barrier of that kind, so that all ranks are there and none
 * spins for long.
 *
 * A request holds MPI's own by value and, packed beside it, what a message about it needs: whom it is with
 * and how many bytes it has. That also finds a message shorter than expected, which MPI lets pass.
 *
 * MPI counts with int. A longer message travels as one element of a datatype made for it; a longer reduction
 * is cut; slices further apart are declined and go round by messages. So are scatter, gather and all-to-all,
 * in which no rank knows all lengths and MPI's own would be one message for each pair as well, and maxima and
 * minima of floating-point numbers, since the greater of a number and NaN is up to the library. */
#include "comm/comm_mpi.h"

#include <stdlib.h>

/* Launchers tell their processes who they are. A Slurm batch script has SLURM_PROCID without being one of
 * many, so that does not count; srun with an MPI plugin sets one of these. */
bool comm_mpi_is_launched(void) {
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK", /* Open MPI's mpirun */
        "PMIX_RANK",            /* PMIx: Open MPI's mpirun and prun, srun --mpi=pmix */
        "PMI_RANK",             /* MPICH's and Intel's mpiexec, srun --mpi=pmi2, flux */
        "MV2_COMM_WORLD_RANK",  /* MVAPICH's mpirun_rsh */
        "PALS_RANKID",          /* HPE Cray's mpiexec */
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0]) return true;
    }
    return false;
}

#ifndef PGPT_HAVE_MPI

bool comm_mpi_is_built(void) {
    return false;
}

const char *comm_mpi_library(void) {
    return "none (built without MPI)";
}

Status comm_mpi_open(Comm *world, Error *error) {
    *world = (Comm){0};
    return error_user(error, "this pgpt was built without MPI: install Open MPI or MPICH (Debian and Ubuntu: "
                             "libopenmpi-dev openmpi-bin) and build it with -DPGPT_MPI=on");
}

Status comm_mpi_split_host(Comm *comm, Comm *host, Error *error) {
    *host = (Comm){0};
    return error_failed(error, "%s is not a communicator over MPI", comm->table ? comm->table->name : "{0}");
}

Status comm_mpi_sum(Comm *comm, float *data, int64_t n, Error *error) {
    (void)comm, (void)data, (void)n;
    return error_failed(error, "there is no MPI");
}

void comm_mpi_set_patience(Comm *comm, int spins) {
    (void)comm, (void)spins;
}

#else

#    include "comm/patience.h"

#    include <limits.h>
#    include <mpi.h>
#    include <stdarg.h>
#    include <stdio.h>
#    include <string.h>
#    include <unistd.h>

enum {
    SPINS = 10000,           /* unless told: a millisecond or two */
    BATCH = 64,              /* requests looked at together */
    MOST_ELEMENTS = 1 << 30, /* of one call of a reduction */
};

/* The analyzer knows no way of waiting but MPI_Wait. NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker) */

typedef struct {
    MPI_Comm comm;
    int rank, size;
    bool is_world;
    int *counts; /* 2 x size: lengths and places of slices */
    Patience patience;
} MpiContext;

/* "MPI cannot DO-WHAT: WHY" */
__attribute__((format(printf, 3, 4))) static Status failed(Error *error, int code, const char *format, ...) {
    char why[MPI_MAX_ERROR_STRING] = "", what[256];
    int length = 0;
    if (MPI_Error_string(code, why, &length) != MPI_SUCCESS) snprintf(why, sizeof why, "error %d", code);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_failed(error, "MPI cannot %s: %s", what, why);
}

/* ---- Waiting */

/* Until all are done; MPI's code. */
static int wait_for(MpiContext *context, int n_requests, MPI_Request *requests, MPI_Status *statuses) {
    for (Pause pause = {.patience = &context->patience};; pause_after_look(&pause)) {
        int is_done = 0;
        pause_before_look(&pause);
        int code = MPI_Testall(n_requests, requests, &is_done, statuses);
        if (code != MPI_SUCCESS || is_done) return code;
    }
}

static int wait_for_one(MpiContext *context, int start_code, MPI_Request *request) {
    MPI_Status status;
    return start_code == MPI_SUCCESS ? wait_for(context, 1, request, &status) : start_code;
}

/* All ranks are there. */
static Status meet(MpiContext *context, Error *error) {
    MPI_Request request;
    int code = wait_for_one(context, MPI_Ibarrier(context->comm, &request), &request);
    return code == MPI_SUCCESS ? STATUS_OK : failed(error, code, "wait for the other ranks");
}

/* ---- Point to point */

/* The second word of a request: bytes, peer, direction. A number of bytes that does not fit is all ones. */
enum { PEER_BITS = 24, BYTES_SHIFT = PEER_BITS + 1 };
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request must hold MPI's own");

static void fill_request(CommRequest *request, MPI_Request mpi, size_t n_bytes, int peer, bool is_receive) {
    const uintptr_t most = UINTPTR_MAX >> BYTES_SHIFT;
    uintptr_t bytes = n_bytes < most && n_bytes <= INT_MAX ? (uintptr_t)n_bytes : most;
    uintptr_t word = bytes << BYTES_SHIFT | (uintptr_t)peer << 1 | (uintptr_t)is_receive;
    request->handle[0] = NULL;
    memcpy(&request->handle[0], &mpi, sizeof mpi);
    request->handle[1] = (void *)word;
}

/* One element that is n_bytes long: mebibytes side by side, and the rest behind them. */
static int make_long_type(size_t n_bytes, MPI_Datatype *type) {
    enum { UNIT = 1 << 20 };
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE};
    int lengths[2] = {(int)(n_bytes / UNIT), (int)(n_bytes % UNIT)};
    MPI_Aint places[2] = {0, (MPI_Aint)(n_bytes - n_bytes % UNIT)};
    int code = MPI_Type_contiguous(UNIT, MPI_BYTE, &parts[0]);
    if (code == MPI_SUCCESS) code = MPI_Type_create_struct(2, lengths, places, parts, type);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(type);
    if (parts[0] != MPI_DATATYPE_NULL) MPI_Type_free(&parts[0]);
    return code;
}

static int start_message(const MpiContext *context, void *data, size_t n_bytes, int peer, int tag,
                         bool is_receive, MPI_Request *request) {
    MPI_Datatype type = MPI_BYTE;
    int n = (int)n_bytes, code = MPI_SUCCESS;
    bool is_long = n_bytes > INT_MAX;
    if (is_long) {
        n = 1;
        code = make_long_type(n_bytes, &type);
    }
    if (code == MPI_SUCCESS)
        code = is_receive ? MPI_Irecv(data, n, type, peer, tag, context->comm, request)
                          : MPI_Isend(data, n, type, peer, tag, context->comm, request);
    if (is_long && type != MPI_BYTE) MPI_Type_free(&type); /* once the message is through */
    return code;
}

static Status start_send(void *opaque, const void *data, size_t n_bytes, int to, int tag,
                         CommRequest *request, Error *error) {
    MPI_Request mpi;
    int code = start_message(opaque, (void *)data, n_bytes, to, tag, false, &mpi);
    if (code != MPI_SUCCESS) return failed(error, code, "send %zu bytes to rank %d", n_bytes, to);
    fill_request(request, mpi, n_bytes, to, false);
    return STATUS_OK;
}

static Status start_receive(void *opaque, void *data, size_t n_bytes, int from, int tag, CommRequest *request,
                            Error *error) {
    MPI_Request mpi;
    int code = start_message(opaque, data, n_bytes, from, tag, true, &mpi);
    if (code != MPI_SUCCESS) return failed(error, code, "receive %zu bytes from rank %d", n_bytes, from);
    fill_request(request, mpi, n_bytes, from, true);
    return STATUS_OK;
}

static Status check_message(const CommRequest *request, int code, const MPI_Status *status, Error *error) {
    uintptr_t word = (uintptr_t)request->handle[1], n_bytes = word >> BYTES_SHIFT;
    bool is_receive = word & 1, is_length_known = n_bytes != UINTPTR_MAX >> BYTES_SHIFT;
    int peer = (int)(word >> 1 & ((1u << PEER_BITS) - 1)), n_received = 0;
    if (code != MPI_SUCCESS)
        return failed(error, code, is_receive ? "receive from rank %d" : "send to rank %d", peer);
    if (!is_receive || !is_length_known) return STATUS_OK;
    code = MPI_Get_count(status, MPI_BYTE, &n_received);
    if (code != MPI_SUCCESS || (uintptr_t)n_received == n_bytes) return STATUS_OK;
    return error_failed(error, "a message from rank %d has %d bytes where %zu were expected", peer,
                        n_received, (size_t)n_bytes);
}

static Status wait_for_batch(MpiContext *context, const CommRequest *requests, int n_requests, Error *error) {
    MPI_Request mpi[BATCH];
    MPI_Status statuses[BATCH];
    for (int i = 0; i < n_requests; i++) memcpy(&mpi[i], &requests[i].handle[0], sizeof mpi[i]);
    int code = wait_for(context, n_requests, mpi, statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        if (n_requests == 1) return check_message(&requests[0], code, &statuses[0], error);
        return failed(error, code, "exchange messages");
    }
    for (int i = 0; i < n_requests; i++) {
        int own_code = code == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
        if (own_code == MPI_ERR_PENDING) continue;
        TRY(check_message(&requests[i], own_code, &statuses[i], error));
    }
    return STATUS_OK;
}

static Status wait_for_messages(void *opaque, CommRequest *requests, int n_requests, Error *error) {
    for (int first = 0; first < n_requests; first += BATCH) {
        int n = n_requests - first < BATCH ? n_requests - first : BATCH;
        TRY(wait_for_batch(opaque, requests + first, n, error));
    }
    return STATUS_OK;
}

/* MPI_Testany takes no notice of requests that are not in the batch, so batches take turns. */
static Status wait_for_any(void *opaque, CommRequest *requests, int n_requests, int *index, Error *error) {
    MpiContext *context = opaque;
    MPI_Request mpi[BATCH];
    MPI_Status status;
    int first = 0;
    for (Pause pause = {.patience = &context->patience};; pause_after_look(&pause)) {
        int n = n_requests - first < BATCH ? n_requests - first : BATCH, which = MPI_UNDEFINED, is_done = 0;
        for (int i = 0; i < n; i++) memcpy(&mpi[i], &requests[first + i].handle[0], sizeof mpi[i]);
        pause_before_look(&pause);
        int code = MPI_Testany(n, mpi, &which, &is_done, &status);
        if (code != MPI_SUCCESS && which == MPI_UNDEFINED)
            return failed(error, code, "wait for any of %d messages", n_requests);
        if (code != MPI_SUCCESS || (is_done && which != MPI_UNDEFINED)) {
            *index = first + which;
            return check_message(&requests[*index], code, &status, error);
        }
        first = first + n < n_requests ? first + n : 0;
    }
}

/* ---- Collective operations */

static MPI_Datatype type_of(CommType type) {
    switch (type) {
    case COMM_F32: return MPI_FLOAT;
    case COMM_F64: return MPI_DOUBLE;
    case COMM_BF16:
    case COMM_F16: return MPI_UINT16_T; /* only moved: collective.c makes them f32 for arithmetic */
    case COMM_I32: return MPI_INT32_T;
    case COMM_I64: return MPI_INT64_T;
    case COMM_U8: return MPI_UINT8_T;
    case N_COMM_TYPES: break;
    }
    return MPI_DATATYPE_NULL;
}

static MPI_Op reduction_of(CommReduction reduction) {
    return reduction == COMM_SUM ? MPI_SUM : reduction == COMM_MAX ? MPI_MAX : MPI_MIN;
}

static int start_vector(const MpiContext *context, const CommOperation *operation, void *data, int n,
                        MPI_Request *request) {
    MPI_Datatype type = type_of(operation->type);
    MPI_Op reduction = reduction_of(operation->reduction);
    int root = operation->root;
    if (operation->kind == COMM_BROADCAST) return MPI_Ibcast(data, n, type, root, context->comm, request);
    if (operation->kind == COMM_ALL_REDUCE)
        return MPI_Iallreduce(MPI_IN_PLACE, data, n, type, reduction, context->comm, request);
    if (context->rank == root)
        return MPI_Ireduce(MPI_IN_PLACE, data, n, type, reduction, root, context->comm, request);
    return MPI_Ireduce(data, NULL, n, type, reduction, root, context->comm, request);
}

static int run_vector(MpiContext *context, const CommOperation *operation) {
    char *data = operation->data;
    int code = MPI_SUCCESS;
    for (int64_t first = 0; first < operation->n && code == MPI_SUCCESS; first += MOST_ELEMENTS) {
        int64_t n = operation->n - first < MOST_ELEMENTS ? operation->n - first : MOST_ELEMENTS;
        MPI_Request request;
        code = start_vector(context, operation, data + (size_t)first * comm_type_bytes(operation->type),
                            (int)n, &request);
        code = wait_for_one(context, code, &request);
    }
    return code;
}

static int start_slices(const MpiContext *context, const CommOperation *operation, MPI_Request *request) {
    int *lengths = context->counts, *places = lengths + context->size;
    const int64_t *border = operation->border;
    MPI_Datatype type = type_of(operation->type);
    for (int r = 0; r < context->size; r++) {
        lengths[r] = (int)(border[r + 1] - border[r]);
        places[r] = (int)border[r];
    }
    if (operation->kind == COMM_ALL_GATHER)
        return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, operation->data, lengths, places, type, context->comm,
                               request);
    return MPI_Ireduce_scatter(MPI_IN_PLACE, operation->data, lengths, type,
                               reduction_of(operation->reduction), context->comm, request);
}

static int run_slices(MpiContext *context, const CommOperation *operation) {
    MPI_Request request;
    int code = wait_for_one(context, start_slices(context, operation, &request), &request);
    if (code != MPI_SUCCESS || operation->kind != COMM_REDUCE_SCATTER) return code;
    /* MPI leaves the rank's slice at the beginning, from where it is moved; what was 0 there before must not
     * be its copy. */
    size_t element_bytes = comm_type_bytes(operation->type);
    int64_t first = operation->border[context->rank], n = operation->border[context->rank + 1] - first;
    if (!n || !first) return code;
    memmove((char *)operation->data + (size_t)first * element_bytes, operation->data,
            (size_t)n * element_bytes);
    memset(operation->data, 0, (size_t)(n < first ? n : first) * element_bytes);
    return code;
}

/* All ranks must come to the same answer, so it depends only on what all of them know. */
static bool is_taken(const MpiContext *context, const CommOperation *operation) {
    bool is_floating = operation->type == COMM_F32 || operation->type == COMM_F64;
    bool is_defined = !is_floating || operation->reduction == COMM_SUM;
    switch (operation->kind) {
    case COMM_BARRIER:
    case COMM_BROADCAST: return true;
    case COMM_REDUCE:
    case COMM_ALL_REDUCE: return is_defined;
    case COMM_REDUCE_SCATTER: return is_defined && operation->border[context->size] <= INT_MAX;
    case COMM_ALL_GATHER: return operation->border[context->size] <= INT_MAX;
    default: return false;
    }
}

static Status collective(void *opaque, const CommOperation *operation, bool *done, Error *error) {
    MpiContext *context = opaque;
    if (!is_taken(context, operation)) return STATUS_OK;
    *done = true;
    if (operation->kind == COMM_BARRIER) return meet(context, error);
    bool is_sliced = operation->kind == COMM_ALL_GATHER || operation->kind == COMM_REDUCE_SCATTER;
    int code = is_sliced ? run_slices(context, operation) : run_vector(context, operation);
    return code == MPI_SUCCESS ? STATUS_OK
                               : failed(error, code, "finish a %s", comm_kind_name(operation->kind));
}

/* ---- Groups */

static const CommTable mpi_table;

static void close_context(void *opaque) {
    MpiContext *context = opaque;
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (!is_over) {
        Error ignored = {0};
        if (context->is_world) meet(context, &ignored);
        MPI_Comm_free(&context->comm);
        if (context->is_world) MPI_Finalize();
    }
    patience_close(&context->patience);
    free(context->counts);
    free(context);
}

/* Takes over the MPI communicator, also when it fails. */
static Status wrap(Comm *comm, MPI_Comm mpi, int spins, bool is_world, Error *error) {
    MpiContext *context = calloc(1, sizeof *context);
    int size = 1;
    MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN);
    MPI_Comm_size(mpi, &size);
    int *counts = calloc((size_t)size * 2, sizeof *counts);
    if (!context || !counts) {
        free(context);
        free(counts);
        MPI_Comm_free(&mpi);
        return error_failed(error, "no memory for a communicator of %d ranks", size);
    }
    *context = (MpiContext){.comm = mpi, .size = size, .is_world = is_world, .counts = counts};
    patience_open(&context->patience, spins);
    MPI_Comm_rank(mpi, &context->rank);
    *comm = (Comm){.table = &mpi_table, .context = context, .rank = context->rank, .size = size};
    return STATUS_OK;
}

static Status split(void *opaque, int color, int key, Comm *child, Error *error) {
    MpiContext *context = opaque;
    MPI_Comm mpi = MPI_COMM_NULL;
    TRY(meet(context, error));
    int code = MPI_Comm_split(context->comm, color < 0 ? MPI_UNDEFINED : color, key, &mpi);
    if (code != MPI_SUCCESS) return failed(error, code, "split a group of %d ranks", context->size);
    return mpi == MPI_COMM_NULL ? STATUS_OK : wrap(child, mpi, context->patience.spins, false, error);
}

Status comm_mpi_split_host(Comm *comm, Comm *host, Error *error) {
    *host = (Comm){0};
    if (comm->table != &mpi_table)
        return error_failed(error, "%s is not a communicator over MPI",
                            comm->table ? comm->table->name : "{0}");
    MpiContext *context = comm->context;
    MPI_Comm mpi = MPI_COMM_NULL;
    TRY(comm_barrier(comm, error));
    int code = MPI_Comm_split_type(context->comm, MPI_COMM_TYPE_SHARED, context->rank, MPI_INFO_NULL, &mpi);
    if (code != MPI_SUCCESS) return failed(error, code, "find the ranks of this host");
    TRY(wrap(host, mpi, context->patience.spins, false, error));
    host->all_reduce = comm->all_reduce;
    return STATUS_OK;
}

static bool is_threaded(void *opaque) {
    (void)opaque;
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE;
}

static void be_patient(void *opaque, bool is_patient) {
    MpiContext *context = opaque;
    patience_set(&context->patience, is_patient);
}

static void abort_job(void *opaque, int exit_code) {
    (void)opaque;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
}

static const CommTable mpi_table = {
    .name = "mpi",
    .start_send = start_send,
    .start_receive = start_receive,
    .wait = wait_for_messages,
    .wait_any = wait_for_any,
    .collective = collective,
    .split = split,
    .is_threaded = is_threaded,
    .be_patient = be_patient,
    .abort = abort_job,
    .close = close_context,
};

Status comm_mpi_sum(Comm *comm, float *data, int64_t n, Error *error) {
    if (comm->table != &mpi_table || n > INT_MAX)
        return error_failed(error, "MPI cannot sum %lld numbers at once here", (long long)n);
    const MpiContext *context = comm->context;
    int code = MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, MPI_SUM, context->comm);
    return code == MPI_SUCCESS ? STATUS_OK : failed(error, code, "sum %lld numbers", (long long)n);
}

void comm_mpi_set_patience(Comm *comm, int spins) {
    if (comm->table != &mpi_table) return;
    MpiContext *context = comm->context;
    context->patience.spins = spins;
}

/* ---- The library */

bool comm_mpi_is_built(void) {
    return true;
}

/* "Open MPI v4.1.4, package: ..." and "MPICH Version: 4.0.2" + newline: name and version, up to what follows
 * them. */
static void shorten(const char *version, char *text, size_t n_bytes) {
    size_t n = 0;
    for (const char *c = version; *c && *c != ',' && *c != '\n' && n + 1 < n_bytes; c++) {
        bool is_mark = c[0] == 'v' && c[1] >= '0' && c[1] <= '9' && n > 0 && text[n - 1] == ' ';
        if (strncmp(c, " Version:", 9) == 0) c += 8;
        else if (!is_mark) text[n++] = *c == '\t' ? ' ' : *c;
    }
    while (n > 0 && text[n - 1] == ' ') n--;
    text[n] = '\0';
}

const char *comm_mpi_library(void) {
    static char text[160]; /* always the same */
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "", name[64];
    int length = 0, is_begun = 0, is_over = 0, level = -1;
    MPI_Get_library_version(version, &length);
    shorten(version, name, sizeof name);
    MPI_Initialized(&is_begun);
    MPI_Finalized(&is_over);
    if (is_begun && !is_over) MPI_Query_thread(&level);
    const char *threads = level == MPI_THREAD_MULTIPLE     ? ", threads: multiple"
                          : level == MPI_THREAD_SERIALIZED ? ", threads: serialized, so nothing overlaps"
                          : level >= 0                     ? ", threads: single, so nothing overlaps"
                                                           : "";
    snprintf(text, sizeof text, "%s%s", name, threads);
    return text;
}

Status comm_mpi_open(Comm *world, Error *error) {
    *world = (Comm){0};
    int is_begun = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&is_begun);
    if (is_begun) return error_failed(error, "MPI can be begun only once in the life of a process");
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS) return failed(error, code, "begin");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm mpi = MPI_COMM_NULL;
    code = MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    if (code != MPI_SUCCESS) return failed(error, code, "open the group of all ranks");
    return wrap(world, mpi, SPINS, true, error);
}

/* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */

#endif
