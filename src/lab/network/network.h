/* What a network lets a training step take: data parallelism on hosts that are joined by links of some
 * bandwidth and latency, modelled.
 *
 *     NetworkStep step = {.forward_s = 0.04, .backward_s = 0.08, .update_s = 0.001,
 *                         .gradient_bytes = 3 << 20, .bucket_bytes = 1 << 20};
 *     Network network = {.n_hosts = 4, .n_links = 1, .rate = 1e9, .latency_s = 5e-5, .overhead_s = 5e-6};
 *     NetworkTimes times;
 *     TRY(network_times(&network, &ALGORITHM_RING, &step, &times, error));
 *
 * The messages of an all-reduce are replayed on a clock (lab/collectives/replay.h) in which a message takes
 * latency + bytes by bandwidth. Several links carry a host's bytes side by side; a latency stays one. */
#ifndef PGPT_LAB_NETWORK_NETWORK_H
#define PGPT_LAB_NETWORK_NETWORK_H

#include "comm/algo/algo.h"

/* Of one rank. */
typedef struct {
    double forward_s, backward_s, update_s;
    int64_t gradient_bytes, bucket_bytes; /* gradients are summed in buckets, as backward makes them */
} NetworkStep;

typedef struct {
    int n_hosts, n_links;
    double rate;       /* of a link, bits a second, each way */
    double latency_s;  /* of a message */
    double overhead_s; /* the part of the latency that is work, for each message anew; not above it */
} Network;

typedef struct {
    double comm_s;       /* all of a step's messages */
    double blocking_s;   /* the step, if they are sent when backward is done */
    double overlapped_s; /* and if each bucket is sent as soon as it is there */
} NetworkTimes;

static inline double network_compute(const NetworkStep *step) {
    return step->forward_s + step->backward_s + step->update_s;
}

Status network_times(const Network *network, const CommAlgorithm *algorithm, const NetworkStep *step,
                     NetworkTimes *times, Error *error);

/* When a step ends whose buckets each take their share of comm_s, one after the other and none before
 * backward has come to its gradients. */
double network_overlapped(const NetworkStep *step, double comm_s);

int64_t network_n_buckets(const NetworkStep *step);

/* The rate of a link at which messages take as long as computation: below, the network decides; above, it
 * can be hidden. NAN: latency alone takes longer, at any rate. 0: it is less than a megabit. */
Status network_crossover(const Network *network, const CommAlgorithm *algorithm, const NetworkStep *step,
                         double *rate, Error *error);

/* So many bytes in n messages: each waited for and confirmed before the next leaves, or all at once. */
double network_blocking(const Network *network, double n_bytes, double n_messages);
double network_at_once(const Network *network, double n_bytes, double n_messages);

#endif
