/* All kinds of attention are one program over the same random rows: for each the lists, if there are any, the
 * forward and the backward. A round runs the program's kernels in its order, timed one by one (kernels.c), so
 * that each finds what the one before left, and what disturbs the machine for a while disturbs all kinds
 * alike. The best of the rounds counts. How many tiles there are is read from the lists that the kernels walk
 * through: documents are known on the device. */
#include "bench/attention.h"

#include "base/system/memory.h"
#include "bench/kernels.h"
#include "ops/attention/sparse_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { END_TOKEN = 1 };

/* What all programs have. */
typedef struct {
    const Backend *backend;
    AttentionAttributes heads;
    DType dtype;
    int64_t B, T, document_length;
} Sizes;

static Sizes sizes_of(const BenchAttention *bench, const BenchSetup *setup, int64_t document_length) {
    const ModelConfig *model = &setup->model;
    int head_size = (int)config_head_size(model);
    return (Sizes){.backend = &bench->backend,
                   .heads = {.n_heads = (int)model->n_heads,
                             .n_kv_heads = (int)model->n_kv_heads,
                             .head_size = head_size,
                             .scale = (float)(1.0 / sqrt((double)head_size))},
                   .dtype = precision_of((PrecisionKind)setup->bench.precision).weight,
                   .B = bench->batch,
                   .T = bench->sequence,
                   .document_length = document_length};
}

/* ---- recording */

static Tensor *input(Graph *graph, DType dtype, Shape shape, const char *name) {
    return graph_tensor(graph, PLACE_INPUT, dtype, shape, "%s", name);
}

/* What the kinds share. */
typedef struct {
    Tensor *qkv, *dy, *dqkv, *tokens;
} Rows;

static Rows record_rows(Graph *graph, const Sizes *sizes) {
    const AttentionAttributes *heads = &sizes->heads;
    int64_t size = heads->head_size, width = (heads->n_heads + 2 * heads->n_kv_heads) * size;
    Rows rows = {
        .qkv = input(graph, sizes->dtype, SHAPE(sizes->B, sizes->T, width), "qkv"),
        .dy = input(graph, sizes->dtype, SHAPE(sizes->B, sizes->T, heads->n_heads * size), "dy"),
    };
    rows.dqkv = graph_tensor(graph, PLACE_STATE, sizes->dtype, rows.qkv->shape, "dqkv");
    if (sizes->document_length) rows.tokens = input(graph, DTYPE_I32, SHAPE(sizes->B, sizes->T), "tokens");
    return rows;
}

/* Without a pattern: `attention`. */
static void record(Graph *graph, const Sizes *sizes, const Rows *rows, const AttentionPattern *pattern) {
    const AttentionAttributes *heads = &sizes->heads;
    if (!pattern) {
        Tensor *y = op_attention(graph, rows->qkv, NULL, heads);
        graph_record(graph, &OP_ATTENTION_BACKWARD, heads, sizeof *heads, 5,
                     TENSORS(rows->dy, rows->qkv, y, y->producer->output[1], NULL), 2,
                     TENSORS(rows->dqkv, NULL));
        return;
    }
    AttentionMask mask = {.pattern = *pattern};
    if (rows->tokens) {
        DocumentAttributes documents = {.end_token = END_TOKEN};
        mask.starts = op_document_starts(graph, rows->tokens, sizes->T, &documents).starts;
    }
    mask.blocks = op_attention_blocks(graph, mask.starts, pattern, sizes->T);
    Tensor *y = op_sparse_attention(graph, rows->qkv, NULL, &mask, heads);
    const Node *forward = y->producer;
    graph_record(graph, &OP_SPARSE_ATTENTION_BACKWARD, forward->attributes, sizeof(SparseAttentionAttributes),
                 N_SPARSE_BACK_INPUTS,
                 TENSORS(rows->dy, rows->qkv, y, forward->output[1], mask.blocks, mask.starts, NULL), 2,
                 TENSORS(rows->dqkv, NULL));
}

/* ---- measuring */

/* Documents that all begin at the same places. */
static Status upload_tokens(Wiring *program, const Sizes *sizes, const Tensor *tensor, Error *error) {
    int32_t *tokens = ARENA_ARRAY(&program->graph->arena, int32_t, sizes->B * sizes->T);
    for (int64_t t = 0; t < sizes->B * sizes->T; t++)
        tokens[t] = (t % sizes->T + 1) % sizes->document_length ? 0 : END_TOKEN;
    return executor_upload(&program->executor, tensor, tokens, error);
}

/* Entries of all lists; one that is everybody's counts for each sequence. */
static Status count_tiles(const Sizes *sizes, const KernelCall *call, double *n_tiles, Error *error) {
    const AttentionBlocksAttributes *a = call->node->attributes;
    const Tensor *blocks = call->node->output[0];
    size_t n_bytes = tensor_bytes(blocks);
    void *lists = NULL;
    *n_tiles = 0.0;
    if (!n_bytes) return STATUS_OK;
    TRY(memory_alloc(&lists, n_bytes, "lists of tiles", error));
    if (sizes->backend->download)
        sizes->backend->download(sizes->backend->context, lists, call->out[0], n_bytes, error);
    else memcpy(lists, call->out[0], n_bytes);
    for (int64_t i = 0; i < blocks->shape.dim[0] && error->status == STATUS_OK; i++) {
        AttentionBlockList list = attention_block_list(lists, i, a->n_positions, a->most);
        *n_tiles += list.row_begin[attention_n_blocks(a->n_positions)];
    }
    *n_tiles *= (double)sizes->B / (double)blocks->shape.dim[0];
    memory_free(lists, n_bytes);
    return error->status;
}

/* One more time of a node. */
static Status time_node(const Sizes *sizes, const Executor *executor, int number, BenchAttentionTime *time,
                        Error *error) {
    const KernelCall *call = executor_call(executor, number);
    const Op *op = call->node->op;
    double *best = op == &OP_ATTENTION || op == &OP_SPARSE_ATTENTION ? &time->forward_seconds
                   : op == &OP_DOCUMENT_STARTS                       ? &time->documents_seconds
                   : op == &OP_ATTENTION_BLOCKS                      ? &time->lists_seconds
                                                                     : &time->backward_seconds;
    BenchTime measured;
    TRY(bench_time_round(sizes->backend, executor->instruction[number].kernel, call, &measured, error));
    *best = fmin(*best, measured.seconds);
    return op == &OP_ATTENTION_BLOCKS ? count_tiles(sizes, call, &time->n_tiles, error) : STATUS_OK;
}

static void finish_time(const Sizes *sizes, BenchAttentionTime *time) {
    double pairs = time->n_tiles * sizes->heads.n_heads * ATTENTION_BLOCK * ATTENTION_BLOCK;
    time->forward_flops = pairs * 4.0 * sizes->heads.head_size;
    time->backward_flops = pairs * 10.0 * sizes->heads.head_size;
    if (isinf(time->lists_seconds)) time->lists_seconds = 0.0;
    if (!isinf(time->documents_seconds)) time->lists_seconds += time->documents_seconds;
}

static Status measure(BenchAttention *bench, const Sizes *sizes, const AttentionPattern *patterns,
                      int64_t n_rounds, Error *error) {
    Wiring program = {.graph = graph_new()};
    int kind_of[4 * (BENCH_MOST_PATTERNS + 2)], n_nodes = 0; /* of a node */
    double Q = (double)attention_n_blocks(sizes->T);
    Rows rows = record_rows(program.graph, sizes);
    for (int i = 0; i < bench->n_times; i++) {
        BenchAttentionTime *time = &bench->time[i];
        time->n_tiles = (double)sizes->B * Q * (Q + 1.0) / 2.0;
        time->lists_seconds = time->documents_seconds = time->forward_seconds = time->backward_seconds =
            INFINITY;
        record(program.graph, sizes, &rows, i ? &patterns[i] : NULL);
        for (; n_nodes < program.graph->n_nodes; n_nodes++) kind_of[n_nodes] = i;
    }
    TRY_GOTO(bench_program_open(&program, sizes->backend, error), done);
    if (rows.tokens) TRY_GOTO(upload_tokens(&program, sizes, rows.tokens, error), done);
    for (int64_t round = 0; round < n_rounds; round++)
        for (int i = 0; i < n_nodes; i++)
            TRY_GOTO(time_node(sizes, &program.executor, i, &bench->time[kind_of[i]], error), done);
    for (int i = 0; i < bench->n_times; i++) finish_time(sizes, &bench->time[i]);
done:
    wiring_close_alone(&program);
    return error->status;
}

/* ---- the whole */

static Status add_pattern(BenchAttention *bench, const char *text, size_t n, AttentionPattern *patterns,
                          Error *error) {
    if (bench->n_times == (int)(sizeof bench->time / sizeof bench->time[0]))
        return error_user(error, "--pattern has more than %d patterns", (int)BENCH_MOST_PATTERNS);
    AttentionPattern *pattern = &patterns[bench->n_times];
    if (pattern_parse(text, n, pattern, error) != STATUS_OK) return error_prefix(error, "--pattern: ");
    pattern_print(pattern, bench->time[bench->n_times].name, PATTERN_TEXT_BYTES);
    bench->n_times++;
    return STATUS_OK;
}

Status bench_attention_measure(BenchAttention *bench, const BenchSetup *setup, const char *patterns,
                               int64_t document_length, Error *error) {
    AttentionPattern pattern[BENCH_MOST_PATTERNS + 2] = {0};
    *bench =
        (BenchAttention){.batch = setup->bench.batch,
                         .sequence = setup->bench.sequence ? setup->bench.sequence : setup->model.context,
                         .head_size = (int)config_head_size(&setup->model)};
    TRY(bench_backend_open(&bench->backend, &setup->bench, error));
    bench->has_backend = true;
    Sizes sizes = sizes_of(bench, setup, document_length);
    snprintf(bench->time[0].name, sizeof bench->time[0].name, "attention");
    bench->n_times = 1;
    TRY(add_pattern(bench, "dense", strlen("dense"), pattern, error));
    for (const char *at = patterns;; at++) {
        size_t n = strcspn(at, ",");
        TRY(add_pattern(bench, at, n, pattern, error));
        at += n;
        if (!*at) break;
    }
    return measure(bench, &sizes, pattern, setup->bench.n_runs, error);
}

double bench_attention_tile(const BenchAttention *bench, int number, bool is_backward) {
    const BenchAttentionTime *time = &bench->time[number], *dense = &bench->time[0];
    double own = is_backward ? time->backward_seconds : time->forward_seconds,
           all = is_backward ? dense->backward_seconds : dense->forward_seconds;
    return own / time->n_tiles / (all / dense->n_tiles);
}

void bench_attention_close(BenchAttention *bench) {
    if (bench->has_backend) bench->backend.close(bench->backend.context);
}
