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

/* ---- How blocks are given out */

enum { SHAPES_A_LENGTH = TUNE_MOST_CHUNKS + 1 }; /* by chunks, and a V */

static StageBlocks blocks_of(const Stages *stages, Arena *arena) {
    int p = stages->shape.n_stages, *n = ARENA_ARRAY(arena, int, p);
    for (int i = 0; i < stages->n_virtual; i++) {
        const VirtualStage *stage = &stages->virtual_stage[i];
        n[stage->stage] += stage->part.end_block - stage->part.first_block;
    }
    StageBlocks blocks = {.first = n[0], .last = n[p - 1]};
    for (int i = 1; i < p - 1; i++)
        if (blocks.middle < n[i]) blocks.middle = n[i];
    return blocks;
}

const StageBlocks *plan_list_stages(const PlanRun *plan, int n_ranks, Arena *arena) {
    const TrainCommand *values = &plan->train.values;
    const ModelConfig *model = &values->model;
    int most = model->n_layers < n_ranks ? (int)model->n_layers : n_ranks;
    StageBlocks *list = ARENA_ARRAY(arena, StageBlocks, (most + 1) * SHAPES_A_LENGTH);
    for (int p = 2; p <= most; p++) {
        for (int shape = 0; shape < SHAPES_A_LENGTH && n_ranks % p == 0; shape++) {
            bool is_v = shape == TUNE_MOST_CHUNKS;
            Arena own = {0};
            Error unheard = {0};
            Stages stages;
            StagesOptions options = {.schedule = is_v    ? SCHEDULE_ZB_V
                                                 : shape ? SCHEDULE_INTERLEAVED
                                                         : SCHEDULE_1F1B,
                                     .shape = {4 * p, p, is_v ? 2 : shape + 1},
                                     .n_tp = 1,
                                     .B = 1,
                                     .T = values->train.sequence};
            if (stages_balance(&stages, model, &options, &own, &unheard) == STATUS_OK)
                list[p * SHAPES_A_LENGTH + shape] = blocks_of(&stages, &own);
            arena_free(&own);
        }
    }
    return list;
}

static StageBlocks stage_blocks(const Search *search, const PlanLayout *layout) {
    int n = (int)search->plan->train.values.model.n_layers, p = layout->size[AXIS_PP];
    if (p == 1) return (StageBlocks){n, n, 0};
    bool is_v = schedule_info(layout->schedule)->placement == PLACEMENT_V;
    return search->stage_blocks[p * SHAPES_A_LENGTH + (is_v ? TUNE_MOST_CHUNKS : layout->n_chunks - 1)];
}

int plan_blocks_of(const Search *search, const PlanLayout *layout) {
    StageBlocks blocks = stage_blocks(search, layout);
    int ends = blocks.first > blocks.last ? blocks.first : blocks.last;
    return ends > blocks.middle ? ends : blocks.middle;
}

/* ---- What a stage costs */

static PieceCost stage_cost(const ProbeCost *probe, const PlanLayout *layout, int n_blocks, bool is_first,
                            bool is_last) {
    double n = n_blocks, v = layout->size[AXIS_PP] > 1 ? layout->n_chunks : 1.0;
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
    if (place.size == 1 || search->has_own_sums) return 0.0; /* they are in the update */
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

static double frames_of(ScheduleKind kind, const ScheduleShape *shape, int stage, StepAction *actions) {
    int n = schedule_actions(kind, shape, stage, actions), n_frames = 0;
    for (int chunk = 0; chunk < shape->n_chunks; chunk++) n_frames += actions_n_frames_of(actions, n, chunk);
    return (double)n_frames / shape->n_chunks;
}

/* Beyond a few rounds of the stages more micro-batches hold no more, but where all of them are held. */
HeldFrames plan_held_frames(const Search *search, const PlanLayout *layout) {
    int p = layout->size[AXIS_PP];
    int64_t m = plan_micro_batches(search, layout), few = 4 * (int64_t)p;
    if (p == 1) return (HeldFrames){1.0, 1.0, 0.0};
    if (layout->schedule == SCHEDULE_GPIPE) return (HeldFrames){(double)m, (double)m, (double)m};
    ScheduleShape shape = {
        .n_micro_batches = (int)(m > few ? few + m % p : m), .n_stages = p, .n_chunks = layout->n_chunks};
    Arena arena = {0};
    StepAction *actions = ARENA_ARRAY(&arena, StepAction, schedule_bound(&shape));
    HeldFrames held = {frames_of(layout->schedule, &shape, 0, actions),
                       frames_of(layout->schedule, &shape, p - 1, actions),
                       frames_of(layout->schedule, &shape, p > 2 ? 1 : 0, actions)};
    arena_free(&arena);
    return held;
}

static double busy_of(const PieceCost *stage) {
    return stage->forward + stage->backward + stage->weight;
}

Estimate plan_estimate(const Search *search, const ProbeCost *probe, const PlanLayout *layout,
                       HeldFrames held) {
    double m = (double)plan_micro_batches(search, layout);
    int p = layout->size[AXIS_PP];
    Estimate found = {0};
    StageBlocks blocks = stage_blocks(search, layout);
    PieceCost first = stage_cost(probe, layout, blocks.first, true, p == 1),
              last = stage_cost(probe, layout, blocks.last, p == 1, true),
              middle = stage_cost(probe, layout, blocks.middle, false, false);
    double of_first = busy_of(&first), of_last = busy_of(&last),
           of_middle = blocks.middle ? busy_of(&middle) : 0.0;
    PieceCost slow = of_first > of_last ? first : last;
    if (of_middle > busy_of(&slow)) slow = middle;
    double busy = m * busy_of(&slow);
    if (p > 1) {
        ScheduleShape shape = {.n_micro_batches = (int)m, .n_stages = p, .n_chunks = layout->n_chunks};
        StageTimes times = {slow.forward, slow.backward, slow.weight};
        found.bubble = schedule_bubble(layout->schedule, &shape, times);
        if (isnan(found.bubble)) found.bubble = (p - 1.0) * busy_of(&slow) / layout->n_chunks;
        found.bubble += 2.0 * (p - 1.0) * probe->message;
    }
    found.waited = sync_seconds(search, layout, &slow, m);
    /* The ends of a pipeline sum the gradient of a table that both have, whoever is the busiest. */
    double update = fmax(slow.update, fmax(first.update, last.update));
    double n_sharing = layout->zero ? plan_sums_place(search, layout).size : 1.0;
    found.seconds = busy + found.bubble + found.waited + update / n_sharing +
                    search->plan->machine.machine.network.step_us * 1e-6;
    double bytes = state_bytes(search, layout, &first) + held.first * first.frame;
    double end = state_bytes(search, layout, &last) + held.last * last.frame;
    if (blocks.middle) end = fmax(end, state_bytes(search, layout, &middle) + held.middle * middle.frame);
    found.bytes = fmax(bytes, end) + probe->activation;
    found.optimizer = first.optimizer / n_sharing;
    found.frames = held.first * first.frame;
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
