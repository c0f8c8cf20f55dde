/* A job of few ranks is planned rank by rank. In a larger one most ranks of a stage are alike: along an axis
 * they differ where something does not divide (heads, sequences, experts, shards), of which the first have
 * more, and the first of all takes samples and saves. Where one kind of rank ends and the next begins is
 * found along each axis by bisection, on the first and the last stage; ranks of a stage are of one kind if
 * they are along every axis. Where that were more programs than can be built in no time, a stage has its
 * first rank, which has most, and its most frequent kinds. */
#include "job/plan_ranks.h"

#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

#include <string.h>

enum { FEW_RANKS = 16, MOST_BUILT = 64, MOST_PROBED = 32, MOST_INSTRUCTIONS = 48000, FEWEST_BUILT = 6 };

/* ---- One rank */

typedef struct {
    PlanRun *plan;
    PlanFigures *figures;
    RankFigures *rank;
    RankTimes *times; /* of its stage; NULL: not wanted */
} Taking;

/* Buffers that messages and collectives have to themselves: what sums are made of in place is a gradient. */
static bool is_own_buffer(const Tensor *root) {
    return root->place == PLACE_STATE || root->place == PLACE_ACTIVATION || root->place == PLACE_FRAME;
}

/* Bytes of what a node that starts communication sends and receives; in place, once. */
static size_t buffer_bytes(const Node *node) {
    const Tensor *found[NODE_MAX_INPUTS + NODE_MAX_OUTPUTS] = {0};
    size_t sum = 0;
    int n = 0;
    for (int i = 0; i < node->n_inputs + node->n_outputs; i++) {
        Tensor *tensor = i < node->n_inputs ? node->input[i] : node->output[i - node->n_inputs];
        if (!tensor || !is_own_buffer(tensor_root(tensor))) continue;
        bool is_known = false;
        for (int k = 0; k < n; k++) is_known = is_known || found[k] == tensor_root(tensor);
        if (is_known) continue;
        found[n++] = tensor_root(tensor);
        sum += tensor_bytes(tensor);
    }
    return sum;
}

static bool is_channel(const Node *node) {
    return node->op == &OP_CHANNEL_RECEIVE || node->op == &OP_CHANNEL_SEND;
}

static bool is_channel_end(const Node *node) {
    return node->op == &OP_CHANNEL_RECEIVE_AHEAD || node->op == &OP_CHANNEL_SEND_WAIT;
}

/* Buffers between stages are there all the time, those of collectives while they are under way. */
static size_t message_bytes(const Program *program) {
    const Graph *graph = program->graph;
    Arena arena = {0};
    const CommFlights **flight = ARENA_ARRAY(&arena, const CommFlights *, graph->n_nodes + 1);
    size_t *bytes = ARENA_ARRAY(&arena, size_t, graph->n_nodes + 1), kept = 0, now = 0, most = 0;
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->phase != PHASE_COMMUNICATION || is_channel_end(node)) continue;
        const CommFlights *own = ((const CommAttributes *)node->attributes)->flights;
        if (is_channel(node)) {
            kept += buffer_bytes(node);
        } else if (node->op != &OP_COMM_WAIT) {
            bytes[n] = buffer_bytes(node);
            now += bytes[n];
            flight[n++] = own;
            if (most < now) most = now;
            bool is_over = node->op == &OP_SCALAR_SUM || node->op == &OP_BROADCAST;
            if (is_over) now -= bytes[--n];
        } else {
            for (int k = n - 1; k >= 0; k--) {
                if (flight[k] != own) continue;
                now -= bytes[k];
                flight[k] = flight[n - 1], bytes[k] = bytes[n - 1];
                n--;
                break;
            }
        }
    }
    arena_free(&arena);
    return kept + most;
}

static size_t workspace_bytes(const Program *program) {
    size_t most = 0;
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        size_t n_bytes = node->scratch ? tensor_bytes(node->scratch) : 0;
        if (most < n_bytes) most = n_bytes;
    }
    return most;
}

static Status take_rank(void *context, const Trainer *trainer, Error *error) {
    (void)error;
    Taking *taking = context;
    RankFigures *rank = taking->rank;
    const Program *program = &trainer->step.program;
    const MemoryPlan *plan = &program->plan;
    Cost cost = program_cost(program);
    for (int place = 0; place < N_PLACES; place++) rank->place[place] = plan_place_bytes(plan, (Place)place);
    rank->workspace = workspace_bytes(program);
    rank->messages = message_bytes(program);
    rank->n_frames = rank->place[PLACE_FRAME] ? plan->n_frames : 0;
    for (int place = 0; place < N_PLACES; place++) {
        if (!place_is_beside((Place)place)) continue;
        *(place_is_file((Place)place) ? &rank->file : &rank->host) += rank->place[place];
    }
    rank->offload = trainer->step.options.offload;
    rank->evaluation = device_required_bytes(&trainer->memory) - plan_total_bytes(plan);
    rank->samples = trainer_sampling_bytes(trainer);
    rank->checkpoint = saver_planned_bytes(&trainer->saver);
    rank->total = trainer_planned_bytes(trainer);
    rank->flops = cost.flops;
    rank->moved = cost.bytes;
    rank->useful_flops = program_useful_flops(program);
    rank->n_instructions = program->graph->n_nodes;
    rank->sent = rank_sent(&taking->figures->links, program);
    taking->figures->n_parameters = trainer->table.n_whole_elements;
    StepSimulator simulator = {&taking->figures->speed, &taking->figures->links};
    rank_speed_set_micro_batches(&taking->figures->speed, trainer->step.n_micro_batches);
    if (taking->times) rank_times(&simulator, program, &taking->figures->arena, taking->times);
    taking->figures->schedule.shape.n_micro_batches = (int)trainer->step.n_micro_batches;
    return STATUS_OK;
}

/* ---- Kinds of ranks */

typedef struct {
    PlanRun *plan;
    PlanFigures *figures;
    bool *begins[N_AXES]; /* (size) along each axis: the first of a kind */
    RankFigures *probed;  /* (MOST_PROBED) */
    int n_probed, most_built;
} Kinds;

static const RankFigures *find_probed(const Kinds *kinds, int rank) {
    for (int i = 0; i < kinds->n_probed; i++)
        if (kinds->probed[i].rank == rank) return &kinds->probed[i];
    return NULL;
}

static Status probe(Kinds *kinds, int stage, Axis axis, int at, const RankFigures **found, Error *error) {
    int coordinate[N_AXES] = {[AXIS_PP] = stage};
    coordinate[axis] = at;
    int rank = mesh_rank(&kinds->plan->train.shape, coordinate);
    *found = find_probed(kinds, rank);
    if (*found || kinds->n_probed >= MOST_PROBED || kinds->n_probed >= kinds->most_built) return STATUS_OK;
    RankFigures *next = &kinds->probed[kinds->n_probed++];
    *next = (RankFigures){.rank = rank};
    *found = next;
    Taking taking = {kinds->plan, kinds->figures, next, NULL};
    return plan_visit_rank(kinds->plan, rank, false, take_rank, &taking, error);
}

static bool are_alike(const RankFigures *a, const RankFigures *b) {
    return memcmp(a->place, b->place, sizeof a->place) == 0 && a->total == b->total && a->flops == b->flops &&
           a->moved == b->moved && a->samples == b->samples && a->checkpoint == b->checkpoint;
}

/* Between two ranks along an axis, of which all beside it are the first. */
static Status bisect(Kinds *kinds, int stage, Axis axis, int low, const RankFigures *first, int high,
                     const RankFigures *last, Error *error) {
    const RankFigures *between;
    if (!first || !last || are_alike(first, last)) return STATUS_OK;
    if (high == low + 1) {
        kinds->begins[axis][high] = true;
        return STATUS_OK;
    }
    int middle = low == 0 ? 1 : low + (high - low) / 2; /* the first is often one of its own */
    TRY(probe(kinds, stage, axis, middle, &between, error));
    TRY(bisect(kinds, stage, axis, low, first, middle, between, error));
    return bisect(kinds, stage, axis, middle, between, high, last, error);
}

/* How many programs of the first rank's length may be built; false: too few to find out. */
static bool measure_programs(Kinds *kinds, Error *error) {
    const RankFigures *first;
    kinds->most_built = 1;
    kinds->probed = ARENA_ARRAY(&kinds->figures->arena, RankFigures, MOST_PROBED);
    if (probe(kinds, 0, AXIS_DP, 0, &first, error) != STATUS_OK) return false;
    kinds->most_built = MOST_INSTRUCTIONS / (first->n_instructions + 1);
    if (kinds->most_built > MOST_BUILT) kinds->most_built = MOST_BUILT;
    return kinds->most_built >= FEWEST_BUILT;
}

static Status find_kinds(Kinds *kinds, Error *error) {
    const MeshShape *shape = &kinds->plan->train.shape;
    const RankFigures *first, *last;
    for (int axis = AXIS_DP; axis < N_AXES; axis++) {
        kinds->begins[axis] = ARENA_ARRAY(&kinds->figures->arena, bool, shape->size[axis]);
        kinds->begins[axis][0] = true;
    }
    for (int end = 0; end < (shape->size[AXIS_PP] > 1 ? 2 : 1); end++) {
        int stage = end ? shape->size[AXIS_PP] - 1 : 0;
        TRY(probe(kinds, stage, AXIS_DP, 0, &first, error));
        for (int axis = AXIS_DP; axis < N_AXES; axis++) {
            if (shape->size[axis] == 1) continue;
            TRY(probe(kinds, stage, (Axis)axis, shape->size[axis] - 1, &last, error));
            TRY(bisect(kinds, stage, (Axis)axis, 0, first, shape->size[axis] - 1, last, error));
        }
    }
    return STATUS_OK;
}

typedef struct {
    int rank, n_alike;
} Kind;

/* Of one stage, into an array or only counted (NULL); the first is that of the stage's first rank. */
static int list_kinds(const Kinds *kinds, int stage, Kind *list) {
    const MeshShape *shape = &kinds->plan->train.shape;
    int coordinate[N_AXES] = {[AXIS_PP] = stage}, n = 0;
    for (;;) {
        int n_alike = 1, axis = N_AXES - 1;
        for (int i = AXIS_DP; i < N_AXES; i++) {
            int end = coordinate[i] + 1;
            while (end < shape->size[i] && !kinds->begins[i][end]) end++;
            n_alike *= end - coordinate[i];
        }
        if (list) list[n] = (Kind){mesh_rank(shape, coordinate), n_alike};
        n++;
        for (; axis >= AXIS_DP; axis--) { /* the next kind along the last axis that has one */
            do coordinate[axis]++;
            while (coordinate[axis] < shape->size[axis] && !kinds->begins[axis][coordinate[axis]]);
            if (coordinate[axis] < shape->size[axis]) break;
            coordinate[axis] = 0;
        }
        if (axis < AXIS_DP) return n;
    }
}

/* How many axes two ranks are at the same place along. */
static int n_shared(const MeshShape *shape, int a, int b) {
    int of_a[N_AXES], of_b[N_AXES], n = 0;
    mesh_coordinates(shape, a, of_a);
    mesh_coordinates(shape, b, of_b);
    for (int axis = 0; axis < N_AXES; axis++) n += of_a[axis] == of_b[axis];
    return n;
}

/* Keeps the first and the most frequent others, `most` in all, which stand for what is most like them. */
static int shorten(const MeshShape *shape, Kind *list, int n, int most) {
    int n_kept = n < most ? n : most;
    for (int i = 1; i < n_kept; i++) { /* the most frequent of the rest to the front */
        int best = i;
        for (int k = i + 1; k < n; k++)
            if (list[k].n_alike > list[best].n_alike) best = k;
        Kind kept = list[best];
        memmove(list + i + 1, list + i, (size_t)(best - i) * sizeof *list);
        list[i] = kept;
    }
    for (int i = n_kept; i < n; i++) {
        int like = n_kept > 1;
        for (int k = like + 1; k < n_kept; k++)
            if (n_shared(shape, list[k].rank, list[i].rank) > n_shared(shape, list[like].rank, list[i].rank))
                like = k;
        list[like].n_alike += list[i].n_alike;
    }
    return n_kept;
}

/* Every rank: the first of every stage in front. */
static int choose_all(const MeshShape *shape, Kind *list) {
    int n_all = mesh_n_ranks(shape), a_stage = n_all / shape->size[AXIS_PP], n = 0;
    for (int rank = 0; rank < n_all; rank += a_stage) list[n++] = (Kind){rank, 1};
    for (int rank = 0; rank < n_all; rank++)
        if (rank % a_stage) list[n++] = (Kind){rank, 1};
    return n;
}

/* For time and the most memory: the first of every stage, and the last along each axis. */
static int choose_ends(const MeshShape *shape, Kind *list) {
    int n_stages = shape->size[AXIS_PP], a_stage = mesh_n_ranks(shape) / n_stages, n = 0;
    for (int stage = 0; stage < n_stages; stage++) list[n++] = (Kind){stage * a_stage, a_stage};
    for (int end = 0; end < (n_stages > 1 ? 2 : 1); end++) {
        for (int axis = AXIS_DP; axis < N_AXES; axis++) {
            int coordinate[N_AXES] = {[AXIS_PP] = end ? n_stages - 1 : 0};
            if (shape->size[axis] == 1) continue;
            coordinate[axis] = shape->size[axis] - 1;
            list[end ? n_stages - 1 : 0].n_alike--;
            list[n++] = (Kind){mesh_rank(shape, coordinate), 1};
        }
    }
    return n;
}

/* The first of every stage, and for all others the one in the middle. */
static int choose_middles(const MeshShape *shape, Kind *list) {
    int n_stages = shape->size[AXIS_PP], a_stage = mesh_n_ranks(shape) / n_stages, n = n_stages;
    for (int stage = 0; stage < n_stages; stage++) {
        int coordinate[N_AXES] = {[AXIS_PP] = stage};
        for (int axis = AXIS_DP; axis < N_AXES; axis++) coordinate[axis] = shape->size[axis] / 2;
        list[stage] = (Kind){stage * a_stage, a_stage > 1 ? 1 : a_stage};
        if (a_stage > 1) list[n++] = (Kind){mesh_rank(shape, coordinate), a_stage - 1};
    }
    return n;
}

/* One of each: the first rank of every stage in front. */
static Status choose_kinds(Kinds *kinds, Kind *list, int *n_ranks, Error *error) {
    const MeshShape *shape = &kinds->plan->train.shape;
    int n_stages = shape->size[AXIS_PP], n = n_stages;
    if (!measure_programs(kinds, error)) {
        *n_ranks = choose_middles(shape, list);
        return error->status;
    }
    TRY(find_kinds(kinds, error));
    int a_kind = list_kinds(kinds, 0, NULL);
    Kind *all = ARENA_ARRAY(&kinds->figures->arena, Kind, a_kind);
    int most = kinds->most_built / n_stages > 2 ? kinds->most_built / n_stages : 2;
    for (int stage = 0; stage < n_stages; stage++) {
        int n_here = shorten(shape, all, list_kinds(kinds, stage, all), most);
        list[stage] = all[0];
        for (int i = 1; i < n_here; i++) list[n++] = all[i];
    }
    *n_ranks = n;
    return STATUS_OK;
}

Status plan_ranks(PlanRun *plan, PlanFigures *figures, RankTimes *times, Error *error) {
    const MeshShape *shape = &plan->train.shape;
    int n_stages = shape->size[AXIS_PP];
    Kind *ranks = ARENA_ARRAY(&figures->arena, Kind, 2 * n_stages + MOST_BUILT);
    Kinds kinds = {.plan = plan, .figures = figures};
    if (mesh_n_ranks(shape) <= FEW_RANKS) figures->n_ranks_built = choose_all(shape, ranks);
    else if (plan->is_brief) figures->n_ranks_built = choose_ends(shape, ranks);
    else TRY(choose_kinds(&kinds, ranks, &figures->n_ranks_built, error));
    figures->rank = ARENA_ARRAY(&figures->arena, RankFigures, figures->n_ranks_built);
    for (int i = 0; i < figures->n_ranks_built; i++) {
        RankFigures *rank = &figures->rank[i];
        const RankFigures *known = i < n_stages ? NULL : find_probed(&kinds, ranks[i].rank);
        *rank = known ? *known : (RankFigures){.rank = ranks[i].rank};
        rank->n_alike = ranks[i].n_alike;
        mesh_coordinates(shape, rank->rank, rank->coordinate);
        Taking taking = {plan, figures, rank, i < n_stages ? &times[i] : NULL};
        if (!known) TRY(plan_visit_rank(plan, rank->rank, false, take_rank, &taking, error));
        if (figures->rank[figures->most].total < rank->total) figures->most = i;
    }
    return STATUS_OK;
}

/* ---- All together */

PlanSums plan_sums(const PlanFigures *figures) {
    PlanSums sums = {0};
    for (int i = 0; i < figures->n_ranks_built; i++) {
        const RankFigures *rank = &figures->rank[i];
        double n = rank->n_alike;
        for (int place = 0; place < N_PLACES; place++) sums.place[place] += n * (double)rank->place[place];
        sums.workspace += n * (double)rank->workspace;
        sums.messages += n * (double)rank->messages;
        sums.evaluation += n * (double)rank->evaluation;
        sums.samples += n * (double)rank->samples;
        sums.checkpoint += n * (double)rank->checkpoint;
        sums.total += n * (double)rank->total;
        sums.host += n * (double)rank->host;
        sums.file += n * (double)rank->file;
        sums.flops += n * rank->flops;
        sums.useful_flops += n * rank->useful_flops;
        sums.moved += n * rank->moved;
        for (int link = 0; link < N_LINKS; link++) {
            sums.link[link].n_messages += n * rank->sent.link[link].n_messages;
            sums.link[link].n_bytes += n * rank->sent.link[link].n_bytes;
        }
    }
    return sums;
}
