#include "parallel/offload/offload_slots.h"

#include "graph/plan.h"
#include "parallel/offload/offload_files.h"
#include "parallel/offload/offload_messages.h"

/* Of an array in a file it begins where in a page the piece does. */
Tensor *offload_slot(OffloadSlots *slots, int side, int turn, int at, const Tensor *tensor, int64_t n) {
    Graph *graph = slots->graph;
    Tensor **slot = &slots->slot[side][turn % slots->n][at][tensor->dtype];
    int64_t size = (int64_t)dtype_info(tensor->dtype)->n_bytes;
    int64_t skip = offload_is_in_file(tensor)
                       ? offload_page_skip(tensor_root((Tensor *)tensor), tensor_root_element(tensor))
                       : 0;
    if (!*slot)
        *slot = graph_tensor(graph, side == ON_DEVICE ? PLACE_STATE : PLACE_HOST, tensor->dtype,
                             SHAPE(offload_units(tensor, slots->n_elements) + PLAN_PAGE / size),
                             "%s (slot %d)", tensor->name, turn % slots->n);
    return graph_view(graph, *slot, SHAPE(offload_units(tensor, n)), skip, (*slot)->name);
}
