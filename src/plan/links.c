/* Formulas, as links.h has them. Each rises with bytes and ranks and falls with what links carry, and the
 * fastest of several is taken where the machine does not say how: so more of a link never costs time. */
#include "plan/links.h"

#include "base/text/plain.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *link_name(LinkKind kind) {
    return kind == LINK_INSIDE ? "inside a host" : "between hosts";
}

Links links_of(const Machine *machine, int64_t n_ranks) {
    const MachineHost *host = &machine->host;
    const MachineNetwork *network = &machine->network;
    int a_host = machine_ranks_a_host(machine, n_ranks);
    double inside = host->inside_gbs * 1e9 * network->link_efficiency;
    double links_a_device = fmax(1.0, (double)network->n_links / (double)host->n_devices);
    double between = fmin((double)network->n_links / a_host, links_a_device) * network->between_gbs * 1e9 *
                     network->link_efficiency;
    return (Links){.inside = host->inside_is_shared ? inside / a_host : inside,
                   .between = between,
                   .inside_s = host->inside_us * 1e-6,
                   .between_s = network->between_us * 1e-6,
                   .ranks_a_host = a_host,
                   .is_shared = host->inside_is_shared,
                   .style = (CollectiveStyle)network->collectives,
                   .measured = machine->message_samples};
}

GroupPlace links_place(const Links *links, const PlannedGroup *group) {
    GroupPlace place = {.size = group ? group->size : 1, .a_host = 1, .n_hosts = 1};
    PlannedHosts *known = group ? group->hosts : NULL;
    int on_this = 1;
    if (known && known->ranks_a_host == links->ranks_a_host) {
        place.a_host = known->a_host;
        place.n_hosts = known->n_hosts;
        return place;
    }
    for (int i = 1; i < place.size; i++) { /* members rise */
        bool is_new = group->member[i] / links->ranks_a_host != group->member[i - 1] / links->ranks_a_host;
        place.n_hosts += is_new;
        on_this = is_new ? 1 : on_this + 1;
        if (place.a_host < on_this) place.a_host = on_this;
    }
    if (known) *known = (PlannedHosts){links->ranks_a_host, place.a_host, place.n_hosts};
    return place;
}

static double log2_up(int n) {
    return n > 1 ? ceil(log2((double)n) - 1e-9) : 0.0;
}

/* Of a ring or tree through all ranks: g of a host carry what leaves it, each over its own links. */
static double narrowest(const Links *links, const GroupPlace *place) {
    if (place->n_hosts == 1) return links->inside;
    double between = place->a_host * links->between;
    return place->a_host > 1 ? fmin(links->inside, between) : between;
}

static double step_seconds(const Links *links, const GroupPlace *place) {
    return place->n_hosts > 1 ? links->between_s : links->inside_s;
}

/* A reduce-scatter or an all-gather of n bytes. */
static double ring_half(const Links *links, double n, const GroupPlace *place) {
    double N = place->size;
    return (N - 1.0) / N * n / narrowest(links, place) + (N - 1.0) * step_seconds(links, place);
}

static double levels_half(const Links *links, double n, const GroupPlace *place, double inside_steps) {
    double g = place->a_host, h = place->n_hosts;
    double seconds = g > 1.0 ? (g - 1.0) / g * n / links->inside + inside_steps * links->inside_s : 0.0;
    if (h > 1.0)
        seconds += (h - 1.0) / h * n / g / links->between + log2_up(place->n_hosts) * links->between_s;
    return seconds;
}

static double tree_way(const Links *links, double n, const GroupPlace *place) {
    return n / narrowest(links, place) + log2_up(place->a_host) * links->inside_s +
           log2_up(place->n_hosts) * links->between_s;
}

static double half_seconds(const Links *links, double n, const GroupPlace *place) {
    double ring = ring_half(links, n, place);
    double levels = levels_half(links, n, place, (double)place->a_host - 1.0);
    double halving = levels_half(links, n, place, log2_up(place->a_host));
    switch (links->style) {
    case COLLECTIVES_RING: return ring;
    case COLLECTIVES_HIERARCHICAL: return levels;
    case COLLECTIVES_HALVING: return halving;
    default: return fmin(ring, fmin(levels, halving));
    }
}

static double all_reduce_seconds(const Links *links, double n, const GroupPlace *place) {
    double tree = 2.0 * tree_way(links, n, place), halves = 2.0 * half_seconds(links, n, place);
    if (links->style == COLLECTIVES_TREE) return tree;
    return links->style == COLLECTIVES_AUTO ? fmin(tree, halves) : halves;
}

/* A collective, or a message to a rank of the group. */
typedef struct {
    CommKind kind;
    bool is_message, is_work;
} LinkUse;

/* What stays on the host and what leaves it go beside each other. */
static double exchange_seconds(const Links *links, double n, const GroupPlace *place) {
    double N = place->size, g = place->a_host;
    double inside = N > 1.0 ? n * (g - 1.0) / (N - 1.0) : 0.0, between = n - inside;
    double seconds = inside > 0.0 ? inside / links->inside : 0.0;
    if (place->n_hosts > 1) seconds = fmax(seconds, between / links->between);
    return seconds + log2_up(place->size) * step_seconds(links, place);
}

static double formula_seconds(const Links *links, LinkUse use, double n_bytes, const GroupPlace *place) {
    if (use.is_message)
        return n_bytes / (place->n_hosts > 1 ? links->between : links->inside) + step_seconds(links, place);
    switch (use.kind) {
    case COMM_ALL_REDUCE: return all_reduce_seconds(links, n_bytes, place);
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER: return half_seconds(links, n_bytes, place);
    case COMM_ALL_TO_ALL:
    case COMM_SCATTER:
    case COMM_GATHER: return exchange_seconds(links, n_bytes, place);
    case COMM_BARRIER: return log2_up(place->size) * step_seconds(links, place);
    default: return tree_way(links, n_bytes, place);
    }
}

/* ---- As measured */

enum { SAMPLE_RANKS, SAMPLE_GROUP, SAMPLE_BYTES };

/* The sample whose ranks and groups are the most alike, of any number of bytes. */
static const Sample *nearest_ranks(const SampleGroup *samples, double ranks, double group) {
    const Sample *nearest = NULL;
    double least = INFINITY;
    for (int i = 0; i < samples->n; i++) {
        const double *size = samples->sample[i].size;
        double apart = fabs(size[SAMPLE_RANKS] - ranks) + fabs(size[SAMPLE_GROUP] - group);
        if (apart >= least) continue;
        least = apart;
        nearest = &samples->sample[i];
    }
    return nearest;
}

static double log_seconds(const Sample *sample) {
    return sample->size[SAMPLE_BYTES] - sample->rate;
}

/* Of those with the ranks and the group of `like`, at so many bytes. */
static double between_sizes(const SampleGroup *samples, const Sample *like, double bytes) {
    const Sample *below = NULL, *above = NULL;
    for (int i = 0; i < samples->n; i++) {
        const Sample *sample = &samples->sample[i];
        double size = sample->size[SAMPLE_BYTES];
        if (sample->size[SAMPLE_RANKS] != like->size[SAMPLE_RANKS]) continue;
        if (sample->size[SAMPLE_GROUP] != like->size[SAMPLE_GROUP]) continue;
        if (size <= bytes && (!below || size > below->size[SAMPLE_BYTES])) below = sample;
        if (size >= bytes && (!above || size < above->size[SAMPLE_BYTES])) above = sample;
    }
    if (!below) return exp(log_seconds(above ? above : like)); /* `like` is one of them: there is one */
    if (!above) return exp(bytes - below->rate);
    double span = above->size[SAMPLE_BYTES] - below->size[SAMPLE_BYTES];
    double part = span > 0.0 ? (bytes - below->size[SAMPLE_BYTES]) / span : 0.0;
    return exp(log_seconds(below) + part * (log_seconds(above) - log_seconds(below)));
}

Status links_check_samples(const Samples *samples, Error *error) {
    for (int i = 0; i < samples->n_groups; i++) {
        const SampleGroup *group = &samples->group[i];
        bool is_known =
            strcmp(group->name, LINK_MESSAGE) == 0 || strcmp(group->name, LINK_MESSAGE LINK_WORK) == 0;
        for (int kind = 0; kind < N_COMM_KINDS && !is_known; kind++) {
            const char *name = comm_kind_name((CommKind)kind);
            size_t n = strlen(name);
            is_known = strncmp(group->name, name, n) == 0 &&
                       (!group->name[n] || strcmp(group->name + n, LINK_WORK) == 0);
        }
        if (!is_known || group->n_sizes != SAMPLE_BYTES + 1)
            return error_user(error,
                              "message-samples: '%s' with %d sizes; write a collective or " LINK_MESSAGE
                              ", ranks, group and bytes, as 'all-reduce:4,2,65536=1.2'",
                              plain_value(group->name).text, group->n_sizes);
    }
    return STATUS_OK;
}

static bool measured_seconds(const Links *links, LinkUse use, double n_bytes, const GroupPlace *place,
                             double *seconds) {
    char name[48];
    snprintf(name, sizeof name, "%s%s", use.is_message ? LINK_MESSAGE : comm_kind_name(use.kind),
             use.is_work ? LINK_WORK : "");
    const SampleGroup *samples = place->n_hosts == 1 ? samples_group(links->measured, name) : NULL;
    if (!samples) return false;
    double ranks = links->ranks_a_host, group = place->size;
    const Sample *like = nearest_ranks(samples, log(ranks), log(group));
    double like_ranks = round(exp(like->size[SAMPLE_RANKS])),
           like_group = round(exp(like->size[SAMPLE_GROUP]));
    *seconds = between_sizes(samples, like, log(fmax(n_bytes, 1.0)));
    if (like_ranks == ranks && like_group == group) return true;
    Links other = *links;
    GroupPlace other_place = {.size = (int)like_group, .a_host = (int)like_group, .n_hosts = 1};
    if (links->is_shared) other.inside *= ranks / like_ranks;
    double formula = formula_seconds(&other, use, n_bytes, &other_place);
    if (formula > 0.0) *seconds *= formula_seconds(links, use, n_bytes, place) / formula;
    return true;
}

static double seconds_of(const Links *links, LinkUse use, double n_bytes, const GroupPlace *place) {
    double seconds;
    if (place->size <= 1) return 0.0;
    if (measured_seconds(links, use, n_bytes, place, &seconds)) return seconds;
    return formula_seconds(links, use, n_bytes, place);
}

double links_seconds(const Links *links, CommKind kind, double n_bytes, const GroupPlace *place) {
    return seconds_of(links, (LinkUse){.kind = kind}, n_bytes, place);
}

double links_work_seconds(const Links *links, CommKind kind, double n_bytes, const GroupPlace *place) {
    double seconds = links_seconds(links, kind, n_bytes, place), work;
    LinkUse use = {.kind = kind, .is_work = true};
    if (place->size <= 1 || !measured_seconds(links, use, n_bytes, place, &work)) return seconds;
    return fmin(work, seconds);
}

double links_message_seconds(const Links *links, double n_bytes, const GroupPlace *place) {
    return seconds_of(links, (LinkUse){.is_message = true}, n_bytes, place);
}

SentCount links_sent(CommKind kind, double n_bytes, int n_ranks, const CommAlgorithm *all_reduce) {
    double others = (double)n_ranks - 1.0, part = n_ranks > 1 ? others / n_ranks : 0.0;
    if (n_ranks <= 1) return (SentCount){0};
    switch (kind) {
    case COMM_ALL_REDUCE:
        if (all_reduce) {
            CommCost cost = all_reduce->cost(n_ranks, (int64_t)(n_bytes / 4.0), 4);
            return (SentCount){2.0 * others, (double)cost.total_bytes / n_ranks};
        }
        return (SentCount){2.0 * others, 2.0 * part * n_bytes};
    case COMM_REDUCE_SCATTER:
    case COMM_ALL_GATHER: return (SentCount){others, part * n_bytes};
    case COMM_ALL_TO_ALL: return (SentCount){others, n_bytes};
    default: return (SentCount){1.0, n_bytes};
    }
}
