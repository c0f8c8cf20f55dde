/* Two sets to begin with, and the questions with an answer where a device has none of its own. */
#include "graph/traits.h"

const BackendTraits TRAITS_HOST = {
    .name = "host",
    .memory = MEMORY_HOST,
    .alignment = 64,
    .n_lanes = 1,
    .n_threads = 1,
    .loss_chunk_bytes = 64 << 20, /* rows for all threads */
    .loss_number_bytes = 4,
};

const BackendTraits TRAITS_DEVICE = {
    .name = "device",
    .memory = MEMORY_DEVICE,
    .alignment = 256,
    .is_asynchronous = true,
    .n_lanes = 1,
    .n_threads = 1,
    .loss_chunk_bytes = 400 << 20, /* 4,096 rows of GPT-2's vocabulary in 16 bits */
};

const char *memory_kind_name(MemoryKind kind) {
    static const char *const names[N_MEMORY_KINDS] = {"host", "pinned", "device", "file"};
    return names[kind];
}

bool traits_has_own_memory(const BackendTraits *traits) {
    return traits->memory == MEMORY_DEVICE;
}

int traits_n_lanes(const BackendTraits *traits) {
    return traits->n_lanes > 1 ? traits->n_lanes : 1;
}

bool traits_has_kernel(const BackendTraits *traits, const Node *node) {
    return node->op->is_portable || !traits->has_kernel || traits->has_kernel(traits, node);
}

int traits_missing_kernels(const BackendTraits *traits, const Graph *graph, const Node **missing) {
    int n_missing = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->is_on_host || traits_has_kernel(traits, graph->node[i])) continue;
        if (!n_missing++) *missing = graph->node[i];
    }
    return n_missing;
}

size_t traits_scratch_bytes(const BackendTraits *traits, const Node *node) {
    bool has_none = node->op->is_portable || !traits->scratch_bytes;
    return has_none ? 0 : traits->scratch_bytes(traits, node);
}
