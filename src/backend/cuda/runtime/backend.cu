/* The table that makes these kernels a backend: which function runs which operation, where memory comes from,
 * and how bytes get to the device and back.
 *
 * One stream carries what computes, so order is the program's order and needs no events. Where two lanes are
 * wanted, the executor records events and waits for them where it must. Uploads (a batch of tokens, a
 * learning rate) are first copied into a ring of pinned memory and enqueued: the host goes on at once, while
 * the device is still busy with what came before, and a batch crosses the bus meanwhile. Only when the ring
 * comes round must it wait, for a copy that is sixteen segments old. Large ones (weights) wait until they are
 * done. Small results (a loss) come back the same way, while the device is already busy with what comes next.
 *
 * Kernels cannot return errors. What they find wrong (a token that is not in the table) they leave in a word
 * of host memory, and the next synchronize or download reports it. */
#include "backend/cuda/decode/decode_call.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/runtime/pdl.cuh"

extern "C" {
#include "ops/decode_step.h"
#include "ops/sample.h"
}

#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

Status cuda_check(cudaError_t code, const char *what, Error *error) {
    if (code == cudaSuccess) return STATUS_OK;
    cudaGetLastError(); /* it is this one's, and not the next launch's */
    return error_failed(error, "%s: %s (%s, CUDA error %d)", what, cudaGetErrorString(code),
                        cudaGetErrorName(code), (int)code);
}

Status cuda_check_cublas(const CublasLt *lt, cublasStatus_t code, const char *what, Error *error) {
    if (code == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    return error_failed(error, "%s: cuBLASLt says %s", what, lt->GetStatusName(code));
}

Status cuda_launched(const char *what, Error *error) {
    return cuda_check(cudaGetLastError(), what, error);
}

void cuda_add_note(CudaContext *context, const char *what, const char *why) {
    size_t used = strlen(context->note);
    if (strstr(context->note, what)) return;
    snprintf(context->note + used, sizeof context->note - used, "%s%s: %s", used ? "; " : "", what, why);
}

Status cuda_unsupported(const KernelCall *call, const Tensor *tensor, Error *error) {
    char shape[80];
    return error_failed(error, "the CUDA kernel of '%s' does not take %s%s of type %s", call->node->op->name,
                        tensor->name, shape_format(tensor->shape, shape, sizeof shape),
                        dtype_info(tensor->dtype)->name);
}

static Status report_fault(CudaContext *context, Error *error) {
    static const char *const format[] = {
        "",
        "embedding: token %lld is not one of the table's %lld rows",
        "embedding: position %lld is not one of the table's %lld rows",
        "gather: row %lld of a tensor of %lld rows",
        "cross_entropy: target %lld of a vocabulary of %lld",
        "attention_cached: the last new row would lie at position %lld of a cache of %lld",
    };
    CudaFault fault = *context->fault;
    if (fault.kind == FAULT_NONE) return STATUS_OK;
    context->fault->kind = FAULT_NONE;
    return error_failed(error, format[fault.kind], fault.value, fault.limit);
}

/* ---- which kernel ---- */

typedef struct {
    const Op *op;
    Kernel kernel;
} CudaKernel;

static const CudaKernel KERNELS[] = {
#define KERNEL(op, kernel) {&op, kernel},
    CUDA_KERNELS(KERNEL, KERNEL)
#undef KERNEL
};

static Kernel kernel(void *context, const Node *node) {
    const BackendTraits traits = cuda_traits(&((const CudaContext *)context)->traits);
    if (!traits.has_kernel(&traits, node)) return NULL;
    for (size_t i = 0; i < sizeof KERNELS / sizeof KERNELS[0]; i++) {
        if (KERNELS[i].op == node->op) return KERNELS[i].kernel;
    }
    return NULL;
}

/* ---- memory ---- */

static size_t free_bytes(void *context) {
    cuda_enter(context);
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) {
        cudaGetLastError(); /* an answer of 0 says enough */
        return 0;
    }
    return available;
}

static Status allocate(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    *memory = NULL;
    size_t available = free_bytes(context);
    cudaError_t code = n_bytes > available ? cudaErrorMemoryAllocation : cudaMalloc(memory, n_bytes);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* it is not sticky: the device goes on working */
        return error_failed(error, "no memory for %.2f GiB of %s on GPU %d, where %.2f GiB are free",
                            (double)n_bytes / 0x1p30, what, cuda->device, (double)available / 0x1p30);
    }
    TRY(cuda_check(code, what, error));
    if (!n_bytes) return STATUS_OK;
    TRY(cuda_check(cudaMemsetAsync(*memory, 0, n_bytes, cuda->stream), what, error));
    return cuda_check(cudaStreamSynchronize(cuda->stream), what, error);
}

static void release(void *context, void *memory, size_t n_bytes) {
    (void)n_bytes;
    cuda_enter(context);
    cudaFree(memory);
}

static Status wait_watchfully(CudaContext *cuda, cudaEvent_t event, Error *error) {
    enum { LOOKS = 1000 }; /* between two questions, about a millisecond */
    for (;;) {
        TRY(watchers_ask(&cuda->watchers, error));
        for (int look = 0; look < LOOKS; look++) {
            cudaError_t code = event ? cudaEventQuery(event) : cudaStreamQuery(cuda->stream);
            if (code == cudaErrorNotReady) continue;
            return cuda_check(code, "waiting for the GPU", error);
        }
    }
}

Status cuda_wait_until(CudaContext *cuda, cudaEvent_t event, Error *error) {
    if (cuda->watchers.first) TRY(wait_watchfully(cuda, event, error));
    else
        TRY(cuda_check(event ? cudaEventSynchronize(event) : cudaStreamSynchronize(cuda->stream),
                       "waiting for the GPU", error));
    return report_fault(cuda, error);
}

/* A place for n_bytes (at most a segment) in the ring. */
static Status upload_place(CudaContext *cuda, size_t n_bytes, size_t *place, Error *error) {
    size_t aligned = (n_bytes + 63) / 64 * 64;
    if (cuda->upload_used + aligned > UPLOAD_SEGMENT_BYTES) {
        TRY(cuda_check(cudaEventRecord(cuda->upload_done[cuda->upload_segment], cuda->stream), "upload",
                       error));
        cuda->upload_segment = (cuda->upload_segment + 1) % UPLOAD_SEGMENTS;
        cuda->upload_used = 0;
        TRY(cuda_wait_until(cuda, cuda->upload_done[cuda->upload_segment], error));
    }
    *place = (size_t)cuda->upload_segment * UPLOAD_SEGMENT_BYTES + cuda->upload_used;
    cuda->upload_used += aligned;
    return STATUS_OK;
}

/* A batch crosses the bus while the device is busy with what came before, to a ring like the host's, and
 * waits there for its turn. What is small crosses it in its turn: that takes less time than the other copy
 * and a wait for another stream (a step of 6 x 384 with 64 KiB pieces takes 20 us less of 3,136 this way, one
 * with 16 KiB pieces took 6 us more of 1,238). */
static Status upload_piece(CudaContext *cuda, void *device, const void *host, size_t n_bytes, Error *error) {
    size_t place;
    TRY(upload_place(cuda, n_bytes, &place, error));
    char *sent = cuda->upload + place, *arrived = cuda->arrival + place;
    bool is_early = n_bytes >= UPLOAD_EARLY_BYTES;
    memcpy(sent, host, n_bytes);
    TRY(cuda_check(cudaMemcpyAsync(is_early ? arrived : device, sent, n_bytes, cudaMemcpyHostToDevice,
                                   is_early ? cuda->upload_stream : cuda->stream),
                   "upload", error));
    if (!is_early) return STATUS_OK;
    TRY(cuda_check(cudaEventRecord(cuda->has_arrived, cuda->upload_stream), "upload", error));
    TRY(cuda_check(cudaStreamWaitEvent(cuda->stream, cuda->has_arrived, 0), "upload", error));
    return cuda_check(cudaMemcpyAsync(device, arrived, n_bytes, cudaMemcpyDeviceToDevice, cuda->stream),
                      "upload", error);
}

/* Through the ring, so that the host need not wait: up to a quarter of it, so that it holds the tokens and
 * targets of a batch, half a million each, beside those of the batch before. */
static Status upload(void *context, void *device, const void *host, size_t n_bytes, Error *error) {
    const size_t segment = UPLOAD_SEGMENT_BYTES;
    CudaContext *cuda = cuda_enter(context);
    if (n_bytes > UPLOAD_SEGMENTS / 4 * segment) {
        TRY(cuda_check(cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, cuda->stream), "upload",
                       error));
        return cuda_wait_until(cuda, NULL, error);
    }
    for (size_t at = 0; at < n_bytes; at += segment) {
        size_t left = n_bytes - at, piece = left < segment ? left : segment;
        TRY(upload_piece(cuda, (char *)device + at, (const char *)host + at, piece, error));
    }
    return STATUS_OK;
}

static Status synchronize(void *context, Error *error) {
    return cuda_wait_until(cuda_enter(context), NULL, error);
}

static Status download(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    if (!n_bytes) return STATUS_OK;
    bool small = n_bytes <= DOWNLOAD_BYTES;
    void *place = small ? cuda->download : host;
    TRY(cuda_check(cudaMemcpyAsync(place, device, n_bytes, cudaMemcpyDeviceToHost, cuda->stream), "download",
                   error));
    TRY(synchronize(context, error));
    if (small) memcpy(host, place, n_bytes);
    return STATUS_OK;
}

static Status send_result(void *context, const void *device, size_t n_bytes, int place, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    TRY(cuda_check(
        cudaMemcpyAsync(cuda->result[place], device, n_bytes, cudaMemcpyDeviceToHost, cuda->stream),
        "download", error));
    return cuda_check(cudaEventRecord(cuda->result_sent[place], cuda->stream), "download", error);
}

static Status receive_result(void *context, void *host, size_t n_bytes, int place, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    TRY(cuda_wait_until(cuda, cuda->result_sent[place], error));
    memcpy(host, cuda->result[place], n_bytes);
    return STATUS_OK;
}

/* ---- opening and closing ---- */

int backend_cuda_devices(char *reason, size_t n_bytes) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    int driver = 0;
    bool has_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    if (code == cudaSuccess) code = cudaErrorNoDevice;
    snprintf(reason, n_bytes, "no CUDA device is visible (%s: %s)", cudaGetErrorName(code),
             has_driver ? cudaGetErrorString(code) : "there is no NVIDIA driver");
    return 0;
}

static void close(void *context) {
    CudaContext *cuda = cuda_enter(context);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    cuda_close_copies(cuda);
    if (cuda->close_attention) cuda->close_attention(cuda);
    if (cuda->close_gemms) cuda->close_gemms(cuda);
    if (cuda->cublas) cuda->lt.Destroy(cuda->cublas);
    for (int i = 0; i < UPLOAD_SEGMENTS; i++) {
        if (cuda->upload_done[i]) cudaEventDestroy(cuda->upload_done[i]);
    }
    for (int i = 0; i < BACKEND_RESULTS; i++) {
        if (cuda->result_sent[i]) cudaEventDestroy(cuda->result_sent[i]);
    }
    for (int lane = 0; lane < CUDA_MOST_LANES; lane++) {
        cudaFree(cuda->lane_workspace[lane]);
        cudaFree(cuda->lane_tickets[lane]);
        if (cuda->lane_stream[lane]) cudaStreamDestroy(cuda->lane_stream[lane]);
    }
    if (cuda->has_arrived) cudaEventDestroy(cuda->has_arrived);
    if (cuda->upload_stream) cudaStreamDestroy(cuda->upload_stream);
    cudaFree(cuda->arrival);
    cudaFree(cuda->mail);
    cudaFreeHost(cuda->fault);
    cudaFreeHost(cuda->upload);
    cudaFreeHost(cuda->download);
    cudaFreeHost(cuda->result);
    watchers_close(&cuda->watchers);
    free(cuda);
}

/* NVIDIA recommends 32 MiB for Hopper and a few for what came before it. */
static size_t workspace_size(const CudaTraits *gpu) {
    return (size_t)(gpu->major >= 9 ? 32 : 8) << 20;
}

static Status describe(int device, CudaTraits *gpu, uint8_t *id, Error *error) {
    struct cudaDeviceProp properties;
    TRY(cuda_check(cudaGetDeviceProperties(&properties, device), "asking what the GPU is", error));
    memset(gpu, 0, sizeof *gpu);
    snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1, properties.name);
    gpu->major = properties.major;
    gpu->minor = properties.minor;
    gpu->n_processors = properties.multiProcessorCount;
    gpu->max_shared_bytes = (int)properties.sharedMemPerBlockOptin;
    gpu->memory_bytes = properties.totalGlobalMem;
    memcpy(id, properties.uuid.bytes, BACKEND_ID_BYTES);
#ifdef PGPT_HAVE_CUDNN
    gpu->has_cudnn = true;
#endif
    return STATUS_OK;
}

/* What has to be a lane's own: its stream, the workspace of its GEMMs, and its tickets. Most waits are for
 * the first lane, and those for the second come late: it has what the first leaves. (Messages come before
 * both: comm_nccl.c.) */
static Status open_lane(CudaContext *cuda, int lane, Error *error) {
    int lowest = 0, highest = 0;
    TRY(cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for priorities", error));
    TRY(cuda_check(cudaStreamCreateWithPriority(&cuda->lane_stream[lane], cudaStreamNonBlocking,
                                                lane ? lowest : (lowest + highest) / 2),
                   "making a stream", error));
    TRY(cuda_check(cudaMalloc(&cuda->lane_workspace[lane], cuda->workspace_bytes), "memory for GEMMs",
                   error));
    size_t n_bytes = N_TICKETS * sizeof *cuda->tickets;
    TRY(cuda_check(cudaMalloc((void **)&cuda->lane_tickets[lane], n_bytes), "memory for tickets", error));
    TRY(cuda_check(cudaMemsetAsync(cuda->lane_tickets[lane], 0, n_bytes, cuda->lane_stream[lane]),
                   "memory for tickets", error));
    return cuda_check(cudaStreamSynchronize(cuda->lane_stream[lane]), "memory for tickets", error);
}

static void set_lane(void *context, int lane) {
    CudaContext *cuda = (CudaContext *)context;
    cuda->stream = cuda->lane_stream[lane];
    cuda->workspace = cuda->lane_workspace[lane];
    cuda->tickets = cuda->lane_tickets[lane];
}

static Status event_wait(void *context, void *event, Error *error) {
    CudaContext *cuda = cuda_enter(context);
    return cuda_check(cudaStreamWaitEvent(cuda->stream, (cudaEvent_t)event, 0), "waiting for an event",
                      error);
}

static Status open_context(CudaContext *cuda, Error *error) {
    TRY(cuda_check(cudaSetDevice(cuda->device), "choosing a GPU", error));
    TRY(describe(cuda->device, &cuda->traits, cuda->id, error));
    cuda->traits.has_code_90 = cuda_code_is_for_9();
    cuda->traits.has_code_90a = cuda_code_is_for_90a() && cuda_capability(&cuda->traits) == 90;
    cuda->traits.library_scratch = cuda_attention_library_scratch;
    cuda->traits.context = cuda;
    cuda->workspace_bytes = workspace_size(&cuda->traits);
    TRY(open_lane(cuda, 0, error));
    set_lane(cuda, 0);
    size_t mail_bytes = MAIL_BYTES + MAIL_SUM_BYTES + MAIL_COUNTERS * sizeof(unsigned);
    TRY(cuda_check(cudaMalloc(&cuda->mail, mail_bytes), "memory for mail", error));
    TRY(cuda_check(cudaMemset(cuda->mail, 0, mail_bytes), "memory for mail", error));
    TRY(cuda_check(cudaHostAlloc((void **)&cuda->fault, sizeof *cuda->fault, cudaHostAllocMapped),
                   "pinned memory", error));
    memset(cuda->fault, 0, sizeof *cuda->fault);
    TRY(cuda_check(cudaHostGetDevicePointer((void **)&cuda->device_fault, cuda->fault, 0), "pinned memory",
                   error));
    TRY(cuda_check(cudaMallocHost((void **)&cuda->upload, (size_t)UPLOAD_SEGMENTS * UPLOAD_SEGMENT_BYTES),
                   "pinned memory", error));
    TRY(cuda_check(cudaMalloc((void **)&cuda->arrival, (size_t)UPLOAD_SEGMENTS * UPLOAD_SEGMENT_BYTES),
                   "memory for uploads", error));
    TRY(cuda_check(cudaStreamCreateWithFlags(&cuda->upload_stream, cudaStreamNonBlocking), "making a stream",
                   error));
    TRY(cuda_check(cudaEventCreateWithFlags(&cuda->has_arrived, cudaEventDisableTiming), "making an event",
                   error));
    TRY(cuda_check(cudaMallocHost((void **)&cuda->download, DOWNLOAD_BYTES), "pinned memory", error));
    TRY(cuda_check(cudaMallocHost((void **)&cuda->result, BACKEND_RESULTS * sizeof *cuda->result),
                   "pinned memory", error));
    cudaEvent_t *event[2] = {cuda->upload_done, cuda->result_sent};
    const int n_events[2] = {UPLOAD_SEGMENTS, BACKEND_RESULTS};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < n_events[k]; i++)
            TRY(cuda_check(cudaEventCreateWithFlags(&event[k][i], cudaEventDisableTiming), "making an event",
                           error));
    }
    if (!cuda->lt.Create) { /* it was left out */
        cuda_add_note(cuda, "GEMMs by pgpt's own plain kernels, which are slow",
                      "PGPT_WITHOUT leaves cuBLASLt out");
        return STATUS_OK;
    }
    return cuda_check_cublas(&cuda->lt, cuda->lt.Create(&cuda->cublas), "opening cuBLASLt", error);
}

Status backend_cuda_open(Backend *backend, int device, Error *error) {
    char reason[256];
    int n_devices = backend_cuda_devices(reason, sizeof reason);
    if (!n_devices) {
        return error_user(
            error, "--device cuda: %s; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use --device cpu",
            reason);
    }
    if (device < 0 || device >= n_devices) {
        return error_user(error, "--device cuda: there is no GPU %d; %d %s visible, from 0 on", device,
                          n_devices, n_devices == 1 ? "is" : "are");
    }
    CudaContext *cuda = (CudaContext *)calloc(1, sizeof *cuda);
    if (!cuda) return error_failed(error, "no memory for the CUDA backend");
    cuda->device = device;
    if (cuda_load_cublas(&cuda->lt, error) != STATUS_OK) {
        free(cuda);
        return error_prefix(error, "--device cuda: ");
    }
    if (open_context(cuda, error) != STATUS_OK) {
        close(cuda);
        return error_prefix(error, "GPU %d: ", device);
    }
    memset(backend, 0, sizeof *backend);
    backend->name = "cuda";
    backend->allocate = allocate;
    backend->release = release;
    backend->free_bytes = free_bytes;
    backend->upload = upload;
    backend->download = download;
    backend->kernel = kernel;
    backend->traits = cuda_traits(&cuda->traits);
    backend->synchronize = synchronize;
    backend->capture_begin = cuda_capture_begin;
    backend->capture_end = cuda_capture_end;
    backend->capture_abandon = cuda_capture_abandon;
    backend->replay = cuda_replay;
    backend->capture_free = cuda_capture_free;
    backend->event_new = cuda_event_new;
    backend->event_record = cuda_event_record;
    backend->elapsed_ms = cuda_elapsed_ms;
    backend->event_free = cuda_event_free;
    backend->send_result = send_result;
    backend->receive_result = receive_result;
    backend->allocate_pinned = cuda_allocate_pinned;
    backend->release_pinned = cuda_release_pinned;
    backend->copy_start = cuda_copy_start;
    backend->copy_wait = cuda_copy_wait;
    backend->close = close;
    backend->context = cuda;
    backend->n_threads = 1;
    memcpy(backend->device_id, cuda->id, sizeof backend->device_id);
    const char *wish = getenv("CUDA_LAUNCH_BLOCKING"); /* the driver obeys it too */
    backend->is_blocking = wish && atoi(wish) != 0;
    backend->blocking_wish = "set CUDA_LAUNCH_BLOCKING=1, and for a pipeline PGPT_WITHOUT=nccl,";
    return STATUS_OK;
}

Status backend_cuda_configure(Backend *backend, CudaSettings settings, Error *error) {
    CudaContext *cuda = cuda_enter(backend->context);
    cuda->traits.settings = settings;
    backend->traits = cuda_traits(&cuda->traits);
    int n_lanes = traits_n_lanes(&backend->traits);
    for (int lane = 1; lane < n_lanes; lane++) {
        if (!cuda->lane_stream[lane]) TRY(open_lane(cuda, lane, error));
    }
    backend->set_lane = n_lanes > 1 ? set_lane : NULL;
    backend->event_wait = n_lanes > 1 ? event_wait : NULL;
    return STATUS_OK;
}

bool cuda_traits_of_device(int device, CudaSettings settings, CudaTraits *gpu) {
    char reason[256];
    uint8_t id[BACKEND_ID_BYTES];
    Error error = {};
    int n_devices = backend_cuda_devices(reason, sizeof reason);
    if (device < 0 || device >= n_devices || describe(device, gpu, id, &error) != STATUS_OK) return false;
    gpu->has_code_90 = gpu->major >= 9; /* to ask for it would open the device */
    gpu->has_code_90a = cuda_code_is_for_90a() && cuda_capability(gpu) == 90;
    gpu->settings = settings;
    return true;
}

int backend_cuda_device(const Backend *backend) {
    return ((const CudaContext *)backend->context)->device;
}

void *backend_cuda_stream(const Backend *backend) {
    return ((const CudaContext *)backend->context)->lane_stream[0];
}

Status backend_cuda_take_pinned(void *context, size_t n_bytes, void **memory, Error *error) {
    cuda_enter(context);
    cudaError_t code = cudaMallocHost(memory, n_bytes ? n_bytes : 1);
    if (code != cudaErrorMemoryAllocation) return cuda_check(code, "pinned memory", error);
    cudaGetLastError(); /* it is not sticky */
    return error_failed(
        error,
        "no memory of the host for %.2f GiB that GPUs exchange through it; start fewer ranks on this host, or "
        "install NCCL and start one rank for each GPU",
        (double)n_bytes / 0x1p30);
}

void backend_cuda_give_pinned_back(void *context, void *memory) {
    cuda_enter(context);
    cudaFreeHost(memory);
}

Status backend_cuda_watch(const Backend *backend, WatcherCheck check, void *context, Error *error) {
    return watchers_add(&((CudaContext *)backend->context)->watchers, check, context, error);
}

void backend_cuda_unwatch(const Backend *backend, const void *context) {
    watchers_remove(&((CudaContext *)backend->context)->watchers, context);
}

const char *backend_cuda_note(const Backend *backend) {
    return ((const CudaContext *)backend->context)->note;
}

const char *backend_cuda_decode_way(const Backend *backend) {
    const char *way = ((const CudaContext *)backend->context)->decode_way;
    return way ? way : "";
}
