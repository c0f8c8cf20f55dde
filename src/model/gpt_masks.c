/* What sparse attention goes by: where documents begin, and the lists of tiles, made once for all blocks of a
 * recording that have the same pattern. They belong to no block, so recomputation keeps them. */
#include "model/gpt_writer.h"

/* Do ranks share sequences so that each has keys of its own positions only? */
static bool is_ring(const GptWriter *r) {
    return writer_is_shared(r) && r->split.context == CONTEXT_RING;
}

static void record_documents(GptWriter *r, Tensor *sequences) {
    DocumentAttributes attributes = {.end_token = (int32_t)r->config->document_end, .rows = r->positions};
    r->masks.documents = op_document_starts(r->graph, sequences, r->T, &attributes);
    r->masks.whole = r->masks.documents.starts;
    if (!writer_is_shared(r)) return;
    attributes.rows = (RowPositions){0};
    r->masks.whole =
        is_ring(r) ? NULL : op_document_starts(r->graph, sequences, r->n_positions, &attributes).starts;
}

/* The first of the model's patterns that is the same. */
static int pattern_index(const ModelConfig *config, int block) {
    int index = config->n_patterns ? block % config->n_patterns : 0;
    for (int i = 0; i < index; i++)
        if (pattern_equal(&config->pattern[i], &config->pattern[index])) return i;
    return index;
}

void writer_record_masks(GptWriter *r, Tensor *sequences, int first, int end) {
    if (r->config->document_mask) record_documents(r, sequences);
    for (int block = first; block < end && r->heads.query.n && !is_ring(r) && !r->caches; block++) {
        AttentionPattern pattern = config_pattern(r->config, block);
        Tensor **blocks = &r->masks.blocks[pattern_index(r->config, block)];
        if (config_is_sparse(r->config, block) && !*blocks)
            *blocks = op_attention_blocks(r->graph, r->masks.whole, &pattern, r->n_positions);
    }
}

bool writer_mask(const GptWriter *r, int block, AttentionMask *mask) {
    if (!config_is_sparse(r->config, block)) return false;
    *mask = (AttentionMask){.pattern = config_pattern(r->config, block),
                            .blocks = r->masks.blocks[pattern_index(r->config, block)],
                            .starts = is_ring(r) || r->caches ? r->masks.documents.starts : r->masks.whole};
    return true;
}

Tensor *writer_start(const GptWriter *r) {
    if (r->places) return r->places;
    return r->masks.documents.positions ? r->masks.documents.positions : r->start;
}

int64_t writer_capacity(const GptWriter *r, int block) {
    AttentionPattern pattern = config_pattern(r->config, block);
    return sparse_cache_capacity(&pattern, r->capacity, r->most_new);
}
