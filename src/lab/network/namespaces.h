/* Two hosts made of network namespaces on this machine, joined by a cable of a given rate, and what a step's
 * messages take between them.
 *
 *     NamespacesResult result;
 *     if (namespaces_measure(1e9, &step, &result, error) != STATUS_OK) ... error->text says what is missing
 *
 * Needs root (or the right to make namespaces), ip and tc. The namespaces belong to two processes that end
 * with this call, or with this process: nothing is left behind, and nothing of the host's own network is
 * touched. */
#ifndef PGPT_LAB_NETWORK_NAMESPACES_H
#define PGPT_LAB_NETWORK_NAMESPACES_H

#include "lab/network/network.h"

enum { NAMESPACES_N_COUNTS = 6, NAMESPACES_MESSAGE_BYTES = 1 << 20 };

/* 1, 4, 16, ...: in so many messages NAMESPACES_MESSAGE_BYTES are sent. */
extern const int namespaces_counts[NAMESPACES_N_COUNTS];

typedef struct {
    double rate;      /* that was set up, bits a second each way */
    double latency_s; /* half of a ping-pong */
    double found_rate;
    /* All-reduce of the gradients in two ranks' ring, after a pause for the computation or during it; NAN: it
     * would have taken too long. */
    double blocking_s, overlapped_s;
    double one_by_one_s[NAMESPACES_N_COUNTS], at_once_s[NAMESPACES_N_COUNTS];
} NamespacesResult;

Status namespaces_measure(double rate, const NetworkStep *step, NamespacesResult *result, Error *error);

#endif
