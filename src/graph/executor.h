/* The executor: runs a program's sections on memory, and times every instruction.
 *
 *     DeviceMemory memory = {0};
 *     device_require(&memory, &program.plan);             // for every program that shares the memory
 *     TRY(device_open(&memory, backend, error));
 *     TRY(executor_open(&executor, &program, &memory, error));
 *     for (micro-batch m) {
 *         executor_upload(tokens...);
 *         TRY(executor_run(&executor, SECTION_FORWARD, micro_batch(m, n), error));
 *         TRY(executor_run(&executor, SECTION_BACKWARD, micro_batch(m, n), error));
 *     }
 *     TRY(executor_run(&executor, SECTION_UPDATE, MICRO_BATCH_ONLY, error));
 *
 * A chunk of a pipeline's stage (actions.h) is run by itself, a micro-batch in any of the chunk's frames:
 *
 *     MicroBatch micro = {.is_first = ..., .is_last = ..., .chunk = 1, .frame = 2};
 *     TRY(executor_upload_input(&executor, targets, 2, ...));
 *     TRY(executor_run(&executor, SECTION_FORWARD, micro, error));
 *
 * Nothing is allocated after executor_open, but for captures. Where the backend can capture (CUDA graphs), a
 * part of the program is run instruction by instruction the first time, captured the second, and replayed as
 * one from then on. Instructions that cannot be captured, as those that send by the host, are run one by one
 * between runs of others, each of which is a capture. */
#ifndef PGPT_GRAPH_EXECUTOR_H
#define PGPT_GRAPH_EXECUTOR_H

#include "base/system/activity.h"
#include "graph/device/device_memory.h"
#include "graph/program.h"

typedef struct {
    Kernel kernel;
    uint64_t n_runs;
    uint64_t elapsed_ns;
} Instruction;

/* What of a part is captured: nodes in a row, each run of them by itself. */
typedef struct {
    ProgramPart *run;
    int n;
} CapturedRuns;

/* One way to run a part of the program: by the position of the micro-batch in its step. */
typedef struct {
    bool was_run; /* once, instruction by instruction, so that everything is prepared */
    void **run;   /* a capture each; NULL before it was run a second time, or rehearsed */
} SectionCapture;

/* A chunk's nodes in a section, as they are run. */
typedef struct {
    ProgramPart nodes;
    int n_frames;
    bool is_across; /* a node of it touches a frame of another chunk */
    int n_versions;
    KernelCall *calls; /* (n_versions, n_frames, 2, nodes.count), in the first micro-batch of a step last */
    SectionCapture *capture;  /* (n_versions, n_frames, 4): by the position of the micro-batch in its step */
    CapturedRuns captured[2]; /* in all micro-batches but the last, and in the last */
    bool was_run[2];          /* likewise: once, in any frame */
    void *repeated;           /* a capture of EXECUTOR_REPEATS runs; NULL before it was wanted */
} ExecutorPart;

/* A section under way on a device that runs behind the host. */
typedef struct {
    Section section;
    void *begin, *end; /* the backend's events */
} SectionTime;

enum { EXECUTOR_MAX_PENDING = 32, EXECUTOR_REPEATS = 16 };

typedef struct {
    const Program *program;
    DeviceMemory *memory;
    Arena arena;
    Instruction *instruction; /* one a node */
    ExecutorPart *part;       /* (N_SECTIONS, n_chunks); of the update, the first alone */
    /* One a node: it touches a frame of another chunk, or a tensor with a twin, and finds things elsewhere
     * from run to run; NULL where none does. */
    bool *is_made_late;
    KernelCall late_call; /* the last of these, made when it is run */
    bool are_swapped;     /* twins are in each other's place */
    BackendSpan *events;  /* one a node, around those that run beside others; NULL where nothing does */
    uint64_t phase_ns[N_PHASES]; /* ask executor_phase_ns */
    bool times_instructions;     /* wait for each: for executor_print_times on a device behind the host */
    SectionTime pending[EXECUTOR_MAX_PENDING];
    int n_pending;
    int64_t n_started; /* sections on a device that runs behind the host, those that are done included */
    Activity
        *activity; /* that is told of every instruction of the host; NULL, as after executor_open: nobody */
} Executor;

Status executor_open(Executor *executor, const Program *program, DeviceMemory *memory, Error *error);
void executor_close(Executor *executor);

/* Which of a step's micro-batches it is: the first overwrites gradients, the last may communicate them; the
 * chunk that works on it, and in which of the chunk's frames. */
typedef struct {
    bool is_first, is_last;
    int chunk, frame;
    /* (n_chunks) the frames that this micro-batch has in lower chunks, for what chunks share (plan.h); NULL
     * where they share nothing. */
    const int *frames;
    /* Of pipelines that are not flushed: which of the plan's versions of the parameters it uses, an update
     * the one that it makes; and whether more micro-batches follow the last of the step. */
    int version;
    bool goes_on;
    int regimes; /* of the step, bits REGIME_...; 0 where all steps are alike */
} MicroBatch;

#define MICRO_BATCH_ONLY ((MicroBatch){.is_first = true, .is_last = true})

static inline MicroBatch micro_batch(int64_t index, int64_t count) {
    return (MicroBatch){.is_first = index == 0, .is_last = index == count - 1};
}

/* The nodes of the chunk in this section. An update is not a chunk's: it is run in the first frames. */
Status executor_run(Executor *executor, Section section, MicroBatch micro, Error *error);

/* Where the backend can capture: what executor_run would do the first two times with a micro-batch like this
 * one, but for messages (collectives of a device are run, and so this is collective), on whatever lies in
 * memory: kernels are loaded, GEMMs chosen, captures made. Later runs then wait for nothing of the kind.
 * Leaves activations, gradients and results as a step does that is given up before its update; a second time,
 * nothing. */
Status executor_rehearse(Executor *executor, Section section, MicroBatch micro, Error *error);

/* Parameters of one version to another (MicroBatch.version), by a copy node of the update. */
Status executor_move_version(Executor *executor, const Node *copy, int from, int to, Error *error);

/* What was written to twins (Tensor.twin) is what is read from now on, and the other way round: by nodes that
 * run, by uploads and by downloads. */
void executor_swap_twins(Executor *executor);

/* A section n times in a row, timed as one: for programs that go on from where their last run has left
 * things. Where the backend can capture, EXECUTOR_REPEATS runs at a time are one capture, so that nothing
 * stands between them. */
Status executor_repeat(Executor *executor, Section section, int n_times, Error *error);

/* Host copies of a whole tensor, and of bytes first_byte .. first_byte + n_bytes - 1 of one; of an input, in
 * a frame of its chunk (others are of the first). */
Status executor_upload_input(Executor *executor, const Tensor *tensor, int frame, const void *host,
                             Error *error);
Status executor_upload(Executor *executor, const Tensor *tensor, const void *host, Error *error);
Status executor_download(Executor *executor, const Tensor *tensor, void *host, Error *error);
Status executor_upload_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                            const void *host, Error *error);
Status executor_download_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                              void *host, Error *error);

/* Elements first .. first + n - 1 of a tensor of any float type, which the host has or wants in f32. */
Status executor_upload_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                           const float *values, Error *error);
Status executor_download_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                             float *values, Error *error);

/* Where a tensor is: in the first frame, and in any of its chunk. NULL where nothing is computed. */
void *executor_address(const Executor *executor, const Tensor *tensor);
void *executor_address_in(const Executor *executor, const Tensor *tensor, int frame);

/* What fails on a device behind the host is found where the host waits. The device does not say which
 * instruction it was, so the message says of which program, and how to learn more. */
Status executor_found_late(const Executor *executor, Status status, Error *error);

/* Node `number` as the first micro-batch of a step runs it. */
const KernelCall *executor_call(const Executor *executor, int number);

/* A small tensor as it is when everything started so far is done, without waiting for what is started since:
 * sent to place 0 .. BACKEND_RESULTS - 1 and received from there. Only where executor_sends says so. */
bool executor_sends(const Executor *executor);
Status executor_send(Executor *executor, const Tensor *tensor, int place, Error *error);
Status executor_receive(Executor *executor, const Tensor *tensor, int place, void *host, Error *error);

void executor_reset_times(Executor *executor);

/* Nanoseconds since executor_open in each phase. Where the device runs behind the host, of the first
 * n_started sections (executor->n_started: of all so far), for which it waits; of later ones only if more
 * than EXECUTOR_MAX_PENDING have been started since. */
Status executor_phases(Executor *executor, int64_t n_started, uint64_t *phase_ns /* (N_PHASES) */,
                       Error *error);

/* Where the time went: one line an operation (runs, time, share, FLOP/s, bytes/s), slowest first. */
void executor_print_times(const Executor *executor, FILE *stream);

#endif
