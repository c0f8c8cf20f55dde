/* One number tells whether there is anything to talk about: the lowest rank with an error, found by an
 * all-reduce. Only if there is one does its message go round, and after it the answer to whether everybody
 * says the same anyway, as ranks do that were given the same wrong option. */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int32_t status;
    char host[64], text[sizeof((Error *)0)->text];
} Report;

static Report report_of(const Error *error) {
    Report report = {.status = (int32_t)error->status};
    if (gethostname(report.host, sizeof report.host - 1) != 0) strcpy(report.host, "unknown host");
    memcpy(report.text, error->text, sizeof report.text);
    return report;
}

Status comm_agree(Comm *comm, Error *error) {
    if (comm->size <= 1) return error->status;
    Error trouble = {0}; /* of this conversation */
    int32_t lowest = error->status != STATUS_OK ? comm->rank : comm->size;
    if (comm_all_reduce(comm, &lowest, 1, COMM_I32, COMM_MIN, &trouble) != STATUS_OK) goto failed;
    if (lowest == comm->size) return STATUS_OK;

    Report report = report_of(error);
    if (comm_broadcast(comm, &report, sizeof report, COMM_U8, lowest, &trouble) != STATUS_OK) goto failed;
    int32_t is_same = (int32_t)error->status == report.status && strcmp(error->text, report.text) == 0;
    if (comm_all_reduce(comm, &is_same, 1, COMM_I32, COMM_MIN, &trouble) != STATUS_OK) goto failed;

    error->status = (Status)report.status;
    memcpy(error->text, report.text, sizeof error->text);
    if (!is_same) error_prefix(error, "rank %d on %s: ", (int)lowest, report.host);
    return error->status;

failed: /* the rank's own error, if it has one, says more than that it could not be told */
    if (error->status == STATUS_OK) *error = trouble;
    return error->status;
}
