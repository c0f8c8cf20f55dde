/* What a model under training writes: the sampler has the weights of the step, or collects them where those
 * of dp have a slice each (ZeRO-3). Ranks that have the parts of one model compute it together. */
#include "base/system/memory.h"
#include "base/text/plain.h"
#include "infer/prompt.h"
#include "run/interrupt.h"
#include "train/trainer.h"

#include <string.h>

typedef struct {
    PlainWriter shown;
    TokenDecoder decoder;
    bool may_stop; /* ranks that compute together end together */
} SampleWriter;

bool trainer_samples_alone(const Trainer *trainer) {
    return !trainer->step.sync.strategy->shards_weights &&
           !(trainer->has_generator && model_part_is_shared(&trainer->generator.part));
}

static GeneratorVerdict write_token(void *context, const GeneratedToken *token) {
    SampleWriter *writer = context;
    TokenBytes piece = token_decode(&writer->decoder, token->token);
    plain_write(&writer->shown, piece.bytes, piece.n);
    bool stops = writer->may_stop && (interrupt_was_signalled() || ferror(writer->shown.stream));
    return stops ? GENERATOR_END_ALL : GENERATOR_GO_ON;
}

static Status sample_prompt(const Trainer *trainer, TokenArray *tokens, Error *error) {
    const Tokenizer *tokenizer = trainer->setup.tokenizer;
    const char *prompt = trainer->setup.options->prompt;
    if (*prompt) {
        TRY(tokenizer_encode(tokenizer, prompt, strlen(prompt), tokens, error));
        return tokens->n ? STATUS_OK : error_user(error, "--prompt is empty; leave it out");
    }
    return prompt_begin_text(tokenizer, tokens, error);
}

/* Where weights are cut up: bring them together, unit by unit, for the root's sampler. */
static Status collect_weights(Trainer *trainer, float *values, int unit_index, Error *error) {
    const GradientSync *sync = &trainer->step.sync;
    const PartitionUnit *unit = &sync->partition.unit[unit_index];
    int64_t first = partition_slice_first(&sync->partition, unit_index);
    int64_t n = partition_slice_count(&sync->partition, unit_index);
    TRY(executor_download_f32(&trainer->step.executor, sync->held, unit->local_first, n, values + first,
                              error));
    const Mesh *mesh = sync->options->mesh;
    Comm *sharing = unit->group == FLAT_EXPERTS ? mesh_host_expert_sums(mesh) : mesh_host_sums(mesh);
    TRY(comm_all_gather(sharing, values, unit->border, COMM_F32, error));
    for (int i = unit->first_piece; i < unit->first_piece + unit->n_pieces && trainer->has_generator; i++) {
        const Parameter *parameter = &trainer->table.parameter[i];
        TRY(generator_upload(&trainer->generator, parameter, values + parameter->flat_offset - unit->first,
                             error));
    }
    return STATUS_OK;
}

static Status collect_all_weights(Trainer *trainer, Error *error) {
    const Partition *partition = &trainer->step.sync.partition;
    if (!trainer->step.sync.strategy->shards_weights || trainer->setup.options->sample_tokens <= 0)
        return STATUS_OK;
    int64_t largest = 0;
    for (int i = 0; i < partition->n_units; i++) {
        if (largest < partition->unit[i].n) largest = partition->unit[i].n;
    }
    if (largest < parameters_n_router_biases(&trainer->table))
        largest = parameters_n_router_biases(&trainer->table);
    void *values;
    size_t n_bytes = (size_t)largest * sizeof(float);
    TRY(memory_alloc(&values, n_bytes, "the weights of a sample", error));
    for (int i = 0; i < partition->n_units && error->status == STATUS_OK; i++)
        collect_weights(trainer, values, i, error);
    if (trainer->has_generator && parameters_n_router_biases(&trainer->table) && error->status == STATUS_OK) {
        executor_download(&trainer->step.executor, trainer->step.loss.parameters.router_bias, values, error);
        if (error->status == STATUS_OK)
            generator_upload(&trainer->generator, &trainer->table.router_bias, values, error);
    }
    memory_free(values, n_bytes);
    return error->status;
}

static Status write_sample(Trainer *trainer, FILE *stream, Error *error) {
    TRY(collect_all_weights(trainer, error));
    if (!trainer->has_generator) return STATUS_OK;
    const Tokenizer *tokenizer = trainer->setup.tokenizer;
    SampleWriter writer = {plain_writer(stream), token_decoder(tokenizer),
                           !model_part_is_shared(&trainer->generator.part)};
    if (trainer_n_ranks(trainer) > 1)
        writer.shown.is_plain = true; /* a launcher's pipe may end at a terminal */
    TokenArray tokens = {0};
    TRY_GOTO(sample_prompt(trainer, &tokens, error), done);
    bool show_prompt = *trainer->setup.options->prompt != '\0';
    for (size_t i = 0; i < tokens.n; i++) {
        TokenBytes piece = token_decode(&writer.decoder, tokens.ids[i]);
        if (show_prompt) plain_write(&writer.shown, piece.bytes, piece.n);
    }
    GeneratorPrompt prompt = {.tokens = tokens.ids, .n_tokens = (int64_t)tokens.n};
    GeneratorRequest request = {.prompts = &prompt,
                                .n_prompts = 1,
                                .n_new_tokens = trainer->setup.options->sample_tokens,
                                .n_vocabulary = tokenizer_n_vocabulary(tokenizer),
                                .end_token = -1,
                                .sampler = {.temperature = 0.8,
                                            .top_k = 200,
                                            .top_p = 1.0,
                                            .seed = (uint64_t)trainer->setup.options->seed},
                                .callback = write_token,
                                .context = &writer};
    TRY_GOTO(generator_run(&trainer->generator, &request, error), done);
    plain_end(&writer.shown);
    fputc('\n', stream);
done:
    token_array_free(&tokens);
    return error->status;
}

Status trainer_sample(Trainer *trainer, FILE *stream, Error *error) {
    ActivityEntry entry = {.kind = ACTIVITY_WORK, .name = "sample", .number = trainer->n_done};
    FILE *unseen = NULL; /* of ranks that compute with the root */
    if (!trainer_is_root(trainer) && !(unseen = fopen("/dev/null", "w")))
        return error_failed(error, "cannot open /dev/null for a sample");
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
    write_sample(trainer, unseen ? unseen : stream, error);
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
    if (unseen) fclose(unseen);
    return error->status;
}
