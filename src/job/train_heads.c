/* Key/value heads that several ranks of tp hold have to stay the same on all of them. What is stored or sent
 * in blocks with a scale comes out alike where blocks are, and a head that begins or ends within one shares
 * it with queries that only one of the ranks has. */
#include "job/train_run.h"

#include "base/block8.h"
#include "ops/compress/codec.h"

#include <stdio.h>

static Status refuse(const TrainRun *run, const char *what, const char *instead, Error *error) {
    const ModelConfig *model = &run->values.model;
    char most[64] = "leave out --tp";
    if (model->n_kv_heads > 1) snprintf(most, sizeof most, "--tp %lld at most", (long long)model->n_kv_heads);
    return error_user(
        error,
        "%s has scales for blocks of neighbours, and key/value heads of %lld, which ranks of --tp "
        "%d share, end within them; choose %s, or %s",
        what, (long long)config_head_size(model), run->shape.size[AXIS_TP], instead, most);
}

Status train_heads_check(const TrainRun *run, Error *error) {
    const TrainCommand *values = &run->values;
    const ModelConfig *model = &values->model;
    int n_ranks = run->shape.size[AXIS_TP];
    if (n_ranks == 1 || values->parallel.tensor_style == TENSOR_ROW) return STATUS_OK;
    bool has_blocks = run->compression.kind != COMPRESS_NONE && !compression_is_lowrank(&run->compression);
    char what[64];
    snprintf(what, sizeof what, "--compress %s", values->parallel.compress);
    if (has_blocks && !shard_heads_fill_blocks(model, n_ranks, CODEC_BLOCK))
        return refuse(run, what, "powersgd:R", error);
    if (values->optimizer.moments != MOMENTS_8BIT || shard_heads_fill_blocks(model, n_ranks, BLOCK8_RECORD))
        return STATUS_OK;
    if (shard_heads_begin_alike(model, n_ranks) && shard_heads_fill_blocks(model, n_ranks, BLOCK8_GROUP))
        return STATUS_OK;
    return refuse(run, "--moments 8bit", "--moments bf16", error);
}
