/* What the log says of a run: the plan before the first step, what communication took, how it ended. One
 * rank speaks. */
#include "job/train_run.h"

#include "base/text/format.h"
#include "base/text/plain.h"
#include "comm/algo/algo.h"
#include "comm/comm_mpi.h"
#include "device/device.h"
#include "plan/offload_bound.h"

#include <math.h>

/* Each rank's state against the formula of its stage: the padding between parameters is what it may differ
 * by. */
static void say_ranks(const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const GradientSyncOptions *sync = &trainer->step.options.sync;
    Precision precision = trainer->step.options.precision;
    int n_moments = trainer->step.optimizer.n_moments;
    char text[256], formula[96];
    if (trainer_n_ranks(trainer) == 1) return;
    log_note(&run->log, "%s", launch_describe(run->launch, run->backend.n_threads, text, sizeof text));
    if (launch_advice(run->launch, text, sizeof text)) log_warning(&run->log, "%s", text);
    if (!run->launch->world.table->is_threaded(run->launch->world.context))
        log_warning(&run->log,
                    "this MPI lets one thread talk at a time (%s): nothing is hidden behind computation",
                    comm_mpi_library());
    const Comm *sums = mesh_sums(&run->mesh);
    double wanted = sync_state_bytes(sync, precision, parameters_count_groups(&trainer->table), n_moments);
    int64_t share = (run->values.train.batch - 1) / sync_n_shares(sync) + 1; /* the largest */
    train_async_say(run);
    if (sync->is_async) {
        log_note(
            &run->log,
            "%s has up to %lld of %lld sequences a step; every rank has %s of weights, gradients and moments",
            run->async.sync == SYNC_SERVER ? "every rank but the first" : "each rank", (long long)share,
            (long long)run->values.train.batch, format_bytes(trainer_state_bytes(trainer)).text);
        return;
    }
    log_note(
        &run->log,
        "each rank has up to %lld of %lld sequences a step and %s of weights, gradients and moments (ZeRO %d: %s = %s); "
        "%d gradient buckets, all-reduce by %s",
        (long long)share, (long long)run->values.train.batch, format_bytes(trainer_state_bytes(trainer)).text,
        trainer->step.sync.zero, sync_state_formula(sync, precision, n_moments, formula, sizeof formula),
        format_bytes((uint64_t)wanted).text, trainer->step.sync.partition.n_units,
        sums == mesh_host_sums(&run->mesh) ? comm_algorithm_names[run->values.parallel.all_reduce]
                                           : sums->table->name);
    if (trainer->step.sync.strategy->shards_weights && trainer->has_generator)
        log_note(&run->log, "%s whole weights for its samples; --sample-tokens 0 does without",
                 model_part_is_shared(&trainer->generator.part) ? "the first model's ranks also keep"
                                                                : "rank 0 also keeps");
}

/* Which schedule, and which blocks each stage has. */
static void say_pipeline(const TrainRun *run) {
    if (!train_has_pipeline(run)) return;
    Arena arena = {0};
    const TrainStep *step = &run->trainer.step;
    const ScheduleInfo *info = schedule_info(run->layout.kind);
    ScheduleShape shape = pipeline_shape(&run->pipeline, (int)step->n_micro_batches);
    StageTimes times = {1.0, 1.0, 1.0};
    double bubble = schedule_bubble(run->layout.kind, &shape, times);
    double busy = 3.0 * (double)shape.n_micro_batches;
    char chunks[48] = "", share[64] = "";
    if (shape.n_chunks > 1) snprintf(chunks, sizeof chunks, " in %d chunks each", shape.n_chunks);
    if (!isnan(bubble))
        snprintf(share, sizeof share, ", %.0f %% of a step idle (the bubble)",
                 100.0 * bubble / (bubble + busy));
    log_note(
        &run->log,
        "pipeline of %d stages%s, blocks %s, slowest %.2f of the mean; schedule %s, %d micro-batches of %lld "
        "sequences%s",
        shape.n_stages, chunks, stages_text(&run->stages, &arena), stages_imbalance(&run->stages), info->name,
        shape.n_micro_batches, (long long)step->B, share);
    arena_free(&arena);
}

/* Of two twins in a file one is read and the other written. */
static double twin_bytes(const TrainStep *step) {
    double n_bytes = 0.0;
    for (int i = 0; i < step->graph->n_tensors; i++) {
        const Tensor *tensor = step->graph->tensor[i];
        if (tensor->twin && tensor->place == PLACE_FILE) n_bytes += 0.5 * (double)tensor_bytes(tensor);
    }
    return n_bytes;
}

/* Seconds of a step at least that its file takes: all state is read and written once, activations once a
 * micro-batch. Ranks of a host share the disk. */
static double disk_seconds(const TrainRun *run) {
    const TrainStep *step = &run->trainer.step;
    const MemoryPlan *plan = &step->program.plan;
    double n_bytes = (double)plan->bytes[PLACE_FILE] - twin_bytes(step) +
                     (double)step->n_micro_batches * (double)plan->bytes[PLACE_FILE_FRAME];
    return 2.0 * n_bytes * run->launch->host_size / run->disk.both;
}

/* A disk that makes steps slow is named before they are. */
static void say_slow_disk(const TrainRun *run) {
    const double slow = 200e6; /* bytes a second: what a disk of the slower kinds gives */
    if (run->disk.both <= 0.0 || run->disk.both >= slow) return; /* or there is too little to measure */
    log_warning(&run->log,
                "--offload: %s is slow, %s to read and write: every step takes %s at least; name a folder on "
                "a faster disk, or offload less (--offload-share)",
                run->offload.folder, format_rate(run->disk.both, "B/s").text,
                format_duration(disk_seconds(run)).text);
}

/* So is a bus that cannot carry the activations beside the computation. */
static void say_slow_bus(const TrainRun *run) {
    const double worth_a_word = 1.15;
    const BackendTraits *traits = &run->backend.traits;
    const char *name = traits_has_own_memory(traits) ? offload_bound_machine(traits->kind) : NULL;
    MachineFile file = {0};
    Error error = {0};
    if (run->offload.to[OFFLOAD_ACTIVATIONS] != OFFLOAD_HOST || !name ||
        machine_open(&file, name, &error) != STATUS_OK)
        return;
    SpeedUse use = {.n_ranks = trainer_n_ranks(&run->trainer),
                    .precision = (PrecisionKind)run->values.train.precision};
    RankSpeed speed = rank_speed(&file.machine, &use);
    OffloadBound bound = offload_bound(&run->trainer.step.program, &speed);
    if (bound.ratio > worth_a_word)
        log_warning(
            &run->log,
            "--offload activations: the bus is the bound: forward and backward of a micro-batch take %s "
            "on such a GPU, and moves %s each way, so that steps take about %.1f times as long; "
            "--offload-share %.2f moves what is hidden",
            format_duration(bound.forward_seconds + bound.backward_seconds).text,
            format_duration(bound.move_seconds).text, bound.ratio,
            1.0 - (1.0 - run->offload.share) * bound.hidden);
    machine_close(&file);
}

/* Could the update be hidden that waits for the norm of its gradient? */
static void say_hidden_update(const TrainRun *run) {
    const OptimizerOptions *options = &run->values.optimizer;
    const Optimizer *optimizer = optimizer_of(options);
    bool is_simple =
        optimizer->op->update == UPDATE_OF_ELEMENTS && !optimizer->measure && !optimizer->matrices;
    if (!offload_has(&run->offload, OFFLOAD_OPTIMIZER) || offload_has(&run->offload, OFFLOAD_WEIGHTS) ||
        run->offload.host_updates || run->offload.share >= 1.0 || options->clip <= 0.0 ||
        options->clip_style == CLIP_CHECK || options->n_prompt || !is_simple ||
        run->trainer.step.loss.scale || run->trainer.step.options.pipeline)
        return;
    log_note(&run->log,
             "offload: updates wait for the norm of the gradient (--clip), and nothing hides them; "
             "--clip-style check begins them in the backward, for as much room again as the optimizer's "
             "state takes there");
}

/* What is kept elsewhere, and how much of it. */
static void say_offload(const TrainRun *run) {
    const MemoryPlan *plan = &run->trainer.step.program.plan;
    const DeviceMemory *memory = &run->trainer.memory;
    char text[640], way[64], rate[128] = "", file[288] = "", host[96] = "", share[48] = "";
    size_t n_file = plan_bytes_of(plan, MEMORY_FILE), n_host = 0;
    if (!*run->values.offload.what) return;
    if (!offload_is_on(&run->offload)) {
        log_note(&run->log, "offload: nothing, for everything fits");
        return;
    }
    for (int place = 0; place < N_PLACES; place++)
        if (place_is_beside((Place)place) && !place_is_file((Place)place))
            n_host += plan_place_bytes(plan, (Place)place);
    if (run->disk.both > 0.0)
        snprintf(rate, sizeof rate, ", %s: %s a step at least", format_rate(run->disk.both, "B/s").text,
                 format_duration(disk_seconds(run)).text);
    if (n_file)
        snprintf(file, sizeof file, ", %s on disk (%s%s)", format_bytes(n_file).text,
                 memory->mover ? mover_way(memory->mover, way, sizeof way) : "not opened", rate);
    if (n_host) snprintf(host, sizeof host, ", %s of the host's memory", format_bytes(n_host).text);
    if (run->offload.share > 0.0)
        snprintf(share, sizeof share, ", %.0f %% of it stays", 100.0 * run->offload.share);
    log_note(&run->log, "offload: %s%s%s%s", offload_text(&run->offload, text, sizeof text), share, file,
             host);
    say_hidden_update(run);
    say_slow_disk(run);
    say_slow_bus(run);
}

/* Has the text, as far as this looks, a token that ends a document? */
enum { DOCUMENT_LOOK = 1 << 22, DOCUMENT_PIECE = 1 << 12 };
static bool has_documents(const Dataset *dataset, int64_t end, uint64_t n_tokens) {
    int32_t tokens[DOCUMENT_PIECE];
    for (uint64_t first = 0; first < n_tokens; first += DOCUMENT_PIECE) {
        uint64_t n = n_tokens - first < DOCUMENT_PIECE ? n_tokens - first : DOCUMENT_PIECE;
        dataset_read(dataset, DATASET_TRAIN, first, n, tokens);
        for (uint64_t i = 0; i < n; i++)
            if (tokens[i] == end) return true;
    }
    return false;
}

/* A mask between documents that the text does not have is a mistake that nothing else shows. */
static void say_documents(const TrainRun *run) {
    const Dataset *dataset = run->source.dataset;
    uint64_t n_all = dataset_n_tokens(dataset, DATASET_TRAIN);
    uint64_t n_tokens = n_all < DOCUMENT_LOOK ? n_all : DOCUMENT_LOOK;
    int64_t end = run->values.model.document_end;
    if (!run->values.model.document_mask || run->launch->world.rank > 0 ||
        has_documents(dataset, end, n_tokens))
        return;
    log_warning(
        &run->log,
        "--document-mask: token %lld, which ends a document, is not among the%s %s tokens of the text: it "
        "is one document, and nothing is masked; give documents as lines of a "
        ".jsonl file or as files of a folder, or name the token by --document-end",
        (long long)end, n_tokens < n_all ? " first" : "", format_count((double)n_tokens).text);
}

void train_say_plan(const TrainRun *run) {
    const ModelConfig *model = &run->values.model;
    const TrainOptions *train = &run->values.train;
    const MemoryPlan *plan = &run->trainer.step.program.plan;
    log_note(&run->log, "model %s: %lld layers, %lld heads, %lld channels, context %lld, %s parameters",
             model->preset, (long long)model->n_layers, (long long)model->n_heads,
             (long long)model->n_channels, (long long)model->context,
             format_count((double)run->trainer.table.n_whole_elements).text);
    log_note(&run->log, "data %s: %s tokens to learn, %s held out, %d symbols (%s)", run->values.data.data,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_TRAIN)).text,
             format_count((double)dataset_n_tokens(run->source.dataset, DATASET_VALIDATION)).text,
             tokenizer_n_vocabulary(run->source.tokenizer), tokenizer_kind(run->source.tokenizer));
    say_documents(run);
    log_note(&run->log, "memory %s: activations %s (sharing saved %s), %s; %s a step (standard: %s)",
             format_bytes(trainer_planned_bytes(&run->trainer)).text,
             format_bytes(plan->bytes[PLACE_ACTIVATION]).text,
             format_bytes(plan->unshared_bytes - plan->bytes[PLACE_ACTIVATION]).text,
             format_things(run->backend.n_threads, "thread").text,
             format_rate(trainer_flops(&run->trainer), "FLOP").text,
             format_rate(trainer_standard_flops(&run->trainer), "FLOP").text);
    const Mesh *mesh = &run->mesh;
    device_say(&run->log, &run->backend,
               mesh->device_sums.table ? &mesh->device_sums : &mesh->device[AXIS_DP]);
    say_ranks(run);
    say_pipeline(run);
    say_offload(run);
    log_note(&run->log, "%lld steps of %lld x %lld tokens into %s", (long long)train->n_steps,
             (long long)train->batch, (long long)train->sequence, run->run);
    if (!train->saves && *train->resume)
        log_note(
            &run->log,
            "nothing will be saved (--no-save): the run in %s stays at step %lld, and its metrics from there on "
            "are written anew by the next --resume",
            run->run, (long long)run->trainer.n_done);
    else if (!train->saves) log_note(&run->log, "nothing will be saved but the metrics (--no-save)");
}

/* Of messages between stages nobody can see what is hidden, only what is waited for: it is said by itself. */
void train_say_communication(const TrainRun *run) {
    const Trainer *trainer = &run->trainer;
    const StepResult *sum = &trainer->sum;
    if (trainer_n_ranks(trainer) == 1 || !trainer->n_steps_timed || isnan(sum->comm_ms)) return;
    bool has_stages = train_has_pipeline(run);
    double n_steps = (double)trainer->n_steps_timed, step_ms = trainer->step_seconds * 1e3 / n_steps;
    double stage_ms = has_stages ? sum->stage_wait_ms / n_steps : 0.0;
    double wait_ms = fmax(sum->comm_wait_ms / n_steps - stage_ms, 0.0);
    double comm_ms = fmax(sum->comm_ms / n_steps - stage_ms, wait_ms);
    double hidden = comm_ms > wait_ms ? 1.0 - wait_ms / comm_ms : 0.0;
    if (has_stages) {
        log_note(
            &run->log,
            "a step took %.1f ms; rank 0 waited %.1f ms for messages of other stages (the bubble is in it), "
            "and %.1f ms of %.1f ms for sums over ranks (%.0f %% hidden)",
            step_ms, stage_ms, wait_ms, comm_ms, 100.0 * hidden);
        return;
    }
    log_note(
        &run->log,
        "a step took %.1f ms, communication %.1f ms of it beside the computation or not; %.1f ms were waited for "
        "(%.0f %% hidden)",
        step_ms, comm_ms, wait_ms, 100.0 * hidden);
}

void train_say_stopped(const TrainRun *run) {
    if (!run->values.train.saves) {
        log_note(&run->log, "stopped after step %lld; nothing was saved (--no-save)",
                 (long long)run->trainer.n_done);
        return;
    }
    log_note(&run->log, "stopped after step %lld and saved; go on with: pgpt train --resume %s",
             (long long)run->trainer.n_done, shell_path(run->run).text);
}

void train_say_done(const TrainRun *run) {
    FormatText duration = format_duration(run->seconds);
    if (run->values.train.saves)
        log_note(&run->log, "done in %s; the model is in %s: pgpt generate %s", duration.text, run->run,
                 shell_path(run->run).text);
    else
        log_note(&run->log, "done in %s; the model was not saved (--no-save), its metrics are in %s",
                 duration.text, run->run);
}
