/* Slices that travel together have to lie side by side. Behind what transfers need of the scratch memory
 * there is room for that; slices that are longer go through it in rounds, a part of each at a time, as they
 * do in the ring. */
#include "comm/algo/places.h"

#include <stdlib.h>
#include <string.h>

Status bundle_open(Comm *comm, Bundle *bundle, const int64_t *slices, int n_slices, CommType type,
                   int n_copies, Error *error) {
    int64_t longest = longest_slice(n_slices, slices, 0);
    int64_t room = (COMM_SCRATCH_BYTES - TRANSFER_SCRATCH_BYTES) / (int64_t)comm_type_bytes(type);
    int64_t most = comm->table->counts_only ? longest : room / ((int64_t)n_slices * n_copies);
    *bundle = (Bundle){.vector = {.type = type},
                       .slices = slices,
                       .n_slots = n_slices,
                       .n_slices = n_slices,
                       .most = most,
                       .longest = longest,
                       .first = -most};
    if (most < 1 && longest > 0)
        return error_user(error, "%d ranks are too many for messages of several slices; use ring or flat",
                          n_slices);
    bundle->border = malloc(((size_t)n_slices + 1) * sizeof *bundle->border);
    if (!bundle->border) return error_failed(error, "no memory for the slices of %d ranks", n_slices);
    if (!comm->table->counts_only) bundle->vector.data = (char *)comm->scratch + TRANSFER_SCRATCH_BYTES;
    return STATUS_OK;
}

void bundle_close(Bundle *bundle) {
    free(bundle->border);
    bundle->border = NULL;
}

Span bundle_part(const Bundle *bundle, int slice) {
    int64_t begin = bundle->slices[slice], end = bundle->slices[slice + 1];
    begin = end - begin < bundle->first ? end : begin + bundle->first;
    return (Span){begin, end - begin < bundle->most ? end : begin + bundle->most};
}

bool bundle_next(Bundle *bundle, int shift) {
    bundle->first += bundle->most;
    if (bundle->first >= bundle->longest) return false;
    bundle->border[0] = 0;
    for (int slot = 0; slot < bundle->n_slots; slot++)
        bundle->border[slot + 1] =
            bundle->border[slot] + span_length(bundle_part(bundle, (shift + slot) % bundle->n_slices));
    bundle->vector.n = bundle->border[bundle->n_slots];
    return true;
}

/* Where the round's part of a slice lies. */
static size_t offset_of(const Bundle *bundle) {
    return (size_t)bundle->first * comm_type_bytes(bundle->vector.type);
}

static size_t slot_bytes(const Bundle *bundle, int slot) {
    return (size_t)(bundle->border[slot + 1] - bundle->border[slot]) * comm_type_bytes(bundle->vector.type);
}

static char *slot_data(const Bundle *bundle, int slot) {
    return bundle->vector.data + (size_t)bundle->border[slot] * comm_type_bytes(bundle->vector.type);
}

void bundle_put(const Bundle *bundle, int slot, const char *from) {
    size_t n_bytes = slot_bytes(bundle, slot);
    if (bundle->vector.data && n_bytes) memcpy(slot_data(bundle, slot), from + offset_of(bundle), n_bytes);
}

void bundle_get(const Bundle *bundle, int slot, char *to) {
    size_t n_bytes = slot_bytes(bundle, slot);
    if (bundle->vector.data && n_bytes) memcpy(to + offset_of(bundle), slot_data(bundle, slot), n_bytes);
}
