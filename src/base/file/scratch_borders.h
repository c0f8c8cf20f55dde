/* Pages of a file that no single transfer covers: where two arrays, or two parts of one, meet. A disk reads
 * and writes whole pages past the system's cache, so such a page would have to be read, changed and written
 * for each of its parts. There are few of them, one a border, so they stay in memory: a write of a part goes
 * here alone, and what is read from the file is corrected by what is here.
 *
 *     ScratchBorders borders = {0};
 *     TRY(borders_write(&borders, offset, bytes, n, load, file, error));      // within one page
 *     borders_refresh(&borders, offset, pages, n_bytes);                      // whole pages go to the file
 *     borders_overlay(&borders, offset, pages, n_bytes);                      // and have come from it
 *     borders_free(&borders);
 *
 * The caller has a lock. */
#ifndef PGPT_BASE_FILE_SCRATCH_BORDERS_H
#define PGPT_BASE_FILE_SCRATCH_BORDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    uint64_t page; /* its number in the file */
    char *bytes;
} BorderPage;

typedef struct {
    BorderPage *page; /* in order */
    size_t n, capacity;
} ScratchBorders;

/* Reads what the file has of a page. */
typedef Status (*BorderLoad)(void *context, uint64_t offset, void *page, Error *error);

/* n bytes, of one page; one that is new here is loaded first. */
Status borders_write(ScratchBorders *borders, uint64_t offset, const void *bytes, size_t n, BorderLoad load,
                     void *context, Error *error);

/* Whole pages from offset on: what is here takes their bytes; and the other way round. */
void borders_refresh(ScratchBorders *borders, uint64_t offset, const void *pages, size_t n_bytes);
void borders_overlay(const ScratchBorders *borders, uint64_t offset, void *pages, size_t n_bytes);

/* Are all pages of these bytes here? */
bool borders_have(const ScratchBorders *borders, uint64_t offset, size_t n_bytes);

void borders_free(ScratchBorders *borders);

#endif
