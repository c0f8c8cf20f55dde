#include "base/file/scratch_borders.h"

#include "base/file/scratch_file.h"

#include <stdlib.h>
#include <string.h>

/* The first page that is not before this one. */
static size_t find(const ScratchBorders *borders, uint64_t page) {
    size_t low = 0, high = borders->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (borders->page[middle].page < page) low = middle + 1;
        else high = middle;
    }
    return low;
}

static Status make_room(ScratchBorders *borders, Error *error) {
    if (borders->n < borders->capacity) return STATUS_OK;
    size_t capacity = borders->capacity ? 2 * borders->capacity : 64;
    BorderPage *larger = realloc(borders->page, capacity * sizeof *larger);
    if (!larger) return error_failed(error, "no memory for the pages where parts of a file meet");
    borders->page = larger;
    borders->capacity = capacity;
    return STATUS_OK;
}

static Status add(ScratchBorders *borders, size_t at, uint64_t page, BorderLoad load, void *context,
                  Error *error) {
    void *bytes = NULL;
    TRY(make_room(borders, error));
    if (posix_memalign(&bytes, SCRATCH_PAGE, SCRATCH_PAGE))
        return error_failed(error, "no memory for a page of a file");
    if (load(context, page * SCRATCH_PAGE, bytes, error) != STATUS_OK) {
        free(bytes);
        return error->status;
    }
    memmove(&borders->page[at + 1], &borders->page[at], (borders->n - at) * sizeof *borders->page);
    borders->page[at] = (BorderPage){page, bytes};
    borders->n++;
    return STATUS_OK;
}

Status borders_write(ScratchBorders *borders, uint64_t offset, const void *bytes, size_t n, BorderLoad load,
                     void *context, Error *error) {
    uint64_t page = offset / SCRATCH_PAGE;
    size_t at = find(borders, page);
    if (at == borders->n || borders->page[at].page != page) TRY(add(borders, at, page, load, context, error));
    memcpy(borders->page[at].bytes + offset % SCRATCH_PAGE, bytes, n);
    return STATUS_OK;
}

void borders_refresh(ScratchBorders *borders, uint64_t offset, const void *pages, size_t n_bytes) {
    uint64_t first = offset / SCRATCH_PAGE, end = first + n_bytes / SCRATCH_PAGE;
    for (size_t i = find(borders, first); i < borders->n && borders->page[i].page < end; i++)
        memcpy(borders->page[i].bytes, (const char *)pages + (borders->page[i].page - first) * SCRATCH_PAGE,
               SCRATCH_PAGE);
}

void borders_overlay(const ScratchBorders *borders, uint64_t offset, void *pages, size_t n_bytes) {
    uint64_t first = offset / SCRATCH_PAGE, end = first + n_bytes / SCRATCH_PAGE;
    for (size_t i = find(borders, first); i < borders->n && borders->page[i].page < end; i++)
        memcpy((char *)pages + (borders->page[i].page - first) * SCRATCH_PAGE, borders->page[i].bytes,
               SCRATCH_PAGE);
}

bool borders_have(const ScratchBorders *borders, uint64_t offset, size_t n_bytes) {
    uint64_t first = offset / SCRATCH_PAGE, n_pages = n_bytes / SCRATCH_PAGE;
    size_t at = find(borders, first);
    return at + n_pages <= borders->n &&
           (!n_pages || borders->page[at + n_pages - 1].page == first + n_pages - 1);
}

void borders_free(ScratchBorders *borders) {
    for (size_t i = 0; i < borders->n; i++) free(borders->page[i].bytes);
    free(borders->page);
    *borders = (ScratchBorders){0};
}
