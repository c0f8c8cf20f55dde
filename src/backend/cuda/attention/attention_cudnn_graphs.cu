/* attention as cuDNN wants to be told of it: a graph of small operations for the forward, and one for the
 * backward.
 *
 * Queries, keys and values are described as strided views of the rows of qkv, the gradients as views of dqkv,
 * and what cuDNN calls the statistics of the softmax is our lse. A GEMM's second factor is written transposed
 * by exchanging two strides. cuDNN recognises attention by its form, so the order and the types of the
 * operations are not free. */
#include "backend/cuda/attention/attention_cudnn.h"

/* ---- descriptors: the first failure stays, and what comes after it does nothing ---- */

void plan_note(AttentionPlan *p, cudnnStatus_t status, const char *what) {
    if (p->status != CUDNN_STATUS_SUCCESS || status == CUDNN_STATUS_SUCCESS) return;
    p->status = status;
    p->what = what;
}

Descriptor plan_create(AttentionPlan *p, cudnnBackendDescriptorType_t type) {
    if (p->status != CUDNN_STATUS_SUCCESS) return NULL;
    Descriptor d = NULL;
    if (p->n_made == MOST_DESCRIPTORS) {
        plan_note(p, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    plan_note(p, p->cudnn->BackendCreateDescriptor(type, &d), "a descriptor");
    if (d) p->made[p->n_made++] = d;
    return d;
}

void plan_set(AttentionPlan *p, Descriptor d, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t count, const void *value, const char *what) {
    if (p->status == CUDNN_STATUS_SUCCESS)
        plan_note(p, p->cudnn->BackendSetAttribute(d, name, type, count, value), what);
}

void plan_set_descriptor(AttentionPlan *p, Descriptor d, cudnnBackendAttributeName_t name, Descriptor value,
                         const char *what) {
    plan_set(p, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

void plan_finalize(AttentionPlan *p, Descriptor d, const char *what) {
    if (p->status == CUDNN_STATUS_SUCCESS) plan_note(p, p->cudnn->BackendFinalize(d), what);
}

/* ---- tensors ---- */

typedef struct {
    int64_t dim[4], stride[4];
} Layout;

static Descriptor tensor(AttentionPlan *p, int64_t id, cudnnDataType_t type, Layout layout, bool is_virtual,
                         bool by_value) {
    Descriptor d = plan_create(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16;
    plan_set(p, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, layout.dim, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, layout.stride, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, "a tensor");
    plan_set(p, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value, "a tensor");
    plan_finalize(p, d, "a tensor");
    return d;
}

static Descriptor outer(AttentionPlan *p, int64_t id, cudnnDataType_t type, Layout layout) {
    return tensor(p, id, type, layout, false, false);
}

static Descriptor between(AttentionPlan *p, cudnnDataType_t type, Layout layout) {
    return tensor(p, FIRST_BETWEEN + p->next_between++, type, layout, true, false);
}

static Descriptor scalar(AttentionPlan *p, int64_t id) {
    const Layout one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(p, id, CUDNN_DATA_FLOAT, one, false, true);
}

static cudnnDataType_t type_of(const AttentionPlan *p) {
    return p->shape.dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* Heads within rows of `width` elements: what qkv, y and their gradients are made of. */
static Layout heads(const AttentionPlan *p, int64_t n_heads, int64_t width) {
    int64_t t = p->shape.n_positions, size = p->shape.head_size;
    Layout layout = {{p->shape.n_sequences, n_heads, t, size}, {t * width, size, width, 1}};
    return layout;
}

static Layout transposed(Layout a) {
    Layout layout = {{a.dim[0], a.dim[1], a.dim[3], a.dim[2]},
                     {a.stride[0], a.stride[1], a.stride[3], a.stride[2]}};
    return layout;
}

/* (B,NH,rows,columns), all next to each other. */
static Layout dense(const AttentionPlan *p, int64_t rows, int64_t columns) {
    int64_t n = p->shape.n_heads;
    Layout layout = {{p->shape.n_sequences, n, rows, columns},
                     {n * rows * columns, rows * columns, columns, 1}};
    return layout;
}

/* ---- operations ---- */

static void add_operation(AttentionPlan *p, Descriptor d, const char *what) {
    plan_finalize(p, d, what);
    if (p->n_operations == MOST_OPERATIONS) plan_note(p, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    if (p->status == CUDNN_STATUS_SUCCESS) p->operation[p->n_operations++] = d;
}

static void gemm(AttentionPlan *p, Descriptor a, Descriptor b, Descriptor c) {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    Descriptor kind = plan_create(p, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    plan_set(p, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "a GEMM");
    plan_finalize(p, kind, "a GEMM");
    Descriptor d = plan_create(p, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, "a GEMM");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, "a GEMM");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, "a GEMM");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind, "a GEMM");
    add_operation(p, d, "a GEMM");
}

/* y = mode(x, [b], [t]). axis is that of GEN_INDEX, or -1. */
static Descriptor pointwise(AttentionPlan *p, cudnnPointwiseMode_t mode, cudnnDataType_t compute,
                            int64_t axis, Descriptor x, Descriptor b, Descriptor t, Descriptor y) {
    Descriptor kind = plan_create(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    plan_set(p, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode,
             "a pointwise operation");
    plan_set(p, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute,
             "a pointwise operation");
    if (axis >= 0)
        plan_set(p, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, "a pointwise operation");
    plan_finalize(p, kind, "a pointwise operation");
    Descriptor d = plan_create(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind, "a pointwise operation");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, "a pointwise operation");
    if (b) plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, "a pointwise operation");
    if (t) plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, "a pointwise operation");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, "a pointwise operation");
    add_operation(p, d, "a pointwise operation");
    return y;
}

static Descriptor float_pointwise(AttentionPlan *p, cudnnPointwiseMode_t mode, Descriptor x, Descriptor b,
                                  Descriptor y) {
    return pointwise(p, mode, CUDNN_DATA_FLOAT, -1, x, b, NULL, y);
}

static Descriptor reduce(AttentionPlan *p, cudnnReduceTensorOp_t how, Descriptor x, Descriptor y) {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    Descriptor kind = plan_create(p, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    plan_set(p, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how,
             "a reduction");
    plan_set(p, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "a reduction");
    plan_finalize(p, kind, "a reduction");
    Descriptor d = plan_create(p, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, "a reduction");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, "a reduction");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind, "a reduction");
    add_operation(p, d, "a reduction");
    return y;
}

static Descriptor reshape(AttentionPlan *p, Descriptor x, Descriptor y) {
    Descriptor d = plan_create(p, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, "a reshape");
    plan_set_descriptor(p, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, "a reshape");
    add_operation(p, d, "a reshape");
    return y;
}

/* score where the query may see the key, and the lowest number elsewhere. */
static Descriptor causal(AttentionPlan *p, Descriptor score) {
    Layout square = dense(p, p->shape.n_positions, p->shape.n_positions);
    Descriptor row = pointwise(p, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, score, NULL, NULL,
                               between(p, CUDNN_DATA_INT32, square));
    Descriptor column = pointwise(p, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, score, NULL, NULL,
                                  between(p, CUDNN_DATA_INT32, square));
    Descriptor sees = pointwise(p, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL,
                                between(p, CUDNN_DATA_BOOLEAN, square));
    return pointwise(p, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, score, scalar(p, LOWEST), sees,
                     between(p, CUDNN_DATA_FLOAT, square));
}

/* ---- the two graphs ---- */

void plan_describe_forward(AttentionPlan *p) {
    const AttentionShape *s = &p->shape;
    cudnnDataType_t type = type_of(p), f32 = CUDNN_DATA_FLOAT;
    Layout square = dense(p, s->n_positions, s->n_positions), column = dense(p, s->n_positions, 1);
    Layout queries = heads(p, s->n_heads, s->width), keys = heads(p, s->n_kv_heads, s->width);
    Descriptor gemm_qk = between(p, f32, square);
    gemm(p, outer(p, Q, type, queries), outer(p, K, type, transposed(keys)), gemm_qk);
    Descriptor score = causal(
        p, float_pointwise(p, CUDNN_POINTWISE_MUL, gemm_qk, scalar(p, SCALE), between(p, f32, square)));
    Descriptor max = reduce(p, CUDNN_REDUCE_TENSOR_MAX, score, between(p, f32, column));
    Descriptor below = float_pointwise(p, CUDNN_POINTWISE_SUB, score, max, between(p, f32, square));
    Descriptor e = float_pointwise(p, CUDNN_POINTWISE_EXP, below, NULL, between(p, f32, square));
    Descriptor sum = reduce(p, CUDNN_REDUCE_TENSOR_ADD, e, between(p, f32, column));
    Descriptor log_sum = float_pointwise(p, CUDNN_POINTWISE_LOG, sum, NULL, between(p, f32, column));
    float_pointwise(p, CUDNN_POINTWISE_ADD, max, log_sum, outer(p, LSE, f32, column));
    Descriptor weight = float_pointwise(p, CUDNN_POINTWISE_DIV, e, sum, between(p, type, square));
    gemm(p, weight, outer(p, V, type, keys), outer(p, Y, type, heads(p, s->n_heads, s->y_width)));
}

/* The product of a transposed square with rows of every query head, summed over the heads that share a
 * key. */
static void gradient_of_keys(AttentionPlan *p, Descriptor square_of_scores, Descriptor rows, Descriptor out) {
    const AttentionShape *s = &p->shape;
    cudnnDataType_t type = type_of(p);
    Layout turned = transposed(dense(p, s->n_positions, s->n_positions));
    Descriptor factor = reshape(p, square_of_scores, between(p, type, turned));
    if (s->n_heads == s->n_kv_heads) {
        gemm(p, factor, rows, out);
        return;
    }
    Descriptor all = between(p, type, dense(p, s->n_positions, s->head_size));
    gemm(p, factor, rows, all);
    reduce(p, CUDNN_REDUCE_TENSOR_ADD, all, out);
}

void plan_describe_backward(AttentionPlan *p) {
    const AttentionShape *s = &p->shape;
    cudnnDataType_t type = type_of(p), f32 = CUDNN_DATA_FLOAT;
    Layout square = dense(p, s->n_positions, s->n_positions), column = dense(p, s->n_positions, 1);
    Layout queries = heads(p, s->n_heads, s->width), keys = heads(p, s->n_kv_heads, s->width),
           rows = heads(p, s->n_heads, s->y_width);
    Descriptor scale = scalar(p, SCALE), dy = outer(p, DY, type, rows), q = outer(p, Q, type, queries),
               k = outer(p, K, type, transposed(keys));
    /* Σ dy·y of every row */
    Descriptor dy_y =
        float_pointwise(p, CUDNN_POINTWISE_MUL, dy, outer(p, Y, type, rows), between(p, f32, rows));
    Descriptor sum = reduce(p, CUDNN_REDUCE_TENSOR_ADD, dy_y, between(p, f32, column));
    Descriptor row_sum =
        float_pointwise(p, CUDNN_POINTWISE_MUL, sum, scalar(p, ONE), outer(p, ROW_SUM, f32, column));
    /* the weights again */
    Descriptor gemm_qk = between(p, f32, square);
    gemm(p, q, k, gemm_qk);
    Descriptor score = float_pointwise(p, CUDNN_POINTWISE_MUL, gemm_qk, scale, between(p, f32, square));
    Descriptor below =
        float_pointwise(p, CUDNN_POINTWISE_SUB, score, outer(p, LSE, f32, column), between(p, f32, square));
    Descriptor weight =
        float_pointwise(p, CUDNN_POINTWISE_EXP, causal(p, below), NULL, between(p, f32, square));
    gradient_of_keys(p, weight, dy, outer(p, DV, type, keys));
    /* dscore = weight · (dy·value - row_sum) · scale */
    Descriptor dweight = between(p, f32, square);
    gemm(p, dy, outer(p, V, type, transposed(keys)), dweight);
    Descriptor apart = float_pointwise(p, CUDNN_POINTWISE_SUB, dweight, row_sum, between(p, f32, square));
    Descriptor slope = float_pointwise(p, CUDNN_POINTWISE_MUL, apart, weight, between(p, f32, square));
    Descriptor dscore = float_pointwise(p, CUDNN_POINTWISE_MUL, slope, scale, between(p, f32, square));
    gradient_of_keys(p, dscore, q, outer(p, DK, type, keys));
    Descriptor rows_of_keys = reshape(p, k, between(p, type, keys)), dq = outer(p, DQ, type, queries);
    if (p->any_order) {
        Descriptor dq_sum = outer(p, DQ_SUM, f32, dense(p, s->n_positions, s->head_size));
        gemm(p, dscore, rows_of_keys, dq_sum);
        float_pointwise(p, CUDNN_POINTWISE_IDENTITY, dq_sum, NULL, dq);
    } else {
        gemm(p, dscore, rows_of_keys, dq);
    }
}
