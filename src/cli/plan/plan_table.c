/* Questions that people ask, each answered by plans: what a weight costs and what fits, how long models of
 * all sizes take on how many devices, what another link to the host is worth, and the best model for a
 * budget. */
#include "cli/plan/plan_table.h"

#include "base/block8.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "model/model_flops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Models */

typedef struct {
    const char *name;
    int64_t layers, heads, channels;
    double batch_tokens; /* as GPT-3's paper has them */
} Rung;

static const Rung rungs[] = {
    {"117M", 12, 12, 768, 0.5e6},   {"345M", 24, 16, 1024, 0.5e6},    {"750M", 36, 20, 1280, 0.5e6},
    {"1.3B", 24, 16, 2048, 1e6},    {"2.7B", 32, 32, 2560, 1e6},      {"6.7B", 32, 32, 4096, 2e6},
    {"13B", 40, 40, 5120, 2e6},     {"30B", 48, 56, 7168, 2e6},       {"66B", 64, 72, 9216, 3.2e6},
    {"175B", 96, 96, 12288, 3.2e6}, {"530B", 105, 128, 20480, 3.2e6}, {"1T", 128, 160, 25600, 6.4e6}};
enum { N_RUNGS = sizeof rungs / sizeof rungs[0], TOKENS_A_PARAMETER = 20 };

static double parameters_of(double layers, double channels, double vocabulary) {
    return 12.0 * layers * channels * channels + vocabulary * channels;
}

/* The plan of another model, on so many devices. */
static PlanRun with_model(const PlanRun *plan, const Rung *rung, int n_ranks, int64_t batch) {
    PlanRun other = *plan;
    ModelConfig *model = &other.train.values.model;
    model->preset = rung->name;
    model->n_layers = rung->layers;
    model->n_heads = model->n_kv_heads = rung->heads;
    model->n_channels = rung->channels;
    model->n_hidden = 4 * rung->channels;
    model->n_patterns = 0;
    other.train.values.train.batch = batch;
    other.train.values.train.sample_tokens = 0;
    other.n_ranks = n_ranks;
    return other;
}

static int64_t batch_for(const PlanRun *plan, double batch_tokens, int n_ranks) {
    double T = (double)plan->train.values.train.sequence, n = round(batch_tokens / T);
    double power = exp2(round(log2(fmax(n, 1.0)))); /* which divides by any usual number of ranks */
    return (int64_t)fmax(power, n_ranks > (int)power ? exp2(ceil(log2((double)n_ranks))) : 1.0);
}

static bool tune_with(PlanRun *plan, const TuneOptions *options, TunedLayout *best) {
    PlanTuning tuning;
    Error unheard = {0};
    if (plan_tune(plan, options, &tuning, &unheard) != STATUS_OK) return false;
    *best = tuning.best[0];
    plan_tuning_free(&tuning);
    return true;
}

static bool tune_quickly(PlanRun *plan, TunedLayout *best) {
    return tune_with(plan, &(TuneOptions){.n_best = 1, .n_plans = 16, .is_quick = true}, best);
}

/* ---- Memory */

/* `object` takes what is printed, as it does below. */
static void print_weight_bytes(int n_ranks, json_t *object) {
    json_t *lines = json_array();
    static const PrecisionKind kinds[] = {PRECISION_F32, PRECISION_BF16, PRECISION_PURE_BF16};
    printf("bytes a weight with AdamW, weights + gradients + optimizer state, on each of N = %d ranks:\n",
           n_ranks);
    printf("%-30s %8s %8s %8s %8s\n", "", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3");
    for (int i = 0; i < 4; i++) {
        bool is_8 = i == 3;
        Precision precision = precision_of(is_8 ? PRECISION_BF16 : kinds[i]);
        double weight = (double)dtype_info(precision.weight)->n_bytes,
               gradient = (double)dtype_info(precision.gradient)->n_bytes,
               moments = is_8 ? 8.0 * BLOCK8_WORDS / BLOCK8_RECORD
                              : 2.0 * (double)dtype_info(precision.moment)->n_bytes,
               state = moments + (precision.has_master ? 4.0 : 0.0), N = n_ranks;
        static const char *const words[] = {"f32", "bf16, mixed", "pure-bf16", "bf16, mixed, --moments 8bit"};
        double bytes[] = {weight + gradient + state, weight + gradient + state / N,
                          weight + (gradient + state) / N, (weight + gradient + state) / N};
        json_t *line = json_object(), *stages = json_array();
        printf("%-30s %8.2f %8.2f %8.2f %8.2f\n", words[i], bytes[0], bytes[1], bytes[2], bytes[3]);
        for (int zero = 0; zero < 4; zero++) json_array_append_new(stages, json_make_number(bytes[zero]));
        json_object_set_new(line, "dtype", json_string(words[i]));
        json_object_set_new(line, "by_zero", stages);
        json_array_append_new(lines, line);
    }
    json_object_set_new(object, "ranks", json_integer(n_ranks));
    json_object_set_new(object, "bytes_a_weight", lines);
}

static void largest_that_fits(const PlanRun *plan, double gigabytes, int n_ranks, int zero, bool recomputes,
                              PrecisionKind precision, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "-");
    for (int i = 0; i < N_RUNGS; i++) {
        PlanRun one = with_model(plan, &rungs[i], n_ranks, n_ranks);
        PlanFigures figures;
        Error unheard = {0};
        PlanLayout layout = {.size = {1, n_ranks, 1, 1, 1},
                             .schedule = SCHEDULE_1F1B,
                             .n_chunks = 1,
                             .zero = zero,
                             .micro_batch = 1,
                             .recompute = recomputes,
                             .precision = precision};
        if (plan_layout_apply(&one, &layout, &unheard) != STATUS_OK) continue;
        if (plan_figures(&one, &figures, &unheard) != STATUS_OK) continue;
        bool fits = (double)figures.rank[figures.most].total <= gigabytes * 1e9 - 0.5e9;
        plan_figures_free(&figures);
        if (!fits) return;
        snprintf(text, n_bytes, "%s", rungs[i].name);
    }
}

/* Data parallelism alone, of one sequence a rank, every block recomputed: planned. */
static void print_largest(const PlanRun *plan, json_t *object) {
    json_t *lines = json_array();
    static const double devices[] = {16, 32, 80, 141};
    static const struct {
        const char *words;
        PrecisionKind precision;
        int n_ranks, zero;
    } rows[] = {{"f32, alone", PRECISION_F32, 1, 0},
                {"mixed, alone", PRECISION_BF16, 1, 0},
                {"pure-bf16, alone", PRECISION_PURE_BF16, 1, 0},
                {"mixed, ZeRO 1 over 8", PRECISION_BF16, 8, 1},
                {"mixed, ZeRO 3 over 8", PRECISION_BF16, 8, 3},
                {"mixed, ZeRO 3 over 64", PRECISION_BF16, 64, 3}};
    printf(
        "\nthe largest model of the ladder that fits, one sequence of %lld tokens a rank, every block computed "
        "again; planned:\n%-30s",
        (long long)plan->train.values.train.sequence, "");
    for (int i = 0; i < 4; i++) printf(" %5.0f GB", devices[i]);
    printf("\n");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        json_t *line = json_object(), *largest = json_object();
        printf("%-30s", rows[r].words);
        for (int i = 0; i < 4; i++) {
            char text[16], device[16];
            largest_that_fits(plan, devices[i], rows[r].n_ranks, rows[r].zero, true, rows[r].precision, text,
                              sizeof text);
            printf(" %8s", text);
            snprintf(device, sizeof device, "%.0f GB", devices[i]);
            json_object_set_new(largest, device, *text == '-' ? json_null() : json_string(text));
        }
        printf("\n");
        json_object_set_new(line, "how", json_string(rows[r].words));
        json_object_set_new(line, "largest", largest);
        json_array_append_new(lines, line);
    }
    json_object_set_new(object, "largest_that_fits", lines);
}

/* ---- Ladder */

static void print_rung(const PlanRun *one, const Rung *rung, const TunedLayout *best, json_t *line) {
    const ModelConfig *model = &one->train.values.model;
    const TrainOptions *train = &one->train.values.train;
    char recompute[24];
    double tokens = TOKENS_A_PARAMETER * parameters_of((double)model->n_layers, (double)model->n_channels,
                                                       (double)model->vocabulary);
    double flops = model_flops_standard(model, train->batch, train->sequence, 0.0) / best->seconds;
    double days = tokens / best->tokens_per_s / 86400.0;
    printf("%-6s %6d %4d %4d %4d %5d %6lld %9s %10s %9.2f %7.1f%% %9.3g\n", rung->name, one->n_ranks,
           best->layout.size[AXIS_DP], best->layout.size[AXIS_TP], best->layout.size[AXIS_PP],
           best->layout.zero, (long long)best->layout.micro_batch,
           recompute_text(best->layout.recompute, recompute, sizeof recompute),
           format_bytes((uint64_t)best->bytes).text, flops * 1e-15, 100.0 * best->mfu, days);
    json_object_set_new(line, "peak_bytes", json_make_number(best->bytes));
    json_object_set_new(line, "flops_per_s", json_make_number(flops));
    json_object_set_new(line, "mfu", json_make_number(best->mfu));
    json_object_set_new(line, "days", json_make_number(days));
}

static void print_ladder(PlanRun *plan, json_t *object) {
    static const char *const shown[] = {"117M", "345M", "750M", "1.3B", "13B", "175B", "1T"};
    json_t *lines = json_array();
    printf("on %s, %d tokens a parameter (Hoffmann et al. 2022), sequences of %lld:\n",
           plain(plan->machine.machine.device.name).text, TOKENS_A_PARAMETER,
           (long long)plan->train.values.train.sequence);
    printf("%-6s %6s %4s %4s %4s %5s %6s %9s %10s %9s %8s %9s\n", "model", "GPUs", "dp", "tp", "pp", "ZeRO",
           "micro", "recompute", "memory", "PFLOP/s", "MFU", "days");
    for (int i = 0; i < N_RUNGS; i++) {
        bool is_shown = false;
        for (size_t k = 0; k < sizeof shown / sizeof shown[0]; k++)
            is_shown = is_shown || strcmp(shown[k], rungs[i].name) == 0;
        TunedLayout last = {0};
        int64_t last_batch = 0;
        for (int n = 64; is_shown && n <= 4096; n *= 4) {
            PlanRun one = with_model(plan, &rungs[i], n, batch_for(plan, rungs[i].batch_tokens, 1));
            Arena arena = {0};
            TunedLayout best;
            if (one.train.values.train.batch < n / 64) continue;
            json_t *line = json_object();
            json_object_set_new(line, "model", json_string(rungs[i].name));
            json_object_set_new(line, "devices", json_integer(n));
            json_array_append_new(lines, line);
            if (tune_quickly(&one, &best)) {
                if (one.train.values.train.batch == last_batch && last.seconds < best.seconds) {
                    best = last; /* a batch that is too small for all: the others are idle */
                    best.mfu /= 4.0;
                }
                last = best;
                last_batch = one.train.values.train.batch;
                print_rung(&one, &rungs[i], &best, line);
                json_object_set_new(line, "layout",
                                    json_make_text(plan_layout_text(&one, &best.layout, &arena)));
            } else
                printf("%-6s %6d   does not fit, or the batch of %lld is too small\n", rungs[i].name, n,
                       (long long)one.train.values.train.batch);
            arena_free(&arena);
        }
    }
    printf(
        "where dp x tp x pp are fewer than the GPUs, the batch is too small for all, and the others are idle\n");
    json_object_set_new(object, "ladder", lines);
}

/* ---- Links */

static Status print_links(PlanRun *plan, json_t *object, Error *error) {
    const Machine *machine = &plan->machine.machine;
    json_t *lines = json_array();
    json_object_set_new(object, "links", lines);
    if (plan->n_ranks <= machine_ranks_a_host(machine, plan->n_ranks))
        return error_user(error,
                          "--table links is about what hosts send each other, and %s of %s are on one host; "
                          "raise --gpus",
                          format_things(plan->n_ranks, "device").text, plain(machine->device.name).text);
    printf("%s on %s, %s: a step as it is given, and the best layout, by links a host\n",
           plan->train.values.model.preset, format_things(plan->n_ranks, "device").text,
           plain(plan->machine.machine.device.name).text);
    printf("%6s %12s %10s %12s  %s\n", "links", "step", "waits", "best step", "its layout");
    for (int links = 1; links <= 8; links *= 2) {
        PlanRun one = *plan;
        PlanFigures figures;
        TunedLayout best;
        Arena arena = {0};
        json_t *line = json_object();
        double waited = 0.0;
        one.machine.machine.network.n_links = links;
        json_array_append_new(lines, line);
        TRY(plan_figures(&one, &figures, error));
        for (int i = 0; i < N_PHASES; i++) waited += figures.times.phase[i].waited;
        printf("%6d %12s %8.1f %%", links, format_duration(figures.times.seconds).text,
               100.0 * waited / figures.times.seconds);
        json_object_set_new(line, "links", json_integer(links));
        json_object_set_new(line, "step_ms", json_make_number(figures.times.seconds * 1e3));
        json_object_set_new(line, "comm_wait_ms", json_make_number(waited * 1e3));
        if (tune_with(&one, &(TuneOptions){.n_best = 10}, &best)) {
            const char *layout = plan_layout_text(&one, &best.layout, &arena);
            printf(" %12s  %s\n", format_duration(best.seconds).text, layout);
            json_object_set_new(line, "best_step_ms", json_make_number(best.seconds * 1e3));
            json_object_set_new(line, "best_layout", json_make_text(layout));
        } else printf(" %12s\n", "-");
        plan_figures_free(&figures);
        arena_free(&arena);
    }
    return STATUS_OK;
}

static Status print_json(const PlanRun *plan, json_t *object, Error *error) {
    if (plan->train.values.call.json && error->status == STATUS_OK) return json_print(stdout, object, error);
    json_decref(object);
    return error->status;
}

Status plan_table(PlanRun *plan, Error *error) {
    static const char *const commands[] = {
        [TABLE_NONE] = "", [TABLE_MEMORY] = "memory", [TABLE_LADDER] = "ladder", [TABLE_LINKS] = "links"};
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("plan --table"));
    json_object_set_new(object, "table", json_string(commands[plan->options.table]));
    json_object_set_new(object, "machine", json_make_text(plan->machine.machine.device.name));
    switch ((PlanTable)plan->options.table) {
    case TABLE_MEMORY:
        print_weight_bytes(plan->n_ranks > 1 ? plan->n_ranks : 8, object);
        print_largest(plan, object);
        break;
    case TABLE_LADDER: print_ladder(plan, object); break;
    case TABLE_LINKS: print_links(plan, object, error); break;
    case TABLE_NONE: break;
    }
    return print_json(plan, object, error);
}

/* ---- A budget */

/* A model of about so many parameters, as wide and deep as is usual: 64 channels a layer at 1B, more
 * above. */
static Rung shape_for(double n_parameters, double vocabulary) {
    double ratio = fmin(fmax(64.0 * pow(n_parameters / 1e9, 0.12), 48.0), 200.0), least = INFINITY;
    Rung rung = {"model", 1, 2, 128, 0.0};
    for (int64_t channels = 64, head; channels <= 65536; channels += head) { /* whole heads */
        double C = (double)channels, L = fmax(1.0, round(C / ratio));
        double apart = fabs(log(parameters_of(L, C, vocabulary) / n_parameters));
        head = channels < 2048 ? 64 : 128;
        if (apart >= least) continue;
        least = apart;
        rung = (Rung){"model", (int64_t)L, channels / head, channels, 0.0};
    }
    return rung;
}

Status plan_budget(PlanRun *plan, Error *error) {
    const PlanBudget budget = plan->budget;
    TunedLayout best = {0};
    Rung rung = {0};
    double vocabulary = (double)plan->train.values.model.vocabulary, n_parameters = 0.0, tokens = 0.0,
           mfu = 0.4;
    double peak = machine_peak_flops(&plan->machine.machine,
                                     (PrecisionKind)plan->train.values.train.precision, budget.n_devices);
    for (int round = 0; round < 4; round++) { /* until the layout's own rate is what was counted on */
        double flops = (double)budget.n_devices * peak * mfu * budget.seconds;
        n_parameters = sqrt(flops / 6.0 / TOKENS_A_PARAMETER);
        rung = shape_for(n_parameters, vocabulary);
        n_parameters = parameters_of((double)rung.layers, (double)rung.channels, vocabulary);
        double batch_tokens = fmin(fmax(0.5e6 * pow(n_parameters / 1e9, 0.33), 0.1e6), 4e6);
        PlanRun one = with_model(plan, &rung, (int)budget.n_devices,
                                 batch_for(plan, batch_tokens, (int)budget.n_devices));
        if (!tune_quickly(&one, &best))
            return error_user(
                error,
                "a model of %s parameters, which %s could train, does not fit there; give fewer "
                "days or more devices",
                format_count(n_parameters).text, plain_value(plan->options.budget).text);
        tokens = best.tokens_per_s * budget.seconds;
        mfu = best.mfu;
        plan->train.values.train.batch = one.train.values.train.batch;
    }
    Arena arena = {0};
    const char *layout = plan_layout_text(plan, &best.layout, &arena);
    printf("%lld x %s for %s: %s parameters on %s tokens\n", (long long)budget.n_devices,
           plain(plan->machine.machine.device.name).text, format_duration(budget.seconds).text,
           format_count(n_parameters).text, format_count(tokens).text);
    printf(
        "by C = 6 N D and D = %d N (Hoffmann et al. 2022), at the MFU of %.0f %% that its best layout reaches; %.3g "
        "FLOP, %.1f tokens a parameter\n",
        TOKENS_A_PARAMETER, 100.0 * mfu, 6.0 * n_parameters * tokens, tokens / n_parameters);
    printf("%s tokens/s, %s of memory\n\n", format_count(best.tokens_per_s).text,
           format_bytes((uint64_t)best.bytes).text);
    printf(
        "mpirun -n %lld pgpt train --layers %lld --heads %lld --channels %lld --context %lld --vocab %lld --batch "
        "%lld %s --steps %lld\n",
        (long long)budget.n_devices, (long long)rung.layers, (long long)rung.heads, (long long)rung.channels,
        (long long)plan->train.values.train.sequence, (long long)vocabulary,
        (long long)plan->train.values.train.batch, layout,
        (long long)(tokens / (double)plan->train.values.train.batch /
                    (double)plan->train.values.train.sequence));
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("plan --budget"));
    json_object_set_new(object, "machine", json_make_text(plan->machine.machine.device.name));
    json_object_set_new(object, "devices", json_integer(budget.n_devices));
    json_object_set_new(object, "seconds", json_make_number(budget.seconds));
    json_object_set_new(object, "parameters", json_make_number(n_parameters));
    json_object_set_new(object, "tokens", json_make_number(tokens));
    json_object_set_new(object, "layers", json_integer(rung.layers));
    json_object_set_new(object, "heads", json_integer(rung.heads));
    json_object_set_new(object, "channels", json_integer(rung.channels));
    json_object_set_new(object, "batch", json_integer(plan->train.values.train.batch));
    json_object_set_new(object, "mfu", json_make_number(best.mfu));
    json_object_set_new(object, "tokens_per_s", json_make_number(best.tokens_per_s));
    json_object_set_new(object, "peak_bytes", json_make_number(best.bytes));
    json_object_set_new(object, "layout", json_make_text(layout));
    arena_free(&arena);
    return print_json(plan, object, error);
}
