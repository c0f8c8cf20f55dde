/* A block of a mixture of depths (ops/depth/depth.h): the router lets some positions of a sequence pass, and
 * for them the block is what it is elsewhere, over shorter sequences:
 *
 *     h = x[rows]                                                     (B,K,C), rows ascending
 *     f = attention(norm1(h)) + mlp(norm2(h + attention(norm1(h))))   causal: rows ascend
 *     x[rows] = x[rows] + score[rows] · f
 *
 * In training the rows are the K best of the sequence, which nobody knows who makes one token after another.
 * So where nothing is learned (evaluation, generation) the predictor decides, token by token, and K is T:
 * those that pass come first, and what the others compute behind them, seen by nobody, is not added. A
 * block's cache then holds the tokens that passed, and how many of them there are before each position is
 * counted.
 *
 * **Ranks that share layers** have all of h between them. Where they share out the rows of the stream
 * (sequence parallelism), each has the scores of its rows, and they gather these, B·T numbers. Each puts its
 * rows among the chosen ones, zeros elsewhere; a reduce-scatter makes of it this rank's rows of h, on which
 * the block is the same as elsewhere; f is gathered, and each rank adds what belongs to its rows of x. So
 * nothing larger than K of T rows travels, and the gradient of a score is known to the rank that has its
 * row. */
#include "model/gpt_writer.h"
#include "ops/depth/depth.h"

static bool is_by_sequence(const GptWriter *r) {
    return writer_is_split(r) && r->split.by_sequence;
}

/* A number of every row that is here, of all rows: (B,T). */
static Tensor *record_all(GptWriter *r, Tensor *numbers) {
    Graph *graph = r->graph;
    if (!is_by_sequence(r)) return numbers;
    Tensor *rows = graph_view(graph, numbers, SHAPE(tensor_count(numbers), 1), 0, numbers->name);
    Tensor *all = op_parallel_join(graph, r->split.tp, rows, SHAPE(r->B * r->T, 1), NULL);
    return graph_view(graph, all, SHAPE(r->B, r->T), 0, numbers->name);
}

/* How many tokens have passed this block, where it has a cache. */
static Tensor *record_counts(GptWriter *r, int block) {
    if (!r->depth.counts) return NULL;
    int64_t first = r->depth.n_counted++ * r->B * (r->capacity + 1);
    const char *name = arena_printf(&r->graph->arena, "h.%d.counts", block);
    return graph_view(r->graph, r->depth.counts, SHAPE(r->B, r->capacity + 1), first, name);
}

/* The predictor's loss. It is nobody's block: what it makes is kept where a block's activations are not. */
static void record_predict(GptWriter *r, Tensor *x, Tensor *guess, const DepthRows *rows, int block) {
    Graph *graph = r->graph;
    const GptDepth *depth = &r->depth;
    double n_blocks = (double)config_n_depth_blocks(r->config, 0, (int)r->config->n_layers);
    DepthPredictAttributes attributes = {.first_row = r->rows.first,
                                         .gradient_scale = (float)r->loss_scale,
                                         .report_scale = (float)(r->loss_scale / n_blocks)};
    DepthPredictTensors tensors = {
        .guess = guess,
        .x = x,
        .slot = rows->slot,
        .random = r->words,
        .scale = r->scale,
        .predictor = layer_parameter(r, ROLE_DEPTH_PREDICTOR, block),
        .bias = layer_parameter(r, ROLE_DEPTH_PREDICTOR_BIAS, block),
        .loss = graph_view(graph, depth->report, SHAPE(1), DEPTH_LOSS, "depth.loss"),
        .hits = graph_view(graph, depth->report, SHAPE(1), DEPTH_HITS, "depth.hits")};
    graph->block = NO_BLOCK;
    op_depth_predict(graph, &tensors, (*depth->n_recorded)++ ? WRITE_ADD : WRITE_ADD_AFTER_FIRST,
                     &attributes);
    graph->block = block;
}

/* The block's writer of what passes: K positions of every sequence. */
static GptWriter passing_writer(const GptWriter *r, const DepthRows *rows) {
    GptWriter inner = *r;
    GptSplit split = r->split;
    inner.n_positions = rows->rows->shape.dim[1];
    writer_set_split(&inner, &split);
    inner.places = rows->places ? rows->places : rows->rows;
    inner.start = rows->first;
    inner.adds_apart = true;
    return inner;
}

/* What the block adds to the chosen rows (B,K,C). Where ranks share out rows, the way in and out is no part
 * of the block: what these messages bring is kept, and the pass that gathers a block's rows a second time
 * (parallel/gather_again.h) has nothing to do with them. */
static Tensor *record_passing(GptWriter *r, Tensor *chosen, const DepthRows *rows, int block) {
    GptPart part = {.r = passing_writer(r, rows), .x = {.sum = chosen}};
    Graph *graph = r->graph;
    graph->block = NO_BLOCK;
    if (is_by_sequence(r)) part.x.sum = op_parallel_reduce_scatter(graph, r->split.tp, chosen, NULL);
    gpt_record_halves(&part, 1, 2 * block, 2 * block + 2);
    r->n_cached = part.r.n_cached;
    graph->block = NO_BLOCK;
    Tensor *made = part.made;
    if (is_by_sequence(r)) made = op_parallel_all_gather(graph, r->split.tp, made, chosen->shape, NULL);
    graph->block = block;
    return made;
}

void gpt_record_depth(GptPart *part, int block) {
    GptWriter *r = &part->r;
    Graph *graph = r->graph;
    graph->block = block;
    if (!graph_check(graph, !writer_is_shared(r), "ranks that share sequences cannot choose among positions"))
        return;
    layer_border(r, &part->x);
    Tensor *x = part->x.sum, *router = layer_parameter(r, ROLE_DEPTH_ROUTER, block);
    DepthScores scores = op_depth_score(graph, x, router, layer_parameter(r, ROLE_DEPTH_PREDICTOR, block),
                                        layer_parameter(r, ROLE_DEPTH_PREDICTOR_BIAS, block));
    Tensor *score = record_all(r, scores.score);
    DepthRows rows = r->is_training ? op_depth_select(graph, score, config_depth_rows(r->config, r->T))
                                    : op_depth_admit(graph, record_all(r, scores.guess), r->start,
                                                     record_counts(r, block));
    if (r->is_training) record_predict(r, x, scores.guess, &rows, block);
    DepthChosen chosen = op_depth_gather(graph, x, score, &rows, router, r->rows.first);
    Tensor *made = record_passing(r, chosen.chosen, &rows, block);
    part->x.sum = op_depth_scatter(graph, x, made, chosen.gate, &rows, r->rows.first);
    part->x.sum->name = arena_printf(&graph->arena, "h.%d.deeper", block);
}

void depth_residual(GptPart *part, Tensor *y, int block, int site) {
    GptWriter *r = &part->r;
    bool is_summed = part->made && writer_is_fused(r);
    y = layer_dropout(r, y, layer_dropout_site(block, site));
    if (!part->made) part->x.sum = op_add(r->graph, part->x.sum, y);
    part->made = part->made && !is_summed ? op_add(r->graph, part->made, y) : y;
}
