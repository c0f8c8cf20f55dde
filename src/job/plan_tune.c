/* Layouts are written down one after the other by nested loops; what all of a mesh and a micro-batch have in
 * common is probed once (plan_probe.h), so an estimate is some arithmetic. */
#include "job/plan_tune.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "graph/passes/recompute.h"
#include "job/plan_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSOR = 64, MOST_MICRO_BATCH = 64, MOST_PLANS = 60, MOST_CHUNKS = 4 };

/* ---- What is searched */

typedef struct {
    PlanRun *plan;
    PlanTuning *tuning;
    const TuneOptions *options;
    int n_ranks;
    Links links;
    uint64_t usable;
    TunedLayout *all; /* grows */
    int64_t n, room;
    int64_t n_fit;      /* of these, by estimate */
    int64_t n_fit_away; /* and of those that are offloaded */
    bool offloads;      /* the host's memory may take what does not fit */
    ProbeCost probe;    /* of the layouts at hand */
} Search;

static bool is_given(const Search *search, const char *name) {
    return options_source(&search->plan->train.options, name) >= OPTION_FROM_RUN;
}

/* Sequences of a rank's share of the batch: of dp and ep. */
static int64_t share_of(const Search *search, const PlanLayout *layout) {
    int64_t n_shares = (int64_t)layout->size[AXIS_DP] * layout->size[AXIS_EP],
            batch = search->plan->train.values.train.batch;
    return (batch + n_shares - 1) / n_shares;
}

/* ---- Estimates */

typedef struct {
    double seconds, waited, bubble, bytes;
    double optimizer, frames,
        a_frame;              /* bytes of these: state, activations held, and those of a micro-batch */
    double forward, backward; /* seconds of all micro-batches */
} Estimate;

/* Ranks of dp, cp and ep, who sum the gradients, as they lie on hosts. */
static GroupPlace sums_place(const Search *search, const PlanLayout *layout) {
    int size = layout->size[AXIS_DP] * layout->size[AXIS_CP] * layout->size[AXIS_EP], a_host = 1;
    int fit = search->links.ranks_a_host / layout->size[AXIS_TP];
    if (fit > 1) a_host = fit < size ? fit : size;
    return (GroupPlace){.size = size, .a_host = a_host, .n_hosts = (size + a_host - 1) / a_host};
}

static double blocks_of(const Search *search, const PlanLayout *layout) {
    double n = (double)search->plan->train.values.model.n_layers, p = layout->size[AXIS_PP];
    if (layout->size[AXIS_PP] == 1) return n;
    return ceil(n / p - 1e-9);
}

static PieceCost stage_cost(const Search *search, const PlanLayout *layout, bool is_first, bool is_last) {
    const ProbeCost *probe = &search->probe;
    double n = blocks_of(search, layout), v = layout->size[AXIS_PP] > 1 ? layout->n_chunks : 1.0;
    PieceCost cost = probe->rest;
    const PieceCost *parts[] = {&probe->block, &probe->first, &probe->last};
    const double factors[] = {n, is_first, is_last};
    cost.forward *= v;
    cost.backward *= v;
    cost.frame *= v;
    for (int i = 0; i < 3; i++) {
        cost.forward += factors[i] * parts[i]->forward;
        cost.backward += factors[i] * parts[i]->backward;
        cost.weight += factors[i] * parts[i]->weight;
        cost.weights += factors[i] * parts[i]->weights;
        cost.gradients += factors[i] * parts[i]->gradients;
        cost.optimizer += factors[i] * parts[i]->optimizer;
        cost.frame += factors[i] * parts[i]->frame;
        cost.update += factors[i] * parts[i]->update;
    }
    return cost;
}

/* Communication of data parallelism that nothing hides, in a step. */
static double sync_seconds(const Search *search, const PlanLayout *layout, const PieceCost *cost, double m) {
    GroupPlace place = sums_place(search, layout);
    const Links *links = &search->links;
    double backward = cost->backward + cost->weight;
    if (place.size == 1) return 0.0;
    double gather = links_seconds(links, COMM_ALL_GATHER, cost->weights, &place);
    double scatter = links_seconds(links, COMM_REDUCE_SCATTER, cost->gradients, &place);
    switch (layout->zero) {
    case 0: return fmax(links_seconds(links, COMM_ALL_REDUCE, cost->gradients, &place) - backward, 0.0);
    case 1: return fmax(scatter - backward, 0.0) + gather;
    case 2: return m * fmax(scatter - backward, 0.0) + gather;
    default: return m * (fmax(gather - cost->forward, 0.0) + fmax(gather + scatter - backward, 0.0));
    }
}

static double state_bytes(const Search *search, const PlanLayout *layout, const PieceCost *cost) {
    double n = sums_place(search, layout).size;
    double weights = layout->zero >= 3 ? cost->weights / n : cost->weights;
    double gradients = layout->zero >= 2 ? cost->gradients / n : cost->gradients;
    return weights + gradients + (layout->zero >= 1 ? cost->optimizer / n : cost->optimizer);
}

static Estimate estimate(const Search *search, const PlanLayout *layout) {
    double m = ceil((double)share_of(search, layout) / (double)layout->micro_batch);
    int p = layout->size[AXIS_PP];
    Estimate found = {0};
    PieceCost first = stage_cost(search, layout, true, p == 1),
              last = stage_cost(search, layout, p == 1, true);
    double of_first = first.forward + first.backward + first.weight,
           of_last = last.forward + last.backward + last.weight;
    PieceCost slow = of_first > of_last ? first : last;
    double busy = m * fmax(of_first, of_last);
    if (p > 1) {
        ScheduleShape shape = {.n_micro_batches = (int)m, .n_stages = p, .n_chunks = layout->n_chunks};
        StageTimes times = {slow.forward, slow.backward, slow.weight};
        found.bubble = schedule_bubble(layout->schedule, &shape, times);
        if (isnan(found.bubble)) found.bubble = (p - 1.0) * (of_first) / layout->n_chunks;
        found.bubble += 2.0 * (p - 1.0) * search->probe.message;
    }
    found.waited = sync_seconds(search, layout, &slow, m);
    double n_sharing = layout->zero ? sums_place(search, layout).size : 1.0;
    found.seconds = busy + found.bubble + found.waited + slow.update / n_sharing +
                    search->plan->machine.machine.network.step_us * 1e-6;
    double held = 1.0; /* micro-batches, in units of a stage */
    if (p > 1) {
        ScheduleShape shape = {.n_micro_batches = (int)m, .n_stages = p, .n_chunks = layout->n_chunks};
        int n = schedule_in_flight(layout->schedule, &shape, 0);
        held = n < 0 ? m : (double)n / layout->n_chunks;
    }
    double bytes = state_bytes(search, layout, &first) + held * first.frame;
    double end = state_bytes(search, layout, &last) + (p > 1 ? 1.0 : held) * last.frame;
    found.bytes = fmax(bytes, end) + search->probe.activation;
    found.optimizer = first.optimizer / n_sharing;
    found.frames = held * first.frame;
    found.a_frame = first.frame;
    found.forward = m * slow.forward;
    found.backward = m * (slow.backward + slow.weight);
    return found;
}

/* State goes in and out by pieces, both ways at once, three of which are on the device; activations go out
 * beside the forward and come back beside the backward, two blocks of which are there at a time. As much as
 * there is room for stays. */
static Estimate offloaded(const Search *search, const PlanLayout *layout, const Estimate *from,
                          double *share) {
    enum { PIECES_BYTES = 200 << 20 };
    const Machine *machine = &search->plan->machine.machine;
    double bus = machine->host.bus_gbs * 1e9, n_blocks = blocks_of(search, layout);
    bool has_activations = layout->offload == TUNE_OFFLOAD_ACTIVATIONS;
    double stays = has_activations ? from->a_frame * fmin(1.0, 2.0 / n_blocks) : from->frames;
    double away = from->optimizer + from->frames - stays;
    Estimate found = *from;
    found.bytes += PIECES_BYTES - away;
    *share = fmin(0.95, floor(20.0 * ((double)search->usable * 0.98 - found.bytes) / away) / 20.0);
    if (!(*share > 0.0)) *share = 0.0;
    found.bytes += *share * away;
    found.seconds += (1.0 - *share) * from->optimizer / bus;
    double moved = has_activations ? (1.0 - *share) * from->a_frame * (from->forward > 0.0) : 0.0;
    int64_t n_micro = (share_of(search, layout) + layout->micro_batch - 1) / layout->micro_batch;
    double way = (double)n_micro * moved / bus;
    found.seconds += fmax(way - from->forward, 0.0) + fmax(way - from->backward, 0.0);
    double host = machine->host.host_memory_gib * 1073741824.0 / search->links.ranks_a_host;
    if (host > 0.0 && (1.0 - *share) * away > host) found.bytes = INFINITY; /* not there either */
    return found;
}

static void add_found(Search *search, const PlanLayout *layout, const Estimate *found) {
    if (search->n == search->room) {
        int64_t room = search->room ? 2 * search->room : 4096;
        TunedLayout *grown = realloc(search->all, (size_t)room * sizeof *grown);
        if (!grown) return;
        search->all = grown;
        search->room = room;
    }
    search->all[search->n++] = (TunedLayout){.layout = *layout,
                                             .seconds = found->seconds,
                                             .bytes = found->bytes,
                                             .bubble = found->bubble / found->seconds,
                                             .waited = found->waited / found->seconds};
}

/* What fits is never faster for being offloaded. */
static void keep(Search *search, const PlanLayout *layout) {
    Estimate found = estimate(search, layout);
    bool fits = found.bytes <= (double)search->usable;
    add_found(search, layout, &found);
    search->n_fit += fits;
    for (int kind = TUNE_OFFLOAD_OPTIMIZER; kind < N_TUNE_OFFLOADS && search->offloads && !fits; kind++) {
        PlanLayout other = *layout;
        other.offload = (TuneOffload)kind;
        Estimate away = offloaded(search, &other, &found, &other.share);
        if (isinf(away.bytes)) continue;
        add_found(search, &other, &away);
        fits = away.bytes <= (double)search->usable;
        search->n_fit_away += fits;
    }
}

/* ---- Loops */

static void loop_zero(Search *search, PlanLayout layout) {
    int64_t given = search->plan->train.values.parallel.zero;
    bool has_sums = sums_place(search, &layout).size > 1;
    for (int zero = 0; zero <= (has_sums ? ZERO_STAGES : 0); zero++) {
        layout.zero = zero;
        if (search->options->is_quick && has_sums && zero != 1 && zero != ZERO_STAGES) continue;
        if (!is_given(search, "zero") || given == zero) keep(search, &layout);
    }
}

/* Schedules that are flushed and need no more than the layout has. */
static void loop_schedules(Search *search, PlanLayout layout, bool splits) {
    const ParallelOptions *given = &search->plan->train.values.parallel;
    const ModelConfig *model = &search->plan->train.values.model;
    int64_t m = (share_of(search, &layout) + layout.micro_batch - 1) / layout.micro_batch;
    if (layout.size[AXIS_PP] == 1) {
        if (!splits) loop_zero(search, layout);
        return;
    }
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        const ScheduleInfo *info = schedule_info((ScheduleKind)kind);
        bool is_wanted = is_given(search, "schedule") ? given->schedule == kind : kind != SCHEDULE_NAIVE;
        if (search->options->is_quick && kind != SCHEDULE_1F1B && kind != SCHEDULE_INTERLEAVED) continue;
        if (!is_wanted || info->is_asynchronous || info->splits_backward != splits) continue;
        int most =
            info->default_chunks > 1 && kind == SCHEDULE_INTERLEAVED ? MOST_CHUNKS : info->default_chunks;
        for (int n = info->default_chunks; n <= most; n++) {
            Error none = {0};
            ScheduleShape shape = {(int)m, layout.size[AXIS_PP], n};
            if (is_given(search, "chunks") && given->n_chunks && given->n_chunks != n) continue;
            if ((int64_t)n * layout.size[AXIS_PP] > model->n_layers) continue;
            if (schedule_check_shape((ScheduleKind)kind, &shape, &none) != STATUS_OK) continue;
            layout.schedule = (ScheduleKind)kind;
            layout.n_chunks = n;
            loop_zero(search, layout);
        }
    }
}

/* What the call has said of an axis, or 0. */
static int given_size(const Search *search, Axis axis) {
    return is_given(search, axis_name(axis)) ? (int)search->plan->train.values.parallel.size[axis] : 0;
}

/* Pipelines of every length, or none, of ranks that tp, cp and ep leave. */
static Status loop_stages(Search *search, PlanLayout layout, bool has_stages, bool splits, Error *error) {
    const ModelConfig *model = &search->plan->train.values.model;
    int left = search->n_ranks / (layout.size[AXIS_TP] * layout.size[AXIS_CP] * layout.size[AXIS_EP]);
    int given = given_size(search, AXIS_PP), given_data = given_size(search, AXIS_DP);
    int64_t batch = search->plan->train.values.train.batch;
    bool is_probed = false;
    for (int pp = has_stages ? 2 : 1; pp <= (has_stages ? left : 1) && pp <= model->n_layers; pp++) {
        if (left % pp || (given && given != pp)) continue;
        layout.size[AXIS_PP] = pp;
        layout.size[AXIS_DP] = left / pp;
        if (given_data && given_data != left / pp) continue;
        if (batch < (int64_t)layout.size[AXIS_DP] * layout.size[AXIS_EP]) continue;
        int64_t share = share_of(search, &layout);
        double n_blocks = blocks_of(search, &layout);
        if (layout.micro_batch > share || (layout.recompute > 1 && (double)layout.recompute > n_blocks))
            continue;
        if (!is_probed) {
            Error own = {0};
            layout.schedule = splits ? SCHEDULE_ZB_H1 : SCHEDULE_1F1B;
            layout.n_chunks = 1;
            if (plan_probe(search->plan, &layout, &search->probe, &own) != STATUS_OK) {
                if (own.status == STATUS_FAILED) *error = own;
                return error->status; /* or this shape cannot be: heads, positions or experts are too few */
            }
            search->tuning->n_probed++;
            is_probed = true;
        }
        loop_schedules(search, layout, splits);
    }
    return STATUS_OK;
}

static Status loop_work(Search *search, PlanLayout layout, Error *error) {
    /* Values of --recompute: all of them are probed. */
    static const int recomputes[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, 1, 2, 4};
    enum { N_KINDS = sizeof recomputes / sizeof recomputes[0], N_QUICK = 3 };
    const TrainOptions *train = &search->plan->train.values.train;
    for (int i = 0; i < (search->options->is_quick ? N_QUICK : N_KINDS); i++) {
        layout.recompute = is_given(search, "recompute") ? train->recompute : recomputes[i];
        if (is_given(search, "recompute") && i) break;
        for (int64_t micro = 1; micro <= MOST_MICRO_BATCH && micro <= train->batch; micro *= 2) {
            layout.micro_batch = is_given(search, "micro-batch") ? train->micro_batch : micro;
            if (is_given(search, "micro-batch") && micro > 1) break;
            if (search->options->is_quick && micro > 8) break;
            if (train->batch % layout.micro_batch) continue;
            int64_t n_before = search->n, n_fit = search->n_fit, n_away = search->n_fit_away;
            int n_kinds = search->options->is_quick ? 2 : 3;
            for (int kind = 0; kind < n_kinds; kind++)
                TRY(loop_stages(search, layout, kind > 0, kind > 1, error));
            bool any_fits = search->n_fit > n_fit || (!search->n_fit && search->n_fit_away > n_away);
            if (search->n > n_before && !any_fits) break; /* larger ones need more memory */
        }
    }
    return STATUS_OK;
}

static Status loop_meshes(Search *search, PlanLayout layout, Error *error) {
    const TrainCommand *values = &search->plan->train.values;
    int most_tp = 2 * search->links.ranks_a_host, n = search->n_ranks;
    if (most_tp > MOST_TENSOR) most_tp = MOST_TENSOR;
    for (int tp = 1; tp <= most_tp && tp <= n && tp <= values->model.n_heads; tp++) {
        int given_tp = given_size(search, AXIS_TP), given_cp = given_size(search, AXIS_CP),
            given_ep = given_size(search, AXIS_EP);
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
                TRY(loop_work(search, layout, error));
            }
        }
    }
    return STATUS_OK;
}

/* ---- The best */

static int by_seconds(const void *a, const void *b) {
    const TunedLayout *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Not worse than any that needs less: of layouts by seconds, those with fewer bytes than all before them. */
static void take_front(Search *search) {
    enum { MOST_FRONT = 64 };
    PlanTuning *tuning = search->tuning;
    double least = INFINITY;
    tuning->front = ARENA_ARRAY(&tuning->arena, TunedLayout, MOST_FRONT);
    for (int64_t i = 0; i < search->n && tuning->n_front < MOST_FRONT; i++) {
        if (search->all[i].bytes >= least * 0.98) continue;
        least = search->all[i].bytes;
        tuning->front[tuning->n_front++] = search->all[i];
    }
}

static Status plan_one(PlanRun *one, TunedLayout *found, Error *error) {
    PlanFigures figures;
    TRY(plan_layout_apply(one, &found->layout, error));
    TRY(plan_figures(one, &figures, error));
    double waited = 0.0;
    for (int i = 0; i < N_PHASES; i++) waited += figures.times.phase[i].waited;
    found->seconds = figures.times.seconds;
    found->bytes = (double)figures.rank[figures.most].total;
    found->bubble = figures.times.bubble / figures.times.seconds;
    found->waited = waited / figures.times.seconds;
    found->mfu = figures.mfu;
    found->tokens_per_s = figures.tokens_per_s;
    found->is_planned = true;
    plan_figures_free(&figures);
    return STATUS_OK;
}

static Status plan_layout(Search *search, TunedLayout *found, Error *error) {
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

/* Estimates are near, not right: so as many again are planned as are wanted. */
static Status plan_best(Search *search, Error *error) {
    PlanTuning *tuning = search->tuning;
    int wanted = search->options->n_best,
        most = search->options->n_plans ? search->options->n_plans : MOST_PLANS;
    TunedLayout *planned = ARENA_ARRAY(&tuning->arena, TunedLayout, most);
    Misfit *misfits = ARENA_ARRAY(&tuning->arena, Misfit, most);
    int n_fit = 0, n_misfits = 0;
    for (int64_t i = 0; i < search->n && tuning->n_planned < most && n_fit < 3 * wanted; i++) {
        TunedLayout found = search->all[i];
        Error own = {0};
        double estimated = found.bytes;
        if (estimated > (double)search->usable || is_misfit(search, &found, misfits, n_misfits)) continue;
        if (plan_layout(search, &found, &own) != STATUS_OK) {
            if (own.status == STATUS_FAILED) return *error = own, own.status;
            continue; /* what only the whole run knows to be wrong */
        }
        tuning->n_planned++;
        if (found.bytes <= (double)search->usable) planned[n_fit++] = found;
        else misfits[n_misfits++] = (Misfit){found.layout, found.bytes / estimated};
    }
    qsort(planned, (size_t)n_fit, sizeof *planned, by_seconds);
    tuning->best = planned;
    tuning->n_best = n_fit < wanted ? n_fit : wanted;
    return STATUS_OK;
}

static Status refuse(const Search *search, Error *error) {
    const PlanTuning *tuning = search->tuning;
    const Machine *machine = &search->plan->machine.machine;
    if (!search->n)
        return error_user(
            error,
            "no layout of %s on %d devices can be with what is given; leave out sizes of axes, or give "
            "another --gpus",
            search->plan->train.values.model.preset, search->n_ranks);
    double least = tuning->least.bytes, ratio = least / (double)search->usable;
    return error_user(
        error,
        "%s does not fit on %d device%s of %s (%s each) in any of %lld layouts%s: the least needs %s, %s too "
        "much; take about %d devices, or a smaller --model",
        search->plan->train.values.model.preset, search->n_ranks, search->n_ranks == 1 ? "" : "s",
        plain(machine->device.name).text, format_bytes(search->usable).text, (long long)search->n,
        search->offloads ? ", with optimizer and activations at the host, too" : "",
        format_bytes((uint64_t)least).text,
        format_bytes((uint64_t)fmax(least - (double)search->usable, 0.0)).text,
        (int)ceil(ratio * 1.1 * search->n_ranks));
}

/* All layouts in one precision. */
static Status search_precision(Search *search, PrecisionKind precision, Error *error) {
    PlanLayout layout = {.precision = precision, .n_chunks = 1, .schedule = SCHEDULE_1F1B};
    PlanTuning *tuning = search->tuning;
    TRY(loop_meshes(search, layout, error));
    if (search->n) qsort(search->all, (size_t)search->n, sizeof *search->all, by_seconds);
    tuning->n_layouts = search->n;
    tuning->n_refused = 0;
    tuning->least.bytes = INFINITY;
    for (int64_t i = 0; i < search->n; i++) {
        tuning->n_refused += search->all[i].bytes > (double)search->usable;
        if (search->all[i].bytes < tuning->least.bytes) tuning->least = search->all[i];
    }
    return plan_best(search, error);
}

/* To the host's memory, which a CPU has not beside its own. */
static bool can_offload(const Search *search) {
    const TrainCommand *values = &search->plan->train.values;
    const Machine *machine = &search->plan->machine.machine;
    if (!machine_is_gpu(machine) || !(machine->host.bus_gbs > 0.0) || is_given(search, "offload"))
        return false;
    return optimizer_n_moments(&values->optimizer) > 0 && values->async.sync == SYNC_EXACT &&
           strcmp(values->parallel.compress, "none") == 0;
}

Status plan_tune(PlanRun *plan, const TuneOptions *options, PlanTuning *tuning, Error *error) {
    const Machine *machine = &plan->machine.machine;
    uint64_t start = timer_now_ns();
    *tuning = (PlanTuning){0};
    Search search = {.plan = plan,
                     .tuning = tuning,
                     .options = options,
                     .n_ranks = plan->n_ranks,
                     .usable = (uint64_t)(machine->device.memory_gib * 1073741824.0)};
    search.offloads = can_offload(&search);
    search.links = links_of(machine, search.n_ranks);
    PrecisionKind usual = (PrecisionKind)plan->train.values.train.precision;
    search_precision(&search, usual, error);
    bool is_mixed = usual == PRECISION_BF16 || usual == PRECISION_F16;
    if (error->status == STATUS_OK && !tuning->n_best && is_mixed && !is_given(&search, "dtype"))
        search_precision(&search, usual == PRECISION_BF16 ? PRECISION_PURE_BF16 : PRECISION_PURE_F16, error);
    if (error->status == STATUS_OK && !tuning->n_best) refuse(&search, error);
    if (error->status == STATUS_OK) take_front(&search);
    free(search.all);
    tuning->seconds = timer_seconds_since(start);
    if (error->status != STATUS_OK) plan_tuning_free(tuning);
    return error->status;
}

void plan_tuning_free(PlanTuning *tuning) {
    arena_free(&tuning->arena);
    *tuning = (PlanTuning){0};
}
