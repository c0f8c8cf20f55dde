/* pack: the parts of one dimension laid one after the other, and back.
 *
 * Floor: all bytes read and written once over the copy bandwidth. A thread takes one element at a time,
 * neighbours take neighbours on both sides but where a run ends; the borders travel with the launch. */
#include "backend/cuda/runtime/device.cuh"
#include "ops/ops.h"

enum { THREADS = 256 };

template <typename T>
static __global__ void pack_kernel(const T *x, T *y, int64_t count, PackAttributes a, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    int part = 0;
    while (i >= a.outer * a.part[part + 1] * a.inner) part++;
    int64_t run = (a.part[part + 1] - a.part[part]) * a.inner;
    int64_t at = i - a.outer * a.part[part] * a.inner, within = at % run;
    int piece = part;
    while (within >= (a.border[piece + 1] - a.border[piece]) * a.inner) {
        within -= (a.border[piece + 1] - a.border[piece]) * a.inner;
        piece += a.n_parts;
    }
    int64_t plain = (at / run * a.part[a.n_parts] + a.border[piece]) * a.inner + within;
    int64_t from = a.inverse ? i : plain, to = a.inverse ? plain : i;
    write_element(y + to, as_float(x[from]), add);
}

extern "C" Status cuda_pack(const KernelCall *call, Error *error) {
    const Tensor *y = call->node->output[0];
    if (!same_types(y, call->node->input[0])) return cuda_unsupported(call, y, error);
    int64_t count = tensor_count(y);
    if (!count) return STATUS_OK;
    const PackAttributes *a = (const PackAttributes *)call->node->attributes;
    FOR_TYPE(y, T,
             pack_kernel<T><<<blocks_for(count, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (T *)call->out[0], count, *a, call->add[0]));
    return cuda_launched("pack", error);
}
