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
 * sum that `leave` makes (a bias, the positions) is the first rank's. With --tp-style row each linear layer
 * is split for itself, by rows (inputs), and its sum makes everything behind it whole on every rank again.
 * Where ranks share the sequences, all of it is of this rank's positions, and attention goes to the others
 * for theirs. */
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
    int64_t B, capacity;
    int64_t first_sequence; /* of the micro-batch: those before it are other parts' */
    int64_t T;              /* positions of a sequence that are here */
    int64_t n_positions;    /* of n_positions that there are */
    RowPositions positions; /* which they are */
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

/* Some of a micro-batch's sequences. Where there are several such parts, the messages of one travel while
 * another is computed. */
typedef struct {
    Writer r;
    Stream x;
    ParallelFlight entering, leaving; /* under way */
    Tensor *entered, *branch;         /* what came in, and what the branch has made of it so far */
} Part;

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

/* Every linear layer for itself, by its inputs: all else is whole on every rank. */
static bool is_split_by_inputs(const Writer *r) {
    return is_split(r) && r->split.style == TENSOR_ROW;
}

static bool is_shared(const Writer *r) {
    return r->split.cp && r->split.cp->size > 1;
}

ContextRows gpt_rows(const GptSplit *split, int64_t T) {
    if (!split->cp || split->cp->size == 1) return (ContextRows){.n = T};
    return context_rows(split->context, T, split->cp->size, split->cp->rank);
}

/* What this rank has of the model, and of the n_positions of its sequences. */
static void set_split(Writer *r, const GptSplit *split) {
    r->split = *split;
    int n_ranks = is_split(r) ? split->tp->size : 1, rank = is_split(r) ? split->tp->rank : 0;
    bool by_sequence = is_split(r) && split->by_sequence;
    ContextRows here = gpt_rows(split, r->n_positions);
    r->heads = is_split_by_inputs(r) ? shard_heads(r->config, 1, 0) : shard_heads(r->config, n_ranks, rank);
    r->T = here.n;
    r->positions = here.positions;
    if (!by_sequence && !is_shared(r)) return;
    int64_t head = here.positions.skip ? here.positions.head : r->T;
    r->rows = (RowSplit){.first = by_sequence ? shard_span(r->B * r->T, n_ranks, rank).first : 0,
                         .length = r->T,
                         .head = head,
                         .start = {here.positions.start, here.positions.start + head + here.positions.skip}};
}

/* In front of layers that the ranks share: all rows of x, on every rank. */
static ParallelFlight enter(Writer *r, Tensor *x) {
    Graph *graph = r->graph;
    Comm *tp = r->split.tp;
    if (!is_split(r)) return (ParallelFlight){.y = x};
    if (r->split.by_sequence)
        return op_parallel_start_all_gather(graph, tp, x, SHAPE(r->B, r->T, r->config->n_channels), NULL);
    return r->split.n_parts > 1 ? op_parallel_start_copy(graph, tp, x)
                                : (ParallelFlight){.y = op_parallel_copy(graph, tp, x)};
}

/* Behind them: the sum of what the ranks have made of x; all of it, or this rank's rows. */
static ParallelFlight leave(Writer *r, Tensor *x) {
    if (!is_split(r)) return (ParallelFlight){.y = x};
    return r->split.by_sequence ? op_parallel_start_reduce_scatter(r->graph, r->split.tp, x, NULL)
                                : op_parallel_start_sum(r->graph, r->split.tp, x);
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

/* In front of a branch, and behind it: where layers are split by inputs, each sees to itself. */
static ParallelFlight enter_branch(Writer *r, Tensor *x) {
    if (is_split_by_inputs(r)) return (ParallelFlight){.y = x};
    return enter(r, x);
}

static ParallelFlight leave_branch(Writer *r, Tensor *x) {
    if (is_split_by_inputs(r)) return (ParallelFlight){.y = x};
    return leave(r, x);
}

/* This rank's columns of x (B,T,C), which all ranks have whole: (B,T,n). Its gradient is gathered. */
static Tensor *record_columns(Writer *r, Tensor *x, ShardSpan *span) {
    Graph *graph = r->graph;
    int n_ranks = r->split.tp->size;
    int64_t columns = shape_columns(x->shape), rows = shape_rows(x->shape), border[PACK_MAX_PARTS + 1];
    if (!graph_check(graph, n_ranks <= PACK_MAX_PARTS, "columns: more than %d ranks", PACK_MAX_PARTS))
        return graph->nothing;
    int64_t *element = ARENA_ARRAY(&graph->arena, int64_t, n_ranks + 1);
    for (int rank = 0; rank <= n_ranks; rank++) {
        border[rank] = rank < n_ranks ? shard_span(columns, n_ranks, rank).first : columns;
        element[rank] = rows * border[rank];
    }
    *span = shard_span(columns, n_ranks, r->split.tp->rank);
    Tensor *packed = op_pack(graph, x, x->shape.n_dims - 1, n_ranks, border);
    Tensor *mine = op_parallel_split(graph, r->split.tp, packed, element);
    const char *name = arena_printf(&graph->arena, "%s.columns", x->name);
    return graph_view(graph, mine, SHAPE(r->B, r->T, span->n), 0, name);
}

/* W · x, split by inputs: the product of this rank's columns of both, summed over the ranks. */
static Tensor *record_input_linear(Writer *r, Tensor *x, ParameterRole weight, ParameterRole bias,
                                   Activation activation, int block) {
    Graph *graph = r->graph;
    ShardSpan span = {0};
    int64_t n_outputs = parameter_find(r->parameters.table, weight, block)->whole.dim[0];
    Tensor *columns = record_columns(r, x, &span);
    Tensor *part = span.n ? op_linear(graph, columns, parameter(r, weight, block), parameter(r, bias, block),
                                      NULL, ACTIVATION_NONE)
                          : op_blank(graph, columns, SHAPE(r->B, r->T, n_outputs));
    Tensor *y = op_parallel_sum(graph, r->split.tp, part);
    return activation == ACTIVATION_NONE ? y : op_gelu(graph, y, activation);
}

/* The first layer of a pair, from what this rank has of it. */
static Tensor *record_linear(Writer *r, Tensor *x, ParameterRole weight, ParameterRole bias,
                             Activation activation, int block) {
    if (is_split_by_inputs(r)) return record_input_linear(r, x, weight, bias, activation, block);
    return op_linear(r->graph, x, parameter(r, weight, block), parameter(r, bias, block), NULL, activation);
}

/* W · branch, from what this rank has of both; NULL: nothing, of what it has entered. */
static Tensor *record_projection(Writer *r, Tensor *branch, Tensor *entered, ParameterRole weight,
                                 ParameterRole bias, Tensor *residual, int block) {
    if (is_split_by_inputs(r)) return record_input_linear(r, branch, weight, bias, ACTIVATION_NONE, block);
    if (!branch) return op_blank(r->graph, entered, SHAPE(r->B, r->T, r->config->n_channels));
    return op_linear(r->graph, branch, parameter(r, weight, block), parameter(r, bias, block), residual,
                     ACTIVATION_NONE);
}

/* Is the residual addition part of the linear layer? */
static bool is_fused(const Writer *r) {
    return !r->random && !is_split(r);
}

/* x + dropout(y), y being what a branch has made. */
static void record_residual(Writer *r, Stream *x, Tensor *y, int block, int site) {
    if (r->random) {
        x->branch = y;
        x->site = dropout_site(block, site);
    } else if (is_fused(r)) {
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
        record_linear(r, h, ROLE_QKV_WEIGHT, ROLE_QKV_BIAS, ACTIVATION_NONE, block); /* (B,T,(NH+2·NKV)·HS) */
    if (config->position == POSITION_ROTARY) {
        RotaryAttributes rotary = {.n_heads = n_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .head_size = head_size,
                                   .theta = (float)config->rotary_theta,
                                   .positions = r->positions};
        qkv = op_rotary(r->graph, qkv, r->start, &rotary);
    }
    AttentionAttributes attention = {.n_heads = n_heads,
                                     .n_kv_heads = n_kv_heads,
                                     .head_size = head_size,
                                     .scale = 1.0f / sqrtf((float)head_size),
                                     .dropout = r->random ? (float)config->dropout : 0.0f,
                                     .site = dropout_site(block, SITE_ATTENTION),
                                     .first_head = (int)r->heads.query.first};
    if (r->key_cache)
        return op_attention_cached(r->graph, qkv, r->start, r->key_cache, r->value_cache, &attention);
    if (!is_shared(r)) return op_attention(r->graph, qkv, r->random, &attention); /* (B,T,NH·HS) */
    return r->split.context == CONTEXT_RING
               ? op_ring_attention(r->graph, r->split.cp, qkv, r->random, r->n_positions, &attention)
               : op_exchanged_attention(r->graph, r->split.cp, qkv, r->random, r->n_positions, &attention);
}

/* This rank's hidden channels of h (B,T,C); NULL: it has none. */
static Tensor *record_hidden(Writer *r, Tensor *h, int block) {
    static const Activation activations[] = {ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_NONE};
    const ModelConfig *config = r->config;
    if (!is_split_by_inputs(r) && !parameter(r, ROLE_FC_WEIGHT, block)) return NULL;
    h = record_linear(r, h, ROLE_FC_WEIGHT, ROLE_FC_BIAS, activations[config->mlp], block); /* (B,T,4C) */
    return config->mlp == MLP_SWIGLU ? op_swiglu(r->graph, h) : h;
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

/* (B,T) tokens to (B,T,C). */
static Tensor *record_embedding(Writer *r, Tensor *tokens) {
    ShardSpan span = token_span(r);
    EmbeddingAttributes attributes = {.positions = r->positions,
                                      .first_token = span.first,
                                      .n_tokens = span.n,
                                      .n_all = r->config->vocabulary};
    return op_embedding_part(r->graph, tokens, parameter(r, ROLE_TOKEN_TABLE, NO_BLOCK),
                             parameter(r, ROLE_POSITION_TABLE, NO_BLOCK), r->start, &attributes);
}

/* The same of all parts, or this rank's rows of it: where their streams begin. */
static void record_embeddings(Part *parts, int n_parts, Tensor *tokens) {
    for (int i = 0; i < n_parts; i++) {
        Writer *r = &parts[i].r;
        Tensor *own = n_parts == 1 ? tokens
                                   : graph_view(r->graph, tokens, SHAPE(r->B, r->T), r->first_sequence * r->T,
                                                "tokens.part");
        parts[i].leaving = leave(r, record_embedding(r, own));
    }
    for (int i = 0; i < n_parts; i++) {
        Writer *r = &parts[i].r;
        Tensor *embedded = op_parallel_finish(r->graph, &parts[i].leaving);
        int site = dropout_site(NO_BLOCK, SITE_EMBEDDING);
        parts[i].x = (Stream){.sum = record_dropout(r, embedded, site)};
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

static void begin_half(Part *part, int half) {
    Writer *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    if (kind == 0) record_caches(r, block);
    part->entering =
        enter_branch(r, record_norm(r, &part->x, halves[kind].norm_weight, halves[kind].norm_bias, block));
}

static void branch_half(Part *part, int half) {
    Writer *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    part->entered = op_parallel_finish(r->graph, &part->entering);
    part->branch = kind == 0 ? record_heads(r, part->entered, block) : record_hidden(r, part->entered, block);
}

static void project_half(Part *part, int half) {
    Writer *r = &part->r;
    int block = half / 2, kind = half % 2;
    r->graph->block = block;
    Tensor *y = record_projection(r, part->branch, part->entered, halves[kind].weight, halves[kind].bias,
                                  is_fused(r) ? part->x.sum : NULL, block);
    part->leaving = leave_branch(r, y);
}

static void end_half(Part *part, int half) {
    Writer *r = &part->r;
    r->graph->block = half / 2;
    Tensor *y = op_parallel_finish(r->graph, &part->leaving);
    record_residual(r, &part->x, y, half / 2, halves[half % 2].site);
}

/* Halves first .. end - 1 of blocks, of all parts in turn. Between two layers of a part, the one before it
 * leaves its half and enters the next: it goes out while the first is computed, and in while the second is.
 *
 *     part 0   project, out           end, begin, in            branch         ...
 *     part 1                  branch                  project, out     end, begin, in */
static void record_halves(Part *parts, int n_parts, int first, int end) {
    int n_runs = (end - first) * n_parts, lag = n_parts > 1 ? 1 : 0;
    for (int i = 0; i < n_parts; i++) begin_half(&parts[i], first);
    for (int i = 0; i < n_runs + lag; i++) {
        int half = first + i / n_parts, half_before = first + (i - lag) / n_parts;
        Part *part = &parts[i % n_parts], *before = &parts[(i - lag + n_parts) % n_parts];
        if (i < n_runs) branch_half(part, half);
        if (i < n_runs && !lag) project_half(part, half);
        if (i >= lag) end_half(before, half_before);
        if (i >= lag && half_before + 1 < end) begin_half(before, half_before + 1);
        if (i < n_runs && lag) project_half(part, half);
    }
}

/* Parts meet where activations are forgotten from (a segment), or after every block, where its weights are
 * gathered. */
static void record_blocks(Part *parts, int n_parts, int first, int end) {
    const Writer *r = &parts[0].r;
    int together = r->segment ? (int)r->segment : r->split.by_block || n_parts == 1 ? 1 : end;
    for (int from = first, to; from < end; from = to) {
        to = (from / together + 1) * together;
        if (to > end) to = end;
        for (int i = 0; r->segment && from % r->segment == 0 && i < n_parts; i++)
            record_border(&parts[i].r, &parts[i].x);
        record_halves(parts, n_parts, 2 * from, 2 * to);
    }
    r->graph->block = NO_BLOCK;
}

static Tensor *head_weight(const Writer *r) {
    return parameter(r, r->config->tied ? ROLE_TOKEN_TABLE : ROLE_HEAD_WEIGHT, NO_BLOCK);
}

/* Logits are by far the largest activation; the device says how many bytes of them at a time keep GEMMs
 * efficient. */
static int64_t chosen_chunk_rows(const GptLossOptions *options, int64_t n_rows, int64_t n_classes) {
    enum { FEWEST_ROWS = 64, MOST_CHUNKS = 1024 };
    const BackendTraits *traits = options->traits ? options->traits : &TRAITS_HOST;
    size_t a_number = dtype_info(options->dtype)->n_bytes;
    if (a_number < traits->loss_number_bytes) a_number = traits->loss_number_bytes;
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

/* Of a sequence, on any rank of cp. */
static int64_t most_positions(const Writer *r) {
    int64_t most = r->T;
    for (int rank = 0; is_shared(r) && rank < r->split.cp->size; rank++) {
        int64_t n = context_rows(r->split.context, r->n_positions, r->split.cp->size, rank).n;
        if (n > most) most = n;
    }
    return most;
}

/* The head and the losses of x (B,T,C), by chunks of rows: as many on every rank, since what is done with the
 * head's weight has to be in step. */
static void record_head(Writer *r, Tensor *x, const GptLossOptions *options, GptLoss *loss) {
    Graph *graph = r->graph;
    ShardSpan span = token_span(r);
    int64_t n_rows = r->B * r->T, most_rows = r->B * most_positions(r), channels = r->config->n_channels,
            before = r->first_sequence * r->T;
    int64_t chunk = options->loss_chunk_tokens ? options->loss_chunk_tokens
                                               : chosen_chunk_rows(options, most_rows, span.n);
    float scale = (float)options->loss_scale;
    for (int64_t at = 0; at < most_rows; at += chunk) {
        int64_t first = at < n_rows ? at : n_rows, rows = n_rows - first < chunk ? n_rows - first : chunk;
        Tensor *x_rows = graph_view(graph, x, SHAPE(rows, channels), first * channels, "ln_f.rows");
        Tensor *target_rows = graph_view(graph, loss->targets, SHAPE(rows), before + first, "targets.rows");
        Tensor *loss_rows = graph_view(graph, loss->losses, SHAPE(rows), before + first, "losses.rows");
        record_entropy(r, x_rows, target_rows, loss_rows, span, scale, loss->scale);
    }
}

static void record_heads_of(Part *parts, int n_parts, const GptLossOptions *options, GptLoss *loss) {
    for (int i = 0; i < n_parts; i++) {
        Part *part = &parts[i];
        part->entering = enter(&part->r, record_norm(&part->r, &part->x, ROLE_FINAL_NORM_WEIGHT,
                                                     ROLE_FINAL_NORM_BIAS, NO_BLOCK));
    }
    for (int i = 0; i < n_parts; i++) {
        Writer *r = &parts[i].r;
        record_head(r, op_parallel_finish(r->graph, &parts[i].entering), options, loss);
    }
    op_sum(parts[0].r.graph, loss->losses, loss->loss, (float)options->loss_scale);
}

int gpt_n_parts(const GptLossOptions *options) {
    const GptSplit *split = &options->split;
    if (!split->tp || split->tp->size == 1 || split->style != TENSOR_COLUMN || split->n_parts < 2) return 1;
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
    if (stage->has_head) {
        loss.targets = graph_tensor(graph, PLACE_INPUT, DTYPE_I32, SHAPE(B * T), "targets");
        loss.loss = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "loss");
        loss.losses = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(B * T), "losses");
    }
    if (options->is_training && config->dropout > 0.0)
        loss.random = graph_tensor(graph, PLACE_INPUT, DTYPE_I32,
                                   SHAPE(gpt_n_parts(options) * N_RANDOM_WORDS), "random");
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
    if (!is_split(r) || !r->split.by_sequence) return SHAPE(r->B, r->T, channels);
    ShardSpan rows = shard_span(r->B * r->T, r->split.tp->size, r->split.tp->rank);
    return SHAPE(rows.n, channels);
}

static Writer loss_writer(const ModelConfig *config, const GptLossOptions *options, int n_parts, int part) {
    ShardSpan span = shard_span(options->B, n_parts, part);
    Writer r = {.config = config,
                .B = span.n,
                .n_positions = options->T,
                .first_sequence = span.first,
                .segment = options->recompute};
    GptSplit split = options->split;
    split.n_parts = n_parts;
    set_split(&r, &split);
    return r;
}

Shape gpt_stream_shape(const ModelConfig *config, const GptLossOptions *options) {
    Writer r = loss_writer(config, options, 1, 0);
    return stream_shape(&r);
}

static Part *record_parts(const ModelConfig *config, Graph *graph, const GptLossOptions *options,
                          const GptLoss *loss, int n_parts) {
    Part *parts = ARENA_ARRAY(&graph->arena, Part, n_parts);
    for (int i = 0; i < n_parts; i++) {
        Writer *r = &parts[i].r;
        *r = loss_writer(config, options, n_parts, i);
        r->graph = graph;
        r->parameters = loss->parameters;
        r->random = loss->random;
        if (n_parts > 1 && loss->random)
            r->random = graph_view(graph, loss->random, SHAPE(N_RANDOM_WORDS), (int64_t)i * N_RANDOM_WORDS,
                                   "random.part");
    }
    return parts;
}

GptStageTensors gpt_record_stage(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                                 const GptLossOptions *options, const GptStage *stage, Tensor *input) {
    GptStageTensors tensors = {.loss = record_places(config, table, graph, options, stage), .input = input};
    int n_parts = gpt_n_parts(options);
    Part *parts = record_parts(config, graph, options, &tensors.loss, n_parts);
    graph_check(graph, n_parts == 1 || (stage->has_embedding && stage->has_head),
                "a stage of a pipeline passes on all of a micro-batch, not %d parts of it", n_parts);
    if (stage->has_embedding) {
        record_embeddings(parts, n_parts, tensors.loss.tokens);
    } else if (!input) {
        tensors.input = graph_tensor(graph, PLACE_INPUT, options->dtype, stream_shape(&parts[0].r), "stream");
        tensors.input->needs_gradient = options->is_training;
    }
    if (!stage->has_embedding) parts[0].x.sum = tensors.input;
    tensors.embedded = parts[0].x.sum;
    record_blocks(parts, n_parts, stage->first_block, stage->end_block);
    if (stage->has_head) {
        record_heads_of(parts, n_parts, options, &tensors.loss);
    } else {
        record_border(&parts[0].r, &parts[0].x);
        tensors.output = parts[0].x.sum;
    }
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
                .n_positions = options->T,
                .capacity = options->capacity,
                .dtype = options->dtype};
    set_split(&r, &(GptSplit){.tp = options->split.tp, .style = options->split.style});
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
    Part part = {.r = decode_writer(config, graph, options), .x = {.sum = input}};
    part.r.parameters = decode->parameters;
    part.r.start = decode->start;
    part.r.caches = decode->caches;
    part.r.first_slot = decode->n_blocks;
    part.r.first_block = stage->first_block;
    if (stage->has_embedding) record_embeddings(&part, 1, decode->tokens);
    record_blocks(&part, 1, stage->first_block, stage->end_block);
    decode->n_blocks += stage->end_block - stage->first_block;
    if (!stage->has_head) return part.x.sum;
    record_prediction(&part.r, &part.x, decode);
    return NULL;
}

GptDecode gpt_record_decode(const ModelConfig *config, const ParameterTable *table, Graph *graph,
                            const GptDecodeOptions *options) {
    GptStage whole = gpt_whole(config);
    GptDecode decode = gpt_begin_decode(config, table, graph, options, whole.end_block);
    gpt_record_decode_stage(config, graph, options, &whole, NULL, &decode);
    return decode;
}
