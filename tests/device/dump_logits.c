/* dump_logits MODEL B T < TOKENS > LOGITS: what a model predicts, for comparison with another program's.
 *
 * TOKENS are B·T 32-bit integers, LOGITS B·T·V 32-bit floats, both as they lie in memory. MODEL is any folder that
 * model_source_open takes. tests/device/build-static compiles it. */
#include "backend/cpu/cpu.h"
#include "graph/executor.h"
#include "model/gpt.h"
#include "train/model_source.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    ModelSource source;
    ParameterTable table;
    Backend backend;
    Graph *graph;
    GptDecode decode;
    Program program;
    DeviceMemory memory;
    Executor executor;
} Model;

static Status open_model(Model *model, const char *path, int64_t B, int64_t T, Error *error) {
    TRY(model_source_open(&model->source, path, CHECKPOINT_NEWEST, error));
    const ModelConfig *config = &model->source.config;
    TRY(parameters_build(&model->table, config, error));
    TRY(model_source_check(&model->source, &model->table, error));
    TRY(backend_cpu_open(&model->backend, 0, error));
    model->graph = graph_new();
    model->decode = gpt_record_decode(config, &model->table, model->graph, DTYPE_F32, B, T, T);
    TRY(program_build(&model->program, "decode", model->graph, &model->backend, 1, error));
    device_require(&model->memory, &model->program.plan);
    TRY(device_open(&model->memory, &model->backend, error));
    TRY(executor_open(&model->executor, &model->program, &model->memory, error));
    float *values = calloc((size_t)parameters_largest(&model->table), sizeof *values);
    if (!values) return error_failed(error, "no memory for a tensor");
    for (int i = 0; i < model->table.n_parameters && error->status == STATUS_OK; i++) {
        if (model_source_read(&model->source, &model->table.parameter[i], values, error) == STATUS_OK)
            executor_upload(&model->executor, model->decode.parameters.tensor[i], values, error);
    }
    free(values);
    return error->status;
}

/* One position of all sequences at a time: the program predicts from one row of each. */
static Status dump(Model *model, int64_t B, int64_t T, const int32_t *tokens, float *logits /* (B,T,V) */,
                   Error *error) {
    int64_t V = model->source.config.vocabulary;
    int32_t *start = calloc((size_t)B, sizeof *start), *rows = calloc((size_t)B, sizeof *rows);
    float *step = calloc((size_t)(B * V), sizeof *step); /* (B,V) */
    if (!start || !rows || !step) error_failed(error, "no memory for the logits");
    executor_upload(&model->executor, model->decode.tokens, tokens, error);
    for (int64_t t = 0; t < T && error->status == STATUS_OK; t++) {
        executor_upload(&model->executor, model->decode.start, start, error);
        for (int64_t b = 0; b < B; b++) rows[b] = (int32_t)(b * T + t);
        executor_upload(&model->executor, model->decode.rows, rows, error);
        executor_run(&model->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error);
        executor_download(&model->executor, model->decode.logits, step, error);
        for (int64_t k = 0; k < B * V; k++) logits[(k / V * T + t) * V + k % V] = step[k];
    }
    free(start);
    free(rows);
    free(step);
    return error->status;
}

int main(int argc, char **argv) {
    static Model model;
    Error error = {0};
    int64_t B = argc == 4 ? atoll(argv[2]) : 0, T = argc == 4 ? atoll(argv[3]) : 0;
    if (B < 1 || T < 1 || B > 1000 || T > 100000) {
        fprintf(stderr, "usage: dump_logits MODEL B T < TOKENS > LOGITS\n");
        return 2;
    }
    size_t n_tokens = (size_t)(B * T), n_logits = 0;
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    float *logits = NULL;
    if (!tokens || fread(tokens, sizeof *tokens, n_tokens, stdin) != n_tokens)
        error_user(&error, "standard input has fewer than %zu tokens", n_tokens);
    if (error.status == STATUS_OK && open_model(&model, argv[1], B, T, &error) == STATUS_OK) {
        n_logits = n_tokens * (size_t)model.source.config.vocabulary;
        logits = calloc(n_logits, sizeof *logits);
        if (!logits) error_failed(&error, "no memory for %zu logits", n_logits);
        else dump(&model, B, T, tokens, logits, &error);
    }
    if (error.status == STATUS_OK && fwrite(logits, sizeof *logits, n_logits, stdout) != n_logits)
        error_failed(&error, "cannot write to standard output");
    if (error.status != STATUS_OK) fprintf(stderr, "dump_logits: %s\n", error.text);
    free(tokens);
    free(logits);
    return (int)error.status;
}
