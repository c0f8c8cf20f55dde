/* Collectives, measured and predicted: every algorithm of comm/algo, the library's own, and what the links of
 * this machine let expect.
 *
 *     Machine machine;
 *     TRY(collectives_probe(launch, &machine, error));                       // ping-pong, gap, addition
 *     TRY(collectives_measure(launch, COMM_BROADCAST, 1 << 20, &options, &row, error));
 *     TRY(collectives_predict(&machine, &row, error));                       // on one rank
 *     collectives_forget(&machine);
 *
 * What is measured is the time of the slowest rank from a common start; every result is checked. The model is
 * compared with the least of several measurements, since it knows nothing of what else a machine does; the
 * median is there too. */
#ifndef PGPT_LAB_COLLECTIVES_COLLECTIVES_H
#define PGPT_LAB_COLLECTIVES_COLLECTIVES_H

#include "base/text/json.h"
#include "comm/algo/catalog.h"
#include "lab/collectives/replay.h"
#include "lab/launch/common_start.h"
#include "lab/launch/launcher.h"
#include "parallel/launch/launch.h"

/* The ways to do a collective: the algorithms of comm/algo/catalog.h, then the library's as pgpt uses it (for
 * all-reduce MPI_Iallreduce, watched by a loop that gives way), then, of all-reduce only, its blocking one
 * (MPI_Allreduce). A message by itself (send/receive) has no other way than to be sent. */
enum { COLLECTIVES_MAX_WAYS = COLLECTIVE_MAX_ALGORITHMS };

int collectives_n_ways(int kind);
int collectives_n_algorithms(int kind);
const char *collectives_name(int kind, int way);

/* The kinds in the order of lectures: send/receive first, all-reduce last. */
enum { COLLECTIVES_N_KINDS = 9 };
extern const int collectives_kinds[COLLECTIVES_N_KINDS];

typedef struct {
    int kind;
    int64_t n_bytes;                      /* of the vector, a multiple of 4 */
    int n_rounds;                         /* that were counted */
    double seconds[COLLECTIVES_MAX_WAYS]; /* the least of the rounds */
    double median[COLLECTIVES_MAX_WAYS];
    double model[COLLECTIVES_MAX_WAYS]; /* NAN of the library's, whose way is its own */
} CollectivesRow;

typedef struct {
    int n_rounds;             /* that count; all ways take turns in each */
    double budget_s;          /* for a size: no further round is begun after so long (but two are made) */
    const CommonStart *start; /* how ranks begin together; not needed by collectives_start */
    const char *only;         /* of collectives_start: the kinds, as --only takes them; NULL: all-reduce */
} CollectivesOptions;

/* What ping-pong and addition cost between and on these ranks. All ranks get the same; `host` is from malloc.
 * Collective. */
Status collectives_probe(Launch *launch, Machine *machine, Error *error);
void collectives_forget(Machine *machine);

/* Collective; all ranks get the same row. */
Status collectives_measure(Launch *launch, int kind, int64_t n_bytes, const CollectivesOptions *options,
                           CollectivesRow *row, Error *error);

/* Fills in the model's times. */
Status collectives_predict(const Machine *machine, CollectivesRow *row, Error *error);

/* ---- In other processes (collectives_start.c) */

enum { COLLECTIVES_MAX_SIZES = 32, COLLECTIVES_MAX_ROWS = COLLECTIVES_MAX_SIZES * COLLECTIVES_N_KINDS };

/* What is known for one number of ranks; {0} is nothing. */
typedef struct {
    Machine machine;
    CollectivesRow rows[COLLECTIVES_MAX_ROWS]; /* kind by kind */
    int n_rows;
} CollectivesResult;

/* Starts `pgpt lab collectives` on so many ranks and reads what it found. `sizes` is a list of bytes, as the
 * option takes it. */
Status collectives_start(Launcher *launcher, int n_ranks, const char *sizes,
                         const CollectivesOptions *options, double timeout_s, CollectivesResult *result,
                         Error *error);

/* ---- Was the machine doing something else? (disturbed.c) */

/* Latencies or times that no quiet machine has, in words; false: nothing to be seen of it. */
bool collectives_disturbed(const CollectivesResult *result, char *why, size_t n_bytes);

/* ---- As JSON: for --json, and from runs that were started for it. New references; reading names the field
 * that is wrong. */
json_t *collectives_machine_json(const Machine *machine);
json_t *collectives_row_json(const CollectivesRow *row);
Status collectives_read_machine(const json_t *object, const char *source, Machine *machine, Error *error);
Status collectives_read_row(const json_t *object, const char *source, CollectivesRow *row, Error *error);

#endif
