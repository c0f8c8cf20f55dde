/* Demand-driven: for each segment, find which of its forward tensors the backward half reads, mark the nodes
 * that make them (and the nodes that make what those read, as long as it lies in the segment), and insert
 * copies of the marked nodes before the segment's first backward node. The backward nodes then read the
 * copies, so the originals die early and the memory plan reuses their space. What crosses a segment's border
 * is kept: it is the input.
 *
 * The last segment is left alone where its backward starts when its forward ends: all its activations are
 * alive at that moment whether they were kept or made again. Dropout draws by position and not by call, so a
 * repeated node repeats its bits.
 *
 * What communication has brought in the forward is kept, as an activation at a segment's border is: to wait
 * for it twice costs more than its bytes. An all-gather is the exception (is_repeatable): what it brings is
 * larger than what it was made of, which was split among the ranks so that nobody has to keep the whole. So
 * are keys and values that go round a ring. */
#include "graph/passes/recompute.h"
#include "graph/op.h"
#include "graph/passes/repeat.h"

#include <string.h>

typedef struct {
    Graph *graph;
    int n_blocks, n_segments; /* segments of each chunk, most of them empty where there are several */
    int n_chunks;
    int n_first;     /* segments of each chunk that are repeated; 0: all */
    bool *is_marked; /* per forward node */
    bool *is_kept;   /* per tensor id: brought by communication that is not repeated */
    Repeats repeats;
} Recompute;

static int segment_of(const Recompute *pass, const Node *node) {
    if (!node || node->block == NO_BLOCK) return -1;
    return node->chunk * pass->n_segments + node->block / pass->n_blocks;
}

/* A node of the forward half, wherever it runs; the conjugates of communication stand behind it. */
static bool is_forward(const Node *node) {
    return node->phase == PHASE_FORWARD ||
           (node->phase == PHASE_COMMUNICATION && node->section == SECTION_FORWARD);
}

static void find_kept(const Recompute *pass) {
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        if (node->phase != PHASE_COMMUNICATION || node->op->is_repeatable) continue;
        for (int k = 0; k < node->n_outputs; k++) {
            if (node->output[k]) pass->is_kept[tensor_root(node->output[k])->id] = true;
        }
    }
}

static bool is_forgotten(const Recompute *pass, Tensor *tensor, int segment) {
    if (!tensor) return false;
    const Tensor *root = tensor_root(tensor);
    return root->place == PLACE_ACTIVATION && root->producer && is_forward(root->producer) &&
           !pass->is_kept[root->id] && segment_of(pass, root->producer) == segment;
}

/* Walk the forward nodes of a segment from the last to the first and mark what is needed. */
static void mark_segment(const Recompute *pass, int segment) {
    const Graph *graph = pass->graph;
    Arena scratch = {0};
    bool *is_needed = ARENA_ARRAY(&scratch, bool, pass->repeats.n_old);
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const Node *node = graph->node[i];
        if (segment_of(pass, node) != segment) continue;
        bool reads_for_backward = node->phase == PHASE_BACKWARD;
        if (!reads_for_backward) {
            for (int k = 0; k < node->n_outputs; k++) {
                if (node->output[k] && is_needed[tensor_root(node->output[k])->id]) pass->is_marked[i] = true;
            }
        }
        if (!reads_for_backward && !pass->is_marked[i]) continue;
        for (int k = 0; k < node->n_inputs; k++) {
            if (is_forgotten(pass, node->input[k], segment))
                is_needed[tensor_root(node->input[k])->id] = true;
        }
    }
    arena_free(&scratch);
}

/* In front of a segment's first backward node, what was marked of it; returns how many nodes. */
static int repeat_segments(Recompute *pass, bool *is_done) {
    Graph *graph = pass->graph;
    Node **old = graph->node;
    int n_old = graph->n_nodes, n_again = 0;
    graph->node = ARENA_ARRAY(&graph->arena, Node *, n_old * 2);
    graph->node_capacity = n_old * 2;
    graph->n_nodes = 0;
    for (int i = 0; i < n_old; i++) {
        int segment = segment_of(pass, old[i]);
        bool is_backward =
            segment >= 0 && (old[i]->phase == PHASE_BACKWARD ||
                             (old[i]->phase == PHASE_COMMUNICATION && old[i]->section == SECTION_BACKWARD));
        if (is_backward && !is_done[segment]) {
            for (int k = 0; k < i; k++) {
                if (!pass->is_marked[k] || segment_of(pass, old[k]) != segment) continue;
                graph->node[graph->n_nodes++] = repeat_node(&pass->repeats, old[k], NULL);
                n_again++;
            }
            is_done[segment] = true;
        }
        if (is_backward) repeat_inputs(&pass->repeats, old[i]);
        graph->node[graph->n_nodes++] = old[i];
    }
    return n_again;
}

/* Which segments are not repeated: those without nodes, those behind the first ones where only these are, and
 * the last of a chunk that keeps it. */
static void find_left_alone(const Recompute *pass, const int *chunk_frames, bool *is_left_alone) {
    for (int c = 0; c < pass->n_chunks; c++) {
        int last = -1, n_found = 0;
        for (int i = 0; i < pass->n_segments; i++) is_left_alone[c * pass->n_segments + i] = true;
        for (int i = 0; i < pass->graph->n_nodes; i++) {
            int segment = segment_of(pass, pass->graph->node[i]);
            if (segment < 0 || segment / pass->n_segments != c) continue;
            is_left_alone[segment] = false;
            if (segment > last) last = segment;
        }
        if (last >= 0 && (!chunk_frames || chunk_frames[c] == 1)) is_left_alone[last] = true;
        for (int i = 0; i < pass->n_segments; i++) {
            bool *is_alone = &is_left_alone[c * pass->n_segments + i];
            if (pass->n_first && !*is_alone && n_found++ >= pass->n_first) *is_alone = true;
        }
    }
}

static int recompute(Graph *graph, int n_blocks, int n_first, int n_chunks, const int *chunk_frames) {
    int last_block = NO_BLOCK;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->block > last_block) last_block = graph->node[i]->block;
        if (n_chunks <= graph->node[i]->chunk) n_chunks = graph->node[i]->chunk + 1;
    }
    if (n_blocks <= 0 || last_block == NO_BLOCK || graph->error.status != STATUS_OK) return 0;
    Recompute pass = {.graph = graph,
                      .n_blocks = n_blocks,
                      .n_segments = last_block / n_blocks + 1,
                      .n_chunks = n_chunks,
                      .n_first = n_first};
    pass.repeats = repeats_begin(graph);
    pass.is_marked = ARENA_ARRAY(&graph->arena, bool, graph->n_nodes);
    pass.is_kept = ARENA_ARRAY(&graph->arena, bool, graph->n_tensors);
    find_kept(&pass);
    int n_segments = n_chunks * pass.n_segments;
    bool *is_done = ARENA_ARRAY(&graph->arena, bool, n_segments);
    find_left_alone(&pass, chunk_frames, is_done);
    for (int segment = 0; segment < n_segments; segment++) {
        if (!is_done[segment]) mark_segment(&pass, segment);
    }
    return repeat_segments(&pass, is_done);
}

int recompute_chunks(Graph *graph, int n_blocks, int n_chunks, const int *chunk_frames) {
    return recompute(graph, n_blocks, 0, n_chunks, chunk_frames);
}

int recompute_first(Graph *graph, int n_first, int n_chunks, const int *chunk_frames) {
    return n_first > 0 ? recompute(graph, 1, n_first, n_chunks, chunk_frames) : 0;
}

bool recompute_first_has(const Graph *graph, int n_first, const int *chunk_frames, int chunk, int block) {
    int first = -1, last = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->chunk != chunk || node->block == NO_BLOCK) continue;
        if (first < 0 || node->block < first) first = node->block;
        if (node->block > last) last = node->block;
    }
    bool is_left_alone = block == last && (!chunk_frames || chunk_frames[chunk] == 1);
    return block >= first && block - first < n_first && !is_left_alone;
}

int recompute_run(Graph *graph, int n_blocks) {
    return recompute_chunks(graph, n_blocks, 1, NULL);
}
