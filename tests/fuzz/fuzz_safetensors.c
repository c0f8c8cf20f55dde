/* A safetensors file: if it is accepted, its tensors must lie in the file, and all of it can be read. */
#include "fuzz.h"

#include "checkpoint/safetensors.h"

#include <string.h>

static void read_tensor(const SafetensorsFile *file, const SafetensorsTensor *tensor, uint64_t n_file_bytes) {
    enum { PIECE = 64 };
    Error error = {0};
    char shape[160], bytes[PIECE];
    float values[PIECE];
    safetensors_shape(tensor, shape, sizeof shape);
    FUZZ_CHECK(tensor->offset <= n_file_bytes && tensor->n_bytes <= n_file_bytes - tensor->offset);
    FUZZ_CHECK((uint64_t)safetensors_count(tensor) * safetensors_type_bytes(tensor->type) == tensor->n_bytes);
    FUZZ_CHECK(strcmp(safetensors_find(file, tensor->name)->name, tensor->name) == 0);
    for (uint64_t first = 0; first < tensor->n_bytes; first += PIECE) {
        uint64_t left = tensor->n_bytes - first;
        FUZZ_CHECK(safetensors_read(file, tensor, first, bytes, left < PIECE ? (size_t)left : PIECE,
                                    &error) == STATUS_OK);
    }
    int64_t n = safetensors_count(tensor);
    safetensors_read_f32(file, tensor, 0, n < PIECE ? n : PIECE, values, &error);
    error = (Error){0};
    FUZZ_CHECK(safetensors_read_f32(file, tensor, n, 1, values, &error) != STATUS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    SafetensorsFile file;
    Error error = {0};
    if (safetensors_open(&file, fuzz_file(0, bytes, n_bytes), &error) == STATUS_OK) {
        for (int i = 0; i < file.n_tensors; i++) read_tensor(&file, &file.tensor[i], n_bytes);
        for (int i = 0; i < file.n_metadata; i++)
            FUZZ_CHECK(safetensors_metadata(&file, file.metadata[2 * i]));
        safetensors_close(&file);
    } else {
        FUZZ_CHECK(error.status == STATUS_USER && error.text[0]);
    }
    return 0;
}
