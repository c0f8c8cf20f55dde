/* Divisors come in pairs, d and n / d, so that looking up to the root of n finds all. */
#include "base/divisor.h"

#include <stdio.h>

int64_t divisor_at_most(int64_t n, int64_t most) {
    int64_t best = 1;
    for (int64_t d = 1; d <= n / d; d++) {
        if (n % d != 0) continue;
        if (d <= most && d > best) best = d;
        if (n / d <= most && n / d > best) best = n / d;
    }
    return best;
}

int64_t divisor_at_least(int64_t n, int64_t least) {
    int64_t best = n;
    for (int64_t d = 1; d <= n / d; d++) {
        if (n % d != 0) continue;
        if (d >= least && d < best) best = d;
        if (n / d >= least && n / d < best) best = n / d;
    }
    return best;
}

const char *divisor_advice(const char *option, int64_t wanted, int64_t n, char *text, size_t n_bytes) {
    int64_t below = divisor_at_most(n, wanted), above = wanted < n ? divisor_at_least(n, wanted) : n;
    if (below == above) snprintf(text, n_bytes, "choose %s %lld", option, (long long)below);
    else
        snprintf(text, n_bytes, "choose %s %lld or %s %lld", option, (long long)below, option,
                 (long long)above);
    return text;
}
