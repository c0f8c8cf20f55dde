/* The reference says what is drawn in the plainest way: all tokens are sorted from the likeliest on, those
 * that the options cut off are dropped, and the others are walked through in the order of their numbers until
 * they weigh enough. */
#include "ops/sample.h"

#include "ops/reference.h"

#include <math.h>

static bool is_words(const Tensor *tensor, int64_t count) {
    return tensor->dtype == DTYPE_I32 && tensor_count(tensor) == count;
}

void op_sample(Graph *graph, Tensor *logits, Tensor *settings, Tensor *tokens, Tensor *start, Tensor *rows,
               Tensor *picks) {
    int64_t B = shape_rows(logits->shape);
    if (!graph_check(graph, logits->dtype == DTYPE_F32 && B > 0, "sample: logits %s must be f32, (B,V)",
                     logits->name) ||
        !graph_check(graph, is_words(settings, N_SAMPLE_SETTINGS),
                     "sample: settings %s must be %d words of i32", settings->name, N_SAMPLE_SETTINGS) ||
        !graph_check(graph, is_words(tokens, B) && is_words(start, B),
                     "sample: tokens %s and start %s must be i32, one per sequence", tokens->name,
                     start->name) ||
        !graph_check(graph, is_words(rows, B * N_SAMPLE_ROW),
                     "sample: rows %s must be %d words of i32 per sequence", rows->name, N_SAMPLE_ROW) ||
        !graph_check(graph,
                     picks->shape.n_dims == 3 && picks->shape.dim[0] > 0 &&
                         is_words(picks, picks->shape.dim[0] * B * N_SAMPLE_PICK),
                     "sample: picks %s must be i32, (N,B,%d)", picks->name, N_SAMPLE_PICK)) {
        return;
    }
    graph_record(graph, &OP_SAMPLE, NULL, 0, 2, TENSORS(logits, settings), 4,
                 TENSORS(tokens, start, rows, picks));
}

/* Nothing but the logits is worth counting. */
static double sample_bytes(const Node *node) {
    return (double)tensor_bytes(node->input[0]);
}

/* ---- the reference */

typedef struct {
    float logit;
    int32_t token;
    double weight;
} Candidate;

static int likeliest_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int by_number(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* The shortest beginning of n candidates that weighs `wanted`, at least one. */
static int64_t shortest_beginning(const Candidate *candidates, int64_t n, double wanted) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += candidates[i].weight;
        if (sum >= wanted) return i + 1;
    }
    return n;
}

static double total_weight(const Candidate *candidates, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += candidates[i].weight;
    return sum;
}

static int32_t draw_token(Candidate *candidates, const SampleSettings *settings, const SampleRow *row) {
    int64_t n = settings->n_vocabulary;
    if (settings->top_k > 0 && settings->top_k < n) n = settings->top_k;
    if (settings->top_p < 1.0)
        n = shortest_beginning(candidates, n, settings->top_p * total_weight(candidates, n));
    double total = total_weight(candidates, n), sum = 0.0;
    RandomBlock block =
        random_block(random_key(settings->seed, RANDOM_SAMPLE, 0), row->sample, row->position);
    uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
    double target = (double)(bits >> 11) * 0x1p-53 * total;
    qsort(candidates, (size_t)n, sizeof *candidates, by_number);
    int32_t token = 0;
    for (int64_t i = 0; i < n; i++) {
        if (candidates[i].weight <= 0.0) continue;
        token = candidates[i].token;
        sum += candidates[i].weight;
        if (sum > target) break;
    }
    return token;
}

static SamplePick pick(const float *logits, const SampleSettings *settings, const SampleRow *row,
                       Candidate *candidates) {
    int64_t n = settings->n_vocabulary;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return (SamplePick){(int32_t)(-1 - i), logits[i]};
        candidates[i] = (Candidate){.logit = logits[i], .token = (int32_t)i};
    }
    qsort(candidates, (size_t)n, sizeof *candidates, likeliest_first);
    double largest = (double)candidates[0].logit, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - largest);
        if (settings->temperature > 0.0)
            candidates[i].weight = exp(((double)candidates[i].logit - largest) / settings->temperature);
    }
    int32_t token =
        settings->temperature == 0.0 ? candidates[0].token : draw_token(candidates, settings, row);
    return (SamplePick){token, (float)((double)logits[token] - largest - log(sum))};
}

static Status sample_reference(const KernelCall *call, Error *error) {
    const float *logits = call->in[0]; /* (B,V) */
    const SampleSettings *settings = call->in[1];
    int32_t *tokens = call->out[0], *start = call->out[1]; /* (B) */
    SampleRow *rows = call->out[2];                        /* (B) */
    SamplePick *picks = call->out[3];                      /* (N,B) */
    int64_t B = shape_rows(call->node->input[0]->shape), V = shape_columns(call->node->input[0]->shape);
    uint32_t N = (uint32_t)call->node->output[3]->shape.dim[0];
    Candidate *candidates = malloc(sizeof *candidates * (size_t)V);
    if (!candidates) return error_failed(error, "no memory for %lld candidates", (long long)V);
    for (int64_t b = 0; b < B; b++) {
        SampleRow *row = &rows[b];
        if (!row->is_drawing) continue; /* the settings may then be anything */
        if (settings->n_vocabulary < 1 || settings->n_vocabulary > V) {
            error_failed(error, "sample: %lld tokens of %lld logits", (long long)settings->n_vocabulary,
                         (long long)V);
            break;
        }
        SamplePick made = pick(logits + b * V, settings, row, candidates);
        picks[row->n_picks++ % N * B + b] = made;
        row->is_drawing = made.token >= 0;
        if (made.token < 0) continue;
        tokens[b] = made.token;
        start[b]++;
        row->position++;
    }
    free(candidates);
    return error->status;
}

const Op OP_SAMPLE = {
    .name = "sample",
    .bytes = sample_bytes,
    .reference = sample_reference,
    .is_shortcut = true,
};
