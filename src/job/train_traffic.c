/* The ranks of a job share the counting: each plans its own program and, where the mesh is larger than the
 * job, every so-many-th after it. Programs are planned on communicators that only count, of the groups that a
 * run on these ranks would open; so whatever opens a group is counted. */
#include "job/train_run.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "comm/comm_null.h"
#include "train/model_mesh.h"

/* One rank of the mesh, as the run that it would be. */
static TrainRun run_of(const TrainRun *run, Launch *launch, NullGroup *world, int rank) {
    TrainRun one = *run;
    launch->world = comm_null_rank(world, rank);
    one.launch = launch;
    one.has_trainer = false;
    one.mesh = (Mesh){0};
    one.pipeline = (Pipeline){0};
    one.saving = (Comm){0};
    return one;
}

static void close_one(TrainRun *one) {
    if (one->has_trainer) trainer_close(&one->trainer);
    comm_close(&one->saving);
    model_pipeline_close(&one->pipeline, NULL);
    model_mesh_close(&one->mesh, NULL);
}

/* Until all groups of all ranks are known. */
static Status learn_groups(const TrainRun *run, NullGroup *world, int n_ranks, Error *error) {
    Launch launch = launch_alone();
    do {
        *error = (Error){0};
        for (int rank = 0; rank < n_ranks; rank++) {
            Error own = {0};
            TrainRun one = run_of(run, &launch, world, rank);
            if (train_mesh_open(&one, &own) != STATUS_OK) *error = own;
            close_one(&one);
        }
    } while (comm_null_learn(world));
    return error->status;
}

static Status count_rank(const TrainRun *run, NullGroup *world, int rank, const char *const *hosts,
                         bool is_local, Traffic *traffic, Error *error) {
    Launch launch = launch_alone();
    double loss = 0.0;
    *traffic = (Traffic){0};
    TrainRun one = run_of(run, &launch, world, rank);
    TRY_GOTO(train_mesh_open(&one, error), done);
    TrainerSetup setup = train_setup(&one);
    one.has_trainer = true;
    TRY_GOTO(trainer_plan_step(&one.trainer, &setup, error), done);
    if (is_local) one.trainer.step.program.regimes = REGIME_LOCAL | REGIME_LATER;
    TRY_GOTO(traffic_count(&one.trainer.step.program, &run->shape, hosts, traffic, error), done);
    bool sums_later = train_has_pipeline(run) && schedule_info(run->layout.kind)->is_asynchronous;
    if (mesh_n_ranks(&run->shape) == 1 || sums_later || run->async.sync != SYNC_EXACT) goto done;
    TRY_GOTO(train_step_sum_number(&one.trainer.step, &loss, error), done);
    traffic_count_sent(&launch.world, TRAFFIC_SCALARS, &run->shape, hosts, traffic);
done:
    close_one(&one);
    comm_null_forget(world);
    return error->status;
}

/* Messages along an axis grow with the square of its ranks, and with many of these counting takes minutes: a
 * bar on a terminal, elsewhere a line now and then. */
typedef struct {
    const Log *log;
    Progress progress;
    uint64_t said_ns; /* the last line, or the beginning */
    bool has_said;
} Counting;

static void begin_counting(Counting *counting, const Log *log) {
    *counting = (Counting){.log = log, .said_ns = timer_now_ns()};
    bool speaks = log->stream && !log->quiet;
    if (speaks) progress_begin(&counting->progress, log->stream, 0.0);
    else counting->log = NULL;
}

static void say_counted(Counting *counting, int n_counted, int n_ranks) {
    const double first_seconds = 2.0, then_seconds = 20.0;
    if (!counting->log) return;
    char status[PROGRESS_STATUS_BYTES];
    snprintf(status, sizeof status, "counting what %d ranks send", n_ranks);
    progress_update(&counting->progress, (double)n_counted / n_ranks, status);
    double left = progress_seconds_left(&counting->progress);
    bool is_due =
        timer_seconds_since(counting->said_ns) >= (counting->has_said ? then_seconds : first_seconds);
    if (counting->progress.terminal.interactive || !is_due || !(left >= 1.0)) return;
    counting->said_ns = timer_now_ns();
    counting->has_said = true;
    log_note(counting->log, "counted what %d of %d ranks send; %s left", n_counted, n_ranks,
             format_duration(left).text);
}

/* Of the ranks that are this process's to count. */
static Status count_share(const TrainRun *run, const char *const *hosts, bool is_local, Traffic *sum,
                          Traffic *most, Error *error) {
    const Comm *job = &run->launch->world;
    int n_ranks = mesh_n_ranks(&run->shape);
    NullGroup *world;
    TRY(comm_null_open(&world, n_ranks, error));
    comm_null_tally(world);
    Counting counting;
    learn_groups(run, world, n_ranks, error);
    begin_counting(&counting, &run->log);
    for (int rank = job->rank; rank < n_ranks && error->status == STATUS_OK; rank += job->size) {
        Traffic traffic;
        count_rank(run, world, rank, hosts, is_local, &traffic, error);
        traffic_add(sum, &traffic);
        traffic_raise(most, &traffic);
        say_counted(&counting, rank + 1, n_ranks);
    }
    if (counting.log) progress_end(&counting.progress);
    comm_null_close(world);
    return error->status;
}

Status train_count_traffic(TrainRun *run, const char *const *hosts, bool is_local, Traffic *sum,
                           Traffic *most, Error *error) {
    Comm *job = &run->launch->world;
    *sum = *most = (Traffic){0};
    count_share(run, hosts, is_local, sum, most, error);
    TRY(launch_agree(run->launch, error));
    TRY(comm_all_reduce(job, sum, N_TRAFFIC_NUMBERS, COMM_I64, COMM_SUM, error));
    return comm_all_reduce(job, most, N_TRAFFIC_NUMBERS, COMM_I64, COMM_MAX, error);
}
