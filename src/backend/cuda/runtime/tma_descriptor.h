/* TMA descriptors (tensor maps): what the tensor memory accelerator of compute capability 9 is told of a
 * matrix, of which it copies boxes.
 *
 *     CUtensorMap map;
 *     uint64_t size[2] = {columns, rows}, stride[1] = {columns * 2};    innermost first, strides in bytes
 *     uint32_t box[2] = {64, 16};
 *     if (!cuda_tma_descriptor(&map, matrix, 2, size, stride, box)) ...
 *
 * Elements are 16 bits wide, rows of a box 32 or 64 elements. Boxes are swizzled in shared memory: in row r
 * of a box of 64, 16-byte vector v goes to place v ^ (r % 8); of a box of 32, to place v ^ (r / 2 % 4). What
 * is beyond the matrix is read as zeros and not written. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_TMA_DESCRIPTOR_H
#define PGPT_BACKEND_CUDA_RUNTIME_TMA_DESCRIPTOR_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Does the driver make them? */
bool cuda_tma_exists(void);

/* False where it has not, or does not take this one. */
bool cuda_tma_descriptor(CUtensorMap *map, const void *data, int n_dimensions, const uint64_t *size,
                         const uint64_t *stride, const uint32_t *box);

#ifdef __cplusplus
}
#endif

#endif
