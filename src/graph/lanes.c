/* Nodes beside are few and short-lived: between one of them and the node that waits for it lie a handful of
 * others. So every node is compared with those on other lanes that its own has not waited for yet, byte range
 * by byte range. */
#include "graph/lanes.h"
#include "base/arena.h"
#include "graph/plan.h"

typedef struct {
    size_t begin, end;
    Place place;
    int chunk; /* whose frame */
    bool is_written;
} Range;

enum { MAX_RANGES = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS + 1 };

static void add_range(Range *ranges, int *n, Tensor *tensor, bool is_written) {
    if (!tensor || !tensor_bytes(tensor)) return;
    ranges[(*n)++] =
        (Range){.place = tensor_root(tensor)->place,
                .chunk = place_is_framed(tensor_root(tensor)->place) ? tensor_root(tensor)->chunk : 0,
                .begin = tensor->offset,
                .end = tensor->offset + tensor_bytes(tensor),
                .is_written = is_written};
}

static int ranges_of(const Node *node, Range *ranges) {
    int n = 0;
    for (int i = 0; i < node->n_inputs; i++) add_range(ranges, &n, node->input[i], false);
    for (int i = 0; i < node->n_outputs; i++) add_range(ranges, &n, node->output[i], true);
    add_range(ranges, &n, node->scratch, true);
    return n;
}

static bool collide(const Node *a, const Node *b) {
    Range of_a[MAX_RANGES], of_b[MAX_RANGES];
    int n_a = ranges_of(a, of_a), n_b = ranges_of(b, of_b);
    for (int i = 0; i < n_a; i++) {
        for (int k = 0; k < n_b; k++) {
            if (of_a[i].place == of_b[k].place && of_a[i].chunk == of_b[k].chunk &&
                (of_a[i].is_written || of_b[k].is_written) && of_a[i].begin < of_b[k].end &&
                of_b[k].begin < of_a[i].end)
                return true;
        }
    }
    return false;
}

/* Not what is left out in some micro-batches: whoever waits for it would have to know. */
bool lanes_is_beside(const Node *node) {
    return node->op->lane > 0 && !node_is_left_out(node);
}

/* The last of nodes after + 1 .. i - 1 on a lane that node i must not meet, -1 if there is none. `last` is the
 * last on that lane, `before` has for each node the one before it on its lane. */
static int last_collision(const Graph *graph, int first, const int *before, int i, int last, int after) {
    for (int k = last; k > after; k = before[k])
        if (collide(graph->node[first + i], graph->node[first + k])) return k;
    return -1;
}

void lanes_assign(const Graph *graph, int first, int count, int n_lanes, LaneStep *step) {
    int waited[LANES_MOST]
              [LANES_MOST]; /* by a lane, of another: its last node, those before it are over, too */
    int newest[LANES_MOST]; /* of a lane */
    Arena scratch = {0};
    int *before = ARENA_ARRAY(&scratch, int, count + 1);
    for (int i = 0; i < LANES_MOST * LANES_MOST; i++) waited[i / LANES_MOST][i % LANES_MOST] = -1;
    for (int i = 0; i < LANES_MOST; i++) newest[i] = -1;
    for (int i = 0; i < count; i++) {
        const Node *node = graph->node[first + i];
        int lane = !lanes_is_beside(node) ? 0 : node->op->lane < n_lanes ? node->op->lane : n_lanes - 1;
        step[i].lane = lane;
        for (int other = 0; other < LANES_MOST; other++) {
            step[i].joins[other] = -1;
            if (other == 0 || other == lane || other >= n_lanes) continue;
            /* It begins behind what lane 0 has waited for. */
            int *last = &waited[lane][other];
            if (*last < waited[0][other]) *last = waited[0][other];
            int found = last_collision(graph, first, before, i, newest[other], *last);
            if (found < 0) continue;
            step[i].joins[other] = first + found;
            /* One that is left out in some micro-batches waits for nobody there. */
            if (!node_is_left_out(node)) *last = found;
        }
        before[i] = newest[lane];
        newest[lane] = i;
    }
    arena_free(&scratch);
}
