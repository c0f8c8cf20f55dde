/* Binomial trees and recursive halving, by places: what broadcast, reduce, scatter, gather and the algorithms
 * that are put together from them have in common. The traffic of a place follows the same loops as its
 * messages, without them: that is the formula where slices are not all equal. */
#include "comm/algo/places.h"

int place_bit(int place, int n_ranks) {
    int bit = 1;
    while (bit < n_ranks && !(place & bit)) bit *= 2;
    return bit;
}

int place_end(int place, int n_ranks) {
    int bit = place_bit(place, n_ranks);
    return place + bit < n_ranks ? place + bit : n_ranks;
}

int64_t ceil_log2(int64_t value) {
    int64_t log = 0;
    while ((INT64_C(1) << log) < value) log++;
    return log;
}

int64_t most_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- Steps of one half */

Status send_span(Comm *comm, const Vector *vector, Span span, int to, Error *error) {
    return transfer_run(comm, vector, &(Transfer){.out = span, .to = to}, error);
}

Status receive_span(Comm *comm, const Vector *vector, Span span, int from, Error *error) {
    return transfer_run(comm, vector, &(Transfer){.in = span, .from = from}, error);
}

Status add_span(Comm *comm, const Vector *vector, Span span, int from, Error *error) {
    return transfer_run(comm, vector, &(Transfer){.in = span, .from = from, .combine = true}, error);
}

/* ---- Trees */

Status tree_broadcast(Comm *comm, const Vector *vector, int root, Error *error) {
    int place = place_of(comm, root), bit = place_bit(place, comm->size);
    Span all = {0, vector->n};
    if (place) TRY(receive_span(comm, vector, all, rank_at(comm, place - bit, root), error));
    for (bit /= 2; bit > 0; bit /= 2)
        if (place + bit < comm->size)
            TRY(send_span(comm, vector, all, rank_at(comm, place + bit, root), error));
    return STATUS_OK;
}

Status tree_reduce(Comm *comm, const Vector *vector, int root, Error *error) {
    int place = place_of(comm, root);
    Span all = {0, vector->n};
    for (int bit = 1; bit < comm->size; bit *= 2) {
        if (place & bit) return send_span(comm, vector, all, rank_at(comm, place - bit, root), error);
        if (place + bit < comm->size)
            TRY(add_span(comm, vector, all, rank_at(comm, place + bit, root), error));
    }
    return STATUS_OK;
}

Status tree_scatter(Comm *comm, const Vector *vector, const int64_t *border, int root, Error *error) {
    int size = comm->size, place = place_of(comm, root), bit = place_bit(place, size);
    Span own = slices_span(border, place, place_end(place, size));
    if (place) TRY(receive_span(comm, vector, own, rank_at(comm, place - bit, root), error));
    for (bit /= 2; bit > 0; bit /= 2) {
        if (place + bit >= size) continue;
        Span branch = slices_span(border, place + bit, place_end(place + bit, size));
        TRY(send_span(comm, vector, branch, rank_at(comm, place + bit, root), error));
    }
    return STATUS_OK;
}

Status tree_gather(Comm *comm, const Vector *vector, const int64_t *border, int root, Error *error) {
    int size = comm->size, place = place_of(comm, root);
    for (int bit = 1; bit < size; bit *= 2) {
        if (place & bit) {
            Span own = slices_span(border, place, place_end(place, size));
            return send_span(comm, vector, own, rank_at(comm, place - bit, root), error);
        }
        if (place + bit >= size) continue;
        Span branch = slices_span(border, place + bit, place_end(place + bit, size));
        TRY(receive_span(comm, vector, branch, rank_at(comm, place + bit, root), error));
    }
    return STATUS_OK;
}

/* ---- Recursive halving
 *
 * With P the largest power of two not above N, the first 2(N-P) places form pairs: the odd one gives its
 * vector to the even one, which acts for both and hands back a slice at the end. So there are P groups of one
 * or two places, each with the slices of its own. Groups low .. high-1 hold the same span; its halves
 * exchange, and each is left with its own half of it. */

typedef struct {
    int n_groups, n_pairs;
} Groups;

static Groups groups_of(int n_ranks) {
    int power = 1;
    while (power <= n_ranks / 2) power *= 2;
    return (Groups){power, n_ranks - power};
}

static int group_of(Groups groups, int place) {
    return place < 2 * groups.n_pairs ? place / 2 : place - groups.n_pairs;
}

/* The first place of a group, the one that acts; behind the last group, N. */
static int first_of(Groups groups, int group) {
    return group < groups.n_pairs ? 2 * group : group + groups.n_pairs;
}

typedef struct {
    Span given, kept;
    int partner; /* a place */
} Halving;

/* The exchange among groups low .. high-1, which become those of the half that is kept. */
static Halving halve(Groups groups, const int64_t *border, int group, int *low, int *high) {
    int middle = *low + (*high - *low) / 2, distance = middle - *low;
    Span lower = slices_span(border, first_of(groups, *low), first_of(groups, middle));
    Span upper = slices_span(border, first_of(groups, middle), first_of(groups, *high));
    bool is_lower = group < middle;
    if (is_lower) *high = middle;
    else *low = middle;
    return (Halving){.given = is_lower ? upper : lower,
                     .kept = is_lower ? lower : upper,
                     .partner = first_of(groups, is_lower ? group + distance : group - distance)};
}

Status halving_reduce_scatter(Comm *comm, const Vector *vector, const int64_t *border, int root,
                              Error *error) {
    Groups groups = groups_of(comm->size);
    int place = place_of(comm, root), group = group_of(groups, place), low = 0, high = groups.n_groups;
    bool is_pair = group < groups.n_pairs;
    Span all = {0, vector->n};
    if (is_pair && place % 2) {
        int partner = rank_at(comm, place - 1, root);
        TRY(send_span(comm, vector, all, partner, error));
        return receive_span(comm, vector, slices_span(border, place, place + 1), partner, error);
    }
    if (is_pair) TRY(add_span(comm, vector, all, rank_at(comm, place + 1, root), error));
    while (high - low > 1) {
        Halving halving = halve(groups, border, group, &low, &high);
        int partner = rank_at(comm, halving.partner, root);
        TRY(transfer_run(
            comm, vector,
            &(Transfer){
                .out = halving.given, .to = partner, .in = halving.kept, .from = partner, .combine = true},
            error));
    }
    if (!is_pair) return STATUS_OK;
    return send_span(comm, vector, slices_span(border, place + 1, place + 2), rank_at(comm, place + 1, root),
                     error);
}

/* ---- Costs */

static int n_children(int place, int n_ranks) {
    int n = 0;
    for (int bit = place_bit(place, n_ranks) / 2; bit > 0; bit /= 2) n += place + bit < n_ranks;
    return n;
}

Traffic tree_broadcast_traffic(int place, int n_ranks, int64_t n) {
    return (Traffic){.sent = n_children(place, n_ranks) * n, .received = place ? n : 0};
}

Traffic tree_scatter_traffic(int place, int n_ranks, const int64_t *border) {
    int64_t branch = border[place_end(place, n_ranks)] - border[place];
    return (Traffic){.sent = branch - (border[place + 1] - border[place]), .received = place ? branch : 0};
}

Traffic tree_gather_traffic(int place, int n_ranks, const int64_t *border) {
    Traffic down = tree_scatter_traffic(place, n_ranks, border);
    return (Traffic){.sent = down.received, .received = down.sent};
}

Traffic halving_traffic(int place, int n_ranks, const int64_t *border) {
    Groups groups = groups_of(n_ranks);
    int group = group_of(groups, place), low = 0, high = groups.n_groups;
    int64_t n = border[n_ranks];
    if (group < groups.n_pairs && place % 2) return (Traffic){n, border[place + 1] - border[place]};
    Traffic traffic = {0, 0};
    if (group < groups.n_pairs) traffic = (Traffic){border[place + 2] - border[place + 1], n};
    while (high - low > 1) {
        Halving halving = halve(groups, border, group, &low, &high);
        traffic.sent += span_length(halving.given);
        traffic.received += span_length(halving.kept);
    }
    return traffic;
}

void add_traffic(CollectiveCost *cost, Traffic a, Traffic b) {
    int64_t sent = a.sent + b.sent, all = sent + a.received + b.received;
    cost->cost.total_bytes += sent;
    cost->cost.peak_bytes = most_of(cost->cost.peak_bytes, all);
}

CollectiveCost finish_cost(CollectiveCost cost, int64_t n, int64_t n_steps, int64_t step_elements,
                           int64_t element_bytes) {
    if (n == 0) return (CollectiveCost){.step_bytes = 0};
    cost.cost.n_steps = n_steps;
    cost.cost.peak_bytes *= element_bytes;
    cost.cost.total_bytes *= element_bytes;
    cost.step_bytes = n_steps ? step_elements * element_bytes : 0;
    return cost;
}

int64_t longest_branch(int n_ranks, const int64_t *border) {
    int64_t longest = 0;
    for (int bit = place_bit(0, n_ranks) / 2; bit > 0; bit /= 2)
        if (bit < n_ranks) longest = most_of(longest, border[place_end(bit, n_ranks)] - border[bit]);
    return longest;
}

int64_t longest_pair(int n_ranks, const int64_t *border, int distance) {
    int64_t longest = 0;
    for (int r = 0; r < n_ranks; r++) {
        int other = (r + distance) % n_ranks;
        longest = most_of(longest, border[r + 1] - border[r] + border[other + 1] - border[other]);
    }
    return longest;
}

int64_t longest_slice(int n_ranks, const int64_t *border, int first) {
    int64_t longest = 0;
    for (int r = first; r < n_ranks; r++) longest = most_of(longest, border[r + 1] - border[r]);
    return longest;
}
