/* The model, top to bottom.
 *
 *     x = wte[token] + wpe[position]                                  (B,T,C)
 *     for each block:
 *         x = x + W_out · attention(W_qkv · norm1(x))
 *         x = x + W_proj · gelu(W_fc · norm2(x))
 *     logits = W_head · norm_f(x)                                     (B,T,V)
 *
 * as in GPT-2: norms before their branch, learned positions, the token table as head. The options turn it
 * towards Llama: rmsnorm, rotary positions, SwiGLU, fewer key/value heads, no biases.
 *
 * Residual additions are part of the linear layer that feeds them. Where dropout stands between, dropout and
 * addition wait for the norm that follows, and the three are one operation.
 *
 * What a branch is made of is in gpt_layers.c, which also knows how layers are split among ranks; attention
 * is in gpt_attention.c, experts in the place of the MLP in gpt_experts.c, blocks that some positions go by
 * in gpt_depth.c, the head in gpt_head.c, generation in gpt_decode.c. */
#include "model/gpt_writer.h"

Tensor *layer_mlp(GptWriter *r, Tensor *h, int block) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    const ModelConfig *config = r->config;
    if (!writer_is_split_by_inputs(r) && !layer_parameter(r, ROLE_FC_WEIGHT, block)) return NULL;
    h = layer_linear(r, h, ROLE_FC_WEIGHT, ROLE_FC_BIAS, activations[config->mlp], block); /* (B,T,4C) */
    return config->mlp == MLP_SWIGLU ? op_swiglu(r->graph, h) : h;
}

/* (B,T) tokens to (B,T,C). */
static Tensor *record_embedding(GptWriter *r, Tensor *tokens) {
    ShardSpan span = writer_token_span(r);
    EmbeddingAttributes attributes = {.positions = r->positions,
                                      .first_token = span.first,
                                      .n_tokens = span.n,
                                      .n_all = r->config->vocabulary};
    return op_embedding_part(r->graph, tokens, layer_parameter(r, ROLE_TOKEN_TABLE, NO_BLOCK),
                             layer_parameter(r, ROLE_POSITION_TABLE, NO_BLOCK), writer_start(r), &attributes);
}

/* The same of all parts, or this rank's rows of it: where their streams begin. */
void gpt_record_embeddings(GptPart *parts, int n_parts, Tensor *tokens) {
    for (int i = 0; i < n_parts; i++) {
        GptWriter *r = &parts[i].r;
        Tensor *own = n_parts == 1 ? tokens
                                   : graph_view(r->graph, tokens, SHAPE(r->B, r->T), r->first_sequence * r->T,
                                                "tokens.part");
        parts[i].leaving = layer_leave(r, record_embedding(r, own));
    }
    for (int i = 0; i < n_parts; i++) {
        GptWriter *r = &parts[i].r;
        Tensor *embedded = op_parallel_finish(r->graph, &parts[i].leaving);
        int site = layer_dropout_site(NO_BLOCK, SITE_EMBEDDING);
        parts[i].x = (GptStream){.sum = layer_dropout(r, embedded, site)};
    }
}

/* A block is two halves, attention and MLP, each
 *
 *     begin     the norm, and on the way into the split layers
 *     branch    the first of them, and what is between
 *     project   the second, and on the way out
 *     end       the addition to the stream
 */
static const struct {
    ParameterRole norm_weight, norm_bias, weight, bias;
    int site;
} halves[] = {
    {ROLE_NORM1_WEIGHT, ROLE_NORM1_BIAS, ROLE_ATTENTION_OUT_WEIGHT, ROLE_ATTENTION_OUT_BIAS,
     SITE_ATTENTION_OUT},
    {ROLE_NORM2_WEIGHT, ROLE_NORM2_BIAS, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, SITE_MLP_OUT},
};

static void begin_half(GptPart *part, int half) {
    GptWriter *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    if (kind == 0) layer_caches(r, block);
    part->entering = layer_enter_branch(
        r, layer_norm(r, &part->x, halves[kind].norm_weight, halves[kind].norm_bias, block));
    /* To their experts while another part is computed; where layers are split, it is not all here yet. */
    if (kind == 1 && layer_exchanges_experts(r, block) && !writer_is_split(r))
        layer_experts_begin(r, &part->experts, part->entering.y, block);
}

static void branch_half(GptPart *part, int half) {
    GptWriter *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    part->entered = op_parallel_finish(r->graph, &part->entering);
    if (kind == 0) part->branch = layer_attention(r, part->entered, block);
    else if (config_has_experts(r->config, block))
        part->branch = layer_experts(r, &part->experts, part->entered, block);
    else part->branch = layer_mlp(r, part->entered, block);
}

/* What a branch's layer may add to what it makes: the stream, or what the branches before it have made. */
static Tensor *added_so_far(const GptPart *part) {
    return part->r.adds_apart ? part->made : part->x.sum;
}

static void project_half(GptPart *part, int half) {
    GptWriter *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    Tensor *residual = writer_is_fused(r) ? added_so_far(part) : NULL, *y = part->branch;
    if (part->experts.is_under_way) {
        if (!writer_is_split(r)) return; /* they come back while another part is computed */
        y = layer_experts_end(r, &part->experts, block);
    }
    if (kind == 0 || !config_has_experts(r->config, block))
        y = layer_projection(r, y, part->entered, halves[kind].weight, halves[kind].bias, residual, block);
    else if (residual) y = op_add(r->graph, residual, y); /* experts end with their sum */
    part->leaving = layer_leave_branch(r, y);
}

static void end_half(GptPart *part, int half) {
    GptWriter *r = &part->r;
    r->graph->block = half / 2;
    Tensor *y;
    if (part->experts.is_under_way) {
        y = layer_experts_end(r, &part->experts, half / 2);
        if (writer_is_fused(r)) y = op_add(r->graph, added_so_far(part), y);
    } else y = op_parallel_finish(r->graph, &part->leaving);
    if (r->adds_apart) depth_residual(part, y, half / 2, halves[half % 2].site);
    else layer_residual(r, &part->x, y, half / 2, halves[half % 2].site);
}

/* Halves first .. end - 1 of blocks, of all parts in turn. Between two layers of a part, the one before it
 * leaves its half and enters the next: it goes out while the first is computed, and in while the second is.
 *
 *     part 0   project, out           end, begin, in            branch         ...
 *     part 1                  branch                  project, out     end, begin, in */
void gpt_record_halves(GptPart *parts, int n_parts, int first, int end) {
    int n_runs = (end - first) * n_parts, lag = n_parts > 1 ? 1 : 0;
    for (int i = 0; i < n_parts; i++) begin_half(&parts[i], first);
    for (int i = 0; i < n_runs + lag; i++) {
        int half = first + i / n_parts, half_before = first + (i - lag) / n_parts;
        GptPart *part = &parts[i % n_parts], *before = &parts[(i - lag + n_parts) % n_parts];
        if (i < n_runs) branch_half(part, half);
        if (i < n_runs && !lag) project_half(part, half);
        if (i >= lag) end_half(before, half_before);
        if (i >= lag && half_before + 1 < end) begin_half(before, half_before + 1);
        if (i < n_runs && lag) project_half(part, half);
    }
}

/* Blocks first .. end - 1. Parts meet where there is a router, too: its messages are few. */
static void record_run(GptPart *parts, int n_parts, int first, int end) {
    const ModelConfig *config = parts[0].r.config;
    for (int from = first, to; from < end; from = to) {
        for (to = from; to < end && !config_is_depth_block(config, to);) to++;
        if (to > from) gpt_record_halves(parts, n_parts, 2 * from, 2 * to);
        for (int i = 0; to < end && i < n_parts; i++) gpt_record_depth(&parts[i], to);
        to += to < end;
    }
}

/* Parts meet where activations are forgotten from (a segment), or after every block, where its weights are
 * gathered. */
void gpt_record_blocks(GptPart *parts, int n_parts, int first, int end) {
    const GptWriter *r = &parts[0].r;
    int together = r->segment ? (int)r->segment : r->split.by_block || n_parts == 1 ? 1 : end;
    int alone =
        r->n_alone ? first + (int)r->n_alone : first - 1; /* the last border of segments of one block */
    for (int from = first, to; from < end; from = to) {
        to = from < alone ? from + 1 : (from / together + 1) * together;
        if (to > end) to = end;
        bool is_border = from <= alone || (r->segment && from % r->segment == 0);
        for (int i = 0; is_border && i < n_parts; i++) layer_border(&parts[i].r, &parts[i].x);
        record_run(parts, n_parts, from, to);
    }
    r->graph->block = NO_BLOCK;
}
int gpt_n_parts(const GptLossOptions *options) {
    const GptSplit *split = &options->split;
    bool is_split = split->tp && split->tp->size > 1, exchanges = split->ep && !split->has_same_rows;
    if (!(is_split || exchanges) || split->style != TENSOR_COLUMN || split->n_parts < 2) return 1;
    return (int)(split->n_parts < options->B ? split->n_parts : options->B);
}

/* What the host writes before a stage runs, and where its loss goes. */
static GptLoss record_places(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                             const GptLossOptions *options, const GptStage *stage) {
    int64_t B = options->B, T = gpt_rows(&options->split, options->T).n;
    GptLoss loss = {0};
    loss.parameters = options->parameters
                          ? *options->parameters
                          : parameters_record(table, graph, options->dtype, options->is_training);
    if (stage->has_embedding)
        loss.tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, T), "tokens");
    if (config->document_mask && (!stage->has_embedding || T != options->T))
        loss.sequences = options->sequences
                             ? options->sequences
                             : graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, options->T), "sequences");
    if (stage->has_head) {
        loss.targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B * T), "targets");
        loss.loss = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "loss");
        loss.losses = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(B * T), "losses");
    }
    int n_depths = config_n_depth_blocks(config, stage->first_block, stage->end_block);
    if (options->is_training && (config->dropout > 0.0 || config->n_experts || n_depths))
        loss.random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32,
                                   SHAPE(gpt_n_parts(options) * N_RANDOM_WORDS), "random");
    if (options->is_training && options->scales_loss)
        loss.scale = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(1), "loss scale");
    if (options->is_training && n_depths)
        loss.depth = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(N_DEPTH_NUMBERS), "depth");
    if (options->is_training)
        loss.reports = options->reports ? options->reports : gpt_record_reports(config, table, graph);
    return loss;
}

GptStage gpt_whole(const ModelConfig *config) {
    return (GptStage){.end_block = (int)config->n_layers, .has_embedding = true, .has_head = true};
}

/* Of the residual stream. */
static Shape stream_shape(const GptWriter *r) {
    int64_t channels = r->config->n_channels;
    if (!writer_is_split(r) || !r->split.by_sequence) return SHAPE(r->B, r->T, channels);
    ShardSpan rows = shard_span(r->B * r->T, r->split.tp->size, r->split.tp->rank);
    return SHAPE(rows.n, channels);
}

static GptWriter loss_writer(const ModelConfig *config, const GptLossOptions *options, int n_parts,
                             int part) {
    ShardSpan span = shard_span(options->B, n_parts, part);
    GptWriter r = {.config = config,
                   .B = span.n,
                   .n_positions = options->T,
                   .first_sequence = span.first,
                   .segment = options->recompute,
                   .n_alone = options->recompute_first};
    GptSplit split = options->split;
    split.n_parts = n_parts;
    writer_set_split(&r, &split);
    return r;
}

Shape gpt_stream_shape(const ModelConfig *config, const GptLossOptions *options) {
    GptWriter r = loss_writer(config, options, 1, 0);
    return stream_shape(&r);
}

static GptPart *record_parts(const ModelConfig *config, Graph *graph, const GptLossOptions *options,
                             const GptLoss *loss, int n_parts) {
    GptPart *parts = ARENA_ARRAY(&graph->arena, GptPart, n_parts);
    GptDepth depth = {.report = loss->depth, .n_recorded = ARENA_NEW(&graph->arena, int)};
    for (int i = 0; i < n_parts; i++) {
        GptWriter *r = &parts[i].r;
        *r = loss_writer(config, options, n_parts, i);
        r->graph = graph;
        r->parameters = loss->parameters;
        r->words = loss->random;
        if (n_parts > 1 && loss->random)
            r->words = graph_view(graph, loss->random, SHAPE(N_RANDOM_WORDS), (int64_t)i * N_RANDOM_WORDS,
                                  "random.part");
        r->random = options->is_training && config->dropout > 0.0 ? r->words : NULL;
        r->scale = loss->scale;
        r->reports = loss->reports;
        r->loss_scale = options->loss_scale;
        r->is_training = options->is_training;
        r->depth = depth;
    }
    return parts;
}

/* What the parts' sparse attention goes by, from the tokens of all positions. */
static void record_masks(GptPart *parts, int n_parts, const GptLoss *loss, const GptStage *stage) {
    Tensor *sequences = loss->sequences ? loss->sequences : loss->tokens;
    for (int i = 0; i < n_parts; i++) {
        GptWriter *r = &parts[i].r;
        Tensor *own = sequences;
        if (n_parts > 1 && r->config->document_mask)
            own = graph_view(r->graph, sequences, SHAPE(r->B, r->n_positions),
                             r->first_sequence * r->n_positions, "sequences.part");
        writer_record_masks(r, own, stage->first_block, stage->end_block);
    }
}

GptStageTensors gpt_record_stage(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                 const GptLossOptions *options, const GptStage *stage, Tensor *input) {
    GptStageTensors tensors = {.loss = record_places(config, table, graph, options, stage), .input = input};
    int n_parts = gpt_n_parts(options);
    GptPart *parts = record_parts(config, graph, options, &tensors.loss, n_parts);
    graph_check(graph, n_parts == 1 || (stage->has_embedding && stage->has_head),
                "a stage of a pipeline passes on all of a micro-batch, not %d parts of it", n_parts);
    record_masks(parts, n_parts, &tensors.loss, stage);
    if (stage->has_embedding) {
        gpt_record_embeddings(parts, n_parts, tensors.loss.tokens);
    } else if (!input) {
        tensors.input = graph_tensor(graph, PLACE_INPUT, options->dtype, stream_shape(&parts[0].r), "stream");
        tensors.input->needs_gradient = options->is_training;
    }
    if (!stage->has_embedding) parts[0].x.sum = tensors.input;
    tensors.embedded = parts[0].x.sum;
    gpt_record_blocks(parts, n_parts, stage->first_block, stage->end_block);
    if (stage->has_head) {
        gpt_record_heads(parts, n_parts, options, &tensors.loss);
    } else {
        layer_border(&parts[0].r, &parts[0].x);
        tensors.output = parts[0].x.sum;
    }
    return tensors;
}

GptLoss gpt_record_loss(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                        const GptLossOptions *options) {
    GptStage whole = gpt_whole(config);
    return gpt_record_stage(config, table, graph, options, &whole, NULL).loss;
}
