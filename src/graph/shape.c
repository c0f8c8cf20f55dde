#include "graph/shape.h"

#include <stdio.h>

int64_t shape_count(Shape shape) {
    int64_t count = 1;
    for (int i = 0; i < shape.n_dims; i++) {
        if (shape.dim[i] < 0 || __builtin_mul_overflow(count, shape.dim[i], &count)) return -1;
    }
    return count > INT64_MAX / 16 ? -1 : count;
}

bool shape_equal(Shape a, Shape b) {
    if (a.n_dims != b.n_dims) return false;
    for (int i = 0; i < a.n_dims; i++) {
        if (a.dim[i] != b.dim[i]) return false;
    }
    return true;
}

int64_t shape_columns(Shape shape) {
    return shape.n_dims ? shape.dim[shape.n_dims - 1] : 1;
}

int64_t shape_rows(Shape shape) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape.n_dims; i++) rows *= shape.dim[i];
    return rows;
}

Shape shape_with_columns(Shape shape, int64_t columns) {
    shape.dim[shape.n_dims - 1] = columns;
    return shape;
}

char *shape_format(Shape shape, char *text, size_t n_bytes) {
    size_t used = (size_t)snprintf(text, n_bytes, "(");
    for (int i = 0; i < shape.n_dims && used < n_bytes; i++) {
        used += (size_t)snprintf(text + used, n_bytes - used, i ? ",%lld" : "%lld", (long long)shape.dim[i]);
    }
    if (used < n_bytes) snprintf(text + used, n_bytes - used, ")");
    return text;
}
