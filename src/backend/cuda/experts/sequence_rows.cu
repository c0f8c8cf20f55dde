/* sequence_rows: this rank's rows at their places in whole sequences, and back, in words of 4 bytes.
 *
 * Floor: what is read and written over the copy bandwidth; a few words a token. A thread has a word. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

/* ops.h's row_at_place, on the device. */
DEVICE int64_t row_at(const RowPositions &positions, int64_t n_rows, int64_t place) {
    int64_t t = place - positions.start;
    if (t >= positions.head) t -= positions.skip;
    return t >= 0 && t < n_rows && place_of(positions, t) == place ? t : -1;
}

/* Rows of y that nobody has are 0. Added, it is of f32: a gradient. */
static __global__ void __launch_bounds__(THREADS)
    sequence_kernel(const unsigned *x, unsigned *y, const SequenceRowsAttributes a, int64_t columns,
                    int64_t count, bool add) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / columns;
    if (i >= count) return;
    int64_t length = a.inverse ? a.n_rows : a.n_positions, from = a.inverse ? a.n_positions : a.n_rows;
    int64_t b = row / length, t = row % length,
            source = a.inverse ? place_of(a.positions, t) : row_at(a.positions, a.n_rows, t);
    unsigned word = source >= 0 ? x[(b * from + source) * columns + i % columns] : 0;
    if (add) word = __float_as_uint(__uint_as_float(word) + __uint_as_float(y[i]));
    y[i] = word;
}

extern "C" Status cuda_sequence_rows(const KernelCall *call, Error *error) {
    const SequenceRowsAttributes *a = (const SequenceRowsAttributes *)call->node->attributes;
    const Tensor *y = call->node->output[0];
    int64_t count = tensor_count(y);
    if (!count) return STATUS_OK;
    sequence_kernel<<<blocks_for(count, THREADS), THREADS, 0, cuda_context(call)->stream>>>(
        (const unsigned *)call->in[0], (unsigned *)call->out[0], *a, shape_columns(y->shape), count,
        call->add[0]);
    return cuda_launched("rows of sequences", error);
}
