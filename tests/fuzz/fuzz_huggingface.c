/* A Hugging Face folder's config.json, and the index of a model in several files. */
#include "fuzz_folder.h"

#include "huggingface/huggingface.h"

#include <string.h>

enum { CONFIG, INDEX, TENSORS };

static const char config[] =
    "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 2, "
    "\"n_positions\": 2, \"n_embd\": 2, \"n_layer\": 1, \"n_head\": 1}";

static void read_config(const uint8_t *bytes, size_t n_bytes) {
    Arena arena = {0};
    ModelConfig model;
    char note[200];
    Error error = {0};
    const char *path = fuzz_file(CONFIG, bytes, n_bytes);
    huggingface_config_type(path);
    if (huggingface_config_read(path, &model, note, &arena, &error) == STATUS_OK) {
        FUZZ_CHECK(model.n_heads > 0 && model.n_channels % model.n_heads == 0);
        char *text = NULL;
        bool is_bare;
        if (huggingface_config_text(&model, path, SAFETENSORS_F32, -1, &text, &is_bare, &error) == STATUS_OK)
            FUZZ_CHECK(text && text[0] == '{');
        free(text);
    }
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
    arena_free(&arena);
}

static void read_index(const char *folder, const uint8_t *bytes, size_t n_bytes) {
    static const unsigned char tensors[] = {10,  0,   0,   0,   0,   0,   0,   0,   '{',
                                            '}', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
    HuggingFaceModel model;
    Error error = {0};
    fuzz_file(CONFIG, config, sizeof config - 1);
    fuzz_file(INDEX, bytes, n_bytes);
    fuzz_file(TENSORS, tensors, sizeof tensors);
    if (huggingface_open(&model, folder, &error) == STATUS_OK) huggingface_close(&model);
    FUZZ_CHECK(error.status == STATUS_OK || (error.status == STATUS_USER && error.text[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char *folder;
    if (!folder) {
        folder = fuzz_folder("config.json", CONFIG);
        fuzz_folder("model.safetensors.index.json", INDEX);
        fuzz_folder("model-00001-of-00002.safetensors", TENSORS);
    }
    read_config(bytes, n_bytes);
    read_index(folder, bytes, n_bytes);
    return 0;
}
