/* A device that only keeps books. Allocation gives NULL, which the executor turns into NULL addresses; the
 * one kernel adds the cost of its node to the counts in the backend's context, behind which the
 * description of the device that it stands in for is kept. */
#include "backend/null/null.h"

#include <stdlib.h>
#include <string.h>

static Status null_allocate(void *context, size_t n_bytes, const char *what, void **memory, Error *error) {
    (void)what, (void)error;
    NullCounts *counts = context;
    counts->allocated_bytes += n_bytes;
    if (counts->peak_bytes < counts->allocated_bytes) counts->peak_bytes = counts->allocated_bytes;
    *memory = NULL;
    return STATUS_OK;
}

static void null_release(void *context, void *memory, size_t n_bytes) {
    (void)memory;
    NullCounts *counts = context;
    counts->allocated_bytes -= n_bytes < counts->allocated_bytes ? n_bytes : counts->allocated_bytes;
}

static size_t null_free_bytes(void *context) {
    (void)context;
    return SIZE_MAX;
}

static Status null_upload(void *context, void *device, const void *host, size_t n_bytes, Error *error) {
    (void)device, (void)host, (void)error;
    ((NullCounts *)context)->uploaded += n_bytes;
    return STATUS_OK;
}

/* Nothing was computed, so there is nothing to give; zeros keep the caller's memory defined. */
static Status null_download(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    (void)device, (void)error;
    ((NullCounts *)context)->downloaded += n_bytes;
    if (n_bytes) memset(host, 0, n_bytes);
    return STATUS_OK;
}

static Status null_run(const KernelCall *call, Error *error) {
    (void)error;
    NullCounts *counts = call->context;
    Cost cost = op_cost(call->node);
    counts->n_instructions++;
    counts->flops += cost.flops;
    counts->bytes += cost.bytes;
    return STATUS_OK;
}

static Kernel null_kernel(void *context, const Node *node) {
    (void)context, (void)node;
    return null_run;
}

static void null_close(void *context) {
    free(context);
}

Status backend_null_open_as(Backend *backend, const BackendTraits *traits, Error *error) {
    const size_t aligned = (sizeof(NullCounts) + 15) / 16 * 16;
    NullCounts *counts = calloc(1, aligned + traits->about_bytes);
    if (!counts) return error_failed(error, "no memory for the null backend");
    *backend = (Backend){
        .name = traits->name,
        .traits = *traits,
        .only_plans = true,
        .allocate = null_allocate,
        .release = null_release,
        .free_bytes = null_free_bytes,
        .upload = null_upload,
        .download = null_download,
        .kernel = null_kernel,
        .close = null_close,
        .context = counts,
        .n_threads = traits->n_threads,
    };
    if (traits->about_bytes)
        backend->traits.about = memcpy((char *)counts + aligned, traits->about, traits->about_bytes);
    return STATUS_OK;
}

Status backend_null_open(Backend *backend, Error *error) {
    BackendTraits traits = TRAITS_DEVICE;
    traits.name = "null";
    return backend_null_open_as(backend, &traits, error);
}

NullCounts backend_null_counts(const Backend *backend) {
    return *(const NullCounts *)backend->context;
}
