/* A pipeline of four stages with one block each, and one with two: the difference of their second stages is a
 * block, and what the first and the last have more than a middle one are the model's ends. In a V the first
 * stage has both ends, and every stage two chunks of that many blocks. Without a pipeline it is models of two
 * and of four blocks: kept in frames or not, and cut into parts that overlap or not, programs differ. */
#include "job/plan_probe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PROBE_STAGES = 4, PROBE_MICRO_BATCHES = 8 };

typedef struct {
    const RankSpeed *speed;
    const Links *links;
    PieceCost cost;
    double activation, message;
} Probe;

static Status take(void *context, const Trainer *trainer, Error *error) {
    (void)error;
    Probe *probe = context;
    Arena arena = {0};
    RankTimes times;
    const Program *program = &trainer->step.program;
    const MemoryPlan *plan = &program->plan;
    StepSimulator simulator = {probe->speed, probe->links};
    rank_times(&simulator, program, &arena, &times);
    probe->cost = (PieceCost){.weights = (double)plan->bytes[PLACE_PARAMETER],
                              .gradients = (double)plan->bytes[PLACE_GRADIENT],
                              .optimizer = (double)plan->bytes[PLACE_OPTIMIZER],
                              .update = times.part[0][SECTION_UPDATE][0].seconds};
    for (int chunk = 0; chunk < times.n_chunks; chunk++) {
        const PartTime(*part)[2] = times.part[chunk];
        probe->cost.forward += part[SECTION_FORWARD][0].seconds;
        probe->cost.backward += part[SECTION_BACKWARD][0].seconds;
        probe->cost.weight += part[SECTION_WEIGHT][0].seconds;
        probe->cost.frame += (double)plan->chunk[chunk].bytes[PLACE_FRAME];
    }
    probe->activation = (double)plan->bytes[PLACE_ACTIVATION];
    probe->message = times.message;
    arena_free(&arena);
    return STATUS_OK;
}

static PieceCost combine(PieceCost a, double factor, PieceCost b) {
    return (PieceCost){.forward = fmax(a.forward + factor * b.forward, 0.0),
                       .backward = fmax(a.backward + factor * b.backward, 0.0),
                       .weight = fmax(a.weight + factor * b.weight, 0.0),
                       .weights = fmax(a.weights + factor * b.weights, 0.0),
                       .gradients = fmax(a.gradients + factor * b.gradients, 0.0),
                       .optimizer = fmax(a.optimizer + factor * b.optimizer, 0.0),
                       .frame = fmax(a.frame + factor * b.frame, 0.0),
                       .update = fmax(a.update + factor * b.update, 0.0)};
}

enum { MOST_STAGES_TEXT = 2 * PROBE_STAGES * 12 };

/* Left to themselves, stages with an end of the model would have fewer blocks than those in between. */
static const char *even_stages(int n_blocks, int n_chunks, char text[MOST_STAGES_TEXT]) {
    int n_virtual = PROBE_STAGES * n_chunks, at = 0;
    for (int i = 0; i < n_virtual; i++)
        at +=
            snprintf(text + at, (size_t)(MOST_STAGES_TEXT - at), "%s%d", i ? "," : "", n_blocks / n_virtual);
    return text;
}

static bool is_in_a_v(const PlanLayout *layout) {
    return layout->size[AXIS_PP] > 1 && schedule_info(layout->schedule)->placement == PLACEMENT_V;
}

bool plan_has_own_sums(const PlanRun *plan) {
    const TrainCommand *values = &plan->train.values;
    return strcmp(values->parallel.compress, "none") != 0 || values->async.sync != SYNC_EXACT;
}

/* A model of so many blocks in the layout, and the rank of one of its stages. */
static Status probe_stage(PlanRun *plan, const PlanLayout *layout, int n_blocks, int stage, Probe *probe,
                          Error *error) {
    PlanRun small = *plan;
    char text[MOST_STAGES_TEXT];
    PlanLayout of = *layout;
    bool has_stages = layout->size[AXIS_PP] > 1;
    of.size[AXIS_PP] = has_stages ? PROBE_STAGES : 1;
    of.size[AXIS_DP] = plan_has_own_sums(plan) ? 2 : 1;
    of.n_chunks = is_in_a_v(layout) ? schedule_info(of.schedule)->default_chunks : 1;
    of.zero = 0;
    if (has_stages && !schedule_info(of.schedule)->splits_backward) of.schedule = SCHEDULE_1F1B;
    else if (has_stages && !is_in_a_v(layout)) of.schedule = SCHEDULE_ZB_H1;
    small.train.values.model.n_layers = n_blocks;
    small.train.values.parallel.stages = has_stages ? even_stages(n_blocks, of.n_chunks, text) : "";
    small.train.values.parallel.compress_across = COMPRESS_ACROSS_ALL; /* two ranks are on one host */
    small.train.values.parallel.recompute = "";                        /* of stages, which are others here */
    small.train.recompute = NULL;
    small.train.values.model.n_patterns = plan->train.values.model.n_patterns;
    small.train.values.train.batch =
        layout->micro_batch * PROBE_MICRO_BATCHES * of.size[AXIS_EP] * of.size[AXIS_DP];
    small.train.options.arena = (Arena){0}; /* what is made of these options goes with them */
    if (plan_layout_apply(&small, &of, error) == STATUS_OK) {
        int a_stage = mesh_n_ranks(&small.train.shape) / of.size[AXIS_PP];
        plan_visit_rank(&small, stage * a_stage, true, take, probe, error);
    }
    arena_free(&small.train.options.arena);
    return error->status;
}

static Status probe_pipeline(PlanRun *plan, const PlanLayout *layout, Probe *probe, ProbeCost *cost,
                             Error *error) {
    int n_chunks = is_in_a_v(layout) ? schedule_info(layout->schedule)->default_chunks : 1;
    int step = (layout->recompute > 1 ? (int)layout->recompute : 1) * n_chunks, n = step * PROBE_STAGES;
    TRY(probe_stage(plan, layout, 2 * n, 1, probe, error));
    PieceCost two = probe->cost;
    TRY(probe_stage(plan, layout, n, 1, probe, error));
    PieceCost one = probe->cost;
    cost->activation = probe->activation;
    cost->message = probe->message;
    cost->block = combine((PieceCost){0}, 1.0 / step, combine(two, -1.0, one));
    cost->rest = combine((PieceCost){0}, 1.0 / n_chunks, combine(one, -(double)step, cost->block));
    TRY(probe_stage(plan, layout, n, 0, probe, error));
    cost->first = combine(probe->cost, -1.0, one);
    cost->activation = fmax(cost->activation, probe->activation);
    if (n_chunks > 1) return STATUS_OK; /* the first has both ends */
    TRY(probe_stage(plan, layout, n, PROBE_STAGES - 1, probe, error));
    cost->last = combine(probe->cost, -1.0, one);
    cost->activation = fmax(cost->activation, probe->activation);
    return STATUS_OK;
}

/* All of the model is on a rank: its ends are in the rest. Activations that wait for their backward are not
 * in frames, and what a block adds to them is as if it were. */
static Status probe_whole(PlanRun *plan, const PlanLayout *layout, Probe *probe, ProbeCost *cost,
                          Error *error) {
    int step = layout->recompute > 1 ? (int)layout->recompute : 1;
    TRY(probe_stage(plan, layout, 4 * step, 0, probe, error));
    PieceCost four = probe->cost;
    double four_activation = probe->activation;
    TRY(probe_stage(plan, layout, 2 * step, 0, probe, error));
    double n = 2.0 * step;
    cost->block = combine(four, -1.0, probe->cost);
    cost->block = combine((PieceCost){0}, 1.0 / n, cost->block);
    cost->block.frame = fmax((four_activation - probe->activation) / n, 0.0);
    cost->rest = combine(probe->cost, -n, cost->block);
    cost->activation = fmax(probe->activation - n * cost->block.frame, 0.0);
    cost->rest.frame = 0.0;
    return STATUS_OK;
}

Status plan_probe(PlanRun *plan, const PlanLayout *layout, ProbeCost *cost, Error *error) {
    const Machine *machine = &plan->machine.machine;
    int n_ranks = plan->n_ranks;
    SpeedUse use = {n_ranks, (int)plan->train.values.train.n_threads, layout->precision};
    RankSpeed speed = rank_speed(machine, &use);
    rank_speed_set_micro_batches(&speed, PROBE_MICRO_BATCHES);
    Links links = links_of(machine, n_ranks);
    Probe probe = {.speed = &speed, .links = &links};
    *cost = (ProbeCost){0};
    return layout->size[AXIS_PP] > 1 ? probe_pipeline(plan, layout, &probe, cost, error)
                                     : probe_whole(plan, layout, &probe, cost, error);
}
