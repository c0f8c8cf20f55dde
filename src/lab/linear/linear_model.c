/* A machine like the measured one, but larger: as many ranks on a host as were there, on a core each, and as
 * many hosts as that takes. Where everything was measured on one host it stays one host, since of links
 * between hosts nothing is known then. */
#include "lab/linear/linear_model.h"

#include <math.h>
#include <stdlib.h>

Status linear_model_comm(const LinearModel *model, int n_ranks, double *seconds, Error *error) {
    const Machine *measured = model->machine;
    *seconds = 0.0;
    if (n_ranks < 2 || !measured->n_ranks) return STATUS_OK;
    int each =
        measured->n_hosts > 1 ? (measured->n_ranks + measured->n_hosts - 1) / measured->n_hosts : n_ranks;
    int *host = calloc((size_t)n_ranks, sizeof *host);
    if (!host) return error_failed(error, "no memory for %d processes", n_ranks);
    for (int i = 0; i < n_ranks; i++) host[i] = i / each;
    Machine machine = *measured;
    machine.n_ranks = n_ranks;
    machine.host = host;
    machine.n_hosts = host[n_ranks - 1] + 1;
    machine.n_cores = each;
    const CommAlgorithm *algorithms[] = {model->all_reduce ? model->all_reduce : &ALGORITHM_TREE,
                                         model->all_reduce ? NULL : &ALGORITHM_HALVING};
    int64_t n_bytes = (int64_t)(model->n_weights + 1) * 8;
    double least = (double)INFINITY, one;
    for (int i = 0; i < 2 && algorithms[i] && error->status == STATUS_OK; i++) {
        if (replay_all_reduce(&machine, algorithms[i], n_bytes, &one, error) == STATUS_OK)
            least = fmin(least, one);
    }
    *seconds = least;
    free(host);
    return error->status;
}

Status linear_model_epoch(const LinearModel *model, int n_ranks, bool is_divided, double *seconds,
                          Error *error) {
    double comm, part = is_divided ? 1.0 / n_ranks : 1.0;
    SlowestLaw own = model->compute;
    own.base *= part;
    own.spread *= part;
    own.chance *= part;
    TRY(linear_model_comm(model, n_ranks, &comm, error));
    *seconds = slowest_of(&own, n_ranks) + model->update_s + comm;
    return STATUS_OK;
}
