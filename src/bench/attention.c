/* Each kind of attention is a program by itself: the lists, if there are any, the forward and the backward,
 * on random numbers. Kernels are timed one by one (kernels.c) in the order of the program, so that each finds
 * what the one before left. How many tiles there are is read from the lists: documents are known on the
 * device. */
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

/* Without a pattern: `attention`. */
static void record(Graph *graph, const Sizes *sizes, const AttentionPattern *pattern) {
    const AttentionAttributes *heads = &sizes->heads;
    int64_t width = (int64_t)(heads->n_heads + 2 * heads->n_kv_heads) * heads->head_size;
    Tensor *qkv = input(graph, sizes->dtype, SHAPE(sizes->B, sizes->T, width), "qkv"), *y;
    Tensor *dy = input(graph, sizes->dtype,
                       SHAPE(sizes->B, sizes->T, (int64_t)heads->n_heads * heads->head_size), "dy");
    Tensor *dqkv = graph_tensor(graph, PLACE_ACTIVATION, sizes->dtype, qkv->shape, "dqkv");
    if (!pattern) {
        y = op_attention(graph, qkv, NULL, heads);
        graph_record(graph, &OP_ATTENTION_BACKWARD, heads, sizeof *heads, 5,
                     TENSORS(dy, qkv, y, y->producer->output[1], NULL), 2, TENSORS(dqkv, NULL));
        return;
    }
    AttentionMask mask = {.pattern = *pattern};
    if (sizes->document_length) {
        DocumentAttributes documents = {.end_token = END_TOKEN};
        Tensor *tokens = input(graph, DTYPE_I32, SHAPE(sizes->B, sizes->T), "tokens");
        mask.starts = op_document_starts(graph, tokens, sizes->T, &documents).starts;
    }
    mask.blocks = op_attention_blocks(graph, mask.starts, pattern, sizes->T);
    y = op_sparse_attention(graph, qkv, NULL, &mask, heads);
    const Node *forward = y->producer;
    graph_record(graph, &OP_SPARSE_ATTENTION_BACKWARD, forward->attributes, sizeof(SparseAttentionAttributes),
                 N_SPARSE_BACK_INPUTS,
                 TENSORS(dy, qkv, y, forward->output[1], mask.blocks, mask.starts, NULL), 2,
                 TENSORS(dqkv, NULL));
}

/* ---- measuring */

/* Documents that all begin at the same places. */
static Status upload_tokens(Wiring *program, const Sizes *sizes, Error *error) {
    for (int i = 0; i < program->graph->n_nodes; i++) {
        const Node *node = program->graph->node[i];
        if (node->op != &OP_DOCUMENT_STARTS) continue;
        int32_t *tokens = ARENA_ARRAY(&program->graph->arena, int32_t, sizes->B * sizes->T);
        for (int64_t t = 0; t < sizes->B * sizes->T; t++)
            tokens[t] = (t % sizes->T + 1) % sizes->document_length ? 0 : END_TOKEN;
        return executor_upload(&program->executor, node->input[0], tokens, error);
    }
    return STATUS_OK;
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

static Status time_node(const Sizes *sizes, const Executor *executor, int number, BenchAttentionTime *time,
                        Error *error) {
    const KernelCall *call = executor_call(executor, number);
    const Op *op = call->node->op;
    BenchTime measured;
    TRY(bench_time_kernel(sizes->backend, executor->instruction[number].kernel, call, &measured, error));
    if (op == &OP_ATTENTION || op == &OP_SPARSE_ATTENTION) time->forward_seconds = measured.seconds;
    else if (op == &OP_ATTENTION_BACKWARD || op == &OP_SPARSE_ATTENTION_BACKWARD)
        time->backward_seconds = measured.seconds;
    else time->lists_seconds += measured.seconds;
    return op == &OP_ATTENTION_BLOCKS ? count_tiles(sizes, call, &time->n_tiles, error) : STATUS_OK;
}

static Status measure(const Sizes *sizes, const AttentionPattern *pattern, BenchAttentionTime *time,
                      Error *error) {
    Wiring program = {.graph = graph_new()};
    double Q = (double)attention_n_blocks(sizes->T);
    time->n_tiles = (double)sizes->B * Q * (Q + 1.0) / 2.0;
    record(program.graph, sizes, pattern);
    TRY_GOTO(bench_program_open(&program, sizes->backend, error), done);
    TRY_GOTO(upload_tokens(&program, sizes, error), done);
    for (int i = 0; i < program.graph->n_nodes; i++)
        TRY_GOTO(time_node(sizes, &program.executor, i, time, error), done);
    double pairs = time->n_tiles * sizes->heads.n_heads * ATTENTION_BLOCK * ATTENTION_BLOCK;
    time->forward_flops = pairs * 4.0 * sizes->heads.head_size;
    time->backward_flops = pairs * 10.0 * sizes->heads.head_size;
done:
    wiring_close_alone(&program);
    return error->status;
}

/* ---- the whole */

static Status measure_pattern(BenchAttention *bench, const Sizes *sizes, const char *text, size_t n,
                              Error *error) {
    AttentionPattern pattern;
    if (bench->n_times == (int)(sizeof bench->time / sizeof bench->time[0]))
        return error_user(error, "--pattern has more than %d patterns", (int)BENCH_MOST_PATTERNS);
    TRY(pattern_parse(text, n, &pattern, error));
    BenchAttentionTime *time = &bench->time[bench->n_times++];
    pattern_print(&pattern, time->name, sizeof time->name);
    return measure(sizes, &pattern, time, error);
}

Status bench_attention_measure(BenchAttention *bench, const BenchSetup *setup, const char *patterns,
                               int64_t document_length, Error *error) {
    *bench =
        (BenchAttention){.batch = setup->bench.batch,
                         .sequence = setup->bench.sequence ? setup->bench.sequence : setup->model.context,
                         .head_size = (int)config_head_size(&setup->model)};
    TRY(bench_backend_open(&bench->backend, &setup->bench, error));
    bench->has_backend = true;
    Sizes sizes = sizes_of(bench, setup, document_length);
    snprintf(bench->time[0].name, sizeof bench->time[0].name, "attention");
    bench->n_times = 1;
    TRY(measure(&sizes, NULL, &bench->time[0], error));
    TRY(measure_pattern(bench, &sizes, "dense", strlen("dense"), error));
    for (const char *at = patterns; *at;) {
        size_t n = strcspn(at, ",");
        TRY(measure_pattern(bench, &sizes, at, n, error));
        at += n + (at[n] == ',');
    }
    return STATUS_OK;
}

void bench_attention_close(BenchAttention *bench) {
    if (bench->has_backend) bench->backend.close(bench->backend.context);
}
