/* Two claims are checked by figures. A token costs the same wherever it stands, but for attention, which
 * reads one more cached position for each: so the first and the last quarter of a text are timed apart, with
 * and without attention. And a single text is limited by reading the weights once a token: so their bytes a
 * second are set against a loop that only reads as many bytes, or on a GPU against a copy, measured in this
 * run. */
#include "bench/generate.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "bench/kernels.h"
#include "bench/limits.h"
#include "ops/decode_step.h"

#include <math.h>

enum { N_WARMUP_TOKENS = 8, WEIGHT_SEED = 1 };

/* What the callback needs: where the clock stood when the token before was done. A GPU hands over several
 * tokens at a time, a batch: what the first of them took is the whole batch's, and each gets its share once
 * all have been heard. */
typedef struct {
    BenchGeneration *bench;
    int64_t n_samples, n_heard, n_done;
    int64_t batch, batch_first; /* number of the last draw; its first position */
    uint64_t before_ns, attention_before_ns;
} Listener;

/* Of what was timed instruction by instruction: nothing on a GPU. */
static uint64_t attention_ns(const Generator *generator) {
    uint64_t total = 0;
    if (generator->backend->traits.is_asynchronous) return total;
    const GeneratorPass *passes[] = {&generator->decode, &generator->prefill};
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < passes[p]->graph->n_nodes; i++) {
            const Instruction *instruction = &passes[p]->executor.instruction[i];
            const Op *op = passes[p]->graph->node[i]->op;
            if (op == &OP_ATTENTION_CACHED || op == &OP_SPARSE_ATTENTION_CACHED)
                total += instruction->elapsed_ns;
        }
    }
    return total;
}

static double sum_of(const double *values, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += values[i];
    return sum;
}

/* The batch is complete. */
static void share_out(Listener *listener) {
    double *seconds = listener->bench->token_seconds + listener->batch_first;
    int64_t count = listener->n_done - listener->batch_first;
    double sum = sum_of(seconds, count);
    for (int64_t i = 0; i < count; i++) seconds[i] = sum / (double)count;
    listener->batch_first = listener->n_done;
}

/* All samples stand at the same position, so a position is done when each of them has been heard. Tokens that
 * the host chooses come one by one. */
static GeneratorVerdict hear(void *context, const GeneratedToken *token) {
    (void)token;
    Listener *listener = context;
    if (++listener->n_heard % listener->n_samples != 0) return GENERATOR_GO_ON;
    const GeneratorDrawing *drawing = &listener->bench->generator.drawing;
    bool is_drawn = drawing->n_current >= 0;
    if (!is_drawn || listener->batch != drawing->n_draws) share_out(listener);
    listener->batch = drawing->n_draws;
    uint64_t now = timer_now_ns(), attention = attention_ns(&listener->bench->generator);
    listener->bench->token_seconds[listener->n_done] = timer_seconds(listener->before_ns, now);
    listener->bench->attention_seconds[listener->n_done] =
        timer_seconds(listener->attention_before_ns, attention);
    listener->n_done++;
    listener->before_ns = timer_now_ns();
    listener->attention_before_ns = attention;
    return GENERATOR_GO_ON;
}

static Status run_texts(BenchGeneration *bench, int64_t n_samples, int64_t n_tokens, double *seconds,
                        Error *error) {
    Listener listener = {.bench = bench,
                         .n_samples = n_samples,
                         .before_ns = timer_now_ns(),
                         .attention_before_ns = attention_ns(&bench->generator)};
    GeneratorRequest request = {.prompts = bench->prompts,
                                .n_prompts = n_samples,
                                .n_new_tokens = n_tokens,
                                .end_token = -1,
                                .sampler = bench->sampler,
                                .callback = hear,
                                .context = &listener};
    uint64_t start = timer_now_ns();
    TRY(generator_run(&bench->generator, &request, error));
    *seconds = timer_seconds_since(start);
    share_out(&listener);
    return STATUS_OK;
}

/* ---- setting up */

static Status plan(BenchGeneration *bench, const BenchSetup *setup, Error *error) {
    TRY(bench_backend_open(&bench->backend, &setup->bench, error));
    bench->has_backend = true;
    TRY(parameters_build(&bench->table, &setup->model, error));
    bench->has_generator = true;
    TRY(generator_plan(
        &bench->generator, &setup->model, &bench->table, &bench->backend,
        &(GeneratorOptions){.n_rows = setup->bench.n_samples,
                            .dtype = precision_of((PrecisionKind)setup->bench.precision).weight},
        error));
    const char *advice = "use fewer --samples, a shorter --context or a smaller --model";
    size_t host_bytes = 0, per_sample = (size_t)setup->model.vocabulary * 4 + sizeof(GeneratorPrompt);
    size_t needed = device_required_bytes(&bench->generator.memory);
    if (!size_multiply(per_sample, (size_t)setup->bench.n_samples, &host_bytes)) host_bytes = SIZE_MAX;
    if (!backend_has_own_memory(&bench->backend)) {
        if (!size_add(needed, host_bytes, &needed)) needed = SIZE_MAX;
        return memory_check(needed, "generating", advice, error);
    }
    TRY(memory_check(host_bytes, "the samples", advice, error));
    return device_check_memory(&bench->backend, needed, "generation", advice, error);
}

static Status take(void *generator, const Parameter *parameter, const float *values, Error *error) {
    return generator_upload(generator, parameter, values, error);
}

Status bench_generate_open(BenchGeneration *bench, const BenchSetup *setup, Error *error) {
    static const int32_t first_token = 0;
    *bench = (BenchGeneration){.sampler = SAMPLER_DEFAULTS};
    TRY(plan(bench, setup, error));
    TRY(generator_open(&bench->generator, NULL, error));
    TRY(parameters_initialise_each(&bench->table, WEIGHT_SEED, backend_host_threads(&bench->backend), take,
                                   &bench->generator, error));
    int64_t n_samples = setup->bench.n_samples, n_tokens = setup->bench.n_tokens + N_WARMUP_TOKENS;
    bench->prompts = ARENA_ARRAY(&bench->arena, GeneratorPrompt, n_samples);
    for (int64_t i = 0; i < n_samples; i++) {
        bench->prompts[i] = (GeneratorPrompt){&first_token, 1, (uint64_t)i};
    }
    bench->token_seconds = ARENA_ARRAY(&bench->arena, double, n_tokens);
    bench->attention_seconds = ARENA_ARRAY(&bench->arena, double, n_tokens);
    return STATUS_OK;
}

void bench_generate_close(BenchGeneration *bench) {
    if (bench->has_generator) generator_close(&bench->generator);
    parameters_free(&bench->table);
    if (bench->has_backend) bench->backend.close(bench->backend.context);
    arena_free(&bench->arena);
}

/* ---- measuring */

/* Weights that a pass reads whole: all but the embedding's tables, of which it takes a row. A tied table is
 * read whole as the head. */
static double weight_bytes(const Node *const *nodes, int n_nodes) {
    double total = 0.0;
    for (int i = 0; i < n_nodes; i++) {
        const Node *node = nodes[i];
        if (node->op == &OP_DECODE_STEP) { /* many as one */
            const DecodeStepAttributes *step = node->attributes;
            total += weight_bytes(step->parts, step->n_parts);
            continue;
        }
        for (int k = 0; k < node->n_inputs && node->op != &OP_EMBEDDING; k++) {
            Tensor *input = node->input[k];
            if (input && tensor_root(input)->place == PLACE_PARAMETER) total += (double)tensor_bytes(input);
        }
    }
    return total;
}

/* Medians over the quarters of the text just made, which must have at least as many tokens. A GPU's
 * instructions are not timed one by one: there it is the mean, without attention. */
static void note_quarters(BenchGeneration *bench, int64_t n_tokens, BenchGenerateReport *report) {
    bool on_host = !bench->backend.traits.is_asynchronous;
    for (int q = 0; q < BENCH_N_QUARTERS; q++) {
        int64_t first = n_tokens * q / BENCH_N_QUARTERS,
                count = n_tokens * (q + 1) / BENCH_N_QUARTERS - first;
        double *seconds = bench->token_seconds + first;
        report->quarter_ms[q] =
            1e3 * (on_host ? bench_median(seconds, count) : sum_of(seconds, count) / (double)count);
        report->attention_ms[q] = on_host ? 1e3 * bench_median(bench->attention_seconds + first, count) : NAN;
    }
}

/* The median of the runs, with the likeliest token taken each time: on a GPU, whose own sampling has a
 * price. */
static Status measure_greedy(BenchGeneration *bench, const BenchOptions *options, BenchGenerateReport *report,
                             Error *error) {
    double *seconds = ARENA_ARRAY(&bench->arena, double, options->n_runs);
    report->greedy_tokens_per_s = NAN;
    if (!bench->backend.traits.is_asynchronous) return STATUS_OK;
    bench->sampler.temperature = 0.0;
    for (int64_t run = 0; run < options->n_runs; run++)
        TRY(run_texts(bench, options->n_samples, options->n_tokens, &seconds[run], error));
    double median = bench_median(seconds, options->n_runs);
    report->greedy_tokens_per_s = (double)options->n_tokens * (double)options->n_samples / median;
    return STATUS_OK;
}

Status bench_generate_measure(BenchGeneration *bench, const BenchOptions *options,
                              BenchGenerateReport *report, Error *error) {
    double *seconds = ARENA_ARRAY(&bench->arena, double, options->n_runs), warmup, fastest = INFINITY;
    const Graph *graph = bench->generator.decode.graph;
    report->weight_bytes = weight_bytes((const Node *const *)graph->node, graph->n_nodes);
    if (!backend_has_own_memory(&bench->backend))
        TRY(bench_read_bandwidth((size_t)report->weight_bytes, bench->backend.n_threads,
                                 &report->limit_bytes_per_s, error));
    else TRY(bench_device_copy(&bench->backend, &report->limit_bytes_per_s, error));
    bool on_host = !bench->backend.traits.is_asynchronous;
    for (int i = 0; i < (on_host ? 1 : 2); i++) /* a GPU's recordings are made on the way */
        TRY(run_texts(bench, options->n_samples, on_host ? N_WARMUP_TOKENS : options->n_tokens, &warmup,
                      error));
    for (int64_t run = 0; run < options->n_runs; run++) {
        TRY(run_texts(bench, options->n_samples, options->n_tokens, &seconds[run], error));
        report->seconds += seconds[run];
        if (seconds[run] >= fastest) continue;
        fastest = seconds[run];
        note_quarters(bench, options->n_tokens, report); /* of the least disturbed run */
    }
    double n_tokens = (double)options->n_tokens * (double)options->n_samples;
    double median = bench_median(seconds, options->n_runs);
    report->tokens_per_s = n_tokens / median;
    report->best_tokens_per_s = n_tokens / fastest;
    report->read_bytes_per_s = report->weight_bytes * (double)options->n_tokens / median;
    return measure_greedy(bench, options, report, error);
}
