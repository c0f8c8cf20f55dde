/* A step of generation: the same blocks over cached keys and values, and the logits of one row a sequence. */
#include "model/gpt_writer.h"

/* (B,V) logits of x (B,C); where each rank has some of them, what all have put together. */
static Tensor *record_logits(GptWriter *r, Tensor *x) {
    Graph *graph = r->graph;
    ShardSpan span = writer_token_span(r);
    Tensor *head = graph_view(graph, writer_head_weight(r), SHAPE(span.n, r->config->n_channels), 0,
                              "head"); /* without the rows that pad it */
    Tensor *logits = op_linear(graph, x, head, NULL, NULL, ACTIVATION_NONE);
    if (!writer_is_split(r)) return logits;
    int n_ranks = r->split.tp->size;
    int64_t B = x->shape.dim[0], V = r->config->vocabulary, border[PACK_MAX_PARTS + 1];
    if (!graph_check(graph, n_ranks <= PACK_MAX_PARTS, "logits: more than %d ranks", PACK_MAX_PARTS))
        return graph->nothing;
    int64_t *element = ARENA_ARRAY(&graph->arena, int64_t, n_ranks + 1);
    for (int rank = 0; rank <= n_ranks; rank++) {
        border[rank] = rank < n_ranks ? shard_span(V, n_ranks, rank).first : V;
        element[rank] = B * border[rank];
    }
    Tensor *flat = graph_view(graph, logits, SHAPE(B * span.n, 1), 0, "logits");
    Tensor *all = op_parallel_join(graph, r->split.tp, flat, SHAPE(B * V, 1), element);
    return op_unpack(graph, all, SHAPE(B, V), 1, n_ranks, border);
}

static GptWriter decode_writer(const ModelConfig *config, Graph *graph, const GptDecodeOptions *options) {
    GptWriter r = {.config = config,
                   .graph = graph,
                   .B = options->B,
                   .n_positions = options->T,
                   .capacity = options->capacity,
                   .most_new = options->most_new ? options->most_new : options->T,
                   .dtype = options->dtype};
    writer_set_split(&r, &(GptSplit){.tp = options->split.tp,
                                     .style = options->split.style,
                                     .ep = options->split.ep,
                                     .has_same_rows = true});
    return r;
}

GptDecode gpt_begin_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                           const GptDecodeOptions *options, const GptStage *stages, int n_stages) {
    int64_t B = options->B;
    GptWriter r = decode_writer(config, graph, options);
    GptDecode decode = {.parameters = parameters_record(table, graph, options->dtype, false)};
    decode.tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, options->T), "tokens");
    decode.start = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "start");
    decode.rows = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "rows");
    int64_t n_positions = 0, n_depths = 0; /* of keys and values of all blocks; blocks with a router */
    for (int i = 0; i < n_stages; i++)
        n_depths += config_n_depth_blocks(config, stages[i].first_block, stages[i].end_block);
    for (int i = 0; i < n_stages; i++)
        for (int block = stages[i].first_block; block < stages[i].end_block; block++)
            n_positions += 2 * writer_capacity(&r, block);
    if (r.capacity && r.heads.key.n)
        decode.caches =
            graph_tensor(graph, PLACE_STATE, r.dtype,
                         SHAPE(n_positions, B * r.heads.key.n, config_head_size(config)), "caches");
    if (r.capacity && config->document_mask)
        decode.next_documents =
            graph_tensor(graph, PLACE_STATE, DTYPE_I32, SHAPE(B, r.capacity), "next documents");
    if (r.capacity && n_depths)
        decode.counts =
            graph_tensor(graph, PLACE_STATE, DTYPE_I32, SHAPE(n_depths, B, r.capacity + 1), "counts");
    return decode;
}

/* The last norm and the logits of one row of each sequence of x (B,T,C). */
static void record_prediction(GptWriter *r, GptStream *x, GptDecode *decode) {
    Graph *graph = r->graph;
    Tensor *normed = layer_norm(r, x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK);
    Tensor *last = r->T == 1 ? graph_view(graph, normed, SHAPE(r->B, r->config->n_channels), 0, "last")
                             : op_gather(graph, normed, decode->rows); /* (B,C) */
    Tensor *logits = record_logits(r, last);
    decode->logits = logits;
    if (r->dtype != DTYPE_F32) { /* the sampler's */
        decode->logits = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, logits->shape, "logits");
        op_copy_into(graph, logits, decode->logits, WRITE_FRESH);
    }
}

/* What sparse attention goes by: documents of the new tokens are found once for all stages. */
static void record_masks(GptWriter *r, const GptStage *stage, GptDecode *decode) {
    bool is_cached = r->capacity && r->config->document_mask;
    if (!is_cached) {
        if (!r->caches) writer_record_masks(r, decode->tokens, stage->first_block, stage->end_block);
        return;
    }
    if (!decode->documents.starts)
        decode->documents =
            op_document_starts_cached(r->graph, decode->tokens, decode->start, decode->next_documents,
                                      (int32_t)r->config->document_end);
    r->masks.documents = decode->documents;
}

Tensor *gpt_record_decode_stage(const ModelConfig *config, Graph *graph, const GptDecodeOptions *options,
                                const GptStage *stage, Tensor *input, GptDecode *decode) {
    GptPart part = {.r = decode_writer(config, graph, options), .x = {.sum = input}};
    part.r.parameters = decode->parameters;
    part.r.start = decode->start;
    part.r.caches = decode->caches;
    part.r.n_cached = decode->n_cached;
    part.r.depth = (GptDepth){.counts = decode->counts, .n_counted = decode->n_counted};
    record_masks(&part.r, stage, decode);
    if (stage->has_embedding) gpt_record_embeddings(&part, 1, decode->tokens);
    gpt_record_blocks(&part, 1, stage->first_block, stage->end_block);
    decode->n_cached = part.r.n_cached;
    decode->n_counted = part.r.depth.n_counted;
    if (!stage->has_head) return part.x.sum;
    record_prediction(&part.r, &part.x, decode);
    return NULL;
}

GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                            const GptDecodeOptions *options) {
    GptStage whole = gpt_whole(config);
    GptDecode decode = gpt_begin_decode(config, table, graph, options, &whole, 1);
    gpt_record_decode_stage(config, graph, options, &whole, NULL, &decode);
    return decode;
}
