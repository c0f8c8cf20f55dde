/* How long an all-reduce should take on a machine whose links are known: the algorithm's own code is run once
 * for every rank with messages that are only written down, and these are then played on a clock.
 *
 *     Machine machine = {.n_ranks = 4, .host = hosts, .n_cores = 2, .within = link, .across = link,
 *                        .gamma = 1e-10};
 *     TRY(replay_all_reduce(&machine, &ALGORITHM_RING, 1 << 20, &seconds, error));
 *
 * The rules. A message takes alpha + n beta. Its latency runs beside other things, its bytes do not: a host
 * sends one message to others at a time and receives one, and a message within a host is copied by the rank
 * that receives it. A long message to another host is announced, answered, sent and sealed, and the words for
 * that wait for the bytes that go between the same two ranks before them. Adding n bytes takes n gamma of
 * that rank's time too. At most n_cores ranks of a host work at once. A vector longer than the cache comes
 * from memory and goes back there once, which takes n delta more. */
#ifndef PGPT_LAB_COLLECTIVES_REPLAY_H
#define PGPT_LAB_COLLECTIVES_REPLAY_H

#include "comm/algo/algo.h"
#include "lab/collectives/alpha_beta.h"

typedef struct {
    int n_ranks;
    const int *host; /* of each rank, numbered from 0 */
    int n_hosts;
    int n_cores;        /* of a host, that its ranks may use */
    Link within;        /* between ranks of a host */
    Link across;        /* between hosts; not looked at where there is one */
    double gamma;       /* seconds to add a byte to another */
    double delta;       /* seconds more for a byte of a long vector */
    double cache_bytes; /* longer is long */
} Machine;

/* Of a vector of f32 of so many bytes, begun by all ranks at once. The vector is really there, once, while
 * this runs. */
Status replay_all_reduce(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes,
                         double *seconds, Error *error);

/* Of whatever a rank does over send and receive: called once for every rank, with its communicator, whose
 * messages are only written down. It may touch the memory that it has been given, the same for all of them.
 * `n_bytes` is what the rank has to take from memory and bring back there. */
typedef Status (*ReplayRun)(Comm *comm, void *argument, Error *error);
Status replay_run(const Machine *machine, ReplayRun run, void *argument, int64_t n_bytes, double *seconds,
                  Error *error);

/* What rank 0 sees of the gradients of a training step: some vectors, one after the other. Steps follow each
 * other, and between them stand the two short sums of every step (the loss; whether to go on), so ranks begin
 * when these have reached them: a latency or two apart on a network. */
Status replay_step(const Machine *machine, const CommAlgorithm *algorithm, const int64_t *n_bytes,
                   int n_vectors, double *seconds, Error *error);

#endif
