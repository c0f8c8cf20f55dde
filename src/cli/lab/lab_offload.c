/* pgpt lab offload: what offloading costs and what it brings, for every choice of what is kept elsewhere.
 *
 * A step is timed with each choice, by the benchmark's own training steps (bench/step.h), in this process and
 * in turn. What bounds it is measured beside: the bus or the disk, the host's memory, and the step that
 * offloads nothing. The largest model that fits is planned, not run, so that its memory need not be here. */
#include "cli/lab/lab_offload.h"

#include "base/file/scratch_file.h"
#include "base/system/memory.h"
#include "base/text/plain.h"
#include "run/interrupt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 1 << 30, USUAL_VOCABULARY = 65 };

#define ALL_CHOICES                                                                                          \
    "nothing,optimizer,gradients,weights,activations,optimizer+activations,optimizer+gradients,"             \
    "optimizer+gradients+weights+activations"

static const OptionSpec specs[] = {
    OPTION_STRING(
        "choices", OffloadCall, choices, "all", "LIST",
        "what is offloaded: nothing, optimizer, gradients, weights, activations, or several of them "
        "with + between; all: each alone and some together, those that cannot be here left out"),
    OPTION_STRING("folder", OffloadCall, folder, "", "DIR",
                  "offload to a file in this folder; without it, a GPU to the host's memory, a CPU to a file "
                  "in the current folder",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_STRING(
        "memory", OffloadCall, memory, "", "LIST",
        "memory that the largest model is planned for: 16GiB, or several, 8GiB,16GiB,80GiB; without "
        "it, what this device has free",
        .flags = OPTION_MAY_BE_EMPTY),
    OPTION_STRING("host-memory", OffloadCall, host_memory, "", "BYTES",
                  "and what the host has for it beside a GPU; without it, what this host has free",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_INT("batch", OffloadCall, setup.bench.batch, 8, 1, MANY, "sequences a step"),
    OPTION_INT("micro-batch", OffloadCall, setup.bench.micro_batch, 0, 0, MANY,
               "sequences at a time (gradient accumulation); must divide the batch; 0: all"),
    OPTION_INT("sequence", OffloadCall, setup.bench.sequence, 0, 0, MANY,
               "tokens of a sequence; 0: the model's context"),
    OPTION_INT("recompute", OffloadCall, setup.bench.recompute, 0, 0, 1000,
               "activation checkpointing: keep only every Nth block's input; 0: keep everything"),
    OPTION_FLOAT("clip", OffloadCall, setup.optimizer.clip, 0.0, 0.0, 1e30,
                 "gradient clipping at this norm: the update then waits for the whole gradient; 0: none",
                 .flags = OPTION_F32),
    OPTION_INT("steps", OffloadCall, setup.bench.n_steps, 5, 1, 1000000, "timed steps, of which the median"),
    OPTION_INT("warmup-steps", OffloadCall, setup.bench.n_warmup_steps, 2, 0, 1000000,
               "steps before those, not timed"),
    OPTION_CHOICE("device", OffloadCall, setup.bench.device, DEVICE_AUTO, device_plan_names,
                  "where to compute; auto: on a GPU if there is one; cuda:h200 and so on: nothing is timed, "
                  "largest models are planned for it"),
    OPTION_CHOICE("dtype", OffloadCall, setup.bench.precision, PRECISION_F32, precision_names,
                  "precision to compute in"),
    OPTION_THREADS(OffloadCall, setup.bench.n_threads),
    OPTION_BOOL("quick", OffloadCall, quick, false, "nano and few steps: below a minute on two cores"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", OffloadCommand, call, specs),
    OPTION_GROUP("Model", OffloadCommand, call.setup.model, model_option_specs),
    OPTION_GROUP("Output", OffloadCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "optimizer state, activations and both in a file, and the largest models in 16 GiB",
    "pgpt lab offload --model gpt2 --batch 4 --sequence 256 --folder /fast/disk --memory 16GiB",
    "a GPU and the host's memory",
    "pgpt lab offload --device cuda --model gpt2-xl --batch 16 --dtype bf16",
    "largest models on GPUs that are not here",
    "pgpt lab offload --device cuda:h200 --dtype bf16 --memory 16GiB,40GiB,80GiB,139GiB --host-memory 512GiB",
    NULL,
};

const OptionCommand lab_offload_command = {
    .name = "lab offload",
    .summary = "what offloading costs and brings: step time, stall, memory, the largest model that fits",
    .description =
        "Times a training step with every choice of what is kept in the host's memory or in a file, beside what bounds it: the "
        "computation, the bus or the disk, and the host's update, at rates that are measured in the same run. Shows what each "
        "kind of memory holds, and plans the largest model that fits into a given memory.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

/* ---- What is asked for */

/* "optimizer+activations" as words of --offload, with where to. */
static Status spell(const OffloadStudy *study, const char *name, char *words, size_t n_bytes, Error *error) {
    const char *folder = study->call->folder;
    size_t n_words = 0;
    *words = 0;
    if (strcmp(name, "nothing") == 0) return STATUS_OK;
    for (const char *at = name;; at++) {
        size_t n = strcspn(at, "+");
        int n_added =
            *folder || !study->has_own_memory
                ? snprintf(words + n_words, n_bytes - n_words, "%s%.*s:file=%s", n_words ? "," : "", (int)n,
                           at, *folder ? folder : ".")
                : snprintf(words + n_words, n_bytes - n_words, "%s%.*s:host", n_words ? "," : "", (int)n, at);
        if (n_added < 0 || (size_t)n_added >= n_bytes - n_words)
            return error_user(error, "--choices or --folder is too long");
        n_words += (size_t)n_added;
        at += n;
        if (!*at) return STATUS_OK;
    }
}

static Status add_choice(OffloadStudy *study, const char *text, size_t n, const BackendTraits *traits,
                         Error *error) {
    if (study->n_choices == OFFLOAD_MOST_CHOICES)
        return error_user(error, "--choices has more than %d; leave some out", OFFLOAD_MOST_CHOICES);
    OffloadChoice *choice = &study->choice[study->n_choices];
    if (n >= sizeof choice->name)
        return error_user(error, "--choices: '%s' is too long", plain_value_of(text, n).text);
    *choice = (OffloadChoice){.bound_ms = NAN, .stall_ms = NAN};
    memcpy(choice->name, text, n);
    for (int i = 0; i < study->n_choices; i++)
        if (strcmp(study->choice[i].name, choice->name) == 0)
            return error_user(error, "--choices has %s twice; leave one out", choice->name);
    TRY(spell(study, choice->name, choice->words, sizeof choice->words, error));
    OffloadOptions options = {.what = choice->words, .bucket_mb = 16.0};
    if (offload_parse(&options, &choice->offload, error) == STATUS_OK)
        offload_check(&choice->offload, traits, false, error);
    if (error->status == STATUS_OK && choice->offload.automatic)
        error_user(error, "--choices: auto is no choice of its own; name what is offloaded");
    if (error->status == STATUS_OK) study->n_choices++;
    return error->status;
}

static Status read_choices(OffloadStudy *study, const BackendTraits *traits, Error *error) {
    bool is_all = strcmp(study->call->choices, "all") == 0;
    for (const char *at = is_all ? ALL_CHOICES : study->call->choices;; at++) {
        size_t n = strcspn(at, ",");
        Error refusal = {0};
        if (add_choice(study, at, n, traits, &refusal) != STATUS_OK) {
            if (!is_all) return *error = refusal, error->status;
            log_note(&study->output.log, "%.*s is left out: %s", (int)n, at, refusal.text);
        }
        at += n;
        if (!*at) return STATUS_OK;
    }
}

static Status read_memory(OffloadStudy *study, const Backend *backend, Error *error) {
    LabList host;
    if (*study->call->memory)
        TRY(lab_read_list("--memory", study->call->memory, 1 << 20, INT64_MAX, true, &study->memory, error));
    else if (!study->is_timed)
        return error_user(error, "--memory is wanted where the device is not here: how much is there?");
    else study->memory = (LabList){.values = {(int64_t)device_usable_bytes(backend)}, .n = 1};
    if (study->memory.n > OFFLOAD_MOST_MEMORIES)
        return error_user(error, "--memory has more than %d numbers; give fewer", OFFLOAD_MOST_MEMORIES);
    study->host_memory = study->is_timed ? memory_available_bytes() : UINT64_MAX;
    if (!*study->call->host_memory) return STATUS_OK;
    TRY(lab_read_list("--host-memory", study->call->host_memory, 0, INT64_MAX, true, &host, error));
    if (host.n != 1) return error_user(error, "--host-memory is one number");
    study->host_memory = (uint64_t)host.values[0];
    return STATUS_OK;
}

/* ---- Times and memory */

static void take_memory(OffloadChoice *choice, const BenchTraining *training) {
    const MemoryPlan *plan = &training->step.program.plan;
    for (int place = 0; place < N_PLACES; place++) {
        choice->place[place] = plan_place_bytes(plan, (Place)place);
        choice->kind[place] = plan->kind[place];
    }
    choice->here = training->memory.allocated_bytes;
    choice->pinned = plan_bytes_of(plan, MEMORY_PINNED);
    choice->file = plan_bytes_of(plan, MEMORY_FILE);
}

static Status time_choice(OffloadStudy *study, OffloadChoice *choice, Error *error) {
    BenchSetup setup = study->call->setup;
    BenchTraining training;
    setup.offload = (OffloadOptions){.what = choice->words, .bucket_mb = 16.0};
    if (bench_training_plan(&training, &setup, error) == STATUS_OK &&
        bench_step_measure(&training, &setup, &choice->report, error) == STATUS_OK)
        take_memory(choice, &training);
    bench_training_close(&training);
    return error->status;
}

/* Computing takes as long as the step that offloads nothing, where that was timed. */
static void make_bounds(OffloadStudy *study) {
    double computing = NAN;
    for (int i = 0; i < study->n_choices; i++)
        if (!*study->choice[i].words && !*study->choice[i].why_not)
            computing = study->choice[i].report.step_ms;
    for (int i = 0; i < study->n_choices; i++) {
        BenchBound *bound = &study->choice[i].report.bound;
        if (*study->choice[i].why_not) continue;
        if (!isnan(computing)) bound->compute_ms = computing;
        bound->bound_ms = fmax(fmax(bound->compute_ms, bound->bus_ms), fmax(bound->disk_ms, bound->host_ms));
        study->choice[i].bound_ms = bound->bound_ms;
        study->choice[i].stall_ms = fmax(0.0, study->choice[i].report.step_ms - bound->bound_ms);
    }
}

/* A choice that does not fit, or cannot be with these options, has a line that says so. */
static Status time_choices(OffloadStudy *study, Error *error) {
    for (int i = 0; i < study->n_choices; i++) {
        OffloadChoice *choice = &study->choice[i];
        Error trouble = {0};
        log_note(&study->output.log, "timing steps with %s offloaded", choice->name);
        if (time_choice(study, choice, &trouble) == STATUS_FAILED) return *error = trouble, error->status;
        if (interrupt_was_signalled()) return error_failed(error, "interrupted");
        snprintf(choice->why_not, sizeof choice->why_not, "%s", trouble.text);
    }
    make_bounds(study);
    return STATUS_OK;
}

/* ---- Largest models */

static Status find_largest(OffloadStudy *study, const Backend *backend, Error *error) {
    const BenchSetup *setup = &study->call->setup;
    StepOptions step = {.batch = setup->bench.batch,
                        .micro_batch = setup->bench.micro_batch,
                        .T = setup->bench.sequence,
                        .recompute = setup->bench.recompute,
                        .precision = precision_of((PrecisionKind)setup->bench.precision)};
    TRY(step_options_complete(&step, setup->model.context, error));
    study->sequence = step.T;
    study->micro_batch = step.micro_batch;
    for (int i = 0; i < study->n_choices; i++) {
        OffloadChoice *choice = &study->choice[i];
        step.offload = choice->offload;
        log_note(&study->output.log, "planning the largest model with %s offloaded", choice->name);
        for (int m = 0; m < study->memory.n; m++) {
            LargestQuestion question = {.model = &setup->model,
                                        .step = &step,
                                        .optimizer = &setup->optimizer,
                                        .backend = backend,
                                        .here = (uint64_t)study->memory.values[m],
                                        .beside = study->host_memory};
            Error refusal = {0};
            if (largest_find(&question, &choice->largest[m], &refusal) == STATUS_FAILED)
                return *error = refusal, error->status;
            if (refusal.status != STATUS_OK && !*choice->why_not) /* as when it was to be timed */
                snprintf(choice->why_not, sizeof choice->why_not, "%s", refusal.text);
            if (interrupt_was_signalled()) return error_failed(error, "interrupted");
        }
    }
    return STATUS_OK;
}

/* ---- All of it */

static Status open_device(OffloadStudy *study, Backend *backend, Error *error) {
    const BenchOptions *bench = &study->call->setup.bench;
    DeviceOptions device = {.kind = bench->device,
                            .n_threads = (int)bench->n_threads,
                            .precision = (PrecisionKind)bench->precision,
                            .first_gemm = true};
    study->is_timed = bench->device <= DEVICE_CUDA;
    TRY(study->is_timed ? device_backend_open(backend, &device, error)
                        : device_plan_open(backend, &device, error));
    study->has_own_memory = traits_has_own_memory(&backend->traits);
    study->n_threads = backend->n_threads;
    if (study->is_timed) device_describe(backend, study->device, sizeof study->device);
    else snprintf(study->device, sizeof study->device, "planned for %s", device_plan_names[bench->device]);
    return STATUS_OK;
}

static Status measure(OffloadStudy *study, Error *error) {
    Backend backend;
    TRY(open_device(study, &backend, error));
    if (read_memory(study, &backend, error) == STATUS_OK &&
        read_choices(study, &backend.traits, error) == STATUS_OK) {
        interrupt_watch();
        if (study->is_timed) time_choices(study, error);
        if (error->status == STATUS_OK) find_largest(study, &backend, error);
        interrupt_ignore();
    }
    backend.close(backend.context);
    return error->status;
}

static Status run_study(OffloadStudy *study, Error *error) {
    TRY(measure(study, error));
    offload_study_print(study);
    fflush(stdout);
    TRY(offload_study_draw(study, error));
    return study->values->lab.json ? lab_print_json(offload_study_json(study), error) : STATUS_OK;
}

/* A CPU has little time, and a GPU is not kept busy by a small model. */
static Status complete_call(Options *options, OffloadCall *call, Error *error) {
    static const LabDefault on_cpu[] = {{"model", "mini"}, {NULL, NULL}};
    static const LabDefault on_gpu[] = {{"model", "gpt2"}, {"batch", "16"}, {"dtype", "bf16"}, {NULL, NULL}};
    static const LabDefault quick[] = {
        {"model", "nano"}, {"steps", "2"}, {"warmup-steps", "1"}, {"batch", "4"}, {NULL, NULL}};
    TRY(lab_apply_defaults(options, device_takes_gpu(call->setup.bench.device) ? on_gpu : on_cpu, error));
    if (call->quick) TRY(lab_apply_defaults(options, quick, error));
    TRY(config_apply_preset(options, call->setup.model.preset, error));
    if (!call->setup.model.vocabulary) call->setup.model.vocabulary = USUAL_VOCABULARY;
    TRY(config_complete(&call->setup.model, call->setup.model.vocabulary, error));
    OptimizerOptions usual = optimizer_defaults(OPTIMIZER_ADAMW);
    usual.rate = 3e-4;
    usual.clip = call->setup.optimizer.clip;
    call->setup.optimizer = usual;
    return STATUS_OK;
}

/* Before anything is timed: a choice that is in memory may take minutes first. */
static Status check_scratch(const OffloadCall *call, Error *error) {
    return *call->folder ? scratch_check(call->folder, 1, error) : STATUS_OK;
}

Status lab_offload(Launch *launch, int n_words, char *const *words, Error *error) {
    OffloadCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_offload_command,
                               "measures in one process; run it without mpirun", &values, n_words, words,
                               &goes_on, error));
    if (goes_on && complete_call(&options, &values.call, error) == STATUS_OK) {
        OffloadStudy *study = calloc(1, sizeof *study);
        if (!study) error_failed(error, "no memory for the study");
        else {
            study->call = &values.call;
            study->values = &values;
            study->options = &options;
            study->output = lab_output(launch, &options, &values.lab, n_words, words);
            if (check_scratch(&values.call, error) == STATUS_OK &&
                lab_check_folder(launch, &study->output, error) == STATUS_OK)
                run_study(study, error);
        }
        free(study);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
