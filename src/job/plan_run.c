/* The options of a planned run go the way of a run's, up to its mesh. From there on ranks are planned one
 * after the other, each on communicators that are only named (plan/planned_mesh.h). */
#include "job/plan_run.h"

#include "base/text/plain.h"
#include "comm/algo/algo.h"
#include "device/device.h"
#include "job/plan_ranks.h"
#include "model/model_flops.h"
#include "plan/run_memory.h"
#include "train/model_mesh.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20 };

/* What tables and budgets take context and vocabulary from. */
#define GENERAL_MODEL "gpt3-xl"

static const char *const table_names[] = {"none", "memory", "ladder", "links", NULL};

const OptionSpec plan_option_specs[] = {
    OPTION_STRING("machine", PlanOptions, machine, "", "NAME|FILE",
                  "what it would run on: a100, cpu, ethernet, h100, h200, v100, or a file that ends in .ini; "
                  "default: by --device, else cpu",
                  .flags = OPTION_TRANSIENT),
    OPTION_INT("gpus", PlanOptions, n_gpus, 0, 0, MOST_RANKS,
               "devices, a rank each; 0: as many as the sizes of the axes multiply to",
               .flags = OPTION_TRANSIENT),
    OPTION_FLOAT("tokens", PlanOptions, n_tokens, 0.0, 0.0, 1e18,
                 "tokens of the whole run, as 300e9; 0: what --steps come to", .flags = OPTION_TRANSIENT),
    OPTION_STRING("draw", PlanOptions, draw, "", "FILE",
                  "draw the step, rank by rank, as 'pgpt lab timeline' does: FILE.svg",
                  .flags = OPTION_TRANSIENT),
    OPTION_BOOL(
        "tune", PlanOptions, tune, false,
        "search dp, tp, cp, ep, pp, chunks, schedule, ZeRO, micro-batch and recompute for the fastest "
        "layouts that fit, on as many of --gpus as are fastest; what is given is kept",
        .flags = OPTION_TRANSIENT),
    OPTION_INT("measure", PlanOptions, n_measured, 0, 0, 10,
               "of --tune: run so many of the best for a few steps, here, and compare",
               .flags = OPTION_TRANSIENT),
    OPTION_STRING("plan-out", PlanOptions, out, "", "DIR",
                  "of --tune: folder for its picture, and for the machine as --measure corrects it; default: "
                  "neither is written",
                  .flags = OPTION_TRANSIENT),
    OPTION_CHOICE(
        "table", PlanOptions, table, TABLE_NONE, table_names,
        "print a table instead: memory (bytes a weight, and the largest model that fits), ladder (117M "
        "to 1T on 64 to 4,096 GPUs), links (1, 2 and 4 links a host)",
        .flags = OPTION_TRANSIENT),
    OPTION_STRING("budget", PlanOptions, budget, "", "TEXT",
                  "the best model and number of tokens for devices and days, as '8 H200, 3 days'",
                  .flags = OPTION_TRANSIENT),
    OPTION_BOOL("print-machine", PlanOptions, print_machine, false,
                "print the machine's file, to begin one of your own with, and leave",
                .flags = OPTION_TRANSIENT),
    OPTION_END,
};

static const OptionGroup groups[] = {
    {.title = "Plan",
     .offset = offsetof(PlanRun, options) - offsetof(TrainRun, values),
     .specs = plan_option_specs},
    TRAIN_OPTION_GROUPS,
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "does it fit, and how long does it take?",
    "pgpt plan --model gpt2-xl --machine h200 --batch 64 --micro-batch 16 --tokens 10e9",
    "a large model on 3,072 GPUs, with a picture of the step",
    "pgpt plan --model 1t --machine a100 --gpus 3072 --tp 8 --pp 64 --micro-batch 1 --recompute 1 --draw step.svg",
    "a machine file of your own",
    "pgpt plan --machine h100 --print-machine > mine.ini",
    NULL,
};

const OptionCommand plan_command = {
    .name = "plan",
    .summary = "what a run needs and how long it takes, on any machine, before anything is launched",
    .description =
        "Takes every option of 'pgpt train' and a machine, builds the program of one rank of each kind, and says "
        "how many bytes each needs (as many as a run allocates), what is computed, moved and sent, how long a step "
        "takes and what holds it up. Nothing is launched or allocated. docs/PLAN.md says how times are found.\n\n"
        "Where nobody says, a machine's file chooses --dtype, and --batch is what GPT-3's paper has for the "
        "model's size.",
    .groups = groups,
    .examples = examples,
};

/* ---- Options */

static PlanRun *plan_of(TrainRun *run) {
    return (PlanRun *)(void *)run; /* its first member */
}

/* A call has one answer. */
static Status refuse_two_questions(const PlanOptions *options, bool has_trace, Error *error) {
    const struct {
        const char *name;
        bool is_given;
    } questions[] = {{"--table", options->table != TABLE_NONE},
                     {"--budget", *options->budget},
                     {"--tune", options->tune},
                     {"--print-machine", options->print_machine},
                     {"--draw", *options->draw},
                     {"--trace", has_trace}};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        if (!questions[i].is_given) continue;
        bool are_both_of_a_step = first && strcmp(first, "--draw") == 0;
        if (first && !are_both_of_a_step)
            return error_user(error, "%s and %s ask for different things; give one of them", first,
                              questions[i].name);
        first = questions[i].name;
    }
    return STATUS_OK;
}

static bool ends_in(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A budget says on what, and chooses the rest. */
static Status refuse_with_budget(const TrainRun *run, Error *error) {
    static const char *const names[] = {"machine", "gpus", "tokens", "batch", "layers", "heads", "channels"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (options_source(&run->options, names[i]) == OPTION_FROM_COMMAND)
            return error_user(error,
                              "--budget names the devices and finds model, batch and tokens; leave out --%s",
                              names[i]);
    }
    if (strcmp(run->values.model.preset, GENERAL_MODEL) != 0)
        return error_user(error, "--budget finds the model; leave out --model");
    return STATUS_OK;
}

static Status refuse_others(const TrainRun *run, Error *error) {
    static const char *const names[] = {"print-program", "ranks-per-host", "fault"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (options_source(&run->options, names[i]) == OPTION_FROM_COMMAND)
            return error_user(error, "--%s is of 'pgpt train'; leave it out of a plan", names[i]);
    }
    const PlanOptions *options = &((const PlanRun *)(const void *)run)->options;
    if (run->values.parallel.layout == LAYOUT_AUTO)
        return error_user(error, "--layout auto is of 'pgpt train'; --tune is what shows its choice");
    TRY(refuse_two_questions(options, *run->values.trace.file, error));
    if (*options->budget) TRY(refuse_with_budget(run, error));
    if (options->n_measured && !options->tune)
        return error_user(error, "--measure runs the best that --tune finds; give that too");
    if (*options->draw && !ends_in(options->draw, ".svg"))
        return error_user(error, "--draw %s: pictures are SVG; name a file that ends in .svg",
                          plain_value(options->draw).text);
    if (*options->out && !options->tune)
        return error_user(
            error, "--plan-out is for what --tune draws and writes; give that too, or --draw for a step");
    if (!run->values.call.print_mesh)
        return error_user(error, "--print-mesh is of 'pgpt train'; leave it out of a plan");
    return STATUS_OK;
}

static const char *machine_name(const PlanRun *plan) {
    int device = plan->train.values.train.device;
    if (*plan->options.budget) return plan->budget.machine;
    if (*plan->options.machine) return plan->options.machine;
    if (device > DEVICE_CUDA) return strchr(device_plan_names[device], ':') + 1;
    return device == DEVICE_CUDA ? "h200" : "cpu";
}

/* Kernels of the machine's device, whatever "cuda" means here. */
static Status choose_device(PlanRun *plan, Error *error) {
    TrainOptions *train = &plan->train.values.train;
    const MachineDevice *device = &plan->machine.machine.device;
    int kind = 0;
    while (device_plan_names[kind] && strcmp(device_plan_names[kind], device->device) != 0) kind++;
    if (!device_plan_names[kind] || kind == DEVICE_AUTO || kind == DEVICE_CUDA)
        return error_user(error,
                          "machine %s: device = %s is none that programs can be planned for; choose cpu, "
                          "cuda:h200, cuda:h100 or cuda:a100",
                          machine_name(plan), device->device);
    bool is_gpu = kind != DEVICE_CPU;
    if (is_gpu != machine_is_gpu(&plan->machine.machine))
        return error_user(error,
                          is_gpu ? "machine %s: cores are of a CPU, and device = %s is none; leave out one"
                                 : "machine %s: device = %s, and no cores; give how many a host has",
                          machine_name(plan), device->device);
    if (train->device != DEVICE_AUTO && (train->device != DEVICE_CPU) != is_gpu)
        return error_user(error, "--device %s and machine %s, which has %s; leave --device out",
                          device_plan_names[train->device], machine_name(plan), is_gpu ? "GPUs" : "none");
    if (train->device <= DEVICE_CUDA) train->device = kind;
    if (options_set(&plan->train.options, "dtype", device->dtype, OPTION_FROM_PRESET, error) != STATUS_OK)
        error_prefix(error, "machine %s: ", machine_name(plan));
    return error->status;
}

/* Parameters by the usual formula, before there is a table. */
static double about_parameters(const ModelConfig *model) {
    double C = (double)model->n_channels;
    return 12.0 * (double)model->n_layers * C * C + (double)model->vocabulary * C;
}

/* GPT-3's batches (Brown et al. 2020, table 2.1), in tokens, by size of the model. */
static double usual_batch_tokens(double n_parameters) {
    static const double sizes[][2] = {{1e9, 0.5e6}, {2e9, 1e6}, {12e9, 2e6}, {1e18, 3.2e6}};
    int i = 0;
    while (n_parameters > sizes[i][0]) i++;
    return sizes[i][1];
}

static Status choose_batch(PlanRun *plan, Error *error) {
    TrainRun *run = &plan->train;
    const ModelConfig *model = &run->values.model;
    double T = (double)(run->values.train.sequence ? run->values.train.sequence : model->context);
    double n = usual_batch_tokens(about_parameters(model));
    bool is_small = model->n_channels < 768; /* made for one computer */
    if (is_small || options_source(&run->options, "batch") >= OPTION_FROM_RUN) return STATUS_OK;
    double ranks = plan->n_ranks > 1 ? plan->n_ranks : 1.0;
    double share = fmax(1.0, round(n / T / ranks));
    double even = exp2(fmax(0.0, floor(log2(share)) - 2.0)); /* which many micro-batches divide */
    double sequences = round(share / even) * even * ranks;   /* the ranks share it evenly */
    return options_set_int(&run->options, "batch", (int64_t)sequences, OPTION_FROM_PRESET, error);
}

static Status prepare(TrainRun *run, Error *error) {
    PlanRun *plan = plan_of(run);
    const Machine *machine = &plan->machine.machine;
    const int64_t *size = run->values.parallel.size;
    TRY(refuse_others(run, error));
    if (*plan->options.budget) TRY(plan_budget_parse(plan->options.budget, &plan->budget, error));
    TRY(machine_open(&plan->machine, machine_name(plan), error));
    TRY(choose_device(plan, error));
    int64_t n_ranks = 1;
    for (int axis = 0; axis < N_AXES; axis++)
        if (__builtin_mul_overflow(n_ranks, size[axis] ? size[axis] : 1, &n_ranks)) n_ranks = INT64_MAX / 2;
    if (n_ranks > MOST_RANKS && !plan->options.n_gpus)
        return error_user(error, "the axes multiply to more than the %d ranks that can be planned",
                          MOST_RANKS);
    plan->n_ranks = (int)(plan->options.n_gpus ? plan->options.n_gpus : n_ranks);
    if (*plan->options.budget) plan->n_ranks = (int)plan->budget.n_devices;
    bool gives_out = plan->options.tune || *plan->options.budget; /* the tuner does */
    run->n_planned = gives_out ? (int)n_ranks : plan->n_ranks;
    run->is_any_layout = gives_out;
    TRY(choose_batch(plan, error));
    run->values.call.host_ranks = machine_ranks_a_host(machine, plan->n_ranks);
    if (machine->host.n_cores && !run->values.train.n_threads) {
        int64_t threads = machine->host.n_cores / machine_ranks_a_host(machine, plan->n_ranks);
        run->values.train.n_threads = threads > 1 ? threads : 1;
    }
    return machine_check_ranks(machine, plan->n_ranks, error);
}

/* A text that the user names is read, so that what a run would find wrong is found; the built-in one is too
 * short for large models, and then there is none. */
static Status read_data(TrainRun *run, Error *error) {
    TrainCommand *values = &run->values;
    Error unheard = {0};
    bool is_given = options_source(&run->options, "data") >= OPTION_FROM_RUN;
    if (run->source.dataset) return STATUS_OK; /* read, to count --epochs */
    data_source_encode(&run->source, &values->data, (uint64_t)values->train.seed, values->train.sequence,
                       is_given ? error : &unheard);
    if (!is_given && unheard.status != STATUS_OK) run->source.dataset = NULL;
    return error->status;
}

/* Tables and budgets are of models of any size, with GPT-2's vocabulary and GPT-3's context. */
static bool asks_in_general(int n_words, char *const *words) {
    for (int i = 0; i < n_words; i++)
        if (strncmp(words[i], "--table", 7) == 0 || strncmp(words[i], "--budget", 8) == 0) return true;
    return false;
}

Status plan_run_open(PlanRun *plan, int n_words, char *const *words, Error *error) {
    TrainRun *run = &plan->train;
    Arena arena = {0};
    char **all = ARENA_ARRAY(&arena, char *, n_words + 3);
    int n = 0;
    all[n++] = arena_strdup(&arena, "--print-mesh=true"); /* not a switch that a word may stand behind */
    if (asks_in_general(n_words, words)) {                /* the user's --model comes later, and wins */
        all[n++] = arena_strdup(&arena, "--model");
        all[n++] = arena_strdup(&arena, GENERAL_MODEL);
    }
    memcpy(all + n, words, (size_t)n_words * sizeof *words);
    run->command = &plan_command;
    run->prepare = prepare;
    train_run(run, n_words + n, all, error);
    if (error->status == STATUS_OK && run->outcome == TRAIN_RUN_MESH) read_data(run, error);
    if (error->status == STATUS_OK && run->outcome == TRAIN_RUN_MESH) train_async_check(run, error);
    arena_free(&arena);
    return error->status;
}

void plan_run_close(PlanRun *plan, Error *error) {
    train_run_close(&plan->train, error);
    machine_close(&plan->machine);
}

/* ---- One rank */

static uint64_t device_room(const Machine *machine) {
    return (uint64_t)(machine->device.memory_gib * 1073741824.0);
}

/* For --offload auto: a device's memory, and a rank's part of its host's. */
static MemoryRoom room_of(const PlanRun *plan) {
    const Machine *machine = &plan->machine.machine;
    double host = machine->host.host_memory_gib * 1073741824.0;
    int a_host = machine_ranks_a_host(machine, mesh_n_ranks(&plan->train.shape));
    return (MemoryRoom){.device = device_room(machine),
                        .host = host > 0.0 ? (uint64_t)(host / a_host) : UINT64_MAX};
}

Status plan_visit_rank(PlanRun *plan, int rank, bool step_only, PlanVisit visit, void *context,
                       Error *error) {
    TrainRun one = plan->train;
    const ModelConfig *config = &one.values.model;
    PlannedRank planned;
    PlannedSetup how = {.shape = &one.shape,
                        .config = config,
                        .layout = train_has_pipeline(&one) ? &one.layout : NULL,
                        .all_reduce = comm_algorithm(one.values.parallel.all_reduce),
                        .only_enqueues = machine_is_gpu(&plan->machine.machine),
                        .hosts = one.compression.is_across_hosts ? one.hosts : NULL};
    TRY(planned_rank_open(&planned, &how, rank, error));
    one.launch = &planned.launch;
    one.mesh = planned.mesh;
    one.pipeline = planned.pipeline;
    one.saving = planned.saving;
    train_part_choose(&one);
    TrainerSetup setup = train_setup(&one);
    MemoryRoom room = room_of(plan);
    if (!step_only) run_memory_plan_offload(&setup, &room, &one.offload, error);
    if (error->status != STATUS_OK) {
        planned_rank_close(&planned);
        return error->status;
    }
    if (step_only) trainer_plan_step(&one.trainer, &setup, error);
    else trainer_plan(&one.trainer, &setup, error);
    if (error->status == STATUS_OK) visit(context, &one.trainer, error);
    trainer_close(&one.trainer);
    planned_rank_close(&planned);
    return error->status;
}

/* ---- Figures */

static void derive(PlanRun *plan, PlanFigures *figures) {
    const TrainOptions *train = &plan->train.values.train;
    const Machine *machine = &plan->machine.machine;
    const ModelConfig *model = &plan->train.values.model;
    double n_ranks = mesh_n_ranks(&plan->train.shape), seconds = figures->times.seconds;
    int64_t n_chunks = (int64_t)plan->train.shape.size[AXIS_PP] * figures->schedule.shape.n_chunks;
    double batch_tokens = (double)train->batch * (double)train->sequence;
    figures->model_flops = model_flops_standard(model, train->batch, train->sequence, 0.0);
    figures->standard_flops = model_flops_standard(
        model, train->batch, train->sequence,
        step_recomputed_part(train->recompute, train->recompute_blocks, n_chunks, model->n_layers));
    figures->sums = plan_sums(figures);
    figures->counted_flops = figures->sums.flops;
    figures->useful_flops = figures->sums.useful_flops;
    double peak = machine_peak_flops(machine, (PrecisionKind)train->precision, (int64_t)n_ranks);
    figures->mfu = figures->model_flops / seconds / n_ranks / peak;
    figures->hfu = figures->counted_flops / seconds / n_ranks / peak;
    figures->tokens_per_s = batch_tokens / seconds;
    figures->n_run_tokens =
        plan->options.n_tokens > 0.0 ? plan->options.n_tokens : batch_tokens * (double)train->n_steps;
    figures->run_seconds = figures->n_run_tokens / figures->tokens_per_s;
    figures->joules = machine->device.watts * n_ranks * figures->run_seconds;
    figures->usable = device_room(machine);
    for (int i = 0; i < figures->n_ranks_built; i++)
        if (figures->host_needed < figures->rank[i].host) figures->host_needed = figures->rank[i].host;
    if (figures->host_needed && machine_is_gpu(machine) && machine->host.host_memory_gib > 0.0) {
        figures->host_needed *= (uint64_t)machine_ranks_a_host(machine, (int64_t)n_ranks);
        figures->host_usable = (uint64_t)(machine->host.host_memory_gib * 1073741824.0);
    } else figures->host_needed = 0;
    figures->fits =
        figures->rank[figures->most].total <= figures->usable && figures->host_needed <= figures->host_usable;
}

uint64_t plan_bytes_without_samples(const PlanFigures *figures) {
    uint64_t most = 0;
    for (int i = 0; i < figures->n_ranks_built; i++) {
        uint64_t n_bytes = figures->rank[i].total - figures->rank[i].samples;
        if (most < n_bytes) most = n_bytes;
    }
    return most;
}

static StepSchedule schedule_of(const TrainRun *run) {
    const OptimizerOptions *optimizer = &run->values.optimizer;
    return (StepSchedule){.kind = run->layout.kind,
                          .shape = {.n_stages = run->shape.size[AXIS_PP], .n_chunks = run->layout.n_chunks},
                          .stages_meet = optimizer->clip > 0.0 && optimizer->clip_style != CLIP_CHECK};
}

Status plan_figures(PlanRun *plan, PlanFigures *figures, Error *error) {
    TrainRun *run = &plan->train;
    const Machine *machine = &plan->machine.machine;
    int n_ranks = mesh_n_ranks(&run->shape);
    *figures = (PlanFigures){.schedule = schedule_of(run), .links = links_of(machine, n_ranks)};
    SpeedUse use = {n_ranks, (int)run->values.train.n_threads, (PrecisionKind)run->values.train.precision};
    figures->speed = rank_speed(machine, &use);
    figures->schedule.most_speed = 1.0 / figures->speed.turns;
    RankTimes *times = ARENA_ARRAY(&figures->arena, RankTimes, run->shape.size[AXIS_PP]);
    TRY_GOTO(plan_ranks(plan, figures, times, error), failed);
    TRY_GOTO(step_times(&figures->schedule, times, machine->network.step_us * 1e-6, &figures->arena,
                        &figures->times, error),
             failed);
    derive(plan, figures);
    return STATUS_OK;
failed:
    plan_figures_free(figures);
    return error->status;
}

void plan_figures_free(PlanFigures *figures) {
    arena_free(&figures->arena);
    *figures = (PlanFigures){0};
}
