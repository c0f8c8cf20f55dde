#include "optim/tensor_spans.h"

/* Tensors that the parameter is: its experts, or one. */
static int n_tensors_of(const Parameter *parameter) {
    return role_is_of_experts(parameter->role) ? (int)parameter->shape.dim[0] : 1;
}

TensorNumbers tensor_numbers(const ParameterTable *table, Arena *arena) {
    TensorNumbers numbers = {.first = ARENA_ARRAY(arena, int, table->n_parameters + 1)};
    for (int group = 0; group < N_FLAT_GROUPS; group++) {
        for (int i = 0; i < table->n_parameters; i++) {
            const Parameter *parameter = &table->parameter[i];
            if ((int)parameter->group != group || !parameter->decays) continue;
            numbers.first[i] = numbers.n_tensors;
            numbers.n_tensors += n_tensors_of(parameter);
        }
        if (group == FLAT_SHARED) numbers.n_shared = numbers.n_tensors;
    }
    return numbers;
}

/* Elements of one array that the caller asks for. */
typedef struct {
    TensorSpan *span;
    int n;
    int64_t first, end, shift; /* of the flat array; where they begin in the spans' count */
} SpanList;

static void add(SpanList *list, int64_t first, int64_t end, int tensor, bool is_counted) {
    if (first < list->first) first = list->first;
    if (end > list->end) end = list->end;
    if (first < end)
        list->span[list->n++] = (TensorSpan){first + list->shift, end + list->shift, tensor, is_counted};
}

TensorSpans tensor_spans(const ParameterTable *table, const TensorNumbers *numbers, int64_t flat_first,
                         int64_t n, int64_t first_element, Arena *arena) {
    int most = numbers->n_tensors + SHARD_MAX_BOXES * table->n_parameters;
    SpanList list = {.span = ARENA_ARRAY(arena, TensorSpan, most + 1),
                     .first = flat_first,
                     .end = flat_first + n,
                     .shift = first_element - flat_first};
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        const ParameterShard *shard = &parameter->shard;
        int64_t at = parameter->flat_offset;
        for (int k = 0; k < shard->n_boxes && parameter->decays; k++) {
            /* A table that both ends of a pipeline hold has an owner, but each end sums it up for itself. */
            bool is_counted = shard->box[k].is_owner || shard->box[k].n_holders == 1;
            int n_parts = n_tensors_of(parameter);
            int64_t each = n_parts ? shape_count(shard->box[k].box.shape) / n_parts : 0;
            for (int part = 0; part < n_parts; part++, at += each)
                add(&list, at, at + each, numbers->first[i] + part, is_counted);
        }
    }
    return (TensorSpans){.n_spans = list.n, .span = list.span};
}
