/* The 16-bit formats that weights travel in: f16 (IEEE half) and bf16 (the upper half of an f32). Rounding is to the
 * nearest, ties to even, as every other program rounds; reading back is safetensors_read_f32. */
#ifndef PGPT_TRAIN_HALF_H
#define PGPT_TRAIN_HALF_H

#include <stdint.h>

/* What came out of either: infinities stay, a NaN stays one with as much of its payload as fits. A finite number
 * beyond the format's range becomes an infinity. */
uint16_t half_f16_from_f32(float value);
uint16_t half_bf16_from_f32(float value);

#endif
