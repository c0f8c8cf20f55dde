/* Which tensors of a case keep f32 where the rest is in 16 bits: a table of operations and their slots. */
#include "op_case_types.h"

#include "base/half.h"
#include "ops/attention/sparse_attention.h"
#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"
#include "ops/compress/lowrank.h"
#include "ops/experts/experts.h"
#include "ops/update/lamb_coefficient.h"
#include "ops/update/muon.h"

float case_rounded(float value, DType dtype) {
    if (dtype == DTYPE_BF16) return half_bf16_to_f32(half_bf16_from_f32(value));
    return dtype == DTYPE_F16 ? half_f16_to_f32(half_f16_from_f32(value)) : value;
}

bool case_is_update(const Node *node) {
    return node->op->update != UPDATE_NONE;
}

static bool is_compression(const Node *node) {
    return node->op == &OP_LOCAL_STEP || node->op == &OP_LOCAL_JOIN || node->op == &OP_COMPRESS ||
           node->op == &OP_COMBINE || node->op == &OP_EXPAND || node->op == &OP_LOWRANK_PROJECT ||
           node->op == &OP_LOWRANK_ORTHONORMAL || node->op == &OP_LOWRANK_RETURN ||
           node->op == &OP_LOWRANK_EXPAND || node->op == &OP_RESCALE || node->op == &OP_LAMB_AVERAGE ||
           node->op == &OP_LAMB_FRESHEN || node->op == &OP_LAMB_ADAPT;
}

static bool touches(const Node *node, const Tensor *tensor) {
    for (int i = 0; i < node->n_inputs; i++)
        if (node->input[i] == tensor) return true;
    for (int i = 0; i < node->n_outputs; i++)
        if (node->output[i] == tensor) return true;
    return false;
}

/* Statistics, scalars, hyperparameters and what is compressed are f32 whatever the rest is. */
static bool is_always_f32(const Graph *graph, const Tensor *tensor) {
    static const struct {
        const Op *op;
        bool is_input;
        int slot;
    } SLOTS[] = {
        {&OP_LAYERNORM, false, 1},
        {&OP_LAYERNORM, false, 2},
        {&OP_RMSNORM, false, 1},
        {&OP_RESIDUAL_NORM, false, 2},
        {&OP_RESIDUAL_NORM, false, 3},
        {&OP_ATTENTION, false, 1},
        {&OP_CROSS_ENTROPY, false, 0},
        {&OP_CROSS_ENTROPY, true, 2},
        {&OP_SQUARED_ERROR, false, 0},
        {&OP_SUM, false, 0},
        {&OP_SQUARED_NORM, false, 0},
        {&OP_MUON_NORMALISE, true, 1},
        {&OP_LAMB_MEASURE, false, 0},
        {&OP_LAMB, true, 4},
        {&OP_CLIP, true, 0},
        {&OP_CLIP, true, 1},
        {&OP_CLIP, false, 0},
        {&OP_CLIP, false, 1},
        {&OP_SPLIT_ENTROPY_PART, false, 0},
        {&OP_SPLIT_ENTROPY, false, 0},
        {&OP_SPLIT_ENTROPY, true, 2},
        {&OP_SPLIT_ENTROPY, true, 3},
        {&OP_ATTENTION_PART, false, 0},
        {&OP_ATTENTION_PART, false, 1},
        {&OP_ATTENTION_PART_BACKWARD, false, 0},
        {&OP_ATTENTION_PART_BACKWARD, false, 1},
        {&OP_DEPTH_SCORE, false, 0},
        {&OP_DEPTH_SCORE, false, 1},
        {&OP_DEPTH_SELECT, true, 0},
        {&OP_DEPTH_ADMIT, true, 0},
        {&OP_DEPTH_GATHER, true, 1},
        {&OP_DEPTH_GATHER, false, 1},
        {&OP_DEPTH_SCATTER_BACKWARD, false, 1},
        {&OP_DEPTH_PREDICT, true, 4},
        {&OP_DEPTH_PREDICT, false, 0},
        {&OP_DEPTH_PREDICT, false, 1},
        {&OP_DEPTH_PREDICT, false, 2},
        {&OP_DEPTH_PREDICT, false, 3},
        {&OP_ROUTER_LOGITS, false, 0},
        {&OP_ROUTE, true, 0},
        {&OP_ROUTE, true, 1},
        {&OP_ROUTE, true, 2},
        {&OP_ROUTE, true, 4},
        {&OP_ROUTE, false, 0},
        {&OP_ROUTE_BACKWARD, true, 0},
        {&OP_ROUTE_BACKWARD, false, 0},
        {&OP_ROUTE_BACKWARD, false, 1},
        {&OP_ROUTE_REPORT, false, 0},
        {&OP_ROUTE_BIAS, true, 0},
        {&OP_ROUTE_BIAS, true, 1},
        {&OP_ROUTE_BIAS, false, 0},
        {&OP_ROUTE_SUMMARY, false, 0},
        {&OP_EXPERT_SCATTER, true, 1},
        {&OP_EXPERT_SCATTER_BACKWARD, false, 1},
        {&OP_SEQUENCE_ROWS, true, 0},
        {&OP_SEQUENCE_ROWS, false, 0},
        {&OP_SPARSE_ATTENTION, false, 1},
        {&OP_SPARSE_ATTENTION_PART, false, 0},
        {&OP_SPARSE_ATTENTION_PART, false, 1},
        {&OP_SPARSE_ATTENTION_PART_BACKWARD, false, 0},
        {&OP_SPARSE_ATTENTION_PART_BACKWARD, false, 1},
    };
    for (int n = 0; n < graph->n_nodes; n++) {
        const Node *node = graph->node[n];
        if (case_is_update(node) && (node->input[1] == tensor || node->input[2] == tensor)) return true;
        if (is_compression(node) && touches(node, tensor)) return true;
        for (size_t i = 0; i < sizeof SLOTS / sizeof SLOTS[0]; i++) {
            if (node->op != SLOTS[i].op) continue;
            if ((SLOTS[i].is_input ? node->input : node->output)[SLOTS[i].slot] == tensor) return true;
        }
    }
    return false;
}

void case_retype(Graph *graph, const CaseTypes *types) {
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->dtype != DTYPE_F32 || is_always_f32(graph, tensor)) continue;
        tensor->dtype = tensor->place == PLACE_GRADIENT ? types->gradient : types->activation;
    }
    for (int n = 0; n < graph->n_nodes; n++) {
        Node *node = graph->node[n];
        if (!case_is_update(node) || types->is_pure) continue;
        for (int k = 0; k < node->n_outputs; k++) {
            if (node->output[k]) node->output[k]->dtype = DTYPE_F32;
        }
        if (node->op == &OP_MUON_MOMENTUM || node->op == &OP_LAMB_MEASURE) continue; /* no weights */
        node->output[node->n_outputs - 1] =
            graph_tensor(graph, PLACE_PARAMETER, types->activation, node->output[0]->shape, "copy");
    }
}
