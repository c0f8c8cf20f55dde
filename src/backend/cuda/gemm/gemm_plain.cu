/* GEMMs without cuBLASLt, for whoever leaves it out (PGPT_WITHOUT=cublas): to find out whether a result is
 * the library's doing, or for tools that cannot look into its kernels. Right, and slow: a thread a sum, no
 * memory shared by threads.
 *
 * Floor: 2·rows·columns·inner FLOPs over the rate without tensor cores. It is far from that: every term is
 * loaded anew. */
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/runtime/device.cuh"

enum { PLAIN_THREADS = 256, TERMS_AT_ONCE = 64 };

/* The factor with a row for each row of the result, or with a column for each column. */
typedef struct {
    Memory memory;
    int64_t step, term; /* elements from one row (column) to the next, and from one term to the next */
} Factor;

typedef struct {
    Factor a, b;
    Memory addend, c;
    int64_t rows, columns, inner, stride; /* of c and the addend */
} PlainCall;

/* Long sums are sums of sums, which lose less. */
static __global__ void __launch_bounds__(PLAIN_THREADS) plain_kernel(const __grid_constant__ PlainCall p) {
    int64_t i = (int64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x, row = i / p.columns,
            column = i % p.columns;
    if (row >= p.rows) return;
    float sum = 0.0f;
    for (int64_t first = 0; first < p.inner; first += TERMS_AT_ONCE) {
        int64_t end = first + TERMS_AT_ONCE < p.inner ? first + TERMS_AT_ONCE : p.inner;
        float part = 0.0f;
        for (int64_t k = first; k < end; k++)
            part = fmaf(read_element(p.a.memory, row * p.a.step + k * p.a.term),
                        read_element(p.b.memory, column * p.b.step + k * p.b.term), part);
        sum += part;
    }
    int64_t at = row * p.stride + column;
    if (p.addend.data) sum += read_element(p.addend, at);
    write_element(p.c, at, sum, false);
}

/* `length`: of a row in memory, if the rows touch. */
static Factor factor(const void *data, DType dtype, int64_t stride, int64_t length, bool terms_touch) {
    Factor f = {};
    int64_t step = stride ? stride : length;
    f.memory.data = (void *)data;
    f.memory.dtype = dtype;
    f.step = terms_touch ? step : 1;
    f.term = terms_touch ? 1 : step;
    return f;
}

extern "C" Status cuda_gemm_plain(const CudaContext *context, const Gemm *p, Error *error) {
    if (p->epilogue != EPILOGUE_NONE) return error_failed(error, "a plain GEMM has no epilogue");
    PlainCall call = {};
    call.a = factor(p->a, p->a_type, p->a_stride, p->transpose_a ? p->rows : p->inner, !p->transpose_a);
    call.b = factor(p->b, p->b_type, p->b_stride, p->transpose_b ? p->inner : p->columns, p->transpose_b);
    call.addend.data = (void *)p->addend, call.addend.dtype = p->c_type;
    call.c.data = p->c, call.c.dtype = p->c_type;
    call.rows = p->rows, call.columns = p->columns, call.inner = p->inner;
    call.stride = p->c_stride ? p->c_stride : p->columns;
    plain_kernel<<<blocks_for(p->rows * p->columns, PLAIN_THREADS), PLAIN_THREADS, 0, context->stream>>>(
        call);
    return cuda_launched("GEMM", error);
}
