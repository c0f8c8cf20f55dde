/* depth_select: the K-th best score of a sequence is found digit by digit (radix selection): of the scores as
 * whole numbers in their order, a histogram of the highest byte says which byte the K-th has, one of the next
 * byte among those says the next, and after four passes it is known. Then the positions are walked once.
 *
 * depth_admit: one walk. Sequences are shared out among the threads. */
#include "backend/cpu/kernels.h"
#include "ops/depth/depth.h"

enum { DIGIT_BITS = 8, N_DIGITS = 1 << DIGIT_BITS };

/* The score that the K-th best has, as a whole number, and how many of those that have it are to be taken. */
typedef struct {
    uint32_t order;
    int64_t n_equal;
} Threshold;

static Threshold find_threshold(const float *score, int64_t T, int64_t K) {
    uint32_t prefix = 0, mask = 0;
    int64_t left = K;
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        int32_t count[N_DIGITS] = {0};
        for (int64_t t = 0; t < T; t++) {
            uint32_t order = depth_order(score[t]);
            if ((order & mask) == prefix) count[order >> shift & (N_DIGITS - 1)]++;
        }
        int digit = N_DIGITS - 1;
        while (digit > 0 && count[digit] < left) left -= count[digit--];
        prefix |= (uint32_t)digit << shift;
        mask |= (uint32_t)(N_DIGITS - 1) << shift;
    }
    return (Threshold){prefix, left};
}

Status cpu_depth_select(const KernelCall *call, Error *error) {
    (void)error;
    int64_t B = call->node->input[0]->shape.dim[0], T = call->node->input[0]->shape.dim[1];
    int64_t K = call->node->output[0]->shape.dim[1];
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, 8 * B * T))
    for (int64_t b = 0; b < B; b++) {
        const float *score = (const float *)call->in[0] + b * T;
        int32_t *rows = (int32_t *)call->out[0] + b * K, *slot = (int32_t *)call->out[1] + b * T, n = 0;
        Threshold threshold = find_threshold(score, T, K);
        for (int64_t t = 0; t < T; t++) {
            uint32_t order = depth_order(score[t]);
            bool is_chosen = order > threshold.order || (order == threshold.order && threshold.n_equal-- > 0);
            slot[t] = is_chosen ? n : -1;
            if (is_chosen) rows[n++] = (int32_t)t;
        }
    }
    return STATUS_OK;
}

/* The reference is as fast as it can be. */
Status cpu_depth_admit(const KernelCall *call, Error *error) {
    return OP_DEPTH_ADMIT.reference(call, error);
}
