/* One rank a host, nothing else on the line. How the messages of an all-reduce follow each other is left to
 * the replay; only their overlap with computation is put together here, bucket by bucket. */
#include "lab/network/network.h"

#include "lab/collectives/replay.h"

#include <math.h>
#include <stdlib.h>

static double seconds_per_byte(const Network *network) {
    return 8.0 / (network->rate * network->n_links);
}

static double overhead_of(const Network *network) {
    return network->overhead_s < network->latency_s ? network->overhead_s : network->latency_s;
}

static int64_t bucket_of(const NetworkStep *step) {
    return step->bucket_bytes > 4 ? step->bucket_bytes / 4 * 4 : 4;
}

/* Buckets are alike, so one is replayed for all of them. */
static Status comm_seconds(const Network *network, const CommAlgorithm *algorithm, const NetworkStep *step,
                           double *seconds, Error *error) {
    int *host = malloc((size_t)network->n_hosts * sizeof *host);
    if (!host) return error_failed(error, "no memory for %d hosts", network->n_hosts);
    for (int i = 0; i < network->n_hosts; i++) host[i] = i;
    AlphaBeta line = {network->latency_s, seconds_per_byte(network)};
    Machine machine = {.n_ranks = network->n_hosts, .host = host, .n_hosts = network->n_hosts, .n_cores = 1};
    machine.across = (Link){.eager = line, .asking = line, .border = INFINITY, .gap = overhead_of(network)};
    int64_t bucket = bucket_of(step), n_full = step->gradient_bytes / bucket;
    int64_t rest = (step->gradient_bytes - n_full * bucket) / 4 * 4;
    double full = 0, last = 0;
    if (n_full > 0) replay_all_reduce(&machine, algorithm, bucket, &full, error);
    if (rest > 0 && error->status == STATUS_OK) replay_all_reduce(&machine, algorithm, rest, &last, error);
    free(host);
    *seconds = (double)n_full * full + last;
    return error->status;
}

int64_t network_n_buckets(const NetworkStep *step) {
    int64_t n = (step->gradient_bytes + bucket_of(step) - 1) / bucket_of(step);
    return n > 0 ? n : 1;
}

double network_overlapped(const NetworkStep *step, double comm_s) {
    int64_t n = network_n_buckets(step);
    double each = comm_s / (double)n, sent = 0, computed = step->forward_s + step->backward_s;
    for (int64_t i = 0; i < n; i++) {
        double ready = step->forward_s + step->backward_s * (double)(i + 1) / (double)n;
        sent = (sent > ready ? sent : ready) + each;
    }
    return (sent > computed ? sent : computed) + step->update_s;
}

Status network_times(const Network *network, const CommAlgorithm *algorithm, const NetworkStep *step,
                     NetworkTimes *times, Error *error) {
    TRY(comm_seconds(network, algorithm, step, &times->comm_s, error));
    times->blocking_s = network_compute(step) + times->comm_s;
    times->overlapped_s = network_overlapped(step, times->comm_s);
    return STATUS_OK;
}

/* The time grows with the seconds of a byte, in pieces of straight lines that get steeper: so the line
 * through a point that is too fast and one that is too slow crosses the time of computation on the fast side
 * of where it is, and that point takes the place of the fast one. */
Status network_crossover(const Network *network, const CommAlgorithm *algorithm, const NetworkStep *step,
                         double *rate, Error *error) {
    enum { MOST_LINES = 12 };
    const double fastest = 1e13, slowest = 1e6, close = 1e-4;
    double compute = network_compute(step), low = 1 / fastest, high = 1 / slowest, low_s, high_s, first_s;
    Network tried = *network;
    tried.rate = fastest;
    TRY(comm_seconds(&tried, algorithm, step, &low_s, error));
    first_s = low_s;
    *rate = NAN;
    if (low_s > compute) return STATUS_OK;
    tried.rate = slowest;
    TRY(comm_seconds(&tried, algorithm, step, &high_s, error));
    *rate = 0;
    if (high_s < compute) return STATUS_OK;
    for (int i = 0; i < MOST_LINES && compute - low_s > close * compute && high_s - compute > close * compute;
         i++) {
        low += (high - low) * (compute - low_s) / (high_s - low_s);
        tried.rate = 1 / low;
        TRY(comm_seconds(&tried, algorithm, step, &low_s, error));
        if (low_s <= compute) continue;
        high = low; /* it was not quite straight */
        high_s = low_s;
        low = 1 / fastest;
        low_s = first_s;
    }
    *rate = 1 / (compute - low_s <= high_s - compute ? low : high);
    return STATUS_OK;
}

/* There with the bytes, and back with the word that they have come. */
double network_blocking(const Network *network, double n_bytes, double n_messages) {
    return n_messages * 2 * network->latency_s + n_bytes * seconds_per_byte(network);
}

double network_at_once(const Network *network, double n_bytes, double n_messages) {
    double overhead = overhead_of(network);
    return 2 * network->latency_s + (n_messages - 1) * overhead + n_bytes * seconds_per_byte(network);
}
