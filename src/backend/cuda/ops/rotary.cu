/* rotary: pairs of channels of every query and key are turned by an angle that grows with the position.
 *
 * Floor over the copy bandwidth: qkv read and written, 4 bytes an element in 16 bits; in place, the values
 * stay where they are. A block takes a row: its threads first make the sines and cosines of the row's
 * position, HS/2 of each, in shared memory, then turn all heads with them. The angle is brought near zero in
 * double, since a position of many thousands times a frequency has no digits left for a sine in f32. */
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 128 };

typedef struct {
    int64_t n_positions, width; /* T, elements of a row */
    int n_turned, head_size;    /* heads that are turned */
    RowPositions positions;
    bool has_places;       /* `start` has the position of each row */
    double frequency_step; /* frequency i is 2^(step·i) */
    float direction;       /* -1 turns back */
    bool aligned, add, in_place;
} RotaryShape;

DEVICE void fill_table(float *cosine, float *sine, int pairs, double position, const RotaryShape &s) {
    const double TURN = 6.283185307179586476925;
    for (int i = (int)threadIdx.x; i < pairs; i += THREADS) {
        double angle = position * exp2(s.frequency_step * i);
        angle -= TURN * rint(angle / TURN);
        sincosf((float)angle, &sine[i], &cosine[i]);
        sine[i] *= s.direction;
    }
    __syncthreads();
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    rotary_kernel(const T *x, const int32_t *start, T *y, RotaryShape s) {
    extern __shared__ float table[]; /* (2, HS/2): cosines, sines */
    int64_t n = blockIdx.x;
    int pairs = s.head_size / 2, vectors = (pairs + VECTOR - 1) / VECTOR;
    float *cosine = table, *sine = table + pairs;
    int64_t position = 0;
    if (s.has_places) position = start[n];
    else position = place_of(s.positions, n % s.n_positions) + (start ? start[n / s.n_positions] : 0);
    fill_table(cosine, sine, pairs, (double)position, s);
    const T *row = x + n * s.width;
    T *out = y + n * s.width;
    for (int i = (int)threadIdx.x; i < s.n_turned * vectors; i += THREADS) {
        int head = i / vectors, c = (i - head * vectors) * VECTOR, at = head * s.head_size + c;
        float first[VECTOR], second[VECTOR];
        load8(row + at, pairs - c, s.aligned, first);
        load8(row + at + pairs, pairs - c, s.aligned, second);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            int pair = c + k < pairs ? c + k : 0;
            float turned = first[k] * cosine[pair] - second[k] * sine[pair];
            second[k] = second[k] * cosine[pair] + first[k] * sine[pair];
            first[k] = turned;
        }
        write8(out + at, pairs - c, s.aligned, first, s.add);
        write8(out + at + pairs, pairs - c, s.aligned, second, s.add);
    }
    if (s.in_place && !s.add) return;
    for (int64_t c = (int64_t)s.n_turned * s.head_size + threadIdx.x * VECTOR; c < s.width;
         c += THREADS * VECTOR) {
        float v[VECTOR];
        load8(row + c, s.width - c, s.aligned, v);
        write8(out + c, s.width - c, s.aligned, v, s.add);
    }
}

extern "C" Status cuda_rotary(const KernelCall *call, Error *error) {
    const RotaryAttributes *a = (const RotaryAttributes *)call->node->attributes;
    const Tensor *qkv = call->node->input[0];
    if (!same_types(qkv, call->node->output[0])) return cuda_unsupported(call, call->node->output[0], error);
    int64_t rows = shape_rows(qkv->shape);
    if (!rows) return STATUS_OK;
    RotaryShape s = {qkv->shape.dim[1],
                     qkv->shape.dim[2],
                     a->n_heads + a->n_kv_heads,
                     a->head_size,
                     a->positions,
                     call->node->input[1] && call->node->input[1]->shape.n_dims == 2,
                     -2.0 * log2((double)a->theta) / a->head_size,
                     a->inverse ? -1.0f : 1.0f,
                     a->head_size % (2 * VECTOR) == 0 && is_aligned(call->in[0]) && is_aligned(call->out[0]),
                     call->add[0],
                     call->in[0] == call->out[0]};
    FOR_TYPE(qkv, T,
             rotary_kernel<T>
             <<<(unsigned)rows, THREADS, (size_t)a->head_size * sizeof(float), cuda_context(call)->stream>>>(
                 (const T *)call->in[0], (const int32_t *)call->in[1], (T *)call->out[0], s));
    return cuda_launched("rotary", error);
}
