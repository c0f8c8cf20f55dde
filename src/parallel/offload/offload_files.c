/* A slot begins where in a page its piece does, so that the file is read into it past the system's cache. A
 * copy of weights begins where in a page the weights do: then a piece of both fits into one slot. */
#include "parallel/offload/offload_files.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "parallel/offload/offload_messages.h"

bool offload_is_in_file(const Tensor *tensor) {
    return tensor && tensor_root((Tensor *)tensor)->place == PLACE_FILE;
}

bool offload_touches_file(const Node *node) {
    for (int k = 0; k < node->n_inputs; k++)
        if (offload_is_in_file(node->input[k])) return true;
    for (int k = 0; k < node->n_outputs; k++)
        if (offload_is_in_file(node->output[k])) return true;
    return false;
}

static bool is_move(const Node *node) {
    return node->op == &OP_FETCH || node->op == &OP_OFFLOAD || node->op == &OP_MOVE_WAIT;
}

static bool is_norm(const Node *node) {
    return node->op == &OP_SQUARED_NORM && offload_is_in_file(node->input[0]);
}

static bool is_copy(const Node *node) {
    return node->op == &OP_COPY && section_is_of_step(node->section) && offload_touches_file(node);
}

/* Of a gradient whose update is late: it becomes state. */
static bool is_kept_late(const Node *node) {
    return offload_is_in_file(node->input[0]) && tensor_root(node->output[0])->place == PLACE_OPTIMIZER;
}

static int64_t size_of(const Tensor *tensor) {
    return (int64_t)dtype_info(tensor->dtype)->n_bytes;
}

static int64_t skip_of(const Tensor *tensor) {
    return offload_page_skip(tensor_root((Tensor *)tensor), tensor_root_element(tensor));
}

/* Elements of a tensor at a time. */
static int64_t piece_of(const OffloadFiles *files, const Node *node) {
    const Tensor *tensor = node->input[0];
    int64_t grain = is_norm(node) ? squared_norm_grain(tensor->dtype, tensor_count(tensor)) : 1;
    int64_t n = files->piece_bytes / size_of(tensor) / grain * grain;
    if (n < grain) n = grain;
    return n < tensor_count(tensor) ? n : tensor_count(tensor);
}

/* The copy lies in a file from now on. */
static void keep_in_file(Graph *graph, const Node *node) {
    Tensor *from = node->input[0], *to = tensor_root(node->output[0]);
    if (!offload_is_in_file(from) || offload_is_in_file(to) || to != node->output[0]) return;
    int64_t skip = skip_of(from);
    Tensor *pages =
        graph_tensor(graph, PLACE_FILE, to->dtype, SHAPE(skip + tensor_count(to)), "%s (file)", to->name);
    to->place = PLACE_FILE;
    to->base = pages;
    to->base_offset = (size_t)(skip * size_of(to));
}

static void look_at(OffloadFiles *files, const Node *node, const BackendTraits *traits) {
    Graph *graph = files->graph;
    if (is_norm(node))
        graph_check(graph, !traits_has_own_memory(traits),
                    "--offload gradients:file: a GPU takes the norm of the whole gradient at once; give "
                    "gradients:host, or --clip 0");
    else if (is_copy(node)) {
        graph_check(graph, !is_kept_late(node),
                    "--delayed-update keeps a second gradient, which is not for --offload gradients:file; "
                    "leave one out%s",
                    traits_has_own_memory(traits) ? ", or give gradients:host" : "");
        keep_in_file(graph, node);
    } else {
        graph_check(graph, node->op->update || is_move(node) || !offload_touches_file(node),
                    "--offload: %s needs all of what is in a file at once; give :host, or leave it out",
                    node->op->name);
        return;
    }
    size_t n_bytes = (size_t)(piece_of(files, node) * size_of(node->input[0])) + 2 * (size_t)PLAN_PAGE;
    if (n_bytes > files->slot_bytes) files->slot_bytes = n_bytes;
}

OffloadFiles offload_files_open(Graph *graph, const Offload *offload, const BackendTraits *traits) {
    OffloadFiles files = {.graph = graph, .piece_bytes = offload_bucket_bytes(offload)};
    int n_nodes = graph->n_nodes;
    for (int i = 0; i < n_nodes; i++) look_at(&files, graph->node[i], traits);
    for (int i = 0; i < OFFLOAD_FILE_SLOTS && files.slot_bytes; i++)
        files.slot[i] = graph_tensor(graph, PLACE_HOST, DTYPE_I32, SHAPE((int64_t)files.slot_bytes / 4 + 1),
                                     "pieces of a file (slot %d)", i);
    if (files.slot_bytes)
        files.room = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(SQUARED_NORM_ROOM), "sums of a norm");
    return files;
}

static Tensor *part_of(Graph *graph, Tensor *tensor, int64_t first, int64_t n) {
    return graph_view(graph, tensor, SHAPE(n), first, tensor->name);
}

static Tensor *slot_of(OffloadFiles *files, const Tensor *piece) {
    Tensor *slot = files->slot[files->n_pieces++ % OFFLOAD_FILE_SLOTS];
    int64_t skip = skip_of(piece), n = tensor_count(piece);
    Tensor *pages = graph_view(files->graph, slot, SHAPE(1), 0, slot->name);
    pages->dtype = piece->dtype;
    pages->shape = SHAPE(skip + n);
    return graph_view(files->graph, pages, SHAPE(n), skip, piece->name);
}

/* From one place of a file to the other, by the mover alone. */
static void copy_pieces(OffloadFiles *files, const Node *node) {
    Graph *graph = files->graph;
    int64_t count = tensor_count(node->input[0]), piece = piece_of(files, node);
    for (int64_t first = 0, n; first < count; first += n) {
        n = count - first < piece ? count - first : piece;
        Tensor *from = part_of(graph, node->input[0], first, n);
        Tensor *slot = slot_of(files, from);
        op_fetch(graph, from, slot);
        op_offload(graph, slot, part_of(graph, node->output[0], first, n));
    }
}

/* Pieces are read two ahead. */
static void add_squares(OffloadFiles *files, const Node *node) {
    Graph *graph = files->graph;
    Tensor *x = node->input[0], *slot[OFFLOAD_FILE_SLOTS];
    const Node *came[OFFLOAD_FILE_SLOTS];
    int64_t count = tensor_count(x), piece = piece_of(files, node);
    for (int64_t i = 0, begun = 0; i * piece < count; i++) {
        for (; begun < i + OFFLOAD_FILE_SLOTS - 1 && begun * piece < count; begun++) {
            int64_t first = begun * piece, n = count - first < piece ? count - first : piece;
            Tensor *from = part_of(graph, x, first, n);
            slot[begun % OFFLOAD_FILE_SLOTS] = slot_of(files, from);
            came[begun % OFFLOAD_FILE_SLOTS] = op_fetch(graph, from, slot[begun % OFFLOAD_FILE_SLOTS]);
        }
        op_move_wait(graph, came[i % OFFLOAD_FILE_SLOTS], true);
        SquaredNormPart part = {.first = i * piece, .n_all = count};
        op_squared_norm_part(graph, slot[i % OFFLOAD_FILE_SLOTS], node->output[0],
                             node->write[0] == WRITE_ADD, part, files->room);
    }
}

bool offload_files_take(OffloadFiles *files, const Node *node) {
    if (is_norm(node)) add_squares(files, node);
    else if (is_copy(node)) copy_pieces(files, node);
    else return false;
    return true;
}
