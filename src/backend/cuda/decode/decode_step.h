/* A decoding step as its kernels have it (decode_call.h), with the mail that its blocks send each other. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_STEP_H
#define PGPT_BACKEND_CUDA_DECODE_DECODE_STEP_H

#include "backend/cuda/decode/decode_call.h"
#include "backend/cuda/decode/decode_mail.cuh"

/* The same, for a kernel of its own size. */
struct FewWarpsCall : DecodeCall {
    enum { MOST_WARPS = FEW_WARPS };
};
struct ManyWarpsCall : DecodeCall {
    enum { MOST_WARPS = MANY_WARPS };
};

#endif
