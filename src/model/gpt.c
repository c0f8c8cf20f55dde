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
 * Where the layers are split among ranks, every branch is entered and left by communication: `enter` in front
 * of a layer that is split by columns, `leave` behind one that is split by rows. What is added once to the
 * sum that `leave` makes (a bias, the positions) is the first rank's. */
#include "model/gpt.h"

#include "ops/ops.h"
#include "parallel/conjugate.h"

#include <math.h>

/* What the pieces of one recording share. */
typedef struct {
    const ModelConfig *config;
    Graph *graph;
    ParameterTensors parameters;
    Tensor *random;                  /* NULL: no dropout */
    Tensor *start;                   /* NULL: sequences start at position 0 */
    Tensor *caches;                  /* of all blocks, keys before values; NULL: attention within the batch */
    int first_slot, first_block;     /* where in them those of this block are, and of the ones behind it */
    Tensor *key_cache, *value_cache; /* of the block being recorded */
    int64_t B, T, capacity;
    GptSplit split;
    ShardHeads heads; /* of this rank */
    RowSplit rows;    /* of the residual stream that are here; {0}: all */
    int64_t segment;  /* blocks whose activations are forgotten and made again together; 0: all are kept */
    DType dtype;
} Writer;

/* The residual stream: the sum of everything so far, but for a branch that dropout and its addition are still
 * due for. */
typedef struct {
    Tensor *sum;
    Tensor *branch; /* NULL: none */
    int site;       /* of the branch's dropout */
} Stream;

/* Where dropout happens; together with the block it names a random stream. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITES_PER_BLOCK };

static int dropout_site(int block, int site) {
    return (block + 1) * SITES_PER_BLOCK + site;
}

/* NULL if the model has none, or this rank. */
static Tensor *parameter(const Writer *r, ParameterRole role, int block) {
    Tensor *tensor = parameter_tensor(&r->parameters, role, block);
    return tensor && tensor_count(tensor) > 0 ? tensor : NULL;
}

static bool is_split(const Writer *r) {
    return r->split.tp && r->split.tp->size > 1;
}

/* What this rank has of the model. */
static void set_split(Writer *r, const GptSplit *split) {
    r->split = *split;
    int n_ranks = is_split(r) ? split->tp->size : 1, rank = is_split(r) ? split->tp->rank : 0;
    r->heads = shard_heads(r->config, n_ranks, rank);
    if (!is_split(r) || !split->by_sequence) return;
    int64_t first = shard_span(r->B * r->T, n_ranks, rank).first;
    r->rows = (RowSplit){.first = first, .length = r->T, .head = r->T};
}

/* In front of layers that the ranks share: all rows of x, on every rank. */
static Tensor *enter(Writer *r, Tensor *x) {
    if (!is_split(r)) return x;
    if (!r->split.by_sequence) return op_parallel_copy(r->graph, r->split.tp, x);
    Shape shape = SHAPE(r->B, r->T, r->config->n_channels);
    return op_parallel_all_gather(r->graph, r->split.tp, x, shape, NULL);
}

/* Behind them: the sum of what the ranks have made of x; all of it, or this rank's rows. */
static Tensor *leave(Writer *r, Tensor *x) {
    if (!is_split(r)) return x;
    return r->split.by_sequence ? op_parallel_reduce_scatter(r->graph, r->split.tp, x, NULL)
                                : op_parallel_sum(r->graph, r->split.tp, x);
}

static Tensor *record_dropout(Writer *r, Tensor *x, int site) {
    if (!r->random) return x;
    DropoutAttributes attributes = {(float)r->config->dropout, site, r->rows};
    return op_dropout_split(r->graph, x, r->random, &attributes);
}

static Tensor *record_norm(Writer *r, Stream *x, ParameterRole weight, ParameterRole bias, int block) {
    bool has_mean = r->config->norm != NORM_RMSNORM;
    Tensor *w = parameter(r, weight, block), *b = has_mean ? parameter(r, bias, block) : NULL;
    if (x->branch) {
        ResidualNormAttributes attributes = {.epsilon = NORM_EPSILON,
                                             .has_mean = has_mean,
                                             .probability = (float)r->config->dropout,
                                             .site = x->site,
                                             .rows = r->rows};
        ResidualNorm both = op_residual_norm(r->graph, x->sum, x->branch, w, b, r->random, &attributes);
        *x = (Stream){.sum = both.sum};
        return both.normed;
    }
    return has_mean ? op_layernorm(r->graph, x->sum, w, b, NORM_EPSILON)
                    : op_rmsnorm(r->graph, x->sum, w, NORM_EPSILON);
}

/* W · branch, from what this rank has of both; NULL: nothing, of what it has entered. */
static Tensor *record_projection(Writer *r, Tensor *branch, Tensor *entered, ParameterRole weight,
                                 ParameterRole bias, Tensor *residual, int block) {
    if (!branch) return op_blank(r->graph, entered, SHAPE(r->B, r->T, r->config->n_channels));
    return op_linear(r->graph, branch, parameter(r, weight, block), parameter(r, bias, block), residual,
                     ACTIVATION_NONE);
}

/* x + dropout(W · branch) */
static void record_residual(Writer *r, Stream *x, Tensor *branch, Tensor *entered, ParameterRole weight,
                            ParameterRole bias, int block, int site) {
    bool is_fused = !r->random && !is_split(r); /* the addition is part of the linear layer */
    Tensor *y = record_projection(r, branch, entered, weight, bias, is_fused ? x->sum : NULL, block);
    y = leave(r, y);
    if (r->random) {
        x->branch = y;
        x->site = dropout_site(block, site);
    } else if (is_fused) {
        x->sum = y;
    } else {
        x->sum = op_add(r->graph, x->sum, y);
        x->sum->name =
            arena_printf(&r->graph->arena, "h.%d.stream%d", block, site); /* not of all that it sums */
    }
}

/* What is forgotten block by block is made again from what crosses the border between blocks: that is to be
 * one tensor. */
static void record_border(Writer *r, Stream *x) {
    if (!x->branch) return;
    *x = (Stream){.sum = op_add(r->graph, x->sum, record_dropout(r, x->branch, x->site))};
}

/* Attention of this rank's heads of h (B,T,C); NULL: it has none. */
static Tensor *record_heads(Writer *r, Tensor *h, int block) {
    const ModelConfig *config = r->config;
    int head_size = (int)config_head_size(config), n_heads = (int)r->heads.query.n,
        n_kv_heads = (int)r->heads.key.n;
    if (!n_heads) return NULL;
    Tensor *qkv =
        op_linear(r->graph, h, parameter(r, ROLE_QKV_WEIGHT, block), parameter(r, ROLE_QKV_BIAS, block), NULL,
                  ACTIVATION_NONE); /* (B,T,(NH+2·NKV)·HS) */
    if (config->position == POSITION_ROTARY) {
        RotaryAttributes rotary = {.n_heads = n_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .head_size = head_size,
                                   .theta = (float)config->rotary_theta};
        qkv = op_rotary(r->graph, qkv, r->start, &rotary);
    }
    AttentionAttributes attention = {.n_heads = n_heads,
                                     .n_kv_heads = n_kv_heads,
                                     .head_size = head_size,
                                     .scale = 1.0f / sqrtf((float)head_size),
                                     .dropout = r->random ? (float)config->dropout : 0.0f,
                                     .site = dropout_site(block, SITE_ATTENTION),
                                     .first_head = (int)r->heads.query.first};
    return r->key_cache
               ? op_attention_cached(r->graph, qkv, r->start, r->key_cache, r->value_cache, &attention)
               : op_attention(r->graph, qkv, r->random, &attention); /* (B,T,NH·HS) */
}

static void record_attention(Writer *r, Stream *x, int block) {
    Tensor *h = enter(r, record_norm(r, x, ROLE_NORM1_WEIGHT, ROLE_NORM1_BIAS, block));
    record_residual(r, x, record_heads(r, h, block), h, ROLE_ATTENTION_OUT_WEIGHT, ROLE_ATTENTION_OUT_BIAS,
                    block, SITE_ATTENTION_OUT);
}

/* This rank's hidden channels of h (B,T,C); NULL: it has none. */
static Tensor *record_hidden(Writer *r, Tensor *h, int block) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    const ModelConfig *config = r->config;
    Tensor *weight = parameter(r, ROLE_FC_WEIGHT, block);
    if (!weight) return NULL;
    h = op_linear(r->graph, h, weight, parameter(r, ROLE_FC_BIAS, block), NULL,
                  activations[config->mlp]); /* (B,T,4C) */
    return config->mlp == MLP_SWIGLU ? op_swiglu(r->graph, h) : h;
}

static void record_mlp(Writer *r, Stream *x, int block) {
    Tensor *h = enter(r, record_norm(r, x, ROLE_NORM2_WEIGHT, ROLE_NORM2_BIAS, block));
    record_residual(r, x, record_hidden(r, h, block), h, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, block,
                    SITE_MLP_OUT);
}

/* Views of one tensor, as parameters are, so that an operation that works on many of them can name them
 * all. */
static void record_caches(Writer *r, int block) {
    if (!r->caches) return;
    int64_t slot = r->first_slot + block - r->first_block, n_heads = r->heads.key.n;
    Shape shape = SHAPE(r->B, n_heads, r->capacity, config_head_size(r->config));
    const char *keys = arena_printf(&r->graph->arena, "h.%d.keys", block);
    const char *values = arena_printf(&r->graph->arena, "h.%d.values", block);
    r->key_cache = graph_view(r->graph, r->caches, shape, 2 * slot * shape_count(shape), keys);
    r->value_cache = graph_view(r->graph, r->caches, shape, (2 * slot + 1) * shape_count(shape), values);
}

/* The tokens of the vocabulary that this rank has rows of, in either table. */
static ShardSpan token_span(const Writer *r) {
    const Parameter *table = parameter_find(r->parameters.table, ROLE_TOKEN_TABLE, NO_BLOCK);
    if (!table) table = parameter_find(r->parameters.table, ROLE_HEAD_WEIGHT, NO_BLOCK);
    if (!table->shard.n_boxes) return (ShardSpan){0};
    return (ShardSpan){table->shard.box[0].box.offset[0], table->shard.box[0].box.shape.dim[0]};
}

/* (B,T) tokens to (B,T,C), or to this rank's rows of it. */
static Stream record_embedding(Writer *r, Tensor *tokens) {
    ShardSpan span = token_span(r);
    EmbeddingAttributes attributes = {
        .first_token = span.first, .n_tokens = span.n, .n_all = r->config->vocabulary};
    Tensor *embedded = op_embedding_part(r->graph, tokens, parameter(r, ROLE_TOKEN_TABLE, NO_BLOCK),
                                         parameter(r, ROLE_POSITION_TABLE, NO_BLOCK), r->start, &attributes);
    return (Stream){.sum = record_dropout(r, leave(r, embedded), dropout_site(NO_BLOCK, SITE_EMBEDDING))};
}

static void record_blocks(Writer *r, Stream *x, int first, int end) {
    for (int block = first; block < end; block++) {
        if (r->segment && block % r->segment == 0) record_border(r, x);
        r->graph->block = block;
        record_caches(r, block);
        record_attention(r, x, block);
        record_mlp(r, x, block);
    }
    r->graph->block = NO_BLOCK;
}

static Tensor *head_weight(const Writer *r) {
    return parameter(r, r->config->tied ? ROLE_TOKEN_TABLE : ROLE_HEAD_WEIGHT, NO_BLOCK);
}

/* Logits are by far the largest activation; the device says how many bytes of them at a time keep GEMMs
 * efficient. */
static int64_t chosen_chunk_rows(const GptLossOptions *options, int64_t n_classes) {
    enum { FEWEST_ROWS = 64, MOST_CHUNKS = 1024 };
    const BackendTraits *traits = options->traits ? options->traits : &TRAITS_HOST;
    size_t a_number = dtype_info(options->dtype)->n_bytes;
    if (a_number < traits->loss_number_bytes) a_number = traits->loss_number_bytes;
    int64_t n_rows = options->B * options->T;
    int64_t rows = (int64_t)(traits->loss_chunk_bytes / a_number) / (n_classes > 0 ? n_classes : 1);
    if (rows < FEWEST_ROWS) rows = FEWEST_ROWS;
    int64_t n_chunks = (n_rows + rows - 1) / rows;
    if (n_chunks > MOST_CHUNKS) n_chunks = MOST_CHUNKS; /* each is a few instructions of the program */
    return (n_rows + n_chunks - 1) / n_chunks;
}

/* Logits of these rows and their losses. A rank that has a part of the vocabulary learns what the loss needs
 * to know of the rest: three numbers a row from every rank. */
static void record_entropy(Writer *r, Tensor *x, Tensor *targets, Tensor *losses, ShardSpan span,
                           float gradient_scale, Tensor *scale) {
    Graph *graph = r->graph;
    Tensor *logits = op_linear(graph, x, head_weight(r), NULL, NULL, ACTIVATION_NONE); /* (rows,V or more) */
    if (!is_split(r)) {
        CrossEntropyAttributes entropy = {gradient_scale, span.n};
        op_cross_entropy_scaled(graph, logits, targets, scale, losses, &entropy);
        return;
    }
    SplitEntropyAttributes entropy = {gradient_scale, span.first, span.n, r->config->vocabulary};
    Tensor *part = op_split_entropy_part(graph, logits, targets, &entropy);
    Shape shape = SHAPE(r->split.tp->size, tensor_count(targets), ENTROPY_PARTS);
    Tensor *parts = op_parallel_join(graph, r->split.tp, part, shape, NULL);
    op_split_entropy(graph, logits, targets, parts, scale, losses, &entropy);
}

/* The head and the loss of x (B,T,C), by chunks of rows. */
static void record_head(Writer *r, Tensor *x, const GptLossOptions *options, GptLoss *loss) {
    Graph *graph = r->graph;
    ShardSpan span = token_span(r);
    int64_t n_rows = options->B * options->T, channels = r->config->n_channels;
    int64_t chunk =
        options->loss_chunk_tokens ? options->loss_chunk_tokens : chosen_chunk_rows(options, span.n);
    float scale = (float)options->loss_scale;
    for (int64_t first = 0; first < n_rows; first += chunk) {
        int64_t rows = n_rows - first < chunk ? n_rows - first : chunk;
        Tensor *x_rows = graph_view(graph, x, SHAPE(rows, channels), first * channels, "ln_f.rows");
        Tensor *target_rows = graph_view(graph, loss->targets, SHAPE(rows), first, "targets.rows");
        Tensor *loss_rows = graph_view(graph, loss->losses, SHAPE(rows), first, "losses.rows");
        record_entropy(r, x_rows, target_rows, loss_rows, span, scale, loss->scale);
    }
    op_sum(graph, loss->losses, loss->loss, scale);
}

/* What the host writes before a stage runs, and where its loss goes. */
static GptLoss record_places(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                             const GptLossOptions *options, const GptStage *stage) {
    int64_t B = options->B, T = options->T;
    GptLoss loss = {0};
    loss.parameters = options->parameters
                          ? *options->parameters
                          : parameters_record(table, graph, options->dtype, options->is_training);
    if (stage->has_embedding)
        loss.tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, T), "tokens");
    if (stage->has_head) {
        loss.targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B * T), "targets");
        loss.loss = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "loss");
        loss.losses = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(B * T), "losses");
    }
    if (options->is_training && config->dropout > 0.0)
        loss.random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(N_RANDOM_WORDS), "random");
    if (options->is_training && options->scales_loss)
        loss.scale = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(1), "loss scale");
    return loss;
}

GptStage gpt_whole(const ModelConfig *config) {
    return (GptStage){.end_block = (int)config->n_layers, .has_embedding = true, .has_head = true};
}

/* Of the residual stream. */
static Shape stream_shape(const Writer *r) {
    int64_t channels = r->config->n_channels;
    if (!r->rows.length) return SHAPE(r->B, r->T, channels);
    ShardSpan rows = shard_span(r->B * r->T, r->split.tp->size, r->split.tp->rank);
    return SHAPE(rows.n, channels);
}

static Writer loss_writer(const ModelConfig *config, const GptLossOptions *options) {
    Writer r = {.config = config, .B = options->B, .T = options->T, .segment = options->recompute};
    set_split(&r, &options->split);
    return r;
}

Shape gpt_stream_shape(const ModelConfig *config, const GptLossOptions *options) {
    Writer r = loss_writer(config, options);
    return stream_shape(&r);
}

GptStageTensors gpt_record_stage(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                 const GptLossOptions *options, const GptStage *stage, Tensor *input) {
    GptStageTensors tensors = {.loss = record_places(config, table, graph, options, stage), .input = input};
    Writer r = loss_writer(config, options);
    r.graph = graph;
    r.parameters = tensors.loss.parameters;
    r.random = tensors.loss.random;
    Stream x = {.sum = input};
    if (stage->has_embedding) {
        x = record_embedding(&r, tensors.loss.tokens);
    } else if (!input) {
        tensors.input = graph_tensor(graph, PLACE_INPUT, options->dtype, stream_shape(&r), "stream");
        tensors.input->needs_gradient = options->is_training;
        x.sum = tensors.input;
    }
    tensors.embedded = x.sum;
    record_blocks(&r, &x, stage->first_block, stage->end_block);
    if (!stage->has_head) {
        record_border(&r, &x);
        tensors.output = x.sum;
        return tensors;
    }
    Tensor *normed = record_norm(&r, &x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK);
    record_head(&r, enter(&r, normed), options, &tensors.loss);
    return tensors;
}

GptLoss gpt_record_loss(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                        const GptLossOptions *options) {
    GptStage whole = gpt_whole(config);
    return gpt_record_stage(config, table, graph, options, &whole, NULL).loss;
}

/* (B,V) logits of x (B,C); where each rank has some of them, what all have put together. */
static Tensor *record_logits(Writer *r, Tensor *x) {
    Graph *graph = r->graph;
    ShardSpan span = token_span(r);
    Tensor *head = graph_view(graph, head_weight(r), SHAPE(span.n, r->config->n_channels), 0,
                              "head"); /* without the rows that pad it */
    Tensor *logits = op_linear(graph, x, head, NULL, NULL, ACTIVATION_NONE);
    if (!is_split(r)) return logits;
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

static Writer decode_writer(const ModelConfig *config, Graph *graph, const GptDecodeOptions *options) {
    Writer r = {.config = config,
                .graph = graph,
                .B = options->B,
                .T = options->T,
                .capacity = options->capacity,
                .dtype = options->dtype};
    set_split(&r, &(GptSplit){.tp = options->split.tp});
    return r;
}

GptDecode gpt_begin_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                           const GptDecodeOptions *options, int n_blocks) {
    int64_t B = options->B;
    Writer r = decode_writer(config, graph, options);
    GptDecode decode = {.parameters = parameters_record(table, graph, options->dtype, false)};
    decode.tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, options->T), "tokens");
    decode.start = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "start");
    decode.rows = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "rows");
    if (!r.capacity || !r.heads.key.n) return decode;
    Shape all = SHAPE((int64_t)2 * n_blocks, B * r.heads.key.n, r.capacity, config_head_size(config));
    decode.caches = graph_tensor(graph, PLACE_STATE, r.dtype, all, "caches");
    return decode;
}

/* The last norm and the logits of one row of each sequence of x (B,T,C). */
static void record_prediction(Writer *r, Stream *x, GptDecode *decode) {
    Graph *graph = r->graph;
    Tensor *normed = record_norm(r, x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK);
    Tensor *last = r->T == 1 ? graph_view(graph, normed, SHAPE(r->B, r->config->n_channels), 0, "last")
                             : op_gather(graph, normed, decode->rows); /* (B,C) */
    Tensor *logits = record_logits(r, last);
    decode->logits = logits;
    if (r->dtype != DTYPE_F32) { /* the sampler's */
        decode->logits = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, logits->shape, "logits");
        op_copy_into(graph, logits, decode->logits, WRITE_FRESH);
    }
}

Tensor *gpt_record_decode_stage(const ModelConfig *config, Graph *graph, const GptDecodeOptions *options,
                                const GptStage *stage, Tensor *input, GptDecode *decode) {
    Writer r = decode_writer(config, graph, options);
    r.parameters = decode->parameters;
    r.start = decode->start;
    r.caches = decode->caches;
    r.first_slot = decode->n_blocks;
    r.first_block = stage->first_block;
    Stream x = stage->has_embedding ? record_embedding(&r, decode->tokens) : (Stream){.sum = input};
    record_blocks(&r, &x, stage->first_block, stage->end_block);
    decode->n_blocks += stage->end_block - stage->first_block;
    if (!stage->has_head) return x.sum;
    record_prediction(&r, &x, decode);
    return NULL;
}

GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                            const GptDecodeOptions *options) {
    GptStage whole = gpt_whole(config);
    GptDecode decode = gpt_begin_decode(config, table, graph, options, whole.end_block);
    gpt_record_decode_stage(config, graph, options, &whole, NULL, &decode);
    return decode;
}
