/* Sums and formulas; nothing is built here. */
#include "job/plan_estimate.h"

#include <math.h>

int64_t plan_share_of(const Search *search, const PlanLayout *layout) {
    int64_t n_shares = (int64_t)layout->size[AXIS_DP] * layout->size[AXIS_EP],
            batch = search->plan->train.values.train.batch;
    return (batch + n_shares - 1) / n_shares;
}

int64_t plan_micro_batches(const Search *search, const PlanLayout *layout) {
    return (plan_share_of(search, layout) + layout->micro_batch - 1) / layout->micro_batch;
}

GroupPlace plan_sums_place(const Search *search, const PlanLayout *layout) {
    int size = layout->size[AXIS_DP] * layout->size[AXIS_CP] * layout->size[AXIS_EP], a_host = 1;
    int fit = search->links.ranks_a_host / layout->size[AXIS_TP];
    if (fit > 1) a_host = fit < size ? fit : size;
    return (GroupPlace){.size = size, .a_host = a_host, .n_hosts = (size + a_host - 1) / a_host};
}

double plan_blocks_of(const Search *search, const PlanLayout *layout) {
    double n = (double)search->plan->train.values.model.n_layers, p = layout->size[AXIS_PP];
    if (layout->size[AXIS_PP] == 1) return n;
    return ceil(n / p - 1e-9);
}

static PieceCost stage_cost(const Search *search, const ProbeCost *probe, const PlanLayout *layout,
                            bool is_first, bool is_last) {
    double n = plan_blocks_of(search, layout), v = layout->size[AXIS_PP] > 1 ? layout->n_chunks : 1.0;
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
    GroupPlace place = plan_sums_place(search, layout);
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
    double n = plan_sums_place(search, layout).size;
    double weights = layout->zero >= 3 ? cost->weights / n : cost->weights;
    double gradients = layout->zero >= 2 ? cost->gradients / n : cost->gradients;
    return weights + gradients + (layout->zero >= 1 ? cost->optimizer / n : cost->optimizer);
}

Estimate plan_estimate(const Search *search, const ProbeCost *probe, const PlanLayout *layout) {
    double m = (double)plan_micro_batches(search, layout);
    int p = layout->size[AXIS_PP];
    Estimate found = {0};
    PieceCost first = stage_cost(search, probe, layout, true, p == 1),
              last = stage_cost(search, probe, layout, p == 1, true);
    double of_first = first.forward + first.backward + first.weight,
           of_last = last.forward + last.backward + last.weight;
    PieceCost slow = of_first > of_last ? first : last;
    double busy = m * fmax(of_first, of_last);
    if (p > 1) {
        ScheduleShape shape = {.n_micro_batches = (int)m, .n_stages = p, .n_chunks = layout->n_chunks};
        StageTimes times = {slow.forward, slow.backward, slow.weight};
        found.bubble = schedule_bubble(layout->schedule, &shape, times);
        if (isnan(found.bubble)) found.bubble = (p - 1.0) * (of_first) / layout->n_chunks;
        found.bubble += 2.0 * (p - 1.0) * probe->message;
    }
    found.waited = sync_seconds(search, layout, &slow, m);
    double n_sharing = layout->zero ? plan_sums_place(search, layout).size : 1.0;
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
    found.bytes = fmax(bytes, end) + probe->activation;
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
Estimate plan_estimate_offloaded(const Search *search, const PlanLayout *layout, const Estimate *from,
                                 double *share) {
    enum { PIECES_BYTES = 200 << 20 };
    const Machine *machine = &search->plan->machine.machine;
    double bus = machine->host.bus_gbs * 1e9, n_blocks = plan_blocks_of(search, layout);
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
    double way = (double)plan_micro_batches(search, layout) * moved / bus;
    found.seconds += fmax(way - from->forward, 0.0) + fmax(way - from->backward, 0.0);
    double host = machine->host.host_memory_gib * 1073741824.0 / search->links.ranks_a_host;
    if (host > 0.0 && (1.0 - *share) * away > host) found.bytes = INFINITY; /* not there either */
    return found;
}
