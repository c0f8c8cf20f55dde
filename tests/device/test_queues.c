/* What is set for CUDA before it is first asked for anything. */
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static const char NAME[] = "CUDA_DEVICE_MAX_CONNECTIONS";

static void test_queues(void **state) {
    (void)state;
    unsetenv(NAME);
    device_takes_gpu(DEVICE_CPU); /* asks nobody */
    assert_null(getenv(NAME));
    device_takes_gpu(DEVICE_AUTO);
    assert_string_equal(getenv(NAME), "32");
    setenv(NAME, "4", 1);
    device_takes_gpu(DEVICE_AUTO); /* the user's own stands */
    assert_string_equal(getenv(NAME), "4");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_queues)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
