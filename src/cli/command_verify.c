/* pgpt verify: a table, one line a layout. */
#include "cli/commands.h"

#include "base/text/format.h"
#include "base/text/json.h"
#include "device/device.h"
#include "train/verify.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    int64_t n_steps, batch, left_out;
    int precision, device;
    double tolerance;
    int64_t n_threads;
    bool json;
} VerifyCallOptions;

typedef struct {
    ModelConfig model;
    VerifyCallOptions call;
} VerifyCommand;

static const OptionSpec call_specs[] = {
    OPTION_INT("steps", VerifyCallOptions, n_steps, 20, 1, 10000, "optimizer steps in every layout"),
    OPTION_INT("batch", VerifyCallOptions, batch, 0, 0, 1 << 20,
               "sequences a step; 0: two a rank and one more, so that ranks have unequal shares"),
    OPTION_CHOICE("device", VerifyCallOptions, device, DEVICE_AUTO, device_names,
                  "where to compute; auto: on a GPU if there is one"),
    OPTION_CHOICE("dtype", VerifyCallOptions, precision, PRECISION_F32, precision_names,
                  "numbers to train in"),
    OPTION_FLOAT(
        "tolerance", VerifyCallOptions, tolerance, 0.0, 0.0, 1.0,
        "largest deviation: relative for losses, of a tensor's largest value for weights; 0: 1e-5 and 1e-4 "
        "in f32, and what rounding makes of it in other numbers (0.02 and 0.1 in bf16)"),
    OPTION_INT(
        "break", VerifyCallOptions, left_out, 0, 0, 1 << 20,
        "leave out the sum of this bucket of gradients, counted from 1, to see that it is noticed; 0: none"),
    OPTION_INT("threads", VerifyCallOptions, n_threads, 0, 0, 4096,
               "CPU threads a rank; 0: its share of the cores"),
    OPTION_JSON(VerifyCallOptions, json),
    OPTION_END,
};

/* Some twice what 20 steps of the default model are off by, on 2 and 4 ranks (tf32 has f16's mantissa, and
 * its tolerance). A sum left out is off by more. An update divides by the size of a gradient, so where that
 * is small rounding shows in the weights first. */
typedef struct {
    double loss, weight;
} Tolerance;

static Tolerance default_tolerance(PrecisionKind kind) {
    switch (kind) {
    case PRECISION_TF32:
    case PRECISION_F16: return (Tolerance){4e-3, 1.2e-2};
    case PRECISION_PURE_F16: return (Tolerance){2e-2, 2e-2};
    case PRECISION_BF16: return (Tolerance){2e-2, 0.1};
    case PRECISION_PURE_BF16: return (Tolerance){0.1, 0.1};
    default: return (Tolerance){1e-5, 1e-4};
    }
}

static const OptionGroup groups[] = {
    OPTION_GROUP("Verification", VerifyCommand, call, call_specs),
    OPTION_GROUP("Model", VerifyCommand, model, model_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "check every layout of eight ranks",
    "mpirun -n 8 pgpt verify",
    "see that a forgotten sum is found",
    "mpirun -n 4 pgpt verify --break 1",
    "check another kind of model",
    "mpirun -n 4 pgpt verify --norm rmsnorm --mlp swiglu --position rotary --kv-heads 2",
    NULL,
};

const OptionCommand verify_command = {
    .name = "verify",
    .summary = "check that every layout trains as one process does",
    .description =
        "Trains a small model serially, then in every layout that the number of ranks allows, and compares losses and "
        "weights after each step. One line a layout; where one differs, the first step and tensor in which it does. Exits 1 if "
        "any differs. The model is small unless its options are given.",
    .groups = groups,
    .examples = examples,
};

typedef struct {
    Launch *launch;
    Options options;
    VerifyCommand values;
    Backend backend;
    bool has_backend;
    VerifyOptions verify;
    VerifyReference reference;
    int n_differ;
    const char *transport; /* of the sums over ranks, in the last layout */
    double loss_deviation, weight_deviation;
} Verify;

/* Of two channels layernorm leaves little but a sign, which rounding turns where they are nearly equal: no
 * layout would train like another, and none were wrong. One channel is 0 for all. */
static Status check_channels(const ModelConfig *model, Error *error) {
    enum { FEWEST_CHANNELS = 4 };
    if (model->norm != NORM_LAYERNORM || model->n_channels == 1 || model->n_channels >= FEWEST_CHANNELS)
        return STATUS_OK;
    return error_user(
        error,
        "--channels %lld: layernorm makes large differences of rounding with so few, and layouts cannot be "
        "compared; give at least %d, or --norm rmsnorm",
        (long long)model->n_channels, FEWEST_CHANNELS);
}

/* Small, but with everything that a layout could get wrong: several blocks, an odd vocabulary, dropout. */
static Status read_options(Verify *run, int n_words, char *const *words, Error *error) {
    static const struct {
        const char *name, *value;
    } small[] = {{"layers", "3"},   {"heads", "4"},  {"channels", "48"},
                 {"context", "24"}, {"vocab", "61"}, {"dropout", "0.1"}};
    TRY(options_init(&run->options, &verify_command, &run->values, error));
    TRY(options_parse(&run->options, n_words, words, error));
    if (run->options.help_wanted) return STATUS_OK;
    if (options_source(&run->options, "model") == OPTION_FROM_COMMAND) {
        TRY(config_apply_preset(&run->options, run->values.model.preset, error));
    }
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        if (options_source(&run->options, small[i].name) < OPTION_FROM_PRESET)
            TRY(options_set(&run->options, small[i].name, small[i].value, OPTION_FROM_PRESET, error));
    }
    VerifyCallOptions *call = &run->values.call;
    int n_ranks = run->launch->world.size;
    if (!call->batch) call->batch = 2 * n_ranks + 1;
    if (call->batch < n_ranks) {
        return error_user(error, "--batch %lld has fewer sequences than there are ranks (%d); raise it",
                          (long long)call->batch, n_ranks);
    }
    if (call->left_out && n_ranks == 1) {
        return error_user(
            error, "--break leaves out a sum over ranks, and there is one rank; start several (mpirun -n)");
    }
    TRY(config_complete(&run->values.model, run->values.model.vocabulary, error));
    TRY(check_channels(&run->values.model, error));
    DeviceOptions device = {.kind = call->device,
                            .index = run->launch->host_rank,
                            .n_threads = launch_threads(run->launch, (int)call->n_threads),
                            .precision = (PrecisionKind)call->precision,
                            .n_streams = DEVICE_STREAMS};
    TRY(device_backend_open(&run->backend, &device, error));
    run->has_backend = true;
    Tolerance tolerance = default_tolerance((PrecisionKind)call->precision);
    if (call->tolerance > 0.0) tolerance = (Tolerance){call->tolerance, call->tolerance};
    run->verify = (VerifyOptions){.config = &run->values.model,
                                  .backend = &run->backend,
                                  .launch = run->launch,
                                  .precision = precision_of((PrecisionKind)call->precision),
                                  .n_steps = call->n_steps,
                                  .batch = call->batch,
                                  .tolerance = tolerance.loss,
                                  .weight_tolerance = tolerance.weight,
                                  .left_out = (int)call->left_out};
    return STATUS_OK;
}

/* Ranks that were told different things would wait for each other. */
static Status check_same_options(Verify *run, Error *error) {
    if (run->launch->world.size == 1) return STATUS_OK;
    TRY(launch_check_same(run->launch, "--help", run->options.help_wanted ? "yes" : "no", error));
    return launch_check_options(run->launch, &run->options, error);
}

static void say_difference(const Verify *run, const VerifyResult *result) {
    if (result->parameter < 0) {
        printf("    first difference in step %lld: the loss is %.9g instead of %.9g\n",
               (long long)result->step, result->value, result->wanted);
        return;
    }
    const Parameter *parameter = &run->reference.table.parameter[result->parameter];
    printf("    first difference in step %lld: %s, element %lld, is %.9g instead of %.9g (rank %d)\n",
           (long long)result->step, parameter->name, (long long)result->element, result->value,
           result->wanted, result->rank);
}

static Status run_case(Verify *run, const VerifyCase *layout, Error *error) {
    VerifyResult result;
    TRY(verify_run(&run->verify, &run->reference, layout, &result, error));
    run->n_differ += result.differs;
    run->transport = result.transport;
    if (result.loss_deviation > run->loss_deviation) run->loss_deviation = result.loss_deviation;
    if (result.weight_deviation > run->weight_deviation) run->weight_deviation = result.weight_deviation;
    if (!run->launch->is_root) return STATUS_OK;
    char name[128];
    printf("%-52s %10.1e %10.1e %9s  %s\n", verify_case_name(layout, name, sizeof name),
           result.loss_deviation, result.weight_deviation, format_duration(result.seconds).text,
           result.differs ? "DIFFERS" : "same");
    if (result.differs) say_difference(run, &result);
    fflush(stdout);
    return STATUS_OK;
}

/* The layouts that differ are a result and an error: one line says both. */
static Status print_json(const Verify *run, int n_cases, Error *failure, Error *error) {
    json_t *object = json_object();
    json_object_set_new(object, "command", json_string("verify"));
    json_object_set_new(object, "ranks", json_integer(run->launch->world.size));
    json_object_set_new(object, "layouts", json_integer(n_cases));
    json_object_set_new(object, "differ", json_integer(run->n_differ));
    json_object_set_new(object, "carrier", json_string(run->transport));
    json_object_set_new(object, "loss_deviation", json_make_number(run->loss_deviation));
    json_object_set_new(object, "weight_deviation", json_make_number(run->weight_deviation));
    json_object_set_new(object, "tolerance", json_make_number(run->verify.tolerance));
    json_object_set_new(object, "weight_tolerance", json_make_number(run->verify.weight_tolerance));
    if (failure->status != STATUS_OK) error_add_json(failure, object);
    return json_print(stdout, object, error);
}

static Status run_cases(Verify *run, Error *error) {
    int n_cases;
    VerifyChoice choice = {.n_ranks = run->launch->world.size,
                           .n_layers = run->verify.config->n_layers,
                           .batch = run->verify.batch,
                           .has_algorithms = !backend_has_own_memory(&run->backend),
                           .breaks = run->verify.left_out > 0,
                           .is_f32 = run->verify.precision.weight == DTYPE_F32};
    const VerifyCase *cases = verify_cases(&choice, &run->options.arena, &n_cases);
    bool speaks = run->launch->is_root;
    char text[256];
    const ModelConfig *model = run->verify.config;
    device_meet(&run->backend, &run->launch->world, run->launch->host_size, error);
    TRY(launch_agree(run->launch, error));
    TRY(verify_reference_open(&run->reference, &run->verify, error));
    if (speaks) {
        printf("%s\n", launch_describe(run->launch, run->backend.n_threads, text, sizeof text));
        printf(
            "%lld layers, %lld channels, %s parameters, %lld steps of %lld x %lld tokens; serially in %s, loss %.6f "
            "to %.6f\n\n",
            (long long)model->n_layers, (long long)model->n_channels,
            format_count((double)run->reference.table.n_elements).text, (long long)run->verify.n_steps,
            (long long)run->verify.batch, (long long)model->context,
            format_duration(run->reference.seconds).text, run->reference.losses[0],
            run->reference.losses[run->verify.n_steps - 1]);
        printf("%-52s %10s %10s %9s\n", "layout", "loss", "weights", "time");
    }
    for (int i = 0; i < n_cases; i++) TRY(run_case(run, &cases[i], error));
    if (speaks && backend_has_own_memory(&run->backend))
        printf("\non %s, sums over ranks by %s", device_describe(&run->backend, text, sizeof text),
               run->transport);
    if (speaks)
        printf("\n%d layouts, %d differ (tolerance %g of the loss, %g of a tensor's largest weight)\n",
               n_cases, run->n_differ, run->verify.tolerance, run->verify.weight_tolerance);
    Error failure = {0};
    if (run->n_differ)
        error_failed(&failure, "%d of %d layouts do not train as one process does", run->n_differ, n_cases);
    if (speaks && run->values.call.json) TRY(print_json(run, n_cases, &failure, error));
    run->launch->is_agreed = run->n_differ > 0;
    *error = failure;
    return error->status;
}

Status command_verify(Launch *launch, int n_words, char *const *words, Error *error) {
    Verify run = {.launch = launch};
    read_options(&run, n_words, words, error);
    if (launch_agree(launch, error) == STATUS_OK) check_same_options(&run, error);
    if (error->status == STATUS_OK) {
        if (!run.options.help_wanted) run_cases(&run, error);
        else if (launch->is_root) command_show_help(&verify_command);
    }
    launch_fail(launch, error);
    verify_reference_close(&run.reference);
    if (run.has_backend) run.backend.close(run.backend.context);
    options_free(&run.options);
    return error->status;
}
