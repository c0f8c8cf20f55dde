#include "ops/update/update.h"

/* Do the runs cover `count` elements exactly? */
static bool runs_cover(const UpdateElements *elements, int64_t count) {
    for (int i = 0; i < elements->n_runs; i++) {
        int64_t n = elements->runs[i].n_elements;
        if (n < 0 || n > count) return false;
        count -= n;
    }
    return count == 0;
}

bool update_moment_fits(const Tensor *moment, int64_t count) {
    return tensor_count(moment) == (update_is_packed(moment) ? block8_words(count) : count);
}

int64_t update_n_elements(const Node *node) {
    return tensor_count(update_is_packed(node->input[0]) ? node->output[0] : node->input[0]);
}

static bool fit(const UpdateTensors *tensors, int n_moments) {
    int64_t count = tensor_count(tensors->parameter);
    bool fits = tensor_count(tensors->gradient) == count;
    for (int i = 0; i < n_moments; i++)
        fits = fits && (!tensors->moment[i] || update_moment_fits(tensors->moment[i], count));
    return fits;
}

bool update_record(Graph *graph, const Op *op, const UpdateTensors *tensors, int n_moments,
                   const void *attributes, size_t n_bytes) {
    const char *name = tensors->parameter->name;
    const Tensor *hyper = tensors->hyper, *factor = tensors->factor, *copy = tensors->copy;
    int64_t count = tensor_count(tensors->parameter);
    if (!graph_check(graph, n_moments <= UPDATE_MAX_MOMENTS && n_bytes <= UPDATE_MAX_ATTRIBUTES,
                     "%s: %d moments and %zu bytes of attributes are more than an update may have", op->name,
                     n_moments, n_bytes) ||
        !graph_check(graph, fit(tensors, n_moments),
                     "%s: gradient and moments of %s must have as many elements as it", op->name, name) ||
        !graph_check(graph, tensor_count(hyper) == N_HYPER && hyper->dtype == DTYPE_F32,
                     "%s: hyper input %s must be %d f32 numbers", op->name, hyper->name, N_HYPER) ||
        !graph_check(graph, !factor || tensor_count(factor) == 1, "%s: factor for %s is not a scalar",
                     op->name, name) ||
        !graph_check(graph, !copy || tensor_count(copy) == count,
                     "%s: the copy of %s must have as many elements as it", op->name, name) ||
        !graph_check(graph, runs_cover(attributes, count),
                     "%s: decay runs of %s do not cover its %lld elements", op->name, name,
                     (long long)count)) {
        return false;
    }
    Tensor *outputs[UPDATE_MAX_MOMENTS + 2] = {tensors->parameter};
    for (int i = 0; i < n_moments; i++) outputs[1 + i] = tensors->moment[i];
    outputs[1 + n_moments] = tensors->copy;
    graph_record(graph, op, attributes, n_bytes, 3,
                 TENSORS(tensors->gradient, tensors->hyper, tensors->factor), 2 + n_moments, outputs);
    return true;
}

double update_bytes(const Node *node) {
    double bytes = 0.0;
    for (int i = 0; i < node->n_inputs; i++)
        bytes += node->input[i] ? (double)tensor_bytes(node->input[i]) : 0.0;
    for (int i = 0; i < node->n_outputs; i++) {
        double passes = i < node->n_outputs - 1 ? 2.0 : 1.0; /* the copy is only written */
        bytes += node->output[i] ? passes * (double)tensor_bytes(node->output[i]) : 0.0;
    }
    return bytes;
}
