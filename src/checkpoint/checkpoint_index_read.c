/* Reading any box of a tensor, or a range of one, from whatever pieces it is stored in: of every piece,
 * what it has in common with the box is a box too, and comes in runs that are consecutive in both.
 *
 * Long runs are read to where they belong, and so are those that lie far apart. Short ones, as rows of a
 * narrow shard are, would be a system call each for a few bytes: those come through a window over the
 * piece, which is read again when a run lies beyond it. */
#include "checkpoint/checkpoint_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG_RUN = 2048, WINDOW = 16384, FAR_APART = WINDOW / 4 };

typedef struct {
    const CheckpointPiece *piece;
    SafetensorsFile file; /* the piece's, open */
    float *window;
    bool uses_window;
    int64_t window_first, n_window; /* elements of the piece that the window holds */
} PieceReader;

/* Elements first .. first + n - 1 of what is stored of the piece. */
static Status read_run(PieceReader *reader, int64_t first, int64_t n, float *values, Error *error) {
    const CheckpointPiece *piece = reader->piece;
    if (!reader->uses_window)
        return safetensors_read_f32(&reader->file, piece->tensor, first, n, values, error);
    if (first < reader->window_first || first + n > reader->window_first + reader->n_window) {
        reader->window_first = first;
        reader->n_window = piece->range.n - first < WINDOW ? piece->range.n - first : WINDOW;
        TRY(safetensors_read_f32(&reader->file, piece->tensor, first, reader->n_window, reader->window,
                                 error));
    }
    memcpy(values, reader->window + (first - reader->window_first), sizeof(float) * (size_t)n);
    return STATUS_OK;
}

static int64_t lower(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t higher(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* What a piece and a range have in common: `common` is what their boxes have, in runs. */
typedef struct {
    const BoxRange *stored, *wanted;
    Box common;
    int64_t run, n_runs;
} Common;

/* Where a run begins, counted from the first element that is stored, and from the first that is wanted.
 * Both ascend. */
static void locate(const Common *c, int64_t run, int64_t *there, int64_t *here) {
    *there = box_element(&c->common, &c->stored->box, run * c->run) - c->stored->first;
    *here = box_element(&c->common, &c->wanted->box, run * c->run) - c->wanted->first;
}

/* The first run that does not end before what is stored or wanted begins. */
static int64_t first_run(const Common *c) {
    int64_t low = 0, high = c->n_runs, there, here;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        locate(c, middle, &there, &here);
        if (there + c->run > 0 && here + c->run > 0) high = middle;
        else low = middle + 1;
    }
    return low;
}

static Status read_common(PieceReader *reader, const Common *c, float *values, Error *error) {
    int64_t there, here, first, second;
    if (c->n_runs > 1) {
        locate(c, 0, &first, &here);
        locate(c, 1, &second, &here);
        reader->uses_window = c->run < LONG_RUN && second - first <= FAR_APART;
    }
    for (int64_t run = first_run(c); run < c->n_runs; run++) {
        locate(c, run, &there, &here);
        if (there >= c->stored->n || here >= c->wanted->n) break;
        int64_t skip = higher(0, higher(-there, -here));
        int64_t n = lower(c->run, lower(c->stored->n - there, c->wanted->n - here)) - skip;
        if (n > 0) TRY(read_run(reader, there + skip, n, values + here + skip, error));
    }
    return STATUS_OK;
}

static Status read_piece(const CheckpointPiece *piece, const BoxRange *range, float *window, float *values,
                         Error *error) {
    Common common = {.stored = &piece->range, .wanted = range};
    if (!box_intersect(&piece->range.box, &range->box, &common.common)) return STATUS_OK;
    common.run = lower(box_run(&common.common, &piece->range.box), box_run(&common.common, &range->box));
    common.n_runs = shape_count(common.common.shape) / common.run;
    PieceReader reader = {.piece = piece, .file = *piece->file, .window = window};
    if (piece->file->descriptor >= 0) return read_common(&reader, &common, values, error);
    reader.file.descriptor = open(reader.file.path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (reader.file.descriptor < 0)
        return error_user(error, "cannot read %s: %s", reader.file.path, strerror(errno));
    read_common(&reader, &common, values, error);
    close(reader.file.descriptor);
    return error->status;
}

/* Of pieces in a row, the last that begins at or before element `first`. */
static int piece_at(const CheckpointTensor *tensor, int64_t first) {
    int low = 0, high = tensor->n_pieces - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (tensor->piece[middle].range.first <= first) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Pieces in a row are asked only if they lie between the first and the last element that is wanted. */
Status checkpoint_index_read(const CheckpointTensor *tensor, const BoxRange *range, float *values,
                             Error *error) {
    if (range->n == 0) return STATUS_OK;
    const Box whole = box_whole(tensor->shape);
    int first = 0, last = tensor->n_pieces - 1;
    if (tensor->is_in_row) {
        first = piece_at(tensor, box_element(&range->box, &whole, range->first));
        last = piece_at(tensor, box_element(&range->box, &whole, range->first + range->n - 1));
    }
    float *window = malloc(sizeof(float) * WINDOW);
    if (!window) return error_failed(error, "no memory to read a checkpoint with");
    for (int i = first; i <= last && error->status == STATUS_OK; i++)
        read_piece(&tensor->piece[i], range, window, values, error);
    free(window);
    return error->status;
}
