/* In this order: what is cheap and can be wrong first (is there a model, is the tokenizer its own), then the
 * device, and the weights last, when everything that a command refuses has been refused. */
#include "infer/given_model.h"

#include "base/system/memory.h"

const char *const given_model_choices[] = {"newest", "best", NULL};

static Status open_tokenizer(GivenModel *model, Error *error) {
    const ModelSource *source = &model->source;
    if (!source->tokenizer)
        return error_user(error, "%s has no tokenizer; put its tokenizer.json there", source->folder);
    TRY(tokenizer_open(source->tokenizer, &model->tokenizer, error));
    bool is_other = source->tokenizer_hash && tokenizer_hash(model->tokenizer) != source->tokenizer_hash;
    if (is_other || tokenizer_n_vocabulary(model->tokenizer) > source->config.vocabulary) {
        return error_user(error, "%s is not the tokenizer that %s was trained with; put the right one there",
                          source->tokenizer, source->path);
    }
    return STATUS_OK;
}

Status given_model_find_path(GivenModel *model, const char *path, CheckpointChoice choice, Error *error) {
    TRY(model_source_open(&model->source, path, choice, error));
    return open_tokenizer(model, error);
}

Status given_model_find(GivenModel *model, const Options *options, CheckpointChoice choice, const char *usage,
                        Comm *comm, const Log *log, Error *error) {
    const char *path = options->n_arguments ? options->arguments[0] : GIVEN_MODEL_DEFAULT;
    if (!options->n_arguments && !file_exists(path)) {
        error_user(error, "there is no %s here; train a model first (pgpt train), or name one: %s", path,
                   usage);
    }
    if (comm) comm_agree(comm, error);
    TRY(error->status);
    TRY(model_source_open_together(&model->source, comm, path, choice, error));
    if (model->source.warning[0]) log_warning(log, "%s", model->source.warning);
    open_tokenizer(model, error);
    return comm ? comm_agree(comm, error) : error->status;
}

/* That nothing is missing and nothing is too much, a part cannot tell. */
static Status check_whole(const GivenModel *model, Error *error) {
    ParameterTable whole;
    TRY(parameters_build(&whole, &model->source.config, error));
    model_source_check(&model->source, &whole, error);
    parameters_free(&whole);
    return error->status;
}

Status given_model_open(GivenModel *model, const ParameterPart *part, const DeviceOptions *device,
                        Error *error) {
    const ModelConfig *config = &model->source.config;
    TRY(check_whole(model, error));
    TRY(part ? parameters_build_part(&model->table, config, part, error)
             : parameters_build(&model->table, config, error));
    TRY(device_backend_open(&model->backend, device, error));
    model->has_backend = true;
    return STATUS_OK;
}

Status given_model_load(const GivenModel *model, ParameterTaker upload, void *context, Error *error) {
    void *values;
    size_t n_bytes = sizeof(float) * (size_t)parameters_largest(&model->table);
    TRY(memory_alloc(&values, n_bytes, "one of the model's tensors", error));
    for (int i = 0; i < model->table.n_parameters; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        TRY_GOTO(model_source_read(&model->source, parameter, values, error), done);
        TRY_GOTO(upload(context, parameter, values, error), done);
    }
    if (parameters_n_router_biases(&model->table)) {
        model_source_read_router_bias(&model->source, &model->table, values);
        upload(context, &model->table.router_bias, values, error);
    }
done:
    memory_free(values, n_bytes);
    return error->status;
}

void given_model_close(GivenModel *model) {
    if (model->has_backend) model->backend.close(model->backend.context);
    parameters_free(&model->table);
    tokenizer_free(model->tokenizer);
    model_source_close(&model->source);
}
