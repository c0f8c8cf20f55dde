/* dump_logits MODEL B T [DEVICE [DTYPE [WAY]]] < TOKENS > LOGITS: what a model predicts, for comparison with another
 * program's.
 *
 * TOKENS are B·T 32-bit integers, LOGITS B·T·V 32-bit floats, both as they lie in memory. MODEL is any folder that
 * model_source_open takes, DEVICE and DTYPE are those of pgpt's options (default: cpu, f32).
 *
 * There are two ways from tokens to logits, and both are worth looking at: `decode` (default) is the sampler's, with the
 * key/value cache, one position of all sequences at a time; `whole` is the training's, all positions at once, with the
 * logits taken from under the loss. tests/CMakeLists.txt and tests/device/build-static compile it. */
#include "device/device.h"
#include "graph/executor.h"
#include "huggingface/model_source.h"
#include "model/gpt.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int device, precision; /* DeviceKind, PrecisionKind */
    bool is_whole;
    int64_t B, T;
} Request;

typedef struct {
    ModelSource source;
    ParameterTable table;
    Backend backend;
    Graph *graph;
    GptDecode decode;        /* one way */
    Tensor *tokens, *logits; /* (B,T) and, of the other, (B·T,V or more) */
    Tensor *random;          /* of the other, where the model asks how many sequences there are; or NULL */
    ParameterTensors parameters;
    Program program;
    DeviceMemory memory;
    Executor executor;
} Model;

static void record_decode(Model *model, const Request *request, DType dtype) {
    GptDecodeOptions options = {.B = request->B, .T = request->T, .capacity = request->T, .dtype = dtype};
    model->decode = gpt_record_decode(&model->source.config, &model->table, model->graph, &options);
    model->tokens = model->decode.tokens;
    model->logits = model->decode.logits;
    model->parameters = model->decode.parameters;
}

/* All rows in one chunk, and a copy of the logits that outlives the loss. */
static void record_whole(Model *model, const Request *request, DType dtype) {
    GptLossOptions options = {.B = request->B,
                              .T = request->T,
                              .loss_scale = 1.0,
                              .loss_chunk_tokens = request->B * request->T,
                              .dtype = dtype};
    GptLoss loss = gpt_record_loss(&model->source.config, &model->table, model->graph, &options);
    model->tokens = loss.tokens;
    model->random = loss.random;
    model->parameters = loss.parameters;
    for (int i = 0; i < model->graph->n_nodes; i++) {
        const Node *node = model->graph->node[i];
        if (node->op == &OP_CROSS_ENTROPY) model->logits = node->input[0];
    }
    Tensor *kept = graph_tensor(model->graph, PLACE_STATE, DTYPE_F32, model->logits->shape, "kept logits");
    op_copy_into(model->graph, model->logits, kept, WRITE_FRESH);
    model->logits = kept;
}

static Status upload_weights(Model *model, Error *error) {
    float *values = calloc((size_t)parameters_largest(&model->table), sizeof *values);
    if (!values) return error_failed(error, "no memory for a tensor");
    for (int i = 0; i < model->table.n_parameters && error->status == STATUS_OK; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        if (model_source_read(&model->source, parameter, values, error) != STATUS_OK) break;
        executor_upload_f32(&model->executor, model->parameters.tensor[i], 0, shape_count(parameter->shape),
                            values, error);
    }
    free(values);
    return error->status;
}

static Status open_model(Model *model, const char *path, const Request *request, Error *error) {
    DeviceOptions device = {.kind = request->device, .precision = (PrecisionKind)request->precision};
    DType dtype = precision_of(device.precision).weight;
    TRY(model_source_open(&model->source, path, CHECKPOINT_NEWEST, error));
    TRY(parameters_build(&model->table, &model->source.config, error));
    TRY(model_source_check(&model->source, &model->table, error));
    TRY(device_backend_open(&model->backend, &device, error));
    model->graph = graph_new();
    if (request->is_whole) record_whole(model, request, dtype);
    else record_decode(model, request, dtype);
    TRY(graph_status(model->graph, error));
    TRY(program_build(&model->program, "logits", model->graph, &model->backend, 1, error));
    device_require(&model->memory, &model->program.plan);
    TRY(device_open(&model->memory, &model->backend, error));
    TRY(executor_open(&model->executor, &model->program, &model->memory, error));
    return upload_weights(model, error);
}

/* n rows of logits, without the columns that pad them. */
static Status read_rows(Model *model, int64_t n, float *rows /* (n,V) */, Error *error) {
    int64_t V = model->source.config.vocabulary, width = shape_columns(model->logits->shape);
    float *padded = calloc((size_t)(n * width), sizeof *padded);
    if (!padded) return error_failed(error, "no memory for the logits");
    executor_download(&model->executor, model->logits, padded, error);
    for (int64_t i = 0; i < n; i++) memcpy(rows + i * V, padded + i * width, (size_t)V * sizeof *rows);
    free(padded);
    return error->status;
}

static Status dump_whole(Model *model, const Request *request, float *logits /* (B,T,V) */, Error *error) {
    int32_t words[N_RANDOM_WORDS] = {[RANDOM_N_SEQUENCES] = (int32_t)request->B};
    if (model->random) TRY(executor_upload(&model->executor, model->random, words, error));
    TRY(executor_run(&model->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error));
    return read_rows(model, request->B * request->T, logits, error);
}

/* The program predicts from one row of each sequence. */
static Status dump_decode(Model *model, const Request *request, float *logits /* (B,T,V) */, Error *error) {
    int64_t B = request->B, T = request->T, V = model->source.config.vocabulary;
    int32_t *start = calloc((size_t)B, sizeof *start), *rows = calloc((size_t)B, sizeof *rows);
    float *step = calloc((size_t)(B * V), sizeof *step); /* (B,V) */
    if (!start || !rows || !step) error_failed(error, "no memory for the logits");
    for (int64_t t = 0; t < T && error->status == STATUS_OK; t++) {
        executor_upload(&model->executor, model->decode.start, start, error);
        for (int64_t b = 0; b < B; b++) rows[b] = (int32_t)(b * T + t);
        executor_upload(&model->executor, model->decode.rows, rows, error);
        executor_run(&model->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error);
        read_rows(model, B, step, error);
        for (int64_t k = 0; k < B * V; k++) logits[(k / V * T + t) * V + k % V] = step[k];
    }
    free(start);
    free(rows);
    free(step);
    return error->status;
}

/* The place of a word in a list that ends with NULL, or -1. */
static int place_of(const char *word, const char *const *names) {
    for (int i = 0; names[i]; i++) {
        if (strcmp(word, names[i]) == 0) return i;
    }
    return -1;
}

static bool read_request(Request *request, int argc, char **argv) {
    static const char *const ways[] = {"decode", "whole", NULL};
    if (argc < 4 || argc > 7) return false;
    int way = argc > 6 ? place_of(argv[6], ways) : 0;
    *request = (Request){.device = argc > 4 ? place_of(argv[4], device_names) : DEVICE_CPU,
                         .precision = argc > 5 ? place_of(argv[5], precision_names) : PRECISION_F32,
                         .is_whole = way == 1,
                         .B = atoll(argv[2]),
                         .T = atoll(argv[3])};
    bool is_known = way >= 0 && request->device >= 0 && request->precision >= 0;
    return is_known && request->B >= 1 && request->T >= 1 && request->B <= 1000 && request->T <= 100000;
}

int main(int argc, char **argv) {
    static Model model;
    Error error = {0};
    Request request;
    if (!read_request(&request, argc, argv)) {
        fprintf(stderr, "usage: dump_logits MODEL B T [DEVICE [DTYPE [decode|whole]]] < TOKENS > LOGITS\n");
        return 2;
    }
    size_t n_tokens = (size_t)(request.B * request.T), n_logits = 0;
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    float *logits = NULL;
    if (!tokens || fread(tokens, sizeof *tokens, n_tokens, stdin) != n_tokens)
        error_user(&error, "standard input has fewer than %zu tokens", n_tokens);
    if (error.status == STATUS_OK && open_model(&model, argv[1], &request, &error) == STATUS_OK) {
        n_logits = n_tokens * (size_t)model.source.config.vocabulary;
        logits = calloc(n_logits, sizeof *logits);
        if (!logits) error_failed(&error, "no memory for %zu logits", n_logits);
        else if (executor_upload(&model.executor, model.tokens, tokens, &error) == STATUS_OK)
            (request.is_whole ? dump_whole : dump_decode)(&model, &request, logits, &error);
    }
    if (error.status == STATUS_OK && fwrite(logits, sizeof *logits, n_logits, stdout) != n_logits)
        error_failed(&error, "cannot write to standard output");
    if (error.status != STATUS_OK) fprintf(stderr, "dump_logits: %s\n", error.text);
    free(tokens);
    free(logits);
    return (int)error.status;
}
