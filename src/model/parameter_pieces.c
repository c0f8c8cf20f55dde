/* Parameters as pieces of the flat array, and the matrices in them: of a weight the rank's own, of experts
 * each one. */
#include "model/parameters.h"

#include "base/random.h"

static uint64_t box_identity(uint64_t identity, const Box *box) {
    for (int d = 0; d < box->shape.n_dims; d++) {
        identity = random_mix(identity ^ (uint64_t)box->offset[d]);
        identity = random_mix(identity ^ (uint64_t)box->shape.dim[d]);
    }
    return identity;
}

/* Then each is a matrix of its own, so that they stay alike. */
bool parameter_has_shared_boxes(const Parameter *parameter) {
    const ParameterShard *shard = &parameter->shard;
    for (int i = 0; i < shard->n_boxes; i++)
        if (shard->n_boxes > 1 && shard->box[i].n_holders > 1) return true;
    return false;
}

static bool is_matrix(const Parameter *parameter) {
    return parameter->shape.n_dims > 1 && parameter->role != ROLE_EXPERT_FC_BIAS &&
           parameter->role != ROLE_EXPERT_PROJ_BIAS && shape_count(parameter->shape) > 0;
}

/* The whole of what is here, a box of it, or an expert's. */
static void find_matrices(const Parameter *parameter, FlatPiece *piece, Arena *arena) {
    const ParameterShard *shard = &parameter->shard;
    Shape shape = parameter->shape;
    int64_t columns = shape.dim[shape.n_dims - 1], first = parameter->flat_offset;
    bool has_experts = shape.n_dims > 2, by_box = !has_experts && parameter_has_shared_boxes(parameter);
    int n = has_experts ? (int)shape.dim[0] : by_box ? shard->n_boxes : 1;
    FlatMatrix *matrices = ARENA_ARRAY(arena, FlatMatrix, n);
    uint64_t identity = random_mix((uint64_t)parameter->number + 1);
    for (int i = 0; i < shard->n_boxes && !by_box; i++) identity = box_identity(identity, &shard->box[i].box);
    for (int i = 0; i < n; i++) {
        int64_t count = by_box ? shape_count(shard->box[i].box.shape) : shape_count(shape) / n;
        matrices[i] = (FlatMatrix){.first = first, .rows = count / columns, .columns = columns};
        matrices[i].identity =
            by_box ? box_identity(identity, &shard->box[i].box) : random_mix(identity + (uint64_t)i);
        first += count;
    }
    piece->matrix = matrices;
    piece->n_matrices = n;
}

const FlatPiece *parameters_pieces(const ParameterTable *table, Arena *arena) {
    FlatPiece *pieces = ARENA_ARRAY(arena, FlatPiece, table->n_parameters + 1);
    int64_t end = table->n_flat_elements;
    for (int i = table->n_parameters - 1; i >= 0; i--) {
        const Parameter *parameter = &table->parameter[i];
        pieces[i] = (FlatPiece){.first = parameter->flat_offset,
                                .n = end - parameter->flat_offset,
                                .block = parameter->block,
                                .chunk = parameter->chunk,
                                .group = parameter->group,
                                .is_pair = parameter->is_tied_pair,
                                .is_alone = parameter->is_tied_pair || parameter->is_of_two_chunks};
        if (is_matrix(parameter)) find_matrices(parameter, &pieces[i], arena);
        end = parameter->flat_offset;
    }
    return pieces;
}
