/* depth_score: two products of every row, which is read once. */
#include "backend/cpu/kernels.h"
#include "ops/depth/depth.h"

typedef struct {
    vec router, predictor;
} Pair;

CPU_INLINE Pair dot_step(Pair sum, const float *x, const float *router, const float *predictor, int lanes) {
    vec v = lanes_load(x, lanes);
    sum.router = vec_fma(v, lanes_load(router, lanes), sum.router);
    sum.predictor = vec_fma(v, lanes_load(predictor, lanes), sum.predictor);
    return sum;
}

Status cpu_depth_score(const KernelCall *call, Error *error) {
    (void)error;
    const float *stream = call->in[0], *router = call->in[1], *predictor = call->in[2], *bias = call->in[3];
    float *score = call->out[0], *guess = call->out[1]; /* (N) each */
    int64_t N = shape_rows(call->node->input[0]->shape), C = shape_columns(call->node->input[0]->shape);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, N *C))
    for (int64_t n = 0; n < N; n++) {
        const float *x = stream + n * C;
        Pair sum[2] = {{{0}, {0}}, {{0}, {0}}};
        int64_t i = 0;
        for (; i + 2 * VEC_LANES <= C; i += 2 * VEC_LANES) {
            sum[0] = dot_step(sum[0], x + i, router + i, predictor + i, VEC_LANES);
            sum[1] = dot_step(sum[1], x + i + VEC_LANES, router + i + VEC_LANES, predictor + i + VEC_LANES,
                              VEC_LANES);
        }
        for (; i + VEC_LANES <= C; i += VEC_LANES)
            sum[0] = dot_step(sum[0], x + i, router + i, predictor + i, VEC_LANES);
        if (i < C) sum[1] = dot_step(sum[1], x + i, router + i, predictor + i, (int)(C - i));
        float r = vec_sum(sum[0].router + sum[1].router);
        float g = vec_sum(sum[0].predictor + sum[1].predictor) + *bias;
        score[n] = call->add[0] ? score[n] + r : r;
        guess[n] = call->add[1] ? guess[n] + g : g;
    }
    return STATUS_OK;
}
