/* A model that is open: its tokenizer, its weights on a device, and a generator of one row that owns them. */
#include "api/api.h"

#include "infer/generate_options.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    GenerateOptions generate;
} Values;

static const OptionGroup groups[] = {
    OPTION_GROUP("Generation", Values, generate, generate_option_specs),
    OPTION_GROUP_END,
};

const OptionCommand api_generate_command = {.name = "generate", .groups = groups, .no_config = true};

static Status upload(void *context, const Parameter *parameter, const float *values, Error *error) {
    return generator_upload(context, parameter, values, error);
}

static void describe(pgpt_model *model) {
    const GivenModel *given = &model->given;
    const ModelConfig *config = &given->source.config;
    model->info = (pgpt_model_info){.folder = given->source.path,
                                    .device = given->backend.name,
                                    .warning = given->source.warning,
                                    .step = given->source.step,
                                    .n_parameters = given->table.n_elements,
                                    .n_layers = config->n_layers,
                                    .n_heads = config->n_heads,
                                    .n_channels = config->n_channels,
                                    .context = config->context,
                                    .vocabulary = tokenizer_n_vocabulary(given->tokenizer),
                                    .end_of_text = tokenizer_end_of_text(given->tokenizer)};
}

static Status open_model(pgpt_model *model, const char *folder, const GenerateOptions *options,
                         Error *error) {
    GivenModel *given = &model->given;
    PrecisionKind precision = (PrecisionKind)options->precision;
    DeviceOptions device = {
        .kind = options->device, .n_threads = (int)options->n_threads, .precision = precision};
    TRY(given_model_find_path(given, folder, (CheckpointChoice)options->choice, error));
    TRY(given_model_open(given, NULL, &device, error));
    model->dtype = precision_of(precision).weight;
    model->has_generator = true;
    GeneratorOptions rows = {.n_rows = 1, .dtype = model->dtype};
    TRY(generator_plan(&model->generator, &given->source.config, &given->table, &given->backend, &rows,
                       error));
    TRY(device_check_memory(&given->backend, device_required_bytes(&model->generator.memory), "the model",
                            "choose a smaller one", error));
    TRY(generator_open(&model->generator, NULL, error));
    TRY(given_model_load(given, upload, &model->generator, error));
    describe(model);
    return STATUS_OK;
}

pgpt_status pgpt_open(const char *folder, const char *const *options, pgpt_model **model, pgpt_error *error) {
    static const char *const allowed[] = {"checkpoint", "device", "dtype", "threads", NULL};
    ApiCall call;
    Options parsed = {0};
    Values values;
    api_enter(&call);
    *model = NULL;
    pgpt_model *opened = calloc(1, sizeof *opened);
    if (!opened) error_failed(&call.error, "no memory for a model");
    else if (api_read_options(&parsed, &api_generate_command, &values, options, "pgpt_open", allowed,
                              &call.error) == STATUS_OK)
        open_model(opened, folder, &values.generate, &call.error);
    options_free(&parsed);
    if (call.error.status == STATUS_OK) *model = opened;
    else pgpt_close(opened);
    return api_leave(&call, error);
}

void pgpt_close(pgpt_model *model) {
    if (!model) return;
    if (model->has_generator) generator_close(&model->generator);
    given_model_close(&model->given);
    free(model);
}

const pgpt_model_info *pgpt_model_about(const pgpt_model *model) {
    return &model->info;
}

/* ---- Texts and tokens */

pgpt_status pgpt_tokenize(const pgpt_model *model, const char *text, size_t n_bytes, int32_t **tokens,
                          size_t *n_tokens, pgpt_error *error) {
    ApiCall call;
    TokenArray found = {0};
    api_enter(&call);
    *tokens = NULL;
    *n_tokens = 0;
    if (token_array_reserve(&found, 1, &call.error) ==
        STATUS_OK) /* so that there is something to give back */
        tokenizer_encode(model->given.tokenizer, text, n_bytes, &found, &call.error);
    if (call.error.status == STATUS_OK) {
        *tokens = found.ids;
        *n_tokens = found.n;
    } else {
        token_array_free(&found);
    }
    return api_leave(&call, error);
}

pgpt_status pgpt_detokenize(const pgpt_model *model, const int32_t *tokens, size_t n_tokens, char **text,
                            size_t *n_bytes, pgpt_error *error) {
    ApiCall call;
    size_t n = 0;
    api_enter(&call);
    *text = NULL;
    if (tokenizer_decode(model->given.tokenizer, tokens, n_tokens, text, &n, &call.error) != STATUS_OK)
        *text = NULL;
    if (n_bytes) *n_bytes = *text ? n : 0;
    return api_leave(&call, error);
}
