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
 * Nothing is allocated after executor_open, but for captures. Where the backend can capture (CUDA graphs), a
 * section is run instruction by instruction the first time, captured the second, and replayed as one from
 * then on. */
#ifndef PGPT_GRAPH_EXECUTOR_H
#define PGPT_GRAPH_EXECUTOR_H

#include "base/system/activity.h"
#include "graph/device_memory.h"
#include "graph/program.h"

typedef struct {
    Kernel kernel;
    uint64_t n_runs;
    uint64_t elapsed_ns;
} Instruction;

/* Of a node that runs beside others: the backend's events before and after it; NULL: it does not. */
typedef struct {
    void *begin, *end;
} LaneEvents;

/* One way to run a section: by the position of the micro-batch in its step. */
typedef struct {
    bool was_run;  /* once, instruction by instruction, so that everything is prepared */
    void *capture; /* NULL before it was run a second time, or where it cannot be captured */
} SectionCapture;

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
    KernelCall *calls; /* of every node, in every frame, in the first micro-batch of a step and in others */
    size_t frame_bytes[N_PLACES]; /* from one frame to the next; 0 where a place has none */
    LaneEvents *events;           /* one a node, of those that run beside others; NULL where nothing does */
    uint64_t phase_ns[N_PHASES];  /* ask executor_phase_ns */
    bool times_instructions;      /* wait for each: for executor_print_times on a device behind the host */
    SectionCapture *capture;      /* one a frame, section and position of the micro-batch in its step */
    void *repeated[N_SECTIONS];   /* a capture of EXECUTOR_REPEATS runs; NULL before it was wanted */
    SectionTime pending[EXECUTOR_MAX_PENDING];
    int n_pending;
    int64_t n_started; /* sections on a device that runs behind the host, those that are done included */
    Activity
        *activity; /* that is told of every instruction of the host; NULL, as after executor_open: nobody */
} Executor;

Status executor_open(Executor *executor, const Program *program, DeviceMemory *memory, Error *error);
void executor_close(Executor *executor);

/* Which of a step's micro-batches it is: the first overwrites gradients, the last may communicate them; and
 * the frame that it is in. */
typedef struct {
    bool is_first, is_last;
    int frame;
} MicroBatch;

#define MICRO_BATCH_ONLY ((MicroBatch){true, true, 0})

static inline MicroBatch micro_batch(int64_t index, int64_t count) {
    return (MicroBatch){index == 0, index == count - 1, 0};
}

Status executor_run(Executor *executor, Section section, MicroBatch micro, Error *error);

/* A section n times in a row, timed as one: for programs that go on from where their last run has left
 * things. Where the backend can capture, EXECUTOR_REPEATS runs at a time are one capture, so that nothing
 * stands between them. */
Status executor_repeat(Executor *executor, Section section, int n_times, Error *error);

/* Host copies of a whole tensor, and of bytes first_byte .. first_byte + n_bytes - 1 of one; of an input, in
 * a frame (others are of the first). */
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

/* Where a tensor is: in the first frame, and in any. NULL where nothing is computed. */
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
