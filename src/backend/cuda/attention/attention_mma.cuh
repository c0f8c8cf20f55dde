/* The tile GEMMs of the tiled attention kernels, for 16-bit types and for f32: TileMma<T, HS> has the same
 * functions for all.
 *
 *   lane_of_first, lane_of_rows, lane_of_channels   bytes from a tile's first row to where this lane reads
 *                    it: as the first factor; as the second, its rows being the result's columns; as the
 *                    second, its channels being them
 *   load_first       the first factor: 16 rows, all channels
 *   multiply_rows    c[m] (16,N·8) += a[m] · rowsᵀ, over all channels; `shared` is the lane's place in the
 *                    first row
 *   multiply_weights c[m] (16,HS) += p[m] (16,N·8) · rows (N·8,HS), p being rounded to T
 *   row_dots         Σ a·b over all channels, of the thread's two rows, b (rows, stride) being in memory
 *
 * 16 bits: 16x8x16 on the tensor cores, sums in f32; ldmatrix brings four 8x8 matrices a time, turned where
 * the result's columns are a tile's channels.
 *
 * f32: 16x8x8 on the tensor cores, which take 11 bits of a factor's mantissa (TF32). Each factor is cut into
 * the 11 bits that they take and the rest, and a product is the sum of three: what is left out is 2^-21 of
 * it, little more than f32 itself loses. In a product of weights with rows, weights lie in pairs of keys, so
 * the keys are taken in another order: the two halves of a block of 8 are its even and its odd keys. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_MMA_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_MMA_CUH

#include "backend/cuda/attention/attention_tiles.cuh"

/* What a thread holds of a first factor: all of it, or, for f32, where to read it. */
template <typename T, int HS> struct First { unsigned part[HS / 16][4]; };
template <int HS> struct First<float, HS> { unsigned shared; };

/* ---- instructions ---- */

/* Lane L gives the address of row L%8 of matrix L/8. */
DEVICE void load_matrices(unsigned r[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
DEVICE void load_matrices_turned(unsigned r[4], unsigned shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared));
}
DEVICE float load_shared(unsigned shared) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(x) : "r"(shared));
    return x;
}

#define MULTIPLY_ADD(type, instruction)                                                                      \
    DEVICE void multiply_add(float c[4], const unsigned a[4], unsigned b0, unsigned b1, type) {              \
        asm volatile("mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "              \
                     "{%0,%1,%2,%3};\n"                                                                      \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                        \
    }
MULTIPLY_ADD(bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MULTIPLY_ADD(f16, "m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY_ADD(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef MULTIPLY_ADD

/* ---- 16 bits ---- */

template <typename T, int HS> struct TileMma {
    enum { STRIDE = tile_stride<T, HS>() };

    static __device__ __forceinline__ unsigned lane_of_first(void) {
        int lane = (int)threadIdx.x % WARP;
        return (unsigned)((lane % 16) * STRIDE + lane / 16 * 8) * 2;
    }
    static __device__ __forceinline__ unsigned lane_of_rows(void) {
        int lane = (int)threadIdx.x % WARP;
        return (unsigned)((lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8) * 2;
    }
    static __device__ __forceinline__ unsigned lane_of_channels(void) { return lane_of_first(); }

    static __device__ __forceinline__ void load_first(First<T, HS> &a, unsigned shared) {
#pragma unroll
        for (int k = 0; k < HS / 16; k++) load_matrices(a.part[k], shared + (unsigned)k * 32);
    }

    template <int M, int N>
    static __device__ __forceinline__ void multiply_rows(float c[M][N][4], const First<T, HS> a[M],
                                                         unsigned shared) {
#pragma unroll
        for (int k = 0; k < HS / 16; k++) {
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                unsigned b[4];
                load_matrices(b, shared + (unsigned)(n * 8 * STRIDE + k * 16) * 2);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_add(c[m][n], a[m].part[k], b[0], b[1], T());
                    multiply_add(c[m][n + 1], a[m].part[k], b[2], b[3], T());
                }
            }
        }
    }

    template <int M, int N>
    static __device__ __forceinline__ void multiply_weights(float c[M][HS / 8][4], const float p[M][N][4],
                                                            unsigned shared) {
#pragma unroll
        for (int k = 0; k < N; k += 2) {
            unsigned a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                a[m][0] = pair_of_floats(p[m][k][0], p[m][k][1], T());
                a[m][1] = pair_of_floats(p[m][k][2], p[m][k][3], T());
                a[m][2] = pair_of_floats(p[m][k + 1][0], p[m][k + 1][1], T());
                a[m][3] = pair_of_floats(p[m][k + 1][2], p[m][k + 1][3], T());
            }
#pragma unroll
            for (int n = 0; n < HS / 8; n += 2) {
                unsigned b[4];
                load_matrices_turned(b, shared + (unsigned)(k * 8 * STRIDE + n * 8) * 2);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    multiply_add(c[m][n], a[m], b[0], b[1], T());
                    multiply_add(c[m][n + 1], a[m], b[2], b[3], T());
                }
            }
        }
    }

    static __device__ __forceinline__ void row_dots(float sum[2], const First<T, HS> &a, const T *b,
                                                    int64_t stride, int row, const TiledShape &s) {
        int column = (int)threadIdx.x % 4 * 2;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int k = 0; k < HS / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at_row = row + i % 2 * 8, at = k * 16 + i / 2 * 8 + column;
                if (at_row >= s.n_positions || at >= s.head_size) continue;
                float2 x = pair_as_floats(a.part[k][i], T()),
                       y = pair_as_floats(*(const unsigned *)(b + at_row * stride + at), T());
                sum[i % 2] += x.x * y.x + x.y * y.y;
            }
        }
        sum[0] = row_sum(sum[0]);
        sum[1] = row_sum(sum[1]);
    }
};

/* ---- f32 ---- */

DEVICE unsigned head_of(float x) {
    return __float_as_uint(x) & 0xFFFFE000u;
}
DEVICE unsigned rest_of(float x) {
    return __float_as_uint(x - __uint_as_float(head_of(x)));
}

/* The small ones first. */
DEVICE void multiply_add_exactly(float c[4], const float a[4], float b0, float b1) {
    unsigned head[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; i++) head[i] = head_of(a[i]), rest[i] = rest_of(a[i]);
    multiply_add(c, rest, head_of(b0), head_of(b1), 0.0f);
    multiply_add(c, head, rest_of(b0), rest_of(b1), 0.0f);
    multiply_add(c, head, head_of(b0), head_of(b1), 0.0f);
}

template <int HS> struct TileMma<float, HS> {
    enum { STRIDE = tile_stride<float, HS>() };

    static __device__ __forceinline__ unsigned lane_of_first(void) {
        int lane = (int)threadIdx.x % WARP;
        return (unsigned)(lane / 4 * STRIDE + lane % 4) * 4;
    }
    static __device__ __forceinline__ unsigned lane_of_rows(void) { return lane_of_first(); }
    static __device__ __forceinline__ unsigned lane_of_channels(void) {
        int lane = (int)threadIdx.x % WARP;
        return (unsigned)(lane % 4 * 2 * STRIDE + lane / 4) * 4;
    }

    static __device__ __forceinline__ void load_first(First<float, HS> &a, unsigned shared) {
        a.shared = shared;
    }
    /* Element i of channels 8·k on. */
    static __device__ __forceinline__ float first_at(const First<float, HS> &a, int k, int i) {
        return load_shared(a.shared + (unsigned)(i % 2 * 8 * STRIDE + k * 8 + i / 2 * 4) * 4);
    }

    template <int M, int N>
    static __device__ __forceinline__ void multiply_rows(float c[M][N][4], const First<float, HS> a[M],
                                                         unsigned shared) {
#pragma unroll
        for (int k = 0; k < HS / 8; k++) {
            float first[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int i = 0; i < 4; i++) first[m][i] = first_at(a[m], k, i);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                unsigned at = shared + (unsigned)(n * 8 * STRIDE + k * 8) * 4;
                float b0 = load_shared(at), b1 = load_shared(at + 16);
#pragma unroll
                for (int m = 0; m < M; m++) multiply_add_exactly(c[m][n], first[m], b0, b1);
            }
        }
    }

    template <int M, int N>
    static __device__ __forceinline__ void multiply_weights(float c[M][HS / 8][4], const float p[M][N][4],
                                                            unsigned shared) {
#pragma unroll
        for (int k = 0; k < N; k++) {
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                unsigned at = shared + (unsigned)(k * 8 * STRIDE + n * 8) * 4;
                float b0 = load_shared(at), b1 = load_shared(at + STRIDE * 4);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const float first[4] = {p[m][k][0], p[m][k][2], p[m][k][1], p[m][k][3]};
                    multiply_add_exactly(c[m][n], first, b0, b1);
                }
            }
        }
    }

    static __device__ __forceinline__ void row_dots(float sum[2], const First<float, HS> &a, const float *b,
                                                    int64_t stride, int row, const TiledShape &s) {
        int column = (int)threadIdx.x % 4;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int k = 0; k < HS / 8; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at_row = row + i % 2 * 8, at = k * 8 + i / 2 * 4 + column;
                if (at_row >= s.n_positions || at >= s.head_size) continue;
                sum[i % 2] += first_at(a, k, i) * b[at_row * stride + at];
            }
        }
        sum[0] = row_sum(sum[0]);
        sum[1] = row_sum(sum[1]);
    }
};

#endif
