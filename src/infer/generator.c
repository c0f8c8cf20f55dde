/* Two programs over one set of KV caches: prefill reads a chunk of T tokens of every row, decode one token.
 *
 * Rows differ in length, but a program has one T for all. The rule that makes this harmless: a row's pass
 * starts so that its T positions end with its last token, or at position 0 if it has fewer. What lies before
 * the new tokens is computed a second time, with the same result; what lies behind the last (only where the
 * text is shorter than a chunk) is padding, which no earlier position sees and the next tokens overwrite. So
 * every position stays within the context, no row ever needs to wait or to be masked, and after the last pass
 * every row has its logits, whether it had anything new or not.
 *
 * On a device that can draw tokens, the program of single tokens ends with drawing the next one, which its
 * next run reads: it can be run many times before the host looks at what was drawn.
 *
 * Both programs record the same caches before anything else in PLACE_STATE, so both see them at the same
 * offsets. The generator has a DeviceMemory of its own for that reason; only the parameters may be somebody
 * else's.
 *
 * In a pipeline a pass goes through the stages one after the other: what a stage has made of the residual
 * stream goes to the next one, and the logits of the last one to all. Chunks of one rank take their turns in
 * the same pass, each waiting for what comes before it. */
#include "infer/generator.h"

#include "base/system/memory.h"
#include "model/gpt_fuse.h"
#include "parallel/comm_ops.h"

#include <string.h>

/* Long enough that the products are limited by arithmetic, short enough that a short prompt wastes little. */
enum { CHOSEN_CHUNK = 64 };

/* The program of single tokens ends with drawing the next one, if the device can. */
static void record_drawing(Generator *generator, GeneratorPass *pass) {
    Graph *graph = pass->graph;
    GeneratorDrawing *drawing = &generator->drawing;
    const Node example = {.op = &OP_SAMPLE};
    if (!traits_has_kernel(&generator->backend->traits, &example)) return;
    int64_t B = generator->B;
    drawing->is_there = true;
    drawing->settings = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_SAMPLE_SETTINGS), "settings");
    drawing->rows = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, N_SAMPLE_ROW), "texts");
    drawing->picks =
        graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(GENERATOR_MOST_AHEAD, B, N_SAMPLE_PICK), "picks");
    op_sample(graph, pass->decode.logits, drawing->settings, pass->decode.tokens, pass->decode.start,
              drawing->rows, drawing->picks);
}

/* The chunks of this rank, between the messages that bring their inputs and take their outputs. */
static void record_stages(const Generator *generator, GeneratorPass *pass, const ModelConfig *config,
                          const GptDecodeOptions *options) {
    const ModelPart *part = &generator->part;
    Graph *graph = pass->graph;
    PipelineRecord record = pipeline_record(part->pipeline, graph);
    int n_stages = model_part_n_chunks(part);
    GptStage *stages = ARENA_ARRAY(&graph->arena, GptStage, n_stages);
    for (int chunk = 0; chunk < n_stages; chunk++) stages[chunk] = model_part_stage(part, config, chunk);
    pass->decode = gpt_begin_decode(config, generator->table, graph, options, stages, n_stages);
    for (int chunk = 0; chunk < n_stages; chunk++) {
        GptStage stage = stages[chunk];
        Shape shape = SHAPE(options->B, options->T, config->n_channels);
        Tensor *input =
            stage.has_embedding ? NULL : pipeline_record_input(&record, chunk, options->dtype, shape, false);
        Tensor *output = gpt_record_decode_stage(config, graph, options, &stage, input, &pass->decode);
        if (output) pipeline_record_output(&record, chunk, output);
    }
    pipeline_record_end(&record);
    if (!pass->decode.logits) /* another rank's */
        pass->decode.logits =
            graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(options->B, config->vocabulary), "logits");
    op_broadcast(graph, part->stages, pass->decode.logits, pipeline_last_stage(part->pipeline));
}

static Status plan_pass(Generator *generator, GeneratorPass *pass, const char *name,
                        const ModelConfig *config, int64_t T, Error *error) {
    const ModelPart *part = &generator->part;
    pass->graph = graph_new();
    GptDecodeOptions options = {.B = generator->B,
                                .T = T,
                                .capacity = generator->context,
                                .most_new = generator->chunk,
                                .dtype = generator->dtype,
                                .split = part->split};
    if (part->pipeline) record_stages(generator, pass, config, &options);
    else pass->decode = gpt_record_decode(config, generator->table, pass->graph, &options);
    TRY(graph_status(pass->graph, error));
    if (pass == &generator->decode) {
        if (!model_part_is_shared(part)) gpt_fuse_decode(pass->graph, generator->backend);
        record_drawing(generator, pass);
    }
    return wiring_plan(&pass->program, pass->graph, generator->backend, &(WiringOptions){.name = name},
                       &generator->memory, error);
}

static Status check_shared_caches(const Generator *generator, Error *error) {
    const Tensor *a = generator->prefill.decode.caches, *b = generator->decode.decode.caches;
    if (!a && !b) return STATUS_OK;
    if (a && b && a->offset == b->offset && shape_equal(a->shape, b->shape)) return STATUS_OK;
    return error_failed(error, "the programs of the generator disagree about their caches");
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

Status generator_plan(Generator *generator, const ModelConfig *config, const ParameterTable *table,
                      const Backend *backend, const GeneratorOptions *options, Error *error) {
    *generator = (Generator){.table = table,
                             .backend = backend,
                             .B = options->n_rows,
                             .dtype = options->dtype,
                             .part = options->part,
                             .context = config->context,
                             .vocabulary = config->vocabulary};
    generator->chunk = least(options->chunk ? options->chunk : CHOSEN_CHUNK, config->context);
    if (generator->B < 1 || generator->chunk < 1 || generator->B > INT32_MAX / generator->chunk) {
        return error_user(error, "%lld sequences cannot be decoded at once; choose fewer",
                          (long long)generator->B);
    }
    TRY(plan_pass(generator, &generator->prefill, "prefill", config, generator->chunk, error));
    TRY(plan_pass(generator, &generator->decode, "decode", config, 1, error));
    generator->n_logits = shape_columns(generator->decode.decode.logits->shape);
    return check_shared_caches(generator, error);
}

size_t generator_required_bytes(const Generator *generator) {
    return wiring_bytes_beside_weights(&generator->memory);
}

static size_t logits_bytes(const Generator *generator) {
    return (size_t)(generator->B * generator->n_logits) * sizeof(float);
}

Status generator_open(Generator *generator, const DeviceMemory *owner, Error *error) {
    GeneratorPass *passes[] = {&generator->prefill, &generator->decode};
    TRY(wiring_open_memory(&generator->memory, generator->backend, owner, error));
    for (int i = 0; i < 2; i++)
        TRY(executor_open(&passes[i]->executor, &passes[i]->program, &generator->memory, error));
    void *logits;
    TRY(memory_alloc(&logits, logits_bytes(generator), "logits", error));
    generator->logits = logits;
    Arena *arena = &generator->arena;
    int64_t B = generator->B;
    generator->row = ARENA_ARRAY(arena, GeneratorRow, B);
    generator->window = ARENA_ARRAY(arena, int32_t, B * generator->context);
    generator->tokens = ARENA_ARRAY(arena, int32_t, B * generator->chunk);
    generator->start = ARENA_ARRAY(arena, int32_t, B);
    generator->rows = ARENA_ARRAY(arena, int32_t, B);
    generator->prompt = ARENA_ARRAY(arena, int64_t, B);
    generator->n_new = ARENA_ARRAY(arena, int64_t, B);
    generator->drawing.row = ARENA_ARRAY(arena, SampleRow, B);
    generator->drawing.pick = ARENA_ARRAY(arena, SamplePick, GENERATOR_MOST_AHEAD * B);
    for (int64_t b = 0; b < B; b++) generator->row[b].n_tokens = 1; /* a row without a text reads token 0 */
    return STATUS_OK;
}

Status generator_upload(Generator *generator, const Parameter *parameter, const float *values, Error *error) {
    GeneratorPass *pass = &generator->decode;
    const Tensor *tensor = parameter_tensor_of(&pass->decode.parameters, parameter);
    return executor_upload_f32(&pass->executor, tensor, 0, shape_count(parameter->shape), values, error);
}

static void close_pass(GeneratorPass *pass) {
    wiring_close(&pass->graph, &pass->executor);
    *pass = (GeneratorPass){0};
}

void generator_close(Generator *generator) {
    close_pass(&generator->prefill);
    close_pass(&generator->decode);
    device_close(&generator->memory);
    memory_free(generator->logits, logits_bytes(generator));
    arena_free(&generator->arena);
    *generator = (Generator){0};
}

/* ---- rows */

static int32_t *window_of(Generator *generator, int64_t row) {
    return generator->window + row * generator->context;
}

Status generator_check_token(const Generator *generator, int32_t token, Error *error) {
    if (token >= 0 && token < generator->vocabulary) return STATUS_OK;
    return error_failed(error, "token %d is not one of the model's %lld", token,
                        (long long)generator->vocabulary);
}

Status generator_start(Generator *generator, int64_t row, const int32_t *tokens, int64_t n_tokens,
                       Error *error) {
    if (row < 0 || row >= generator->B || n_tokens < 1) {
        return error_failed(error, "a text of %lld tokens was started in row %lld of %lld",
                            (long long)n_tokens, (long long)row, (long long)generator->B);
    }
    int64_t n = least(n_tokens, generator->context);
    tokens += n_tokens - n;
    for (int64_t i = 0; i < n; i++) TRY(generator_check_token(generator, tokens[i], error));
    memcpy(window_of(generator, row), tokens, sizeof *tokens * (size_t)n);
    generator->row[row] = (GeneratorRow){.n_tokens = n};
    return STATUS_OK;
}

Status generator_append(Generator *generator, int64_t row, int32_t token, Error *error) {
    TRY(generator_check_token(generator, token, error));
    GeneratorRow *text = &generator->row[row];
    int32_t *window = window_of(generator, row);
    if (text->n_tokens == generator->context) {
        /* Half of the context goes on, the new token included, at positions that the caches do not have it
         * at. */
        int64_t n_kept = generator->context / 2 > 0 ? generator->context / 2 - 1 : 0;
        memmove(window, window + text->n_tokens - n_kept, sizeof *window * (size_t)n_kept);
        *text = (GeneratorRow){.n_tokens = n_kept};
    }
    window[text->n_tokens++] = token;
    return STATUS_OK;
}

float *generator_logits(Generator *generator, int64_t row) {
    return generator->logits + row * generator->n_logits;
}

/* ---- passes */

static int64_t most_new(const Generator *generator) {
    int64_t most = 0;
    for (int64_t b = 0; b < generator->B; b++) {
        int64_t n = generator->row[b].n_tokens - generator->row[b].n_cached;
        if (n > most) most = n;
    }
    return most;
}

/* The T tokens of one row for the next pass, and where they start. */
static void prepare_row(Generator *generator, int64_t b, int64_t T) {
    GeneratorRow *text = &generator->row[b];
    const int32_t *window = window_of(generator, b);
    int64_t start = text->n_tokens > T ? text->n_tokens - T : 0;
    if (start > text->n_cached) start = text->n_cached;
    int64_t n_real = least(T, text->n_tokens - start);
    for (int64_t t = 0; t < T; t++) generator->tokens[b * T + t] = t < n_real ? window[start + t] : 0;
    generator->start[b] = (int32_t)start;
    generator->rows[b] = (int32_t)(b * T + n_real - 1);
    generator->n_read += start + n_real - text->n_cached;
    text->n_cached = start + n_real;
}

/* Nothing is drawn while the host chooses the tokens. */
static Status rest_drawing(Generator *generator, Error *error) {
    GeneratorDrawing *drawing = &generator->drawing;
    drawing->n_current = -1;
    if (!drawing->is_there) return STATUS_OK;
    memset(drawing->row, 0, sizeof *drawing->row * (size_t)generator->B);
    return executor_upload(&generator->decode.executor, drawing->rows, drawing->row, error);
}

static Status run_pass(Generator *generator, GeneratorPass *pass, int64_t T, Error *error) {
    for (int64_t b = 0; b < generator->B; b++) prepare_row(generator, b, T);
    if (pass == &generator->decode) TRY(rest_drawing(generator, error));
    else generator->drawing.n_current = -1;
    TRY(executor_upload(&pass->executor, pass->decode.tokens, generator->tokens, error));
    TRY(executor_upload(&pass->executor, pass->decode.start, generator->start, error));
    TRY(executor_upload(&pass->executor, pass->decode.rows, generator->rows, error));
    return executor_run(&pass->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error);
}

Status generator_step(Generator *generator, Error *error) {
    while (most_new(generator) > 0) {
        bool is_single = most_new(generator) == 1;
        GeneratorPass *pass = is_single ? &generator->decode : &generator->prefill;
        TRY(run_pass(generator, pass, is_single ? 1 : generator->chunk, error));
        if (most_new(generator) == 0) {
            return executor_download(&pass->executor, pass->decode.logits, generator->logits, error);
        }
    }
    return STATUS_OK;
}

/* ---- many tokens at a time, drawn by the device */

static Status start_drawing(Generator *generator, const SampleSettings *settings, Error *error) {
    GeneratorDrawing *drawing = &generator->drawing;
    GeneratorPass *pass = &generator->decode;
    for (int64_t b = 0; b < generator->B; b++) {
        int64_t last = generator->row[b].n_tokens - 1;
        generator->tokens[b] = window_of(generator, b)[last];
        generator->start[b] = (int32_t)last;
    }
    TRY(executor_upload(&pass->executor, pass->decode.tokens, generator->tokens, error));
    TRY(executor_upload(&pass->executor, pass->decode.start, generator->start, error));
    TRY(executor_upload(&pass->executor, drawing->rows, drawing->row, error));
    TRY(executor_upload(&pass->executor, drawing->settings, settings, error));
    drawing->n_current = 0;
    return STATUS_OK;
}

int64_t generator_can_draw(const Generator *generator, const bool *is_drawing) {
    int64_t most = generator->drawing.is_there ? GENERATOR_MOST_AHEAD : 0;
    for (int64_t b = 0; b < generator->B; b++) {
        const GeneratorRow *text = &generator->row[b];
        if (!is_drawing[b]) continue;
        most = least(most, generator->context - text->n_tokens + 1);
        if (text->n_tokens - text->n_cached != 1) return 0; /* there is more to read first */
    }
    return most;
}

void generator_changed(Generator *generator) {
    generator->drawing.n_current = -1;
}

Status generator_draw(Generator *generator, const SampleSettings *settings, int n_tokens, Error *error) {
    GeneratorDrawing *drawing = &generator->drawing;
    GeneratorPass *pass = &generator->decode;
    if (drawing->n_current < 0) TRY(start_drawing(generator, settings, error));
    TRY(executor_repeat(&pass->executor, SECTION_FORWARD, n_tokens, error));
    drawing->n_draws++;
    drawing->first = drawing->n_current;
    drawing->n_current = (drawing->n_current + n_tokens) % GENERATOR_MOST_AHEAD;
    return executor_download(&pass->executor, drawing->picks, drawing->pick, error);
}

SamplePick generator_drawn(const Generator *generator, int64_t row, int i) {
    int place = (generator->drawing.first + i) % GENERATOR_MOST_AHEAD;
    return generator->drawing.pick[place * generator->B + row];
}

Status generator_append_drawn(Generator *generator, int64_t row, int32_t token, Error *error) {
    generator->n_read += generator->row[row].n_tokens - generator->row[row].n_cached;
    generator->row[row].n_cached =
        generator->row[row].n_tokens; /* the step that drew it has read the others */
    return generator_append(generator, row, token, error);
}
