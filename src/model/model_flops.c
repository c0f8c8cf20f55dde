/* A block's GEMMs are 24·B·s·h² forward, its scores and their sums of values 4·B·s²·h, the logits 2·B·s·h·V.
 * The backward takes twice as much; recomputation repeats the blocks, not the logits. */
#include "model/model_flops.h"

double model_flops_standard(const ModelConfig *config, int64_t n_sequences, int64_t T, bool recomputes) {
    double B = (double)n_sequences, s = (double)T, l = (double)config->n_layers;
    double h = (double)config->n_channels, V = (double)config->vocabulary;
    double passes = recomputes ? 4.0 : 3.0; /* forward, backward twice, and once more */
    return passes * 24.0 * B * s * l * h * h * (1.0 + s / (6.0 * h) + V / (4.0 * passes * l * h));
}
