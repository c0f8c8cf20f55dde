#include "backend/cpu/update/moments.h"

#include "base/block8.h"

static Block8Draws draws_of(const KernelCall *call, int moment) {
    const UpdateElements *elements = call->node->attributes; /* attributes begin with them */
    Block8Draws draws = {.array = 1U + (unsigned)moment, .first = (uint64_t)elements->first_element};
    memcpy(&draws.draw, (const float *)call->in[1] + HYPER_DRAW, sizeof draws.draw);
    return draws;
}

void cpu_with_moments(const KernelCall *call, const CpuMoments *moments, int64_t first, int64_t end,
                      CpuMomentsBody body, const void *constants) {
    if (first >= end) return;
    if (!moments->is_packed) {
        float *moment1 = moments->data[0], *moment2 = moments->data[1];
        body(call, constants, first, end, moment1 ? moment1 + first : NULL, moment2 ? moment2 + first : NULL);
        return;
    }
    float values[UPDATE_MAX_MOMENTS][BLOCK8_RECORD];
    while (first < end) {
        int64_t begin = first / BLOCK8_RECORD * BLOCK8_RECORD, n = moments->count - begin;
        int64_t until = begin + BLOCK8_RECORD < end ? begin + BLOCK8_RECORD : end;
        float *moment[UPDATE_MAX_MOMENTS] = {NULL};
        if (n > BLOCK8_RECORD) n = BLOCK8_RECORD;
        for (int i = 0; i < UPDATE_MAX_MOMENTS && moments->data[i]; i++) {
            block8_read(moments->data[i], update_moment_kind(i), begin, n, values[i]);
            moment[i] = values[i] + (first - begin);
        }
        body(call, constants, first, until, moment[0], moment[1]);
        for (int i = 0; i < UPDATE_MAX_MOMENTS && moments->data[i] && moments->is_written; i++) {
            Block8Draws draws = draws_of(call, i);
            block8_write(moments->data[i], update_moment_kind(i), begin, n, values[i], &draws);
        }
        first = until;
    }
}

void cpu_update_moments(const KernelCall *call, const CpuMoments *moments, int64_t first, int64_t end,
                        CpuMomentsBody body, const void *constants) {
    enum { BLOCK = 2048 };
    int64_t step = moments->is_packed ? INT64_MAX / 2 : BLOCK;
    for (int64_t next; first < end; first = next) {
        next = end - first < step ? end : first + step;
        cpu_with_moments(call, moments, first, next, body, constants);
    }
}
