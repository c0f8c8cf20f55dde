/* Estimates of all layouts (plan_search.h), the best of which are planned. */
#include "job/plan_tune.h"

#include "base/system/cores.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "job/plan_probe.h"
#include "job/plan_search.h"
#include "model/model_flops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 60, MOST_THREADS = 64 };

static int by_seconds(const void *a, const void *b) {
    const TunedLayout *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Not worse than any that needs less: of layouts by seconds, those with fewer bytes than all before them. */
static void take_front(const FoundLayouts *found, PlanTuning *tuning) {
    enum { MOST_FRONT = 64 };
    double least = INFINITY;
    tuning->front = ARENA_ARRAY(&tuning->arena, TunedLayout, MOST_FRONT);
    for (int64_t i = 0; i < found->n && tuning->n_front < MOST_FRONT; i++) {
        if (found->all[i].bytes >= least * 0.98) continue;
        least = found->all[i].bytes;
        tuning->front[tuning->n_front++] = found->all[i];
    }
}

static Status plan_one(PlanRun *one, TunedLayout *found, Error *error) {
    PlanFigures figures;
    one->is_brief = true;
    TRY(plan_layout_apply(one, &found->layout, error));
    TRY(plan_figures(one, &figures, error));
    double waited = 0.0;
    for (int i = 0; i < N_PHASES; i++) waited += figures.times.phase[i].waited;
    found->seconds = figures.times.seconds;
    found->bytes = (double)figures.rank[figures.most].total;
    uint64_t without = plan_bytes_without_samples(&figures);
    bool may_not_sample = options_source(&one->train.options, "sample-tokens") < OPTION_FROM_RUN;
    if (found->bytes > (double)figures.usable && without <= figures.usable && may_not_sample) {
        found->layout.has_no_samples = true;
        found->bytes = (double)without;
    }
    found->bubble = figures.times.bubble / figures.times.seconds;
    found->waited = waited / figures.times.seconds;
    found->mfu = figures.mfu;
    found->tokens_per_s = figures.tokens_per_s;
    found->is_planned = true;
    plan_figures_free(&figures);
    return STATUS_OK;
}

static Status plan_layout(const Search *search, TunedLayout *found, Error *error) {
    PlanRun one = *search->plan;
    one.train.options.arena = (Arena){0}; /* what is made of these options goes with them */
    plan_one(&one, found, error);
    arena_free(&one.train.options.arena);
    return error->status;
}

/* Layouts that were planned and did not fit, by how much their estimate was too low: others of their kind
 * will not fit either. */
typedef struct {
    PlanLayout layout;
    double ratio; /* bytes as planned by those as estimated */
} Misfit;

static bool is_of_kind(const PlanLayout *a, const PlanLayout *b) {
    return a->offload == b->offload && a->recompute == b->recompute && a->size[AXIS_TP] == b->size[AXIS_TP] &&
           (a->size[AXIS_PP] > 1) == (b->size[AXIS_PP] > 1);
}

static bool is_misfit(const Search *search, const TunedLayout *found, const Misfit *misfits, int n_misfits) {
    for (int i = 0; i < n_misfits; i++) {
        if (!is_of_kind(&misfits[i].layout, &found->layout)) continue;
        if (found->bytes * misfits[i].ratio > (double)search->usable) return true;
    }
    return false;
}

/* A layout at hand: its estimate, and what its plan said. */
typedef struct {
    TunedLayout found;
    double estimated; /* bytes */
    Error error;
} Trial;

/* The plans so far. */
typedef struct {
    TunedLayout *planned; /* those that fit */
    Misfit *misfits;
    int n_fit, n_misfits;
} Plans;

/* Layouts that may fit, from the `from`th estimate on, at most n of them; returns how many. */
static int take_trials(const Search *search, const FoundLayouts *found, const Plans *plans, int64_t *from,
                       Trial *trials, int n) {
    int n_taken = 0;
    for (; *from < found->n && n_taken < n; ++*from) {
        const TunedLayout *next = &found->all[*from];
        if (next->bytes > (double)search->usable) continue;
        if (is_misfit(search, next, plans->misfits, plans->n_misfits)) continue;
        trials[n_taken++] = (Trial){.found = *next, .estimated = next->bytes};
    }
    return n_taken;
}

static void take_plan(const Search *search, const Trial *trial, Plans *plans) {
    if (trial->found.bytes <= (double)search->usable) plans->planned[plans->n_fit++] = trial->found;
    else
        plans->misfits[plans->n_misfits++] =
            (Misfit){trial->found.layout, trial->found.bytes / trial->estimated};
}

/* Estimates are near, not right: so as many again are planned as are wanted. As many as there are threads are
 * planned at a time, and taken in their order: what one of them shows about the next counts, although that
 * one is planned already. */
static Status plan_best(const Search *search, const FoundLayouts *found, PlanTuning *tuning, Error *error) {
    int wanted = search->options->n_best,
        most = search->options->n_plans ? search->options->n_plans : MOST_PLANS;
    Plans plans = {.planned = ARENA_ARRAY(&tuning->arena, TunedLayout, most),
                   .misfits = ARENA_ARRAY(&tuning->arena, Misfit, most)};
    Trial *trials = ARENA_ARRAY(&tuning->arena, Trial, search->n_threads);
    bool is_enough = false;
    for (int64_t from = 0; from < found->n && !is_enough;) {
        int n = take_trials(search, found, &plans, &from, trials, search->n_threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(search->n_threads)
        for (int i = 0; i < n; i++) plan_layout(search, &trials[i].found, &trials[i].error);
        for (int i = 0; i < n && !is_enough; i++) {
            const Trial *trial = &trials[i];
            TunedLayout estimate = {.layout = trial->found.layout, .bytes = trial->estimated};
            if (is_misfit(search, &estimate, plans.misfits, plans.n_misfits)) continue;
            if (trial->error.status == STATUS_FAILED) return *error = trial->error, error->status;
            if (trial->error.status != STATUS_OK) continue; /* only the whole run knows that it is wrong */
            tuning->n_planned++;
            take_plan(search, trial, &plans);
            is_enough = tuning->n_planned == most || plans.n_fit >= 3 * wanted;
        }
    }
    qsort(plans.planned, (size_t)plans.n_fit, sizeof *plans.planned, by_seconds);
    tuning->best = plans.planned;
    tuning->n_best = plans.n_fit < wanted ? plans.n_fit : wanted;
    return STATUS_OK;
}

static Status refuse(const Search *search, const PlanTuning *tuning, Error *error) {
    const Machine *machine = &search->plan->machine.machine;
    if (!tuning->n_layouts)
        return error_user(
            error, "no layout of %s on %d device%s can be with what is given; leave out sizes of axes, or %s",
            search->plan->train.values.model.preset, search->n_ranks, search->n_ranks == 1 ? "" : "s",
            search->plan->train.launch->world.size > 1 ? "start another number of ranks (mpirun -n)"
                                                       : "give another --gpus");
    double least = tuning->least.bytes, ratio = least / (double)search->usable;
    return error_user(
        error,
        "%s does not fit on %d device%s of %s (%s each) in any of %lld layouts%s: the least needs %s, %s too "
        "much; take about %d devices, or a smaller --model",
        search->plan->train.values.model.preset, search->n_ranks, search->n_ranks == 1 ? "" : "s",
        plain(machine->device.name).text, format_bytes(search->usable).text, (long long)tuning->n_layouts,
        search->offloads ? ", with optimizer and activations at the host, too" : "",
        format_bytes((uint64_t)least).text,
        format_bytes((uint64_t)fmax(least - (double)search->usable, 0.0)).text,
        (int)ceil(ratio * 1.1 * search->n_ranks));
}

/* All layouts in one precision. */
static Status search_precision(const Search *search, PrecisionKind precision, FoundLayouts *found,
                               PlanTuning *tuning, Error *error) {
    free(found->all);
    *found = (FoundLayouts){0};
    TRY(plan_search(search, precision, found, error));
    if (found->n) qsort(found->all, (size_t)found->n, sizeof *found->all, by_seconds);
    tuning->n_layouts = found->n;
    tuning->n_probed += found->n_probed;
    tuning->n_refused = 0;
    tuning->least.bytes = INFINITY;
    for (int64_t i = 0; i < found->n; i++) {
        tuning->n_refused += found->all[i].bytes > (double)search->usable;
        if (found->all[i].bytes < tuning->least.bytes) tuning->least = found->all[i];
    }
    return plan_best(search, found, tuning, error);
}

static bool is_given(const PlanRun *plan, const char *name) {
    return options_source(&plan->train.options, name) >= OPTION_FROM_RUN;
}

/* To the host's memory, which a CPU has not beside its own. --offload auto leaves it to the search. */
static bool can_offload(const PlanRun *plan) {
    const TrainCommand *values = &plan->train.values;
    const Machine *machine = &plan->machine.machine;
    bool is_chosen = is_given(plan, "offload") && plan->train.offload.automatic != OFFLOAD_HOST;
    if (!machine_is_gpu(machine) || !(machine->host.bus_gbs > 0.0) || is_chosen) return false;
    return optimizer_n_moments(&values->optimizer) > 0 && values->async.sync == SYNC_EXACT &&
           strcmp(values->parallel.compress, "none") == 0;
}

static Search search_of(PlanRun *plan, const TuneOptions *options) {
    const Machine *machine = &plan->machine.machine;
    Search search = {.plan = plan,
                     .options = options,
                     .n_ranks = plan->n_ranks,
                     .n_threads = options->n_threads ? options->n_threads : cores_usable(),
                     .links = links_of(machine, plan->n_ranks),
                     .usable = (uint64_t)(machine->device.memory_gib * 1073741824.0),
                     .offloads = can_offload(plan),
                     .has_zero = is_given(plan, "zero"),
                     .has_schedule = is_given(plan, "schedule"),
                     .has_chunks = is_given(plan, "chunks"),
                     .has_recompute = is_given(plan, "recompute"),
                     .has_micro_batch = is_given(plan, "micro-batch"),
                     .has_own_sums = plan_has_own_sums(plan)};
    if (search.n_threads > MOST_THREADS) search.n_threads = MOST_THREADS;
    for (int axis = 0; axis < N_AXES; axis++)
        if (is_given(plan, axis_name((Axis)axis)))
            search.size[axis] = (int)plan->train.values.parallel.size[axis];
    return search;
}

/* The layouts of all ranks of the plan. */
static Status tune_ranks(PlanRun *plan, const TuneOptions *options, FoundLayouts *found, PlanTuning *tuning,
                         Error *error) {
    Search search = search_of(plan, options);
    search.stage_blocks = plan_list_stages(plan, search.n_ranks, &tuning->arena);
    PrecisionKind usual = (PrecisionKind)plan->train.values.train.precision;
    search_precision(&search, usual, found, tuning, error);
    bool is_mixed = usual == PRECISION_BF16 || usual == PRECISION_F16;
    if (error->status == STATUS_OK && !tuning->n_best && is_mixed && !is_given(plan, "dtype"))
        search_precision(&search, usual == PRECISION_BF16 ? PRECISION_PURE_BF16 : PRECISION_PURE_F16, found,
                         tuning, error);
    if (error->status == STATUS_OK && !tuning->n_best) refuse(&search, tuning, error);
    return error->status;
}

/* ---- Fewer devices
 *
 * Numbers that divide badly, or batches that are too small for all, can leave devices with less to do than
 * they cost: then the fastest layouts have fewer. Those of one host's cores are no devices of their own. */

enum { MOST_FEWER = 64, MOST_WORSE = 2 };

/* Seconds that a step on n devices takes at least: its arithmetic, at the best rate that there is. */
static double least_seconds(const PlanRun *plan, int n) {
    const Machine *machine = &plan->machine.machine;
    const TrainCommand *values = &plan->train.values;
    GemmClasses classes = machine_gemm_classes(machine);
    double best = 1.0;
    for (int i = 0; i < classes.n; i++) best = i && best > classes.share[i] ? best : classes.share[i];
    best *= machine->samples ? 1.0 : machine->device.gemm_efficiency;
    best *= fmax(1.0, fmax(machine->device.attention_forward, machine->device.attention_backward));
    PartFlops parts = model_flops_parts(&values->model, values->train.sequence, 1);
    double flops = (double)values->model.n_layers * parts.block + parts.head;
    double peak = machine_peak_flops(machine, (PrecisionKind)values->train.precision, n);
    return 0.95 * flops * (double)values->train.batch * (double)values->train.sequence / peak / best / n;
}

/* May n devices be faster than the best so far? Where that computes most of the time, no fewer will but by as
 * much as larger micro-batches gain. */
static bool may_be_faster(const PlanRun *plan, const TunedLayout *best, int n) {
    if (!best) return true;
    double computes = 0.92 * best->seconds * (1.0 - best->bubble - best->waited), n_best = 1.0;
    for (int axis = 0; axis < N_AXES; axis++) n_best *= best->layout.size[axis];
    if (best->mfu > 0.3 && computes * n_best / n >= best->seconds) return false;
    return least_seconds(plan, n) < best->seconds;
}

static bool divides_well(int n) {
    while (n % 2 == 0) n /= 2;
    return n == 1 || n == 3;
}

/* From the largest on: numbers that divide well, whose multiples try them too; and below one that does not, a
 * few less, and whole hosts. */
static int list_fewer(const PlanRun *plan, int *list) {
    int n_all = plan->n_ranks, n = 0, a_host = (int)plan->machine.machine.host.n_devices;
    bool is_odd = !divides_well(n_all);
    for (int i = n_all - 1; i >= 1 && n < MOST_FEWER; i--) {
        bool is_near = is_odd && n_all <= 64 && i >= n_all - 4;
        bool is_hosts = is_odd && a_host > 1 && i == (n_all - 1) / a_host * a_host;
        if (divides_well(i) || is_near || is_hosts) list[n++] = i;
    }
    return n;
}

/* Keeps the fastest of both: of `more`, which are of fewer devices, those that are faster than all so far. */
static void merge(const TunedLayout *more, int n_more, int wanted, PlanTuning *tuning) {
    double fastest = tuning->n_best ? tuning->best[0].seconds : INFINITY;
    TunedLayout *all = ARENA_ARRAY(&tuning->arena, TunedLayout, tuning->n_best + n_more);
    int n = tuning->n_best;
    memcpy(all, tuning->best, (size_t)n * sizeof *all);
    for (int i = 0; i < n_more; i++)
        if (more[i].seconds < fastest) all[n++] = more[i];
    qsort(all, (size_t)n, sizeof *all, by_seconds);
    tuning->best = all;
    tuning->n_best = n < wanted ? n : wanted;
}

static Status tune_fewer(PlanRun *plan, const TuneOptions *options, FoundLayouts *found, PlanTuning *tuning,
                         Error *error) {
    int list[MOST_FEWER], n_worse = 0;
    for (int i = 0, n = list_fewer(plan, list); i < n && n_worse < MOST_WORSE; i++) {
        PlanRun one = *plan;
        PlanTuning other = {0};
        FoundLayouts more = {0};
        Error unheard = {0};
        double so_far = tuning->n_best ? tuning->best[0].seconds : INFINITY;
        if (!may_be_faster(plan, tuning->n_best ? &tuning->best[0] : NULL, list[i])) continue;
        one.n_ranks = list[i];
        one.train.values.call.host_ranks = machine_ranks_a_host(&plan->machine.machine, list[i]);
        tune_ranks(&one, options, &more, &other, &unheard);
        if (unheard.status == STATUS_FAILED) *error = unheard;
        bool is_better = unheard.status == STATUS_OK && other.best[0].seconds < so_far;
        if (is_better) n_worse = 0;
        else n_worse += divides_well(list[i]); /* of the others every one is a case of its own */
        tuning->n_layouts += other.n_layouts;
        tuning->n_refused += other.n_refused;
        tuning->n_planned += other.n_planned;
        tuning->n_probed += other.n_probed;
        if (is_better) {
            merge(other.best, other.n_best, options->n_best, tuning);
            FoundLayouts last = *found;
            *found = more; /* the front is that of the fastest */
            more = last;
        }
        free(more.all);
        plan_tuning_free(&other);
        TRY(error->status);
    }
    return STATUS_OK;
}

static bool may_use_fewer(const PlanRun *plan, const TuneOptions *options) {
    const Machine *machine = &plan->machine.machine;
    bool shares_cores = machine->host.n_cores && machine->network.n_hosts == 1;
    return !options->is_quick && !shares_cores && plan->n_ranks > 1;
}

static bool has_axes(const PlanRun *plan) {
    for (int axis = 0; axis < N_AXES; axis++)
        if (is_given(plan, axis_name((Axis)axis))) return true;
    return false;
}

Status plan_tune(PlanRun *plan, const TuneOptions *options, PlanTuning *tuning, Error *error) {
    uint64_t start = timer_now_ns();
    *tuning = (PlanTuning){0};
    if (plan->train.values.train.recompute_blocks)
        return error_user(
            error,
            "--recompute-blocks %lld: the search knows what all blocks do alike, --recompute; leave it "
            "out, and try it on what is found",
            (long long)plan->train.values.train.recompute_blocks);
    FoundLayouts found = {0};
    Error refused = {0}, failed = {0};
    tune_ranks(plan, options, &found, tuning, &refused);
    bool can_be = refused.status == STATUS_OK || (refused.status == STATUS_USER && !has_axes(plan));
    if (can_be && may_use_fewer(plan, options)) tune_fewer(plan, options, &found, tuning, &failed);
    if (failed.status != STATUS_OK) *error = failed;
    else if (!tuning->n_best) *error = refused;
    if (error->status == STATUS_OK) take_front(&found, tuning);
    free(found.all);
    tuning->seconds = timer_seconds_since(start);
    if (error->status != STATUS_OK) plan_tuning_free(tuning);
    return error->status;
}

void plan_tuning_free(PlanTuning *tuning) {
    arena_free(&tuning->arena);
    *tuning = (PlanTuning){0};
}
