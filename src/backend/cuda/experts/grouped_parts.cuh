/* What grouped GEMMs share: in which order tiles are taken, and what happens to an element at the end. */
#ifndef PGPT_BACKEND_CUDA_EXPERTS_GROUPED_PARTS_CUH
#define PGPT_BACKEND_CUDA_EXPERTS_GROUPED_PARTS_CUH

#include "backend/cuda/experts/grouped.h"
#include "backend/cuda/ops/gelu.cuh"

/* Where a tile is among those of one expert. */
typedef struct {
    int row, column;
} TilePlace;

/* Tiles that are worked on at the same time should share what they read: 8 rows of tiles, column by column,
 * then the next 8. */
DEVICE TilePlace tile_place(int tile, int n_rows, int n_columns) {
    enum { BAND = 8 };
    int band = tile / (BAND * n_columns), rest = tile % (BAND * n_columns);
    int height = min((int)BAND, n_rows - band * BAND);
    return {band * BAND + rest % height, rest / height};
}

/* The slope of an activation that is known when the kernel runs only. */
DEVICE float slope_at(Activation activation, float x) {
    if (activation == ACTIVATION_GELU_TANH) return gelu_backward<ACTIVATION_GELU_TANH>(x);
    if (activation == ACTIVATION_GELU_ERF) return gelu_backward<ACTIVATION_GELU_ERF>(x);
    return 1.0f;
}

#endif
