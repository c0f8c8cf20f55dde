/* lamb: two passes. The first is AdamW's over gradient, weight and moments (24 bytes an element) with two
 * sums; the second makes the step again of moments and weight (16 bytes), because reading it back would be
 * more.
 *
 * What a run (LAMB_RUN) has of a matrix is cut into blocks by its elements alone, each block is one thread's,
 * and sums are added up in the order of the blocks: they do not depend on the number of threads. */
#include "ops/update/lamb.h"
#include "backend/cpu/update/moments.h"

enum { BLOCK = 8192 };

typedef struct {
    float beta1, beta2, new1, new2; /* m = beta1·m + new1·g, v = beta2·v + new2·g² */
    float scale, root, epsilon, correction, decay, step;
} LambConstants;

static LambConstants constants_of(const KernelCall *call) {
    const LambAttributes *a = call->node->attributes;
    const float *hyper = call->in[1], *factor = call->in[2]; /* (N_HYPER), [(1)] */
    return (LambConstants){
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .new1 = (float)(1.0 - (double)a->beta1),
        .new2 = (float)(1.0 - (double)a->beta2),
        .scale = factor ? *factor : 1.0f,
        .root = (float)sqrt((double)hyper[HYPER_CORRECTION2]),
        .correction = hyper[HYPER_CORRECTION1],
        .epsilon = a->epsilon,
    };
}

/* Elements first .. end - 1 of the call that are of one tensor, or of none. */
typedef struct {
    int64_t first, end;
    const TensorSpan *span; /* or NULL */
} Segment;

/* The segment that begins at `first` and ends with its run at the latest; *index is the span to look at, 0 at
 * the beginning. */
static Segment next_segment(const LambAttributes *a, int64_t first, int64_t count, int *index) {
    int64_t shift = a->elements.first_element, run_end = lamb_run_end(a->elements.n_before, first);
    if (count > run_end) count = run_end;
    while (*index < a->spans.n_spans && a->spans.span[*index].end - shift <= first) (*index)++;
    const TensorSpan *span = *index < a->spans.n_spans ? &a->spans.span[*index] : NULL;
    if (span && span->first - shift > first) { /* what lies before it */
        int64_t end = span->first - shift;
        return (Segment){first, end < count ? end : count, NULL};
    }
    int64_t end = span ? span->end - shift : count;
    return (Segment){first, end < count ? end : count, span};
}

/* Not a number is not small: it stays, and is seen. */
CPU_INLINE vec flush(vec moment, vec magnitude) {
    return (vec)(~(magnitude <= vec_set(1e-37f)) & (veci)moment);
}

CPU_INLINE vec direction(const LambConstants *c, vec m, vec v, vec w) {
    vec deviation = vec_fma(vec_sqrt(v), vec_set(c->root), vec_set(c->epsilon));
    return vec_fma(vec_set(c->decay), w, vec_set(c->correction) * m / deviation);
}

/* What a pass is made of, and the sums that it makes. */
typedef struct {
    LambConstants c;
    bool moves_moments; /* or takes them as they are */
    double *sums;       /* (UPDATE_SUMS), or NULL */
} LambPass;

typedef struct {
    vec weight, step;
} LambSums;

CPU_INLINE void measure_step(const LambPass *pass, const float *gradient, const float *parameter,
                             float *moment1, float *moment2, LambSums *sums, int lanes) {
    const LambConstants *c = &pass->c;
    vec m = lanes_load(moment1, lanes), v = lanes_load(moment2, lanes);
    if (pass->moves_moments) {
        vec g = lanes_load(gradient, lanes) * vec_set(c->scale);
        m = vec_fma(vec_set(c->beta1), m, vec_set(c->new1) * g);
        v = vec_fma(vec_set(c->beta2), v, vec_set(c->new2) * g * g);
        m = flush(m, vec_max(m, -m));
        v = flush(v, v);
        lanes_store(moment1, m, lanes);
        lanes_store(moment2, v, lanes);
    }
    vec w = lanes_load(parameter, lanes);
    vec u = direction(c, m, v, w); /* 0 in lanes that are not there: so are m and w */
    sums->weight = vec_fma(w, w, sums->weight);
    sums->step = vec_fma(u, u, sums->step);
}

static void measure(const KernelCall *call, const void *constants, int64_t first, int64_t end, float *moment1,
                    float *moment2) {
    const LambPass pass = *(const LambPass *)constants;
    const float *gradient = (const float *)call->in[0] + first,
                *parameter = (const float *)call->in[3] + first;
    LambSums both = {0};
    int64_t i = 0, n = end - first;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        measure_step(&pass, gradient + i, parameter + i, moment1 + i, moment2 + i, &both, VEC_LANES);
    if (i < n)
        measure_step(&pass, gradient + i, parameter + i, moment1 + i, moment2 + i, &both, (int)(n - i));
    if (!pass.sums) return;
    pass.sums[LAMB_WEIGHT] += (double)vec_sum(both.weight);
    pass.sums[LAMB_STEP] += (double)vec_sum(both.step);
}

static int64_t n_blocks_of(int64_t n) {
    return (n + BLOCK - 1) / BLOCK;
}

size_t cpu_lamb_measure_scratch(const Node *node, int n_threads) {
    (void)n_threads;
    return (size_t)n_blocks_of(tensor_count(node->input[0])) * UPDATE_SUMS * sizeof(double);
}

static void measure_segment(const KernelCall *call, const LambPass *pass, const CpuMoments *moments,
                            const Segment *segment) {
    double *partial = call->scratch; /* (blocks, UPDATE_SUMS) */
    int64_t n_blocks = n_blocks_of(segment->end - segment->first);
#pragma omp parallel for schedule(static) num_threads(cpu_threads(call, segment->end - segment->first))
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t first = segment->first + block * BLOCK, end = first + BLOCK;
        LambPass mine = *pass;
        mine.sums = partial + block * UPDATE_SUMS;
        mine.sums[LAMB_WEIGHT] = mine.sums[LAMB_STEP] = 0.0;
        cpu_with_moments(call, moments, first, end < segment->end ? end : segment->end, measure, &mine);
    }
    if (!segment->span || !segment->span->is_counted) return;
    double total[UPDATE_SUMS] = {0};
    for (int64_t block = 0; block < n_blocks; block++)
        for (int k = 0; k < UPDATE_SUMS; k++) total[k] += partial[block * UPDATE_SUMS + k];
    float *sums = (float *)call->out[0] + (int64_t)segment->span->tensor * UPDATE_SUMS;
    for (int k = 0; k < UPDATE_SUMS; k++) sums[k] += (float)total[k];
}

/* Moments in 8 bits move first, all of them: a record of theirs may lie in two tensors. */
static void move_moments(const KernelCall *call, const LambPass *pass, const CpuMoments *moments) {
    int n_parts = cpu_threads(call, moments->count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(moments->count, part, n_parts);
        cpu_with_moments(call, moments, range.first, range.end, measure, pass);
    }
}

Status cpu_lamb_measure(const KernelCall *call, Error *error) {
    (void)error;
    const LambAttributes *a = call->node->attributes;
    LambPass pass = {.c = constants_of(call), .moves_moments = true};
    if (!isfinite(pass.c.scale)) return STATUS_OK;
    int64_t count = tensor_count(call->node->input[0]);
    CpuMoments moments = {.data = {call->out[1], call->out[2]},
                          .is_packed = update_is_packed(call->node->output[1]),
                          .is_written = true,
                          .count = count};
    int span = 0;
    if (!call->add[0]) memset(call->out[0], 0, tensor_bytes(call->node->output[0]));
    if (moments.is_packed) {
        move_moments(call, &pass, &moments);
        pass.moves_moments = moments.is_written = false;
    }
    for (int64_t first = 0; first < count;) {
        Segment segment = next_segment(a, first, count, &span);
        pass.c.decay = segment.span ? a->weight_decay : 0.0f;
        measure_segment(call, &pass, &moments, &segment);
        first = segment.end;
    }
    return STATUS_OK;
}

/* ---- the second pass ---- */

CPU_INLINE void update_step(const LambConstants *c, const float *moment1, const float *moment2,
                            float *parameter, int lanes) {
    vec w = lanes_load(parameter, lanes);
    vec u = direction(c, lanes_load(moment1, lanes), lanes_load(moment2, lanes), w);
    lanes_store(parameter, vec_fma(vec_set(-c->step), u, w), lanes);
}

static void update(const KernelCall *call, const void *constants, int64_t first, int64_t end, float *moment1,
                   float *moment2) {
    const LambConstants c = *(const LambConstants *)constants;
    float *parameter = (float *)call->out[0] + first;
    int64_t i = 0, n = end - first;
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        update_step(&c, moment1 + i, moment2 + i, parameter + i, VEC_LANES);
    if (i < n) update_step(&c, moment1 + i, moment2 + i, parameter + i, (int)(n - i));
    if (call->out[1]) cpu_narrow(call->node->output[1]->dtype, call->out[0], call->out[1], first, end);
}

Status cpu_lamb(const KernelCall *call, Error *error) {
    (void)error;
    const LambAttributes *a = call->node->attributes;
    const float *hyper = call->in[1], *sums = call->in[4];
    LambConstants c = constants_of(call);
    if (!isfinite(c.scale)) return STATUS_OK;
    int64_t count = tensor_count(call->node->output[0]);
    const CpuMoments moments = {.data = {call->in[0], call->in[3]},
                                .is_packed = update_is_packed(call->node->input[0]),
                                .count = count};
    int span = 0;
    for (int64_t first = 0; first < count;) {
        Segment segment = next_segment(a, first, count, &span);
        int64_t n = segment.end - segment.first;
        int n_parts = cpu_threads(call, n);
        c.decay = segment.span ? a->weight_decay : 0.0f;
        c.step = hyper[HYPER_RATE];
        if (segment.span) c.step *= lamb_ratio(a, sums + (int64_t)segment.span->tensor * UPDATE_SUMS);
#pragma omp parallel for schedule(static) num_threads(n_parts)
        for (int part = 0; part < n_parts; part++) {
            CpuRange range = cpu_part(n, part, n_parts);
            cpu_with_moments(call, &moments, segment.first + range.first, segment.first + range.end, update,
                             &c);
        }
        first = segment.end;
    }
    return STATUS_OK;
}
