/* A node of the program belongs to a part of the model by its operation and, where that is a GEMM, by the
 * weight that it multiplies with, or makes the gradient of: parameters have the names of Hugging Face's GPT-2
 * ("h.0.attn.c_attn.weight"), and tensors that of their parameter. */
#include "lab/flops.h"

#include "backend/null/null.h"
#include "base/random.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "graph/op.h"
#include "train/step/step.h"

#include <string.h>

const char *const flops_part_names[N_FLOPS_PARTS] = {"projections", "scores", "MLP", "logits", "rest"};

/* ---- The ladder: Brown et al., "Language Models are Few-Shot Learners" (2020), table 2.1, with the widths
 * of Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (2022), where they differ */

static const struct {
    const char *name;
    int n_layers, n_heads, n_channels;
} LADDER[] = {
    {"125M", 12, 12, 768},  {"350M", 24, 16, 1024},  {"760M", 24, 16, 1536}, {"1.3B", 24, 32, 2048},
    {"2.7B", 32, 32, 2560}, {"6.7B", 32, 32, 4096},  {"13B", 40, 40, 5120},  {"30B", 48, 56, 7168},
    {"66B", 64, 72, 9216},  {"175B", 96, 96, 12288},
};
enum { N_LADDER = sizeof LADDER / sizeof LADDER[0], VOCABULARY = 50257 };

const char *flops_ladder_name(int index) {
    return LADDER[index].name;
}

int flops_ladder_find(const char *name, size_t n_bytes) {
    for (int i = 0; i < N_LADDER; i++)
        if (strlen(LADDER[i].name) == n_bytes && strncmp(LADDER[i].name, name, n_bytes) == 0) return i;
    return -1;
}

Status flops_ladder_config(int index, int64_t context, ModelConfig *config, Error *error) {
    *config = (ModelConfig){.preset = LADDER[index].name,
                            .n_layers = LADDER[index].n_layers,
                            .n_heads = LADDER[index].n_heads,
                            .n_channels = LADDER[index].n_channels,
                            .context = context,
                            .vocabulary = VOCABULARY,
                            .norm = NORM_LAYERNORM,
                            .mlp = MLP_GELU_TANH,
                            .position = POSITION_LEARNED,
                            .tied = true,
                            .bias = true,
                            .rotary_theta = 10000.0};
    return config_complete(config, VOCABULARY, error);
}

/* ---- Parts */

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static FlopsPart part_of_weight(const Tensor *weight) {
    const char *name = weight ? weight->name : "";
    if (strstr(name, ".attn.")) return FLOPS_PROJECTIONS;
    return strstr(name, ".mlp.") ? FLOPS_MLP : FLOPS_LOGITS;
}

static FlopsPart part_of(const Node *node) {
    const char *name = node->op->name;
    if (strcmp(name, "linear_weight_gradient") == 0)
        return part_of_weight(node->output[0] ? node->output[0] : node->output[1]);
    if (begins(name, "linear")) return part_of_weight(node->input[1]);
    if (begins(name, "attention") || begins(name, "sparse_attention") || begins(name, "rotary"))
        return FLOPS_SCORES;
    if (begins(name, "gelu") || begins(name, "swiglu")) return FLOPS_MLP;
    return begins(name, "cross_entropy") ? FLOPS_LOGITS : FLOPS_REST;
}

static void count_program(const TrainStep *step, FlopsCount *count) {
    const Program *program = &step->program;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        double flops = op_cost(node).flops;
        count->flops[part_of(node)] += flops;
        count->total += flops;
        if (node->is_recomputed) count->again += flops;
    }
}

/* ---- A step, planned or run */

typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    bool has_backend, has_step;
    int64_t vocabulary;
} Model;

static const OptimizerOptions usual_optimizer = {
    .kind = OPTIMIZER_ADAMW, .clip = 1.0, .rate = 3e-4, .adamw = {0.9, 0.95, 1e-8}, .weight_decay = 0.1};

static void close_model(Model *model) {
    if (model->has_step) train_step_close(&model->step);
    device_close(&model->memory);
    parameters_free(&model->table);
    if (model->has_backend) model->backend.close(model->backend.context);
}

/* The backend is open. One micro-batch: every instruction but the update runs as often as it. */
static Status plan_model(Model *model, const ModelConfig *config, int64_t n_sequences, int64_t T,
                         int64_t recompute, Error *error) {
    StepOptions options = {
        .batch = n_sequences, .micro_batch = n_sequences, .T = T, .recompute = recompute, .seed = 1};
    TRY(parameters_build(&model->table, config, error));
    TRY(train_step_plan(&model->step, config, &model->table, &options, &usual_optimizer, &model->backend,
                        error));
    model->has_step = true;
    model->vocabulary = config->vocabulary;
    return STATUS_OK;
}

Status flops_count(const ModelConfig *config, int64_t n_sequences, int64_t T, int64_t recompute,
                   FlopsCount *count, Error *error) {
    Model model = {0};
    *count = (FlopsCount){0};
    TRY(backend_null_open(&model.backend, error));
    model.has_backend = true;
    if (plan_model(&model, config, n_sequences, T, recompute, error) == STATUS_OK) {
        count_program(&model.step, count);
        count->n_parameters = model.table.n_elements;
    }
    close_model(&model);
    return error->status;
}

static void fill_random(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                        int32_t *targets) {
    uint64_t vocabulary = (uint64_t)((const Model *)context)->vocabulary;
    RandomKey key = random_key(1, RANDOM_DATA, 0);
    for (int64_t i = 0; i < B * T; i++) {
        RandomBlock block = random_block(key, first_sequence, (uint64_t)i);
        tokens[i] = (int32_t)(block.word[0] % vocabulary);
        targets[i] = (int32_t)(block.word[1] % vocabulary);
    }
}

static Status start(Model *model, Error *error) {
    size_t n_bytes = (size_t)model->table.n_flat_elements * sizeof(float);
    void *host;
    device_require(&model->memory, &model->step.program.plan);
    TRY(device_check_memory(&model->backend, device_required_bytes(&model->memory), "the step that is timed",
                            "choose a smaller --measure or --measure-batch", error));
    TRY(device_open(&model->memory, &model->backend, error));
    TRY(train_step_open(&model->step, &model->memory, error));
    TRY(memory_alloc(&host, n_bytes, "initial weights", error));
    parameters_initialise(&model->table, 1, host, backend_host_threads(&model->backend));
    train_step_upload(&model->step, 0, model->table.n_flat_elements, host, error);
    memory_free(host, n_bytes);
    return error->status;
}

static void add_times(const TrainStep *step, int64_t n_steps, FlopsCount *count) {
    for (int i = 0; i < step->program.graph->n_nodes; i++) {
        double seconds = (double)step->executor.instruction[i].elapsed_ns * 1e-9 / (double)n_steps;
        count->seconds[part_of(step->program.graph->node[i])] += seconds;
        count->total_s += seconds;
    }
}

/* Each instruction is waited for, so that its time is its own. */
static Status run_steps(Model *model, int64_t n_steps, FlopsCount *count, Error *error) {
    BatchSource source = {fill_random, model};
    StepResult result;
    model->step.executor.times_instructions = true;
    TRY(train_step_run(&model->step, &source, 0, 3e-4, &result, error));
    executor_reset_times(&model->step.executor);
    uint64_t begun = timer_now_ns();
    for (int64_t i = 1; i <= n_steps; i++)
        TRY(train_step_run(&model->step, &source, i, 3e-4, &result, error));
    count->step_s = timer_seconds_since(begun) / (double)n_steps;
    add_times(&model->step, n_steps, count);
    return STATUS_OK;
}

Status flops_measure(const ModelConfig *config, const DeviceOptions *device, int64_t n_sequences, int64_t T,
                     int64_t n_steps, FlopsCount *count, Error *error) {
    Model model = {0};
    *count = (FlopsCount){0};
    TRY(device_backend_open(&model.backend, device, error));
    model.has_backend = true;
    if (plan_model(&model, config, n_sequences, T, 0, error) == STATUS_OK &&
        start(&model, error) == STATUS_OK) {
        count_program(&model.step, count);
        count->n_parameters = model.table.n_elements;
        run_steps(&model, n_steps, count, error);
    }
    close_model(&model);
    return error->status;
}
