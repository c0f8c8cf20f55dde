/* Kinds of instructions are told by their operations: GEMMs have dimensions, attention has rates of its own,
 * all else reads and writes. */
#include "plan/speed.h"

#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* Bytes a second where a machine's file does not say. */
#define USUAL_HOST 20e9
#define USUAL_BUS  12e9
#define USUAL_DISK 1e9

const char *bound_name(NodeBound bound) {
    static const char *const names[N_BOUNDS] = {"GEMMs", "attention", "arithmetic", "memory", "launches"};
    return names[bound];
}

static double peak_of(const Machine *machine, bool is_16, bool is_tf32) {
    const MachineDevice *device = &machine->device;
    double flops = device->tflops_32;
    if (is_tf32 && device->tflops_tf32 > 0.0) flops = device->tflops_tf32;
    if (is_16 && device->tflops_16 > 0.0) flops = device->tflops_16;
    return (flops > 0.0 ? flops : device->tflops_16) * 1e12;
}

double machine_peak_flops(const Machine *machine, PrecisionKind precision, int64_t n_ranks) {
    bool is_16 = precision_of(precision).weight != DTYPE_F32;
    double ranks = machine_ranks_a_host(machine, n_ranks);
    double cores = machine->host.n_cores ? (double)machine->host.n_cores / ranks : 1.0;
    return cores * peak_of(machine, is_16, precision == PRECISION_TF32);
}

static double threads_of(const Machine *machine, const SpeedUse *use) {
    double n_cores = (double)machine->host.n_cores, ranks = machine_ranks_a_host(machine, use->n_ranks);
    return use->n_threads ? use->n_threads : fmax(1.0, floor(n_cores / ranks));
}

/* Cores that a rank has to itself, on average, less what its threads lose to each other. */
static double cores_of(const Machine *machine, const SpeedUse *use) {
    double n_cores = (double)machine->host.n_cores, ranks = machine_ranks_a_host(machine, use->n_ranks);
    if (n_cores <= 0.0) return 1.0;
    double threads = threads_of(machine, use), loss = 0.0;
    if (n_cores > 1.0) loss = (1.0 - machine->device.thread_efficiency) * (threads - 1.0) / (n_cores - 1.0);
    return fmin(threads * (1.0 - fmin(fmax(loss, 0.0), 0.9)), n_cores / ranks);
}

/* Ranks of a host that compute at a time, and what is left of each one's rate: ranks with more threads than
 * there are cores take turns, and cores that others keep busy slow a core down. */
static double active_of(const Machine *machine, const SpeedUse *use) {
    double ranks = machine_ranks_a_host(machine, use->n_ranks), n_cores = (double)machine->host.n_cores;
    return n_cores > 0.0 ? fmin(ranks, n_cores) : 1.0;
}

static double turns_of(const Machine *machine, const SpeedUse *use) {
    double n_cores = (double)machine->host.n_cores, threads = threads_of(machine, use);
    double ranks = machine_ranks_a_host(machine, use->n_ranks);
    return n_cores > 0.0 ? fmin(1.0, n_cores / (ranks * fmin(threads, n_cores))) : 1.0;
}

/* Of a rank's other cores, the part that others keep busy. */
static double busy_part(const Machine *machine, const SpeedUse *use) {
    double n_cores = (double)machine->host.n_cores, threads = threads_of(machine, use);
    double ranks = machine_ranks_a_host(machine, use->n_ranks);
    double others = fmin(ranks * threads, n_cores) - fmin(threads, n_cores);
    return n_cores > 1.0 ? others / (n_cores - 1.0) : 0.0;
}

static double busy_share(const Machine *machine, const SpeedUse *use) {
    double busy = machine->device.busy_efficiency;
    return busy > 0.0 ? 1.0 - (1.0 - busy) * busy_part(machine, use) : 1.0;
}

/* Where ranks are no multiple of the cores, one core has more of them than another. Those of the other are
 * done earlier, and while they wait for the rest they give up their core time and again rather than leave it:
 * of the time in between this part is lost, the more of it the more ranks a core has. As 3, 5 and 7 ranks of
 * two cores took (docs/LOG.md). */
static double uneven_share(double ranks_a_core) {
    const double lost = 0.7;
    double excess = ceil(ranks_a_core - 1e-9) / ranks_a_core - 1.0;
    return 1.0 / (1.0 + lost * excess * (1.0 - 1.0 / ranks_a_core));
}

/* That is where the system has time to bring ranks from one core to another. Where they meet again before it
 * does, all wait for the core that has most of them. */
static double uneven_part(double ranks_a_core) {
    return ceil(ranks_a_core - 1e-9) / ranks_a_core * uneven_share(ranks_a_core) - 1.0;
}

/* Ranks that take turns find each other's numbers in the caches, and wait for those who have none. */
static double crowd_share(const Machine *machine, const SpeedUse *use) {
    double crowd = machine->device.crowd_efficiency, turns = turns_of(machine, use);
    return turns < 1.0 && crowd > 0.0 ? crowd * uneven_share(1.0 / turns) : 1.0;
}

static void use_samples(RankSpeed *speed, const Machine *machine, const SpeedUse *use) {
    double n_cores = (double)machine->host.n_cores;
    bool is_measured = strcmp(machine->device.dtype, precision_names[use->precision]) == 0;
    speed->turns = turns_of(machine, use);
    speed->threads = 1.0;
    if (n_cores > 1.0) {
        double threads = fmin(threads_of(machine, use), n_cores);
        double loss = (1.0 - machine->device.thread_efficiency) * (threads - 1.0) / (n_cores - 1.0);
        speed->threads = threads * (1.0 - fmin(fmax(loss, 0.0), 0.9));
    }
    speed->share = speed->turns * crowd_share(machine, use);
    speed->uneven = speed->turns < 1.0 ? uneven_part(1.0 / speed->turns) : 0.0;
    speed->busy_share = busy_share(machine, use);
    if (!is_measured || !machine->samples) return;
    speed->one_thread = machine->samples;
    speed->all_threads = machine->all_thread_samples;
    speed->busy = machine->busy_samples;
    speed->busy_part = busy_part(machine, use);
    if (n_cores > 1.0) speed->all_threads_part = log(fmin(threads_of(machine, use), n_cores)) / log(n_cores);
    if (n_cores > 0.0 && machine->host.host_memory_gbs > 0.0)
        speed->shared_memory =
            machine->host.host_memory_gbs * 1e9 / machine_ranks_a_host(machine, use->n_ranks);
}

RankSpeed rank_speed(const Machine *machine, const SpeedUse *use) {
    const MachineDevice *device = &machine->device;
    double cores = cores_of(machine, use), n_cores = (double)machine->host.n_cores;
    double ranks = machine_ranks_a_host(machine, use->n_ranks);
    double memory = device->memory_gbs * device->memory_efficiency * 1e9 * cores;
    double host = machine->host.host_memory_gbs > 0.0 ? machine->host.host_memory_gbs * 1e9 / ranks : 0.0;
    if (host > 0.0 && n_cores > 0.0) memory = fmin(memory, host);
    double gemm = device->gemm_efficiency * cores;
    double vector =
        device->vector_tflops > 0.0 ? device->vector_tflops * 1e12 : peak_of(machine, false, false);
    bool is_tf32 = use->precision == PRECISION_TF32;
    RankSpeed speed = {.machine = machine,
                       .classes = machine_gemm_classes(machine),
                       .gemm_16 = gemm * peak_of(machine, true, false),
                       .gemm_32 = gemm * peak_of(machine, false, is_tf32),
                       .vector = vector * cores,
                       .memory = memory,
                       .cache = device->cache_gbs > 0.0 ? device->cache_gbs * 1e9 * cores : memory,
                       .cache_bytes = device->cache_mib * 1048576.0 / active_of(machine, use),
                       .launch = device->launch_us * 1e-6,
                       .draws = device->draws_g * 1e9 * cores,
                       .host = host > 0.0 ? host : USUAL_HOST,
                       .bus = machine->host.bus_gbs > 0.0 ? machine->host.bus_gbs * 1e9 : USUAL_BUS,
                       .disk =
                           (machine->host.disk_gbs > 0.0 ? machine->host.disk_gbs * 1e9 : USUAL_DISK) / ranks,
                       .overlaps = n_cores <= 0.0 || ranks * threads_of(machine, use) < n_cores};
    use_samples(&speed, machine, use);
    return speed;
}

void rank_speed_set_micro_batches(RankSpeed *speed, int64_t n_micro_batches) {
    speed->adds = n_micro_batches > 1 ? 1.0 - 1.0 / (double)n_micro_batches : 0.0;
}

/* ---- Instructions */

static bool begins(const Node *node, const char *words) {
    return strncmp(node->op->name, words, strlen(words)) == 0;
}

static bool is_backward(const Node *node) {
    return strstr(node->op->name, "_backward") != NULL;
}

static double arithmetic_rate(const RankSpeed *speed, const Node *node, NodeBound *bound) {
    const MachineDevice *device = &speed->machine->device;
    bool is_16 = node->input[0] && node->input[0]->dtype != DTYPE_F32 && node->input[0]->dtype != DTYPE_I32;
    double gemm = is_16 ? speed->gemm_16 : speed->gemm_32, M, N, K;
    if (node_gemm(node, &M, &N, &K)) {
        *bound = BOUND_GEMM;
        return gemm * gemm_class_share(&speed->classes, fmin(M, fmin(N, K)));
    }
    if (begins(node, "attention") || begins(node, "sparse_attention")) {
        *bound = BOUND_ATTENTION;
        return gemm * (is_backward(node) ? device->attention_backward : device->attention_forward);
    }
    *bound = BOUND_VECTOR;
    return speed->vector;
}

/* The mean of all micro-batches. */
static bool sampled_seconds(const RankSpeed *speed, const Samples *samples, const Node *node,
                            double *seconds) {
    double added;
    if (!samples_seconds(samples, node, node_adds(node, false), seconds)) return false;
    if (speed->adds <= 0.0 || !node_adds(node, true)) return true;
    if (samples_seconds(samples, node, true, &added)) *seconds += speed->adds * (added - *seconds);
    return true;
}

/* What others on the other cores make of it, by caches and memory that all share: as measured, or nobody has
 * tried. */
static double beside_others(const RankSpeed *speed, const Node *node, const Cost *cost, double alone,
                            double seconds) {
    double busy, least = 0.0;
    if (speed->busy_part > 0.0 && sampled_seconds(speed, speed->busy, node, &busy))
        return seconds * pow(busy / alone, speed->busy_part) / speed->share;
    if (speed->shared_memory > 0.0 && cost->bytes > speed->cache_bytes)
        least = cost->bytes / speed->shared_memory;
    return fmax(seconds / speed->busy_share / speed->share, least);
}

/* As measured. With some of the cores a rank is as far between one thread and all, in logarithms, as their
 * number is. */
static bool measured_time(const RankSpeed *speed, const Node *node, const Cost *cost, NodeTime *time) {
    double alone, seconds, of_all;
    if (!speed->one_thread || !sampled_seconds(speed, speed->one_thread, node, &alone)) return false;
    seconds = alone;
    if (speed->all_threads_part > 0.0 && sampled_seconds(speed, speed->all_threads, node, &of_all))
        seconds *= pow(of_all / seconds, speed->all_threads_part);
    else seconds /= speed->threads; /* nobody has tried them */
    arithmetic_rate(speed, node, &time->bound);
    if (time->bound == BOUND_VECTOR) time->bound = BOUND_MEMORY;
    time->seconds = beside_others(speed, node, cost, alone, seconds);
    if (time->seconds < speed->launch) *time = (NodeTime){speed->launch, BOUND_LAUNCH};
    return true;
}

/* Scores that attention computes: those that somebody may see. 0: it is none. */
static double visible_scores(const Node *node, double flops, const AttentionAttributes **heads) {
    bool is_part = node->op == &OP_ATTENTION_PART || node->op == &OP_ATTENTION_PART_BACKWARD;
    if (!is_part && node->op != &OP_ATTENTION && node->op != &OP_ATTENTION_BACKWARD) return 0.0;
    *heads = is_part ? &((const AttentionPartAttributes *)node->attributes)->heads : node->attributes;
    return flops / ((is_backward(node) ? 10.0 : 4.0) * (*heads)->head_size);
}

/* Attention that is not fused writes its scores and reads them again, kernel after kernel, those that nobody
 * may see too. */
static double score_seconds(const RankSpeed *speed, const Node *node, double flops) {
    const AttentionAttributes *heads;
    double n = 2.0 * visible_scores(node, flops, &heads) * (is_backward(node) ? 1.5 : 1.0);
    return n * speed->machine->device.score_bytes / speed->memory;
}

/* Dropout draws a number for every score or element, and the backward draws it again. */
static double draw_seconds(const RankSpeed *speed, const Node *node, double flops) {
    const AttentionAttributes *heads = NULL;
    double n = visible_scores(node, flops, &heads);
    if (speed->draws <= 0.0) return 0.0;
    if (heads && heads->dropout <= 0.0f) n = 0.0;
    bool is_norm = node->op == &OP_RESIDUAL_NORM || node->op == &OP_RESIDUAL_NORM_BACKWARD;
    bool draws = is_norm && ((const ResidualNormAttributes *)node->attributes)->probability > 0.0f;
    if (draws || node->op == &OP_DROPOUT) n = (double)tensor_count(node->input[0]);
    return n / speed->draws;
}

NodeTime rank_node_time(const RankSpeed *speed, const Node *node) {
    Cost cost = op_cost(node);
    NodeTime time = {0};
    if (!node->is_on_host && measured_time(speed, node, &cost, &time)) return time;
    double arithmetic = cost.flops > 0.0 ? cost.flops / arithmetic_rate(speed, node, &time.bound) : 0.0;
    if (node->is_on_host) /* which reads and writes, and has no launches */
        return (NodeTime){.seconds = cost.bytes / speed->host, .bound = BOUND_MEMORY};
    bool is_cached = cost.bytes <= speed->cache_bytes;
    double traffic = cost.bytes / (is_cached ? fmax(speed->cache, speed->memory) : speed->memory);
    if (traffic >= arithmetic) time.bound = BOUND_MEMORY;
    time.seconds = fmax(arithmetic, traffic) + score_seconds(speed, node, cost.flops) +
                   draw_seconds(speed, node, cost.flops);
    if (speed->launch > time.seconds) time.bound = BOUND_LAUNCH;
    time.seconds += speed->launch;
    return time;
}
