/* A checkpoint's manifest. Its last line is a checksum that no fuzzer guesses, so the input gets the right one: what
 * is tested is what lies behind that door. As it came, it is tried too. */
#include "fuzz.h"

#include "checkpoint/checkpoint_manifest.h"

#include <inttypes.h>
#include <string.h>

static void read_manifest(const char *bytes, size_t n_bytes) {
    Arena arena = {0};
    Manifest manifest;
    Error error = {0};
    if (manifest_read(fuzz_file(0, bytes, n_bytes), &manifest, &arena, &error) == STATUS_OK) {
        FUZZ_CHECK(manifest.state.step >= 0 && manifest.state.n_moments <= CHECKPOINT_MAX_MOMENTS);
        FUZZ_CHECK(manifest.config.n_channels % manifest.config.n_heads == 0);
        for (int i = 0; i < manifest.n_files; i++) FUZZ_CHECK(!strchr(manifest.file[i].name, '/'));
        json_decref(checkpoint_config_json(&manifest.config));
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    enum { ENDING_BYTES = 64 };
    char *text = malloc(n_bytes + ENDING_BYTES);
    FUZZ_CHECK(text);
    memcpy(text, bytes, n_bytes);
    read_manifest(text, n_bytes);
    Checksum checksum = checksum_start();
    checksum_add(&checksum, bytes, n_bytes);
    int n_ending = snprintf(text + n_bytes, ENDING_BYTES, ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                            checksum_value(&checksum));
    read_manifest(text, n_bytes + (size_t)n_ending);
    free(text);
    return 0;
}
