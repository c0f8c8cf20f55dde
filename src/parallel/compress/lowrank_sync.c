/* All batches set out before the first is waited for: while one travels, the next is made. */
#include "parallel/compress/lowrank_sync.h"

#include "ops/ops.h"
#include "parallel/comm_ops.h"

/* ---- the plan */

typedef struct {
    const GradientSync *sync;
    int n_matrices, n_runs;
    LowRankMatrix *matrix; /* of all batches, one behind the other */
    LowRankRun *run;
    LowRankAttributes *batch;
    int64_t *basis_first;
    int n_batches;
    uint64_t identity;
} Planning;

static LowRankAttributes *open_batch(Planning *planning, int64_t basis_first) {
    LowRankAttributes *batch = &planning->batch[planning->n_batches];
    *batch = (LowRankAttributes){.rank = planning->sync->options->compression.rank,
                                 .matrix = planning->matrix + planning->n_matrices,
                                 .run = planning->run + planning->n_runs};
    planning->basis_first[planning->n_batches++] = basis_first;
    return batch;
}

static void add_matrix(Planning *planning, LowRankAttributes *batch, const FlatMatrix *matrix) {
    planning->matrix[planning->n_matrices++] = (LowRankMatrix){.first = matrix->first,
                                                               .rows = matrix->rows,
                                                               .columns = matrix->columns,
                                                               .left = batch->n_message,
                                                               .right = batch->n_basis,
                                                               .seed = matrix->identity};
    batch->n_matrices++;
    batch->n_message += batch->rank * matrix->rows;
    batch->n_basis += batch->rank * matrix->columns;
    planning->identity = random_mix(planning->identity ^ matrix->identity);
}

/* What touches the run before is part of it. */
static void add_run(Planning *planning, LowRankAttributes *batch, int64_t first, int64_t n) {
    LowRankRun *next = &planning->run[planning->n_runs], *last = next - (batch->n_runs > 0);
    if (last < next && last->first + last->n == first && last->at + last->n == batch->n_message) {
        last->n += n;
    } else {
        *next = (LowRankRun){first, n, batch->n_message};
        planning->n_runs++;
        batch->n_runs++;
    }
    batch->n_message += n;
}

static void add_piece(Planning *planning, LowRankAttributes *batch, const FlatPiece *piece) {
    if (!piece->n_matrices) add_run(planning, batch, piece->first, piece->n);
    for (int i = 0; i < piece->n_matrices; i++) {
        const FlatMatrix *matrix = &piece->matrix[i];
        if (lowrank_pays(batch->rank, matrix->rows, matrix->columns)) add_matrix(planning, batch, matrix);
        else add_run(planning, batch, matrix->first, matrix->rows * matrix->columns);
    }
}

/* Of all pieces, more than there will be. */
static Planning make_room(const GradientSync *sync, Arena *arena) {
    Planning planning = {.sync = sync, .identity = (uint64_t)sync->options->compression.rank};
    int n = 0;
    for (int i = 0; i < sync->array.n_pieces; i++) n += 1 + sync->array.piece[i].n_matrices;
    planning.matrix = ARENA_ARRAY(arena, LowRankMatrix, n + 1);
    planning.run = ARENA_ARRAY(arena, LowRankRun, n + 1);
    planning.batch = ARENA_ARRAY(arena, LowRankAttributes, n + 1);
    planning.basis_first = ARENA_ARRAY(arena, int64_t, n + 1);
    return planning;
}

LowRankSync lowrank_sync_plan(const GradientSync *sync, int n_senders, Graph *graph) {
    Planning planning = make_room(sync, &graph->arena);
    LowRankAttributes *batch = NULL;
    int64_t n_basis = 0;
    bool was_alone = false;
    for (int i = 0; i < sync->array.n_pieces; i++) {
        const FlatPiece *piece = &sync->array.piece[i];
        bool is_full = batch && batch->n_message * (int64_t)sizeof(float) >= sync->options->bucket_bytes;
        if (!piece->n) continue;
        if (!batch || is_full || was_alone || piece->is_alone) {
            if (batch) n_basis += batch->n_basis;
            batch = open_batch(&planning, n_basis);
            batch->share = 1.0f / (float)n_senders;
        }
        add_piece(&planning, batch, piece);
        was_alone = piece->is_alone;
    }
    if (batch) n_basis += batch->n_basis;
    return (LowRankSync){.sync = sync,
                         .n_batches = planning.n_batches,
                         .batch = planning.batch,
                         .basis_first = planning.basis_first,
                         .basis = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n_basis), "basis"),
                         .identity = planning.identity};
}

int64_t lowrank_sync_saved(const LowRankSync *lowrank) {
    return sync_place(lowrank->sync->options, FLAT_SHARED).rank ? 0 : tensor_count(lowrank->basis);
}

/* ---- sums */

/* One that is under way. */
typedef struct {
    Tensor *message;
    const int64_t *border; /* of the ranks of a host */
    const Node *start;
} Travel;

static Tensor *own_share(const LowRankRanks *ranks, Graph *graph, const Travel *travel) {
    if (!ranks->inside) return travel->message;
    int64_t first = travel->border[ranks->inside->rank], n = travel->border[ranks->inside->rank + 1] - first;
    return n ? graph_view(graph, travel->message, SHAPE(n), first, travel->message->name) : NULL;
}

static void set_out(const LowRankSync *lowrank, const LowRankRanks *ranks, Graph *graph, Tensor *message,
                    Travel *travel) {
    *travel = (Travel){.message = message};
    if (ranks->inside) {
        int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, ranks->inside->size + 1);
        comm_even_borders(tensor_count(message), ranks->inside->size, PARTITION_GRAIN, border);
        travel->border = border;
    }
    Tensor *own = own_share(ranks, graph, travel);
    travel->start = own ? op_all_reduce(graph, ranks->comm, own) : NULL;
    if (travel->start && !lowrank->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

static void arrive(const LowRankSync *lowrank, const LowRankRanks *ranks, Graph *graph,
                   const Travel *travel) {
    if (travel->start && lowrank->sync->options->overlaps) op_comm_wait(graph, travel->start);
    if (ranks->inside)
        op_comm_wait(graph, op_all_gather(graph, ranks->inside, travel->message, travel->border));
}

void lowrank_sync_gradients(const LowRankSync *lowrank, const LowRankRanks *ranks, Graph *graph,
                            const LowRankTensors *tensors) {
    int n = lowrank->n_batches;
    Travel *left = ARENA_ARRAY(&graph->arena, Travel, n + 1),
           *right = ARENA_ARRAY(&graph->arena, Travel, n + 1);
    LowRankTensors *own = ARENA_ARRAY(&graph->arena, LowRankTensors, n + 1);
    for (int i = 0; i < n; i++) {
        own[i] = *tensors;
        own[i].basis = graph_view(graph, lowrank->basis, SHAPE(lowrank->batch[i].n_basis),
                                  lowrank->basis_first[i], "basis");
        set_out(lowrank, ranks, graph, op_lowrank_project(graph, &own[i], &lowrank->batch[i]), &left[i]);
    }
    for (int i = 0; i < n; i++) {
        arrive(lowrank, ranks, graph, &left[i]);
        if (!lowrank->batch[i].n_matrices) continue;
        left[i].message = op_lowrank_orthonormal(graph, left[i].message, &lowrank->batch[i]);
        set_out(lowrank, ranks, graph, op_lowrank_return(graph, left[i].message, &own[i], &lowrank->batch[i]),
                &right[i]);
    }
    for (int i = 0; i < n; i++) {
        Tensor *returned = right[i].message ? right[i].message : own[i].basis;
        if (lowrank->batch[i].n_matrices) arrive(lowrank, ranks, graph, &right[i]);
        op_lowrank_expand(graph, left[i].message, returned, &own[i], &lowrank->batch[i]);
    }
}
