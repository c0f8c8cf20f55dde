/* Numbers that the blocks of one grid send each other through the L2 cache, as NCCL's LL protocol does
 * between GPUs.
 *
 * A word has 32 bits of payload and a 32-bit tag, and is written and read as one: whoever sees the tag that
 * he waits for has the payload too. So nothing is fenced, no counter is kept and nobody waits for more than
 * the words that he needs; a number is on its way for the time of one store and one load, a third of what a
 * barrier over the grid takes with the load behind it.
 *
 * Tags only ever grow, so words need no clearing: the tag of block l in a step is the number of the step's
 * first tag plus l. A word may be written again once everybody has read it; that is sure two transformer
 * blocks later, because whoever read it has sent something since that everybody needed to get there. So there
 * are two sets of words, used in turns.
 *
 * All blocks poll the same words. Several copies of each, written together, keep them from queueing for one
 * place of the cache. */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_MAIL_CUH
#define PGPT_BACKEND_CUDA_DECODE_DECODE_MAIL_CUH

#include "backend/cuda/decode/decode_call.h"
#include "backend/cuda/runtime/device.cuh"

/* A step that has gone wrong must not hold the GPU for ever: so many looks, some seconds. */
enum { MOST_LOOKS = 1 << 24 };

/* One address that is moved on: four would be kept in registers, for every place where something is sent. */
DEVICE void mail_send(const Mail &mail, int at, unsigned payload, unsigned tag) {
    static_assert(MAIL_COPIES == 4, "the stores below are one for each copy");
    asm volatile("{\n\t"
                 ".reg .u64 at;\n\t"
                 "st.relaxed.gpu.global.u64 [%0], %1;\n\t"
                 "add.u64 at, %0, %2;\n\t"
                 "st.relaxed.gpu.global.u64 [at], %1;\n\t"
                 "add.u64 at, at, %2;\n\t"
                 "st.relaxed.gpu.global.u64 [at], %1;\n\t"
                 "add.u64 at, at, %2;\n\t"
                 "st.relaxed.gpu.global.u64 [at], %1;\n\t"
                 "}" ::"l"(mail.words + at),
                 "l"((Word)tag << 32 | payload), "l"(mail.copy_words * (int64_t)sizeof(Word))
                 : "memory");
}
DEVICE void mail_send(const Mail &mail, int at, float value, unsigned tag) {
    mail_send(mail, at, __float_as_uint(value), tag);
}

/* The copy that this block reads. */
DEVICE const Word *mail_box(const Mail &mail) {
    return mail.words + blockIdx.x % MAIL_COPIES * mail.copy_words;
}

/* Words at a 16-byte boundary; says whether all have the tag. One address for all loads: each would want
 * registers. */
template <int N> DEVICE bool mail_tags(const Word (&word)[N], unsigned tag, unsigned *payload) {
    bool complete = true;
#pragma unroll
    for (int i = 0; i < N; i++) {
        payload[i] = (unsigned)word[i];
        complete &= (unsigned)(word[i] >> 32) == tag;
    }
    return complete;
}
DEVICE bool mail_look(const Word *from, unsigned tag, unsigned (&payload)[1]) {
    Word w[1];
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(w[0]) : "l"(from) : "memory");
    return mail_tags<1>(w, tag, payload);
}
DEVICE bool mail_look(const Word *from, unsigned tag, unsigned (&payload)[2]) {
    Word w[2];
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(w[0]), "=l"(w[1])
                 : "l"(from)
                 : "memory");
    return mail_tags<2>(w, tag, payload);
}
DEVICE bool mail_look(const Word *from, unsigned tag, unsigned (&payload)[4]) {
    Word w[4];
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%4];\n\t"
                 "ld.relaxed.gpu.global.v2.u64 {%2, %3}, [%4 + 16];"
                 : "=l"(w[0]), "=l"(w[1]), "=l"(w[2]), "=l"(w[3])
                 : "l"(from)
                 : "memory");
    return mail_tags<4>(w, tag, payload);
}

DEVICE void mail_patience(int *looks) {
    if (++*looks > MOST_LOOKS) __trap();
}

#endif
