/* What the files of `pgpt lab traffic` share: the study, and what is said of it (lab_traffic_report.c). */
#ifndef PGPT_CLI_LAB_LAB_TRAFFIC_H
#define PGPT_CLI_LAB_LAB_TRAFFIC_H

#include "cli/lab/lab.h"
#include "lab/traffic/traffic_way.h"

enum { TRAFFIC_MOST_WAYS = 16 };

typedef enum { LINKS_AUTO, LINKS_NAMESPACES, LINKS_MODEL } TrafficLinks;

typedef struct {
    const char *ways, *rates;
    int64_t n_ranks, n_steps, n_points, n_timed;
    double latency_us;
    int links; /* TrafficLinks */
} TrafficCall;

typedef struct {
    TrafficCall call;
    LabRunOptions runs;
    LabOptions lab;
} TrafficCommand;

typedef struct {
    const TrafficCall *call;
    const TrafficCommand *values;
    const Options *options;
    LabOutput output;
    LabList rates;                     /* Mbit/s */
    TrafficWay way[TRAFFIC_MOST_WAYS]; /* the first is "none" */
    int n_ways;
    bool is_measured;                          /* on namespaces; else by the model */
    char why_not[sizeof((Error *)NULL)->text]; /* it is not */
    bool chooses_optimizer, chooses_rate;      /* likewise */
    bool chooses_device;                       /* by the words behind "--" */
} TrafficStudy;

void traffic_print(const TrafficStudy *study);
Status traffic_draw(const TrafficStudy *study, Error *error);
json_t *traffic_json(const TrafficStudy *study); /* a new reference */

#endif
