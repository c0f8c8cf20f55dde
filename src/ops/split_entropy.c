/* split_entropy: the cross-entropy of logits whose vocabulary is split among ranks.
 *
 * No rank ever has a whole row. Each makes three numbers of its part of every row, the ranks exchange those,
 * and each puts them together:
 *
 *     max = max over ranks of max_r          sum = Σ sum_r · e^(max_r - max)
 *     loss = max + log sum - Σ target_r      dlogits = gradient_scale · (e^(logit - max) / sum - onehot)
 *
 * The three numbers have no gradient of their own: as in cross_entropy, the second operation knows that of
 * the scaled sum of its losses, which stands for both. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

static bool is_sound(Graph *graph, const Tensor *logits, const Tensor *targets,
                     const SplitEntropyAttributes *a) {
    return graph_check(graph, logits->shape.n_dims >= 1 && shape_columns(logits->shape) > 0,
                       "split_entropy: logits %s must have shape (N,V/n)", logits->name) &&
           graph_check(graph, a->n_classes >= 0 && a->n_classes <= shape_columns(logits->shape),
                       "split_entropy: %lld classes in %s of %lld columns", (long long)a->n_classes,
                       logits->name, (long long)shape_columns(logits->shape)) &&
           graph_check(graph, a->first_class >= 0 && a->first_class + a->n_classes <= a->n_all,
                       "split_entropy: %s has classes beyond the last of %lld", logits->name,
                       (long long)a->n_all) &&
           graph_check(
               graph, targets->dtype == DTYPE_I32 && tensor_count(targets) == shape_rows(logits->shape),
               "split_entropy: targets %s must be i32, one per row of %s", targets->name, logits->name);
}

Tensor *op_split_entropy_part(Graph *graph, Tensor *logits, Tensor *targets,
                              const SplitEntropyAttributes *attributes) {
    if (!is_sound(graph, logits, targets, attributes)) return graph->nothing;
    Tensor *part = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32,
                                SHAPE(shape_rows(logits->shape), ENTROPY_PARTS), "%s.part", logits->name);
    graph_record(graph, &OP_SPLIT_ENTROPY_PART, attributes, sizeof *attributes, 2, TENSORS(logits, targets),
                 1, TENSORS(part));
    part->needs_gradient = false;
    return part;
}

void op_split_entropy(Graph *graph, Tensor *logits, Tensor *targets, Tensor *parts, Tensor *scale,
                      Tensor *losses, const SplitEntropyAttributes *attributes) {
    int64_t n_rows = shape_rows(logits->shape);
    if (!is_sound(graph, logits, targets, attributes) ||
        !graph_check(graph,
                     parts->dtype == DTYPE_F32 && parts->shape.n_dims == 3 && parts->shape.dim[1] == n_rows &&
                         parts->shape.dim[2] == ENTROPY_PARTS,
                     "split_entropy: %s must be f32 of shape (n,N,%d)", parts->name, ENTROPY_PARTS) ||
        !graph_check(graph, !scale || (scale->dtype == DTYPE_F32 && tensor_count(scale) == 1),
                     "split_entropy: the scale for %s must be one f32 number", logits->name) ||
        !graph_check(graph, losses->dtype == DTYPE_F32 && tensor_count(losses) == n_rows,
                     "split_entropy: %s must be f32, one per row of %s", losses->name, logits->name)) {
        return;
    }
    Tensor *dlogits = NULL;
    if (logits->needs_gradient)
        dlogits = graph_tensor(graph, PLACE_ACTIVATION, logits->dtype, logits->shape, "d%s", logits->name);
    graph_record(graph, &OP_SPLIT_ENTROPY, attributes, sizeof *attributes, 4,
                 TENSORS(logits, targets, parts, scale), 2, TENSORS(losses, dlogits));
    losses->needs_gradient = false;
    if (dlogits) dlogits->needs_gradient = false;
}

static void split_entropy_gradient(Autograd *autograd, const Node *node) {
    if (node->output[1]) autograd_share(autograd, node->input[0], node->output[1]);
}

/* A logit: maximum, subtract, e^, sum. */
static double part_flops(const Node *node) {
    return 4.0 * (double)tensor_count(node->input[0]);
}

/* A logit's gradient: subtract, e^, divide and scale. */
static double split_entropy_flops(const Node *node) {
    return (node->output[1] ? 4.0 : 0.0) * (double)tensor_count(node->input[0]);
}

static void split_entropy_describe(const Node *node, char *text, size_t n_bytes) {
    const SplitEntropyAttributes *a = node->attributes;
    snprintf(text, n_bytes, "classes %lld to %lld of %lld", (long long)a->first_class,
             (long long)(a->first_class + a->n_classes - 1), (long long)a->n_all);
}

/* A logit is read before its gradient replaces it. */
static int split_entropy_in_place(const Node *node, int output) {
    (void)node;
    return output == 1 ? 0 : -1;
}

static Status check_target(int64_t target, int64_t n_all, Error *error) {
    if (target < n_all) return STATUS_OK;
    return error_failed(error, "split_entropy: target %lld of a vocabulary of %lld", (long long)target,
                        (long long)n_all);
}

static Status part_reference(const KernelCall *call, Error *error) {
    const SplitEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0];    /* (N,V/n) */
    const int32_t *targets = call->in[1]; /* (N) */
    float *part = call->out[0];           /* (N,3) */
    int64_t rows = shape_rows(call->node->input[0]->shape),
            width = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        const float *row = logits + n * width;
        int64_t target = targets[n] - a->first_class;
        TRY(check_target(targets[n], a->n_all, error));
        double maximum = -INFINITY, sum = 0.0;
        for (int64_t v = 0; v < a->n_classes; v++) maximum = fmax(maximum, (double)row[v]);
        for (int64_t v = 0; v < a->n_classes; v++) sum += exp((double)row[v] - maximum);
        part[n * ENTROPY_PARTS] = (float)maximum;
        part[n * ENTROPY_PARTS + 1] = (float)sum;
        part[n * ENTROPY_PARTS + 2] = target >= 0 && target < a->n_classes ? row[target] : 0.0f;
    }
    return STATUS_OK;
}

static Status split_entropy_reference(const KernelCall *call, Error *error) {
    const SplitEntropyAttributes *a = call->node->attributes;
    const float *logits = call->in[0] /* (N,V/n) */, *parts = call->in[2] /* (n,N,3) */;
    const int32_t *targets = call->in[1]; /* (N) */
    const float *scale = call->in[3];     /* [(1)] */
    float *losses = call->out[0] /* (N) */, *dlogits = call->out[1] /* (N,V/n) */;
    double gradient_scale = (double)a->gradient_scale * (scale ? (double)*scale : 1.0);
    int64_t rows = shape_rows(call->node->input[0]->shape),
            width = shape_columns(call->node->input[0]->shape), n_parts = call->node->input[2]->shape.dim[0];
    for (int64_t n = 0; n < rows; n++) {
        double maximum = -INFINITY, sum = 0.0, target_logit = 0.0;
        TRY(check_target(targets[n], a->n_all, error));
        for (int64_t r = 0; r < n_parts; r++)
            maximum = fmax(maximum, (double)parts[(r * rows + n) * ENTROPY_PARTS]);
        for (int64_t r = 0; r < n_parts; r++) {
            const float *part = parts + (r * rows + n) * ENTROPY_PARTS;
            sum += part[1] > 0.0f ? (double)part[1] * exp((double)part[0] - maximum) : (double)part[1];
            target_logit += (double)part[2];
        }
        losses[n] = targets[n] < 0 ? 0.0f : (float)(maximum + log(sum) - target_logit);
        for (int64_t v = 0; dlogits && v < width; v++) {
            bool is_target = v + a->first_class == targets[n];
            double gradient = exp((double)logits[n * width + v] - maximum) / sum - (is_target ? 1.0 : 0.0);
            float value = targets[n] < 0 || v >= a->n_classes ? 0.0f : (float)(gradient_scale * gradient);
            reference_write(&dlogits[n * width + v], value, call->add[1]);
        }
    }
    return STATUS_OK;
}

const Op OP_SPLIT_ENTROPY_PART = {
    .name = "split_entropy_part",
    .flops = part_flops,
    .describe = split_entropy_describe,
    .reference = part_reference,
};

const Op OP_SPLIT_ENTROPY = {
    .name = "split_entropy",
    .gradient = split_entropy_gradient,
    .flops = split_entropy_flops,
    .in_place = split_entropy_in_place,
    .describe = split_entropy_describe,
    .reference = split_entropy_reference,
};
