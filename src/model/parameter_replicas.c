#include "model/parameters.h"

/* A box that others hold too: their gradients are parts where the rows of the batch are split, or the heads
 * that read it. Where every rank computes the whole of it, there is nothing to sum. */
static bool is_partial(const Parameter *parameter, const ShardBox *box, bool by_sequence) {
    return box->n_holders > 1 && (parameter->rule != SHARD_NONE || by_sequence);
}

int parameters_replicas(const ParameterTensors *tensors, Comm *tp, Comm *heads, bool by_sequence,
                        GradientReplica *replicas) {
    int n_replicas = 0;
    for (int i = 0; i < tensors->table->n_parameters; i++) {
        const Parameter *parameter = &tensors->table->parameter[i];
        int64_t first = 0;
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const ShardBox *box = &parameter->shard.box[k];
            int64_t n = shape_count(box->box.shape);
            if (is_partial(parameter, box, by_sequence)) {
                replicas[n_replicas++] =
                    (GradientReplica){.parameter = tensors->tensor[i],
                                      .first = first,
                                      .n = n,
                                      .comm = parameter->rule == SHARD_QKV_ROWS ? heads : tp};
            }
            first += n;
        }
    }
    return n_replicas;
}
