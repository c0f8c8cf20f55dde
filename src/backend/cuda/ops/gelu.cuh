/* The value and the slope of gelu for one element, for every kernel that ends in one. */
#ifndef PGPT_BACKEND_CUDA_OPS_GELU_CUH
#define PGPT_BACKEND_CUDA_OPS_GELU_CUH

#include "backend/cuda/runtime/device.cuh"

/* 1/(1+e^-x); *complement is 1 minus it, without cancellation. Beyond 80 both are 0 and 1 as floats see
 * them. */
DEVICE float sigmoid(float x, float *complement) {
    float e = __expf(-fmaxf(fminf(x, 80.0f), -80.0f)), s = __fdividef(1.0f, 1.0f + e);
    *complement = e * s;
    return x != x ? x : s; /* not a number stays one */
}

template <Activation KIND> DEVICE float gelu_forward(float x) {
    if (KIND == ACTIVATION_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    if (KIND == ACTIVATION_NONE) return x;
    float rest, twice = 1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f); /* twice the argument of the tanh */
    return x * sigmoid(twice, &rest);
}

/* Where the kind is known when the kernel runs only. */
DEVICE float activate(Activation activation, float x) {
    if (activation == ACTIVATION_GELU_TANH) return gelu_forward<ACTIVATION_GELU_TANH>(x);
    if (activation == ACTIVATION_GELU_ERF) return gelu_forward<ACTIVATION_GELU_ERF>(x);
    return x;
}

template <Activation KIND> DEVICE float gelu_backward(float x) {
    if (KIND == ACTIVATION_GELU_ERF) {
        float density = 0.39894228f * __expf(-0.5f * x * x);
        return fmaf(x, density, 0.5f * (1.0f + erff(x * 0.70710678f)));
    }
    if (KIND == ACTIVATION_NONE) return 1.0f;
    float rest, twice = 1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f);
    float s = sigmoid(twice, &rest), slope = 1.5957691216f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
    return fmaf(x * slope, s * rest, s);
}

/* ---- by tanh, for results that are rounded to 16 bits, where the arithmetic has to hide behind GEMMs ----
 * The same sigmoid in fewer instructions, exact to 2^-18 or so. Beyond the range of the exponential it is 0
 * or 1. */

/* The exponent is -2u over the logarithm of 2. */
DEVICE float gelu_tanh_sigmoid(float x, float square) {
    float s, e = exp2_fast(x * fmaf(square, -0.1029432396f, -2.3022081982f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
}
DEVICE float gelu_tanh_rounded(float x) {
    return x * gelu_tanh_sigmoid(x, x * x);
}
DEVICE float gelu_tanh_slope_rounded(float x) {
    float square = x * x, s = gelu_tanh_sigmoid(x, square), rest = fmaf(-s, s, s); /* s·(1 - s) */
    return fmaf(x * fmaf(square, 0.2140644488f, 1.5957691216f), rest, s);
}

#endif
