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
 * addition wait for the norm that follows, and the three are one operation. */
#include "model/gpt.h"

#include "ops/ops.h"

#include <math.h>

/* What the pieces of one recording share. */
typedef struct {
    const ModelConfig *config;
    Graph *graph;
    ParameterTensors parameters;
    Tensor *random;                  /* NULL: no dropout */
    Tensor *start;                   /* NULL: sequences start at position 0 */
    Tensor *caches;                  /* of all blocks, keys before values; NULL: attention within the batch */
    Tensor *key_cache, *value_cache; /* of the block being recorded */
    int64_t B, capacity;
    int64_t segment; /* blocks whose activations are forgotten and made again together; 0: all are kept */
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

static Tensor *parameter(const Writer *r, ParameterRole role, int block) {
    return parameter_tensor(&r->parameters, role, block);
}

static Tensor *record_dropout(Writer *r, Tensor *x, int site) {
    if (!r->random) return x;
    return op_dropout(r->graph, x, r->random, (float)r->config->dropout, site);
}

static Tensor *record_norm(Writer *r, Stream *x, ParameterRole weight, ParameterRole bias, int block) {
    bool has_mean = r->config->norm != NORM_RMSNORM;
    Tensor *w = parameter(r, weight, block), *b = has_mean ? parameter(r, bias, block) : NULL;
    if (x->branch) {
        ResidualNormAttributes attributes = {.epsilon = NORM_EPSILON,
                                             .has_mean = has_mean,
                                             .probability = (float)r->config->dropout,
                                             .site = x->site};
        ResidualNorm both = op_residual_norm(r->graph, x->sum, x->branch, w, b, r->random, &attributes);
        *x = (Stream){.sum = both.sum};
        return both.normed;
    }
    return has_mean ? op_layernorm(r->graph, x->sum, w, b, NORM_EPSILON)
                    : op_rmsnorm(r->graph, x->sum, w, NORM_EPSILON);
}

/* x + dropout(W · branch) */
static void record_residual(Writer *r, Stream *x, Tensor *branch, ParameterRole weight, ParameterRole bias,
                            int block, int site) {
    Tensor *w = parameter(r, weight, block), *b = parameter(r, bias, block);
    if (r->random) {
        x->branch = op_linear(r->graph, branch, w, b, NULL, ACTIVATION_NONE);
        x->site = dropout_site(block, site);
    } else {
        x->sum = op_linear(r->graph, branch, w, b, x->sum, ACTIVATION_NONE);
    }
}

/* What is forgotten block by block is made again from what crosses the border between blocks: that is to be
 * one tensor. */
static void record_border(Writer *r, Stream *x) {
    if (!x->branch) return;
    *x = (Stream){.sum = op_add(r->graph, x->sum, record_dropout(r, x->branch, x->site))};
}

static void record_attention(Writer *r, Stream *x, int block) {
    const ModelConfig *config = r->config;
    int head_size = (int)config_head_size(config);
    Tensor *h = record_norm(r, x, ROLE_NORM1_WEIGHT, ROLE_NORM1_BIAS, block);
    Tensor *qkv =
        op_linear(r->graph, h, parameter(r, ROLE_QKV_WEIGHT, block), parameter(r, ROLE_QKV_BIAS, block), NULL,
                  ACTIVATION_NONE); /* (B,T,(NH+2·NKV)·HS) */
    if (config->position == POSITION_ROTARY) {
        RotaryAttributes rotary = {.n_heads = (int)config->n_heads,
                                   .n_kv_heads = (int)config->n_kv_heads,
                                   .head_size = head_size,
                                   .theta = (float)config->rotary_theta};
        qkv = op_rotary(r->graph, qkv, r->start, &rotary);
    }
    AttentionAttributes attention = {.n_heads = (int)config->n_heads,
                                     .n_kv_heads = (int)config->n_kv_heads,
                                     .head_size = head_size,
                                     .scale = 1.0f / sqrtf((float)head_size),
                                     .dropout = r->random ? (float)config->dropout : 0.0f,
                                     .site = dropout_site(block, SITE_ATTENTION)};
    Tensor *y = r->key_cache
                    ? op_attention_cached(r->graph, qkv, r->start, r->key_cache, r->value_cache, &attention)
                    : op_attention(r->graph, qkv, r->random, &attention); /* (B,T,C) */
    record_residual(r, x, y, ROLE_ATTENTION_OUT_WEIGHT, ROLE_ATTENTION_OUT_BIAS, block, SITE_ATTENTION_OUT);
}

static void record_mlp(Writer *r, Stream *x, int block) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    const ModelConfig *config = r->config;
    Tensor *h = record_norm(r, x, ROLE_NORM2_WEIGHT, ROLE_NORM2_BIAS, block);
    h = op_linear(r->graph, h, parameter(r, ROLE_FC_WEIGHT, block), parameter(r, ROLE_FC_BIAS, block), NULL,
                  activations[config->mlp]); /* (B,T,4C) */
    if (config->mlp == MLP_SWIGLU) h = op_swiglu(r->graph, h);
    record_residual(r, x, h, ROLE_PROJ_WEIGHT, ROLE_PROJ_BIAS, block, SITE_MLP_OUT);
}

/* Views of one tensor, as parameters are, so that an operation that works on many of them can name them
 * all. */
static void record_caches(Writer *r, int block) {
    if (!r->capacity) return;
    int64_t n_heads = r->config->n_kv_heads, head_size = config_head_size(r->config);
    Shape shape = SHAPE(r->B, n_heads, r->capacity, head_size);
    if (!r->caches) {
        Shape all = SHAPE(2 * r->config->n_layers, r->B * n_heads, r->capacity, head_size);
        r->caches = graph_tensor(r->graph, PLACE_STATE, r->dtype, all, "caches");
    }
    const char *keys = arena_printf(&r->graph->arena, "h.%d.keys", block);
    const char *values = arena_printf(&r->graph->arena, "h.%d.values", block);
    r->key_cache = graph_view(r->graph, r->caches, shape, 2 * block * shape_count(shape), keys);
    r->value_cache = graph_view(r->graph, r->caches, shape, (2 * block + 1) * shape_count(shape), values);
}

/* (B,T) tokens to (B,T,C). */
static Stream record_embedding(Writer *r, Tensor *tokens) {
    Tensor *embedded =
        op_embedding_padded(r->graph, tokens, parameter(r, ROLE_TOKEN_TABLE, NO_BLOCK), r->config->vocabulary,
                            parameter(r, ROLE_POSITION_TABLE, NO_BLOCK), r->start);
    return (Stream){.sum = record_dropout(r, embedded, dropout_site(NO_BLOCK, SITE_EMBEDDING))};
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

/* Everything up to the head: (B,T) tokens to (B,T,C). */
static Tensor *record_body(Writer *r, Tensor *tokens) {
    Stream x = record_embedding(r, tokens);
    record_blocks(r, &x, 0, (int)r->config->n_layers);
    return record_norm(r, &x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK);
}

static Tensor *head_weight(const Writer *r) {
    return parameter(r, r->config->tied ? ROLE_TOKEN_TABLE : ROLE_HEAD_WEIGHT, NO_BLOCK);
}

/* Logits are by far the largest activation; the device says how many bytes of them at a time keep GEMMs
 * efficient. */
static int64_t chosen_chunk_rows(const ModelConfig *config, const GptLossOptions *options) {
    enum { FEWEST_ROWS = 64, MOST_CHUNKS = 1024 };
    const BackendTraits *traits = options->traits ? options->traits : &TRAITS_HOST;
    size_t a_number = dtype_info(options->dtype)->n_bytes;
    if (a_number < traits->loss_number_bytes) a_number = traits->loss_number_bytes;
    int64_t n_rows = options->B * options->T;
    int64_t rows = (int64_t)(traits->loss_chunk_bytes / a_number) / config->vocabulary;
    if (rows < FEWEST_ROWS) rows = FEWEST_ROWS;
    int64_t n_chunks = (n_rows + rows - 1) / rows;
    if (n_chunks > MOST_CHUNKS) n_chunks = MOST_CHUNKS; /* each is a few instructions of the program */
    return (n_rows + n_chunks - 1) / n_chunks;
}

/* The head and the loss of x (B,T,C), by chunks of rows. */
static void record_head(Writer *r, Tensor *x, const GptLossOptions *options, GptLoss *loss) {
    const ModelConfig *config = r->config;
    Graph *graph = r->graph;
    int64_t n_rows = options->B * options->T;
    int64_t chunk =
        options->loss_chunk_tokens ? options->loss_chunk_tokens : chosen_chunk_rows(config, options);
    float scale = (float)options->loss_scale;
    CrossEntropyAttributes entropy = {scale, config->vocabulary};
    for (int64_t first = 0; first < n_rows; first += chunk) {
        int64_t rows = n_rows - first < chunk ? n_rows - first : chunk;
        Tensor *x_rows =
            graph_view(graph, x, SHAPE(rows, config->n_channels), first * config->n_channels, "ln_f.rows");
        Tensor *target_rows = graph_view(graph, loss->targets, SHAPE(rows), first, "targets.rows");
        Tensor *loss_rows = graph_view(graph, loss->losses, SHAPE(rows), first, "losses.rows");
        Tensor *logits =
            op_linear(graph, x_rows, head_weight(r), NULL, NULL, ACTIVATION_NONE); /* (rows,V or more) */
        op_cross_entropy_scaled(graph, logits, target_rows, loss->scale, loss_rows, &entropy);
    }
    op_sum(graph, loss->losses, loss->loss, scale);
}

/* What the host writes before a stage runs, and where its loss goes. */
static GptLoss record_places(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                             const GptLossOptions *options, const GptStage *stage) {
    int64_t B = options->B, T = options->T;
    GptLoss loss = {.parameters = parameters_record(table, graph, options->dtype, options->is_training)};
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

GptStageTensors gpt_record_stage(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                 const GptLossOptions *options, const GptStage *stage) {
    GptStageTensors tensors = {.loss = record_places(config, table, graph, options, stage)};
    Writer r = {.config = config,
                .graph = graph,
                .parameters = tensors.loss.parameters,
                .random = tensors.loss.random,
                .B = options->B,
                .segment = options->recompute};
    Stream x = {0};
    if (stage->has_embedding) {
        x = record_embedding(&r, tensors.loss.tokens);
    } else {
        Shape shape = SHAPE(options->B, options->T, config->n_channels);
        tensors.input = graph_tensor(graph, PLACE_INPUT, options->dtype, shape, "stream");
        tensors.input->needs_gradient = options->is_training;
        x.sum = tensors.input;
    }
    record_blocks(&r, &x, stage->first_block, stage->end_block);
    if (!stage->has_head) {
        record_border(&r, &x);
        tensors.output = x.sum;
        return tensors;
    }
    Tensor *normed = record_norm(&r, &x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK);
    record_head(&r, normed, options, &tensors.loss);
    return tensors;
}

GptLoss gpt_record_loss(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                        const GptLossOptions *options) {
    GptStage whole = gpt_whole(config);
    return gpt_record_stage(config, table, graph, options, &whole).loss;
}

GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph, DType dtype,
                            int64_t B, int64_t T, int64_t capacity) {
    GptDecode decode = {.parameters = parameters_record(table, graph, dtype, false)};
    decode.tokens = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B, T), "tokens");
    decode.start = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "start");
    decode.rows = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B), "rows");
    Writer r = {.config = config,
                .graph = graph,
                .parameters = decode.parameters,
                .start = decode.start,
                .B = B,
                .capacity = capacity,
                .dtype = dtype};
    Tensor *x = record_body(&r, decode.tokens);
    Tensor *last = T == 1 ? graph_view(graph, x, SHAPE(B, config->n_channels), 0, "last")
                          : op_gather(graph, x, decode.rows); /* (B,C) */
    Tensor *head = graph_view(graph, head_weight(&r), SHAPE(config->vocabulary, config->n_channels), 0,
                              "head"); /* without the rows that pad it */
    Tensor *logits = op_linear(graph, last, head, NULL, NULL, ACTIVATION_NONE);
    decode.logits = logits;
    if (dtype != DTYPE_F32) { /* the sampler's */
        decode.logits = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, logits->shape, "logits");
        op_copy_into(graph, logits, decode.logits, WRITE_FRESH);
    }
    return decode;
}
