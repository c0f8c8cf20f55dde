/* Shapes: up to four dims, the last one contiguous. A scalar has no dims and one element. */
#ifndef PGPT_GRAPH_SHAPE_H
#define PGPT_GRAPH_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHAPE_MAX_DIMS = 4 };

typedef struct {
    int n_dims;
    int64_t dim[SHAPE_MAX_DIMS];
} Shape;

#define SHAPE(...)   ((Shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define SHAPE_SCALAR ((Shape){0, {0}})

/* Number of elements, or -1 if it would not fit in memory addressed by 64 bits (dims come from users). */
int64_t shape_count(Shape shape);

bool shape_equal(Shape a, Shape b);

/* The last dim (1 for a scalar), and the product of all dims before it: most kernels see (rows, columns). */
int64_t shape_columns(Shape shape);
int64_t shape_rows(Shape shape);

/* The same leading dims with another last one. */
Shape shape_with_columns(Shape shape, int64_t columns);

/* "(4,64,768)"; returns text. */
char *shape_format(Shape shape, char *text, size_t n_bytes);

#endif
