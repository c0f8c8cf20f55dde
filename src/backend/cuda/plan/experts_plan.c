/* Working memory of the operations of experts, and how their work is cut up. All of it follows from shapes:
 * how many rows an expert has is known on the device alone. */
#include "backend/cuda/plan/plan.h"

#include "ops/experts/experts.h"

static int64_t divide_up(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

/* Enough blocks for the GPU, none with fewer than 64 rows if it can be helped. */
int64_t cuda_router_parts(const CudaTraits *gpu, int64_t rows, int64_t n_experts, int64_t channels) {
    int64_t blocks = divide_up(channels, WARP * VECTOR) * divide_up(n_experts, ROUTER_EXPERTS);
    int64_t parts = divide_up(4 * gpu->n_processors, blocks ? blocks : 1), most = divide_up(rows, 64);
    parts = parts < most ? parts : most;
    return parts > 0 ? parts : 1;
}

size_t cuda_router_weight_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    const Tensor *dlogits = node->input[0], *x = node->input[1];
    int64_t n_experts = shape_columns(dlogits->shape), channels = shape_columns(x->shape);
    return (size_t)(cuda_router_parts(gpu, shape_rows(x->shape), n_experts, channels) * n_experts *
                    channels) *
           sizeof(float);
}

/* Wishes of each group for each expert. */
static size_t shares_bytes(const RouteAttributes *a) {
    return a->kind == ROUTER_EXPERT_CHOICE ? 0 : (size_t)(a->n_groups * a->n_experts) * sizeof(int32_t);
}

size_t cuda_route_backward_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    const RouteAttributes *a = node->attributes;
    return a->balance_scale != 0.0f ? shares_bytes(a) : 0;
}

RouteReportSizes cuda_route_report_sizes(const CudaTraits *gpu, const Node *node) {
    enum { TOKENS = 64, SUMS = 3 }; /* of a block at least, if it can be helped; sums of one */
    const RouteAttributes *a = node->attributes;
    int64_t parts = divide_up(shape_rows(node->input[0]->shape), TOKENS), most = 2 * gpu->n_processors;
    RouteReportSizes s = {.n_parts = parts < 1 ? 1 : parts < most ? parts : most};
    s.counts = (size_t)(s.n_parts * SUMS) * sizeof(double);
    s.shares = s.counts + (size_t)(a->n_experts + 1) * sizeof(int32_t);
    s.n_bytes = s.shares + shares_bytes(a);
    return s;
}

size_t cuda_route_report_scratch(const CudaTraits *gpu, const Node *node) {
    return cuda_route_report_sizes(gpu, node).n_bytes;
}

int cuda_expert_sort_parts(int64_t n_choices) {
    enum { EACH = 1024, MOST = 128 };
    int64_t parts = divide_up(n_choices, EACH);
    return (int)(parts < 1 ? 1 : parts < MOST ? parts : MOST);
}

size_t cuda_expert_sort_scratch(const CudaTraits *gpu, const Node *node) {
    (void)gpu;
    const ExpertSortAttributes *a = node->attributes;
    return (size_t)a->n_experts * (size_t)cuda_expert_sort_parts(tensor_count(node->input[0])) *
           sizeof(int32_t);
}

/* Twice as many blocks as sums of columns have: experts are not all as long. */
int64_t cuda_grouped_bias_parts(const CudaTraits *gpu, int64_t n_experts, int64_t outputs) {
    enum { MOST = 64 };
    int64_t blocks = divide_up(outputs, WARP * VECTOR) * n_experts;
    int64_t parts = divide_up(8 * gpu->n_processors, blocks ? blocks : 1);
    return parts < MOST ? parts : MOST;
}

size_t cuda_grouped_weight_gradient_scratch(const CudaTraits *gpu, const Node *node) {
    int64_t n_experts = tensor_count(node->input[2]) - 1, outputs = shape_columns(node->input[0]->shape);
    if (!node->output[1]) return 0;
    return (size_t)(cuda_grouped_bias_parts(gpu, n_experts, outputs) * n_experts * outputs) * sizeof(float);
}
