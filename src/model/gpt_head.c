/* The head: the final norm, logits by chunks of rows, and the losses. */
#include "model/gpt_writer.h"

Tensor *writer_head_weight(const GptWriter *r) {
    return layer_parameter(r, r->config->tied ? ROLE_TOKEN_TABLE : ROLE_HEAD_WEIGHT, NO_BLOCK);
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
static void record_entropy(GptWriter *r, Tensor *x, Tensor *targets, Tensor *losses, ShardSpan span,
                           float gradient_scale, Tensor *scale) {
    Graph *graph = r->graph;
    Tensor *logits =
        op_linear(graph, x, writer_head_weight(r), NULL, NULL, ACTIVATION_NONE); /* (rows,V or more) */
    if (!writer_is_split(r)) {
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
static int64_t most_positions(const GptWriter *r) {
    int64_t most = r->T;
    for (int rank = 0; writer_is_shared(r) && rank < r->split.cp->size; rank++) {
        int64_t n = context_rows(r->split.context, r->n_positions, r->split.cp->size, rank).n;
        if (n > most) most = n;
    }
    return most;
}

/* The head and the losses of x (B,T,C), by chunks of rows: as many on every rank, since what is done with the
 * head's weight has to be in step. */
static void record_head(GptWriter *r, Tensor *x, const GptLossOptions *options, GptLoss *loss) {
    Graph *graph = r->graph;
    ShardSpan span = writer_token_span(r);
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

void gpt_record_heads(GptPart *parts, int n_parts, const GptLossOptions *options, GptLoss *loss) {
    for (int i = 0; i < n_parts; i++) {
        GptPart *part = &parts[i];
        part->entering = layer_enter(
            &part->r, layer_norm(&part->r, &part->x, ROLE_FINAL_NORM_WEIGHT, ROLE_FINAL_NORM_BIAS, NO_BLOCK));
    }
    for (int i = 0; i < n_parts; i++) {
        GptWriter *r = &parts[i].r;
        record_head(r, op_parallel_finish(r->graph, &parts[i].entering), options, loss);
    }
    op_sum(parts[0].r.graph, loss->losses, loss->loss, (float)options->loss_scale);
}
