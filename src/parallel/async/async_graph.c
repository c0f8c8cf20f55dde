/* Who talks to whom when not all ranks talk to all.
 *
 * Push: in step k a rank sends to the one 2^(k mod L) further on, L = log2(n_ranks) rounded up. Everybody
 * sends and gets one message, and after L steps something of every rank has come to every other.
 *
 * Groups: write the ranks down in the order of strides: with stride s first 0, s, 2s, ..., then 1, s+1, ...,
 * and cut that line into groups of `size`. The patterns have the strides 1, size, size^2, ... below n_ranks.
 * Where n_ranks is a power of size, the members of a group of stride size^p differ in digit p alone, so that
 * averaging over all patterns in turn is an average over all digits: exact. Otherwise the last group is a
 * smaller one and it is not exact, but averages within groups keep the average of all, and the groups of all
 * patterns together connect all ranks: repeated, they tend to it. */
#include "parallel/async/async.h"

static int n_distances(int n_ranks) {
    int n = 1;
    while ((INT64_C(1) << n) < n_ranks) n++;
    return n;
}

static int distance_of(int n_ranks, int64_t step) {
    return 1 << step % n_distances(n_ranks);
}

int async_push_to(int rank, int n_ranks, int64_t step) {
    return (rank + distance_of(n_ranks, step)) % n_ranks;
}

int async_push_from(int rank, int n_ranks, int64_t step) {
    return (rank - distance_of(n_ranks, step) + n_ranks) % n_ranks;
}

int async_n_patterns(int n_ranks, int size) {
    int n = 1;
    for (int64_t stride = size; stride < n_ranks; stride *= size) n++;
    return n;
}

int async_group(int rank, int n_ranks, int size, int pattern, int *place) {
    int stride = 1;
    for (int i = 0; i < pattern; i++) stride *= size;
    /* Where the rank stands in the line: behind all that have a lower remainder, and those of its own before
     * it. */
    int remainder = rank % stride, n_long = n_ranks % stride; /* remainders that one more rank has */
    int before = remainder * (n_ranks / stride) + (remainder < n_long ? remainder : n_long);
    int position = before + rank / stride;
    *place = position % size;
    return position / size;
}
