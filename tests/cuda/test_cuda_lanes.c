/* Two streams of a GPU, and steps that begin before the last one has ended, leave the weights of one stream
 * and one step after the other, bit by bit, in every type: instruction by instruction, recorded and
 * replayed. */
#include "backend/cuda/cuda.h"
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "train_small.h"

static Backend gpu;

static void two_streams_have_the_weights_of_one(void **state) {
    (void)state;
    static const PrecisionKind kinds[] = {PRECISION_F32, PRECISION_BF16};
    Error error = {0};
    for (int i = 0; i < 2 * N_SMALL_TRAININGS; i++) {
        if (test_is_brief() && i / 2 % 2 == 0) continue;
        void *weights[2];
        size_t n_bytes[2];
        for (int way = 0; way < 2; way++) {
            assert_int_equal(backend_cuda_configure(
                                 &gpu, (CudaSettings){.default_gemm = true, .two_streams = way == 1}, &error),
                             STATUS_OK);
            Backend backend = gpu;
            if (way == 0) backend.send_result = NULL; /* then every step is waited for */
            weights[way] = train_small(&backend, i / 2, kinds[i % 2], &n_bytes[way]);
        }
        assert_int_equal(n_bytes[0], n_bytes[1]);
        assert_memory_equal(weights[0], weights[1], n_bytes[0]);
        free(weights[0]);
        free(weights[1]);
    }
}

int main(void) {
    char words[256];
    Error error = {0};
    if (!backend_cuda_devices(words, sizeof words)) {
        printf("skipped: %s\n", words);
        return 77;
    }
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_streams_have_the_weights_of_one)};
    int result = cmocka_run_group_tests(tests, NULL, NULL);
    gpu.close(gpu.context);
    return result;
}
