/* Independent of the code under test where that matters: names, transposition, config and index are spelt out here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "checkpoint/checkpoint.h"
#include "harness.h"
#include "hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define assert_ok(call, error)                                                                               \
    do {                                                                                                     \
        if ((call) != STATUS_OK) fail_msg("%s", (error).text);                                               \
    } while (0)

float hf_weight(const Parameter *parameter, int64_t k) {
    float offset = parameter->init == INIT_ONE ? 1.0f : 0.0f;
    return offset + 0.25f * test_value(parameter->name, (uint64_t)k);
}

ModelConfig hf_model_config(const HfFolder *options) {
    Arena arena = {0};
    Error error = {0};
    ModelConfig config;
    json_t *object = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f}", "layers", HF_L, "heads", HF_NH,
                               "channels", HF_C, "hidden", (int)options->n_hidden, "context", HF_T, "vocab",
                               HF_V, "tied", !options->is_untied, "dropout", 0.1);
    assert_non_null(object);
    assert_ok(checkpoint_config_read(object, "a test", &config, &arena, &error), error);
    config.preset = "gpt2";
    json_decref(object);
    arena_free(&arena);
    return config;
}

char *hf_config(const HfFolder *options, const char *change) {
    const char *type = options->type == SAFETENSORS_F16    ? "float16"
                       : options->type == SAFETENSORS_BF16 ? "bfloat16"
                                                           : "float32";
    json_t *object = json_pack(
        "{s:s, s:[s], s:f, s:i, s:s, s:f, s:i, s:f, s:s, s:i, s:i, s:n, s:i, s:i, s:f, s:b, s:n, s:b, s:i}",
        "activation_function", "gelu_new", "architectures",
        options->is_bare ? "GPT2Model" : "GPT2LMHeadModel", "attn_pdrop", 0.1, "bos_token_id", 3, "dtype",
        type, "embd_pdrop", 0.1, "eos_token_id", 3, "layer_norm_epsilon", 1e-5, "model_type", "gpt2",
        "n_embd", HF_C, "n_head", HF_NH, "n_inner", "n_layer", HF_L, "n_positions", HF_T, "resid_pdrop", 0.1,
        "scale_attn_weights", 1, "summary_activation", "tie_word_embeddings", !options->is_untied,
        "vocab_size", HF_V);
    assert_non_null(object);
    if (options->n_hidden) json_object_set_new(object, "n_inner", json_integer(options->n_hidden));
    if (change) {
        char text[1024];
        json_error_t where;
        snprintf(text, sizeof text, "{%s}", change);
        json_t *fields = json_loads(text, 0, &where);
        if (!fields) fail_msg("%s: %s", text, where.text);
        json_object_update(object, fields);
        json_decref(fields);
    }
    char *text = json_dumps(object, JSON_INDENT(4)); /* unlike what pgpt writes */
    json_decref(object);
    return text;
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- tensors */

typedef struct {
    SafetensorsTensor tensor;
    const Parameter *parameter; /* NULL: zeros */
    bool is_turned;
    int shard;
} Item;

typedef struct {
    const HfFolder *options;
    ParameterTable table;
    Item items[128];
    int n_items;
    Arena arena;
} Maker;

static bool is_named(const char *wanted, const char *name) {
    return wanted && strcmp(wanted, name) == 0;
}

static Item *add(Maker *maker, const char *name, SafetensorsType type) {
    Item *item = &maker->items[maker->n_items++];
    *item = (Item){.tensor = {.name = arena_strdup(&maker->arena, name), .type = type}};
    return item;
}

static void add_parameter(Maker *maker, const Parameter *parameter, const char *name) {
    const HfFolder *options = maker->options;
    if (is_named(options->leave_out, parameter->name)) return;
    const char *dot = strstr(parameter->name, ".weight");
    bool is_conv1d = strncmp(parameter->name, "h.", 2) == 0 && dot && parameter->shape.n_dims == 2;
    Item *item =
        add(maker, name, is_named(options->integer, parameter->name) ? SAFETENSORS_I32 : options->type);
    item->parameter = parameter;
    item->is_turned = is_conv1d && !is_named(options->turn, parameter->name);
    item->tensor.n_dims = parameter->shape.n_dims;
    for (int i = 0; i < parameter->shape.n_dims; i++) {
        item->tensor.dim[i] = parameter->shape.dim[item->is_turned ? 1 - i : i];
    }
}

static void add_all(Maker *maker) {
    const HfFolder *options = maker->options;
    const char *prefix = options->is_bare ? "" : "transformer.";
    for (int i = 0; i < maker->table.n_parameters; i++) {
        const Parameter *parameter = &maker->table.parameter[i];
        bool is_head = strcmp(parameter->name, "lm_head.weight") == 0;
        add_parameter(maker, parameter,
                      arena_printf(&maker->arena, "%s%s", is_head ? "" : prefix, parameter->name));
    }
    if (options->has_tied_head) add_parameter(maker, &maker->table.parameter[0], "lm_head.weight");
    for (int i = 0; options->has_masks && i < HF_L; i++) {
        Item *mask = add(maker, arena_printf(&maker->arena, "%sh.%d.attn.bias", prefix, i), SAFETENSORS_BOOL);
        mask->tensor.n_dims = 4;
        memcpy(mask->tensor.dim, (int64_t[]){1, 1, HF_T, HF_T}, 4 * sizeof(int64_t));
        add(maker, arena_printf(&maker->arena, "%sh.%d.attn.masked_bias", prefix, i), SAFETENSORS_F32);
    }
    if (options->extra) {
        Item *extra = add(maker, options->extra, SAFETENSORS_F32);
        extra->tensor.n_dims = 1;
        extra->tensor.dim[0] = 1;
    }
    int n_files = options->n_files > 1 ? options->n_files : 1;
    for (int i = 0; i < maker->n_items; i++) maker->items[i].shard = i * n_files / maker->n_items;
}

static int by_shard_and_name(const void *a, const void *b) {
    const Item *x = a, *y = b;
    return x->shard != y->shard ? x->shard - y->shard : strcmp(x->tensor.name, y->tensor.name);
}

static void write_item(SafetensorsWriter *writer, const Item *item, const HfFolder *options) {
    Error error = {0};
    int64_t count = safetensors_count(&item->tensor), columns = item->tensor.dim[1];
    for (int64_t k = 0; k < count; k++) {
        int64_t ours = item->is_turned ? k % columns * item->tensor.dim[0] + k / columns : k;
        float value = item->parameter ? hf_weight(item->parameter, ours) : 0.0f;
        if (options->first != 0.0f && k == 0 && item->parameter && item->parameter->role == ROLE_TOKEN_TABLE)
            value = options->first;
        uint16_t half =
            options->type == SAFETENSORS_F16 ? half_f16_from_f32(value) : half_bf16_from_f32(value);
        bool is_half = item->tensor.type == SAFETENSORS_F16 || item->tensor.type == SAFETENSORS_BF16;
        assert_ok(safetensors_writer_write(writer, is_half ? (void *)&half : (void *)&value,
                                           safetensors_type_bytes(item->tensor.type), &error),
                  error);
    }
}

static void write_file(Maker *maker, const char *path, int first, int end) {
    static const char *const metadata[] = {"format", "pt", NULL};
    Error error = {0};
    SafetensorsWriter writer;
    SafetensorsTensor tensors[128];
    for (int i = first; i < end; i++) tensors[i - first] = maker->items[i].tensor;
    assert_ok(safetensors_writer_open_aligned(&writer, path, tensors, end - first, metadata, 8, &error),
              error);
    for (int i = first; i < end; i++) write_item(&writer, &maker->items[i], maker->options);
    assert_ok(safetensors_writer_commit(&writer, &error), error);
    safetensors_writer_abort(&writer);
}

static void write_index(Maker *maker, const char *folder) {
    json_t *map = json_object();
    for (int i = 0; i < maker->n_items; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", maker->items[i].shard + 1,
                 maker->options->n_files);
        json_object_set_new(map, maker->items[i].tensor.name, json_string(name));
    }
    json_t *object = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    char *text = json_dumps(object, 0);
    write_text(folder, "model.safetensors.index.json", text);
    free(text);
    json_decref(object);
}

void hf_folder_write(const char *folder, const HfFolder *given) {
    HfFolder options = *given;
    if (options.type == SAFETENSORS_F64) options.type = SAFETENSORS_F32; /* 0 */
    Maker *maker = calloc(1, sizeof *maker);
    maker->options = &options;
    ModelConfig config = hf_model_config(&options);
    Error error = {0};
    assert_ok(parameters_build(&maker->table, &config, &error), error);
    mkdir(folder, 0777);
    char *usual = hf_config(&options, NULL);
    write_text(folder, "config.json", options.config ? options.config : usual);
    free(usual);
    add_all(maker);
    qsort(maker->items, (size_t)maker->n_items, sizeof *maker->items, by_shard_and_name);
    for (int first = 0, end; first < maker->n_items; first = end) {
        char path[512];
        int shard = maker->items[first].shard;
        for (end = first; end < maker->n_items && maker->items[end].shard == shard; end++) {}
        if (options.n_files > 1)
            snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, shard + 1,
                     options.n_files);
        else snprintf(path, sizeof path, "%s/model.safetensors", folder);
        write_file(maker, path, first, end);
    }
    if (options.n_files > 1) write_index(maker, folder);
    parameters_free(&maker->table);
    arena_free(&maker->arena);
    free(maker);
}
