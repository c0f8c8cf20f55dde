/* What passes between the host and a program's tensors. A device may run behind the host: an upload is
 * ordered behind what was started, a download waits for it, and a result can be sent for without waiting.
 * Where the null backend computes nothing there are no addresses, and nothing is copied. */
#include "graph/executor.h"

#include "base/half.h"

Status executor_upload_input(Executor *executor, const Tensor *tensor, int frame, const void *host,
                             Error *error) {
    const Backend *backend = executor->memory->backend;
    void *to = executor_address_in(executor, tensor, frame);
    executor->memory->n_input_writes++;
    return executor_found_late(
        executor, backend->upload(backend->context, to, host, tensor_bytes(tensor), error), error);
}

Status executor_upload(Executor *executor, const Tensor *tensor, const void *host, Error *error) {
    return executor_upload_part(executor, tensor, 0, tensor_bytes(tensor), host, error);
}

Status executor_download(Executor *executor, const Tensor *tensor, void *host, Error *error) {
    ActivityEntry entry = {.kind = ACTIVITY_WAIT, .name = "wait for the device", .number = -1};
    bool is_behind = executor->memory->backend->event_new; /* elsewhere it is a copy */
    Activity *activity = is_behind ? executor->activity : NULL;
    activity_begin(activity, ACTIVITY_HOST, &entry);
    Status status = executor_download_part(executor, tensor, 0, tensor_bytes(tensor), host, error);
    activity_end(activity, ACTIVITY_HOST);
    return status;
}

bool executor_sends(const Executor *executor) {
    return executor->memory->backend->send_result != NULL;
}

Status executor_send(Executor *executor, const Tensor *tensor, int place, Error *error) {
    const Backend *backend = executor->memory->backend;
    return backend->send_result(backend->context, executor_address(executor, tensor), tensor_bytes(tensor),
                                place, error);
}

Status executor_receive(Executor *executor, const Tensor *tensor, int place, void *host, Error *error) {
    const Backend *backend = executor->memory->backend;
    ActivityEntry entry = {.kind = ACTIVITY_WAIT, .name = "wait for the device", .number = -1};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    Status status = backend->receive_result(backend->context, host, tensor_bytes(tensor), place, error);
    activity_end(executor->activity, ACTIVITY_HOST);
    return executor_found_late(executor, status, error);
}

/* ---- parts that lie elsewhere */

typedef Status (*CopyPart)(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                           void *host, Error *error);

/* Each home's share of bytes first_byte .. of the tensor. */
static Status copy_homes(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                         char *host, CopyPart copy, Error *error) {
    for (int i = 0; i < tensor->n_homes; i++) {
        const TensorHome *home = &tensor->homes[i];
        size_t first = first_byte > home->first_byte ? first_byte : home->first_byte;
        size_t end = first_byte + n_bytes, home_end = home->first_byte + home->n_bytes;
        if (end > home_end) end = home_end;
        if (first >= end) continue;
        TRY(copy(executor, home->home, first - home->first_byte, end - first, host + (first - first_byte),
                 error));
    }
    return STATUS_OK;
}

static Status upload_home(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                          void *host, Error *error) {
    return executor_upload_part(executor, tensor, first_byte, n_bytes, host, error);
}

/* The tensor lies beside what kernels work on: the mover brings it. */
static bool is_moved(const Executor *executor, const Tensor *tensor) {
    return place_is_beside(tensor_root((Tensor *)tensor)->place) && executor->memory->mover;
}

static Status move_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                        void *host, bool is_out, Error *error) {
    Mover *mover = executor->memory->mover;
    const Backend *backend = executor->memory->backend;
    if (backend->synchronize) /* kernels reach this memory, too */
        TRY(executor_found_late(executor, backend->synchronize(backend->context, error), error));
    char *address = executor_address(executor, tensor);
    MoveEnd there = mover_end(mover, tensor, address + first_byte), here = {host, MEMORY_HOST};
    return is_out ? mover_copy(mover, here, there, n_bytes, error)
                  : mover_copy(mover, there, here, n_bytes, error);
}

Status executor_upload_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                            const void *host, Error *error) {
    if (tensor->homes)
        return copy_homes(executor, tensor, first_byte, n_bytes, (char *)host, upload_home, error);
    if (is_moved(executor, tensor))
        return move_part(executor, tensor, first_byte, n_bytes, (void *)host, true, error);
    const Backend *backend = executor->memory->backend;
    char *to = executor_address(executor, tensor);
    if (to) to += first_byte; /* there is none where nothing is computed */
    executor->memory->n_input_writes += tensor->place == PLACE_INPUT;
    return executor_found_late(executor, backend->upload(backend->context, to, host, n_bytes, error), error);
}

Status executor_download_part(Executor *executor, const Tensor *tensor, size_t first_byte, size_t n_bytes,
                              void *host, Error *error) {
    if (tensor->homes)
        return copy_homes(executor, tensor, first_byte, n_bytes, host, executor_download_part, error);
    if (is_moved(executor, tensor))
        return move_part(executor, tensor, first_byte, n_bytes, host, false, error);
    const Backend *backend = executor->memory->backend;
    const char *from = executor_address(executor, tensor);
    if (from) from += first_byte; /* there is none where nothing is computed */
    return executor_found_late(executor, backend->download(backend->context, host, from, n_bytes, error),
                               error);
}

enum { PIECE = 1 << 15 }; /* elements that are converted at a time */

Status executor_upload_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                           const float *values, Error *error) {
    size_t size = dtype_info(tensor->dtype)->n_bytes;
    if (tensor->dtype == DTYPE_F32)
        return executor_upload_part(executor, tensor, (size_t)first * size, (size_t)n * size, values, error);
    uint16_t piece[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        for (int64_t i = 0; i < count; i++)
            piece[i] = tensor->dtype == DTYPE_BF16 ? half_bf16_from_f32(values[done + i])
                                                   : half_f16_from_f32(values[done + i]);
        TRY(executor_upload_part(executor, tensor, (size_t)(first + done) * size, (size_t)count * size, piece,
                                 error));
    }
    return STATUS_OK;
}

Status executor_download_f32(Executor *executor, const Tensor *tensor, int64_t first, int64_t n,
                             float *values, Error *error) {
    size_t size = dtype_info(tensor->dtype)->n_bytes;
    if (tensor->dtype == DTYPE_F32)
        return executor_download_part(executor, tensor, (size_t)first * size, (size_t)n * size, values,
                                      error);
    uint16_t piece[PIECE] = {0}; /* what lies in no home of the tensor is 0 */
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t count = n - done < PIECE ? n - done : PIECE;
        TRY(executor_download_part(executor, tensor, (size_t)(first + done) * size, (size_t)count * size,
                                   piece, error));
        for (int64_t i = 0; i < count; i++)
            values[done + i] =
                tensor->dtype == DTYPE_BF16 ? half_bf16_to_f32(piece[i]) : half_f16_to_f32(piece[i]);
    }
    return STATUS_OK;
}
