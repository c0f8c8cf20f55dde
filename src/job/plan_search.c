/* What all layouts of a tp, cp, ep, micro-batch and recompute have in common is probed once (plan_probe.h),
 * and probes are what takes the time. A *chain* is one tp, cp, ep and recompute with rising micro-batches:
 * when nothing of a micro-batch fits any more, larger ones need more memory, and the chain ends. So probes go
 * in waves, one micro-batch of every chain that goes on, on as many threads as there are; a thread writes
 * into lists of its task alone. What follows from a wave is decided in the order of the chains, and lists are
 * put together in that order. */
#include "job/plan_search.h"

#include "graph/passes/recompute.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSOR = 64, MOST_MICRO_BATCH = 64 };

/* Without a pipeline, with one, with one whose schedule splits the backward, and with one in a V besides. */
typedef enum { KIND_WHOLE, KIND_STAGES, KIND_SPLIT, KIND_V, N_KINDS } ProbeKind;

typedef struct {
    PlanLayout layout; /* with the micro-batch that is next */
    FoundLayouts found;
    bool is_over;
} Chain;

/* A probe, and the layouts that it is of. */
typedef struct {
    const Search *search;
    const Chain *chain;
    ProbeKind kind;
    ProbeCost probe;
    FoundLayouts found;
    Error error;
} Task;

/* ---- Layouts */

static void make_room(FoundLayouts *found, int64_t n, Error *error) {
    int64_t room = found->room ? found->room : 256;
    while (room < n) room *= 2;
    if (room == found->room) return;
    TunedLayout *grown = realloc(found->all, (size_t)room * sizeof *grown);
    if (!grown) {
        error_failed(error, "no memory for a list of %lld layouts", (long long)room);
        return;
    }
    found->all = grown;
    found->room = room;
}

static void add_found(Task *task, const PlanLayout *layout, const Estimate *estimate) {
    FoundLayouts *found = &task->found;
    make_room(found, found->n + 1, &task->error);
    if (task->error.status != STATUS_OK) return;
    found->all[found->n++] = (TunedLayout){.layout = *layout,
                                           .seconds = estimate->seconds,
                                           .bytes = estimate->bytes,
                                           .bubble = estimate->bubble / estimate->seconds,
                                           .waited = estimate->waited / estimate->seconds};
}

/* Puts a list behind another, and frees it. */
static void append(FoundLayouts *all, FoundLayouts *more, Error *error) {
    if (more->n) make_room(all, all->n + more->n, error);
    if (more->n && error->status == STATUS_OK) {
        memcpy(all->all + all->n, more->all, (size_t)more->n * sizeof *more->all);
        all->n += more->n;
    }
    all->n_fit += more->n_fit;
    all->n_fit_away += more->n_fit_away;
    all->n_probed += more->n_probed;
    free(more->all);
    *more = (FoundLayouts){0};
}

/* What fits is never faster for being offloaded. */
static void keep(Task *task, const PlanLayout *layout, HeldFrames held) {
    const Search *search = task->search;
    Estimate found = plan_estimate(search, &task->probe, layout, held);
    bool fits = found.bytes <= (double)search->usable;
    add_found(task, layout, &found);
    task->found.n_fit += fits;
    for (int kind = TUNE_OFFLOAD_OPTIMIZER; kind < N_TUNE_OFFLOADS && search->offloads && !fits; kind++) {
        PlanLayout other = *layout;
        other.offload = (TuneOffload)kind;
        Estimate away = plan_estimate_offloaded(search, &other, &found, &other.share);
        if (isinf(away.bytes)) continue;
        add_found(task, &other, &away);
        fits = away.bytes <= (double)search->usable;
        task->found.n_fit_away += fits;
    }
}

static void loop_zero(Task *task, PlanLayout layout) {
    const Search *search = task->search;
    int64_t given = search->plan->train.values.parallel.zero;
    bool has_sums = plan_sums_place(search, &layout).size > 1;
    HeldFrames held = plan_held_frames(search, &layout);
    for (int zero = 0; zero <= (has_sums ? ZERO_STAGES : 0); zero++) {
        layout.zero = zero;
        if (search->has_zero && given != zero) continue;
        bool is_rare = zero == 2; /* 3 holds less, and 1 sends less */
        if (search->has_zero || !is_rare || !search->options->is_quick) keep(task, &layout, held);
    }
}

static ProbeKind kind_of(const ScheduleInfo *info) {
    if (info->placement == PLACEMENT_V) return KIND_V;
    return info->splits_backward ? KIND_SPLIT : KIND_STAGES;
}

/* Schedules that are flushed and need no more than the layout has. */
static void loop_schedules(Task *task, PlanLayout layout) {
    const Search *search = task->search;
    const ParallelOptions *given = &search->plan->train.values.parallel;
    const ModelConfig *model = &search->plan->train.values.model;
    int64_t m = plan_micro_batches(search, &layout);
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        const ScheduleInfo *info = schedule_info((ScheduleKind)kind);
        bool is_wanted = search->has_schedule ? given->schedule == kind : kind != SCHEDULE_NAIVE;
        bool is_rare = kind != SCHEDULE_1F1B && kind != SCHEDULE_INTERLEAVED;
        if (search->options->is_quick && !search->has_schedule && is_rare) continue;
        if (!is_wanted || info->is_asynchronous || kind_of(info) != task->kind) continue;
        int most = info->default_chunks > 1 && kind == SCHEDULE_INTERLEAVED ? TUNE_MOST_CHUNKS
                                                                            : info->default_chunks;
        for (int n = info->default_chunks; n <= most; n++) {
            Error none = {0};
            ScheduleShape shape = {(int)m, layout.size[AXIS_PP], n};
            if (search->has_chunks && given->n_chunks && given->n_chunks != n) continue;
            if ((int64_t)n * layout.size[AXIS_PP] > model->n_layers) continue;
            if (schedule_check_shape((ScheduleKind)kind, &shape, &none) != STATUS_OK) continue;
            layout.schedule = (ScheduleKind)kind;
            layout.n_chunks = n;
            loop_zero(task, layout);
        }
    }
}

/* False: this shape cannot be, as heads, positions or experts are too few. */
static bool probe(Task *task, PlanLayout *layout) {
    Error own = {0};
    static const ScheduleKind schedules[N_KINDS] = {
        SCHEDULE_1F1B, SCHEDULE_1F1B, [KIND_SPLIT] = SCHEDULE_ZB_H1, [KIND_V] = SCHEDULE_ZB_V};
    layout->schedule = schedules[task->kind];
    layout->n_chunks = 1;
    if (plan_probe(task->search->plan, layout, &task->probe, &own) != STATUS_OK) {
        if (own.status == STATUS_FAILED) task->error = own;
        return false;
    }
    task->found.n_probed++;
    return true;
}

/* Pipelines of every length, or none, of ranks that tp, cp and ep leave. */
static void run_task(Task *task) {
    const Search *search = task->search;
    const TrainCommand *values = &search->plan->train.values;
    PlanLayout layout = task->chain->layout;
    bool has_stages = task->kind != KIND_WHOLE, is_probed = false;
    int left = search->n_ranks / (layout.size[AXIS_TP] * layout.size[AXIS_CP] * layout.size[AXIS_EP]);
    int given = search->size[AXIS_PP], given_data = search->size[AXIS_DP];
    int last = has_stages ? left : 1;
    for (int pp = has_stages ? 2 : 1; pp <= last && pp <= values->model.n_layers; pp++) {
        if (left % pp || (given && given != pp)) continue;
        layout.size[AXIS_PP] = pp;
        layout.size[AXIS_DP] = left / pp;
        if (given_data && given_data != left / pp) continue;
        if (values->train.batch < (int64_t)layout.size[AXIS_DP] * layout.size[AXIS_EP]) continue;
        if (layout.micro_batch > plan_share_of(search, &layout)) continue;
        if (layout.recompute > 1 && (double)layout.recompute > plan_blocks_of(search, &layout)) continue;
        if (!is_probed && !probe(task, &layout)) return;
        is_probed = true;
        if (has_stages) loop_schedules(task, layout);
        else loop_zero(task, layout);
        if (task->error.status != STATUS_OK) return;
    }
}

/* ---- Chains */

typedef struct {
    Chain *chain;
    int n, room;
} Chains;

/* The first micro-batch from `micro` on that the search takes; 0: there is none. */
static int64_t next_micro_batch(const Search *search, int64_t micro) {
    const TrainOptions *train = &search->plan->train.values.train;
    if (search->has_micro_batch)
        return micro == 1 && train->batch % train->micro_batch == 0 ? train->micro_batch : 0;
    for (; micro <= MOST_MICRO_BATCH && micro <= train->batch; micro *= 2) {
        if (search->options->is_quick && micro > 8) return 0;
        if (train->batch % micro == 0) return micro;
    }
    return 0;
}

static Status add_chains(const Search *search, PlanLayout layout, Chains *chains, Error *error) {
    /* Values of --recompute: all of them are probed. */
    static const int recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, 1, 2, 4};
    enum { N_ALL = sizeof recomputes / sizeof recomputes[0], N_QUICK = 3 };
    int n = search->has_recompute ? 1 : search->options->is_quick ? N_QUICK : N_ALL;
    if (chains->n + n > chains->room) {
        int room = 2 * chains->room + 64;
        Chain *grown = realloc(chains->chain, (size_t)room * sizeof *grown);
        if (!grown) return error_failed(error, "no memory for a list of %d chains of layouts", room);
        chains->chain = grown;
        chains->room = room;
    }
    layout.micro_batch = next_micro_batch(search, 1);
    for (int i = 0; i < n && layout.micro_batch; i++) {
        layout.recompute = search->has_recompute ? search->plan->train.values.train.recompute : recomputes[i];
        chains->chain[chains->n++] = (Chain){.layout = layout};
    }
    return STATUS_OK;
}

static Status list_chains(const Search *search, PlanLayout layout, Chains *chains, Error *error) {
    const TrainCommand *values = &search->plan->train.values;
    int most_tp = 2 * search->links.ranks_a_host, n = search->n_ranks;
    int given_tp = search->size[AXIS_TP], given_cp = search->size[AXIS_CP], given_ep = search->size[AXIS_EP];
    if (most_tp > MOST_TENSOR) most_tp = MOST_TENSOR;
    for (int tp = 1; tp <= most_tp && tp <= n && tp <= values->model.n_heads; tp++) {
        if (n % tp || (given_tp && given_tp != tp)) continue;
        for (int cp = 1; cp <= n / tp && (cp == 1 || values->train.sequence / cp >= 512 || given_cp); cp++) {
            if (n / tp % cp || (given_cp && given_cp != cp)) continue;
            if (search->options->is_quick && cp > 1 && !given_cp) break;
            int64_t most_ep = values->model.n_experts ? values->model.n_experts : 1;
            for (int ep = 1; ep <= most_ep && ep <= n / tp / cp; ep++) {
                if (n / tp / cp % ep || (given_ep && given_ep != ep)) continue;
                layout.size[AXIS_TP] = tp;
                layout.size[AXIS_CP] = cp;
                layout.size[AXIS_EP] = ep;
                TRY(add_chains(search, layout, chains, error));
            }
        }
    }
    return STATUS_OK;
}

/* A micro-batch of every chain that goes on. */
static Status run_wave(const Search *search, Chains *chains, Task *tasks, Error *error) {
    int n_kinds = search->options->is_quick && !search->has_schedule ? KIND_STAGES + 1 : N_KINDS, n = 0;
    for (int i = 0; i < chains->n; i++) {
        for (int kind = 0; kind < n_kinds && !chains->chain[i].is_over; kind++)
            tasks[n++] = (Task){.search = search, .chain = &chains->chain[i], .kind = (ProbeKind)kind};
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(search->n_threads)
    for (int i = 0; i < n; i++) run_task(&tasks[i]);
    int64_t n_fit = 0; /* of this chain and those before it */
    for (int i = 0, at = 0; i < chains->n; i++) {
        Chain *chain = &chains->chain[i];
        int64_t n_before = chain->found.n, fit = chain->found.n_fit, away = chain->found.n_fit_away;
        for (int kind = 0; kind < n_kinds && !chain->is_over; kind++, at++) {
            if (error->status == STATUS_OK && tasks[at].error.status != STATUS_OK) *error = tasks[at].error;
            append(&chain->found, &tasks[at].found, error);
        }
        n_fit += chain->found.n_fit;
        bool any_fits = chain->found.n_fit > fit || (!n_fit && chain->found.n_fit_away > away);
        if (chain->found.n > n_before && !any_fits) chain->is_over = true; /* larger ones need more memory */
        if (!chain->is_over)
            chain->layout.micro_batch = next_micro_batch(search, 2 * chain->layout.micro_batch);
        if (!chain->layout.micro_batch) chain->is_over = true;
    }
    return error->status;
}

static bool any_goes_on(const Chains *chains) {
    for (int i = 0; i < chains->n; i++)
        if (!chains->chain[i].is_over) return true;
    return false;
}

Status plan_search(const Search *search, PrecisionKind precision, FoundLayouts *found, Error *error) {
    PlanLayout layout = {.precision = precision, .n_chunks = 1, .schedule = SCHEDULE_1F1B};
    Chains chains = {0};
    Task *tasks = NULL;
    TRY_GOTO(list_chains(search, layout, &chains, error), done);
    tasks = malloc(((size_t)chains.n * N_KINDS + 1) * sizeof *tasks);
    if (!tasks) TRY_GOTO(error_failed(error, "no memory for the layouts to probe"), done);
    while (any_goes_on(&chains)) TRY_GOTO(run_wave(search, &chains, tasks, error), done);
done:
    free(tasks);
    for (int i = 0; i < chains.n; i++) append(found, &chains.chain[i].found, error);
    free(chains.chain);
    return error->status;
}
