/* Nodes beside are few and short-lived: between one of them and the node that waits for it lie a handful of
 * others. So every node of the main lane is compared with those beside that nobody has waited for yet, byte
 * range by byte range. */
#include "graph/lanes.h"

typedef struct {
    size_t begin, end;
    Place place;
    bool is_written;
} Range;

enum { MAX_RANGES = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS + 1 };

static void add_range(Range *ranges, int *n, Tensor *tensor, bool is_written) {
    if (!tensor || !tensor_bytes(tensor)) return;
    ranges[(*n)++] = (Range){.place = tensor_root(tensor)->place,
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
            if (of_a[i].place == of_b[k].place && (of_a[i].is_written || of_b[k].is_written) &&
                of_a[i].begin < of_b[k].end && of_b[k].begin < of_a[i].end)
                return true;
        }
    }
    return false;
}

/* Not what is left out in some micro-batches: whoever waits for it would have to know. */
bool lanes_is_beside(const Node *node) {
    return node->op->runs_beside && !node->is_last_only;
}

void lanes_assign(const Graph *graph, int first, int count, LaneStep *step) {
    int waited =
        -1; /* the last node beside that the main lane has waited for: those before it are over, too */
    for (int i = 0; i < count; i++) {
        const Node *node = graph->node[first + i];
        step[i] = (LaneStep){.is_beside = lanes_is_beside(node), .joins = -1};
        if (step[i].is_beside) continue;
        for (int k = i - 1; k > waited && step[i].joins < 0; k--) {
            if (step[k].is_beside && collide(node, graph->node[first + k])) step[i].joins = first + k;
        }
        /* One that is left out in some micro-batches waits for nobody there. */
        if (step[i].joins >= 0 && !node->is_last_only) waited = step[i].joins - first;
    }
}
