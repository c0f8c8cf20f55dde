/* Inside pgpt lab network: what it knows, and how it is shown (lab_network_report.c). */
#ifndef PGPT_CLI_LAB_LAB_NETWORK_H
#define PGPT_CLI_LAB_LAB_NETWORK_H

#include "cli/lab/lab.h"
#include "lab/network/namespaces.h"

enum { NETWORK_MAX_LINKS = 4, NETWORK_MAX_MEASURED = 4 };

typedef struct {
    const char *rates, *latencies, *measured;
    int64_t n_hosts, n_links, n_steps, n_parameters;
    double latency_us, overhead_us, compute_ms, bucket_mb, timeout;
    int all_reduce;
    bool is_quick;
} NetworkCall;

typedef struct {
    NetworkCall call;
    LabOptions lab;
} NetworkCommand;

typedef struct {
    const NetworkCall *call;
    LabOutput output;
    const CommAlgorithm *algorithm;
    NetworkStep step;
    bool step_is_given;                       /* by the user; otherwise measured */
    int64_t batch;                            /* of the step that is measured */
    LabList rates, latencies, measured_rates; /* Mbit/s, microseconds */
    /* (links, rates), and (latencies, rates) with one link */
    NetworkTimes times[NETWORK_MAX_LINKS][LAB_LIST_MAX], late[LAB_LIST_MAX][LAB_LIST_MAX];
    double crossover[NETWORK_MAX_LINKS], late_crossover[LAB_LIST_MAX]; /* bits a second; see network.h */
    NamespacesResult measured[NETWORK_MAX_MEASURED];
    int n_measured;
    char why_not[sizeof((Error *)NULL)->text]; /* nothing was measured */
} NetworkStudy;

Network network_of(const NetworkStudy *study, int n_links, double latency_us, double rate_mbit);

void network_print(const NetworkStudy *study);
Status network_draw(const NetworkStudy *study, Error *error);
json_t *network_json(const NetworkStudy *study); /* a new reference */

#endif
