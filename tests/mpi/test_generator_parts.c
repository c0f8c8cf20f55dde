/* A generator whose model is in parts, against one that has all of it: layers divided, stages, several chunks on a rank,
 * and both. On the CPU, and on one that draws tokens by itself and would have the whole step as one operation, as a GPU.
 *
 * Ranks: 1 2 3 4 */
#include "comm_support.h"

#include "backend/cpu/cpu.h"
#include "infer/generator.h"
#include "model/stages.h"
#include "ops/decode_step.h"
#include "train/model_mesh.h"

enum { V = 53, CONTEXT = 20, N_NEW = 45, N_PROMPTS = 3, N_ROWS = 2, LONGEST = 30 };

static Backend cpu, device; /* the second with more kernels: the references of these operations */

static bool is_extra(const Node *node) {
    return node->op == &OP_DECODE_STEP || node->op == &OP_SAMPLE;
}

static Kernel device_kernel(void *context, const Node *node) {
    return is_extra(node) ? node->op->reference : cpu.kernel(context, node);
}

static bool device_has_kernel(const BackendTraits *traits, const Node *node) {
    (void)traits;
    return device_kernel(NULL, node) != NULL;
}

static size_t device_scratch(const BackendTraits *traits, const Node *node) {
    (void)traits;
    return is_extra(node) ? 0 : traits_scratch_bytes(&cpu.traits, node);
}

static int open_all(void **state) {
    Error error = {0};
    if (open_world(state) != 0 || backend_cpu_open(&cpu, 1, &error) != STATUS_OK) return -1;
    device = cpu;
    device.kernel = device_kernel;
    device.traits.has_kernel = device_has_kernel;
    device.traits.scratch_bytes = device_scratch;
    return 0;
}

static int close_all(void **state) {
    cpu.close(cpu.context);
    return close_world(state);
}

/* ---- weights */

static float *initial_weights(const ParameterTable *table) {
    float *flat = calloc((size_t)table->n_flat_elements, sizeof *flat);
    assert_non_null(flat);
    parameters_initialise(table, 5, flat, 1);
    for (int64_t i = 0; i < table->n_flat_elements; i++) flat[i] *= 4.0f; /* so that tokens matter */
    return flat;
}

/* The boxes that the part has of the whole. */
static void upload(Generator *generator, const ParameterTable *part, const ParameterTable *whole,
                   const float *flat) {
    Error error = {0};
    for (int i = 0; i < part->n_parameters; i++) {
        const Parameter *parameter = &part->parameter[i];
        const Parameter *of = parameter_find(whole, parameter->role, parameter->block);
        int64_t n = shape_count(parameter->shape);
        if (!n) continue;
        float *values = malloc(sizeof *values * (size_t)n), *next = values;
        Box all = box_whole(of->shape);
        for (int b = 0; b < parameter->shard.n_boxes; b++) {
            const Box *box = &parameter->shard.box[b].box;
            for (int64_t k = 0; k < shape_count(box->shape); k++)
                *next++ = flat[of->flat_offset + box_element(box, &all, k)];
        }
        assert_int_equal(next - values, n);
        OK(generator_upload(generator, parameter, values, &error));
        free(values);
    }
}

/* ---- texts */

typedef struct {
    int32_t tokens[N_PROMPTS][N_NEW];
    int64_t n[N_PROMPTS];
} Record;

static bool is_same(const Record *a, const Record *b) {
    return memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0 && memcmp(a->n, b->n, sizeof a->n) == 0;
}

static GeneratorVerdict record_token(void *context, const GeneratedToken *token) {
    Record *record = context;
    record->tokens[token->prompt][record->n[token->prompt]++] = token->token;
    return GENERATOR_GO_ON;
}

/* Twice on the same generator: what the first run leaves does not matter. */
static Record make_texts(Generator *generator, double temperature) {
    Error error = {0};
    Record record = {0};
    int32_t text[LONGEST];
    for (int i = 0; i < LONGEST; i++) text[i] = (i * 17 + 5) % V;
    const GeneratorPrompt prompts[N_PROMPTS] = {{text, 3, 0}, {text + 2, LONGEST - 2, 1}, {text + 9, 1, 2}};
    for (int i = 0; i < 2; i++) {
        record = (Record){0};
        GeneratorRequest request = {.prompts = prompts,
                                    .n_prompts = N_PROMPTS,
                                    .n_new_tokens = N_NEW,
                                    .end_token = -1,
                                    .sampler = {.temperature = temperature, .top_p = 1.0, .seed = 3},
                                    .callback = record_token,
                                    .context = &record};
        OK(generator_run(generator, &request, &error));
    }
    return record;
}

typedef struct {
    ModelConfig config;
    ParameterTable whole;
    float *flat;
    Record want[2]; /* the likeliest, and drawn */
} Model;

static const double temperatures[] = {0.0, 0.9};

static Record run(const Model *model, const ParameterTable *table, const Backend *backend,
                  const ModelPart *part, double temperature) {
    Error error = {0};
    Generator generator;
    GeneratorOptions options = {.n_rows = N_ROWS, .chunk = 8, .part = *part};
    OK(generator_plan(&generator, &model->config, table, backend, &options, &error));
    int n_fused = 0;
    for (int i = 0; i < generator.decode.graph->n_nodes; i++)
        n_fused += generator.decode.graph->node[i]->op == &OP_DECODE_STEP;
    if (model_part_is_shared(part)) assert_int_equal(n_fused, 0);
    assert_int_equal(generator.drawing.is_there, backend == &device);
    OK(generator_open(&generator, NULL, &error));
    upload(&generator, table, &model->whole, model->flat);
    Record record = make_texts(&generator, temperature);
    generator_close(&generator);
    return record;
}

static Model open_model(bool is_llama, int n_layers) {
    Error error = {0};
    Model model = {.config = {.preset = "",
                              .n_layers = n_layers,
                              .n_heads = 3,
                              .n_kv_heads = is_llama ? 1 : 3,
                              .n_channels = 24,
                              .context = CONTEXT,
                              .vocabulary = V,
                              .tied = !is_llama,
                              .bias = !is_llama,
                              .rotary_theta = 100.0}};
    if (is_llama) {
        model.config.norm = NORM_RMSNORM;
        model.config.position = POSITION_ROTARY;
        model.config.mlp = MLP_SWIGLU;
    }
    OK(config_complete(&model.config, V, &error));
    OK(parameters_build(&model.whole, &model.config, &error));
    model.flat = initial_weights(&model.whole);
    for (int i = 0; i < 2; i++)
        model.want[i] = run(&model, &model.whole, &cpu, &(ModelPart){0}, temperatures[i]);
    return model;
}

static void close_model(Model *model) {
    parameters_free(&model->whole);
    free(model->flat);
}

static void check(const Model *model, int n_tp, PipelineLayout layout) {
    Error error = {0};
    MeshShape shape = {.size = {1, 1, 1, 1, 1}};
    Mesh mesh;
    Pipeline pipeline = {0};
    Stages stages;
    Arena arena = {0};
    ParameterTable table;
    shape.size[AXIS_TP] = n_tp;
    shape.size[AXIS_PP] = layout.n_stages;
    OK(model_mesh_open(&mesh, &shape, &model->config, &world, &error));
    StagesOptions options = {.schedule = layout.kind,
                             .shape = {2 * layout.n_stages, layout.n_stages, layout.n_chunks},
                             .n_tp = n_tp,
                             .B = 1,
                             .T = CONTEXT};
    OK(stages_balance(&stages, &model->config, &options, &arena, &error));
    ParameterPart chunks = stages_part(&stages, mesh.coordinate[AXIS_PP], n_tp, mesh.coordinate[AXIS_TP]);
    if (layout.n_stages > 1) OK(model_pipeline_open(&pipeline, &mesh, &layout, &error));
    OK(parameters_build_part(&table, &model->config, &chunks, &error));
    ModelPart part = model_part_of(&mesh, &pipeline, &chunks);
    const Backend *backends[] = {&cpu, &device};
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < 2; i++) {
            Record got = run(model, &table, backends[b], &part, temperatures[i]);
            if (!is_same(&got, &model->want[i]))
                fail_msg("rank %d: tp %d, pp %d (%s, %d chunks), %s, temperature %g: another text",
                         world.rank, n_tp, layout.n_stages, schedule_info(layout.kind)->name, layout.n_chunks,
                         b ? "drawn by the device" : "chosen by the host", temperatures[i]);
        }
    }
    parameters_free(&table);
    model_pipeline_close(&pipeline, NULL);
    model_mesh_close(&mesh, NULL);
    arena_free(&arena);
}

static void test_parts(void **state) {
    (void)state;
    for (int is_llama = 0; is_llama < 2; is_llama++) {
        Model model = open_model(is_llama, 9);
        check(&model, world.size, (PipelineLayout){SCHEDULE_1F1B, 1, 1});
        check(&model, 1, (PipelineLayout){SCHEDULE_1F1B, world.size, 1});
        if (world.size > 1) {
            check(&model, 1, (PipelineLayout){SCHEDULE_INTERLEAVED, world.size, 2});
            check(&model, 1, (PipelineLayout){SCHEDULE_ZB_V, world.size, 2});
        }
        if (world.size == 4) {
            check(&model, 2, (PipelineLayout){SCHEDULE_1F1B, 2, 1});
            check(&model, 2, (PipelineLayout){SCHEDULE_ZB_V, 2, 2});
            check(&model, 2, (PipelineLayout){SCHEDULE_INTERLEAVED, 2, 4});
        }
        close_model(&model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
