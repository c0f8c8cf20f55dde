/* Formulas, as links.h has them. Each rises with bytes and ranks and falls with what links carry, and the
 * fastest of several is taken where the machine does not say how: so more of a link never costs time. */
#include "plan/links.h"

#include <math.h>

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
                   .style = (CollectiveStyle)network->collectives};
}

GroupPlace links_place(const Links *links, const PlannedGroup *group) {
    GroupPlace place = {.size = group ? group->size : 1, .a_host = 1, .n_hosts = 1};
    int on_this = 1;
    for (int i = 1; i < place.size; i++) { /* members rise */
        bool is_new = group->member[i] / links->ranks_a_host != group->member[i - 1] / links->ranks_a_host;
        place.n_hosts += is_new;
        on_this = is_new ? 1 : on_this + 1;
        if (place.a_host < on_this) place.a_host = on_this;
    }
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

/* What stays on the host and what leaves it go beside each other. */
static double exchange_seconds(const Links *links, double n, const GroupPlace *place) {
    double N = place->size, g = place->a_host;
    double inside = N > 1.0 ? n * (g - 1.0) / (N - 1.0) : 0.0, between = n - inside;
    double seconds = inside > 0.0 ? inside / links->inside : 0.0;
    if (place->n_hosts > 1) seconds = fmax(seconds, between / links->between);
    return seconds + log2_up(place->size) * step_seconds(links, place);
}

double links_seconds(const Links *links, CommKind kind, double n_bytes, const GroupPlace *place) {
    if (place->size <= 1) return 0.0;
    switch (kind) {
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

double links_message_seconds(const Links *links, double n_bytes, const GroupPlace *place) {
    if (place->size <= 1) return 0.0;
    return n_bytes / (place->n_hosts > 1 ? links->between : links->inside) + step_seconds(links, place);
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
