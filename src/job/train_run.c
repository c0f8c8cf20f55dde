/* From options to a finished run, phase by phase.
 *
 * Everything that can be wrong is found before the run folder is made: options, data, sizes, memory. After
 * that only the system can fail.
 *
 * With several ranks every one of them goes through the same phases. After each they agree on whether it
 * went well (launch_agree), so that a mistake which only one of them sees ends all, with one message, and
 * nobody waits. */
#include "job/train_run.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "checkpoint/checkpoint.h"
#include "comm/algo/algo.h"
#include "comm/comm_device.h"
#include "data/source.h"
#include "device/device.h"
#include "parallel/mesh_hosts.h"
#include "plan/run_memory.h"
#include "run/interrupt.h"
#include "run/notice.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "train/model_mesh.h"
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void give_back(TrainRun *run) {
    if (run->has_trainer) trainer_close(&run->trainer);
    comm_close(&run->saving);
    model_pipeline_close(&run->pipeline, run->has_backend ? &run->backend : NULL);
    model_mesh_close(&run->mesh, run->has_backend ? &run->backend : NULL);
    if (run->has_backend) run->backend.close(run->backend.context);
    data_source_close(&run->source);
    model_source_close(&run->init);
    run_claim_release(&run->claim);
    options_free(&run->options);
    train_unwatch(run);
}

/* Of the two, the one that was given last is recorded. A run that went on with another batch has taken other
 * steps so far. */
static Status count_steps(TrainRun *run, Error *error) {
    TrainOptions *train = &run->values.train;
    if (train->n_epochs <= 0.0) return STATUS_OK;
    if (options_source(&run->options, "steps") > options_source(&run->options, "epochs")) {
        options_reset(&run->options, "epochs");
        return STATUS_OK;
    }
    if (options_source(&run->options, "steps") == OPTION_FROM_COMMAND) {
        return error_user(error, "--steps and --epochs are both given; choose one");
    }
    options_reset(&run->options, "steps");
    double n_windows = (double)dataset_n_windows(run->source.dataset, DATASET_TRAIN, (int)train->sequence);
    int64_t n_done = run->resumed.n_done, n_tokens = run->resumed.n_tokens;
    int64_t of_step = train->batch * train->sequence;
    if (n_tokens % of_step == 0 && n_tokens / of_step == n_done)
        n_done = n_tokens = 0; /* one batch all along */
    double n_sequences = (double)n_tokens / (double)train->sequence;
    double steps =
        (double)n_done + ceil(fmax(train->n_epochs * n_windows - n_sequences, 0.0) / (double)train->batch);
    if (steps > 1e15) return error_user(error, "--epochs %g makes too many steps", train->n_epochs);
    train->n_steps = steps < 1.0 ? 1 : (int64_t)steps;
    return STATUS_OK;
}

/* The model that the run begins with must have room for all that the tokenizer makes. */
static Status check_init(const TrainRun *run, Error *error) {
    int n_tokens = tokenizer_n_vocabulary(run->source.tokenizer);
    if (!run->has_init || n_tokens <= run->init.config.vocabulary) return STATUS_OK;
    return error_user(
        error,
        "the tokenizer has %d tokens, and the model of --init %s knows %lld; give the model's own "
        "with --tokenizer",
        n_tokens, run->init.path, (long long)run->init.config.vocabulary);
}

/* ---- The phases: each is a function of one rank, and all agree after it. */

static Status open_tokenizer(TrainRun *run, Error *error) {
    TrainCommand *values = &run->values;
    const char *resume = values->train.resume;
    const char *saved =
        *resume ? arena_printf(&run->options.arena, "%s/tokenizer.json", resume) : run->init.tokenizer;
    values->data.log = &run->log;
    values->data.is_later_rank = run->launch->world.rank > 0;
    TRY(data_source_open(&run->source, &values->data, saved, error));
    TRY(check_init(run, error));
    TRY(config_complete(&values->model, tokenizer_n_vocabulary(run->source.tokenizer), error));
    TRY(config_set_document_end(&values->model, tokenizer_end_of_text(run->source.tokenizer), error));
    return train_options_complete(run, error);
}

static Status open_data(TrainRun *run, Error *error) {
    TrainCommand *values = &run->values;
    TRY(open_tokenizer(run, error));
    bool counts_epochs = values->train.n_epochs > 0.0; /* else nothing of a mesh depends on the text */
    if (values->call.print_mesh && !counts_epochs) return STATUS_OK;
    TRY(data_source_encode(&run->source, &values->data, (uint64_t)values->train.seed, values->train.sequence,
                           error));
    return count_steps(run, error);
}

/* The root goes first: what it leaves in the cache, the others need not make again. They try even where it
 * failed, so that it is known whether the mistake is everybody's or the root's alone. */
static Status open_data_in_turn(TrainRun *run, Error *error) {
    Launch *launch = run->launch;
    bool is_root = launch->world.rank == 0;
    if (is_root) open_data(run, error);
    Error trouble = {0};
    if (comm_barrier(&launch->world, &trouble) != STATUS_OK && !is_root) *error = trouble;
    if (!is_root && error->status == STATUS_OK) open_data(run, error);
    return launch_agree(launch, error);
}

static const char *hash_text(Arena *arena, uint64_t hash) {
    return arena_printf(arena, "checksum %016llx", (unsigned long long)hash);
}

/* Ranks that were started differently, or see different files, would train different models. */
static Status check_same_data(TrainRun *run, Error *error) {
    Arena *arena = &run->options.arena;
    TRY(launch_check_same(run->launch, "tokenizer", hash_text(arena, tokenizer_hash(run->source.tokenizer)),
                          error));
    return launch_check_same(run->launch, "text of --data",
                             hash_text(arena, dataset_hash(run->source.dataset)), error);
}

/* Options that are not of the run but decide what this call does. */
static Status check_same_call(TrainRun *run, Error *error) {
    const CallOptions *call = &run->values.call;
    const struct {
        const char *name;
        bool is_set;
    } options[] = {{"--help", run->options.help_wanted},
                   {"--print-mesh", call->print_mesh},
                   {"--print-program", call->print_program}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        TRY(launch_check_same(run->launch, options[i].name, options[i].is_set ? "yes" : "no", error));
    return STATUS_OK;
}

static Status check_same_options(TrainRun *run, Error *error) {
    if (run->launch->world.size == 1) return STATUS_OK;
    TRY(launch_check_options(run->launch, &run->options, error));
    TRY(launch_check_same(run->launch, "--resume", run->values.train.resume, error));
    TRY(launch_check_same(run->launch, "--save", run->values.train.saves ? "yes" : "no", error));
    return launch_check_same(run->launch, "--out", run->values.train.out, error);
}

static Status open_device(TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    DeviceOptions device = {.kind = values->train.device,
                            .index = run->launch->host_rank,
                            .n_threads = launch_threads(run->launch, (int)values->train.n_threads),
                            .precision = (PrecisionKind)values->train.precision,
                            .any_order = values->train.any_order,
                            .n_streams = (int)values->train.n_streams};
    if (values->call.print_program || values->call.print_mesh)
        TRY(device_plan_open(&run->backend, &device, error));
    else TRY(device_backend_open(&run->backend, &device, error));
    run->has_backend = true;
    return offload_check(&run->offload, &run->backend.traits, false, error);
}

TrainerSetup train_setup(TrainRun *run) {
    TrainCommand *values = &run->values;
    return (TrainerSetup){.config = &values->model,
                          .optimizer = &values->optimizer,
                          .options = &values->train,
                          .dataset = run->source.dataset,
                          .tokenizer = run->source.tokenizer,
                          .backend = &run->backend,
                          .log = &run->log,
                          .launch = run->launch,
                          .mesh = &run->mesh,
                          .pipeline = train_has_pipeline(run) ? &run->pipeline : NULL,
                          .part = &run->part,
                          .saving = run->saving.size > 1 ? &run->saving : NULL,
                          .parallel = &values->parallel,
                          .recompute = run->recompute ? run->recompute[run->mesh.coordinate[AXIS_PP]]
                                                      : values->train.recompute,
                          .async = &run->async,
                          .offload = &run->offload,
                          .compression = &run->compression,
                          .fault = &run->fault,
                          .activity = &run->activity,
                          .trace = &run->trace,
                          .observers = run->observers,
                          .n_observers = run->n_observers};
}

static Status plan_trainer(TrainRun *run, Error *error) {
    TrainerSetup setup = train_setup(run);
    TRY(run_memory_choose_offload(&setup, &run->offload, error));
    run->has_trainer = true;
    return trainer_plan(&run->trainer, &setup, error);
}

Status train_mesh_open(TrainRun *run, Error *error) {
    TRY(model_mesh_open(&run->mesh, &run->shape, &run->values.model, &run->launch->world, error));
    for (int axis = 0; axis < N_AXES; axis++)
        run->mesh.axis[axis].all_reduce = comm_algorithm(run->values.parallel.all_reduce);
    run->mesh.sums.all_reduce = comm_algorithm(run->values.parallel.all_reduce);
    if (run->compression.is_across_hosts) TRY(mesh_open_hosts(&run->mesh, run->hosts, error));
    run->mesh.hosts.inside.all_reduce = run->mesh.hosts.across.all_reduce = run->mesh.sums.all_reduce;
    TRY(train_pipeline_open(run, error));
    Comm *world = &run->launch->world;
    return world->size > 1 ? comm_split(world, 0, world->rank, &run->saving, error) : STATUS_OK;
}

static Status open_mesh(TrainRun *run, Error *error) {
    if (run->values.parallel.pin) TRY(launch_pin(run->launch, error));
    return train_mesh_open(run, error);
}

/* Is there room for what is kept in a file? Ranks of a host share the disk. And how fast is it? The root
 * writes and reads a little, for what is said at the beginning. */
static Status check_offload_folder(TrainRun *run, Error *error) {
    enum { LITTLE_BYTES = 16 << 20, PROBE_BYTES = 64 << 20 };
    const double most_seconds = 0.3;
    uint64_t n_bytes = plan_bytes_of(&run->trainer.step.program.plan, MEMORY_FILE);
    if (!n_bytes || run->backend.only_plans) return STATUS_OK;
    scratch_check(run->offload.folder, n_bytes * (uint64_t)run->launch->host_size, error);
    if (error->status == STATUS_OK && run->launch->world.rank == 0 && n_bytes >= LITTLE_BYTES)
        scratch_measure(run->offload.folder, run->offload.file_queue,
                        n_bytes < PROBE_BYTES ? n_bytes : PROBE_BYTES, most_seconds, &run->disk, error);
    return error->status == STATUS_OK ? STATUS_OK : error_prefix(error, "--offload: ");
}

/* A run whose first checkpoint cannot be written is of no use. */
static Status check_disk(const TrainRun *run, Error *error) {
    uint64_t needed = trainer_checkpoint_bytes(&run->trainer), room = file_free_bytes(run->run);
    if (needed <= room || !run->values.train.saves) return STATUS_OK;
    return error_user(error,
                      "a checkpoint of this run takes %s, %s are free on the disk of %s; make room, choose "
                      "another --out or a smaller --model, or do without checkpoints by --no-save",
                      format_bytes(needed).text, format_bytes(room).text, run->run);
}

/* The root has chosen the folder: its clock gives a new run its name. */
static Status share_folder_name(TrainRun *run, Error *error) {
    char name[4096] = "";
    if (run->run) snprintf(name, sizeof name, "%s", run->run);
    TRY(comm_broadcast(&run->launch->world, name, sizeof name, COMM_U8, 0, error));
    run->run = arena_strdup(&run->options.arena, name);
    return STATUS_OK;
}

/* Before anything is read that a new run is made of, so that nobody else takes the folder meanwhile. A run
 * that goes on has its folder already (train_options_read). */
static Status claim_folder(TrainRun *run, Error *error) {
    const TrainOptions *train = &run->values.train;
    if (run->launch->world.rank != 0) return STATUS_OK;
    if (!*train->resume)
        TRY(run_claim_new(&run->claim, train->out, run->values.model.preset, run->is_auto, error));
    run->run = run->claim.path;
    if (*run->claim.warning) log_warning(&run->log, "%s", run->claim.warning);
    if (strlen(run->run) >= 4096) return error_user(error, "the path of the run's folder is too long");
    return STATUS_OK;
}

static Status create_folder(TrainRun *run, Error *error) {
    if (run->launch->world.rank != 0) return STATUS_OK;
    if (run->is_auto) TRY(resume_restart(run->run, error));
    TRY(run_folder_create(&run->claim, &run->options, run->source.tokenizer, error));
    return run->has_init ? model_source_keep_origin(&run->init, run->run, error) : STATUS_OK;
}

/* Every rank writes its part of a checkpoint there; better to know now than at the first one. */
static Status check_folder_seen(const TrainRun *run, Error *error) {
    if (file_exists(run->run)) return STATUS_OK;
    return error_user(
        error,
        "the run's folder %s, which rank 0 has made, is not to be seen here; choose an --out on a file "
        "system that all hosts share",
        run->run);
}

/* Resumed, and there is nothing left to do: a mistake, unless it is a script that cannot know. */
static Status say_finished(const TrainRun *run, Error *error) {
    long long n_done = (long long)run->trainer.n_done;
    if (!run->is_auto) {
        return error_user(
            error, "the run has %lld steps done already; give more than that with --steps to go on", n_done);
    }
    if (run->launch->world.rank == 0)
        notices_clear(run->run); /* of a job that was killed after its last step */
    log_note(
        &run->log,
        "%s has its %lld steps done; give more with --steps to go on, or leave out --resume for a new run",
        run->run, n_done);
    return STATUS_OK;
}

static Status set_weights(TrainRun *run, Error *error) {
    if (*run->values.train.resume) return trainer_resume(&run->trainer, run->values.train.resume, error);
    return run->has_init ? trainer_take_weights(&run->trainer, &run->init, error) : STATUS_OK;
}

/* From here on nobody waits forever for a rank that is gone. */
static Status watch_over(TrainRun *run, Error *error) {
    if (!run->owns_process) return STATUS_OK;
    WatchdogOptions options = {.run = run->run,
                               .launch = run->launch,
                               .activity = &run->activity,
                               .timeout_seconds = run->values.train.hang_timeout};
    watchdog_open(&run->watchdog, &options, error);
    return launch_agree(run->launch, error);
}

/* Before there is anything to lose, a signal ends the run as it does any program. From here on it saves
 * first, and a reader that is gone is an error like others. */
static void listen_to_signals(const TrainRun *run) {
    if (!run->owns_process) return;
    interrupt_watch();
    signal(SIGPIPE, SIG_IGN);
}

static Status check_fault(const TrainRun *run, Error *error) {
    if (run->fault.kind == FAULT_NONE || run->fault.step <= run->values.train.n_steps) return STATUS_OK;
    return error_user(error, "--fault %s: the run has %lld steps, and nothing would happen",
                      run->values.call.fault, (long long)run->values.train.n_steps);
}

static Status train(TrainRun *run, Error *error) {
    Launch *launch = run->launch;
    uint64_t start = timer_now_ns();
    check_fault(run, error);
    TRY(launch_agree(launch, error));
    train_enter(run, "making the weights");
    run_memory_check(&run->trainer, error);
    if (error->status == STATUS_OK) check_offload_folder(run, error);
    TRY(launch_agree(launch, error));
    if (launch->world.rank == 0) check_disk(run, error);
    TRY(launch_agree(launch, error));
    run_memory_open(&run->trainer, error);
    TRY(launch_agree(launch, error));
    train_enter(run, "loading weights");
    set_weights(run, error);
    TRY(launch_agree(launch, error));
    if (run->trainer.n_done >= run->values.train.n_steps) {
        run->outcome = TRAIN_RUN_NOTHING;
        say_finished(run, error);
        return launch_agree(launch, error);
    }
    TRY(train_trace_open(run, error));
    if (*run->values.train.resume) train_resume_record(run, error);
    else create_folder(run, error);
    TRY(launch_agree(launch, error));
    check_folder_seen(run, error);
    TRY(launch_agree(launch, error));
    listen_to_signals(run);
    train_say_plan(run);
    train_enter(run, "the beginning of the run");
    TRY(watch_over(run, error));
    train_enter(run, NULL);
    trainer_run(&run->trainer, run->run, error);
    if (error->status != STATUS_OK) {
        launch->is_agreed = run->trainer.error_is_common;
        return error->status;
    }
    run->seconds = timer_seconds_since(start);
    run->outcome = run->trainer.was_interrupted ? TRAIN_RUN_STOPPED : TRAIN_RUN_DONE;
    train_say_communication(run);
    TRY(train_trace_write(run, error));
    if (run->outcome == TRAIN_RUN_STOPPED) train_say_stopped(run);
    else train_say_done(run);
    return STATUS_OK;
}

/* One process may look at the mesh of a larger job: that of the sizes which are given. */
static Status know_shape(TrainRun *run, Error *error) {
    enum { MOST_PLANNED_RANKS = 1 << 16 };
    const int64_t *sizes = run->values.parallel.size;
    int n_ranks = run->n_planned ? run->n_planned : run->launch->world.size;
    const int64_t most[N_AXES] = {[AXIS_PP] = run->values.model.n_layers,   /* a stage has a block, */
                                  [AXIS_EP] = run->values.model.n_experts}; /* a rank an expert */
    return run->values.call.print_mesh && n_ranks == 1 && !run->n_planned
               ? mesh_shape_planned(sizes, MOST_PLANNED_RANKS, &run->shape, error)
               : mesh_shape_within(sizes, most, n_ranks, &run->shape, error);
}

/* The model and the device, as far as programs are planned for them. */
static Status know_mesh(TrainRun *run, Error *error) {
    train_enter(run, "reading the data");
    TRY(open_data_in_turn(run, error));
    open_device(run, error);
    return launch_agree(run->launch, error);
}

static Status run_phases(TrainRun *run, int n_words, char *const *words, Error *error) {
    Launch *launch = run->launch;
    train_enter(run, "reading options");
    train_options_read(run, n_words, words, error);
    TRY(launch_agree(launch, error));
    TRY(check_same_call(run, error));
    run->outcome = TRAIN_RUN_HELP;
    if (run->options.help_wanted) return STATUS_OK;
    if (run->prepare) TRY(run->prepare(run, error));
    TRY(check_same_options(run, error));
    if (run->values.train.hang_timeout <= 0.0) launch_end_guard(launch); /* a file may have said so */
    TRY(train_trace_check(run, error));
    if (!run->prepare) train_layout_choose(run, error);
    if (error->status == STATUS_OK) know_shape(run, error);
    TRY(launch_agree(launch, error));
    fault_parse(run->values.call.fault, launch->world.size, &run->fault, error);
    TRY(launch_agree(launch, error));
    train_hosts_find(run, error);
    TRY(launch_agree(launch, error));
    run->outcome = TRAIN_RUN_MESH;
    if (run->values.call.print_mesh) return know_mesh(run, error);
    if (!run->values.call.print_program) {
        claim_folder(run, error);
        TRY(launch_agree(launch, error));
        TRY(share_folder_name(run, error));
    }
    train_enter(run, "reading the data");
    TRY(open_data_in_turn(run, error));
    TRY(check_same_data(run, error));
    train_enter(run, "opening devices and groups");
    TRY(open_mesh(run, error));
    open_device(run, error);
    TRY(launch_agree(launch, error));
    device_meet(&run->backend, &launch->world, launch->host_size, error);
    TRY(launch_agree(launch, error));
    train_async_check(run, error);
    TRY(launch_agree(launch, error));
    model_mesh_open_device(&run->mesh, &run->backend, error);
    if (error->status == STATUS_OK) model_pipeline_open_device(&run->pipeline, &run->backend, error);
    if (error->status == STATUS_OK && comm_is_nccl(mesh_sums(&run->mesh)) &&
        options_source(&run->options, "allreduce") == OPTION_FROM_COMMAND) {
        error_user(error, "--allreduce is of the host's memory; GPUs sum by NCCL here, leave it out");
    }
    TRY(launch_agree(launch, error));
    launch_note_segments(launch);
    train_watch_groups(run);
    train_enter(run, "planning");
    plan_trainer(run, error);
    TRY(launch_agree(launch, error));
    TRY(trainer_meet(&run->trainer, error));
    run->outcome = TRAIN_RUN_PROGRAM;
    return run->values.call.print_program ? STATUS_OK : train(run, error);
}

Status train_run(TrainRun *run, int n_words, char *const *words, Error *error) {
    train_watch(run);
    return run_phases(run, n_words, words, error);
}

void train_run_close(TrainRun *run, Error *error) {
    watchdog_leave(run->watchdog, error, run->trainer.bad_step);
    launch_fail(run->launch, error);
    give_back(run);
    if (run->owns_process) interrupt_ignore();
}
