/* All-reduce, measured and predicted: every algorithm of comm/algo, the library's own, and what the links of
 * this machine let expect.
 *
 *     Machine machine;
 *     TRY(collectives_probe(launch, &machine, error));                       // ping-pong, gap, addition
 *     TRY(collectives_measure(launch, 1 << 20, &options, &row, error));      // seconds of each way
 *     TRY(collectives_predict(&machine, &row, error));                       // on one rank
 *     collectives_forget(&machine);
 *
 * What is measured is the time of the slowest rank from a common start; every sum is checked. The model is
 * compared with the least of several measurements, since it knows nothing of what else a machine does; the
 * median is there too. */
#ifndef PGPT_LAB_COLLECTIVES_COLLECTIVES_H
#define PGPT_LAB_COLLECTIVES_COLLECTIVES_H

#include "base/text/json.h"
#include "lab/collectives/replay.h"
#include "lab/launch/common_start.h"
#include "lab/launch/launcher.h"
#include "parallel/launch/launch.h"

/* The five algorithms in the order of comm_algorithm_names, then the library's all-reduce as pgpt uses it
 * (MPI_Iallreduce, watched by a loop that gives way), then its blocking one (MPI_Allreduce). */
enum {
    COLLECTIVES_N_ALGORITHMS = 5,
    COLLECTIVES_LIBRARY = 5,
    COLLECTIVES_BLOCKING = 6,
    COLLECTIVES_N_WAYS = 7
};

const char *collectives_name(int way);

typedef struct {
    int64_t n_bytes;                    /* of the vector, a multiple of 4 */
    int n_rounds;                       /* that were counted */
    double seconds[COLLECTIVES_N_WAYS]; /* the least of the rounds */
    double median[COLLECTIVES_N_WAYS];
    double model[COLLECTIVES_N_WAYS]; /* NAN of the library's, whose way is its own */
} CollectivesRow;

typedef struct {
    int n_rounds;             /* that count; all ways take turns in each */
    double budget_s;          /* for a size: no further round is begun after so long (but two are made) */
    const CommonStart *start; /* how ranks begin together; not needed by collectives_start */
} CollectivesOptions;

/* What ping-pong and addition cost between and on these ranks. All ranks get the same; `host` is from malloc.
 * Collective. */
Status collectives_probe(Launch *launch, Machine *machine, Error *error);
void collectives_forget(Machine *machine);

/* Collective; all ranks get the same row. */
Status collectives_measure(Launch *launch, int64_t n_bytes, const CollectivesOptions *options,
                           CollectivesRow *row, Error *error);

/* Fills in the model's times. */
Status collectives_predict(const Machine *machine, CollectivesRow *row, Error *error);

/* ---- In other processes (collectives_start.c) */

enum { COLLECTIVES_MAX_SIZES = 32 };

/* What is known for one number of ranks; {0} is nothing. */
typedef struct {
    Machine machine;
    CollectivesRow rows[COLLECTIVES_MAX_SIZES];
    int n_rows;
} CollectivesResult;

/* Starts `pgpt lab collectives` on so many ranks and reads what it found. `sizes` is a list of bytes, as the
 * option takes it. */
Status collectives_start(Launcher *launcher, int n_ranks, const char *sizes,
                         const CollectivesOptions *options, double timeout_s, CollectivesResult *result,
                         Error *error);

/* ---- As JSON: for --json, and from runs that were started for it. New references; reading names the field
 * that is wrong. */
json_t *collectives_machine_json(const Machine *machine);
json_t *collectives_row_json(const CollectivesRow *row);
Status collectives_read_machine(const json_t *object, const char *source, Machine *machine, Error *error);
Status collectives_read_row(const json_t *object, const char *source, CollectivesRow *row, Error *error);

#endif
