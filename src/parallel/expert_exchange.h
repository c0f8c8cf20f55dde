/* Expert parallelism: the rows of tokens go to the ranks that have their experts, and back.
 *
 *     ExpertExchange exchange = op_expert_start_meeting(graph, ep, order.offsets, n_experts, &sizes);
 *     ... record what makes the rows ...
 *     op_expert_finish_meeting(graph, &exchange);
 *     // (M,C), sorted by expert
 *     ParallelFlight going = op_expert_start_dispatch(graph, &exchange, rows);
 *     ... record what does not need them ...
 *     Tensor *here = op_parallel_finish(graph, &going);                             // (exchange.n_here,C)
 *     ... grouped_linear by exchange.here: the experts of this rank, the rows of all ranks ...
 *     ParallelFlight coming = op_expert_start_combine(graph, &exchange, made);
 *     Tensor *back = op_parallel_finish(graph, &coming);                            // (M,C), where they were
 *
 * First every rank learns how many rows of each of its experts each other rank has (E numbers a pair, always
 * as many); then the rows travel, only those that there are, and each run of rows of an expert goes at once
 * to where the expert wants it: by expert, then by rank, then as sorted there. So nothing is sorted again,
 * and what comes back lies as it lay.
 *
 * The exchange with the two ways swapped is its backward. Buffers are planned for the worst case, in which
 * all tokens of all ranks want the experts of this one. How many rows there are is known on the device: the
 * host reads it from there (comm_read) before it can say what to send, so that these nodes are not part of a
 * capture. On a communicator that only counts, all experts are wanted alike. */
#ifndef PGPT_PARALLEL_EXPERT_EXCHANGE_H
#define PGPT_PARALLEL_EXPERT_EXCHANGE_H

#include "parallel/conjugate.h"

/* Rank r of n has experts first .. first + n - 1 of E: as even as can be, the first ranks one more. */
typedef struct {
    int first, n;
} ExpertSpan;
ExpertSpan expert_span(int n_experts, int n_ranks, int rank);

/* Rows, known when the program is planned. */
typedef struct {
    int64_t n_tokens, n_slots; /* N tokens with S choices each */
    int64_t n_rows;            /* M: of all choices, at most */
    int64_t n_expected;        /* of them, where all find room: what is counted */
} ExpertRows;

/* The most rows that can come to a rank: of every rank each of its tokens once for each expert here, if it
 * may choose so many. */
int64_t expert_most_here(const ExpertRows *rows, int n_experts, int n_ranks, int rank);

typedef struct {
    Comm *comm; /* of ep */
    int n_experts;
    ExpertSpan span;
    ExpertRows rows;
    int64_t n_here;   /* rows that may come */
    Tensor *offsets;  /* (E+1) of the rows that go, */
    Tensor *arrivals; /* (ranks, experts here + 1) the same of all ranks, of the experts here */
    Tensor *here;     /* (experts here + 1) of the rows that come */
    const Node *start;
} ExpertExchange;

extern const Op OP_EXPERT_EXCHANGE;

/* Every rank learns what will come. On several ranks of ep. */
ExpertExchange op_expert_start_meeting(Graph *graph, Comm *comm, Tensor *offsets, int n_experts,
                                       const ExpertRows *rows);
void op_expert_finish_meeting(Graph *graph, ExpertExchange *exchange);

/* Conjugate operations (conjugate.h): finished by op_parallel_finish. */
ParallelFlight op_expert_start_dispatch(Graph *graph, const ExpertExchange *exchange, Tensor *x);
ParallelFlight op_expert_start_combine(Graph *graph, const ExpertExchange *exchange, Tensor *x);

#endif
